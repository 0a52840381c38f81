"""docs/configuration.md names every key and option there is, and none that is not."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from channels_app.options import OPTIONS, OptionSpec
from channels_app.presets import PRESETS
from relay_app.config_channel_fields import LIMITS
from relay_app.config_fields import TIMEOUTS
from relay_app.config_file import SECTIONS
from relay_app.config_rows import (
    ChannelRow,
    GroupRow,
    KeyRow,
    PriceRow,
    Row,
    TokenRow,
    UserRow,
    file_fields,
)
from relay_app.providers.registry import ADAPTERS
from relay_app.providers.simulated import Behaviour
from relay_app.urls import ENDPOINTS

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
        ("prices", PriceRow),
    ],
)
def test_every_key_of_a_row_is_there(title: str, kind: type[Row]) -> None:
    assert list(rows(title)) == list(file_fields(kind))


def test_no_table_is_torn() -> None:
    """A blank line inside a table would end it: rows after it would be shown as text."""
    assert not re.search(r"^\|.*\n\n\| `", PAGE.read_text(), flags=re.MULTILINE)


def test_every_section_type_and_timeout_is_there() -> None:
    assert list(rows("Top")) == list(SECTIONS)
    channels = rows("channels")
    assert [name for name in ADAPTERS if f"`{name}`" not in channels["type"]] == []
    assert [name for name in TIMEOUTS if f"`{name}`" not in channels["timeouts"]] == []
    assert [name for name in LIMITS if f"`{name}`" not in channels["limits"]] == []


def test_every_preset_is_there_with_its_values() -> None:
    for name, meaning in rows("Presets").items():
        values = ", ".join(f"{option} {value}" for option, value in PRESETS[name].items())
        assert meaning.startswith(f"{values} | "), name
    assert list(rows("Presets")) == list(PRESETS)


RANGES = {
    "bool": "on, off",
    "ranges": "statuses, such as 429,500-503",
    "lines": "text, one a line",
    "names": "list of names",
    "model_lists": "mapping, such as `{gpt-4o: [gpt-4o-mini]}`",
    "usd": "USD, such as 0.05",
    "ratio_tables": "mapping, such as `{vip: {default: 0.8}}`",
    "model_timeouts": 'mapping, such as `{"o1*": {first_token: 300}}`',
}


def written(spec: OptionSpec) -> tuple[str, str]:
    """Return the default and the range of an option as people write them."""
    if spec.kind == "choice":
        return str(spec.default), ", ".join(spec.choices)
    if spec.kind in RANGES:
        is_flag = isinstance(spec.default, bool)
        default = ("on" if spec.default else "off") if is_flag else spec.default
        return str(default or "none"), RANGES[spec.kind]
    word = "whole number " if spec.kind == "int" else ""
    unit = f" {spec.unit}" if spec.unit else ""
    return f"{spec.default:g}", f"{word}{spec.low:g} to {spec.high:g}{unit}"


def test_every_option_is_there_with_its_default_limits_and_help() -> None:
    page = rows("Options")

    assert list(page) == list(OPTIONS)
    for name, spec in OPTIONS.items():
        assert page[name] == " | ".join([*written(spec), spec.help]), name


def test_every_word_of_the_simulated_upstream_and_every_endpoint_is_there() -> None:
    section = PAGE.read_text().split("### Simulated channels")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `(\w+)[-\d]*` \|", section, flags=re.MULTILINE))
    answered = {e.upstream_path for e in ENDPOINTS if e.dialect in ADAPTERS["simulated"].dialects}

    assert named == {field.name for field in fields(Behaviour)}
    for path in answered - {"/{model}:{method}", "/{model}:countTokens"}:
        assert f"`/v1{path}`" in section
    for method in ("generateContent", "streamGenerateContent", "countTokens"):
        assert f"`:{method}`" in section
