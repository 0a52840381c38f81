"""The official anthropic SDK against the running relay, its upstream replaying real traffic.

What a recording says must arrive in the SDK; what the SDK sends must arrive upstream, byte
for byte. The recordings are optional (mark `wire`); a few answers made by hand always run.
"""

from __future__ import annotations

import asyncio
import json

import anthropic
import httpx2  # the SDK's own HTTP client
import pytest

from relay_app.core.redact import redact
from relay_app.dialects.anthropic import AnthropicMessages
from tests.conftest import WIRE_DIR
from tests.support import anthropic as a
from tests.support.upstream import answer, reset, stream

# The SDK warns by the calendar about models of recordings.
pytestmark = pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")

VERSION = "2026-10-21"
PACKET = 997  # bytes: cuts events and characters anywhere
MESSAGES = [{"role": "user", "content": "Grüße \u2028 \U0001f600"}]
TOOLS = [
    {
        "name": "look_up",
        "description": "Looks up a word.",
        "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}},
    }
]
# By status; a subclass of the one for 5xx is named where there is one.
EXCEPTIONS = {
    400: anthropic.BadRequestError,
    401: anthropic.AuthenticationError,
    402: anthropic.APIStatusError,
    403: anthropic.PermissionDeniedError,
    404: anthropic.NotFoundError,
    409: anthropic.ConflictError,
    413: anthropic.APIStatusError,
    422: anthropic.UnprocessableEntityError,
    429: anthropic.RateLimitError,
    500: anthropic.InternalServerError,
    503: anthropic.InternalServerError,
    529: anthropic.InternalServerError,
}


class Sdk:
    """The SDK, sync and async, and the bodies that it sent."""

    def __init__(self, world) -> None:
        self.bodies: list[bytes] = []
        self._options = {
            "base_url": world.relay.url,
            "api_key": world.key,
            "max_retries": 0,
            "timeout": 30,
        }
        self.client = anthropic.Anthropic(
            **self._options, http_client=httpx2.Client(event_hooks={"request": [self._note]})
        )

    def _note(self, request) -> None:
        self.bodies.append(request.content)

    def create(self, **fields):
        return self.client.messages.create(
            **{"model": "m", "max_tokens": 9, "messages": MESSAGES} | fields
        )

    def create_async(self, **fields):
        """Return the message, or the list of the events, of the async client."""

        async def note(request) -> None:
            self._note(request)

        async def run():
            http = httpx2.AsyncClient(event_hooks={"request": [note]})
            async with anthropic.AsyncAnthropic(**self._options, http_client=http) as client:
                result = await client.messages.create(
                    **{"model": "m", "max_tokens": 9, "messages": MESSAGES} | fields
                )
                return [part async for part in result] if fields.get("stream") else result

        return asyncio.run(run())


@pytest.fixture
def sdk(world):
    sdk = Sdk(world)
    yield sdk
    sdk.client.close()


def channel(world, name, *actions, **fields):
    return world.channel(name, *actions, **{"provider": "anthropic", **fields})


def plain(part) -> dict:
    """Return an SDK object as the JSON that it was read from."""
    return part.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)


def assert_bodies_arrived(world, sdk) -> None:
    assert [seen.body for seen in world.upstream.seen] == sdk.bodies


# -- made by hand --------------------------------------------------------------------------

TOOL_CALL = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"word": "é"}}
TOOL_STREAM = [
    a.start(),
    a.block(type="tool_use", id="toolu_1", name="look_up", input={}),
    a.PING,
    a.arguments(""),
    a.arguments('{"wo'),
    a.arguments('rd": "x"}'),
    a.block_stop(),
    a.block(1, type="tool_use", id="toolu_2", name="look_up", input={}),
    a.block_stop(1),
    a.finish("tool_use"),
    a.STOP,
]


