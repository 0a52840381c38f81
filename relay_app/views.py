"""HTTP in, HTTP out: check the request, call the pipeline, choose the response."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Mapping
from types import MappingProxyType

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from billing_app.core.types import TokenView
from relay_app import pipeline, runtime
from relay_app.attempt import EVENT_STREAM, Answer
from relay_app.authentication import check_token, find_key, find_token, query_without_key
from relay_app.bills import open_bill
from relay_app.bindings import Binding
from relay_app.claims import size_words
from relay_app.client_address import client_address
from relay_app.core.blocked import blocked_word
from relay_app.core.estimate import estimate_tokens
from relay_app.core.types import Call, Endpoint
from relay_app.dialects.base import TOO_DEEP, BodyError, Dialect, Framing, Incoming
from relay_app.dialects.registry import DIALECTS
from relay_app.drf import AsyncAPIView
from relay_app.encodings import decode_body
from relay_app.errors import (
    STOPPED,
    STOPPING,
    BlockedContent,
    InvalidRequest,
    ModelNotFound,
    RateLimitExceeded,
    RelayError,
    RelayStopping,
    RequestTooLarge,
    ResponseNotFound,
    UnknownPath,
    UpstreamFailed,
    WrongMethod,
)
from relay_app.exception_handler import as_relay_error, parts_of, render_error
from relay_app.http import RelayRequest, StreamResponse
from relay_app.keepalive import KEEPALIVE_S, LateStream, give_up
from relay_app.path_hints import path_hint
from relay_app.request_log import CLIENT_GONE, CLIENT_LEFT, RequestRecord
from relay_app.routes import is_usable, usable_models
from relay_app.streaming import AnswerStream

# Headers of clients that may go upstream; each provider type takes those it understands.
FORWARDED = ("openai-beta", "anthropic-version", "anthropic-beta")
# nginx buffers a proxied body unless told not to, which would hold back the stream.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class DialectView(AsyncAPIView):
    """A relay path: who asks, one record per request, errors in the path's dialect."""

    endpoint = Endpoint(name="unknown", dialect="openai", path="", upstream_path="")

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.endpoint.dialect]

    def begin(self, request: HttpRequest) -> None:
        """Open the record of the request and hold the snapshot that it keeps."""
        assert isinstance(request, RelayRequest)
        self.relay_request = request
        self.runtime = runtime.current()
        self.snapshot = self.runtime.feed.current
        self.record = RequestRecord(
            request_id=request.relay_id,
            endpoint=f"{request.method} {request.path}",
            client_ip=client_address(request.META, trusted=settings.TRUSTED_PROXIES),
        )

    def finish(self, response: HttpResponseBase) -> None:
        """End the record, unless a stream goes on."""
        if not isinstance(response, StreamResponse):
            self._end(status=response.status_code, outcome="ok")
        response["X-Relay-Attempts"] = str(len(self.record.attempts))
        for name, value in self.record.rate_headers.items():
            response[name] = value
        if self.dialect.request_id_header:
            response[self.dialect.request_id_header] = self.record.request_id

    async def settled(self) -> None:
        """Return once a slot of the token is free again, if the request ended."""
        if self.record.hold is not None:
            await self.record.hold.freed()

    def abandoned(self) -> None:
        """End the record of a client that hung up."""
        self._end(status=CLIENT_GONE, outcome=CLIENT_LEFT)

    async def authenticate(self) -> TokenView:
        """Return the token of the request, noted in its record."""
        token = await find_token(self.relay_request, self.runtime.feed)
        self.record.token = token  # first: the log names whose token is refused
        check_token(token, address=self.record.client_ip)
        return token

    def handle_error(self, error: Exception) -> HttpResponseBase:
        """Return `error` in the path's dialect, noted in the record."""
        response = render_error(
            error,
            dialect=self.dialect,
            request_id=self.record.request_id,
            retry_after_to_client_max_s=(self.snapshot.routing.options.retry_after_to_client_max),
        )
        self._end(status=response.status_code, outcome=_outcome(error), message=str(error))
        return response

    async def refuse_method(self, request: Request) -> HttpResponseBase:
        """Refuse the method, naming those that work."""
        names = ("get", "post", "head")
        known = [name for name in names if name in self.http_method_names]
        allowed = [name.upper() for name in known if hasattr(self, name)]
        error = WrongMethod(
            f"{request.method} is not a method of {request.path}; use {' or '.join(allowed)}"
        )
        error.headers = {"Allow": ", ".join(allowed)}
        raise error

    def _end(self, *, status: int, outcome: str, message: str = "") -> None:
        if self.record.end(status=status, outcome=outcome, message=message):
            self.record.describe()
            self.runtime.log_writer.put(self.record)


