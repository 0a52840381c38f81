"""Upstream errors and their classes: recorded bodies, and a small set made by hand."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.types import Failure, FailureClass
from relay_app.core.classify import classify_response, map_status, retry_after_s
from relay_app.core.error_body import MAX_ERROR_BYTES
from relay_app.core.sse import Splitter, read_event
from tests.conftest import WIRE_DIR

C = FailureClass

# Recorded bodies that are classified otherwise for now, and why.
DISAGREEMENTS = {
    "gemini__429__QUOTA__01": "only the details name a quota per day; walls decide it",
}
RECORDED = sorted((WIRE_DIR / "errors").glob("*.json"))


def classify(body, *, status=400, provider="openai", headers=None, secrets=()):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return classify_response(
        status=status, headers=headers or {}, body=raw, provider=provider, secrets=secrets
    )


def error(message="", **fields):
    return {"error": {"message": message, **fields}}


def first_data(text):
    splitter = Splitter()
    events = [*splitter.feed(text.encode()), splitter.flush()]
    return next(data for data, _ in map(read_event, events) if data)


@pytest.mark.wire
def test_there_are_recorded_errors(wire_dir):
    assert len(list((wire_dir / "errors").glob("*.json"))) > 100
    assert {path.stem for path in RECORDED} >= DISAGREEMENTS.keys()


@pytest.mark.wire
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.xfail(reason=DISAGREEMENTS[path.stem])]
            if path.stem in DISAGREEMENTS
            else [],
        )
        for path in RECORDED
    ],
)
def test_recorded_errors_have_their_meaning(path):
    recorded = json.loads(path.read_text())
    is_event = recorded["where"] == "sse"
    body = first_data(recorded["body"]) if is_event else recorded["body"].encode()

    failure = classify(
        body,
        status=recorded["status"],
        provider=recorded["provider"],
        headers={name.lower(): value for name, value in recorded["headers"].items()},
    )

    meaning = recorded["meaning"]
    assert failure.failure_class == ("SERVER" if meaning == "OVERLOADED" else meaning)
    if recorded["status"] >= 300:
        assert failure.status == recorded["status"]
    else:
        assert not 200 <= failure.status <= 299


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (302, C.INVALID_REQUEST),
        (400, C.INVALID_REQUEST),
        (401, C.AUTH),
        (402, C.QUOTA),
        (403, C.INVALID_REQUEST),
        (404, C.INVALID_REQUEST),
        (408, C.TIMEOUT),
        (413, C.INVALID_REQUEST),
        (422, C.INVALID_REQUEST),
        (429, C.RATE_LIMIT),
        (499, C.INVALID_REQUEST),
        (500, C.SERVER),
        (503, C.SERVER),
        (504, C.TIMEOUT),
        (524, C.TIMEOUT),
        (529, C.SERVER),
        (599, C.SERVER),
        (999, C.SERVER),
    ],
)
@pytest.mark.parametrize("body", [b"", b"{}", b"<html>Bad Gateway</html>", b'{"error": null}'])
def test_without_words_the_status_decides(status, expected, body):
    failure = classify(body, status=status)

    assert failure.failure_class == expected
    assert failure.message == f"the upstream answered {status} without saying why"


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (error("x", code="insufficient_quota"), 429, C.QUOTA),
        (error("x", type="insufficient_quota", code=None), 429, C.QUOTA),
        (error("x", code="billing_not_active"), 403, C.QUOTA),
        (error("Your credit balance is too low to go on"), 400, C.QUOTA),
        (error("Your credit balance is too low", type="permission_error"), 403, C.QUOTA),
        (error("insufficient balance (1008)"), 500, C.QUOTA),
        (error("Usage limit reached for 5 hour"), 429, C.QUOTA),
        (error("Quota exceeded"), 429, C.RATE_LIMIT),  # bare words are no wall
        (error("API key not valid. Pass another."), 400, C.AUTH),
        (error("x", type="authentication_error"), 400, C.AUTH),
        (error("no", type="permission_error"), 403, C.AUTH),
        (error("Access denied"), 403, C.AUTH),
        (error("no"), 403, C.INVALID_REQUEST),
        (error("prompt is too long: 210000 tokens"), 400, C.CONTEXT_WINDOW),
        (error("x", code="context_length_exceeded"), 400, C.CONTEXT_WINDOW),
        (error("x", code="content_filter"), 400, C.CONTENT_FILTER),
        (error("x", code="model_not_found"), 404, C.UNKNOWN_MODEL),
        (error("The model `x` does not exist"), 404, C.UNKNOWN_MODEL),
        (error("model x is gone"), 404, C.UNKNOWN_MODEL),
        (error("no such page"), 404, C.INVALID_REQUEST),
        (error("Overloaded", type="overloaded_error"), 529, C.SERVER),
        (error("The engine is currently overloaded"), 429, C.SERVER),
        (error("x", code="rate_limit_exceeded"), 429, C.RATE_LIMIT),
        ({"detail": "Unauthorized"}, 401, C.AUTH),
        ({"error": "prompt is too long"}, 400, C.CONTEXT_WINDOW),
        ([error("x", code="insufficient_quota")], 429, C.QUOTA),
        (b"insufficient credits", 400, C.QUOTA),
    ],
)
def test_structure_and_wording_come_before_the_status(body, status, expected):
    assert classify(body, status=status).failure_class == expected


def test_any_403_of_gemini_is_the_keys_fault():
    assert classify(error("no"), status=403, provider="gemini").failure_class == C.AUTH


def test_a_provider_may_mean_something_else_by_a_code():
    body = error("x", code="insufficient_quota")

    assert classify(body, status=429, provider="dashscope").failure_class == C.RATE_LIMIT
    assert classify(body, status=429, provider="openai").failure_class == C.QUOTA


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (error("x", code=429), 429, C.RATE_LIMIT),  # named: 100-599
        (error("x", code="503"), 503, C.SERVER),
        (error("x", status_code=400), 400, C.INVALID_REQUEST),
        (error("x", http_code="500"), 500, C.SERVER),
        (error("x", code=599), 599, C.SERVER),
        (error("x", code=600), 502, C.SERVER),  # no HTTP status: by the class
        (error("x", code=99), 502, C.SERVER),
        (error("x", code=1113), 502, C.SERVER),
        (error("x", code=True), 502, C.SERVER),
        (error("x", code="rate_limit_exceeded"), 429, C.RATE_LIMIT),
        (error("x", code="insufficient_quota"), 429, C.QUOTA),
        (error("x", code="invalid_api_key"), 401, C.AUTH),
        (error("x", type="invalid_request_error"), 400, C.INVALID_REQUEST),
        (error("x", code="model_not_found"), 400, C.UNKNOWN_MODEL),
        (error("x", code="context_length_exceeded"), 400, C.CONTEXT_WINDOW),
        (error("x", code="content_filter"), 400, C.CONTENT_FILTER),
        (error("x", type="not_found_error"), 400, C.INVALID_REQUEST),
        (error("model: x-1", type="not_found_error"), 400, C.UNKNOWN_MODEL),
        (error("x", type="request_too_large"), 400, C.INVALID_REQUEST),
        (error("x", type="permission_error"), 401, C.AUTH),
        (error("x", type="billing_error"), 429, C.QUOTA),
        (error("x", type="rate_limit_error"), 429, C.RATE_LIMIT),
        (error("x", status="INVALID_ARGUMENT"), 400, C.INVALID_REQUEST),
        (error("x", status="RESOURCE_EXHAUSTED"), 429, C.RATE_LIMIT),
        (error("x", status="UNAUTHENTICATED"), 401, C.AUTH),
        (error("x", type="timeout_error"), 502, C.TIMEOUT),
        (error("x", type="api_error"), 502, C.SERVER),
        (error("x", type="overloaded_error"), 502, C.SERVER),
        (error("something"), 502, C.SERVER),
        # A spent account outranks the code it comes under, for the status too.
        (error("credit balance is too low", type="authentication_error"), 429, C.QUOTA),
    ],
)
def test_an_error_inside_a_200_has_the_status_that_it_names_or_that_of_its_class(
    body, status, expected
):
    failure = classify(body, status=200)

    assert (failure.status, failure.failure_class) == (status, expected)
    assert failure.seen_status == status


def test_what_the_error_says_is_kept():
    failure = classify(
        error("no such", type="t", code="c", param="messages"),
        headers={"x-request-id": "r" * 300, "retry-after": "7"},
    )

    assert (failure.message, failure.type, failure.code) == ("no such", "t", "c")
    assert failure.param == "messages"
    assert failure.upstream_request_id == "r" * 100
    assert failure.retry_after_s == 7


def test_the_code_of_anthropic_is_found_one_level_down():
    """Its place since 2026-10-21; a code beside the message comes first."""
    details = {"error_code": "compaction_unavailable", "x": 1}

    assert classify(error("x", details=details)).code == "compaction_unavailable"
    assert classify(error("x", code="c", details=details)).code == "c"
    for odd in (None, [], "x", {}, {"error_code": {}}):
        assert classify(error("x", details=odd)).code is None


UPSTREAM_TEXTS = st.sampled_from(
    ["message", "error_msg", "detail", "type", "code", "param", "status", "error_code"]
)


@given(
    secret=st.text('abcXYZ019-_./"\\', min_size=4, max_size=30),
    fields=st.sets(UPSTREAM_TEXTS, min_size=1),
    before=st.sampled_from([0, 1, 190, 1990]) | st.integers(0, 2100),
    form=st.sampled_from(["error", "flat", "text", "event", "detail", "google"]),
    is_nested=st.booleans(),
)
def test_no_secret_comes_out_of_any_field(secret, fields, before, form, is_nested):
    text = "=" * before + " " + secret
    found = {name: {"said": [text]} if is_nested else text for name in fields}
    document = {
        "error": {"error": found},
        "flat": found,
        "event": {"response": {"error": found}},
        "text": text,
        "detail": {"error": {**found, "details": {"error_code": text}}},
        "google": {"error": {"details": [{"@type": "google.rpc.ErrorInfo", "reason": text}]}},
    }[form]
    body = text.encode() if form == "text" else json.dumps(document).encode()

    failure = classify(body, headers={"x-request-id": text}, secrets=(secret,))

    told = (failure.message, failure.code, failure.type, failure.param)
    shown = "\n".join(filter(None, (*told, failure.upstream_request_id)))
    assert secret not in shown
    # Nor its beginning, where a text was cut.
    assert not any(one and one.endswith(secret[:4]) for one in told)


def test_secrets_do_not_come_along():
    failure = classify(
        error("bad my-own-key", type="my-own-key", code="my-own-key"), secrets=("my-own-key",)
    )

    assert (failure.message, failure.type, failure.code) == ("bad ***", "***", "***")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": " 2.5 "}, 2.5),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "1, 2"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after": "\u0663"}, None),
        ({"retry-after": "+2"}, None),
        ({"retry-after": "1e2"}, None),
        ({"retry-after": ".5"}, None),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1000000000000000000"}, 1e18),
    ],
)
def test_a_published_wait_is_a_positive_number_of_seconds(headers, expected):
    assert retry_after_s(headers) == expected


texts = st.one_of(st.text(max_size=12), st.floats().map(str), st.integers().map(str))


@given(
    headers=st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "x-other"]), texts)
)
def test_no_header_makes_a_negative_wait_or_an_error(headers):
    wait = retry_after_s(headers)

    assert wait is None or (wait > 0 and math.isfinite(wait))


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error",
                    "message",
                    "type",
                    "code",
                    "param",
                    "status",
                    "detail",
                    "error_msg",
                    "error_code",
                    "status_code",
                    "http_code",
                    "msg",
                    "object",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)
bodies = st.one_of(
    st.binary(max_size=200),
    documents.map(lambda document: json.dumps(document).encode()),
)


@given(
    body=bodies,
    status=st.integers(100, 999),
    headers=st.dictionaries(
        st.sampled_from(["retry-after", "retry-after-ms", "x-request-id", "request-id"]), texts
    ),
    provider=st.sampled_from(["openai", "dashscope", "gemini", ""]),
)
def test_whatever_comes_is_a_failure(body, status, headers, provider):
    failure = classify_response(
        status=status, headers=headers, body=body, provider=provider, secrets=("sk-secret",)
    )

    assert failure.failure_class in C
    assert failure.message
    assert failure.status is not None
    if not 200 <= status <= 299:
        assert failure.status == status
    assert "sk-secret" not in failure.message


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"error": {"message": ' + b"[" * 900 + b"]" * 900 + b"}}",
        b"9" * 10_000,
        b'{"error": "' + b"x" * MAX_ERROR_BYTES + b'"}',
        b"\xff\xfe\x00",
        b'{"error": {"message": "\\ud800 \\u0000"}}',
        b"tokens: " * 30_000,
    ],
)
def test_hostile_bodies_are_failures_too(body):
    assert classify(body, status=500).failure_class == C.SERVER


def failure(status):
    return Failure(failure_class=C.SERVER, message="", status=status, seen_status=status)


def test_a_mapped_status_is_seen_and_the_raw_one_kept():
    mapped = map_status(failure(400), {400: 500})

    assert (mapped.status, mapped.seen_status) == (400, 500)


def test_statuses_that_are_not_mapped_stay():
    assert map_status(failure(401), {400: 500}) == failure(401)
    assert map_status(failure(500), {}) == failure(500)


def test_no_answer_has_no_status_to_map():
    assert map_status(failure(None), {400: 500}).seen_status is None
