"""The official openai SDK against the running relay, on every endpoint beside chat.

What a recording says must arrive in the SDK; what the SDK sends must arrive upstream, byte
for byte. The recordings are optional (mark `wire`); a few answers made by hand always run.
"""

from __future__ import annotations

import asyncio
import json
import os
from operator import attrgetter

import httpx
import openai
import pytest

from tests.support.upstream import answer, error, stream
from tests.support.wire import arrives_as, recordings, without_usage

# Endpoints that OpenAI itself gave up still have upstreams.
pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")

SOUND = b"\xff\xf3\0\r\n--" + os.urandom(100_000)
HOW = ["sync", "async"]

# What to call for an endpoint, and with what if the recording does not tell.
METHODS = {
    "completions": ("completions.create", {"prompt": "hi"}),
    "responses": ("responses.create", {"input": "hi"}),
    "embeddings": ("embeddings.create", {"input": "hi", "encoding_format": "float"}),
    "moderations": ("moderations.create", {"input": "hi"}),
    "images-generations": ("images.generate", {"prompt": "hi"}),
    "images-edits": ("images.edit", {"prompt": "hi", "image": ("a.png", SOUND)}),
    "images-variations": ("images.create_variation", {"image": ("a.png", SOUND)}),
    "audio-transcriptions": ("audio.transcriptions.create", {"file": ("a.wav", SOUND)}),
    "audio-translations": ("audio.translations.create", {"file": ("a.wav", SOUND)}),
    "audio-speech": ("audio.speech.create", {"input": "hi", "voice": "alloy"}),
}


class Sdk:
    """The SDK, sync and async, and the bodies that it sent."""

    def __init__(self, world) -> None:
        self.bodies: list[bytes] = []
        self._options = {
            "base_url": f"{world.relay.url}/v1",
            "api_key": world.key,
            "max_retries": 0,
            "timeout": 30,
        }

    def call(self, how: str, method: str, **fields):
        """Return what a method gives; the list of the events if it streams."""
        fields = {"model": "m", **fields}
        is_stream = bool(fields.get("stream"))
        if how == "async":
            return asyncio.run(self._call_async(method, fields, is_stream=is_stream))
        http = httpx.Client(event_hooks={"request": [self._note]})
        with openai.OpenAI(**self._options, http_client=http) as client:
            result = attrgetter(method)(client)(**fields)
            return list(result) if is_stream else result

    async def _call_async(self, method: str, fields: dict, *, is_stream: bool):
        async def note(request: httpx.Request) -> None:
            self.bodies.append(await request.aread())

        http = httpx.AsyncClient(event_hooks={"request": [note]})
        async with openai.AsyncOpenAI(**self._options, http_client=http) as client:
            result = await attrgetter(method)(client)(**fields)
            return [part async for part in result] if is_stream else result

    def _note(self, request: httpx.Request) -> None:
        self.bodies.append(request.read())


@pytest.fixture
def sdk(world):
    return Sdk(world)


def plain(part) -> dict:
    """Return an SDK object as the JSON that it was read from."""
    return part.model_dump(mode="json", exclude_unset=True, warnings=False, by_alias=True)


def assert_bodies_arrived(world, sdk) -> None:
    assert [seen.body for seen in world.upstream.seen] == list(map(arrives_as, sdk.bodies))


# -- made by hand --------------------------------------------------------------------------


def event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def created():
    return event("response.created", response={"id": "r", "status": "in_progress", "output": []})


@pytest.mark.parametrize("how", HOW)
def test_a_file_goes_up_and_text_comes_down(world, sdk, how):
    world.channel("a", error(500), priority=2)
    world.channel(
        "b",
        answer(200, "Grüße\n".encode(), headers={"Content-Type": "text/plain; charset=utf-8"}),
        priority=1,
    )
    world.options(RetryTimes=1)
    world.ready()

    text = sdk.call(
        how,
        "audio.transcriptions.create",
        file=("ä.wav", SOUND, "audio/wav"),
        response_format="text",
        timestamp_granularities=["word", "segment"],
    )

    assert text == "Grüße\n"
    assert [seen.body for seen in world.upstream.seen] == sdk.bodies * 2
    assert SOUND in sdk.bodies[0]


@pytest.mark.parametrize("how", HOW)
def test_sound_comes_down(world, sdk, how):
    world.channel("a", answer(200, SOUND, headers={"Content-Type": "audio/mpeg"}))
    world.ready()

    result = sdk.call(how, "audio.speech.create", input="hi", voice="alloy")

    assert result.content == SOUND
    assert_bodies_arrived(world, sdk)