@pytest.mark.parametrize("how", ["create", "create_async"])
def test_a_plain_answer(world, sdk, how):
    channel(world, "a", answer(200, a.message("hello")))
    world.ready()

    message = getattr(sdk, how)(system="be brief", stop_sequences=["x"])

    assert plain(message) == a.message("hello")
    assert message.content[0].text == "hello"
    assert message._request_id
    assert_bodies_arrived(world, sdk)


def test_what_the_sdk_sends_and_what_goes_upstream(world, sdk):
    """It sends its key as Bearer; the upstream wants the channel's in `x-api-key`."""
    channel(world, "a", answer(200, a.message()))
    world.ready()

    sdk.client.beta.messages.create(
        model="m",
        max_tokens=9,
        messages=MESSAGES,
        betas=["files-api-2025-04-14"],
        extra_query={"beta": "true"},
    )

    [seen] = world.upstream.seen
    assert seen.target == "/a/v1/messages?beta=true"
    assert seen.headers["anthropic-version"] == VERSION
    assert seen.headers["anthropic-beta"] == "files-api-2025-04-14"
    assert seen.headers["x-api-key"] == "sk-upstream-a-0123456789"
    assert "authorization" not in seen.headers
    assert not [name for name in seen.headers if name.startswith("x-stainless")]
    assert_bodies_arrived(world, sdk)


@pytest.mark.parametrize("how", ["create", "create_async"])
def test_a_streamed_answer(world, sdk, how):
    channel(world, "a", stream(a.whole_stream("Hel", "lo", " é")))
    world.ready()

    events = list(getattr(sdk, how)(stream=True))

    deltas = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert deltas == ["Hel", "lo", " é"]
    assert [event.type for event in events][-2:] == ["message_delta", "message_stop"]
    assert_bodies_arrived(world, sdk)


@pytest.mark.parametrize("how", ["create", "create_async"])
def test_tool_calls(world, sdk, how):
    said = a.message(content=[TOOL_CALL, {**TOOL_CALL, "id": "toolu_2"}], stop_reason="tool_use")
    channel(world, "a", answer(200, said))
    world.ready()

    message = getattr(sdk, how)(tools=TOOLS, tool_choice={"type": "auto"})

    assert [block.input for block in message.content] == [{"word": "é"}] * 2
    assert message.stop_reason == "tool_use"
    assert_bodies_arrived(world, sdk)


def test_streamed_tool_calls_by_the_sdks_own_helper(world, sdk):
    channel(world, "a", stream(TOOL_STREAM))
    world.ready()

    with sdk.client.messages.stream(
        model="m", max_tokens=9, messages=MESSAGES, tools=TOOLS
    ) as events:
        message = events.get_final_message()

    assert [block.input for block in message.content] == [{"word": "x"}, {}]
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 2)
    assert_bodies_arrived(world, sdk)


def test_a_missing_end_is_no_trouble_for_the_helper(world, sdk):
    channel(world, "a", stream(a.whole_stream("hello")[:-1]))
    world.ready()

    with sdk.client.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as events:
        types = [event.type for event in events]
        text = events.get_final_text()

    assert text == "hello"
    assert types[-1] == "message_stop"


def test_failover_is_invisible_to_the_sdk(world, sdk):
    channel(world, "a", stream([a.start(), a.block(), a.PING], end="cut"), priority=2)
    channel(world, "b", stream(a.whole_stream("from b")), priority=1)
    world.options(RetryTimes=1)
    world.ready()

    events = list(sdk.create(stream=True))

    assert [e.delta.text for e in events if e.type == "content_block_delta"] == ["from b"]
    assert [event.type for event in events].count("message_start") == 1
    first, second = world.upstream.seen
    assert first.body == second.body == sdk.bodies[0]


