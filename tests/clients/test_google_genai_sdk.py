"""The official google-genai SDK against the running relay, its upstream replaying real traffic.

What a recording says must arrive in the SDK; what the SDK sends must arrive upstream, byte
for byte. The recordings are optional (mark `wire`); a few answers made by hand always run.
"""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from google import genai
from google.genai import errors, types

from tests.conftest import WIRE_DIR
from tests.support import gemini as g
from tests.support.upstream import answer, reset, stream

# The async SDK inherits from aiohttp's session, which aiohttp frowns upon.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

PACKET = 997  # bytes: cuts events and characters anywhere
CONTENTS = "Grüße \u2028 \U0001f600"
WEATHER = types.FunctionDeclaration(
    name="look_up",
    description="Looks up a word.",
    parameters=types.Schema(type="OBJECT", properties={"word": types.Schema(type="STRING")}),
)
CALL = {"functionCall": {"name": "look_up", "args": {"word": "é"}}, "thoughtSignature": "cw=="}


class Sdk:
    """The SDK, sync and async, and the bodies that the sync one sent."""

    def __init__(self, world) -> None:
        self.bodies: list[bytes] = []
        self.http = httpx.Client(event_hooks={"request": [self._note]}, timeout=30)
        # Since 3.0 the SDK asks for `v1` unless told.
        self._options = {
            "base_url": world.relay.url,
            "api_version": "v1beta",
            "timeout": 30_000,
        }
        self._key = world.key
        self.client = self.with_key(world.key)

    def with_key(self, key):
        return genai.Client(api_key=key, http_options={**self._options, "httpx_client": self.http})

    def _note(self, request) -> None:
        self.bodies.append(request.read())

    def create(self, model="m", contents=CONTENTS, **config):
        return self.client.models.generate_content(model=model, contents=contents, config=config)

    def create_stream(self, model="m", contents=CONTENTS, **config):
        return list(self.stream(model, contents, **config))

    def stream(self, model="m", contents=CONTENTS, **config):
        return self.client.models.generate_content_stream(
            model=model, contents=contents, config=config
        )

    def run(self, work):
        """Return what `work(models)` says, by the async client."""

        async def run():
            client = genai.Client(api_key=self._key, http_options=self._options)
            try:
                return await work(client.aio.models)
            finally:
                await client.aio.aclose()
                client.close()

        return asyncio.run(run())

    def create_async(self, model="m", contents=CONTENTS, **config):
        return self.run(
            lambda models: models.generate_content(model=model, contents=contents, config=config)
        )

    def create_stream_async(self, model="m", contents=CONTENTS, **config):
        async def work(models):
            parts = await models.generate_content_stream(
                model=model, contents=contents, config=config
            )
            return [part async for part in parts]

        return self.run(work)


WHOLE = pytest.mark.parametrize("how", ["create", "create_async"])
STREAMED = pytest.mark.parametrize("how", ["create_stream", "create_stream_async"])
EVERY_WAY = pytest.mark.parametrize(
    "how", ["create", "create_async", "create_stream", "create_stream_async"]
)


@pytest.fixture
def sdk(world):
    sdk = Sdk(world)
    yield sdk
    sdk.client.close()
    sdk.http.close()


def channel(world, name, *actions, **fields):
    base_url = world.upstream.url(name).removesuffix("/v1") + "/v1beta"
    values = {"provider": "gemini", "base_url": base_url}
    return world.channel(name, *actions, **values | fields)


def plain(part) -> dict:
    """Return an SDK object as the JSON that it was read from."""
    return part.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"sdk_http_response"}
    )


def assert_bodies_arrived(world, sdk) -> None:
    if sdk.bodies:  # of the sync client
        assert [seen.body for seen in world.upstream.seen] == sdk.bodies


# -- made by hand --------------------------------------------------------------------------


@WHOLE
def test_a_plain_answer(world, sdk, how):
    channel(world, "a", answer(200, g.content("hello")))
    world.ready()

    response = getattr(sdk, how)(system_instruction="be brief", max_output_tokens=9)

    assert response.text == "hello"
    assert response.model_version == "m-upstream"
    assert response.usage_metadata.candidates_token_count == 2
    assert_bodies_arrived(world, sdk)


