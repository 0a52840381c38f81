"""What a channel changes in requests: model names, parameters, headers."""

from __future__ import annotations

import copy
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_app.core.foreign import drop_foreign
from relay_app.core.override_operations import AskedError
from relay_app.core.override_work import OverrideError
from relay_app.core.overrides import (
    MappingError,
    apply_override,
    check_header_override,
    check_model_mapping,
    check_param_override,
    map_model,
    override_headers,
    read_override,
)

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])


# -- models --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapping", "model", "expected"),
    [
        (None, "a", "a"),
        ({}, "a", "a"),
        ({"x": "y"}, "a", "a"),
        ({"a": "b"}, "a", "b"),
        ({"a": "b", "b": "c"}, "a", "c"),
        ({"a": "a"}, "a", "a"),
        ({"a": "b", "b": "b"}, "a", "b"),
    ],
)
def test_a_model_mapping_is_followed_to_its_end(mapping, model, expected):
    assert map_model(mapping, model) == expected


@pytest.mark.parametrize(
    "mapping",
    [
        {"a": "b", "b": "a"},
        {"a": "b", "b": "c", "c": "b"},
        {"a": ""},
        {"a": 1},
        {"a": "../../../evil"},
        {"a": "b", "b": "x/.."},
    ],
)
def test_a_mapping_that_leads_nowhere_is_refused(mapping):
    with pytest.raises(MappingError):
        map_model(mapping, "a")
    assert check_model_mapping(mapping)


def test_only_channels_with_a_usable_mapping_are_saved():
    assert check_model_mapping({"a": "b", "b": "c", "d": "d"}) is None
    assert check_model_mapping({"a": "./models/x..y"}) is None
    assert check_model_mapping([]) is not None
    assert check_model_mapping({"": "b"}) is not None


@given(st.dictionaries(NAMES, NAMES), NAMES)
def test_a_mapping_ends_at_a_fixed_point_or_is_a_circle(mapping, model):
    try:
        target = map_model(mapping, model)
    except MappingError:
        assert check_model_mapping(mapping)
        seen = []
        while model not in seen:
            seen.append(model)
            model = mapping[model]
        assert mapping[model] != model
    else:
        assert mapping.get(target, target) == target


# -- parameters ----------------------------------------------------------------------


def changed(document, *operations, context=None, **plain):
    override = read_override({**plain, "operations": list(operations)})
    return apply_override(document, override, context=context)


def test_plain_keys_are_set():
    override = read_override({"b": 3, "c": None})

    assert apply_override({"a": 1, "b": 2}, override) == {"a": 1, "b": 3, "c": None}