@pytest.mark.parametrize(
    ("last", "told"),
    [([], "api_error"), ([a.error_event()], "overloaded_error")],
    ids=["cut", "error-event"],
)
def test_a_stream_that_breaks_raises_in_the_sdk(world, sdk, last, told):
    channel(world, "a", stream([a.start(), a.block(), a.text("so far"), *last], end="cut"))
    world.ready()
    events = iter(sdk.create(stream=True))

    types = [next(events).type for _ in range(3)]
    with pytest.raises(anthropic.APIStatusError, match="request id: ") as raised:
        next(events)

    assert types == ["message_start", "content_block_start", "content_block_delta"]
    assert raised.value.type == told
    assert raised.value.error_code == "stream_interrupted"


@pytest.mark.parametrize("status", EXCEPTIONS)
@pytest.mark.parametrize("is_stream", [False, True])
def test_error_statuses_raise_the_right_exception(world, sdk, status, is_stream):
    fault = a.error(status, "what happened", type_="conflict_error", details={"error_code": "c"})
    channel(world, "a", fault)
    world.ready()

    with pytest.raises(EXCEPTIONS[status]) as raised:
        sdk.create(stream=is_stream)

    assert raised.value.status_code == status
    assert raised.value.api_message.startswith("what happened (request id: ")
    assert (raised.value.type, raised.value.error_code) == ("conflict_error", "c")
    assert raised.value.request_id in raised.value.api_message


def test_errors_of_the_relay_raise_the_right_exception(world, sdk):
    channel(world, "a", reset())
    world.channel("openai", model_names=["gpt"])
    world.ready()
    world.upstream.close_idle()

    with pytest.raises(anthropic.InternalServerError) as unreachable:
        sdk.create()
    with pytest.raises(anthropic.NotFoundError) as unknown:
        sdk.create(model="nonsense")
    with pytest.raises(anthropic.InternalServerError) as unserved:
        sdk.create(model="gpt")
    with pytest.raises(anthropic.AuthenticationError) as wrong:
        sdk.client.with_options(api_key="sk-relay-wrong").messages.create(
            model="m", max_tokens=9, messages=MESSAGES
        )
    with pytest.raises(anthropic.NotFoundError) as elsewhere:
        sdk.client.messages.batches.list()

    raised = [unreachable, unknown, unserved, wrong, elsewhere]
    assert [error.value.error_code for error in raised] == [
        "upstream_unreachable",
        "model_not_found",
        "no_channel_available",
        "invalid_api_key",
        "unknown_url",
    ]


def test_the_list_of_models(world, sdk):
    channel(world, "a", model_names=["m2", "m1"])
    world.ready()

    models = list(sdk.client.models.list())

    assert [model.id for model in models] == ["m1", "m2"]
    assert models[0].created_at.year == 1970


def test_counting_tokens(world, sdk):
    channel(world, "a", answer(200, {"input_tokens": 2095}))
    world.ready()

    counted = sdk.client.messages.count_tokens(model="m", messages=MESSAGES, tools=TOOLS)
    again = sdk.client.beta.messages.count_tokens(model="m", messages=MESSAGES, betas=["x"])

    assert (counted.input_tokens, again.input_tokens) == (2095, 2095)
    assert {seen.target for seen in world.upstream.seen} == {"/a/v1/messages/count_tokens"}
    assert_bodies_arrived(world, sdk)


def test_an_image_and_unknown_fields_arrive_untouched(world, sdk):
    channel(world, "a", answer(200, a.message()))
    world.ready()
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD" * 50_000}
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image", "source": source}]

    sdk.create(
        messages=[{"role": "user", "content": parts}], extra_body={"top_q": 5, "x": [1.0, None]}
    )

    assert_bodies_arrived(world, sdk)
    assert world.upstream.seen[0].json["top_q"] == 5


# -- recorded ------------------------------------------------------------------------------


def recordings(kind: str) -> list:
    """Return the recorded messages of a kind, or one that skips when there are none."""
    names = sorted((WIRE_DIR / "recordings").glob(f"*__messages__{kind}*.json"))
    return [pytest.param(path, id=path.stem) for path in names] or [
        pytest.param(None, id="no-recordings")
    ]