def test_what_the_sdk_sends_and_what_goes_upstream(world, sdk):
    channel(world, "a", answer(200, g.content()))
    world.ready()

    sdk.create(safety_settings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "OFF"}])

    [seen] = world.upstream.seen
    assert seen.target == "/a/v1beta/models/m:generateContent"
    assert seen.headers["x-goog-api-key"] == "sk-upstream-a-0123456789"
    assert not seen.headers.keys() & {"authorization", "x-goog-api-client", "x-server-timeout"}
    assert_bodies_arrived(world, sdk)


@STREAMED
def test_a_streamed_answer(world, sdk, how):
    channel(world, "a", stream(g.whole_stream("Hel", "lo", " é")))
    world.ready()

    parts = getattr(sdk, how)()

    assert [part.text for part in parts] == ["Hel", "lo", " é", ""]
    assert parts[-1].candidates[0].finish_reason == "STOP"
    assert parts[-1].usage_metadata.prompt_token_count == 3
    assert_bodies_arrived(world, sdk)


@STREAMED
@pytest.mark.parametrize("is_array", [False, True])
def test_a_stream_that_the_upstream_gave_whole(world, sdk, how, is_array):
    body = g.array(g.whole_stream("Hel", "lo")) if is_array else g.content("Hello")
    channel(world, "a", answer(200, body))
    world.ready()

    assert "".join(part.text for part in getattr(sdk, how)()) == "Hello"


@EVERY_WAY
def test_function_calls(world, sdk, how):
    said = g.said({"text": "hm", "thought": True}, CALL, CALL, reason="STOP")
    action = stream([g.event(said)]) if "stream" in how else answer(200, said)
    channel(world, "a", action)
    world.ready()

    told = getattr(sdk, how)(
        tools=[types.Tool(function_declarations=[WEATHER])],
        automatic_function_calling={"disable": True},
    )

    response = told[0] if "stream" in how else told
    assert [call.args for call in response.function_calls] == [{"word": "é"}] * 2
    assert response.candidates[0].content.parts[1].thought_signature == b"s"
    assert_bodies_arrived(world, sdk)


def test_the_sdks_own_loop_of_function_calls(world, sdk):
    def look_up(word: str) -> str:
        """Looks up a word."""
        return word.upper()

    channel(world, "a", answer(200, g.said(CALL, reason="STOP")), answer(200, g.content("done")))
    world.ready()

    response = sdk.create(tools=[look_up])

    assert response.text == "done"
    [_, second] = world.upstream.seen
    [part] = second.json["contents"][-1]["parts"]
    assert part["functionResponse"]["response"] == {"result": "É"}
    assert_bodies_arrived(world, sdk)


def test_a_chat(world, sdk):
    channel(world, "a", stream(g.whole_stream("one")), stream(g.whole_stream("two")))
    world.ready()
    chat = sdk.client.chats.create(model="models/m")

    texts = [p.text for words in "ab" for p in chat.send_message_stream(words) if p.text]

    assert texts == ["one", "two"]
    assert_bodies_arrived(world, sdk)


def test_embeddings(world, sdk):
    values = {"embeddings": [{"values": [0.5, 1.0]}, {"values": [0.0]}]}
    channel(world, "a", answer(200, values))
    world.ready()

    async def work(models):
        return await models.embed_content(model="m", contents=["a", "b"])

    for response in (
        sdk.client.models.embed_content(model="m", contents=["a", "b"]),
        sdk.run(work),
    ):
        assert [e.values for e in response.embeddings] == [[0.5, 1.0], [0.0]]
    first, _ = world.upstream.seen
    assert first.target.endswith("/models/m:batchEmbedContents")
    assert [first.body] == sdk.bodies


def test_embeddings_of_a_model_with_another_name_upstream(world, sdk):
    action = answer(200, {"embeddings": [{"values": [0.5]}]})
    channel(world, "a", action, model_mapping={"m": "other"})
    world.ready()

    sdk.client.models.embed_content(model="m", contents="a")

    [seen] = world.upstream.seen
    assert "/models/other:" in seen.target
    assert seen.json["requests"][0]["model"] == "models/other"


