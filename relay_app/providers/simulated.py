"""The simulated upstream: answers, streams, delays and faults by model name.

For demos, rehearsals and tests, inside the process and without a socket. It takes the
place of the transport, so that requests to it run through all the rest of the relay.

A behaviour is words joined by `-`, in the model's name after `sim`, or in a channel's
setting `behaviour`, which is added in front. `sim` alone just answers.

    status-503      answer with this error status
    every-3         the fault only for every third request of the channel
    delay-500       wait so many ms before the answer
    chunks-20       say so many words, in a stream one a piece; without it all of the text's
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

from channels_app.core.types import ChannelView, KeyView
from relay_app.core.types import Call
from relay_app.providers.base import parse_url
from relay_app.providers.simulated_answers import ANSWERS, OVERLOADED, Answer

_NUMBERED = ("status", "every", "delay", "chunks", "gap", "cut", "stall", "retryafter")
_PLAIN = ("refuse", "empty", "error")
_NUMBER = re.compile(r"[0-9]{1,7}")
_SHOWN_CHARS = 40
_STALL_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What the simulated upstream does with a request; times in ms, 0 means not, or not said."""

    status: int = 0
    every: int = 1
    delay: int = 0
    chunks: int = 0
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
        elif word in _NUMBERED and _NUMBER.fullmatch(following or ""):
            found[word] = int(following)
    found["every"] = max(1, int(found.get("every", 1)))
    return Behaviour(**found)  # type: ignore[arg-type]  # keys and types are those above


def behaviour_fault(value: object) -> str | None:
    """Return why `value` can't be a channel's setting `behaviour`, or None.

    A model's name may be anything, but who writes a setting means each word of it.
    """
    known = f"known: {', '.join(_PLAIN)}, and with a number {', '.join(_NUMBERED)}"
    if not isinstance(value, str):
        return f"want words joined by -, such as status-503-every-3; {known}"
    words = [] if value == "" else value.split("-")
    while words:
        word = words.pop(0)
        if word in _NUMBERED:
            if not words or not _NUMBER.fullmatch(words.pop(0)):
                return f"{word} wants a number of up to 7 digits, such as {word}-3"
        elif word not in _PLAIN:
            return f"unknown word {word[:_SHOWN_CHARS]!r}; {known}"
    return None


class SimulatedAdapter:
    """Hands the call to `SimulatedTransport` in the request's extensions."""

    dialects = frozenset(ANSWERS)
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
        answer = ANSWERS[call.endpoint.dialect](call, channel)
        setting = str(channel.settings.get("behaviour", ""))
        behaviour = parse_behaviour(f"{setting}-{call.model}")
        is_faulty = next(self._counts[channel.id]) % behaviour.every == 0
        await asyncio.sleep(behaviour.delay / 1000)
        if is_faulty and behaviour.refuse:
            raise httpx.ConnectError("simulated: connection refused", request=request)
        if is_faulty and behaviour.status:
            return _error_answer(answer, behaviour)
        if call.is_stream:
            return httpx.Response(
                200,
                headers={"Content-Type": "text/event-stream"},
                stream=_Pieces(answer, behaviour, is_faulty=is_faulty),
            )
        if is_faulty and (behaviour.cut or behaviour.stall):
            return httpx.Response(200, stream=_Broken(behaviour))
        return httpx.Response(
            200,
            headers={"Content-Type": "application/json"},
            content=_whole(answer, behaviour, is_faulty=is_faulty),
        )


class _Broken(httpx.AsyncByteStream):
    """A body that breaks off or never ends."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'{"id": '
        await _break(self._behaviour)


class _Pieces(httpx.AsyncByteStream):
    """A streamed answer that behaves as told."""

    def __init__(self, answer: Answer, behaviour: Behaviour, *, is_faulty: bool) -> None:
        self._answer = answer
        self._behaviour = behaviour
        self._is_faulty = is_faulty

    async def __aiter__(self) -> AsyncIterator[bytes]:
        answer, behaviour = self._answer, self._behaviour
        if self._is_faulty and behaviour.error:
            yield answer.error_event(OVERLOADED)
            return
        yield answer.beginning()
        pieces = _words(answer, behaviour, is_faulty=self._is_faulty)
        for number, word in enumerate(pieces, start=1):
            yield answer.piece(word)
            if self._is_faulty and number in (behaviour.cut, behaviour.stall):
                await _break(behaviour)
            await asyncio.sleep(behaviour.gap / 1000)
        yield answer.ending(output_tokens=len(pieces))


async def _break(behaviour: Behaviour) -> None:
    if behaviour.stall:
        await asyncio.sleep(_STALL_S)
    raise httpx.ReadError("simulated: connection reset")


def _error_answer(answer: Answer, behaviour: Behaviour) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    if behaviour.retryafter:
        headers["Retry-After"] = str(behaviour.retryafter)
    problem = {"message": f"simulated: status {behaviour.status}", "type": "simulated_error"}
    return httpx.Response(behaviour.status, headers=headers, content=answer.error(problem))


def _whole(answer: Answer, behaviour: Behaviour, *, is_faulty: bool) -> bytes:
    if is_faulty and behaviour.error:
        return answer.error(OVERLOADED)
    words = _words(answer, behaviour, is_faulty=is_faulty)
    return answer.whole("".join(words).strip(), output_tokens=len(words))


def _words(answer: Answer, behaviour: Behaviour, *, is_faulty: bool) -> list[str]:
    """Return what the answer says, whole or streamed; each word is a token."""
    if is_faulty and behaviour.empty:
        return []
    count = behaviour.chunks or len(answer.words)
    return list(itertools.islice(itertools.cycle(answer.words), count))
