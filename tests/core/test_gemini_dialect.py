"""The Gemini dialect: what requests, answers and stream events say."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_app.core.usage import MAX_TOKENS, Usage
from relay_app.core.classify import classify_response
from relay_app.core.sse import Splitter, read_event
from relay_app.core.types import AnswerFacts, Call, Endpoint, EventFacts
from relay_app.dialects.base import BodyError, Envelope, ErrorParts, Incoming
from relay_app.dialects.gemini import (
    KNOWN_STATUSES,
    GeminiContent,
    GeminiDialect,
    GeminiEmbeddings,
)
from relay_app.dialects.gemini_framing import ArrayFraming, EventFraming
from tests.conftest import WIRE_DIR
from tests.support import gemini as g

CONTENT, EMBEDDINGS, COUNT = GeminiContent(), GeminiEmbeddings(), GeminiDialect()


def dumped(document):
    return document if isinstance(document, bytes) else json.dumps(document).encode()


def incoming(body=b"{}", *, model="m", method="generateContent", query=""):
    return Incoming(body=dumped(body), query=query, path={"model": model, "method": method})


def event(document, name=b""):
    return CONTENT.read_event(dumped(document), name)


def answer(document):
    return CONTENT.read_answer(dumped(document))


# -- requests --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "query", "framing"),
    [
        ("generateContent", "", None),
        ("generateContent", "alt=json", None),
        ("generateContent", "xalt=sse&alt=ssex&alt", None),
        ("generateContent", "alt=sse", EventFraming),
        ("streamGenerateContent", "", ArrayFraming),
        ("streamGenerateContent", "alt=json&x=1", ArrayFraming),
        ("streamGenerateContent", "alt=sse", EventFraming),
        ("streamGenerateContent", "x=1&alt=sse", EventFraming),
        ("streamGenerateContent", "%24alt=sse%3Benum-encoding%3Dint", EventFraming),
        ("streamGenerateContent", "$alt=json%3Benum-encoding%3Dint", ArrayFraming),
    ],
)
def test_method_and_query_say_whether_it_streams_and_how(method, query, framing):
    envelope = CONTENT.read_request(incoming(method=method, query=query))

    assert envelope == Envelope(model="m", is_stream=framing is not None, framing=framing)


@pytest.mark.parametrize(
    ("document", "limit"),
    [
        ({"generationConfig": {"maxOutputTokens": 9}}, 9),
        ({"generation_config": {"max_output_tokens": 9}}, 9),
        ({"generationConfig": {"maxOutputTokens": "9"}}, 9),
        ({"generationConfig": {"maxOutputTokens": "nan"}}, 0),
        ({"generationConfig": {"maxOutputTokens": -1}}, 0),
        ({"generationConfig": {"maxOutputTokens": None}}, 0),
        ({"generationConfig": {"temperature": 1}}, 0),
        ({"generationConfig": []}, 0),
        ({"generationConfig": None}, 0),
        ({"contents": "\ud83d", "generationConfig": {"maxOutputTokens": 9}}, 9),
        ({}, 0),
    ],
)
def test_the_most_output_that_a_request_allows(document, limit):
    assert CONTENT.read_request(incoming(document)).max_output_tokens == limit


@pytest.mark.parametrize(
    ("config", "count"),
    [({"candidateCount": 3}, 3), ({"candidate_count": "2"}, 2), ({"candidateCount": []}, 0)],
)
def test_how_many_answers_a_request_asks_for(config, count):
    envelope = CONTENT.read_request(incoming({"generationConfig": config}))

    assert envelope.answer_count == count


@pytest.mark.parametrize("dialect", [CONTENT, EMBEDDINGS, COUNT])
@pytest.mark.parametrize("model", ["m", "a/b", "tunedModels/x", "llama3:8b"])
def test_the_path_names_the_model(dialect, model):
    assert dialect.read_request(incoming(model=model)).model == model
    if "/" not in model:
        assert dialect.read_request(incoming(model=f"models/{model}")).model == model


@pytest.mark.parametrize("dialect", [CONTENT, EMBEDDINGS, COUNT])
@pytest.mark.parametrize("model", ["", " ", "models/", "..", "a/../b", "./a", "a//b", "a/"])
def test_a_name_that_would_lead_elsewhere_is_refused(dialect, model):
    with pytest.raises(BodyError) as caught:
        dialect.read_request(incoming(model=model))
    assert caught.value.param == "model"


@pytest.mark.parametrize("dialect", [CONTENT, EMBEDDINGS, COUNT])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"null", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(dialect, body):
    with pytest.raises(BodyError, match="the request body"):
        dialect.read_request(incoming(body))


# -- another model ------------------------------------------------------------------


def call(body):
    endpoint = Endpoint(name="e", dialect="gemini", path="", upstream_path="")
    return Call(request_id="r", endpoint=endpoint, model="m", is_stream=False, body=body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"contents": [ 1.0 ],"x":"model"}', b'{"contents": [ 1.0 ],"x":"model"}'),
        (b'{"model":"models/m","x":[1.0,  2]}', b'{"model":"models/new","x":[1.0,  2]}'),
        (
            b'{"requests": [{"model": "models/m", "x": {"a" : 1e2}}, {"model": "x"}, 1, {}]}',
            b'{"requests":[{"model":"models/new","x":{"a" : 1e2}},{"model":"models/new"},1,{}]}',
        ),
        (
            b'{"generateContentRequest": {"model":"models/m","contents":[1.0]}}',
            b'{"generateContentRequest":{"model":"models/new","contents":[1.0]}}',
        ),
        (b'{"requests": "model", "model": 1}', b'{"requests":"model","model":"models/new"}'),
        (b'{"requests": {"x":"model"}}', b'{"requests":{"x":"model"}}'),
        (b'{"content":{"model":"mine"}}', b'{"content":{"model":"mine"}}'),
        (
            b'{"requests":[{"model":"m","x":"\\ud83d"}]}',
            b'{"requests":[{"model":"models/new","x":"\\ud83d"}]}',
        ),
    ],
)
def test_another_model_is_named_wherever_the_body_names_it(body, expected):
    changed = COUNT.with_model(call(body), "new")

    assert changed.model == "new"
    assert json.loads(changed.body) == json.loads(expected)
    if b"\\u" not in body:  # those are written anew
        assert changed.body == expected


@pytest.mark.parametrize("name", ["models/new", "tunedModels/new"])
def test_a_model_named_with_its_collection_keeps_it(name):
    changed = COUNT.with_model(call(b'{"model":"models/m"}'), name)

    assert json.loads(changed.body) == {"model": name}


# -- whole answers ---------------------------------------------------------------


def test_an_answer_says_its_model_and_usage():
    usage = {
        "promptTokenCount": 3,
        "toolUsePromptTokenCount": 4,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 10,
        "cachedContentTokenCount": 1,
    }

    assert answer(g.content(usageMetadata=usage)) == AnswerFacts(
        model="m-upstream",
        usage=Usage(input_tokens=7, output_tokens=12, cached_input_tokens=1, reasoning_tokens=10),
    )


PARTS_THAT_SAY_SOMETHING = [
    {"text": "x"},
    {"text": " "},
    {"text": "\ud83d"},
    {"text": "hm", "thought": True},
    {"text": "", "thoughtSignature": "s"},
    {"functionCall": {"name": "f", "args": {}}},
    {"functionCall": {"name": "f"}, "thoughtSignature": "s"},
    {"executableCode": {"language": "PYTHON", "code": "1"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK"}},
    {"inlineData": {"mimeType": "image/png", "data": "x"}},
    {"fileData": {"fileUri": "x"}},
    {"ofANewerApi": 1},
]
PARTS_THAT_DO_NOT = [{"text": ""}, {"text": "", "thought": True}, {"thought": True}, {}, None, "x"]


@pytest.mark.parametrize("part", PARTS_THAT_SAY_SOMETHING)
def test_whatever_carries_something_is_no_empty_answer(part):
    document = g.said(part, reason="STOP")

    images = 1 if "inlineData" in part else 0
    assert answer(document) == AnswerFacts(model="m-upstream", images=images)
    assert event(document).is_meaningful


@pytest.mark.parametrize("part", PARTS_THAT_DO_NOT)
def test_a_normal_end_that_carries_nothing_is_empty(part):
    for reason in ("STOP", "OTHER", "MALFORMED_FUNCTION_CALL", 1, None):
        document = g.said(part, reason=reason)

        assert answer(document).is_empty
        assert not event(document).is_meaningful
        assert event(document).is_normal_finish
    assert answer({"candidates": [{"content": {}, "finishReason": "STOP"}]}).is_empty
    assert answer({"usageMetadata": {"promptTokenCount": 3}}).is_empty
    assert answer({}).is_empty


@pytest.mark.parametrize(
    "reason",
    ["MAX_TOKENS", "SAFETY", "RECITATION", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", 2, 3],
)
def test_nothing_said_is_an_answer_if_cut_short(reason):
    document = {"candidates": [{"finishReason": reason}]}

    assert not answer(document).is_empty
    assert event(document) == EventFacts(is_finish=True, is_normal_finish=False)


@pytest.mark.parametrize("reason", ["SAFETY", "OTHER", "PROHIBITED_CONTENT", 1])
def test_a_blocked_prompt_is_an_answer(reason):
    document = {"promptFeedback": {"blockReason": reason}, "usageMetadata": {"promptTokenCount": 3}}

    assert not answer(document).is_empty
    assert event(document) == EventFacts(
        is_finish=True, is_normal_finish=False, usage=Usage(input_tokens=3)
    )


def test_nothing_said_is_an_answer_if_tokens_were_spent():
    assert not answer(g.content("")).is_empty


@pytest.mark.parametrize("dialect", [CONTENT, EMBEDDINGS, COUNT])
@pytest.mark.parametrize("document", [g.problem(), {"error": {"message": "\ud83d"}}, [g.problem()]])
def test_only_an_error_object_is_an_error(dialect, document):
    assert dialect.read_answer(dumped(document)).is_error


def test_an_error_beside_an_answer_is_an_answer():
    assert not answer(g.content(error={"message": "a warning"})).is_error
    assert not answer(g.content(error=None)).is_error


@pytest.mark.parametrize("dialect", [CONTENT, EMBEDDINGS, COUNT])
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[1]", b"1", b"{", b"\xff", b"[" * 100_000, b"[]", b"null"]
)
def test_what_is_neither_object_nor_array_of_them_is_not_readable(dialect, body):
    facts = dialect.read_answer(body)

    assert not facts.is_readable
    assert not facts.is_error


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3), (3.5, 3), (-1, 0), ("3", 0), (None, 0), ([], 0), (10**30, MAX_TOKENS)],
)
def test_usage_is_read_as_far_as_it_can_be(value, expected):
    usage = answer({"usageMetadata": {"promptTokenCount": value, "toolUsePromptTokenCount": 0}})

    assert usage.usage == Usage(input_tokens=expected)


# -- a stream that came whole, as an array ------------------------------------------


def test_an_array_is_read_as_the_stream_that_it_is():
    chunks = [g.said({"text": "x"}), {"usageMetadata": g.USAGE}, g.said(reason="STOP")]

    assert answer(chunks) == AnswerFacts(
        model="m-upstream", usage=Usage(input_tokens=3, output_tokens=2)
    )


def test_an_array_with_an_error_is_a_failure_whatever_was_said_before():
    assert answer([g.said({"text": "x"}), g.problem(503)]).is_error


def test_an_array_without_an_end_is_broken():
    assert not answer([g.said({"text": "x"})]).is_readable


def test_an_empty_array_of_chunks_is_an_empty_answer():
    assert answer([g.said({"text": ""}), g.said(reason="STOP")]).is_empty


# -- embeddings and counts ----------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "is_empty"),
    [
        ({"embedding": {"values": [0, 0.5]}}, False),
        ({"embeddings": [{"values": [0.1]}]}, False),
        ({"embedding": {"values": []}}, True),
        ({"embeddings": [{}]}, True),
        ({"embeddings": []}, True),
        ({}, True),
    ],
)
def test_embeddings_are_empty_without_values(document, is_empty):
    assert EMBEDDINGS.read_answer(dumped(document)) == AnswerFacts(is_empty=is_empty)


@pytest.mark.parametrize("document", [{"totalTokens": 5}, {}, {"totalTokens": 0}])
def test_a_count_is_never_empty(document):
    assert COUNT.read_answer(dumped(document)) == AnswerFacts()


# -- stream events ----------------------------------------------------------------


def test_a_chunk_says_model_usage_and_end():
    document = g.said({"text": "x"}, reason="STOP", usageMetadata=g.USAGE)

    assert event(document) == EventFacts(
        is_meaningful=True,
        is_finish=True,
        model="m-upstream",
        usage=Usage(input_tokens=3, output_tokens=2),
    )


@pytest.mark.parametrize("reason", [None, "", 0, "FINISH_REASON_UNSPECIFIED", [], {}])
def test_a_reason_that_is_none_is_no_end(reason):
    document = {"candidates": [{"finishReason": reason}]}

    assert event(document) == EventFacts()


def test_of_several_candidates_each_counts():
    said = {"content": {"parts": [{"text": "x"}]}}
    cut = {"finishReason": "SAFETY", "index": 1}

    facts = event({"candidates": [{"finishReason": "STOP"}, said, cut, None, 5]})

    assert facts == EventFacts(is_meaningful=True, is_finish=True, is_normal_finish=False)


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (g.problem(), b""),
        ({"message": "x"}, b"error"),
        (b"overloaded", b"error"),
        ([g.problem()], b""),
        ({"error": {"message": "\ud800"}}, b""),
    ],
)
def test_an_error_object_or_event_is_an_error(document, name):
    assert event(document, name).is_error


@pytest.mark.parametrize(
    "data", [b"{", b"x", b"[]", b"1", b"null", b'"x"', b"\xff", b"", b"[DONE]", b"[" * 100_000]
)
def test_what_is_no_object_is_malformed(data):
    """`[DONE]` too: the SDKs of this dialect read it as JSON."""
    assert event(data) == EventFacts(is_malformed=True)


def test_a_comment_says_nothing():
    assert CONTENT.read_event(None, b"") == EventFacts()


# -- framing ------------------------------------------------------------------------


def framed(framing, pieces):
    return b"".join(map(framing.feed, pieces)) + framing.end()


def test_an_array_is_written_as_the_api_does():
    pieces = [b'data: {"a": 1}\r\n\r\n', b": ping\n\n", b'event: x\ndata: {"b":\ndata: 2}\n\n']

    assert framed(ArrayFraming(), pieces) == b'[{"a": 1}\n,\r\n{"b":\n2}\n]'
    assert framed(ArrayFraming(), []) == b"[]"


def test_events_are_left_as_they_are():
    pieces = [b'data: {"a": 1}\r\n\r\n', b": x\n\n"]

    assert framed(EventFraming(), pieces) == b"".join(pieces)


@given(
    documents=st.lists(
        st.dictionaries(st.text(max_size=3), st.text() | st.integers() | st.none(), max_size=3)
    ),
    is_indented=st.booleans(),
    end=st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_an_array_holds_the_events_however_they_were_cut(documents, is_indented, end, cuts):
    datas = [json.dumps(d, indent=2 if is_indented else None).encode() for d in documents]
    lines = [b"data: " + data.replace(b"\n", b"\ndata: ") for data in datas]
    stream = b"".join(line + end for line in lines)
    marks = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in itertools.pairwise(marks)]

    array = framed(ArrayFraming(), pieces)

    assert json.loads(array) == documents
    assert array == (b"[" + b"\n,\r\n".join(datas) + b"\n]" if datas else b"[]")
    events = EventFraming().whole(array, "application/json")
    assert [json.loads(read_event(raw)[0]) for raw in Splitter().feed(events)] == documents
    assert ArrayFraming().whole(array, "application/json") == array
    assert json.loads(ArrayFraming().whole(events, "text/event-stream")) == documents


@pytest.mark.parametrize("body", [b'{\n  "a": 1\n}\n', b' [{"a":\r\n1}] '])
def test_a_whole_answer_is_the_only_item(body):
    assert json.loads(ArrayFraming().whole(body, "application/json")) == [{"a": 1}]
    events = EventFraming().whole(body, "application/json; charset=UTF-8")
    assert events.count(b"\n") == 2
    assert json.loads(events.removeprefix(b"data: ")) == {"a": 1}


def test_a_lone_surrogate_is_no_obstacle():
    events = EventFraming().whole(b'[{"a": "\\ud83d"}, {}]', "application/json")

    assert events == b'data: {"a": "\\ud83d"}\n\ndata: {}\n\n'


PNG = {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}


@pytest.mark.parametrize(
    ("parts", "images"),
    [
        ([PNG], 1),
        ([{"text": "two"}, PNG, {"inlineData": {"mimeType": "image/jpeg", "data": "x"}}], 2),
        ([{"inline_data": {"mime_type": "image/png", "data": "iVBO"}}], 1),
        ([{**PNG, "thought": True}, PNG], 1),
        ([{"inlineData": {"mimeType": "audio/L16", "data": "x"}}], 0),
        ([{"inlineData": {"mimeType": None}}, {"inlineData": "image/png"}, {"text": "x"}], 0),
    ],
)
def test_each_picture_in_an_answer_or_a_stream_counts(parts, images):
    whole = g.said(*parts, reason="STOP")

    assert answer(whole).images == images
    assert answer([g.said(*parts), whole]).images == 2 * images
    assert event(g.said(*parts)).images == images


# -- errors and lists ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "INVALID_ARGUMENT"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "NOT_FOUND"),
        (405, "INVALID_ARGUMENT"),
        (413, "INVALID_ARGUMENT"),
        (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"),
        (502, "UNAVAILABLE"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
        (529, "UNAVAILABLE"),
        (599, "INTERNAL"),
    ],
)
@pytest.mark.parametrize("foreign", [None, "", "server_error", "invalid_argument"])
def test_an_error_of_elsewhere_gets_the_name_of_its_status(status, expected, foreign):
    parts = ErrorParts(status=status, message="m", type=foreign, code=None)

    assert json.loads(CONTENT.error_body(parts)) == {
        "error": {"code": status, "message": "m", "status": expected}
    }


@pytest.mark.parametrize("own", sorted(KNOWN_STATUSES))
def test_names_of_this_api_are_kept(own):
    parts = ErrorParts(status=418, message="m", type=own, code="a.code-1", request_id="r")

    problem = json.loads(CONTENT.error_body(parts))["error"]

    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    assert problem["status"] == own
    assert problem["details"] == [{"@type": kind, "reason": "A_CODE_1", "domain": "relay"}]


def test_a_code_that_repeats_a_status_is_no_reason():
    parts = ErrorParts(status=404, message="m", type=None, code="404")

    assert "details" not in json.loads(CONTENT.error_body(parts))["error"]


@given(text=st.text(st.characters(codec=None), max_size=20))
def test_any_text_can_be_told_and_is_read_back_as_an_error(text):
    """Lone surrogates come in by upstreams' messages."""
    parts = ErrorParts(status=502, message="m" + text, type=text or None, code=text)

    [raw] = Splitter().feed(CONTENT.error_event(parts))
    data, name = read_event(raw)

    assert data.startswith((b'{"error":', b'{"error": '))  # what the SDK looks for
    assert json.loads(data)["error"]["message"] == "m" + text
    assert CONTENT.read_event(data, name).is_error
    assert CONTENT.read_answer(CONTENT.error_body(parts)).is_error


