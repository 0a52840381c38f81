"""A request as one channel gets it: what is changed, and that nothing else is."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.types import ChannelView, Failure, FailureClass, KeyView
from relay_app.core.json_edit import set_fields
from relay_app.core.types import Call, Endpoint
from relay_app.dialects.registry import DIALECTS
from relay_app.shaping import shape, upstream_model

KEY = KeyView(id=1, value="sk-upstream")
FORM = "multipart/form-data; boundary=xyz"


def call(body=b'{"model": "m", "n": 1.0}', **values):
    endpoint = Endpoint(name="c", dialect="openai", path="v1/c/<path:id>", upstream_path="/c")
    fields = {"request_id": "r", "endpoint": endpoint, "model": "m", "is_stream": False}
    return Call(**fields, body=body, path={"id": "7"}, **values)


def shaped(call_, *, model="m", key=KEY, retry_index=0, last_failure=None, **fields):
    channel = ChannelView(id=1, name="a", provider="openai", base_url="http://h/v1", **fields)
    return shape(
        call_,
        channel=channel,
        key=key,
        dialect=DIALECTS["openai"],
        model=model,
        retry_index=retry_index,
        last_failure=last_failure,
    )


def operation(**fields):
    return {"operations": [fields]}


def test_without_settings_the_same_call_comes_back():
    plain = call()

    assert shaped(plain) is plain


def test_the_mapping_changes_the_model_and_nothing_else():
    changed = shaped(call(b'{ "n":1.0,"model" : "m", "x": [1,  2] }'), model_mapping={"m": "up"})

    assert changed.model == "up"
    assert changed.body == b'{"n":1.0,"model":"up","x":[1,  2]}'


def test_a_fallback_model_is_mapped_too_and_loses_what_it_does_not_take():
    body = b'{"model": "gpt-5", "reasoning_effort": "low", "seed":  1}'

    changed = shaped(call(body), model="gpt-4o", model_mapping={"gpt-4o": "gpt-4o-2024-11-20"})

    assert json.loads(changed.body) == {"model": "gpt-4o-2024-11-20", "seed": 1}


def test_plain_parameters_leave_the_bytes_of_others():
    changed = shaped(call(b'{"model":"m","big":1e999,"x":{"a":  1.50}}'), param_override={"n": 2})

    assert changed.body == b'{"model":"m","big":1e999,"x":{"a":  1.50},"n":2}'


def test_fields_that_conditions_only_read_keep_their_bytes():
    override = operation(mode="set", path="n", value=2, conditions=[{"path": "x.a", "value": 1.5}])

    changed = shaped(call(b'{"x":{"a":  1.50},"y":[ ]}'), param_override=override)

    assert changed.body == b'{"x":{"a":  1.50},"y":[ ],"n":2}'


def test_a_body_with_lone_surrogates_is_shaped_as_well():
    changed = shaped(call(b'{"model":"m","t":"\\ud800"}'), param_override={"n": 2})

    assert json.loads(changed.body) == {"model": "m", "t": "\ud800", "n": 2}


def test_conditions_see_the_request_and_the_attempt():
    conditions = {
        "model": "m",
        "upstream_model": "up",
        "original_model": "m",
        "request_path": "/v1/c/7",
        "request_headers.x-tier": "gold",
        "retry_index": 2,
        "is_retry": True,
        "retry.index": 2,
        "last_error.status_code": 429,
        "last_error.code": "slow_down",
    }
    failure = Failure(
        failure_class=FailureClass.RATE_LIMIT, message="x", status=429, code="slow_down"
    )
    for path, value in conditions.items():
        override = operation(
            mode="set",
            path="seen",
            value=1,
            conditions=[{"path": path, "value": value if path != "model" else "up"}],
        )
        changed = shaped(
            call(client_headers=[(b"x-tier", b"gold"), (b"authorization", b"Bearer sk")]),
            model_mapping={"m": "up"},
            param_override=override,
            retry_index=2,
            last_failure=failure,
        )
        assert json.loads(changed.body).get("seen") == 1, path


def test_conditions_do_not_see_the_credentials_of_clients():
    override = operation(
        mode="set",
        path="seen",
        value=1,
        conditions=[{"path": "request_headers.authorization", "mode": "prefix", "value": ""}],
    )

    changed = shaped(
        call(client_headers=[(b"authorization", b"Bearer sk")]), param_override=override
    )

    assert "seen" not in json.loads(changed.body)


SET_X = {"mode": "set", "path": "x", "value": []}
# Each round 31 levels more; JSON this deep can't be written.
DEEPER = [
    {"mode": "copy", "from": "x", "to": ".".join(["y"] * 32)},
    {"mode": "move", "from": "y", "to": "x"},
]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"model_mapping": {"m": "a", "a": "m"}}, "channel:model_mapped_error"),
        ({"param_override": {"operations": 1}}, "channel:param_override_invalid"),
        (
            {"param_override": operation(mode="set", path="model.n", value="x")},
            "channel:param_override_invalid",
        ),
        (
            {"param_override": {"operations": [SET_X, *DEEPER * 49]}},
            "channel:param_override_invalid",
        ),
        ({"header_override": {"Host": "h"}}, "channel:header_override_invalid"),
    ],
)
def test_settings_that_do_not_work_are_channel_errors(settings, code):
    failure = shaped(call(), **settings)

    assert failure.code == code
    assert failure.is_channel_error
    assert failure.failure_class is FailureClass.CHANNEL_CONFIG


def test_return_error_is_an_answer_of_its_own():
    override = operation(
        mode="return_error", value={"message": "no", "status_code": 451, "code": "c", "type": "t"}
    )

    failure = shaped(call(), param_override=override)

    assert (failure.status, failure.seen_status, failure.code) == (451, 451, "c")
    assert failure.skip_retry
    assert not failure.is_channel_error


def test_headers_are_filled_in():
    changed = shaped(
        call(client_headers=[(b"x-a", b"1")]),
        header_override={"X-Key": "{api_key}", "X-A": "{client_header:X-A}"},
    )

    assert changed.header_override == {"X-Key": "sk-upstream", "X-A": "1"}


def test_a_request_without_body_gets_headers_only():
    changed = shaped(
        call(b""),
        model_mapping={"m": "up"},
        param_override={"n": 1},
        header_override={"X-A": "1"},
    )

    assert (changed.body, changed.model) == (b"", "up")
    assert changed.header_override == {"X-A": "1"}


def form(**fields):
    parts = [
        f'--xyz\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    file = '--xyz\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n\x00\x01\r\n'
    return ("".join([*parts, file]) + "--xyz--\r\n").encode()


def test_overrides_set_text_fields_of_forms():
    changed = shaped(
        call(form(model="m", n="1"), content_type=FORM), param_override={"n": 2, "size": "big"}
    )

    assert b'name="n"\r\n\r\n2\r\n' in changed.body
    assert b'name="size"\r\n\r\nbig\r\n' in changed.body
    assert b'filename="a"\r\n\r\n\x00\x01\r\n' in changed.body


def test_nothing_is_taken_out_of_a_form():
    failure = shaped(
        call(form(model="m", n="1"), content_type=FORM),
        param_override=operation(mode="delete", path="n"),
    )

    assert failure.code == "channel:param_override_invalid"


def test_the_name_of_a_model_upstream():
    channel = ChannelView(
        id=1, name="a", provider="p", base_url="", model_mapping={"a": "b", "x": "y", "y": "x"}
    )

    assert [upstream_model(channel, name) for name in "abx"] == ["b", "b", "x"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
NAMES = st.sampled_from(["model", "a", "b", "c"])
BODIES = st.dictionaries(NAMES, JSON).flatmap(
    lambda document: st.sampled_from([None, 1]).map(
        lambda indent: json.dumps(document, indent=indent).encode()
    )
)


@given(BODIES, st.dictionaries(NAMES, JSON, max_size=2))
def test_fields_that_are_not_set_keep_their_bytes(body, values):
    before = msgspec.json.decode(body, type=dict[str, msgspec.Raw])

    after = msgspec.json.decode(set_fields(body, values), type=dict[str, msgspec.Raw])

    assert after.keys() == before.keys() | values.keys()
    for name, raw in before.items():
        if name not in values:
            assert bytes(after[name]) == bytes(raw)


PATHS = st.lists(st.sampled_from(["a", "b", "0", "-1", "*"]), min_size=1, max_size=3).map(".".join)
MODES = ["set", "delete", "append", "move", "copy", "replace", "regex_replace"]


@given(
    BODIES,
    st.fixed_dictionaries(
        {"mode": st.sampled_from(MODES), "path": PATHS, "value": JSON, "from": PATHS, "to": PATHS}
    ),
)
def test_operations_leave_the_bytes_of_other_fields(body, fields):
    changed = shaped(call(body), param_override=operation(**fields))

    if isinstance(changed, Failure):
        assert changed.code == "channel:param_override_invalid"
        return
    before = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    after = msgspec.json.decode(changed.body, type=dict[str, msgspec.Raw])
    named = {str(fields[key]).split(".")[0] for key in ("path", "from", "to")}
    for name, raw in before.items():
        if name not in named:
            assert bytes(after[name]) == bytes(raw)


@given(
    st.binary(max_size=30) | BODIES | st.just(b'{"a":' * 100_000),
    st.sampled_from(["application/json", FORM, "multipart/form-data", ""]),
    st.dictionaries(st.sampled_from(["m", "a", "b"]), JSON, max_size=3),
    st.dictionaries(NAMES | st.just("operations"), JSON, max_size=3),
    st.dictionaries(st.sampled_from(["X-A", "Host", ""]), JSON, max_size=2),
)
def test_whatever_a_channel_sets_shaping_never_raises(body, kind, mapping, override, headers):
    changed = shaped(
        call(body, content_type=kind),
        model_mapping=mapping or None,
        param_override=override or None,
        header_override=headers or None,
    )

    assert isinstance(changed, Call | Failure)
    assert isinstance(changed, Call) or changed.is_channel_error


def test_numbers_that_json_has_no_word_for_do_not_get_out():
    changed = shaped(call(b'{"a": 1}'), param_override={"n": math.inf})

    assert json.loads(changed.body)["n"] is None
