"""Time limits: a slow model's, else the channel's, else the options'."""

from __future__ import annotations

import pytest

from channels_app.core.types import ChannelView, TimeLimits
from channels_app.options import Options
from relay_app.core.limits import limits_of

OPTIONS = Options(
    model_timeouts={
        "o1*": TimeLimits(first_token=300, response=900),
        "o1-pro*": TimeLimits(first_token=600),
        "o1-pro": TimeLimits(first_token=700, idle=0),
        "*": TimeLimits(connect=1),
    }
)


def limits(model, **own):
    channel = ChannelView(id=1, name="a", provider="p", base_url="", limits=TimeLimits(**own))
    return limits_of(channel, OPTIONS, model)


@pytest.mark.parametrize(
    ("model", "first_token"),
    [("o1-mini", 300), ("o1-pro-2025", 600), ("o1-pro", 700), ("gpt-4o", 120), ("", 120)],
)
def test_the_exact_name_counts_then_the_longest_prefix(model, first_token):
    assert limits(model).first_token == first_token


def test_a_model_outranks_the_channel_where_it_says_something():
    found = limits("o1-mini", first_token=5, response=6, connect=7)

    assert (found.first_token, found.response, found.connect) == (300, 900, 7)


def test_no_limit_is_a_limit_of_a_model_too():
    assert limits("o1-pro", idle=4).idle == 0


def test_without_slow_models_the_channel_counts_then_the_option():
    channel = ChannelView(
        id=1, name="a", provider="p", base_url="", limits=TimeLimits(connect=2, total=0)
    )

    found = limits_of(channel, Options(), "o1-mini")

    assert (found.connect, found.total, found.first_token) == (2, 0, 120)