def test_the_list_of_models():
    first, second = json.loads(CONTENT.model_list(["a", "tunedModels/b"]))["models"]

    assert (first["name"], first["displayName"]) == ("models/a", "a")
    assert "generateContent" in first["supportedGenerationMethods"]
    assert second["name"] == "tunedModels/b"
    assert json.loads(CONTENT.model_card("a")) == first
    assert json.loads(CONTENT.model_list([])) == {"models": []}


# -- what is read out of an upstream's error ---------------------------------------------


@pytest.mark.parametrize(
    ("wait", "expected"),
    [("12s", 12.0), ("34.4s", 34.4), ("0s", None), ("-1s", None), ("x", None), ("9", None)],
)
def test_the_wait_and_the_reason_of_a_google_error(wait, expected):
    body = dumped(g.problem(429, name="RESOURCE_EXHAUSTED", reason="WHY", wait=wait))

    failure = classify_response(status=429, headers={}, body=body, provider="gemini")

    assert failure.retry_after_s == expected
    assert (failure.code, failure.type) == ("WHY", "RESOURCE_EXHAUSTED")


def test_a_header_says_it_better():
    body = dumped(g.problem(429, wait="12s"))

    failure = classify_response(
        status=429, headers={"retry-after": "3"}, body=body, provider="gemini"
    )

    assert failure.retry_after_s == 3


