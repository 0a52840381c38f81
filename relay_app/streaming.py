"""One upstream stream on its way to the client: the commit gate, the relay, the end.

Nothing goes to the client before the first meaningful event; until then a broken stream
is a failed attempt like any other. From then on the original bytes are passed on, event
by event, and a stream that breaks ends in an error event, never as if it were whole.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import httpx
import structlog

from billing_app.core.usage import Usage, merged
from channels_app.core.types import ChannelView, Failure, FailureClass
from relay_app.core.classify import classify_response
from relay_app.core.limits import Limits
from relay_app.core.redact import redact
from relay_app.core.sse import BadStream, Splitter, missing_end, read_event
from relay_app.core.types import EventFacts
from relay_app.deadline import Deadline
from relay_app.dialects.base import Dialect
from relay_app.errors import (
    STOPPING,
    RelayError,
    RelayStopping,
    StreamInterrupted,
    UpstreamFailed,
)
from relay_app.exception_handler import parts_of

log = structlog.get_logger(__name__)

# Held back before the commit point, at most: comments past it are dropped, and a stream that
# sends so much without content has failed.
MAX_HELD_BYTES = 256 * 1024
# So many malformed events in a row are noise, not a slip in a good stream.
MAX_MALFORMED = 100
# Some servers add a mark ([DONE]) to a stream that is complete; it is waited for so long.
MARK_S = 1.0


class AnswerStream:
    """Reads one upstream answer. First `open`, then `pieces`, always `aclose`.

    After the end `failure` says how it broke (None: a proper end), and `usage`, `model`
    and `ttft_s` what was learnt on the way.
    """

    def __init__(
        self,
        response: httpx.Response,
        dialect: Dialect,
        *,
        channel: ChannelView,
        limits: Limits,
        sent_s: float,
        request_id: str,
        hides_usage: bool = False,
    ) -> None:
        self.failure: Failure | None = None
        self.usage: Usage | None = None
        self.model = ""
        self.response_id = ""
        self.ttft_s: float | None = None
        self.dropped_events = 0
        self.output_bytes = 0  # that the model wrote, as far as it was read
        self.images = self.seconds = 0
        self.is_interrupted = False
        self._malformed_in_a_row = 0
        self._good_s = sent_s  # when the last event came that was not malformed
        self.on_end: list[Callable[[AnswerStream], Awaitable[None]]] = []
        self._response = response
        self._chunks = aiter(_body(response))
        self._dialect = dialect
        self._channel = channel
        self._limits = limits
        self._sent_s = sent_s
        self._request_id = request_id
        self._hides_usage = hides_usage
        self._deadline = Deadline()
        self._splitter = Splitter()
        self._batch: list[bytes] = []  # events read, not looked at yet
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._has_finish = False  # the proper end of the answer was seen, or of one choice
        self._begun: set[int] = set()  # choices seen, where the dialect counts them
        self._ended: set[int] = set()
        self._has_total = False  # an event of usage alone was seen
        self._is_cut_short = False  # ended by length, safety or filter
        self._complete_s: float | None = None  # when the stream was complete, but for a mark
        self._is_last = False  # the dialect's last event was seen
        self._has_said_why = False  # an error event came after the commit point
        self._is_closed = False

    @property
    def is_whole(self) -> bool:
        """Return whether the answer reached its proper end."""
        return self.failure is None and (self._is_finished or self._is_last)

    def interrupt(self) -> None:
        """End the stream now: the relay stops. The client gets an error event."""
        self.is_interrupted = True
        self._deadline.expire()

    @property
    def _is_finished(self) -> bool:
        """Return whether the answer, with all its choices, has its proper end."""
        return self._has_finish and self._begun <= self._ended

    @property
    def _may_end(self) -> bool:
        """Return whether the dialect's last event is believed: after the proper end, or after
        the usage of servers that give no choice an end (recorded: Snowflake)."""
        is_endless = self._has_total and not self._has_finish
        return self._is_finished or is_endless or self._dialect.ends_cleanly

    async def open(self) -> Failure | None:
        """Read up to the commit point; return the failure if it is never reached."""
        try:
            while not await self._reach_commit():
                batch = await self._read(deadline_s=self._first_token_deadline_s())
                if batch is None:
                    return self._ended_uncommitted()
                self._batch = batch
                await asyncio.sleep(0)  # a flood of empty events must not hold up others
        except TimeoutError:
            seconds = self._limits.earliest(self._limits.first_token, self._limits.total)
            message = f"no content within {seconds:g} s"
            return Failure(failure_class=FailureClass.TIMEOUT, message=message)
        except (httpx.RequestError, BadStream) as error:
            if self._is_finished:
                return self._ended_uncommitted()
            return self._transport_failure(error)
        return self.failure

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes for the client, one piece for each packet that came in."""
        out, self._held = self._held, []
        while True:
            if not self._take_batch(out):
                break
            if out:
                yield b"".join(out)
                out = []
                self._good_s = time.monotonic()  # a slow client is no silence of the upstream
            else:
                await asyncio.sleep(0)  # a flood of dropped events must not hold up others
            batch = await self._read_after_commit()
            if batch is None:
                break
            self._batch = batch
        out.append(self._ending())
        await self.aclose()
        yield b"".join(out)

    def _take_batch(self, out: list[bytes]) -> bool:
        """Move what the client is to get of the batch to `out`; return whether more follows.

        Nothing does after the last event, an error or noise, also when the answer had its
        proper end before: noise behind it must not keep the stream open.
        """
        try:
            for raw in self._batch:
                facts = self._look_at(raw)
                if facts.is_error:
                    self._broke_with(self._error_of(raw), is_end=facts.is_last)
                    return False
                if facts.is_last and not self._may_end:
                    self._broke("the stream ended before its proper end")
                    return False
                if not (facts.is_malformed or (self._hides_usage and facts.is_usage_only)):
                    out.append(raw)
                if facts.is_last:
                    return False
        except BadStream as error:
            self._broke(str(error))
            return False
        return True

    async def aclose(self) -> None:
        """Close the upstream; report the end once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._deadline.close()
        if self.dropped_events:
            log.warning(
                "malformed events dropped",
                request_id=self._request_id,
                channel=self._channel.name,
                count=self.dropped_events,
            )
        await self._response.stream.aclose()  # type: ignore[union-attr]  # async always
        for hear in self.on_end:
            await hear(self)

    # -- before the commit point ---------------------------------------------------

    async def _reach_commit(self) -> bool:
        """Take events of the batch until one is meaningful or fails the attempt."""
        while self._batch:
            raw = self._batch.pop(0)
            facts = self._look_at(raw)
            if facts.is_error:
                self.failure = self._error_of(raw)
                return True
            if facts.is_malformed or (self._hides_usage and facts.is_usage_only):
                continue
            self._hold(raw, facts)
            if facts.is_meaningful or self._has_ended_as_answer():
                self.ttft_s = time.monotonic() - self._sent_s
                return True
            if self._is_last:
                self.failure = self._ended_uncommitted()
                return True
            if self._held_bytes > MAX_HELD_BYTES:
                raise BadStream(f"more than {MAX_HELD_BYTES} bytes came without content")
        return False

    def _hold(self, raw: bytes, facts: EventFacts) -> None:
        is_comment = facts == EventFacts()
        if is_comment and self._held_bytes + len(raw) > MAX_HELD_BYTES:
            return
        self._held.append(raw)
        self._held_bytes += len(raw)

    def _has_ended_as_answer(self) -> bool:
        """Return whether the stream ended without content, yet not for nothing."""
        has_output = self.usage is not None and self.usage.output_tokens > 0
        return self._is_finished and (self._is_cut_short or has_output)

    def _ended_uncommitted(self) -> Failure | None:
        if not (self._is_finished or self._is_last):
            return Failure(
                failure_class=FailureClass.TRANSPORT,
                message="the stream ended before any content",
            )
        answer = b"".join(self._held)
        if not self._is_last:
            answer += self._dialect.stream_end
        return Failure(
            failure_class=FailureClass.EMPTY_RESPONSE,
            message="the stream ended without content",
            status=self._response.status_code,
            empty_answer=answer,
            empty_answer_type=self._response.headers.get("content-type", "text/event-stream"),
        )

    def _first_token_deadline_s(self) -> float | None:
        limit_s = self._limits.earliest(self._limits.first_token, self._limits.total)
        return None if limit_s is None else self._sent_s + limit_s

    # -- after it ------------------------------------------------------------------

    async def _read_after_commit(self) -> list[bytes] | None:
        """Return the next events; None at the end, with `failure` set if it broke."""
        if self.is_interrupted:
            self._broke(STOPPING)
            return None
        total_s = self._limits.total
        total_at_s = self._sent_s + total_s if total_s else math.inf
        deadline_s = total_at_s
        if self._complete_s is not None:
            deadline_s = min(deadline_s, self._complete_s + MARK_S)
        try:
            batch = await self._read(deadline_s=deadline_s, has_idle_limit=True)
        except TimeoutError:
            is_total = time.monotonic() >= total_at_s
            limit_s = self._limits.total if is_total else self._limits.idle
            what = "the answer took longer than" if is_total else "nothing came for"
            self._broke(f"{what} {limit_s:g} s")
            return None
        except (httpx.RequestError, BadStream) as error:
            self._broke(str(error))
            return None
        if batch is None and not self._is_finished:
            self._broke("the stream ended before its proper end")
        return batch

    def _broke(self, reason: str) -> None:
        """Note the break, unless the answer was complete already."""
        if self.is_interrupted:  # no fault of the channel
            self._fail(Failure(failure_class=FailureClass.ABORTED, message=STOPPING))
            return
        message = redact(reason, self._channel.secrets)
        self._fail(Failure(failure_class=FailureClass.STREAM_INTERRUPTED, message=message))

    def _broke_with(self, failure: Failure, *, is_end: bool) -> None:
        """Note an error event. Only one that is the dialect's own end of an answer that failed
        keeps the class of its error (spec 02 section 1, 03 section 3)."""
        self._has_said_why = True
        if not is_end:
            failure = replace(failure, failure_class=FailureClass.STREAM_INTERRUPTED)
        self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        if not self._is_finished or self._dialect.ends_cleanly:
            self.failure = failure

    def _ending(self) -> bytes:
        """Return what the client still needs: nothing, the proper end, or the error."""
        if self.failure is None:
            return b"" if self._is_last else self._dialect.stream_end
        told: RelayError = UpstreamFailed(self.failure)  # what its error event said
        told.code = told.code or StreamInterrupted.code
        if self.is_interrupted:
            told = RelayStopping("the relay was stopped before the end of the answer")
        elif not self._has_said_why:
            told = StreamInterrupted("the upstream broke off the answer before its end")
        return self._dialect.error_event(parts_of(told, request_id=self._request_id))

    # -- reading -------------------------------------------------------------------

    async def _read(
        self, *, deadline_s: float | None, has_idle_limit: bool = False
    ) -> list[bytes] | None:
        """Return the next complete events, or None when the upstream has ended."""
        idle_s = self._limits.idle if has_idle_limit else 0
        while True:
            until_s = deadline_s
            if idle_s and (until_s is None or self._good_s + idle_s < until_s):
                until_s = self._good_s + idle_s
            try:
                with self._deadline.until(until_s):
                    chunk = await anext(self._chunks)
            except StopAsyncIteration:
                rest = self._splitter.flush()
                return [rest + missing_end(rest)] if rest.strip() else None
            if events := self._splitter.feed(chunk):
                return events
            self._good_s = time.monotonic()  # a large event on its way is no silence

    def _look_at(self, raw: bytes) -> EventFacts:
        data, name = read_event(raw)
        facts = self._dialect.read_event(data, name)
        if facts.is_malformed:
            self.dropped_events += 1
            self._malformed_in_a_row += 1
            if self._malformed_in_a_row > MAX_MALFORMED:
                raise BadStream(f"more than {MAX_MALFORMED} malformed events in a row")
        else:
            self._malformed_in_a_row = 0
            self._good_s = time.monotonic()
        self._has_total = self._has_total or facts.is_usage_only
        self.output_bytes += facts.output_bytes
        self.images += facts.images
        if facts.choices:
            self._begun.update(facts.choices)
        if facts.is_finish:
            self._has_finish = True
            self.seconds = facts.seconds or self.seconds
            self._ended.update(facts.ended)
        self._is_cut_short = self._is_cut_short or (facts.is_finish and not facts.is_normal_finish)
        self._is_last = self._is_last or facts.is_last
        if facts.usage is not None:
            self.usage = merged(self.usage, facts.usage)
        # Usage comes last where choices are counted.
        is_complete = facts.is_complete or (facts.usage is not None and bool(self._ended))
        if is_complete and self._is_finished and self._complete_s is None:
            self._complete_s = time.monotonic()
        self.model = facts.model or self.model
        self.response_id = facts.response_id or self.response_id
        return facts

    def _error_of(self, raw: bytes) -> Failure:
        data, _ = read_event(raw)
        return classify_response(
            status=self._response.status_code,
            headers=self._response.headers,
            body=data or b"",
            provider=self._channel.provider,
            secrets=self._channel.secrets,
        )

    def _transport_failure(self, error: Exception) -> Failure:
        return Failure(
            failure_class=FailureClass.TRANSPORT,
            message=redact(str(error), self._channel.secrets),
        )


def _body(response: httpx.Response) -> AsyncIterator[bytes]:
    """Return the body as it arrives, decoded only if the upstream compressed it."""
    if response.headers.get("content-encoding", "identity") == "identity":
        return response.stream  # type: ignore[return-value]  # an AsyncByteStream
    return response.aiter_bytes()
