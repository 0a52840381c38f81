"""The Anthropic messages dialect: what requests, answers and stream events say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_app.core.usage import MAX_TOKENS, Usage
from relay_app.core.sse import Splitter, read_event
from relay_app.core.types import AnswerFacts, EventFacts
from relay_app.dialects.anthropic import KNOWN_TYPES, AnthropicMessages
from relay_app.dialects.base import BodyError, Envelope, ErrorParts, Incoming
from tests.conftest import WIRE_DIR
from tests.support import anthropic

DIALECT = AnthropicMessages()


def dumped(document):
    return document if isinstance(document, bytes) else json.dumps(document).encode()


def request(**fields):
    return dumped({"model": "m", "max_tokens": 9, "messages": [{"role": "user"}], **fields})


def event(document, name=b""):
    return DIALECT.read_event(dumped(document), name)


def read(raw):
    """Return the facts of an event as it stands in a stream."""
    return DIALECT.read_event(*read_event(raw))


def answer(content, **fields):
    return DIALECT.read_answer(dumped(anthropic.message(content=content, **fields)))


# -- requests --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (request(), Envelope(model="m", is_stream=False, max_output_tokens=9)),
        (request(stream=True), Envelope(model="m", is_stream=True, max_output_tokens=9)),
        (request(stream=False), Envelope(model="m", is_stream=False, max_output_tokens=9)),
        (request(stream=None), Envelope(model="m", is_stream=False, max_output_tokens=9)),
        (request(messages=[]), Envelope(model="m", is_stream=False, max_output_tokens=9)),
        (
            request(of_a_newer_api={"x": [1]}),
            Envelope(model="m", is_stream=False, max_output_tokens=9),
        ),
        (b'{"messages":[1,"x",null],"model":"m"}', Envelope(model="m", is_stream=False)),
        (
            request(messages=[{"content": "\ud83d"}]),
            Envelope(model="m", is_stream=False, max_output_tokens=9),
        ),
    ],
)
def test_a_request_says_its_model_and_whether_it_streams(body, expected):
    assert DIALECT.read_request(Incoming(body=body)) == expected


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b'{"messages": []}', "model", "model is missing"),
        (b'{"model": "m"}', "messages", "messages is missing"),
        (request(model=1), "model", "model has the wrong type: expected str, got int"),
        (request(model=" "), "model", "model: the name is empty"),
        (request(messages="hi"), "messages", "messages has the wrong type: expected array"),
        (request(messages=None), "messages", "messages has the wrong type"),
        (request(stream="yes"), "stream", "stream has the wrong type"),
        (b"[]", None, "the request body has the wrong type"),
        (b"", None, "the request body is empty"),
        (b"{", None, "the request body is not valid JSON"),
        (b"\xff\xfe", None, "the request body is not valid JSON"),
    ],
)
def test_a_bad_request_is_told_what_and_where(body, param, says):
    with pytest.raises(BodyError) as caught:
        DIALECT.read_request(Incoming(body=body))

    assert str(caught.value).startswith(says)
    assert caught.value.param == param


# -- whole answers ---------------------------------------------------------------


def test_an_answer_says_its_model_and_usage():
    usage = {
        "input_tokens": 3,
        "output_tokens": 2,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 7,
    }

    facts = answer([{"type": "text", "text": "hi"}], usage=usage)

    assert facts == AnswerFacts(
        model="m-upstream",
        usage=Usage(input_tokens=15, output_tokens=2, cached_input_tokens=5, cache_write_tokens=7),
    )


BLOCKS_THAT_SAY_SOMETHING = [
    {"type": "text", "text": "x"},
    {"type": "text", "text": " "},
    {"type": "text", "text": "\ud800"},
    {"type": "thinking", "thinking": "hm", "signature": ""},
    {"type": "thinking", "thinking": "", "signature": "s"},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    {"type": "server_tool_use", "id": "t", "name": "f", "input": {}},
    {"type": "mcp_tool_use", "id": "t", "name": "f", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "t", "content": []},
    {"type": "of_a_newer_api"},
    {"text": "x"},
]
BLOCKS_THAT_DO_NOT = [
    {"type": "text", "text": ""},
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
    {},
    None,
]
NOTHING_SPENT = {"input_tokens": 3, "output_tokens": 0}


@pytest.mark.parametrize("block", BLOCKS_THAT_SAY_SOMETHING)
def test_whatever_carries_something_is_no_empty_answer(block):
    facts = answer([block], usage=NOTHING_SPENT)

    assert (facts.is_readable, facts.is_error, facts.is_empty) == (True, False, False)


@pytest.mark.parametrize("content", [*([block] for block in BLOCKS_THAT_DO_NOT), [], None, ""])
@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence", "tool_use", "pause_turn", None])
@pytest.mark.parametrize("usage", [NOTHING_SPENT, None])
def test_a_normal_end_that_carries_nothing_is_empty(content, reason, usage):
    assert answer(content, stop_reason=reason, usage=usage).is_empty


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "model_context_window_exceeded"])
def test_nothing_said_is_an_answer_if_cut_short(reason):
    assert not answer([], stop_reason=reason, usage=NOTHING_SPENT).is_empty


def test_nothing_said_is_an_answer_if_tokens_were_spent():
    assert not answer([]).is_empty


@pytest.mark.parametrize(
    "document",
    [
        anthropic.problem(),
        {"type": "error", "error": {"type": "overloaded_error"}},
        {"type": "error"},
        {"error": {"message": "x"}},
        {"error": "x"},
        {"error": {"message": "\ud800"}, "content": []},
    ],
)
def test_only_an_error_object_is_an_error(document):
    assert DIALECT.read_answer(dumped(document)).is_error


def test_an_error_beside_an_answer_is_an_answer():
    assert not answer([{"type": "text", "text": "x"}], error={"message": "a warning"}).is_error
    assert not answer([{"type": "text", "text": "x"}], error=None).is_error


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"1", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_not_readable(body):
    facts = DIALECT.read_answer(body)

    assert not facts.is_readable
    assert not facts.is_error


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3), (3.5, 3), (-1, 0), ("3", 0), (None, 0), ([], 0), (10**30, MAX_TOKENS)],
)
def test_usage_is_read_as_far_as_it_can_be(value, expected):
    usage = answer([], usage={"input_tokens": value}).usage

    assert usage == Usage(input_tokens=expected)


# -- stream events ----------------------------------------------------------------


@pytest.mark.parametrize("block", BLOCKS_THAT_SAY_SOMETHING)
def test_the_start_of_a_block_that_says_something_is_meaningful(block):
    assert read(anthropic.block(**block)) == EventFacts(is_meaningful=True)


@pytest.mark.parametrize("block", [block for block in BLOCKS_THAT_DO_NOT if block])
def test_the_start_of_an_empty_block_is_not(block):
    assert read(anthropic.block(**block)) == EventFacts()


@pytest.mark.parametrize(
    ("delta", "is_meaningful"),
    [
        ({"type": "text_delta", "text": "x"}, True),
        ({"type": "text_delta", "text": " "}, True),
        ({"type": "text_delta", "text": "\ud83d"}, True),
        ({"type": "text_delta", "text": ""}, False),
        ({"type": "thinking_delta", "thinking": "hm"}, True),
        ({"type": "thinking_delta", "thinking": ""}, False),
        ({"type": "input_json_delta", "partial_json": "{"}, True),
        ({"type": "input_json_delta", "partial_json": ""}, False),
        ({"type": "citations_delta", "citation": {"type": "char_location"}}, True),
        ({"type": "signature_delta", "signature": "s"}, True),
        ({"type": "of_a_newer_api", "what": "x"}, True),
        ({"type": "of_a_newer_api"}, False),
        ({}, False),
        (None, False),
        (5, False),
    ],
)
def test_a_delta_is_meaningful_if_it_holds_something(delta, is_meaningful):
    facts = event({"type": "content_block_delta", "index": 0, "delta": delta})

    assert facts == EventFacts(is_meaningful=is_meaningful)


def test_the_beginning_says_model_and_input_and_is_held_back():
    """The output tokens in it are a placeholder: nothing was generated yet."""
    facts = read(anthropic.start(cache_read_input_tokens=5))

    assert facts == EventFacts(
        model="m-upstream", usage=Usage(input_tokens=8, cached_input_tokens=5)
    )


def test_a_beginning_that_holds_content_is_meaningful():
    whole = anthropic.message()

    assert event({"type": "message_start", "message": whole}).is_meaningful


@pytest.mark.parametrize(
    ("reason", "is_normal"),
    [
        ("end_turn", True),
        ("tool_use", True),
        ("stop_sequence", True),
        ("pause_turn", True),
        ("of_a_newer_api", True),
        ("max_tokens", False),
        ("refusal", False),
        ("model_context_window_exceeded", False),
    ],
)
def test_a_stop_reason_is_the_proper_end(reason, is_normal):
    facts = read(anthropic.finish(reason))

    assert facts == EventFacts(
        is_finish=True, is_normal_finish=is_normal, usage=Usage(output_tokens=2)
    )


@pytest.mark.parametrize("delta", [{}, {"stop_reason": None}, {"stop_reason": []}, None])
def test_a_message_delta_without_a_stop_reason_is_no_end(delta):
    assert event({"type": "message_delta", "delta": delta}) == EventFacts()


def test_the_stop_is_the_last():
    assert read(anthropic.STOP) == EventFacts(is_last=True)
    assert read(DIALECT.stream_end) == EventFacts(is_last=True)


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"type": "ping"}, b"ping"),
        ({"type": "ping"}, b""),
        ({"type": "content_block_stop", "index": 0}, b""),
        ({"type": "of_a_newer_api", "x": [1]}, b"of_a_newer_api"),
        ({"type": 5}, b""),
        ({}, b""),
    ],
)
def test_pings_and_events_of_a_newer_api_are_passed_on(document, name):
    assert event(document, name) == EventFacts()


def test_a_comment_says_nothing():
    assert DIALECT.read_event(None, b"") == EventFacts()


def test_the_name_of_the_event_stands_in_for_a_type():
    assert event({"delta": {"text": "x"}}, b"content_block_delta").is_meaningful
    assert event({}, b"message_stop").is_last


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (anthropic.problem(), b"error"),
        (anthropic.problem(), b""),
        ({"error": {"message": "x"}}, b""),
        ({"message": "x"}, b"error"),
        ({"object": "error", "message": "x"}, b""),
        (b"overloaded", b"error"),
        ([{"error": {"message": "x"}}], b""),
        ({"type": "error", "error": {"message": "\ud800"}}, b"error"),
    ],
)
def test_an_error_object_or_event_is_an_error(document, name):
    assert event(document, name) == EventFacts(is_error=True)


@pytest.mark.parametrize(
    "data", [b"{", b"x", b"[]", b"1", b"null", b'"x"', b"\xff", b"", b"[DONE]", b"[" * 100_000]
)
def test_what_is_no_object_is_malformed(data):
    assert event(data) == EventFacts(is_malformed=True)


def test_thinking_is_a_part_of_the_output():
    start = read(anthropic.start(output_tokens_details={"thinking_tokens": 1})).usage
    end = read(anthropic.finish(output_tokens=92, output_tokens_details={"thinking_tokens": 53}))

    assert start.reasoning_tokens == 0  # a placeholder, as the output beside it
    assert end.usage == Usage(output_tokens=92, reasoning_tokens=53)


def test_usage_of_the_end_is_added_to_that_of_the_beginning():
    start = Usage(input_tokens=15, cached_input_tokens=5, cache_write_tokens=7)

    assert start.updated(Usage(output_tokens=2)) == Usage(
        input_tokens=15, output_tokens=2, cached_input_tokens=5, cache_write_tokens=7
    )
    assert start.updated(Usage(input_tokens=61)).input_tokens == 61


# -- errors and lists ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
@pytest.mark.parametrize("foreign", [None, "", "server_error", "insufficient_quota"])
def test_an_error_of_elsewhere_gets_the_type_of_its_status(status, expected, foreign):
    parts = ErrorParts(status=status, message="m", type=foreign, code=None)

    assert json.loads(DIALECT.error_body(parts)) == {
        "type": "error",
        "error": {"type": expected, "message": "m"},
    }


@pytest.mark.parametrize("own", sorted(KNOWN_TYPES))
def test_types_of_this_api_are_kept(own):
    parts = ErrorParts(status=418, message="m", type=own, code="c", request_id="r")

    assert json.loads(DIALECT.error_body(parts)) == {
        "type": "error",
        "error": {"type": own, "message": "m", "details": {"error_code": "c"}},
        "request_id": "r",
    }


@given(text=st.text(st.characters(codec=None), max_size=20))
def test_any_text_can_be_told_and_is_read_back_as_an_error(text):
    """Lone surrogates come in by upstreams' messages."""
    parts = ErrorParts(status=502, message="m" + text, type=text or None, code=text)

    [raw] = Splitter().feed(DIALECT.error_event(parts))
    data, name = read_event(raw)

    assert name == b"error"
    assert json.loads(data)["error"]["message"] == "m" + text
    assert DIALECT.read_event(data, name).is_error
    assert DIALECT.read_answer(DIALECT.error_body(parts)).is_error


