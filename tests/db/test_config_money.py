"""Prices and limits in a configuration file: what is refused, in the words that are true."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from billing_app.models import Price

pytestmark = pytest.mark.django_db


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "relay.yaml"


def apply(file: Path, text: str) -> list[str]:
    """Apply a text; return what was said of it."""
    file.write_text(f"version: 1\n{text}")
    out, err = io.StringIO(), io.StringIO()
    call_command("apply_config", str(file), stdout=out, stderr=err)
    return [*out.getvalue().splitlines(), *err.getvalue().splitlines()]


def refused(file: Path, text: str) -> list[str]:
    """Apply a text that must be refused; return the problems without the file's name."""
    with pytest.raises(CommandError) as caught:
        apply(file, text)
    return [line.partition("relay.yaml: ")[2] for line in str(caught.value).splitlines()[1:]]


@pytest.mark.parametrize("typed", ['"1,5"', "-1", "0.0000001", "abc"])
def test_a_bad_price_is_told_in_one_line(file: Path, typed: str) -> None:
    [line] = refused(file, f"prices: [{{model: m, input: {typed}}}]")

    assert line.startswith("prices[0].input: ")


def test_a_price_of_parts_alone_is_refused(file: Path) -> None:
    [line] = refused(file, "prices: [{model: m, cached_input: 1, reasoning_output: 2}]")

    assert line == (
        "prices[0]: give at least one of input, output, per_call, per_image and per_second;"
        " 0 is one"
    )
    assert not Price.objects.exists()
    apply(file, "prices: [{model: embedding, input: 0.02}, {model: free, input: 0}]")
    assert Price.objects.count() == 2
