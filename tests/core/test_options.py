"""The table of options: defaults, bounds, and clear refusals."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.options import (
    OPTIONS,
    OptionError,
    Options,
    OptionSpec,
    build_options,
    option_spec,
)

SPECS = [pytest.param(spec, id=name) for name, spec in OPTIONS.items()]
NUMBERS = [
    pytest.param(spec, id=name) for name, spec in OPTIONS.items() if spec.kind in ("int", "float")
]
FLAG = OptionSpec(name="Flag", attribute="flag", kind="bool", default=False, help="A flag.")

# What the specification says; the table must not drift from it unseen.
SPECIFIED = {
    "RetryTimes": 0,
    "MaxSwitchesPerRequest": 8,
    "RetryAfterWaitMax": 3,
    "RetryAfterToClientMax": 60,
    "TotalTimeout": 600,
    "ConnectTimeout": 5,
    "FirstByteTimeout": 30,
    "FirstTokenTimeout": 120,
    "IdleTimeout": 30,
    "ResponseTimeout": 300,
    "AttemptTimeout": 0,
    "AutomaticRetryStatusCodes": "100-199,300-399,401-407,409-499,500-503,505-523,525-599",
    "RetryStrategy": "tier_per_attempt",
    "SameChannelRetries": 0,
    "BlockedWords": "",
    "ModelFallbacks": {},
    "AutoGroups": [],
    "AllParkedWaitMax": 3,
    "AllowPrivateUpstreams": "auto",
    "ModelTimeouts": {},
}


def test_every_option_is_in_the_table_once():
    assert {spec.attribute for spec in OPTIONS.values()} == {f.name for f in fields(Options)}
    assert all(name == spec.name for name, spec in OPTIONS.items())


@pytest.mark.parametrize(("name", "default"), SPECIFIED.items())
def test_defaults_are_those_of_the_specification(name, default):
    assert OPTIONS[name].default == default


@pytest.mark.parametrize("spec", SPECS)
def test_names_are_camel_case_and_help_is_a_sentence(spec):
    assert re.fullmatch(r"([A-Z][a-z0-9]*)+", spec.name)
    assert spec.help.endswith(".")
    assert spec.help[0].isupper()


@pytest.mark.parametrize("spec", SPECS)
def test_the_default_reads_as_itself(spec):
    in_force = getattr(Options(), spec.attribute)

    assert spec.parse(spec.default) == in_force
    assert spec.parse(spec.stored(spec.default)) == in_force
    assert build_options({spec.name: spec.stored(spec.default)}) == Options()


@pytest.mark.parametrize("spec", NUMBERS)
def test_numbers_are_taken_up_to_their_bounds_and_no_further(spec):
    assert spec.parse(spec.low) == spec.low
    assert spec.parse(str(spec.high)) == spec.high
    for outside in (spec.low - 1, spec.high + 1, math.inf, -math.inf, math.nan, "nan", "1e999"):
        with pytest.raises(OptionError, match=f"{spec.name}: .*from .* to "):
            spec.parse(outside)


@pytest.mark.parametrize("spec", NUMBERS)
@pytest.mark.parametrize("raw", ["", "abc", "1,5", None, True, [], {}, b"1", "1 2", 10**400])
def test_what_is_no_number_is_refused_by_name(spec, raw):
    with pytest.raises(OptionError, match=f"^{spec.name}: .* is not "):
        spec.parse(raw)


@pytest.mark.parametrize("raw", [0.5, "0.5", "1.0001"])
def test_whole_numbers_have_no_fractions(raw):
    with pytest.raises(OptionError, match=r"RetryTimes: .* whole number from 0 to 20"):
        OPTIONS["RetryTimes"].parse(raw)


@pytest.mark.parametrize("raw", [3, 3.0, "3", " 3 "])
def test_whole_numbers_are_read_from_text_too(raw):
    value = OPTIONS["RetryTimes"].parse(raw)

    assert value == 3
    assert isinstance(value, int)


def test_ranges_are_kept_in_their_tidy_form():
    spec = OPTIONS["AutomaticRetryStatusCodes"]

    assert spec.stored("500-505,504\uff0c429") == "429,500-505"
    assert spec.stored("") == ""
    assert spec.stored(429) == "429"  # YAML reads a lone one as a number


@pytest.mark.parametrize(
    ("raw", "named"), [("429,600", "'600'"), ("abc", "'abc'"), (None, "None"), (True, "True")]
)
def test_a_bad_range_is_refused_by_its_part(raw, named):
    with pytest.raises(OptionError, match=r"^AutomaticRetryStatusCodes: ") as caught:
        OPTIONS["AutomaticRetryStatusCodes"].parse(raw)

    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(True, True), (False, False), ("true", True), ("Off", False), (" on ", True)],
)
def test_flags_are_words_or_booleans(raw, expected):
    assert FLAG.parse(raw) is expected


@pytest.mark.parametrize("raw", [1, 0, "yes", "", None])
def test_other_flags_are_refused_by_name(raw):
    with pytest.raises(OptionError, match=r"^Flag: .* is not true or false"):
        FLAG.parse(raw)


@pytest.mark.parametrize(
    ("name", "raw", "stored"),
    [
        ("RetryStrategy", " exhaust_tier ", "exhaust_tier"),
        ("AllowPrivateUpstreams", True, "on"),  # YAML reads a bare on as true
        ("AllowPrivateUpstreams", False, "off"),
        ("BlockedWords", " one \r\n\ntwo\none", "one\ntwo"),
        ("AutoGroups", "vip, default\nvip", ["vip", "default"]),
        ("AutoGroups", ["vip", "default"], ["vip", "default"]),
        ("ModelFallbacks", {"a": "b", "c": ["d", "e", "d"]}, {"a": ["b"], "c": ["d", "e"]}),
        ("ModelFallbacks", '{"a": ["b"]}', {"a": ["b"]}),
        ("ModelFallbacks", " ", {}),
        ("ModelTimeouts", {"o1*": {"idle": 2.5}}, {"o1*": {"idle": 2.5}}),
        ("ModelTimeouts", '{"o1*": {"total": 0}}', {"o1*": {"total": 0}}),
    ],
)
def test_structured_values_are_kept_in_their_tidy_form(name, raw, stored):
    spec = OPTIONS[name]

    assert spec.stored(raw) == stored
    assert spec.stored(stored) == stored


@pytest.mark.parametrize(
    ("name", "raw", "problem"),
    [
        ("RetryStrategy", "best", "'best' is not tier_per_attempt or untried_first or exhaust"),
        ("RetryStrategy", 1, "1 is not tier_per_attempt"),
        ("AllowPrivateUpstreams", "yes", "'yes' is not auto or on or off"),
        ("BlockedWords", ["a"], "wanted a text"),
        ("BlockedWords", "x" * 100_001, "wanted a text of at most 100000 characters"),
        ("AutoGroups", {"a": 1}, "wanted a list of names"),
        ("AutoGroups", [1], "wanted a list of names"),
        ("AutoGroups", ["a\x00"], "is not a name of at most 200 characters"),
        ("ModelFallbacks", [], "wanted a mapping, such as {gpt-4o: "),
        ("ModelFallbacks", "{", "wanted JSON of a mapping"),
        ("ModelFallbacks", {"a": 1}, "a: wanted a list of models"),
        ("ModelFallbacks", {"a": ["b", "a"]}, "a: it names itself"),
        ("ModelTimeouts", {"a": {}}, "a: wanted time limits"),
        ("ModelTimeouts", {"a*b": {"idle": 1}}, r"a\*b: a \* may stand at the end only"),
        ("ModelTimeouts", {"a": {"idel": 1}}, "a: unknown limit 'idel'; known: connect"),
        ("ModelTimeouts", {"a": {"idle": -1}}, "a: idle is not a number of seconds to 86400"),
        ("ModelTimeouts", {"a": {"idle": True}}, "a: idle is not a number of seconds"),
    ],
)
def test_wrong_structured_values_are_refused_by_name(name, raw, problem):
    with pytest.raises(OptionError, match=f"^{name}: .*{problem}"):
        OPTIONS[name].parse(raw)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("RetryTime", "RetryTimes"),
        ("retry_times", "RetryTimes"),
        ("TotalTimeOut", "TotalTimeout"),
        ("AutomaticRetryStatusCode", "AutomaticRetryStatusCodes"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(wrong, meant):
    with pytest.raises(OptionError, match=f"unknown option '{wrong}'; did you mean {meant}"):
        option_spec(wrong)


def test_a_name_like_no_other_gets_no_guess():
    with pytest.raises(OptionError) as caught:
        option_spec("zzz")

    assert str(caught.value) == "unknown option 'zzz'"


def test_a_known_name_gives_its_row():
    assert option_spec("RetryTimes") is OPTIONS["RetryTimes"]


def test_stored_values_are_laid_over_the_defaults():
    assert build_options({}) == Options()
    assert build_options({"RetryTimes": 3, "TotalTimeout": "20"}) == replace(
        Options(), retry_times=3, total_timeout=20.0
    )


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=10),
    st.lists(st.integers(), max_size=2),
)


@given(
    stored=st.dictionaries(
        st.one_of(st.sampled_from([*OPTIONS, "OfANewerVersion", "retry_times"]), st.text()), junk
    )
)
def test_junk_rows_never_keep_the_relay_from_starting(stored):
    """What the table refuses falls back to its default; the rest counts."""
    options = build_options(stored)

    for name, spec in OPTIONS.items():
        value = getattr(options, spec.attribute)
        try:
            expected = spec.parse(stored[name])
        except (KeyError, OptionError):
            expected = getattr(Options(), spec.attribute)
        assert value == expected
