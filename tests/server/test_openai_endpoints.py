"""The OpenAI endpoints without a conversation, through the real server: forms with files,
sound and text for an answer, and upstreams that break the rules of HTTP."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from relay_app.urls import ENDPOINTS as ROWS
from tests.support.upstream import DONE, answer, error, raw, stream
from tests.support.wire import ENDPOINTS, recordings

PATHS = sorted({path for _, path in ENDPOINTS.values()})
SOUND = b"\xff\xf3\0{}\r\n" + os.urandom(70_000)
EMBEDDING = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
    "model": "m-upstream",
    "usage": {"prompt_tokens": 8, "total_tokens": 8},
}
FORM_TYPE = 'multipart/form-data; boundary="a b-c"'


def form(*fields, end=b"\r\n"):
    """Return a form of (name, value) fields; a value of bytes is a file."""
    out = b""
    for name, value in fields:
        is_file = isinstance(value, bytes)
        head = f'Content-Disposition: form-data; name="{name}"' + '; filename="f"' * is_file
        content = value if is_file else value.encode()
        out += b"--a b-c" + end + head.encode() + end * 2 + content + end
    return out + b"--a b-c--"


def post_form(world, body, *, path="/v1/audio/transcriptions", content_type=FORM_TYPE):
    headers = {"Content-Type": content_type}
    return world.ready().http.post(path, content=body, headers=headers)


def post(world, path, **fields):
    return world.ready().http.post(path, json={"model": "m", **fields})


def speak(world, **fields):
    return post(world, "/v1/audio/speech", input="x", **fields)


# -- every endpoint ----------------------------------------------------------------


def test_every_endpoint_has_a_row():
    assert set(PATHS) <= {f"/{row.path}" for row in ROWS}


@pytest.mark.parametrize("path", PATHS)
def test_request_and_answer_pass_through_untouched(world, path):
    odd = b'{ "data":[{}], "output":[{"a":1}], "choices":[{"text":"x"}],\n "n":1e2, "x":"\xc3\xa9"}'
    world.channel("a", answer(200, odd))
    body = b'{"model":  "m", "unknown": [1.0, null], "x": "\xc3\xa9"}'

    answered = world.ready().http.post(
        f"{path}?x=%20", content=body, headers={"Content-Type": "application/json; charset=utf-8"}
    )

    assert answered.status_code == 200
    assert answered.content == odd
    [seen] = world.upstream.seen
    assert seen.body == body
    assert seen.target == f"/a{path}?x=%20"
    assert seen.headers["content-type"] == "application/json; charset=utf-8"
    assert seen.headers["authorization"] == "Bearer sk-upstream-a-0123456789"
    assert seen.headers["accept"] == ("*/*" if "audio" in path else "application/json")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "first",
    [
        error(500),
        answer(200, {"error": {"message": "x", "type": "server_error"}}),
        answer(200, b""),
        answer(200, b"<html>busy</html>", headers={"Content-Type": "text/html"}),
    ],
    ids=["status", "error-in-200", "nothing", "page"],
)
def test_a_failure_is_tried_elsewhere(world, path, first):
    good = {"data": [{}], "output": [{"a": 1}], "choices": [{"text": "x"}]}
    world.channel("a", first, priority=2)
    world.channel("b", answer(200, good), priority=1)
    world.options(RetryTimes=1)

    answered = post(world, path)

    assert answered.json() == good
    assert answered.headers["x-relay-attempts"] == "2"


@pytest.mark.parametrize("path", PATHS)
def test_errors_have_openais_form(world, path):
    world.channel("a", error(429, "slow down", code="rate_limit_exceeded"))

    answered = post(world, path)

    assert answered.status_code == 429
    assert answered.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answered.json()["error"]["code"] == "rate_limit_exceeded"
    assert answered.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", PATHS)
def test_other_methods_are_refused(world, path):
    answered = world.ready().http.get(path)

    assert answered.status_code == 405
    assert answered.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1/moderations", "omni-moderation-latest"),
        ("/v1/images/generations", "dall-e-2"),
        ("/v1/images/edits", "dall-e-2"),
    ],
)
def test_a_request_without_a_model_goes_by_the_apis_default(world, path, model):
    world.channel("a", answer(200, {"data": [{}]}), model_names=[model])
    body = b'{"input":  "x"}'

    answered = world.ready().http.post(path, content=body)

    assert answered.status_code == 200
    assert world.upstream.seen[0].body == body
    assert world.log(answered.headers["x-request-id"]).request_model == model


def test_usage_is_logged(world):
    world.channel("a", answer(200, EMBEDDING))

    log = world.log(post(world, "/v1/embeddings", input="x").headers["x-request-id"])

    assert (log.response_model, log.input_tokens, log.output_tokens) == ("m-upstream", 8, 0)


# -- forms -------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_form_is_the_same_on_every_attempt(world, end):
    body = form(("file", SOUND), ("language", "en"), ("model", "m"), end=end)
    world.channel("a", error(500), priority=2)
    world.channel("b", answer(200, {"text": "hello"}), priority=1)
    world.options(RetryTimes=1)

    answered = post_form(world, body)

    assert answered.json() == {"text": "hello"}
    assert world.upstream.names() == ["a", "b"]
    assert all(seen.body == body for seen in world.upstream.seen)
    assert all(seen.headers["content-type"] == FORM_TYPE for seen in world.upstream.seen)


def test_each_channel_gets_the_form_with_its_own_name_for_the_model(world):
    parts = [("file", SOUND), ("model", "m"), ("language", "en")]
    world.channel("a", error(500), priority=2, model_mapping={"m": "gpt-4o-transcribe"})
    world.channel("b", answer(200, {"text": "hello"}), priority=1, model_mapping={"m": "é"})
    world.options(RetryTimes=1)

    answered = post_form(world, form(*parts))

    assert answered.json() == {"text": "hello"}
    for seen, name in zip(world.upstream.seen, ["gpt-4o-transcribe", "é"], strict=True):
        parts[1] = ("model", name)
        assert seen.body == form(*parts)


def test_a_mapped_default_model_is_sent_along(world):
    """The upstream has other defaults."""
    mapping = {"dall-e-2": "gpt-image-2"}
    world.channel("a", answer(200, {"data": [{}]}), model_names=["dall-e-2"], model_mapping=mapping)
    parts = [("image", SOUND), ("prompt", "x")]

    answered = post_form(world, form(*parts), path="/v1/images/edits")

    assert answered.status_code == 200
    assert world.upstream.seen[0].body == form(("model", "gpt-image-2"), *parts)


def test_a_content_type_that_can_not_be_sent_is_the_clients_fault(world):
    world.channel("a", answer(200, {"text": "hello"}))
    headers = {"Content-Type": "application/json; x=é".encode()}

    answered = world.ready().http.post("/v1/embeddings", content=b"{}", headers=headers)

    assert answered.status_code == 400
    assert "outside ASCII" in answered.json()["error"]["message"]


def test_a_large_upload_is_sent_again_to_the_next_channel(world):
    """The model stands behind 60 MB of file."""
    body = form(("file", os.urandom(2**20) * 60), ("model", "m"))
    world.channel("a", error(503), priority=2)
    world.channel("b", answer(200, {"text": "hello"}), priority=1)
    world.options(RetryTimes=1)

    answered = post_form(world, body)

    assert answered.json() == {"text": "hello"}
    assert [seen.name for seen in world.upstream.seen] == ["a", "b"]
    assert all(seen.body == body for seen in world.upstream.seen)


@pytest.mark.parametrize(
    ("body", "content_type", "says"),
    [
        (form(("file", b"x")), FORM_TYPE, "model is missing"),
        (form(("model", "m"), ("model", "n")), FORM_TYPE, "model is given 2 times"),
        (form(("model", "m"))[:-9], FORM_TYPE, "no closing boundary"),
        (form(("model", "m")), "multipart/form-data", "names no boundary"),
        (b"model=m", "application/x-www-form-urlencoded", "send multipart/form-data"),
        (b"", FORM_TYPE, "does not begin with the boundary"),
    ],
)
def test_a_bad_form_is_told_why_and_goes_nowhere(world, body, content_type, says):
    world.channel("a", answer(200, {"text": "hello"}))

    answered = post_form(world, body, content_type=content_type)

    assert answered.status_code == 400
    assert says in answered.json()["error"]["message"]
    assert not world.upstream.seen


# -- answers that are no JSON ------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("audio/mpeg", SOUND),
        ("application/octet-stream", b"\0"),
        ("audio/wav", b"RIFF"),
        ("text/plain; charset=utf-8", "Grüße\n".encode()),
        ("text/vtt", b"WEBVTT\n\n"),
        ("application/x-subrip", b"1\n00:00"),
    ],
)
def test_any_type_passes_through_byte_for_byte(world, content_type, body):
    world.channel("a", answer(200, body, headers={"Content-Type": content_type}))

    answered = speak(world)

    assert answered.status_code == 200
    assert answered.content == body
    assert answered.headers["content-type"] == content_type
    assert answered.headers["content-length"] == str(len(body))


@pytest.mark.parametrize("content_type", ["audio/mpeg", "text/plain"])
def test_an_empty_body_is_an_empty_answer(world, content_type):
    world.channel("a", answer(200, b"", headers={"Content-Type": content_type}), priority=2)
    world.channel("b", answer(200, SOUND, headers={"Content-Type": "audio/mpeg"}), priority=1)
    world.options(RetryTimes=1)

    answered = speak(world)

    assert answered.content == SOUND
    log = world.log(answered.headers["x-request-id"])
    assert log.attempts.get(number=1).failure_class == "EMPTY_RESPONSE"


def test_an_error_object_under_a_type_of_sound_is_an_error(world):
    body = json.dumps({"error": {"message": "no voice", "code": "invalid_api_key"}}).encode()
    world.channel("a", answer(200, body, headers={"Content-Type": "audio/mpeg"}))

    answered = speak(world)

    assert answered.status_code == 401
    assert answered.json()["error"]["message"].startswith("no voice")


def event(kind, **fields):
    return f"data: {json.dumps({'type': kind, **fields})}\n\n".encode()


STREAMS = {
    "speech": [event("speech.audio.delta", audio="SUQz"), event("speech.audio.done", usage={})],
    "transcriptions": [
        event("transcript.text.delta", delta="x"),
        event("transcript.text.done", text="x"),
        DONE,
    ],
    "silence": [event("transcript.text.done", text="")],
    "images": [
        event("image_generation.partial_image", b64_json="iVBO"),
        event("image_generation.completed", b64_json="iVBO"),
        event("image_generation.completed", b64_json="iVBP"),
    ],
}


def ask_stream(world, kind):
    if kind == "speech":
        return speak(world, stream_format="sse")
    if kind == "images":
        return post(world, "/v1/images/generations", stream=True)
    return post_form(world, form(("stream", "true"), ("model", "m"), ("file", b"x")))


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_pass_through_byte_for_byte(world, kind):
    world.channel("a", stream(STREAMS[kind]))

    answered = ask_stream(world, kind)

    assert answered.content == b"".join(STREAMS[kind])
    assert world.upstream.seen[0].headers["accept"] == "text/event-stream"


@pytest.mark.parametrize("kind", ["speech", "transcriptions", "images"])
def test_a_stream_that_breaks_ends_in_an_error(world, kind):
    world.channel("a", stream(STREAMS[kind][:1], end="cut"))

    answered = ask_stream(world, kind)

    first, last = answered.content.split(b"\n\n")[0:2]
    assert first + b"\n\n" == STREAMS[kind][0]
    assert json.loads(last[6:])["error"]["code"] == "stream_interrupted"
    assert answered.content.endswith(b"\n\n")


@pytest.mark.parametrize("kind", ["speech", "transcriptions", "images"])
def test_a_stream_that_fails_at_once_is_tried_elsewhere(world, kind):
    world.channel("a", stream([event("error", message="busy")]), priority=2)
    world.channel("b", stream(STREAMS[kind]), priority=1)
    world.options(RetryTimes=1)

    assert ask_stream(world, kind).content == b"".join(STREAMS[kind])


# -- upstreams that break the rules ------------------------------------------------


def head(*lines, version="HTTP/1.1", status="200 OK"):
    return "\r\n".join([f"{version} {status}", "Content-Type: audio/mpeg", *lines, "", ""]).encode()


def test_a_compressed_answer_reaches_the_client_plain(world):
    """Upstreams compress although the relay asks them not to."""
    headers = {"Content-Type": "audio/mpeg", "Content-Encoding": "gzip"}
    world.channel("a", answer(200, gzip.compress(SOUND), headers=headers))

    answered = speak(world)

    assert answered.content == SOUND
    assert "content-encoding" not in answered.headers


def assert_second_answers(world, first):
    world.channel("a", first, priority=2)
    world.channel("b", answer(200, SOUND, headers={"Content-Type": "audio/mpeg"}), priority=1)
    world.options(RetryTimes=1)

    answered = speak(world)

    assert answered.content == SOUND
    assert answered.headers["x-relay-attempts"] == "2"


def test_a_body_that_is_not_what_its_encoding_says_is_a_failure(world):
    headers = {"Content-Type": "audio/mpeg", "Content-Encoding": "gzip"}
    assert_second_answers(world, answer(200, SOUND, headers=headers))


def test_a_body_shorter_than_its_content_length_is_a_failure(world):
    assert_second_answers(world, raw(head(f"Content-Length: {len(SOUND) + 1}") + SOUND))


def test_a_chunked_body_without_its_end_is_a_failure(world):
    assert_second_answers(world, raw(head("Transfer-Encoding: chunked") + b"3\r\nabc\r\n"))


def test_a_body_longer_than_its_content_length_is_a_failure(world):
    assert_second_answers(world, raw(head("Content-Length: 10") + SOUND))


def test_json_cut_by_its_content_length_is_a_failure(world):
    body = json.dumps(EMBEDDING).encode()
    lines = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
    world.channel("a", raw(lines + body), priority=2)
    world.channel("b", answer(200, EMBEDDING), priority=1)
    world.options(RetryTimes=1)

    assert post(world, "/v1/embeddings", input="x").json() == EMBEDDING


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
def test_without_a_length_the_body_ends_with_the_connection(world, version):
    world.channel("a", raw(head(version=version) + SOUND))

    assert speak(world).content == SOUND


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_a_failure_and_is_not_followed(world, status):
    """Not even to the same host; and the client does not hear where to."""
    other = world.upstream.url("other")
    redirect = head(f"Location: {other}/audio/speech", "Content-Length: 0", status=status)
    world.channel("a", raw(redirect))

    answered = speak(world)

    assert answered.status_code == int(status[:3])
    assert "location" not in answered.headers
    assert other not in answered.text
    assert "error" in answered.json()
    assert world.upstream.names() == ["a"]


# -- recorded ------------------------------------------------------------------------------

OTHERS = [name for name in ENDPOINTS if name != "responses"]


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("json", *OTHERS))
def test_the_bytes_of_recorded_answers(world, recording):
    world.channel("a", recording.action)

    answered = post(world, ENDPOINTS[recording.endpoint][1])

    assert answered.status_code == 200
    assert answered.content == recording.body
    assert answered.headers["content-type"] == recording.content_type


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("stream", *OTHERS))
def test_the_bytes_of_recorded_streams(world, recording):
    world.channel("a", recording.action)

    answered = post(
        world,
        ENDPOINTS[recording.endpoint][1],
        stream=True,
        stream_options={"include_usage": True},
    )

    assert answered.content == recording.body


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("err", *OTHERS, "responses"))
def test_recorded_errors_keep_their_status_and_words(world, recording):
    world.channel("a", recording.action)

    answered = post(world, ENDPOINTS[recording.endpoint][1])

    problem = json.loads(recording.body)
    problem = problem.get("error", problem)
    said = problem if isinstance(problem, str) else problem.get("message", problem.get("detail"))
    assert answered.status_code == recording.status
    assert answered.json()["error"]["message"].startswith(said[:40].split("<")[0])