def test_plain_keys_come_before_operations():
    document = changed({}, {"mode": "copy", "from": "a", "to": "b"}, a=1)

    assert document == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("document", "operation", "expected"),
    [
        ({}, {"mode": "set", "path": "a.b", "value": 1}, {"a": {"b": 1}}),
        ({"a": [1, 2]}, {"mode": "set", "path": "a.0", "value": 9}, {"a": [9, 2]}),
        ({"a": [1, 2]}, {"mode": "set", "path": "a.-1", "value": 9}, {"a": [1, 9]}),
        ({"a": [1, 2]}, {"mode": "set", "path": "a.2", "value": 9}, {"a": [1, 2, 9]}),
        ({"a": [1, 2]}, {"mode": "set", "path": "a.5", "value": 9}, {"a": [1, 2]}),
        ({"a": []}, {"mode": "set", "path": "a.-1", "value": 9}, {"a": []}),
        ({}, {"mode": "set", "path": r"a\.b", "value": 1}, {"a.b": 1}),
        (
            {"m": [{"x": 1}, {"y": 2}]},
            {"mode": "set", "path": "m.*.x", "value": 5},
            {"m": [{"x": 5}, {"y": 2, "x": 5}]},
        ),
        ({"a": 1}, {"mode": "set", "path": "a", "value": 2, "keep_origin": True}, {"a": 1}),
        ({}, {"mode": "set", "path": "a", "value": 2, "keep_origin": True}, {"a": 2}),
        ({"a": 1, "b": 2}, {"mode": "delete", "path": "a"}, {"b": 2}),
        ({"a": [1, 2, 3]}, {"mode": "delete", "path": "a.-1"}, {"a": [1, 2]}),
        ({"a": [1, 2, 3]}, {"mode": "delete", "path": "a.*"}, {"a": []}),
        ({"a": 1}, {"mode": "delete", "path": "b.c"}, {"a": 1}),
        (
            {"m": [{"c": "text"}, {"c": [{"k": 1, "t": 2}]}]},
            {"mode": "delete", "path": "m.*.c.*.k"},
            {"m": [{"c": "text"}, {"c": [{"t": 2}]}]},
        ),
        ({"a": 1}, {"mode": "move", "from": "a", "to": "b"}, {"b": 1}),
        ({"a": 1}, {"mode": "move", "from": "x", "to": "b"}, {"a": 1}),
        (
            {"a": 1, "b": 2},
            {"mode": "move", "from": "a", "to": "b", "keep_origin": True},
            {"a": 1, "b": 2},
        ),
        ({"a": [1]}, {"mode": "copy", "from": "a.0", "to": "b.c"}, {"a": [1], "b": {"c": 1}}),
        ({"a": "x"}, {"mode": "append", "path": "a", "value": "y"}, {"a": "xy"}),
        ({"a": "x"}, {"mode": "prepend", "path": "a", "value": "y"}, {"a": "yx"}),
        ({"a": [1]}, {"mode": "append", "path": "a", "value": 2}, {"a": [1, 2]}),
        ({"a": [1]}, {"mode": "prepend", "path": "a", "value": [2, 3]}, {"a": [2, 3, 1]}),
        ({}, {"mode": "append", "path": "a", "value": ["x"]}, {"a": ["x"]}),
        (
            {"a": {"x": 1}},
            {"mode": "append", "path": "a", "value": {"x": 2, "y": 3}},
            {"a": {"x": 2, "y": 3}},
        ),
        (
            {"a": {"x": 1}},
            {"mode": "append", "path": "a", "value": {"x": 2, "y": 3}, "keep_origin": True},
            {"a": {"x": 1, "y": 3}},
        ),
        ({"a": "aXbX"}, {"mode": "replace", "path": "a", "from": "X", "to": "-"}, {"a": "a-b-"}),
        ({}, {"mode": "replace", "path": "a", "from": "X", "to": "-"}, {}),
        (
            {"model": "gpt-4o"},
            {"mode": "regex_replace", "path": "model", "from": "^gpt-(.*)$", "to": "azure-$1"},
            {"model": "azure-4o"},
        ),
        (
            {"a": "xéx"},
            {"mode": "regex_replace", "path": "a", "from": "q*", "to": "."},
            {"a": ".x.é.x."},
        ),
        (
            {"a": "b\ud800b"},
            {"mode": "regex_replace", "path": "a", "from": "(?P<n>b)", "to": "${n}$$${z}!"},
            {"a": "b$!\ud800b$!"},
        ),
    ],
)
def test_operations(document, operation, expected):
    before = copy.deepcopy(document)

    assert changed(document, operation) == expected
    assert document == before


@pytest.mark.parametrize(
    ("document", "operation"),
    [
        ({"a": "text"}, {"mode": "set", "path": "a.b", "value": 1}),
        ({"a": [1]}, {"mode": "set", "path": "a.b", "value": 1}),
        (
            {"a": "a" * 100_001},
            {"mode": "regex_replace", "path": "a", "from": "a", "to": "b"},
        ),
        ({"a": "a" * 9_000}, {"mode": "replace", "path": "a", "from": "a", "to": "b" * 9_000}),
        (
            {"a": ["a" * 90] * 99},
            {"mode": "replace", "path": "a.*", "from": "a", "to": "b" * 9_000},
        ),
        (
            {"a": "a" * 9_000},
            {"mode": "regex_replace", "path": "a", "from": "^.*$", "to": "$0" * 9_000},
        ),
        ({"a": [{}] * 9_000}, {"mode": "set", "path": "a.*.b", "value": "x" * 9_000}),
        ({"a": [[]] * 9_000}, {"mode": "append", "path": "a.*", "value": ["x"] * 9_000}),
        ({"a": [""] * 9_000}, {"mode": "prepend", "path": "a.*", "value": "x" * 9_000}),
    ],
)
def test_an_operation_that_does_not_fit_the_body_is_a_fault(document, operation):
    with pytest.raises(OverrideError):
        changed(document, operation)


DOUBLING = [
    {"mode": "copy", "from": "x", "to": "y.a"},
    {"mode": "copy", "from": "x", "to": "y.b"},
    {"mode": "move", "from": "y", "to": "x"},
]


@pytest.mark.parametrize(
    "operations",
    [
        DOUBLING * 30,
        [*DOUBLING * 28, {"mode": "replace", "path": ".".join(["x", *"*" * 31]), "from": "a"}],
    ],
)
def test_what_operations_build_together_is_bounded(operations):
    with pytest.raises(OverrideError, match="too large"):
        changed({"x": [{"a": "a" * 16}]}, *operations)