def test_counting_tokens(world, sdk):
    channel(world, "a", answer(200, {"totalTokens": 31}))
    world.ready()

    async def work(models):
        return await models.count_tokens(model="m", contents=CONTENTS)

    assert sdk.client.models.count_tokens(model="m", contents=CONTENTS).total_tokens == 31
    assert sdk.run(work).total_tokens == 31
    assert [world.upstream.seen[0].body] == sdk.bodies


def test_models(world, sdk):
    channel(world, "a", model_names=["m2", "m1"])
    world.ready()

    models = list(sdk.client.models.list(config={"page_size": 1}))

    assert [model.name for model in models] == ["models/m1", "models/m2"]
    assert "generateContent" in models[0].supported_actions
    assert sdk.client.models.get(model="m1").display_name == "m1"
    with pytest.raises(errors.ClientError) as unknown:
        sdk.client.models.get(model="m3")
    assert (unknown.value.code, unknown.value.status) == (404, "NOT_FOUND")


def test_failover_is_invisible_to_the_sdk(world, sdk):
    channel(world, "a", stream([b": ping\n\n", g.text("")], end="cut"), priority=2)
    channel(world, "b", stream(g.whole_stream("from b")), priority=1)
    world.options(RetryTimes=1)
    world.ready()

    assert "".join(part.text for part in sdk.create_stream()) == "from b"
    first, second = world.upstream.seen
    assert first.body == second.body == sdk.bodies[0]


@pytest.mark.parametrize(
    ("last", "told"),
    [([], (502, "UNAVAILABLE")), ([g.event(g.problem(503))], (503, "INTERNAL"))],
    ids=["cut", "error-event"],
)
def test_a_stream_that_breaks_raises_in_the_sdk(world, sdk, last, told):
    channel(world, "a", stream([g.text("so far"), *last], end="cut"))
    world.ready()
    parts = iter(sdk.stream())

    assert next(parts).text == "so far"
    with pytest.raises(errors.ServerError, match="request id: ") as raised:
        next(parts)

    assert (raised.value.code, raised.value.status) == told


def test_a_stream_that_breaks_raises_in_the_async_sdk(world, sdk):
    channel(world, "a", stream([g.text("so far")], end="cut"))
    world.ready()

    with pytest.raises(errors.ServerError, match="request id: "):
        sdk.create_stream_async()


@pytest.mark.parametrize(
    ("status", "exception"),
    [
        *((status, errors.ClientError) for status in (400, 401, 403, 404, 413, 429)),
        *((status, errors.ServerError) for status in (500, 503, 504)),
    ],
)
@EVERY_WAY
def test_error_statuses_raise_the_right_exception(world, sdk, status, exception, how):
    channel(world, "a", g.error(status, "what happened", name="ABORTED", reason="WHY"))
    world.ready()

    with pytest.raises(exception) as raised:
        getattr(sdk, how)()

    assert (raised.value.code, raised.value.status) == (status, "ABORTED")
    assert raised.value.message.startswith("what happened (request id: ")
    assert raised.value.details["error"]["details"][0]["reason"] == "WHY"


def test_errors_of_the_relay_raise_the_right_exception(world, sdk):
    channel(world, "a", reset())
    world.channel("openai", model_names=["gpt"])
    world.ready()
    world.upstream.close_idle()
    wrong = sdk.with_key("sk-relay-wrong")

    with pytest.raises(errors.ServerError) as unreachable:
        sdk.create()
    with pytest.raises(errors.ClientError) as unknown:
        sdk.create("nonsense")
    with pytest.raises(errors.ServerError) as unserved:
        sdk.create_stream("gpt")
    with pytest.raises(errors.ClientError) as refused:
        wrong.models.count_tokens(model="m", contents="x")
    with pytest.raises(errors.ClientError) as elsewhere:
        list(sdk.client.files.list())

    raised = [unreachable, unknown, unserved, refused, elsewhere]
    assert [error.value.details["error"]["details"][0]["reason"] for error in raised] == [
        "UPSTREAM_UNREACHABLE",
        "MODEL_NOT_FOUND",
        "NO_CHANNEL_AVAILABLE",
        "INVALID_API_KEY",
        "UNKNOWN_URL",
    ]


