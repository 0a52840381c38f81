"""The official openai SDK against the running relay, its upstream replaying real traffic.

What a recording says must arrive in the SDK; what the SDK sends must arrive upstream, byte
for byte. The recordings are optional (mark `wire`); a few answers made by hand always run.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import openai
import pytest

from relay_app.core.redact import redact
from tests.conftest import WIRE_DIR
from tests.support.upstream import DONE, answer, chat, chunk, error, reset, stream, whole_stream
from tests.support.wire import arrives_as, without_usage

PACKET = 997  # bytes: cuts events and characters anywhere
MESSAGES = [{"role": "user", "content": "Grüße \u2028 \U0001f600"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks up a word.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
        },
    }
]
EXCEPTIONS = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    413: openai.APIStatusError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
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
        self.client = openai.OpenAI(
            **self._options, http_client=httpx.Client(event_hooks={"request": [self._note]})
        )

    def _note(self, request: httpx.Request) -> None:
        self.bodies.append(request.content)

    def create(self, **fields):
        return self.client.chat.completions.create(**{"model": "m", "messages": MESSAGES} | fields)

    def create_async(self, **fields):
        """Return the completion, or the list of the chunks, of the async client."""

        async def note(request: httpx.Request) -> None:
            self._note(request)

        async def run():
            http = httpx.AsyncClient(event_hooks={"request": [note]})
            async with openai.AsyncOpenAI(**self._options, http_client=http) as client:
                result = await client.chat.completions.create(
                    **{"model": "m", "messages": MESSAGES} | fields
                )
                return [part async for part in result] if fields.get("stream") else result

        return asyncio.run(run())


@pytest.fixture
def sdk(world):
    sdk = Sdk(world)
    yield sdk
    sdk.client.close()


def plain(part) -> dict:
    """Return an SDK object as the JSON that it was read from."""
    return part.model_dump(mode="json", exclude_unset=True, warnings=False)


def assert_bodies_arrived(world, sdk) -> None:
    assert [seen.body for seen in world.upstream.seen] == list(map(arrives_as, sdk.bodies))


# -- made by hand --------------------------------------------------------------------------


def tool_call(index: int, name: str, arguments: str) -> dict:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call_{index}", "type": "function", "function": function}


TOOL_ANSWER = {
    **chat(),
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        k: v
                        for k, v in tool_call(i, "look_up", '{"word": "é"}').items()
                        if k != "index"
                    }
                    for i in range(2)
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
}


def delta(**fields) -> bytes:
    document = json.loads(chunk()[6:])
    document["choices"][0]["delta"] = fields
    return b"data: " + json.dumps(document).encode() + b"\n\n"


TOOL_STREAM = [
    chunk(role=True),
    delta(tool_calls=[tool_call(0, "look_up", "")]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": '{"wo'}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": 'rd": "x"}'}}]),
    delta(tool_calls=[tool_call(1, "look_up", "{}")]),
    chunk(finish="tool_calls"),
    DONE,
]


@pytest.mark.parametrize("how", ["create", "create_async"])
def test_a_plain_answer(world, sdk, how):
    world.channel("a", answer(200, chat("hello")))
    world.ready()

    completion = getattr(sdk, how)(temperature=0.5, seed=7)

    assert plain(completion) == chat("hello")
    assert completion.choices[0].message.content == "hello"
    assert completion.usage.total_tokens == 5
    assert_bodies_arrived(world, sdk)


@pytest.mark.parametrize("how", ["create", "create_async"])
def test_a_streamed_answer(world, sdk, how):
    world.channel("a", stream(whole_stream("Hel", "lo", " é")))
    world.ready()

    chunks = list(getattr(sdk, how)(stream=True))

    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello é"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert_bodies_arrived(world, sdk)


@pytest.mark.parametrize("how", ["create", "create_async"])
def test_tool_calls(world, sdk, how):
    world.channel("a", answer(200, TOOL_ANSWER))
    world.ready()

    completion = getattr(sdk, how)(tools=TOOLS, tool_choice="auto")

    calls = completion.choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [{"word": "é"}] * 2
    assert completion.choices[0].finish_reason == "tool_calls"
    assert_bodies_arrived(world, sdk)


@pytest.mark.parametrize("how", ["create", "create_async"])
def test_streamed_tool_calls(world, sdk, how):
    world.channel("a", stream(TOOL_STREAM))
    world.ready()

    chunks = list(getattr(sdk, how)(tools=TOOLS, stream=True))

    parts = [c for part in chunks for c in part.choices[0].delta.tool_calls or []]
    arguments = {0: "", 1: ""}
    for part in parts:
        arguments[part.index] += part.function.arguments
    assert arguments == {0: '{"word": "x"}', 1: "{}"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert_bodies_arrived(world, sdk)


def test_the_sdks_own_helper_for_streams(world, sdk):
    world.channel("a", stream(TOOL_STREAM))
    world.ready()

    with sdk.client.chat.completions.stream(model="m", messages=MESSAGES, tools=TOOLS) as events:
        completion = events.get_final_completion()

    calls = completion.choices[0].message.tool_calls
    assert [call.function.arguments for call in calls] == ['{"word": "x"}', "{}"]
    assert_bodies_arrived(world, sdk)


def test_failover_is_invisible_to_the_sdk(world, sdk):
    world.channel("a", stream([chunk(role=True)], end="cut"), priority=2)
    world.channel("b", stream(whole_stream("from b")), priority=1)
    world.options(RetryTimes=1)
    world.ready()

    chunks = list(sdk.create(stream=True))

    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "from b"
    first, second = world.upstream.seen
    assert first.body == second.body == arrives_as(sdk.bodies[0])


def test_a_stream_that_breaks_raises_in_the_sdk(world, sdk):
    world.channel("a", stream([chunk("so "), chunk("far")], end="cut"))
    world.ready()
    chunks = sdk.create(stream=True)

    texts = [next(chunks).choices[0].delta.content for _ in range(2)]
    with pytest.raises(openai.APIError, match="request id: ") as raised:
        next(chunks)

    assert texts == ["so ", "far"]
    assert raised.value.code == "stream_interrupted"


@pytest.mark.parametrize("status", EXCEPTIONS)
@pytest.mark.parametrize("is_stream", [False, True])
def test_error_statuses_raise_the_right_exception(world, sdk, status, is_stream):
    world.channel("a", error(status, "what happened", code="a_code"))
    world.ready()

    with pytest.raises(openai.APIStatusError) as raised:
        sdk.create(stream=is_stream)

    assert isinstance(raised.value, EXCEPTIONS[status])
    assert raised.value.status_code == status
    assert "what happened (request id: " in raised.value.message
    assert (raised.value.code, raised.value.type) == ("a_code", "upstream_type")
    assert raised.value.request_id in raised.value.message


def test_errors_of_the_relay_raise_the_right_exception(world, sdk):
    world.channel("a", reset())
    world.ready()
    wrong = sdk.client.with_options(api_key="sk-relay-wrong")

    for kind, code, ask in (
        (openai.InternalServerError, "upstream_unreachable", sdk.create),
        (openai.NotFoundError, "model_not_found", lambda: sdk.create(model="nonsense")),
        (openai.AuthenticationError, "invalid_api_key", wrong.models.list),
        (openai.BadRequestError, "invalid_request", lambda: sdk.create(messages="none")),
    ):
        with pytest.raises(kind, match="request id: ") as raised:
            ask()
        assert raised.value.code == code


def test_the_list_of_models(world, sdk):
    world.channel("a", model_names=["m2", "m1"])
    world.ready()

    assert [model.id for model in sdk.client.models.list()] == ["m1", "m2"]


def test_an_image_and_unknown_fields_arrive_untouched(world, sdk):
    world.channel("a", answer(200, chat()))
    world.ready()
    parts = [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 50_000}},
    ]

    sdk.create(
        messages=[{"role": "user", "content": parts}], extra_body={"top_k": 5, "x": [1.0, None]}
    )

    assert_bodies_arrived(world, sdk)
    assert world.upstream.seen[0].json["top_k"] == 5


# -- recorded ------------------------------------------------------------------------------


def recordings(kind: str) -> list:
    """Return the recorded chat completions of a kind, or one that skips when there are none."""
    names = sorted((WIRE_DIR / "recordings").glob(f"*__chat-completions__{kind}*.json"))
    usable = [path for path in names if is_usable(path)]
    return [pytest.param(path, id=path.stem) for path in usable] or [
        pytest.param(None, id="no-recordings")
    ]


def is_usable(path: Path) -> bool:
    """Return whether the body is text: some were stored as base64 and cut off."""
    body = json.loads(path.read_text())["response"]["body"].lstrip()
    return body.startswith(("{", "[", "data:", ":", "event:"))


@pytest.fixture
def recording(request, wire_dir):
    return json.loads(request.param.read_text())


def fields_of(recording) -> dict:
    """Return what to call the SDK with so that it sends the recorded request."""
    body = recording["request"].get("body")
    if not isinstance(body, dict) or "messages" not in body:
        return {"model": "m", "messages": MESSAGES}
    known = {"model": body.get("model", "m"), "messages": body["messages"]}
    rest = {k: v for k, v in body.items() if k not in ("model", "messages", "stream")}
    return {**known, "extra_body": rest}


def replay(world, recording) -> bytes:
    """Make a channel that answers as recorded; return the body."""
    response = recording["response"]
    body = response["body"].encode()
    headers = {
        name: value
        for name, value in response["headers"].items()
        if name.lower() not in ("content-length", "content-encoding", "transfer-encoding")
    }
    if "stream" in headers.get("content-type", ""):
        packets = [body[i : i + PACKET] for i in range(0, len(body), PACKET)]
        headers["Content-Type"] = headers.pop("content-type")
        action = stream(packets, headers=headers)
    else:
        headers["Content-Type"] = headers.pop("content-type", "application/json")
        action = answer(response["status"], body, headers=headers)
    world.channel("a", action, model_names=["*"])
    world.ready()
    return body


@pytest.mark.wire
@pytest.mark.parametrize("how", ["create", "create_async"])
@pytest.mark.parametrize("recording", recordings("json"), indirect=True)
def test_recorded_answers(world, sdk, recording, how):
    body = replay(world, recording)

    completion = getattr(sdk, how)(**fields_of(recording))

    assert plain(completion) == json.loads(body)
    assert_bodies_arrived(world, sdk)


def data_of(body: bytes) -> list[dict]:
    """Return the JSON of each event, read apart from the relay's own code."""
    lines = body.decode().replace("\r\n", "\n").split("\n")
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return [json.loads(text) for text in data if text and text != "[DONE]"]