class RelayView(DialectView):
    """POST of one relay endpoint: parse, check, call the pipeline."""

    framing: Framing | None = None

    async def post(self, request: Request) -> HttpResponseBase:
        """Return the upstream's answer, whole or as a stream."""
        token = await self.authenticate()
        call = self._read_call(await self._body())
        self._check_words(call)
        earlier = call.previous_response_id
        bound = await self._binding(token, earlier) if earlier else None
        return await self._relay(call, token, bound=bound)

    async def _relay(
        self, call: Call, token: TokenView, *, bound: Binding | None = None
    ) -> HttpResponseBase:
        self.record.model, self.record.is_stream = call.model, call.is_stream
        self.record.bill = open_bill(
            call,
            token=token,
            routing=self.snapshot.routing,
            prices=self.snapshot.prices,
            ledger=self.runtime.ledger,
            dialect=self.dialect,
        )
        answering = self._answer(call, token, bound=bound)
        if call.is_stream and self.snapshot.routing.options.keepalive_before_commit:
            return await self._respond_in_time(asyncio.ensure_future(answering))
        return self._respond(await answering)

    async def _answer(self, call: Call, token: TokenView, *, bound: Binding | None) -> Answer:
        try:
            return await pipeline.relay(
                call,
                token=token,
                routing=self.snapshot.routing,
                dialect=self.dialect,
                transports=self.runtime.transports,
                limiter=self.runtime.limiter,
                record=self.record,
                bound=bound,
            )
        except RateLimitExceeded as error:
            output = call.max_output_tokens
            tokens = estimate_tokens(
                call.body, content_type=call.content_type, max_output_tokens=output
            )
            words = size_words(token, tokens=tokens, max_output_tokens=output)
            raise RateLimitExceeded(f"{error}{words}", retry_after_s=error.retry_after_s) from None

    async def _binding(self, token: TokenView, response_id: str) -> Binding:
        """Return where the response was made; raise ResponseNotFound."""
        bound = await self.runtime.bindings.find(token.user_id, response_id)
        if bound is None:
            raise ResponseNotFound(f"no response {response_id!r} was made with this account")
        return bound

    def _bind(self, response_id: str) -> None:
        """Remember who made the response, if its dialect gives it an id."""
        token, served = self.record.token, self.record.attempts[-1]
        if response_id and token is not None:
            binding = Binding(
                channel_id=served.channel_id, key_id=served.key_id, model=self.record.model
            )
            self.runtime.bindings.put(token.user_id, response_id, binding)

    async def _respond_in_time(self, work: asyncio.Task[Answer]) -> HttpResponseBase:
        """Return the answer, or begin its stream with comments when it takes long."""
        try:
            await asyncio.wait({work}, timeout=KEEPALIVE_S)
        except asyncio.CancelledError as error:
            await give_up(work, *error.args)
            raise
        if work.done() or self.framing is not None:
            return self._respond(await work)
        self.record.is_late = True
        late = LateStream(
            work, respond=self._respond_late, fail=self._tell_late, abandoned=self.abandoned
        )
        return StreamResponse(late, content_type=EVENT_STREAM, headers=STREAM_HEADERS)

    def _respond_late(self, answer: Answer) -> HttpResponseBase:
        response = self._respond(answer)
        if answer.stream is None:
            self._end(status=200, outcome="ok")
        return response

    def _tell_late(self, error: Exception) -> bytes:
        """Return the event for an error after the status was sent; note it in the record."""
        request_id = self.record.request_id
        told = as_relay_error(error, request_id=request_id)
        self._end(status=200, outcome=_outcome(error), message=str(error))
        return self.dialect.error_event(parts_of(told, request_id=request_id))

    def _check_words(self, call: Call) -> None:
        words = self.snapshot.routing.options.blocked_words
        try:
            is_blocked = bool(words) and blocked_word(call.body, call.content_type, words)
        except RecursionError:
            raise InvalidRequest(TOO_DEEP) from None
        if is_blocked:
            raise BlockedContent("the prompt contains a word that is blocked here")

    async def _body(self) -> bytes:
        request = self.relay_request
        if request.is_cut_off:
            raise RelayStopping(STOPPED)
        if request.is_oversized:
            raise RequestTooLarge(f"the request body is larger than {request.body_limit >> 20} MB")
        encoding = str(request.META.get("HTTP_CONTENT_ENCODING", ""))
        body = await decode_body(request.body, encoding, limit=request.body_limit)
        return body.removeprefix(codecs.BOM_UTF8)  # no part of the text, and not read by all

    def _query(self) -> str:
        request = self.relay_request
        return query_without_key(str(request.META.get("QUERY_STRING", "")), find_key(request))

    def _read_call(self, body: bytes) -> Call:
        request = self.relay_request
        content_type = request.META.get("CONTENT_TYPE") or "application/json"
        if not content_type.isascii():  # it could not be sent on, and would blame the channel
            raise InvalidRequest("the Content-Type header holds characters outside ASCII")
        query = self._query()
        try:
            envelope = self.dialect.read_request(
                Incoming(
                    body=body,
                    content_type=content_type,
                    query=query,
                    path=self.kwargs,
                )
            )
        except BodyError as error:
            raise InvalidRequest(str(error), param=error.param) from None
        self.framing = envelope.framing() if envelope.framing else None
        return Call(
            request_id=self.record.request_id,
            endpoint=self.endpoint,
            model=envelope.model,
            is_stream=envelope.is_stream,
            body=envelope.body_asking_usage or body,
            hides_usage=envelope.body_asking_usage is not None,
            content_type=content_type,
            query=query,
            path=self.kwargs,
            headers=_forwarded(request),
            client_headers=request.scope["headers"],
            max_output_tokens=envelope.max_output_tokens,
            answer_count=envelope.answer_count,
            previous_response_id=envelope.previous_response_id,
        )

    def _respond(self, answer: Answer) -> HttpResponseBase:
        self.record.response_model, self.record.usage = answer.model, answer.usage
        framing = self.framing
        content_type = framing.content_type if framing else answer.content_type
        if answer.stream is None:
            self._bind(answer.response_id)
            body = answer.body or b""
            if framing:
                body = framing.whole(body, answer.content_type)
            return HttpResponse(body, status=answer.status, content_type=content_type)
        self.record.ttft_s = answer.stream.ttft_s
        answer.stream.on_end.append(self._stream_ended)
        return StreamResponse(
            answer.stream, content_type=content_type, headers=STREAM_HEADERS, framing=framing
        )

    async def _stream_ended(self, stream: AnswerStream) -> None:
        self.record.usage = stream.usage
        self.record.response_model = stream.model
        if stream.is_interrupted and not stream.is_whole:
            self._end(status=200, outcome=RelayStopping.code, message=STOPPING)
        elif stream.failure is not None:
            failure = stream.failure
            self._end(status=200, outcome=failure.failure_class, message=failure.message)
        elif stream.is_whole:
            self._bind(stream.response_id)
            self._end(status=200, outcome="ok")
        else:
            self._end(status=CLIENT_GONE, outcome=CLIENT_LEFT)
        await self.settled()