def test_a_large_image_arrives_untouched(world, sdk):
    channel(world, "a", answer(200, g.content()))
    world.ready()
    image = types.Part.from_bytes(data=b"ABC" * 50_000, mime_type="image/png")

    sdk.create(contents=[image, "what is it?"])

    assert_bodies_arrived(world, sdk)


# -- recorded ------------------------------------------------------------------------------


def recordings(*patterns: str) -> list:
    """Return the recordings of these names, or one that skips when there are none."""
    found = [p for name in patterns for p in sorted((WIRE_DIR / "recordings").glob(name))]
    return [pytest.param(path, id=path.stem) for path in found] or [
        pytest.param(None, id="no-recordings")
    ]


@pytest.fixture
def recording(request, wire_dir):
    return request.param


def replay(world, path) -> bytes:
    """Make a channel that answers as recorded; return the body."""
    response, body = json.loads(path.read_text())["response"], g.recorded(path)
    kind = {"Content-Type": response["headers"].get("content-type", "application/json")}
    packets = [body[i : i + PACKET] for i in range(0, len(body), PACKET)]
    is_stream = response["status"] == 200 and "stream" in kind["Content-Type"]
    action = stream(packets, headers=kind) if is_stream else None
    channel(world, "a", action or answer(response["status"], body, headers=kind))
    world.ready()
    return body


def texts_and_calls(documents) -> list:
    """Return what the parts of all chunks say, read apart from the SDK."""
    candidates = [c for d in documents for c in d.get("candidates", [])]
    parts = [part for c in candidates for part in c.get("content", {}).get("parts", [])]
    return [part.get("functionCall", {}).get("name", part.get("text")) for part in parts]


@pytest.mark.wire
@WHOLE
@pytest.mark.parametrize("recording", recordings("*__generateContent__json__*"), indirect=True)
def test_recorded_answers(world, sdk, recording, how):
    document = json.loads(replay(world, recording))

    response = getattr(sdk, how)()

    assert texts_and_calls([plain(response)]) == texts_and_calls([document])
    assert response.model_version == document["modelVersion"]
    assert response.candidates[0].finish_reason == document["candidates"][0]["finishReason"]


@pytest.mark.wire
@STREAMED
@pytest.mark.parametrize(
    "recording", recordings("*__streamGenerateContent__stream__*"), indirect=True
)
def test_recorded_streams(world, sdk, recording, how):
    body = replay(world, recording)

    parts = getattr(sdk, how)()

    lines = [line for line in body.splitlines() if line.startswith(b"data: ")]
    documents = [json.loads(line[6:]) for line in lines]
    assert texts_and_calls(map(plain, parts)) == texts_and_calls(documents)
    assert len(parts) == len(documents)


@pytest.mark.wire
@STREAMED
@pytest.mark.parametrize("recording", recordings("gemini__streamGen*__json__*"), indirect=True)
def test_recorded_arrays(world, sdk, recording, how):
    documents = json.loads(replay(world, recording))

    parts = getattr(sdk, how)()

    assert texts_and_calls(map(plain, parts)) == texts_and_calls(documents)


@pytest.mark.wire
@EVERY_WAY
@pytest.mark.parametrize(
    "recording",
    recordings("*__generateContent__err*", "*__streamGenerateContent__err*"),
    indirect=True,
)
def test_recorded_errors(world, sdk, recording, how):
    problem = json.loads(replay(world, recording))["error"]

    with pytest.raises(errors.ClientError) as raised:
        getattr(sdk, how)()

    assert (raised.value.code, raised.value.status) == (problem["code"], problem["status"])
    assert raised.value.message.startswith(problem["message"][:40])


def test_the_version_that_the_sdk_asks_for_by_itself(world):
    """It is `v1` since 3.0, where OpenAI and Anthropic list their models too."""
    channel(world, "a", answer(200, g.content("hello")))
    world.ready()
    client = genai.Client(api_key=world.key, http_options={"base_url": world.relay.url})

    assert client.models.generate_content(model="m", contents="hi").text == "hello"
    assert [model.name for model in client.models.list()] == ["models/m"]
    assert client.models.get(model="m").name == "models/m"
