"""The OpenAI chat dialect: what requests, answers and stream events say."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_app.core.usage import MAX_TOKENS, Usage
from relay_app.core.sse import Splitter, read_event
from relay_app.core.types import AnswerFacts, EventFacts
from relay_app.dialects.base import BodyError, Envelope, ErrorParts, Incoming
from relay_app.dialects.openai_chat import OpenAIChat
from tests.conftest import WIRE_DIR

DIALECT = OpenAIChat()


def dumped(document):
    return document if isinstance(document, bytes) else json.dumps(document).encode()


def request(**fields):
    return dumped({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})


def refusal(body):
    with pytest.raises(BodyError) as caught:
        DIALECT.read_request(Incoming(body=body))
    return caught.value


def event(document, name=b""):
    return DIALECT.read_event(dumped(document), name)


def chunk(finish_reason=None, *, delta=None, **fields):
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish_reason}
    return {"id": "1", "model": "m-1", "choices": [choice], **fields}


def answer(message, *, finish_reason="stop", **fields):
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return DIALECT.read_answer(dumped({"model": "m-1", "choices": [choice], **fields}))


# -- requests ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (request(), Envelope(model="m", is_stream=False)),
        (request(stream=True), Envelope(model="m", is_stream=True)),
        (request(stream=False), Envelope(model="m", is_stream=False)),
        (request(stream=None), Envelope(model="m", is_stream=False)),
        (request(messages=[]), Envelope(model="m", is_stream=False)),
        (request(of_a_newer_api={"x": [1]}), Envelope(model="m", is_stream=False)),
        (request(model="é😀/x"), Envelope(model="é😀/x", is_stream=False)),
        (b" \n" + request() + b"\n", Envelope(model="m", is_stream=False)),
        (b"\xef\xbb\xbf" + request(), Envelope(model="m", is_stream=False)),
        (b'{"messages":[1,"x",null],"model":"m"}', Envelope(model="m", is_stream=False)),
    ],
)
def test_a_request_says_its_model_and_whether_it_streams(body, expected):
    envelope = DIALECT.read_request(Incoming(body=body))

    assert replace(envelope, body_asking_usage=None) == expected


@pytest.mark.parametrize(
    "text", ['"\\ud83d"', '"\\ude00 x"', '"\\ud83d\\ude00 \\ud83d"', '[{"text": "\\udfff"}]']
)
def test_lone_surrogates_in_a_prompt_are_no_reason_to_refuse_it(text):
    """Clients cut emoji in two; the standard parser reads that, the fast one does not."""
    body = f'{{"model": "m", "stream": true, "messages": [{{"content": {text}}}]}}'.encode()

    envelope = DIALECT.read_request(Incoming(body=body))

    assert (envelope.model, envelope.is_stream) == ("m", True)
    asked = json.loads(envelope.body_asking_usage)
    assert asked == {**json.loads(body), "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"include_usage": True}),
        ({"stream_options": None}, {"include_usage": True}),
        ({"stream_options": {}}, {"include_usage": True}),
        ({"stream_options": {"include_usage": False}}, {"include_usage": True}),
        ({"stream_options": {"x": [1]}}, {"x": [1], "include_usage": True}),
    ],
)
def test_a_stream_is_asked_for_its_usage(options, expected):
    body = request(stream=True, **options)

    asked = DIALECT.read_request(Incoming(body=body)).body_asking_usage

    assert json.loads(asked) == {**json.loads(body), "stream_options": expected}


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": False},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": "nonsense"},
    ],
)
def test_a_body_that_needs_no_asking_stays(fields):
    assert DIALECT.read_request(Incoming(body=request(**fields))).body_asking_usage is None


def test_a_lone_surrogate_in_the_model_is_replaced():
    """A name goes on into logs and errors, which have no bytes for it."""
    assert (
        DIALECT.read_request(Incoming(body=b'{"model": "m\\ud800", "messages": []}')).model == "m?"
    )


def test_wrong_types_beside_a_lone_surrogate_are_named_all_the_same():
    body = b'{"model": 1, "messages": ["\\ud800"]}'

    assert refusal(body).param == "model"


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b'{"messages": []}', "model", "model is missing"),
        (b'{"model": "m"}', "messages", "messages is missing"),
        (request(model=1), "model", "model has the wrong type: expected str, got int"),
        (request(model=None), "model", "model has the wrong type"),
        (request(model=""), "model", "model: the name is empty"),
        (request(model="  "), "model", "model: the name is empty"),
        (request(messages="hi"), "messages", "messages has the wrong type: expected array"),
        (request(messages={}), "messages", "messages has the wrong type"),
        (request(messages=None), "messages", "messages has the wrong type"),
        (request(stream="yes"), "stream", "stream has the wrong type"),
        (request(stream=1), "stream", "stream has the wrong type"),
        (b"[]", None, "the request body has the wrong type: expected object, got array"),
        (b'"x"', None, "the request body has the wrong type"),
        (b"null", None, "the request body has the wrong type"),
        (b"", None, "the request body is empty"),
        (b" \n", None, "the request body is empty"),
        (b"{", None, "the request body is not valid JSON"),
        (request() + b"x", None, "the request body is not valid JSON"),
        (b"{'model': 'm'}", None, "the request body is not valid JSON"),
        (b"\xff\xfe", None, "the request body is not valid JSON"),
        (b'{"model": "\xff", "messages": []}', None, "the request body is not valid JSON"),
        (request().decode().encode("utf-16"), None, "the request body is not valid JSON"),
        (request(temperature=float("nan")), None, "the request body is not valid JSON"),
        (request(temperature=float("inf")), None, "the request body is not valid JSON"),
        (
            b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            None,
            "the request body is nested too deeply",
        ),
        (
            b'{"model": "m", "messages": [], "x": ' + b'{"a":' * 9_000 + b"1" + b"}" * 9_001,
            None,
            "the request body is nested too deeply",
        ),
    ],
)
def test_a_bad_request_is_told_what_and_where(body, param, says):
    error = refusal(body)

    assert str(error).startswith(says)
    assert error.param == param


# -- whole answers ---------------------------------------------------------------


def test_an_answer_says_its_model_and_usage():
    facts = answer(
        {"role": "assistant", "content": "hi"}, usage={"prompt_tokens": 3, "completion_tokens": 2}
    )

    assert facts == AnswerFacts(model="m-1", usage=Usage(input_tokens=3, output_tokens=2))


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"content": " "},
        {"content": None, "tool_calls": [{"id": "1"}]},
        {"content": None, "function_call": {"name": "f"}},
        {"content": "", "refusal": "no"},
        {"content": "", "reasoning_content": "hm"},
        {"content": "", "reasoning": "hm"},
        {"content": [{"type": "text", "text": "x"}]},
        {"content": {"title": "x"}},
        {"content": None, "audio": {"id": "1"}},
        {"content": "\ud800"},
    ],
)
def test_whatever_carries_something_is_no_empty_answer(message):
    assert not answer(message).is_empty


@pytest.mark.parametrize(
    "message", [{}, None, {"content": ""}, {"content": None, "tool_calls": []}, {"content": []}]
)
def test_a_normal_end_that_carries_nothing_is_empty(message):
    assert answer(message).is_empty
    assert answer(message, usage={"prompt_tokens": 3, "completion_tokens": 0}).is_empty


def test_nothing_said_is_an_answer_if_cut_short_or_if_tokens_were_spent():
    assert not answer({"content": ""}, finish_reason="length").is_empty
    assert not answer({"content": ""}, finish_reason="content_filter").is_empty
    assert not answer({"content": ""}, usage={"completion_tokens": 1}).is_empty


@pytest.mark.parametrize(
    "document",
    [
        {"error": {"message": "x"}},
        {"error": "x"},
        {"type": "error", "error": {"type": "overloaded_error"}},
        {"object": "error", "message": "x", "code": 40303},
        {"error_code": 17, "error_msg": "x"},
        {"error": {"message": "\ud800"}, "choices": []},
    ],
)
def test_only_an_error_object_is_an_error(document):
    assert DIALECT.read_answer(dumped(document)).is_error


def test_an_error_beside_an_answer_is_an_answer():
    assert not answer({"content": "x"}, error={"message": "a warning"}).is_error
    assert not answer({"content": "x"}, error=None).is_error


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"1", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_not_readable(body):
    facts = DIALECT.read_answer(body)

    assert not facts.is_readable
    assert not facts.is_error


@pytest.mark.parametrize("choices", [5, True, "x", {"a": 1}, [5], [None], [{"message": 5}]])
def test_choices_of_a_wrong_type_carry_nothing(choices):
    facts = DIALECT.read_answer(dumped({"choices": choices}))

    assert facts.is_readable
    assert facts.is_empty


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, Usage(input_tokens=3, output_tokens=2)),
        ({"prompt_tokens": 3.0, "completion_tokens": 2}, Usage(input_tokens=3, output_tokens=2)),
        ({"prompt_tokens": 3.5, "completion_tokens": 2}, Usage(input_tokens=3, output_tokens=2)),
        ({"prompt_tokens": -1, "completion_tokens": 2}, Usage(output_tokens=2)),
        ({"prompt_tokens": "3", "completion_tokens": 2}, Usage(output_tokens=2)),
        ({"prompt_tokens": 10**30, "completion_tokens": 2}, None),
        ({"prompt_tokens": None}, Usage()),
        ({}, Usage()),
        (None, None),
        ("x", None),
    ],
)
def test_usage_is_read_as_far_as_it_can_be(usage, expected):
    """Counts are never negative, nor larger than a column takes."""
    found = answer({"content": "x"}, usage=usage).usage

    if expected is None and isinstance(usage, dict):
        assert 0 <= found.input_tokens <= MAX_TOKENS
        assert found.output_tokens == 2
    else:
        assert found == expected


def test_usage_is_not_lost_beside_a_lone_surrogate():
    """The strict parser refuses such an answer; it is billed all the same."""
    facts = answer({"content": "\ud83d"}, usage={"prompt_tokens": 3, "completion_tokens": 2})

    assert facts.usage == Usage(input_tokens=3, output_tokens=2)
    assert facts.model == "m-1"


# -- stream events ----------------------------------------------------------------


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"content": " "},
        {"content": "\n"},
        {"content": [{"type": "text", "text": "x"}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]},
        {"function_call": {"name": "f"}},
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"refusal": "no"},
        {"audio": {"id": "1"}},
        {"content": "\ud83d"},
    ],
)
def test_content_of_any_kind_is_meaningful(delta):
    facts = event(chunk(delta=delta))

    assert facts == EventFacts(is_meaningful=True, model="m-1", choices=(0,))


@pytest.mark.parametrize(
    "delta",
    [
        {},
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
    ],
)
def test_a_role_or_nothing_is_not(delta):
    assert event(chunk(delta=delta)) == EventFacts(model="m-1", choices=(0,))


def test_chunks_of_the_older_completions_are_meaningful():
    assert event({"choices": [{"text": "x"}]}).is_meaningful


@pytest.mark.parametrize(
    ("reason", "is_normal"),
    [("stop", True), ("tool_calls", True), ("length", False), ("content_filter", False)],
)
def test_a_finish_reason_is_the_proper_end(reason, is_normal):
    facts = event(chunk(reason))

    assert facts.is_finish
    assert facts.is_normal_finish is is_normal
    assert not facts.is_last
    assert not facts.is_meaningful


@pytest.mark.parametrize("choices", [[], None])
def test_a_chunk_of_usage_alone_is_neither_content_nor_end(choices):
    facts = event({"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 2}})

    usage = Usage(input_tokens=3, output_tokens=2)
    assert facts == EventFacts(usage=usage, is_usage_only=True)


@pytest.mark.parametrize("data", [b"[DONE]", b" [DONE] ", b"[DONE]\n"])
def test_done_is_the_last(data):
    assert event(data) == EventFacts(is_last=True)


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"error": {"message": "x"}}, b""),
        ({"error": "x"}, b""),
        ({"error": {"message": "x"}}, b"error"),
        ({"message": "x"}, b"error"),
        (b"overloaded", b"error"),
        (chunk("error", error={"code": 502}), b""),
        ({"error": {"message": "\ud800"}}, b""),
        ([{"error": {"message": "x"}}], b""),
    ],
)
def test_an_error_object_or_event_is_an_error(document, name):
    facts = event(document, name)

    assert facts.is_error
    assert not facts.is_malformed


@pytest.mark.parametrize(
    "data", [b"{", b"x", b"[]", b"1", b"null", b'"x"', b"\xff", b"", b"[" * 100_000]
)
def test_what_is_no_object_is_malformed(data):
    assert event(data) == EventFacts(is_malformed=True)


@pytest.mark.parametrize("document", [{}, {"object": "ping"}, {"choices": []}, {"choices": 5}])
def test_an_object_that_says_nothing_is_passed_on(document):
    assert event(document) == EventFacts()


def test_a_comment_says_nothing():
    assert DIALECT.read_event(None, b"") == EventFacts()


# -- errors -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_an_error_without_a_type_gets_that_of_its_status(status, expected):
    parts = ErrorParts(status=status, message="m", type=None, code="c", param="p")

    assert json.loads(DIALECT.error_body(parts)) == {
        "error": {"message": "m", "type": expected, "param": "p", "code": "c"}
    }


def test_an_upstreams_own_type_is_kept():
    parts = ErrorParts(status=500, message="m", type="overloaded_error", code=None)

    assert json.loads(DIALECT.error_body(parts))["error"]["type"] == "overloaded_error"


@given(text=st.text(st.characters(codec=None), max_size=20))
def test_any_text_can_be_told_and_is_read_back_as_an_error(text):
    """Lone surrogates come in by upstreams' messages."""
    parts = ErrorParts(status=502, message="m" + text, type=text or None, code=text)

    [raw] = Splitter().feed(DIALECT.error_event(parts))
    data, name = read_event(raw)

    assert json.loads(data)["error"]["message"] == "m" + text
    assert DIALECT.read_event(data, name).is_error
    assert DIALECT.read_answer(DIALECT.error_body(parts)).is_error