def is_broken(documents: list[dict]) -> bool:
    """Return whether an error comes before the answer is complete."""
    for document in documents:
        if document.get("error"):
            return True
        if any(choice.get("finish_reason") for choice in document.get("choices") or []):
            return False
    return False


def without_late_errors(body: bytes) -> bytes:
    """Return the stream without error events; after the finish they change nothing."""
    events = body.split(b"\n\n")
    return b"\n\n".join(event for event in events if b'"error":' not in event)


def as_it_should_arrive(body: bytes) -> bytes:
    """Return a stream with the two documented additions."""
    tidy = body if body.endswith((b"\n\n", b"\r\n\r\n")) else body.rstrip(b"\r\n") + b"\n\n"
    return tidy if b"[DONE]" in tidy else tidy + DONE


@pytest.mark.wire
@pytest.mark.parametrize("how", ["create", "create_async"])
@pytest.mark.parametrize("recording", recordings("stream"), indirect=True)
def test_recorded_streams(world, sdk, recording, how):
    body = replay(world, recording)
    want = data_of(body)
    fields = {**fields_of(recording), "stream": True}

    if is_broken(want):
        with pytest.raises(openai.APIError):
            list(getattr(sdk, how)(**fields))
    else:
        arrived = [plain(part) for part in getattr(sdk, how)(**fields)]
        good = [document for document in want if not document.get("error")]
        assert arrived == without_usage(good, json.loads(sdk.bodies[0]))

    assert_bodies_arrived(world, sdk)


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("stream"), indirect=True)
def test_the_bytes_of_recorded_streams(world, recording):
    body = replay(world, recording)

    response = world.client.chat(stream=True, stream_options={"include_usage": True})

    if is_broken(data_of(body)):
        assert response.content.endswith(b"\n\n")
        assert b"stream_interrupted" in response.content or b"tool_use_failed" in response.content
        assert not response.content.endswith(b"data: [DONE]\n\n")
    else:
        assert response.content == as_it_should_arrive(without_late_errors(body))


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("err"), indirect=True)
def test_recorded_errors(world, sdk, recording):
    body = json.loads(replay(world, recording))
    body = body[0] if isinstance(body, list) else body
    problem = body.get("error", body)
    message = problem if isinstance(problem, str) else problem.get("message", body.get("detail"))
    status = recording["response"]["status"]

    with pytest.raises(openai.APIStatusError) as raised:
        sdk.create(**fields_of(recording))

    assert type(raised.value) is EXCEPTIONS[status]
    assert f"{redact(message)} (request id: {raised.value.request_id})" in raised.value.message
    assert_bodies_arrived(world, sdk)