def test_the_list_of_models():
    document = json.loads(DIALECT.model_list(["a", "b"]))

    assert (document["first_id"], document["last_id"], document["has_more"]) == ("a", "b", False)
    assert [row["id"] for row in document["data"]] == ["a", "b"]
    assert document["data"][0] == {
        "type": "model",
        "id": "a",
        "display_name": "a",
        "created_at": "1970-01-01T00:00:00Z",
    }


def test_an_empty_list_of_models():
    assert json.loads(DIALECT.model_list([])) == {
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
    }


# -- anything at all ----------------------------------------------------------------

NAMES = ["model", "messages", "stream", "type", "message", "content", "content_block", "delta"]
NAMES += ["text", "thinking", "stop_reason", "usage", "input_tokens", "output_tokens", "error"]
KINDS = ["message_start", "content_block_start", "content_block_delta", "message_delta"]
KINDS += ["message_stop", "ping", "error", "text", "tool_use", "end_turn", "max_tokens"]
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "m", *KINDS])
    | st.text(st.characters(codec=None), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
events = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional=dict.fromkeys(("message", "delta", "content_block", "usage", "error"), documents),
)
answers = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("type", "content", "stop_reason", "usage", "model"), documents)
)
anything = st.one_of(
    st.binary(max_size=60),
    documents.map(dumped),
    events.map(dumped),
    answers.map(dumped),
)