# -- anything at all ----------------------------------------------------------------

NAMES = ["model", "messages", "stream", "choices", "delta", "message", "finish_reason", "usage"]
NAMES += ["prompt_tokens", "completion_tokens", "error", "text", "content", "tool_calls", "type"]
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "m", "stop", "error"])
    | st.text(st.characters(codec=None), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
chunks = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {}, optional=dict.fromkeys(("delta", "message", "finish_reason", "text"), documents)
            ),
            max_size=2,
        ),
        "usage": documents,
        "error": documents,
        "model": documents,
    },
)
anything = st.one_of(st.binary(max_size=60), documents.map(dumped), chunks.map(dumped))


@given(body=anything)
def test_reading_a_request_raises_nothing_but_its_own_error(body):
    try:
        envelope = DIALECT.read_request(Incoming(body=body))
    except BodyError:
        return
    assert envelope.model.strip()
    envelope.model.encode()  # fit for logs and the database


@given(data=anything, name=st.sampled_from([b"", b"error", b"ping"]))
def test_reading_an_answer_or_event_never_raises(data, name):
    facts = DIALECT.read_answer(data)
    DIALECT.read_event(data, name)

    assert not (facts.is_error and facts.is_empty)
    assert facts.usage is None or facts.usage.input_tokens >= 0