@pytest.fixture
def recording(request, wire_dir):
    return json.loads(request.param.read_text())


def fields_of(recording) -> dict:
    """Return what to call the SDK with so that it sends the recorded request."""
    body = recording["request"].get("body")
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return {}
    known = {name: body[name] for name in ("model", "max_tokens", "messages") if name in body}
    rest = {k: v for k, v in body.items() if k not in {*known, "stream"}}
    return {**known, "extra_body": rest}


def action_of(recording):
    """Return what answers as recorded."""
    response = recording["response"]
    body = response["body"].encode()
    headers = {
        name: value
        for name, value in response["headers"].items()
        if name.lower()
        not in ("content-length", "content-encoding", "transfer-encoding", "content-type")
    }
    headers["Content-Type"] = response["headers"].get("content-type", "application/json")
    if "stream" not in headers["Content-Type"]:
        return answer(response["status"], body, headers=headers)
    packets = [body[i : i + PACKET] for i in range(0, len(body), PACKET)]
    return stream(packets, headers=headers)


def replay(world, recording) -> bytes:
    """Make a channel that answers as recorded; return the body."""
    channel(world, "a", action_of(recording), model_names=["*"])
    world.ready()
    return recording["response"]["body"].encode()


@pytest.mark.wire
@pytest.mark.parametrize("how", ["create", "create_async"])
@pytest.mark.parametrize("recording", recordings("json"), indirect=True)
def test_recorded_answers(world, sdk, recording, how):
    body = replay(world, recording)

    message = getattr(sdk, how)(**fields_of(recording))

    assert plain(message) == json.loads(body)
    assert_bodies_arrived(world, sdk)


def data_of(body: bytes) -> list[dict]:
    """Return the JSON of each event but pings, read apart from the relay's own code."""
    lines = body.decode().replace("\r\n", "\n").split("\n")
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return [document for document in map(json.loads, data) if document["type"] != "ping"]


def as_it_should_arrive(body: bytes) -> bytes:
    """Return a stream with the two documented additions: blank line, last event."""
    tidy = body if body.endswith(b"\n\n") else body.rstrip(b"\r\n") + b"\n\n"
    return tidy if b'"message_stop"' in tidy else tidy + AnthropicMessages.stream_end


@pytest.mark.wire
@pytest.mark.parametrize("how", ["create", "create_async"])
@pytest.mark.parametrize("recording", recordings("stream"), indirect=True)
def test_recorded_streams(world, sdk, recording, how):
    body = replay(world, recording)

    events = getattr(sdk, how)(**fields_of(recording), stream=True)

    assert [plain(part) for part in events] == data_of(body)
    assert_bodies_arrived(world, sdk)


def cut_shorter(body: str) -> list[str]:
    """Return a stream as recorded, without its last line ends, and without its last event."""
    whole = body.rstrip("\n") + "\n\n"
    return [body, whole, whole[:-1], whole[:-2], whole[: whole.rindex("event: message_stop")]]


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("stream"), indirect=True)
def test_the_bytes_of_recorded_streams(world, recording):
    replay(world, recording)

    for body in cut_shorter(recording["response"]["body"]):
        recording["response"]["body"] = body
        world.upstream.script("a", action_of(recording))

        response = world.client.messages(stream=True)

        assert response.content == as_it_should_arrive(body.encode())


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("err"), indirect=True)
def test_recorded_errors(world, sdk, recording):
    body = json.loads(replay(world, recording))
    status = recording["response"]["status"]

    with pytest.raises(EXCEPTIONS[status]) as raised:
        sdk.create(**fields_of(recording))

    assert raised.value.type == body["error"]["type"]
    says = f"{redact(body['error']['message'])} (request id: {raised.value.request_id})"
    assert raised.value.api_message == says
    assert_bodies_arrived(world, sdk)