PARTS = [{"type": "image_url"}, {"type": "text", "text": "aXb"}, {"text": "X"}, "X", {"text": 1}]


@pytest.mark.parametrize(
    ("content", "operation", "expected"),
    [
        (
            PARTS,
            {"mode": "replace", "from": "X", "to": "-"},
            [PARTS[0], {"type": "text", "text": "a-b"}, {"text": "-"}, "-", PARTS[4]],
        ),
        (
            PARTS,
            {"mode": "regex_replace", "from": "(X)b", "to": "[$1]"},
            [PARTS[0], {"type": "text", "text": "a[X]"}, *PARTS[2:]],
        ),
        (
            PARTS[:3],
            {"mode": "append", "value": "!"},
            [*PARTS[:2], {"text": "X!"}],
        ),
        (
            PARTS[:3],
            {"mode": "prepend", "value": "!"},
            [PARTS[0], {"type": "text", "text": "!aXb"}, PARTS[2]],
        ),
        (PARTS[:1], {"mode": "append", "value": "!"}, PARTS[:1]),
        ([{"type": "thinking", "text": "X"}], {"mode": "replace", "from": "X"}, None),
        ([{"text": "X", "thought": True}], {"mode": "append", "value": "X"}, None),
        (7, {"mode": "append", "value": "!"}, 7),
        ("a", {"mode": "append", "value": 7}, "a"),
        ({"a": "X"}, {"mode": "replace", "from": "X"}, None),
        (True, {"mode": "regex_replace", "from": "X"}, True),
    ],
)
def test_texts_in_parts_are_changed_and_what_is_no_text_stays(content, operation, expected):
    document = {"messages": [{"content": content}, {"content": "plain X"}]}
    before = copy.deepcopy(document)

    after = changed(document, {"path": "messages.0.content", **operation})

    wanted = content if expected is None else expected
    assert after["messages"] == [{"content": wanted}, {"content": "plain X"}]
    assert document == before


def test_a_long_prompt_may_match_a_pattern_often():
    document = {"a": "word " * 8_800}

    after = changed(document, {"mode": "regex_replace", "path": "a", "from": r"\w", "to": "x"})

    assert after == {"a": "xxxx " * 8_800}


@given(text=st.text("ab\u00e9\ud800", max_size=8), template=st.text("x$1{}n", max_size=6))
def test_patterns_replace_what_they_match(text, template):
    operation = {"mode": "regex_replace", "path": "t", "from": "(?P<n>b)", "to": template}

    def group(found):
        if found[0] == "$$":
            return "$"
        return "b" if (found[1] or found[2]) in ("1", "n") else ""

    wanted = re.sub(r"\$(?:\$|(\w+)|\{(\w+)\})", group, template)
    assert changed({"t": text}, operation) == {"t": text.replace("b", wanted)}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"path": "model", "value": "gpt-4o"}, True),
        ({"path": "model", "value": "gpt"}, False),
        ({"path": "model", "mode": "prefix", "value": "gpt"}, True),
        ({"path": "model", "mode": "suffix", "value": "4o"}, True),
        ({"path": "model", "mode": "contains", "value": "t-4"}, True),
        ({"path": "stop", "mode": "contains", "value": "x"}, True),
        ({"path": "model", "mode": "prefix", "value": "gpt", "invert": True}, False),
        ({"path": "n", "mode": "gt", "value": 1}, True),
        ({"path": "n", "mode": "gte", "value": 2}, True),
        ({"path": "n", "mode": "lt", "value": 2}, False),
        ({"path": "n", "mode": "lte", "value": 2.0}, True),
        ({"path": "model", "mode": "gt", "value": 1}, False),
        ({"path": "n", "value": 2.0}, True),
        ({"path": "one", "value": True}, False),
        ({"path": "missing", "value": 1}, False),
        ({"path": "missing", "value": 1, "pass_missing_key": True}, True),
        ({"path": "messages.*.role", "value": "system"}, True),
        ({"path": "retry_index", "mode": "gte", "value": 1}, True),
        ({"path": "request_headers.x-tier", "value": "gold"}, True),
        ({"path": "last_error.status_code", "value": 429}, True),
    ],
)
def test_conditions(condition, holds):
    document = {
        "model": "gpt-4o",
        "n": 2,
        "one": 1,
        "stop": ["x"],
        "messages": [{"role": "system"}, {"role": "user"}],
    }
    context = {
        "retry_index": 1,
        "request_headers": {"x-tier": "gold"},
        "last_error": {"status_code": 429},
        "model": "not asked: the body has one",
    }
    operation = {"mode": "set", "path": "done", "value": 1, "conditions": [condition]}

    assert ("done" in changed(document, operation, context=context)) is holds