@pytest.mark.parametrize("how", HOW)
def test_embeddings_in_base64_are_read(world, sdk, how):
    """What the SDK asks for by itself."""
    item = {"object": "embedding", "index": 0, "embedding": "AAAAPw=="}
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    world.channel(
        "a", answer(200, {"object": "list", "model": "m", "data": [item], "usage": usage})
    )
    world.ready()

    result = sdk.call(how, "embeddings.create", input="hi")

    assert result.data[0].embedding == [0.5]
    assert world.upstream.seen[0].json["encoding_format"] == "base64"
    assert_bodies_arrived(world, sdk)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("endpoint", "pieces"),
    [
        ("responses", [created(), event("response.output_text.delta", delta="so far")]),
        ("images-generations", [event("image_generation.partial_image", b64_json="iVBO")]),
        ("images-edits", [event("image_edit.partial_image", b64_json="iVBO")]),
        ("audio-transcriptions", [event("transcript.text.delta", delta="so far")]),
        ("completions", [b'data: {"choices":[{"text":"so far"}]}\n\n']),
    ],
)
def test_a_stream_that_breaks_raises_in_the_sdk(world, sdk, how, endpoint, pieces):
    world.channel("a", stream(pieces, end="cut"))
    world.ready()
    method, fields = METHODS[endpoint]

    with pytest.raises(openai.APIError, match="request id: ") as raised:
        sdk.call(how, method, **fields, stream=True)

    assert raised.value.code == "stream_interrupted"


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("endpoint", METHODS)
def test_errors_raise_the_right_exception(world, sdk, how, endpoint):
    world.channel("a", error(429, "what happened", code="a_code"))
    world.ready()
    method, fields = METHODS[endpoint]

    with pytest.raises(openai.RateLimitError) as raised:
        sdk.call(how, method, **fields)

    assert raised.value.code == "a_code"
    assert raised.value.request_id in raised.value.message


@pytest.mark.parametrize("how", HOW)
def test_the_sdk_may_leave_the_model_out(world, sdk, how):
    world.channel(
        "a", answer(200, {"created": 1, "data": [{"url": "u"}]}), model_names=["dall-e-2"]
    )
    world.ready()

    result = sdk.call(how, "images.edit", prompt="hi", image=("a.png", SOUND), model=openai.omit)

    assert result.data[0].url == "u"
    assert_bodies_arrived(world, sdk)


# -- recorded ------------------------------------------------------------------------------

ENDPOINTS = tuple(METHODS)
# Says `audio_data` in JSON, which this SDK gives as it is, like the sound of the others.
BINARY = ("audio-speech",)


def fields_of(recording) -> dict:
    """Return what to call the SDK with so that it sends the recorded request."""
    _, fields = METHODS[recording.endpoint]
    body = recording.document["request"].get("body")
    if not isinstance(body, dict) or not body.keys() >= fields.keys() - {"encoding_format"}:
        return dict(fields)
    known = {name: body.get(name, value) for name, value in fields.items()}
    rest = {k: v for k, v in body.items() if k not in known and k not in ("model", "stream")}
    return {**known, "model": body.get("model", "m"), "extra_body": rest}


@pytest.mark.wire
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("recording", recordings("json", *ENDPOINTS))
def test_recorded_answers(world, sdk, recording, how):
    world.channel("a", recording.action, model_names=["*"])
    world.ready()
    method, _ = METHODS[recording.endpoint]

    if recording.is_cut:
        with pytest.raises(openai.InternalServerError):
            sdk.call(how, method, **fields_of(recording))
    elif recording.endpoint in BINARY:
        assert sdk.call(how, method, **fields_of(recording)).content == recording.body
    else:
        result = sdk.call(how, method, **fields_of(recording))
        assert plain(result) == json.loads(recording.body)

    assert_bodies_arrived(world, sdk)


@pytest.mark.wire
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("recording", recordings("stream", *ENDPOINTS))
def test_recorded_streams(world, sdk, recording, how):
    world.channel("a", recording.action, model_names=["*"])
    world.ready()
    method, _ = METHODS[recording.endpoint]
    fields = {**fields_of(recording), "stream": True}

    if recording.is_cut or "sse:errorchunk" in recording.document["features"]:
        with pytest.raises(openai.APIError):
            sdk.call(how, method, **fields)
    else:
        data = [data for data, _ in recording.events() if data and data.strip() != b"[DONE]"]
        arrived = [plain(part) for part in sdk.call(how, method, **fields)]
        want = [json.loads(text) for text in data]
        assert arrived == without_usage(want, fields)

    assert_bodies_arrived(world, sdk)


@pytest.mark.wire
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("recording", recordings("err", *ENDPOINTS))
def test_recorded_errors(world, sdk, recording, how):
    world.channel("a", recording.action, model_names=["*"])
    world.ready()
    method, _ = METHODS[recording.endpoint]

    with pytest.raises(openai.APIStatusError) as raised:
        sdk.call(how, method, **fields_of(recording))

    assert raised.value.status_code == recording.status
    assert_bodies_arrived(world, sdk)