@given(body=anything)
def test_reading_a_request_raises_nothing_but_its_own_error(body):
    try:
        envelope = DIALECT.read_request(Incoming(body=body))
    except BodyError:
        return
    assert envelope.model.strip()
    envelope.model.encode()  # fit for logs and the database


@given(data=anything, name=st.sampled_from([b"", b"error", b"ping", b"\xff", b"message_delta"]))
def test_reading_an_answer_or_event_never_raises(data, name):
    facts = DIALECT.read_answer(data)
    told = DIALECT.read_event(data, name)

    assert not (facts.is_error and facts.is_empty)
    assert not (told.is_error and told.is_malformed)
    for usage in (facts.usage, told.usage):
        assert usage is None or 0 <= usage.input_tokens <= MAX_TOKENS


# -- recorded traffic ---------------------------------------------------------------

RECORDINGS = WIRE_DIR / "recordings"
STREAMS = sorted(RECORDINGS.glob("*__messages__stream__*.json"))
ANSWERS = sorted(RECORDINGS.glob("*__messages__json__*.json"))
# Refused before anything was said: its end alone is the answer.
SAYS_NOTHING = {"anthropic__messages__stream__v-anthropic-refusal"}


@pytest.mark.wire
def test_there_are_recordings(wire_dir):
    assert len(STREAMS) > 15
    assert len(ANSWERS) > 10


@pytest.mark.wire
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_recorded_streams_are_meaningful_and_end_properly(path):
    splitter = Splitter()
    raws = splitter.feed(json.loads(path.read_text())["response"]["body"].encode())

    facts = [read(raw) for raw in [*raws, splitter.flush()] if raw.strip()]

    assert not any(fact.is_malformed or fact.is_error for fact in facts)
    assert any(fact.is_meaningful for fact in facts) == (path.stem not in SAYS_NOTHING)
    assert sum(fact.is_finish for fact in facts) == 1
    assert [fact.is_last for fact in facts].index(True) == len(facts) - 1
    assert facts[0].model
    assert facts[0].usage.output_tokens == 0
    if path.stem in SAYS_NOTHING:
        assert not all(fact.is_normal_finish for fact in facts)


@pytest.mark.wire
@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_recorded_answers_are_answers(path):
    facts = DIALECT.read_answer(json.loads(path.read_text())["response"]["body"].encode())

    assert (facts.is_readable, facts.is_error, facts.is_empty) == (True, False, False)
    assert facts.model
    assert facts.usage.output_tokens > 0
