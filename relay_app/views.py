"""HTTP in, HTTP out: check the request, call the pipeline, choose the response."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from billing_app.core.types import TokenView
from channels_app.core.routing import model_matches
from relay_app import pipeline, runtime
from relay_app.attempt import Answer
from relay_app.authentication import check_token, find_token, query_without_key
from relay_app.core.types import Call, Endpoint
from relay_app.dialects.base import BodyError, Dialect
from relay_app.dialects.registry import DIALECTS
from relay_app.drf import AsyncAPIView
from relay_app.errors import (
    InvalidRequest,
    ModelNotAllowed,
    RelayError,
    RequestTooLarge,
    UnknownPath,
    UnsupportedEncoding,
    UpstreamFailed,
    WrongMethod,
)
from relay_app.exception_handler import render_error
from relay_app.http import RelayRequest, StreamResponse
from relay_app.request_log import CLIENT_GONE, CLIENT_LEFT, RequestRecord
from relay_app.streaming import AnswerStream

# Headers of clients that may go upstream; each provider type takes those it understands.
FORWARDED = ("openai-beta", "anthropic-version", "anthropic-beta")
# nginx buffers a proxied body unless told not to, which would hold back the stream.
ROOT_TEXT = (
    b"relayproject, a relay for LLM APIs. Clients use /v1 with a token (GET /v1/models lists\n"
    b"models); people use /admin/; probes use /healthz and /readyz.\n"
)
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
            client_ip=str(request.META.get("REMOTE_ADDR", "")),
        )

    def finish(self, response: HttpResponseBase) -> None:
        """End the record, unless a stream goes on."""
        if not isinstance(response, StreamResponse):
            self._end(status=response.status_code, outcome="ok")
        response["X-Relay-Attempts"] = str(len(self.record.attempts))
        if self.dialect.request_id_header:
            response[self.dialect.request_id_header] = self.record.request_id

    def abandoned(self) -> None:
        """End the record of a client that hung up."""
        self._end(status=CLIENT_GONE, outcome=CLIENT_LEFT)

    async def authenticate(self) -> TokenView:
        """Return the token of the request, noted in its record."""
        token = await find_token(self.relay_request, self.runtime.feed)
        self.record.token = token  # first: the log names whose token is refused
        check_token(token)
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
        allowed = [name.upper() for name in names if hasattr(self, name)]
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

    async def post(self, request: Request) -> HttpResponseBase:
        """Return the upstream's answer, whole or as a stream."""
        token = await self.authenticate()
        call = self._read_call()
        self.record.model, self.record.is_stream = call.model, call.is_stream
        if token.models and not any(model_matches(m, call.model) for m in token.models):
            raise ModelNotAllowed(f"this token may not use model {call.model!r}", param="model")
        answer = await pipeline.relay(
            call,
            group=token.group,
            routing=self.snapshot.routing,
            dialect=self.dialect,
            transports=self.runtime.transports,
            record=self.record,
        )
        return self._respond(answer)

    def _read_call(self) -> Call:
        request = self.relay_request
        if request.is_oversized:
            raise RequestTooLarge(f"the request body is larger than {request.body_limit >> 20} MB")
        encoding = request.META.get("HTTP_CONTENT_ENCODING", "identity").lower()
        if encoding not in ("", "identity"):
            raise UnsupportedEncoding(
                f"bodies in Content-Encoding {encoding!r} can't be read; send plain JSON"
            )
        try:
            envelope = self.dialect.read_request(request.body)
        except BodyError as error:
            raise InvalidRequest(str(error), param=error.param) from None
        return Call(
            request_id=self.record.request_id,
            endpoint=self.endpoint,
            model=envelope.model,
            is_stream=envelope.is_stream,
            body=request.body,
            content_type=request.META.get("CONTENT_TYPE") or "application/json",
            query=query_without_key(str(request.META.get("QUERY_STRING", ""))),
            headers=_forwarded(request),
        )

    def _respond(self, answer: Answer) -> HttpResponseBase:
        self.record.response_model, self.record.usage = answer.model, answer.usage
        if answer.stream is None:
            return HttpResponse(answer.body, status=answer.status, content_type=answer.content_type)
        self.record.ttft_s = answer.stream.ttft_s
        answer.stream.on_end = self._stream_ended
        return StreamResponse(
            answer.stream, content_type=answer.content_type, headers=STREAM_HEADERS
        )

    def _stream_ended(self, stream: AnswerStream) -> None:
        self.record.usage = stream.usage
        self.record.response_model = stream.model
        if stream.failure is not None:
            failure = stream.failure
            self._end(status=200, outcome=failure.failure_class, message=failure.message)
        elif stream.is_whole:
            self._end(status=200, outcome="ok")
        else:
            self._end(status=CLIENT_GONE, outcome=CLIENT_LEFT)


class ModelsView(DialectView):
    """GET /v1/models: the names that this token may use.

    Anthropic's SDKs ask under the same path; their version header tells them apart.
    """

    @property
    def dialect(self) -> Dialect:
        is_anthropic = "HTTP_ANTHROPIC_VERSION" in self.relay_request.META
        return DIALECTS["anthropic" if is_anthropic else "openai"]

    async def get(self, request: Request) -> HttpResponseBase:
        """Return them in the dialect's list form."""
        token = await self.authenticate()
        names = [
            name
            for name in self.snapshot.routing.models(token.group)
            if not token.models or any(model_matches(m, name) for m in token.models)
        ]
        return HttpResponse(self.dialect.model_list(names), content_type="application/json")


class UnknownPathView(DialectView):
    """Every path that is no endpoint of the relay."""

    async def refuse_method(self, request: Request) -> HttpResponseBase:
        """Say so, whatever the method."""
        raise UnknownPath(f"{request.method} {request.path} is no endpoint of this relay")

    # One handler of its own tells Django that the view is async.
    get = refuse_method


async def root(request: HttpRequest) -> HttpResponse:
    """Answer probes of SDKs and load balancers, and people who look whether it is there."""
    return HttpResponse(ROOT_TEXT, content_type="text/plain; charset=utf-8")


async def healthz(request: HttpRequest) -> HttpResponse:
    """Say that the process is alive."""
    return HttpResponse(b"ok\n", content_type="text/plain")


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
