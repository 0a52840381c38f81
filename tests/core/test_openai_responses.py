"""The OpenAI Responses dialect: what requests, answers and stream events say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_app.core.usage import Usage
from relay_app.core.classify import classify_response
from relay_app.core.error_body import read_error
from relay_app.core.sse import Splitter, read_event
from relay_app.core.types import AnswerFacts, Call, EventFacts
from relay_app.dialects.base import BodyError, Envelope, ErrorParts, Incoming
from relay_app.dialects.openai_responses import OpenAIResponses
from relay_app.urls import ENDPOINTS
from tests.support.wire import recordings

DIALECT = OpenAIResponses()
USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 2,
    "total_tokens": 11,
}
COUNTED = Usage(input_tokens=9, output_tokens=2, cached_input_tokens=4)
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}


def dumped(document):
    return document if isinstance(document, bytes) else json.dumps(document).encode()


def request(**fields):
    return Incoming(body=dumped({"model": "m", "input": "hi", **fields}))


def answer(**fields):
    document = {"object": "response", "status": "completed", "error": None, "model": "m-1"}
    return DIALECT.read_answer(dumped({**document, "output": [], **fields}))


def event(kind, *, name=b"", **fields):
    return DIALECT.read_event(dumped({"type": kind, **fields}), name)


# -- requests ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Envelope(model="m", is_stream=False)),
        ({"stream": True}, Envelope(model="m", is_stream=True)),
        ({"stream": None}, Envelope(model="m", is_stream=False)),
        ({"input": [{"x": 1}]}, Envelope(model="m", is_stream=False)),
        (
            {"max_output_tokens": 50},
            Envelope(model="m", is_stream=False, max_output_tokens=50),
        ),
        ({"max_output_tokens": None}, Envelope(model="m", is_stream=False)),
        ({"max_output_tokens": "many"}, Envelope(model="m", is_stream=False)),
    ],
)
def test_a_request_says_its_model_stream_and_limit(fields, expected):
    assert DIALECT.read_request(request(**fields)) == expected


@pytest.mark.parametrize("body", [{"input": "hi"}, {"prompt": {"id": "p"}}, {"model": None}])
def test_a_request_without_a_model_is_told_that_routing_needs_it(body):
    with pytest.raises(BodyError, match="the relay routes by it") as caught:
        DIALECT.read_request(Incoming(body=dumped(body)))

    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"model": " "}, "model: the name is empty"),
        ({"model": 1}, "model has the wrong type"),
        ({"model": "m", "stream": "yes"}, "stream has the wrong type"),
        (b"[]", "the request body has the wrong type"),
        (b"", "the request body is empty"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(body, says):
    with pytest.raises(BodyError, match=says):
        DIALECT.read_request(Incoming(body=dumped(body)))


def test_the_model_is_changed_and_nothing_else():
    body = b'{ "input": "\xc3\xa9", "model": "a" , "x": 1e2}'
    call = Call(request_id="", endpoint=ENDPOINTS[0], model="a", is_stream=False, body=body)

    changed = DIALECT.with_model(call, "b")

    assert changed.model == "b"
    assert json.loads(changed.body) == {"input": "é", "model": "b", "x": 1e2}
    assert b"1e2" in changed.body


# -- whole answers ---------------------------------------------------------------


def test_an_answer_says_its_model_and_usage():
    assert answer(output=[MESSAGE], usage=USAGE) == AnswerFacts(model="m-1", usage=COUNTED)


@pytest.mark.parametrize(
    "item",
    [
        MESSAGE,
        {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        {"type": "function_call", "name": "f", "arguments": ""},
        {"type": "custom_tool_call", "name": "f", "input": ""},
        {"type": "web_search_call", "status": "completed"},
        {"type": "of_a_newer_api"},
    ],
)
def test_whatever_says_something_is_no_empty_answer(item):
    assert not answer(output=[item]).is_empty


@pytest.mark.parametrize(
    "output",
    [
        [],
        None,
        [{"type": "message", "content": []}],
        [{"type": "message", "content": [{"type": "output_text", "text": ""}]}],
        [{"type": "reasoning", "summary": [], "encrypted_content": None}],
    ],
)
def test_completed_without_output_is_empty_unless_tokens_were_spent(output):
    assert answer(output=output).is_empty
    assert answer(output=output, status=None).is_empty
    assert not answer(output=output, usage=USAGE).is_empty


@pytest.mark.parametrize("status", ["incomplete", "queued", "in_progress", "cancelled"])
def test_other_ends_are_answers_without_output(status):
    assert answer(status=status) == AnswerFacts(model="m-1")


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "failed", "error": {"code": "server_error", "message": "x"}},
        {"status": "failed", "output": [MESSAGE]},
        {"error": {"message": "x"}},
        {"object": "error", "message": "x"},
    ],
)
def test_a_failed_answer_is_an_error(fields):
    assert answer(**fields).is_error


def test_an_error_beside_output_is_an_answer():
    assert not answer(output=[MESSAGE], error={"message": "a warning"}).is_error


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"1", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_not_readable(body):
    assert DIALECT.read_answer(body) == AnswerFacts(is_readable=False)


DRAWN = {"type": "image_generation_call", "status": "completed", "result": "iVBO"}


@pytest.mark.parametrize(
    ("item", "images"),
    [
        (DRAWN, 1),
        ({**DRAWN, "result": None}, 1),
        ({**DRAWN, "status": "generating"}, 1),  # it is there all the same
        ({**DRAWN, "status": "failed", "result": None}, 0),
        ({**DRAWN, "status": "in_progress", "result": ""}, 0),
        (MESSAGE, 0),
        (5, 0),
    ],
)
def test_each_picture_that_was_made_counts(item, images):
    whole = answer(output=[item, MESSAGE, item], usage=USAGE)
    done = event("response.output_item.done", item=item)
    added = event("response.output_item.added", item=item)
    end = event("response.completed", response={"output": [item, item], "usage": USAGE})

    assert whole.images == 2 * images
    assert (added.images, done.images) == (0, images)
    assert (end.images, end.usage.images) == (0, 2 * images)  # the same ones once more


# -- stream events ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("response.output_text.delta", {"delta": "x"}),
        ("response.output_text.delta", {"delta": " "}),
        ("response.output_text.done", {"text": "x"}),
        ("response.refusal.delta", {"delta": "no"}),
        ("response.reasoning_text.delta", {"delta": "hm"}),
        ("response.reasoning_summary_text.delta", {"delta": "hm"}),
        ("response.reasoning_summary_part.done", {"part": {"text": "hm"}}),
        ("response.content_part.added", {"part": {"type": "output_text", "text": "x"}}),
        ("response.function_call_arguments.delta", {"delta": "{"}),
        ("response.function_call_arguments.done", {"arguments": "{}"}),
        ("response.custom_tool_call_input.delta", {"delta": "{"}),
        ("response.mcp_call_arguments.delta", {"delta": "{"}),
        ("response.code_interpreter_call_code.delta", {"delta": "1"}),
        ("response.image_generation_call.partial_image", {"partial_image_b64": "iVBO"}),
        ("response.audio.delta", {"delta": "UklG"}),
        ("response.output_item.added", {"item": {"type": "function_call", "name": "f"}}),
        ("response.output_item.added", {"item": MESSAGE}),
        ("response.output_item.done", {"item": {"type": "web_search_call"}}),
        ("response.output_item.done", {"item": {"type": "reasoning", "encrypted_content": "g"}}),
    ],
)
def test_content_of_any_kind_is_meaningful(kind, fields):
    assert event(kind, **fields) == EventFacts(is_meaningful=True)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("response.created", {"response": {"output": []}}),
        ("response.in_progress", {"response": {}}),
        ("response.queued", {}),
        ("response.output_text.delta", {"delta": "", "obfuscation": "xYz", "item_id": "msg"}),
        ("response.output_text.done", {"text": ""}),
        ("response.content_part.added", {"part": {"type": "output_text", "text": ""}}),
        ("response.reasoning_summary_part.added", {"part": {"type": "summary_text", "text": ""}}),
        ("response.output_item.added", {"item": {"type": "message", "content": []}}),
        ("response.output_item.added", {"item": {"type": "reasoning", "summary": []}}),
        ("response.output_item.added", {"item": {"type": "reasoning", "encrypted_content": "g"}}),
        ("response.output_item.added", {"item": {"type": "web_search_call"}}),
        ("response.output_item.added", {"item": None}),
        ("response.web_search_call.searching", {"item_id": "ws"}),
        ("keepalive", {"sequence_number": 3}),
        ("", {}),
    ],
)
def test_events_before_content_say_nothing(kind, fields):
    assert event(kind, **fields) == EventFacts()


def test_the_first_event_names_the_model():
    facts = event("response.created", response={"model": "m-1", "output": []})

    assert facts == EventFacts(model="m-1")


@pytest.mark.parametrize(
    ("kind", "is_normal"), [("response.completed", True), ("response.incomplete", False)]
)
def test_the_proper_end_tells_model_and_usage(kind, is_normal):
    facts = event(kind, response={"model": "m-1", "usage": USAGE, "output": []})

    assert facts == EventFacts(
        is_finish=True, is_normal_finish=is_normal, is_complete=True, model="m-1", usage=COUNTED
    )


def test_an_end_that_brings_the_whole_answer_is_meaningful():
    assert event("response.completed", response={"output": [MESSAGE]}).is_meaningful


def test_done_is_the_last():
    assert DIALECT.read_event(b"[DONE]", b"") == EventFacts(is_last=True)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"type": "error", "code": "server_error", "message": "x"}, b"error"),
        ({"type": "error", "error": {"message": "x"}}, b""),
        ({"type": "response.failed", "response": {"error": {"message": "x"}}}, b""),
        ({"type": "response.failed", "response": {}}, b"response.failed"),
        ({"error": {"message": "x"}}, b""),
        ({"message": "x"}, b"error"),
        (b"overloaded", b"error"),
    ],
)
def test_a_failure_is_an_error(data, name):
    facts = DIALECT.read_event(dumped(data), name)

    is_end = b"response.failed" in (dumped(data) + name)
    assert facts == EventFacts(is_error=True, is_last=is_end)


@pytest.mark.parametrize("data", [b"{", b"x", b"[]", b"1", b"null", b"\xff", b"", b"[" * 100_000])
def test_what_is_no_object_is_malformed(data):
    assert DIALECT.read_event(data, b"") == EventFacts(is_malformed=True)


def test_a_comment_says_nothing():
    assert DIALECT.read_event(None, b"") == EventFacts()


@pytest.mark.parametrize(
    ("error", "failure_class", "status"),
    [
        ({"code": "rate_limit_exceeded", "message": "slow down"}, "RATE_LIMIT", 429),
        ({"code": "insufficient_quota", "message": "You exceeded it"}, "QUOTA", 429),
        ({"code": "server_error", "message": "oops"}, "SERVER", 502),
        ({"code": "context_length_exceeded", "message": "long"}, "CONTEXT_WINDOW", 400),
    ],
)
def test_a_failed_response_is_a_failure_of_its_errors_class(error, failure_class, status):
    """Also inside the event, where the error is one level down."""
    whole = {"object": "response", "status": "failed", "error": error}
    for document in (whole, {"type": "response.failed", "response": whole}):
        failure = classify_response(
            status=200, headers={}, body=dumped(document), provider="openai"
        )
        assert (failure.failure_class.value, failure.status) == (failure_class, status)
        assert (failure.code, failure.message) == (error["code"], error["message"])


# -- errors -----------------------------------------------------------------------


def test_an_error_event_is_told_flat_and_nested():
    """Flat as the API reference has it; nested as the API sends it and SDKs raise on it."""
    parts = ErrorParts(status=502, message="m", type=None, code="c", param="p")

    [raw] = Splitter().feed(DIALECT.error_event(parts))
    data, name = read_event(raw)
    document = json.loads(data)

    assert name == b"error"
    assert document.pop("error") == {
        "message": "m", "type": "server_error", "param": "p", "code": "c"
    }  # fmt: skip
    assert document == {
        "type": "error", "code": "c", "message": "m", "param": "p", "sequence_number": 0
    }  # fmt: skip


@given(text=st.text(st.characters(codec=None), max_size=20))
def test_any_text_can_be_told_and_is_read_back_as_an_error(text):
    parts = ErrorParts(status=502, message="m" + text, type=text or None, code=text)

    [raw] = Splitter().feed(DIALECT.error_event(parts))
    data, name = read_event(raw)

    assert read_error(data).message == "m" + text
    assert DIALECT.read_event(data, name).is_error


# -- anything at all ----------------------------------------------------------------

NAMES = ["model", "stream", "status", "output", "error", "usage", "type", "response", "item"]
NAMES += ["content", "text", "delta", "part", "summary", "input_tokens", "input_tokens_details"]
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "m", "message", "error", "response.completed", "response.failed"])
    | st.text(st.characters(codec=None), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
anything = st.one_of(st.binary(max_size=60), documents.map(dumped))


@given(body=anything)
def test_reading_a_request_raises_nothing_but_its_own_error(body):
    try:
        envelope = DIALECT.read_request(Incoming(body=body))
    except BodyError:
        return
    assert envelope.model.strip()


@given(data=anything, name=st.sampled_from([b"", b"error", b"response.completed"]))
def test_reading_an_answer_or_event_never_raises(data, name):
    facts = DIALECT.read_answer(data)
    DIALECT.read_event(data, name)

    assert not (facts.is_error and facts.is_empty)


# -- recorded traffic ---------------------------------------------------------------


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("json", "responses"))
def test_recorded_answers_are_answers(recording):
    facts = DIALECT.read_answer(recording.body, recording.content_type)

    if recording.is_cut:
        assert not facts.is_readable
    else:
        assert (facts.is_readable, facts.is_error, facts.is_empty) == (True, False, False)
        assert facts.model
        assert facts.usage.input_tokens > 0
        assert facts.usage.output_tokens > 0


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("stream", "responses", "responses-id"))
def test_recorded_streams_end_properly_unless_they_broke(recording):
    facts = [DIALECT.read_event(*event) for event in recording.events()]

    has_error = any(fact.is_error for fact in facts)
    assert has_error == ("sse:errorchunk" in recording.document["features"])
    assert any(fact.model for fact in facts) or recording.is_cut
    if recording.is_cut or has_error:
        assert not any(fact.is_finish for fact in facts)
        return
    assert not any(fact.is_malformed for fact in facts)
    first = next(place for place, fact in enumerate(facts) if fact.is_meaningful)
    assert 0 < first < len(facts) - 1  # held: created and the like; the end alone is too late
    assert any(fact.is_finish for fact in facts)
    assert next(fact.usage for fact in reversed(facts) if fact.usage) is not None