@pytest.mark.parametrize(
    ("conditions", "logic", "holds"),
    [
        ([{"path": "a", "value": 1}, {"path": "b", "value": 9}], None, True),
        ([{"path": "a", "value": 1}, {"path": "b", "value": 9}], "AND", False),
        ([{"path": "a", "value": 1}, {"path": "b", "value": 2}], "and", True),
        ({"a": 1, "b": 9}, "OR", True),
        ({"a": 8, "b": 9}, "OR", False),
        ({"path": "a", "value": 1}, "OR", True),
        ([], "OR", True),
    ],
)
def test_conditions_are_joined_by_or_unless_said_otherwise(conditions, logic, holds):
    operation = {"mode": "set", "path": "c", "value": 1, "conditions": conditions}
    operation |= {"logic": logic} if logic else {}

    assert ("c" in changed({"a": 1, "b": 2}, operation)) is holds


def test_return_error_ends_the_request_with_what_it_says():
    value = {"message": "no pictures here", "status_code": 422, "skip_retry": False}

    with pytest.raises(AskedError) as told:
        changed({}, {"mode": "return_error", "value": value})

    error = told.value
    assert (error.message, error.status, error.skip_retry) == ("no pictures here", 422, False)
    assert (error.code, error.type) == ("invalid_request", "invalid_request_error")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "object"),
        ({"stream": True}, "stream"),
        ({"operations": {}}, "list"),
        ({"operations": [1]}, "operations[0]"),
        ({"operations": [{"mode": "trim_space", "path": "a"}]}, "unknown mode 'trim_space'"),
        ({"operations": [{"mode": ["set"], "path": "a"}]}, "unknown mode"),
        ({"operations": [{"mode": "set", "path": "a..b", "value": 1}]}, "path"),
        ({"operations": [{"mode": "set", "path": "a"}]}, "value is missing"),
        ({"operations": [{"mode": "set", "value": 1}]}, "path"),
        ({"operations": [{"mode": "delete", "path": "stream"}]}, "stream"),
        ({"operations": [{"mode": "delete", "path": "*"}]}, "*"),
        ({"operations": [{"mode": "move", "from": "a.*", "to": "b"}]}, "*"),
        ({"operations": [{"mode": "replace", "path": "a", "from": ""}]}, "from"),
        ({"operations": [{"mode": "regex_replace", "path": "a", "from": "(?=a)"}]}, "RE2"),
        ({"operations": [{"mode": "set", "path": "a", "value": 1, "colour": 2}]}, "colour"),
        ({"operations": [{"mode": "set", "path": "a", "value": 1, "logic": "XOR"}]}, "logic"),
        (
            {"operations": [{"mode": "set", "path": "a", "value": 1, "conditions": [{"x": 1}]}]},
            "condition",
        ),
        ({"operations": [{"mode": "return_error", "value": {"status_code": 400}}]}, "message"),
        (
            {
                "operations": [
                    {"mode": "return_error", "value": {"message": "", "status_code": 200}}
                ]
            },
            "status_code",
        ),
        (
            {
                "operations": [
                    {"mode": "return_error", "value": {"message": "", "code": "channel:x"}}
                ]
            },
            "code",
        ),
        ({"operations": [{"mode": "delete", "path": "a"}] * 101}, "100"),
    ],
)
def test_an_override_that_would_fail_is_refused_on_save_as_at_run_time(value, words):
    fault = check_param_override(value)

    assert words in fault
    if isinstance(value, dict):
        with pytest.raises(OverrideError, match=r"."):
            apply_override({"a": "x"}, read_override(value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
PATHS = st.lists(st.sampled_from(["a", "b", "0", "-1", "*"]), min_size=1, max_size=4).map(".".join)
OPERATIONS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(
            ["set", "delete", "move", "copy", "append", "prepend", "replace", "regex_replace"]
        ),
        "path": PATHS,
        "value": JSON,
        "from": PATHS | st.text(max_size=4),
        "to": PATHS | st.text(max_size=4),
        "keep_origin": st.booleans(),
    },
    optional={"conditions": st.dictionaries(PATHS, JSON, max_size=2) | JSON},
)


@given(st.dictionaries(NAMES, JSON), st.lists(OPERATIONS, max_size=4))
def test_whatever_the_body_an_override_works_or_says_why_not(document, operations):
    before, override = copy.deepcopy(document), {"operations": operations}
    kept = copy.deepcopy(override)

    try:
        apply_override(document, read_override(override))
    except OverrideError:
        pass
    else:
        assert check_param_override(override) is None

    assert document == before
    assert override == kept


