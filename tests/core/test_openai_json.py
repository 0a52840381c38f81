"""The OpenAI endpoints without a conversation, and completions: what is said, by endpoint."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_app.core.usage import Usage
from relay_app.core.multipart import read_fields
from relay_app.core.types import AnswerFacts, Call, EventFacts
from relay_app.dialects.base import BodyError, Envelope, Incoming, count_in
from relay_app.dialects.registry import DIALECTS
from relay_app.providers.openai import OpenAIAdapter
from relay_app.urls import ENDPOINTS
from tests.support import wire
from tests.support.wire import recordings

EMBEDDINGS, MODERATIONS = DIALECTS["openai_embeddings"], DIALECTS["openai_moderations"]
IMAGES, EDITS = DIALECTS["openai_images"], DIALECTS["openai_image_edits"]
AUDIO, SPEECH = DIALECTS["openai_transcriptions"], DIALECTS["openai_speech"]
RERANK, COMPLETIONS = DIALECTS["openai_rerank"], DIALECTS["openai_completions"]
JSON_IN = [EMBEDDINGS, MODERATIONS, IMAGES, EDITS, SPEECH, RERANK, COMPLETIONS]
FORM = "multipart/form-data; boundary=b"


def dumped(document):
    return document if isinstance(document, bytes) else json.dumps(document).encode()


def read(dialect, document, content_type="application/json"):
    return dialect.read_request(Incoming(body=dumped(document), content_type=content_type))


def form(*fields):
    """Return a form of (name, value) fields; a value of bytes is a file."""
    out = b""
    for name, value in fields:
        is_file = isinstance(value, bytes)
        head = f'Content-Disposition: form-data; name="{name}"' + '; filename="f"' * is_file
        out += b"--b\r\n%b\r\n\r\n%b\r\n" % (
            head.encode(),
            value if is_file else value.encode(),
        )
    return out + b"--b--\r\n"


def refusal(dialect, document, content_type="application/json"):
    with pytest.raises(BodyError) as caught:
        read(dialect, document, content_type)
    return caught.value


# -- requests ------------------------------------------------------------------


@pytest.mark.parametrize("dialect", JSON_IN)
def test_a_json_request_says_its_model(dialect):
    assert read(dialect, {"model": "m", "x": [1]}) == Envelope(model="m", is_stream=False)


@pytest.mark.parametrize("dialect", [EMBEDDINGS, SPEECH, RERANK, COMPLETIONS, AUDIO])
def test_a_model_that_has_no_default_is_missed(dialect):
    error = refusal(dialect, {"input": "x"})

    assert (str(error), error.param) == ("model is missing", "model")


@pytest.mark.parametrize(
    ("dialect", "model"),
    [(MODERATIONS, "omni-moderation-latest"), (IMAGES, "dall-e-2"), (EDITS, "dall-e-2")],
)
def test_the_apis_own_default_is_routed_by(dialect, model):
    assert read(dialect, {"input": "x"}).model == model
    assert read(dialect, {"input": "x", "model": None}).model == model


@pytest.mark.parametrize("dialect", JSON_IN)
def test_a_model_that_is_no_name_is_refused(dialect):
    assert str(refusal(dialect, {"model": " "})) == "model: the name is empty"
    assert "model has the wrong type" in str(refusal(dialect, {"model": 5}))


@pytest.mark.parametrize(
    ("dialect", "fields", "is_stream"),
    [
        (COMPLETIONS, {"stream": True}, True),
        (IMAGES, {"stream": True}, True),
        (IMAGES, {"stream": None}, False),
        (EDITS, {"stream": True}, True),
        (SPEECH, {"stream_format": "sse"}, True),
        (SPEECH, {"stream_format": "audio"}, False),
        (SPEECH, {"stream_format": 5}, False),
        (EMBEDDINGS, {"stream": True}, False),
        (MODERATIONS, {"stream": True}, False),
        (RERANK, {"stream": True}, False),
    ],
)
def test_a_json_request_says_whether_it_streams(dialect, fields, is_stream):
    assert read(dialect, {"model": "m", **fields}).is_stream is is_stream


def test_completions_say_how_long_they_may_be():
    assert read(COMPLETIONS, {"model": "m", "max_tokens": 20}).max_output_tokens == 20


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        (b"", 0),
        (b"null", 0),
        (b"true", 0),
        (b'"5"', 0),
        (b"[5]", 0),
        (b"-5", 0),
        (b"0", 0),
        (b"5", 5),
        (b"5.0", 5),
        (b"999999999", 999_999_999),
        (b"1000000000", 1_000_000_000),
        (b"2147483648", 2**31 - 1),
        (b"9" * 5000, 2**31 - 1),
        (b"1e400", 2**31 - 1),
    ],
)
def test_counts_are_held_at_what_a_column_takes(raw, count):
    assert count_in(msgspec.Raw(raw)) == count


@pytest.mark.parametrize(("text", "is_stream"), [("true", True), ("True", True), ("1", True),
                                                 ("false", False), ("", False)])  # fmt: skip
@pytest.mark.parametrize("dialect", [AUDIO, EDITS])
def test_a_form_says_its_model_and_whether_it_streams(dialect, text, is_stream):
    body = form(("file", b"\0\r\n--c"), ("stream", text), ("model", "m"))

    assert read(dialect, body, FORM) == Envelope(model="m", is_stream=is_stream)


@pytest.mark.parametrize(
    ("body", "content_type", "says", "param"),
    [
        (form(("file", b"x")), FORM, "model is missing", "model"),
        (form(("model", "")), FORM, "model: the name is empty", "model"),
        (form(("model", "a"), ("model", "b")), FORM, "model is given 2 times", "model"),
        (form(("model", "a"), ("model", b"b")), FORM, "model is given 2 times", "model"),
        (form(("model", b"a")), FORM, "model is sent as a file", "model"),
        (form(("model", "a"), ("stream", "1"), ("stream", "0")), FORM, "stream is given", "stream"),
        (b"", FORM, "does not begin with the boundary", None),
        (b"model=m", "application/x-www-form-urlencoded", "send multipart/form-data", None),
        (b"x", "multipart/form-data", "names no boundary", None),
    ],
)
def test_a_bad_form_is_told_why(body, content_type, says, param):
    error = refusal(AUDIO, body, content_type)

    assert says in str(error)
    assert error.param == param


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8"])
def test_a_form_may_be_sent_as_json(content_type):
    """As xAI's image edits and OpenRouter's transcriptions are."""
    assert read(EDITS, {"model": "m", "images": []}, content_type).model == "m"


def call_of(body, content_type):
    return Call(
        request_id="",
        endpoint=ENDPOINTS[0],
        model="m",
        is_stream=False,
        body=body,
        content_type=content_type,
    )


def test_another_model_in_a_form_leaves_the_files_alone():
    parts = [("file", b"\0\r\n--c"), ("model", "m"), ("x", "1")]

    changed = AUDIO.with_model(call_of(form(*parts), FORM), "né")

    parts[1] = ("model", "né")
    assert changed == replace(call_of(form(*parts), FORM), model="né")


def test_a_model_that_was_left_out_is_added():
    by_form = EDITS.with_model(call_of(form(("image", b"x")), FORM), "n")
    by_json = EDITS.with_model(call_of(b'{"images": []}', "application/json"), "n")

    assert read_fields(by_form.body, FORM)["model"] == ["n"]
    assert json.loads(by_json.body) == {"images": [], "model": "n"}


# -- whole answers ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 8, "total_tokens": 8}, Usage(input_tokens=8)),
        ({"total_tokens": 12}, Usage(input_tokens=12)),
        ({"input_tokens": 3, "output_tokens": 4}, Usage(input_tokens=3, output_tokens=4)),
        (
            {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
            Usage(input_tokens=3, cached_input_tokens=2),
        ),
        ({"prompt_tokens": -3, "completion_tokens": 1.9}, Usage(output_tokens=1)),
        ({"prompt_tokens": 10**30}, Usage(input_tokens=2**31 - 1)),
        ({}, None),
        (None, None),
        ([5], None),
    ],
)
def test_usage_is_read_under_any_of_its_names(usage, expected):
    answer = {"data": [{"x": 1}], "model": "m-1", "usage": usage}

    assert EMBEDDINGS.read_answer(dumped(answer)) == AnswerFacts(model="m-1", usage=expected)


def test_coheres_counts_are_read_too():
    answer = {"results": [{"index": 0}], "meta": {"billed_units": {"input_tokens": 5}}}

    assert RERANK.read_answer(dumped(answer)).usage == Usage(input_tokens=5)


@pytest.mark.parametrize("answer", [{"data": []}, {"results": []}, {"data": None}, {}])
def test_a_list_of_nothing_is_an_empty_answer(answer):
    for dialect in (EMBEDDINGS, IMAGES, MODERATIONS, RERANK, AUDIO):
        assert dialect.read_answer(dumped(answer)).is_empty


@pytest.mark.parametrize("answer", [{"text": ""}, {"audio_data": "SUQz"}, {"data": [{}]}, {"x": 1}])
def test_other_answers_are_not_empty(answer):
    """Silence is written down as nothing."""
    for dialect in (AUDIO, SPEECH, IMAGES):
        assert not dialect.read_answer(dumped(answer)).is_empty


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "audio/mpeg", ""])
@pytest.mark.parametrize(
    "document",
    [
        {"error": {"message": "x"}},
        {"error": "x"},
        {"object": "error", "message": "x"},
        {"error": {"message": "x"}, "data": None},
    ],
)
def test_only_an_error_object_is_an_error(document, content_type):
    for dialect in (EMBEDDINGS, IMAGES, AUDIO, SPEECH):
        assert dialect.read_answer(dumped(document), content_type).is_error


def test_an_error_beside_an_answer_is_an_answer():
    assert not EMBEDDINGS.read_answer(dumped({"data": [1], "error": {"message": "x"}})).is_error


@pytest.mark.parametrize("body", [b"<html>", b"\xff\xf3", b"[1]", b"text"])
def test_json_is_demanded_where_nothing_else_makes_sense(body):
    for dialect in (EMBEDDINGS, MODERATIONS, IMAGES, EDITS, RERANK):
        assert not dialect.read_answer(body, "audio/mpeg").is_readable


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("audio/mpeg", b"\xff\xf3\0"),
        ("application/octet-stream", b"\0"),
        ("text/plain; charset=utf-8", b"\n"),
        ("text/plain", b"{ is no JSON"),
        ("text/vtt", b"WEBVTT"),
        ("application/x-subrip", b"1\n"),
    ],
)
def test_audio_may_answer_with_anything(content_type, body):
    for dialect in (AUDIO, SPEECH):
        assert dialect.read_answer(body, content_type) == AnswerFacts()
        assert dialect.read_answer(b"", content_type) == AnswerFacts(is_empty=True)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/html; charset=utf-8", b"<html>busy</html>"),
        ("application/json", b"\xff\xf3"),
        ("application/json", b""),
        ("application/problem+json", b"["),
    ],
)
def test_but_not_with_pages_or_broken_json(content_type, body):
    for dialect in (AUDIO, SPEECH):
        assert not dialect.read_answer(body, content_type).is_readable


def test_json_under_another_type_is_read_all_the_same():
    facts = AUDIO.read_answer(b'{"text": "x", "usage": {"input_tokens": 3}}', "text/plain")

    assert facts.usage == Usage(input_tokens=3)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"usage": {"type": "duration", "seconds": 37}}, 37),
        ({"usage": {"type": "duration", "seconds": 36.2}, "duration": 99}, 37),
        ({"duration": 36.709999084472656}, 37),
        ({"duration": 36.0}, 36),
        ({"duration": 0.01, "usage": None}, 1),
        ({"usage": {"prompt_audio_seconds": 3}}, 3),
        ({"duration": "36.7"}, 0),
        ({"duration": -1}, 0),
        ({"duration": 10**30}, 0),
        ({}, 0),
    ],
)
def test_the_length_of_a_recording_is_read_and_rounded_up(fields, seconds):
    facts = AUDIO.read_answer(dumped({"text": "x", **fields}))
    end = event(AUDIO, {"type": "transcript.text.done", "text": "x", **fields})

    assert (facts.seconds, facts.usage) == (seconds, None)
    assert end.seconds == seconds


@pytest.mark.parametrize("value", [b"Infinity", b"-Infinity", b"NaN"])
def test_a_length_that_is_none_is_not_told(value):
    assert AUDIO.read_answer(b'{"text":"x","duration":' + value + b"}").seconds == 0


@pytest.mark.parametrize(
    ("data", "images"),
    [
        ([{"b64_json": "AA=="}], 1),
        ([{"url": "https://x"}, {"b64_json": "AA==", "revised_prompt": "x"}], 2),
        ([{"b64_json": None, "url": ""}, {}, None, "x", {"embedding": [1]}], 0),
        ({"b64_json": "AA=="}, 0),
        (None, 0),
    ],
)
def test_pictures_are_counted_whether_usage_is_told_or_not(data, images):
    told = IMAGES.read_answer(dumped({"data": data, "usage": {"input_tokens": 3}}))
    untold = IMAGES.read_answer(dumped({"data": data}))

    assert (told.images, told.usage) == (images, Usage(input_tokens=3))
    assert (untold.images, untold.usage) == (images, None)


# -- stream events ----------------------------------------------------------------


def event(dialect, document, name=b""):
    return dialect.read_event(dumped(document), name)


@pytest.mark.parametrize(
    ("dialect", "document"),
    [
        (AUDIO, {"type": "transcript.text.delta", "delta": "x"}),
        (AUDIO, {"type": "transcript.text.segment", "text": "x"}),
        (SPEECH, {"type": "speech.audio.delta", "audio": "SUQz"}),
        (IMAGES, {"type": "image_generation.partial_image", "b64_json": "iVBO"}),
        (EDITS, {"type": "image_edit.partial_image", "b64_json": "iVBO"}),
    ],
)
def test_pieces_are_meaningful(dialect, document):
    facts = event(dialect, document)

    assert facts.is_meaningful
    assert not facts.is_finish


@pytest.mark.parametrize(
    ("dialect", "document", "is_complete"),
    [
        (AUDIO, {"type": "transcript.text.done", "text": "x"}, True),
        (SPEECH, {"type": "speech.audio.done"}, True),
        (IMAGES, {"type": "image_generation.completed", "b64_json": "iVBO"}, False),
        (EDITS, {"type": "image_edit.completed", "b64_json": "iVBO"}, False),
    ],
)
def test_the_last_piece_is_the_proper_end_and_tells_the_usage(dialect, document, is_complete):
    """One of several images is not the end of the stream."""
    facts = event(dialect, {**document, "usage": {"input_tokens": 1, "output_tokens": 2}})

    assert facts.is_finish
    assert facts.is_complete is is_complete
    assert facts.usage == Usage(input_tokens=1, output_tokens=2)


@pytest.mark.parametrize("family", ["image_generation", "image_edit"])
def test_each_completed_picture_counts_and_partial_ones_do_not(family):
    partial = event(IMAGES, {"type": f"{family}.partial_image", "b64_json": "iVBO"})
    completed = event(IMAGES, {"type": f"{family}.completed", "b64_json": "iVBO"})
    named = event(IMAGES, {"b64_json": "iVBO"}, f"{family}.completed".encode())

    assert [fact.images for fact in (partial, completed, named)] == [0, 1, 1]


def test_silence_is_an_answer_and_no_sound_is_none():
    assert not event(AUDIO, {"type": "transcript.text.done", "text": ""}).is_normal_finish
    assert event(SPEECH, {"type": "speech.audio.done"}).is_normal_finish


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"error": {"message": "x"}}, b""),
        ({"type": "error", "message": "x"}, b""),
        ({"message": "x"}, b"error"),
        (b"overloaded", b"error"),
    ],
)
def test_an_error_event_is_an_error(document, name):
    assert event(IMAGES, document, name).is_error


def test_done_is_the_last_and_noise_is_malformed():
    assert event(AUDIO, b"[DONE]") == EventFacts(is_last=True, is_finish=True)
    assert event(AUDIO, b"noise") == EventFacts(is_malformed=True)
    assert AUDIO.read_event(None, b"") == EventFacts()


# -- anything at all ----------------------------------------------------------------

NAMES = ["model", "stream", "data", "results", "text", "error", "usage", "meta", "tokens", "type"]
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "m", "error", "transcript.text.done"])
    | st.text(st.characters(codec=None), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
anything = st.one_of(st.binary(max_size=60), documents.map(dumped))
types = st.sampled_from(["application/json", "text/plain", "audio/mpeg", FORM, ""])


@given(body=anything, content_type=types, dialect=st.sampled_from([EDITS, SPEECH, COMPLETIONS]))
def test_reading_never_fails_otherwise(body, content_type, dialect):
    facts = dialect.read_answer(body, content_type)
    dialect.read_event(body, b"")
    assert not (facts.is_error and facts.is_empty)
    with contextlib.suppress(BodyError):
        assert read(dialect, body, content_type).model.strip()


# -- the provider type -----------------------------------------------------------------


def test_the_openai_provider_takes_every_openai_dialect():
    ours = {name for name, dialect in DIALECTS.items() if dialect.family == "openai"}

    assert OpenAIAdapter.dialects == ours


# -- recorded traffic ---------------------------------------------------------------

OTHERS = [name for name in wire.ENDPOINTS if name != "responses"]


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("json", *OTHERS))
def test_recorded_answers_are_answers(recording):
    dialect = DIALECTS[wire.ENDPOINTS[recording.endpoint][0]]

    facts = dialect.read_answer(recording.body, recording.content_type)

    assert (facts.is_readable, facts.is_error, facts.is_empty) == (True, False, False)
    if b"total_tokens" in recording.body:
        assert facts.usage.input_tokens > 0


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("stream", *OTHERS))
def test_recorded_streams_end_properly(recording):
    dialect = DIALECTS[wire.ENDPOINTS[recording.endpoint][0]]

    facts = [dialect.read_event(*event) for event in recording.events()]

    assert not any(fact.is_error or fact.is_malformed for fact in facts)
    assert any(fact.is_meaningful for fact in facts)
    assert any(fact.is_finish for fact in facts)
    assert facts[-1].is_last
    assert next(fact.usage for fact in facts if fact.usage).output_tokens > 0


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("err", *OTHERS, "responses"))
def test_recorded_errors_are_read_as_such(recording):
    dialect = DIALECTS[wire.ENDPOINTS[recording.endpoint][0]]

    if b'"error"' in recording.body:  # Voyage's say `detail` alone
        assert dialect.read_answer(recording.body).is_error