@pytest.mark.parametrize("details", [None, 5, {}, [5, None, {}, {"@type": 5}], [{"@type": "x"}]])
def test_odd_details_say_nothing(details):
    body = dumped({"error": {"code": 503, "message": "m", "details": details}})

    failure = classify_response(status=200, headers={}, body=body, provider="gemini")

    assert (failure.status, failure.code, failure.retry_after_s) == (503, "503", None)


def test_the_error_of_an_array_is_found_behind_what_was_said():
    body = dumped([g.said({"text": "x"}), g.problem(503, "busy")])

    failure = classify_response(status=200, headers={}, body=body, provider="gemini")

    assert (failure.status, failure.message) == (503, "busy")


# -- anything at all ----------------------------------------------------------------

NAMES = ["candidates", "content", "parts", "text", "thought", "functionCall", "finishReason"]
NAMES += ["usageMetadata", "promptTokenCount", "candidatesTokenCount", "promptFeedback", "model"]
NAMES += ["blockReason", "error", "modelVersion", "requests", "generateContentRequest"]
NAMES += ["generationConfig", "maxOutputTokens", "embedding", "embeddings", "values"]
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "STOP", "SAFETY", "m"])
    | st.text(st.characters(codec=None), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
chunks = st.fixed_dictionaries(
    {},
    optional={
        "candidates": st.lists(
            st.fixed_dictionaries(
                {}, optional={"content": documents, "finishReason": documents, "index": documents}
            )
            | documents,
            max_size=2,
        ),
        **dict.fromkeys(("promptFeedback", "usageMetadata", "modelVersion", "error"), documents),
    },
)
anything = st.one_of(
    st.binary(max_size=60),
    documents.map(dumped),
    chunks.map(dumped),
    st.lists(chunks, max_size=3).map(dumped),
)
DIALECTS = st.sampled_from([CONTENT, EMBEDDINGS, COUNT])


@given(dialect=DIALECTS, body=anything, model=st.text(max_size=6), query=st.text(max_size=12))
def test_reading_a_request_raises_nothing_but_its_own_error(dialect, body, model, query):
    asked = Incoming(body=body, path={"model": model, "method": "generateContent"}, query=query)
    try:
        envelope = dialect.read_request(asked)
    except BodyError:
        return
    assert envelope.model.strip()


@given(dialect=DIALECTS, document=st.dictionaries(st.sampled_from(NAMES), documents))
def test_another_model_can_be_asked_for_by_any_request(dialect, document):
    body = json.dumps(document, allow_nan=False) if is_finite(document) else "{}"

    changed = dialect.with_model(call(body.encode()), "new")

    again = json.loads(changed.body)
    assert again.get("model", "models/new") == "models/new"
    assert {k: v for k, v in again.items() if k not in SET} == {
        k: v for k, v in json.loads(body).items() if k not in SET
    }


SET = {"model", "requests", "generateContentRequest"}


def is_finite(document):
    try:
        json.dumps(document, allow_nan=False)
    except ValueError:
        return False
    return True


@given(dialect=DIALECTS, data=anything, name=st.sampled_from([b"", b"error", b"\xff"]))
def test_reading_an_answer_or_event_never_raises(dialect, data, name):
    facts = dialect.read_answer(data)
    told = dialect.read_event(data, name)

    assert not (facts.is_error and facts.is_empty)
    assert not (told.is_error and told.is_malformed)
    for usage in (facts.usage, told.usage):
        assert usage is None or 0 <= usage.input_tokens <= MAX_TOKENS
        assert usage is None or 0 <= usage.output_tokens <= MAX_TOKENS


@given(body=anything, kind=st.sampled_from(["application/json", "text/event-stream", ""]))
def test_what_was_read_as_an_answer_can_be_framed(body, kind):
    if CONTENT.read_answer(body).is_readable:
        ArrayFraming().whole(body, kind)
        EventFraming().whole(body, kind)


# -- recorded traffic ---------------------------------------------------------------

RECORDINGS = WIRE_DIR / "recordings"
STREAMS = sorted(RECORDINGS.glob("*__streamGenerateContent__stream__*.json"))
ARRAYS = sorted(RECORDINGS.glob("*__streamGenerateContent__json__*.json"))
ANSWERS = sorted(RECORDINGS.glob("*__generateContent__json__*.json"))
ERRORS = sorted(
    path
    for method in ("generateContent", "streamGenerateContent", "batchEmbedContents", "countTokens")
    for path in RECORDINGS.glob(f"*__{method}__err*.json")
)


@pytest.mark.wire
def test_there_are_recordings(wire_dir):
    assert [len(paths) for paths in (STREAMS, ARRAYS, ANSWERS, ERRORS)] == [9, 3, 10, 11]


@pytest.mark.wire
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_recorded_streams_are_meaningful_and_end_properly(path):
    splitter = Splitter()
    raws = splitter.feed(g.recorded(path))

    facts = [CONTENT.read_event(*read_event(raw)) for raw in [*raws, splitter.flush()] if raw]

    assert not any(fact.is_malformed or fact.is_error for fact in facts)
    assert facts[0].is_meaningful
    assert [fact.is_finish for fact in facts].count(True) == 1
    assert facts[-1].is_finish
    assert facts[-1].model
    assert facts[-1].usage.output_tokens > 0


@pytest.mark.wire
@pytest.mark.parametrize("path", [*ANSWERS, *ARRAYS], ids=lambda path: path.stem)
def test_recorded_answers_are_answers(path):
    facts = CONTENT.read_answer(g.recorded(path))

    assert (facts.is_readable, facts.is_error, facts.is_empty) == (True, False, False)
    assert facts.model
    assert facts.usage.input_tokens > 0


@pytest.mark.wire
@pytest.mark.parametrize("path", ARRAYS, ids=lambda path: path.stem)
def test_recorded_arrays_come_back_from_events_but_for_line_ends(path):
    body = g.recorded(path)
    events = EventFraming().whole(body, "application/json; charset=UTF-8")

    again = ArrayFraming().whole(events, "text/event-stream")

    assert json.loads(again) == json.loads(body)
    assert ArrayFraming().whole(body, "application/json; charset=UTF-8") == body


@pytest.mark.wire
@pytest.mark.parametrize("path", ERRORS, ids=lambda path: path.stem)
def test_recorded_errors_are_errors(path):
    assert CONTENT.read_answer(g.recorded(path)).is_error
