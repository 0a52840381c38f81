"""What the simulated upstream reads from a model's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_app.providers.simulated import Behaviour, behaviour_fault, parse_behaviour


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sim", Behaviour()),
        ("", Behaviour()),
        ("gpt-5-mini", Behaviour()),
        ("sim-status-503", Behaviour(status=503)),
        ("sim-status-429-retryafter-2", Behaviour(status=429, retryafter=2)),
        ("sim-delay-500-chunks-20-gap-100", Behaviour(delay=500, chunks=20, gap=100)),
        ("sim-cut-5", Behaviour(cut=5)),
        ("sim-stall-5-every-3", Behaviour(stall=5, every=3)),
        ("sim-refuse", Behaviour(refuse=True)),
        ("sim-empty-every-2", Behaviour(empty=True, every=2)),
        ("sim-error", Behaviour(error=True)),
        ("status-500-sim", Behaviour(status=500)),  # a channel's setting stands in front
        ("status-500-sim-status-429", Behaviour(status=429)),  # the model's word is last
    ],
)
def test_words_are_a_behaviour(text, expected):
    assert parse_behaviour(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "sim-status",
        "sim-status-",
        "sim-status-x",
        "sim-status--5",
        "sim-status-5.0",
        "sim-status-\u0665\u0660\u0660",
        "sim-status-²",
        "sim-status-12345678",
        "sim-every-0",
        "sim-STATUS-500",
        "simrefuse",
        "sim_refuse",
    ],
)
def test_words_it_does_not_know_are_the_plain_answer(text):
    assert parse_behaviour(text) == Behaviour()


words = st.sampled_from(
    ["sim", "status", "every", "delay", "cut", "refuse", "empty", "0", "7", "503", "x", "²", ""]
)


@given(text=st.one_of(st.text(), st.lists(words).map("-".join)))
def test_any_model_name_is_a_behaviour(text):
    behaviour = parse_behaviour(text)

    assert behaviour.every >= 1
    assert min(behaviour.status, behaviour.delay, behaviour.chunks, behaviour.gap) >= 0


NUMBERED = ["status", "every", "delay", "chunks", "gap", "cut", "stall", "retryafter"]
known_words = st.one_of(
    st.sampled_from(["refuse", "empty", "error"]),
    st.builds("{}-{}".format, st.sampled_from(NUMBERED), st.integers(0, 9_999_999)),
)


@given(words=st.lists(known_words))
def test_a_setting_of_known_words_passes(words):
    assert behaviour_fault("-".join(words)) is None


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("statsu-503", "unknown word 'statsu'; known: refuse, empty, error, and with a number st"),
        ("status", "status wants a number of up to 7 digits, such as status-3"),
        ("status-x", "status wants a number"),
        ("refuse-", "unknown word ''"),
        ("sim-refuse", "unknown word 'sim'"),
        (5, "want words joined by -, such as status-503-every-3; known: "),
    ],
)
def test_a_setting_with_other_words_is_refused(value, fault):
    assert behaviour_fault(value).startswith(fault)
