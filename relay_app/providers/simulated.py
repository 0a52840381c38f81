"""The simulated upstream: answers, streams, delays and faults by model name.

For demos, rehearsals and tests, inside the process and without a socket. It takes the
place of the transport, so that requests to it run through all the rest of the relay.

A behaviour is words joined by `-`, in the model's name after `sim`, or in a channel's
setting `behaviour`, which is added in front. `sim` alone just answers.

    status-503      answer with this error status
    every-3         the fault only for every third request of the channel
    delay-500       wait so many ms before the answer
    chunks-20       stream so many pieces
    gap-100         wait so many ms between pieces
    cut-5           break the connection after so many pieces
    stall-5         fall silent after so many pieces
    refuse          refuse the connection
    empty           a normal end without content
    error           an error object inside a 200 (first event of a stream)
    retryafter-2    with a status: a Retry-After header of so many seconds
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import httpx
import orjson

from channels_app.core.types import ChannelView, KeyView
from relay_app.core.types import Call
from relay_app.providers.base import parse_url

DEFAULT_CHUNKS = 4
_NUMBERED = ("status", "every", "delay", "chunks", "gap", "cut", "stall", "retryafter")
_PLAIN = ("refuse", "empty", "error")
_STALL_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What the simulated upstream does with a request; times in ms, 0 means not."""

    status: int = 0
    every: int = 1
    delay: int = 0
    chunks: int = DEFAULT_CHUNKS
    gap: int = 0
    cut: int = 0
    stall: int = 0
    retryafter: int = 0
    refuse: bool = False
    empty: bool = False
    error: bool = False


def parse_behaviour(text: str) -> Behaviour:
    """Return the behaviour that `text` names. Words it does not know are ignored, so
    that any model name is a behaviour: the plain answer."""
    found: dict[str, int | bool] = {}
    words = text.split("-")
    for word, following in itertools.zip_longest(words, words[1:]):
        if word in _PLAIN:
            found[word] = True
        elif word in _NUMBERED and re.fullmatch(r"[0-9]{1,7}", following or ""):
            found[word] = int(following)
    found["every"] = max(1, int(found.get("every", 1)))
    return Behaviour(**found)  # type: ignore[arg-type]  # keys and types are those above


class SimulatedAdapter:
    """Hands the call to `SimulatedTransport` in the request's extensions."""

    dialects = frozenset({"openai"})
    base_url_suffix = ""
    needs_base_url = False
    needs_key = False

    def build(self, call: Call, *, channel: ChannelView, key: KeyView | None) -> httpx.Request:
        """Return a request that only the simulated transport understands."""
        return httpx.Request(
            "POST",
            parse_url("http://simulated.invalid/"),
            content=call.body,
            extensions={"relay_call": call, "relay_channel": channel},
        )


class SimulatedTransport(httpx.AsyncBaseTransport):
    """Answers requests of `SimulatedAdapter`; counts them per channel."""

    def __init__(self) -> None:
        self._counts: defaultdict[int, Iterator[int]] = defaultdict(lambda: itertools.count(1))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call: Call = request.extensions["relay_call"]
        channel: ChannelView = request.extensions["relay_channel"]
        setting = str(channel.settings.get("behaviour", ""))
        behaviour = parse_behaviour(f"{setting}-{call.model}")
        is_faulty = next(self._counts[channel.id]) % behaviour.every == 0
        await asyncio.sleep(behaviour.delay / 1000)
        if is_faulty and behaviour.refuse:
            raise httpx.ConnectError("simulated: connection refused", request=request)
        if is_faulty and behaviour.status:
            return _error_answer(behaviour)
        if call.is_stream:
            return httpx.Response(
                200,
                headers={"Content-Type": "text/event-stream"},
                stream=_Pieces(call, channel, behaviour, is_faulty=is_faulty),
            )
        if is_faulty and (behaviour.cut or behaviour.stall):
            return httpx.Response(200, stream=_Broken(behaviour))
        return httpx.Response(
            200,
            headers={"Content-Type": "application/json"},
            content=_whole(call, channel, behaviour, is_faulty=is_faulty),
        )


class _Broken(httpx.AsyncByteStream):
    """A body that breaks off or never ends."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'{"id": '
        await _break(self._behaviour)


class _Pieces(httpx.AsyncByteStream):
    """A stream of chat chunks that behaves as told."""

    def __init__(
        self, call: Call, channel: ChannelView, behaviour: Behaviour, *, is_faulty: bool
    ) -> None:
        self._call = call
        self._channel = channel
        self._behaviour = behaviour
        self._is_faulty = is_faulty

    async def __aiter__(self) -> AsyncIterator[bytes]:
        behaviour = self._behaviour
        if self._is_faulty and behaviour.error:
            yield _event({"error": _overloaded()})
            return
        yield self._chunk({"role": "assistant", "content": ""})
        words = [] if self._is_faulty and behaviour.empty else _words(self._channel)
        pieces = list(itertools.islice(itertools.cycle(words), behaviour.chunks))
        for number, word in enumerate(pieces if words else [], start=1):
            yield self._chunk({"content": word})
            if self._is_faulty and number in (behaviour.cut, behaviour.stall):
                await _break(behaviour)
            await asyncio.sleep(behaviour.gap / 1000)
        yield self._chunk({}, finish_reason="stop")
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: object, finish_reason: str | None = None) -> bytes:
        return _event(
            {
                "id": f"chatcmpl-{self._call.request_id}",
                "object": "chat.completion.chunk",
                "created": 0,
                "model": self._call.model,
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
            }
        )


async def _break(behaviour: Behaviour) -> None:
    if behaviour.stall:
        await asyncio.sleep(_STALL_S)
    raise httpx.ReadError("simulated: connection reset")


def _words(channel: ChannelView) -> list[str]:
    return [word + " " for word in f"Hello from channel {channel.name}.".split()]


def _overloaded() -> dict[str, object]:
    return {
        "message": "simulated: overloaded",
        "type": "overloaded_error",
        "param": None,
        "code": "overloaded",
    }


def _error_answer(behaviour: Behaviour) -> httpx.Response:
    error = {
        "message": f"simulated: status {behaviour.status}",
        "type": "simulated_error",
        "param": None,
        "code": None,
    }
    headers = {"Content-Type": "application/json"}
    if behaviour.retryafter:
        headers["Retry-After"] = str(behaviour.retryafter)
    return httpx.Response(behaviour.status, headers=headers, json={"error": error})


def _whole(call: Call, channel: ChannelView, behaviour: Behaviour, *, is_faulty: bool) -> bytes:
    if is_faulty and behaviour.error:
        return orjson.dumps({"error": _overloaded()})
    text = "" if is_faulty and behaviour.empty else "".join(_words(channel)).strip()
    output_tokens = len(text.split())
    return orjson.dumps(
        {
            "id": f"chatcmpl-{call.request_id}",
            "object": "chat.completion",
            "created": 0,
            "model": call.model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 8,
                "completion_tokens": output_tokens,
                "total_tokens": 8 + output_tokens,
            },
        }
    )


def _event(document: object) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"
