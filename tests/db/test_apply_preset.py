"""Presets: `apply_preset`, and that nothing else installs one."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from channels_app.models import Option
from channels_app.options import OPTIONS
from channels_app.presets import PRESETS
from channels_app.services import options_set

pytestmark = pytest.mark.django_db


def preset(name: str) -> list[str]:
    """Run the command; return the lines that it printed."""
    out = io.StringIO()
    call_command("apply_preset", name, stdout=out)
    return out.getvalue().splitlines()


def test_resilient_prints_what_it_changes_once() -> None:
    assert preset("resilient") == [
        "~ option RetryTimes: 0 -> 3",
        "~ option RetryStrategy: tier_per_attempt -> untried_first",
        "~ option SameChannelRetries: 0 -> 1",
    ]
    assert preset("resilient") == ["no changes"]


def test_newapi_is_what_a_new_database_has() -> None:
    assert preset("newapi") == ["no changes"]
    assert not Option.objects.exists()
    for name, value in PRESETS["newapi"].items():
        assert OPTIONS[name].default == value, name


def test_newapi_takes_resilient_back() -> None:
    preset("resilient")

    assert preset("newapi") == [
        "~ option RetryTimes: 3 -> 0",
        "~ option RetryStrategy: untried_first -> tier_per_attempt",
        "~ option SameChannelRetries: 1 -> 0",
    ]


def test_other_options_stay() -> None:
    options_set(values={"IdleTimeout": 7, "BlockedWords": "x"})

    preset("resilient")
    preset("newapi")

    kept = dict(Option.objects.values_list("name", "value"))
    assert (kept["IdleTimeout"], kept["BlockedWords"]) == (7, "x")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_name_options_and_values_that_are_taken(name: str) -> None:
    for option, value in PRESETS[name].items():
        assert OPTIONS[option].parse(value) == OPTIONS[option].parse(str(value))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("resiliant", "no preset 'resiliant'; did you mean resilient?; known: newapi, resilient"),
        ("", "no preset ''; known: newapi, resilient"),
    ],
)
def test_an_unknown_preset_is_refused_with_the_known_ones(name: str, problem: str) -> None:
    with pytest.raises(CommandError) as caught:
        preset(name)

    assert str(caught.value) == problem