# -- recorded traffic ---------------------------------------------------------------

RECORDINGS = WIRE_DIR / "recordings"
STREAMS = sorted(RECORDINGS.glob("*__chat-completions__stream__*.json"))
ANSWERS = sorted(RECORDINGS.glob("*__chat-completions__json__*.json"))
# Stored as the first 2 KB of their base64.
CUT_ANSWERS = {
    "bedrock__chat-completions__json__01",
    "openai__chat-completions__json__10",
    "perplexity__chat-completions__json__01",
}
# This provider never sends a finish reason; [DONE] is its end.
ENDS_BY_DONE_ALONE = {"snowflake__chat-completions__stream__01"}
# All its tokens went into reasoning that is not shown: cut short by length.
SAYS_NOTHING = {"openai__chat-completions__stream__04"}


def recorded_facts(path):
    """Return the facts of a recorded stream's events, and whether the recording was cut.

    Some are stored as the first 2 KB of their base64; what is left ends in the middle.
    """
    recording = json.loads(path.read_text())
    text = recording["response"]["body"]
    is_cut = "data:" not in text
    wire = base64.b64decode(text + "=" * (-len(text) % 4)) if is_cut else text.encode()
    splitter = Splitter()
    events = splitter.feed(wire)
    if not is_cut:
        events.append(splitter.flush())
    return [DIALECT.read_event(*read_event(raw)) for raw in events], recording, is_cut