@given(JSON | st.fixed_dictionaries({"operations": st.lists(OPERATIONS | JSON, max_size=3)}))
def test_checks_never_raise(value):
    for check in (check_param_override, check_header_override, check_model_mapping):
        assert isinstance(check(value), str | None)


# -- headers -------------------------------------------------------------------------


def test_headers_hold_the_key_and_what_the_client_sent():
    headers = override_headers(
        {
            "Authorization": "Token {api_key}",
            "X-Org": "acme",
            "X-Trace": "{client_header:X-Request-Id}",
            "X-Both": "a-{client_header:x-request-id}-{api_key}",
        },
        api_key="sk-1",
        client_headers=[(b"x-request-id", b"r1")],
    )

    assert headers == {
        "Authorization": "Token sk-1",
        "X-Org": "acme",
        "X-Trace": "r1",
        "X-Both": "a-r1-sk-1",
    }


def test_a_header_that_the_client_did_not_send_is_left_out():
    override = {"X-A": "{client_header:X-A}", "X-B": "b"}

    assert override_headers(override, api_key="", client_headers=[]) == {"X-B": "b"}


@pytest.mark.parametrize(
    "name", ["authorization", "X-Api-Key", "x-goog-api-key", "Cookie", "mj-api-secret", "api-key"]
)
def test_credentials_of_clients_count_as_not_sent(name):
    headers = override_headers(
        {"X-Stolen": f"{{client_header:{name}}}"},
        api_key="sk",
        client_headers=[(name.lower().encode(), b"sk-client-secret")],
    )

    assert headers == {}


@pytest.mark.parametrize("value", [b"a\x00b", b"a\rb", b"a\nb", b"\x7f", b"\xe9", b"caf\xc3\xa9"])
def test_a_header_of_clients_that_is_no_plain_text_is_left_out(value):
    headers = override_headers(
        {"X-A": "{client_header:x-a}", "X-B": "b"}, api_key="", client_headers=[(b"x-a", value)]
    )

    assert headers == {"X-B": "b"}


def test_a_key_that_no_header_can_hold_is_a_fault_without_the_key_in_it():
    with pytest.raises(OverrideError) as told:
        override_headers({"X-A": "{api_key}"}, api_key="sk-\u4e2d-secret", client_headers=[])
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "object"),
        ({"X A": "1"}, "name"),
        ({"": "1"}, "name"),
        ({"Größe": "1"}, "name"),
        ({"*": "1"}, None),
        ({"re:^x-": "1"}, "name"),
        ({"Host": "h"}, "Host"),
        ({"content-length": "1"}, "content-length"),
        ({"Transfer-Encoding": "chunked"}, "Transfer-Encoding"),
        ({"Connection": "close"}, "Connection"),
        ({"Accept-Encoding": "br"}, "Accept-Encoding"),
        ({"X-A": "1", "x-a": "2"}, "twice"),
        ({"X-A": 1}, "text"),
        ({"X-A": "a\r\nb: c"}, "control"),
        ({"X-A": "中"}, "Latin-1"),
        ({"X-A": "{secret}"}, "unknown placeholder"),
        ({"X-A": "{client_header}"}, "unknown placeholder"),
        ({"X-A": "{client_header:a b}"}, "unknown placeholder"),
        ({"X-A": '{"json": 1}'}, None),
        ({"X-A": "{client_header:authorization}"}, "credentials"),
        ({"X-B": "b", "X-A": "a {client_header:Cookie} c"}, "X-A: Cookie"),
    ],
)
def test_header_overrides_are_checked_on_save(value, words):
    fault = check_header_override(value)

    assert fault is None if words is None else words in fault


# -- parameters of other models ------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "target", "gone"),
    [
        ("gpt-5", "gpt-4o", {"reasoning_effort"}),
        ("gpt-5", "openai/GPT-4o", {"reasoning_effort"}),
        ("fast", "o3-mini", {"temperature", "thinking"}),
        ("gpt-4o", "gpt-5-2025-08-07", {"temperature"}),
        ("gpt-4o", "gpt-4o", set()),
        ("gpt-4o", "gpt-4o-mini", set()),
        ("gpt-5", "some-house-model", set()),
        ("gpt-5", "gpt-5.1", set()),
        ("claude-sonnet-4-5", "claude-3-5-sonnet-latest", {"thinking", "reasoning_effort"}),
    ],
)
def test_parameters_that_the_other_model_refuses_are_dropped(asked, target, gone):
    document = {"model": target, "reasoning_effort": "low", "temperature": 1, "thinking": {}}

    left = drop_foreign(document, asked=asked, target=target)

    assert document.keys() - left.keys() == gone
