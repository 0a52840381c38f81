"""Every error that a client of the relay can meet, and the HTTP answer it becomes.

    RelayError
    ├── InvalidRequest          400  invalid_request
    │   ├── BlockedContent      400  blocked_content
    │   ├── ModelPriceMissing   400  model_price_missing
    │   ├── RequestTooLarge     413  request_too_large
    │   └── UnsupportedEncoding 415  unsupported_content_encoding
    ├── InvalidToken            401  invalid_api_key
    ├── InsufficientQuota       403  insufficient_quota
    ├── ModelNotAllowed         403  model_not_allowed
    ├── GroupNotAllowed         403  group_not_allowed
    ├── AddressNotAllowed       403  ip_not_allowed
    ├── UnknownPath             404  unknown_url
    ├── WrongMethod             405  method_not_allowed
    ├── ModelNotFound           404  model_not_found
    ├── ResponseNotFound        404  response_not_found
    ├── NoChannelAvailable      503  no_channel_available
    ├── BillingUnavailable      503  billing_unavailable
    ├── RelayStopping           503  relay_stopping
    ├── RateLimited             429
    │   ├── RateLimitExceeded        rate_limit_exceeded (of the token)
    │   └── UpstreamCapacity         upstream_capacity
    ├── UpstreamUnreachable     502  upstream_unreachable
    ├── UpstreamTimeout         504  upstream_timeout
    ├── StreamInterrupted       502  stream_interrupted
    └── UpstreamFailed          as the upstream said

One failed attempt is not here: it is a value, `Failure`, that the attempt loop looks
at. `exception_handler` writes this tree in the client's dialect.
"""

from __future__ import annotations

from collections.abc import Mapping

from channels_app.core.types import Failure


class RelayError(Exception):
    """Base of the tree. `str(error)` is sent to the client: it holds no secrets."""

    http_status: int = 500
    code: str | None = "internal_error"
    type: str | None = None  # None: what the dialect calls this status
    param: str | None = None
    headers: Mapping[str, str] = {}

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(RelayError):
    """The request can't be understood; it must change."""

    http_status, code = 400, "invalid_request"


class BlockedContent(InvalidRequest):
    """The prompt contains one of option BlockedWords."""

    code = "blocked_content"


class ModelPriceMissing(InvalidRequest):
    """The model has no price, and option AllowUnpricedModels is off."""

    code = "model_price_missing"


class RequestTooLarge(InvalidRequest):
    """The body is larger than MAX_REQUEST_BODY_MB."""

    http_status, code = 413, "request_too_large"


class UnsupportedEncoding(InvalidRequest):
    """The body is compressed in a way that the relay does not read."""

    http_status, code = 415, "unsupported_content_encoding"


class InvalidToken(RelayError):
    """No token, an unknown one, or one that is expired or disabled."""

    http_status, code = 401, "invalid_api_key"
    headers = {"WWW-Authenticate": "Bearer"}


class InsufficientQuota(RelayError):
    """The wallet, or a limit of the token, does not cover what the request may cost."""

    http_status, code = 403, "insufficient_quota"


class ModelNotAllowed(RelayError):
    """The token may not use this model."""

    http_status, code = 403, "model_not_allowed"


class GroupNotAllowed(RelayError):
    """The token's group is closed to its user."""

    http_status, code = 403, "group_not_allowed"


class AddressNotAllowed(RelayError):
    """The token may not be used from where the request came."""

    http_status, code = 403, "ip_not_allowed"


class UnknownPath(RelayError):
    """The relay has no such endpoint."""

    http_status, code = 404, "unknown_url"


class WrongMethod(RelayError):
    """The endpoint exists, for another method."""

    http_status, code = 405, "method_not_allowed"


class ModelNotFound(RelayError):
    """No channel of any group lists the model."""

    http_status, code = 404, "model_not_found"


class ResponseNotFound(RelayError):
    """No earlier response of this wallet has the id."""

    http_status, code = 404, "response_not_found"


class NoChannelAvailable(RelayError):
    """Channels list the model, but none may serve this group now."""

    http_status, code = 503, "no_channel_available"


class BillingUnavailable(RelayError):
    """The database of accounts did not answer in time; nothing was sent."""

    http_status, code = 503, "billing_unavailable"
    headers = {"Retry-After": "5"}


# What the cancellation of a request says when the relay stops; any other means that its client
# hung up.
STOPPING = "the relay stops"
STOPPED = "the relay was stopped before there was an answer; send the request again"


class RelayStopping(RelayError):
    """The relay was told to stop, and the time for requests in flight is over."""

    http_status, code = 503, "relay_stopping"
    headers = {"Retry-After": "1"}


def is_stopping(error: BaseException) -> bool:
    """Return whether `error` is the cancellation of a request because the relay stops."""
    return STOPPING in error.args


class RateLimited(RelayError):
    """Not now: the same request may pass after `retry_after_s` seconds."""

    http_status = 429

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimitExceeded(RateLimited):
    """A limit of the client's own token is reached."""

    code = "rate_limit_exceeded"


class UpstreamCapacity(RateLimited):
    """All channels that could serve the request are at their limits."""

    code = "upstream_capacity"


class UpstreamUnreachable(RelayError):
    """No attempt got an answer."""

    http_status, code = 502, "upstream_unreachable"


class UpstreamTimeout(RelayError):
    """No attempt got an answer, and the last one ran into a time limit of the relay."""

    http_status, code = 504, "upstream_timeout"


class StreamInterrupted(RelayError):
    """A stream ended before its proper end, after part of it had been sent."""

    http_status, code = 502, "stream_interrupted"


class UpstreamFailed(RelayError):
    """The upstream's own error, passed on with its status, type, code and message."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, param=failure.param)
        status = failure.seen_status or failure.status or 502
        # A 2xx would pass for success, and HTTP gives a 304 no body to say more in; what
        # else lies outside 200-599 is no status of an answer (spec 01 section 5).
        self.http_status = status if 300 <= status <= 599 and status != 304 else 502
        self.code = failure.code
        self.type = failure.type
        self.retry_after_s = failure.retry_after_s
        self.failure_class = failure.failure_class