class StoredResponseView(RelayView):
    """GET of a response that was made earlier: from the channel that made it."""

    http_method_names = ["get"]

    async def get(self, request: Request) -> HttpResponseBase:
        """Return it, whole or as a stream."""
        token = await self.authenticate()
        bound = await self._binding(token, self.kwargs["response_id"])
        query = self._query()
        call = Call(
            request_id=self.record.request_id,
            endpoint=self.endpoint,
            model=bound.model,
            is_stream="stream=true" in query.split("&"),
            body=b"",
            query=query,
            path=self.kwargs,
            headers=_forwarded(self.relay_request),
            client_headers=self.relay_request.scope["headers"],
        )
        return await self._relay(call, token, bound=bound)


class ModelsView(DialectView):
    """GET of the names that this token may use, or of one of them.

    Anthropic's and Google's SDKs ask under OpenAI's path too; their headers tell them apart.
    """

    @property
    def dialect(self) -> Dialect:
        name, meta = self.endpoint.dialect, self.relay_request.META
        if name == "openai" and "HTTP_ANTHROPIC_VERSION" in meta:
            name = "anthropic"
        elif name == "openai" and "HTTP_X_GOOG_API_KEY" in meta:
            name = "gemini"
        return DIALECTS[name]

    async def get(self, request: Request) -> HttpResponseBase:
        """Return them in the dialect's list form, or the one that the path names."""
        token, routing = await self.authenticate(), self.snapshot.routing
        name = self.kwargs.get("model")
        if name is None:
            body = self.dialect.model_list(usable_models(routing, token))
        elif is_usable(routing, token, name):
            body = self.dialect.model_card(name)
        else:
            raise ModelNotFound(f"model {name!r} does not exist here for this token")
        return HttpResponse(body, content_type="application/json")


class UnknownPathView(DialectView):
    """Every path that is no endpoint of the relay."""

    async def refuse_method(self, request: Request) -> HttpResponseBase:
        """Say so, whatever the method."""
        said = f"{request.method} {request.path} is no endpoint of this relay"
        raise UnknownPath(said + path_hint(request.path))

    # One handler of its own tells Django that the view is async.
    get = refuse_method


def _outcome(error: Exception) -> str:
    """Return what the request log calls this end: a failure class or an error code."""
    if isinstance(error, UpstreamFailed):
        return error.failure_class.value
    return (error.code if isinstance(error, RelayError) else None) or "internal_error"


def _forwarded(request: HttpRequest) -> Mapping[str, str]:
    found = {}
    for name in FORWARDED:
        value = request.META.get("HTTP_" + name.upper().replace("-", "_"))
        if value and value.isascii():  # others can't be sent, and would blame the key
            found[name] = value
    return MappingProxyType(found)