@pytest.mark.wire
def test_there_are_recorded_streams(wire_dir):
    assert len(list((wire_dir / "recordings").glob(STREAMS[0].name))) == 1
    assert len(STREAMS) > 30


@pytest.mark.wire
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_recorded_streams_end_properly_unless_they_broke(path):
    """A finish and something said, unless the recording has an error or is cut; and
    nothing that providers really send is called malformed."""
    facts, recording, is_cut = recorded_facts(path)

    has_error = any(fact.is_error for fact in facts)
    assert has_error == ("sse:errorchunk" in recording["features"])
    assert not any(fact.is_malformed for fact in facts)
    if is_cut:
        assert not any(fact.is_finish or fact.is_last for fact in facts)
    elif not has_error:
        assert any(f.is_finish for f in facts) == (path.stem not in ENDS_BY_DONE_ALONE)
        assert any(f.is_meaningful for f in facts) == (path.stem not in SAYS_NOTHING)
        assert any(f.is_finish or f.is_last for f in facts)


@pytest.mark.wire
@pytest.mark.parametrize(
    "path",
    [path for path in ANSWERS if path.stem not in CUT_ANSWERS],
    ids=lambda path: path.stem,
)
def test_recorded_answers_are_answers(path):
    body = json.loads(path.read_text())["response"]["body"]

    facts = DIALECT.read_answer(body.encode())

    assert (facts.is_readable, facts.is_error, facts.is_empty) == (True, False, False)
    assert facts.model
