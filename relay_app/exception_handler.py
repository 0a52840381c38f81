"""Errors as answers: every failed request gets its body here, in the path's dialect."""

from __future__ import annotations

import math

import structlog
from django.http import HttpResponse

from relay_app.dialects.base import Dialect, ErrorParts
from relay_app.errors import RateLimited, RelayError, UpstreamFailed

log = structlog.get_logger(__name__)


def render_error(
    error: Exception,
    *,
    dialect: Dialect,
    request_id: str,
    retry_after_to_client_max_s: float,
) -> HttpResponse:
    """Return the answer for `error`. What is not a RelayError is a fault of ours: it is
    logged whole and told as 500 `internal_error`, without its text."""
    error = as_relay_error(error, request_id=request_id)
    parts = parts_of(error, request_id=request_id)
    response = HttpResponse(
        dialect.error_body(parts),
        status=error.http_status,
        content_type="application/json",
    )
    for name, value in error.headers.items():
        response[name] = value
    if isinstance(error, UpstreamFailed | RateLimited) and error.retry_after_s is not None:
        # SDKs sleep for as long as the header says, hours included.
        if error.retry_after_s <= retry_after_to_client_max_s:
            response["Retry-After"] = str(math.ceil(error.retry_after_s))
        else:
            response["x-should-retry"] = "false"
    return response


def as_relay_error(error: Exception, *, request_id: str) -> RelayError:
    """Return `error`, or what the client is told of a fault of ours, which is logged."""
    if isinstance(error, RelayError):
        return error
    log.error("unexpected error", request_id=request_id, exc_info=error)
    return RelayError("the relay failed to handle this request; it was logged")


def parts_of(error: RelayError, *, request_id: str) -> ErrorParts:
    """Return what every dialect tells of `error`."""
    return ErrorParts(
        status=error.http_status,
        message=f"{error} (request id: {request_id})",
        type=error.type,
        code=error.code,
        param=error.param,
        request_id=request_id,
    )
