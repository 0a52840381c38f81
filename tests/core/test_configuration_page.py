"""docs/configuration.md names every key and option there is, and none that is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from channels_app.options import OPTIONS
from relay_app.config_fields import TIMEOUTS
from relay_app.config_file import (
    SECTIONS,
    ChannelRow,
    GroupRow,
    KeyRow,
    Row,
    TokenRow,
    UserRow,
    file_fields,
)
from relay_app.providers.registry import ADAPTERS

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "configuration.md"


def rows(title: str) -> dict[str, str]:
    """Return the rows of the table below `title`: name to the rest of its row."""
    section = re.split(rf"^##+ {re.escape(title)}$", PAGE.read_text(), flags=re.MULTILINE)[1]
    section = re.split(r"^##", section, flags=re.MULTILINE)[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("groups", GroupRow),
        ("channels", ChannelRow),
        ("Keys of a channel", KeyRow),
        ("users", UserRow),
        ("tokens", TokenRow),
    ],
)
def test_every_key_of_a_row_is_there(title: str, kind: type[Row]) -> None:
    assert list(rows(title)) == list(file_fields(kind))


def test_every_section_type_and_timeout_is_there() -> None:
    assert list(rows("Top")) == list(SECTIONS)
    channels = rows("channels")
    assert [name for name in ADAPTERS if f"`{name}`" not in channels["type"]] == []
    assert [name for name in TIMEOUTS if f"`{name}`" not in channels["timeouts"]] == []


def test_every_option_is_there_with_its_default_limits_and_help() -> None:
    page = rows("Options")

    assert list(page) == list(OPTIONS)
    for name, spec in OPTIONS.items():
        default, limits, meaning = page[name].split(" | ")
        assert (default, meaning) == (str(spec.default), spec.help), name
        if spec.kind != "ranges":
            word = "whole number " if spec.kind == "int" else ""
            unit = f" {spec.unit}" if spec.unit else ""
            assert limits == f"{word}{spec.low:g} to {spec.high:g}{unit}", name
