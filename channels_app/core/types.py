"""The values that routing works with: channels as the relay sees them, and failures.

Everything here is immutable. Rows become these values in `routing_table`; failures are
made by `relay_app.core.classify` and judged by the retry decision, health and
auto-disable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from urllib.parse import unquote, urlsplit


class FailureClass(StrEnum):
    """What went wrong with one attempt (spec 02 section 1)."""

    RATE_LIMIT = "RATE_LIMIT"
    QUOTA = "QUOTA"
    SERVER = "SERVER"
    TIMEOUT = "TIMEOUT"
    TRANSPORT = "TRANSPORT"
    STREAM_INTERRUPTED = "STREAM_INTERRUPTED"
    EMPTY_RESPONSE = "EMPTY_RESPONSE"
    AUTH = "AUTH"
    INVALID_REQUEST = "INVALID_REQUEST"
    UNKNOWN_MODEL = "UNKNOWN_MODEL"
    CONTEXT_WINDOW = "CONTEXT_WINDOW"
    CONTENT_FILTER = "CONTENT_FILTER"
    CHANNEL_CONFIG = "CHANNEL_CONFIG"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt on one channel.

    `status` is what the upstream sent and None when no HTTP answer came (connect, DNS,
    TLS, reset, a time limit of ours); `seen_status` is the same after the channel's
    `status_code_mapping`, and what the retry decision and the client see. Texts are
    free of secrets, not yet cut.
    """

    failure_class: FailureClass
    message: str
    status: int | None = None
    seen_status: int | None = None
    code: str | None = None
    type: str | None = None
    param: str | None = None
    # How long the upstream asked to be left alone, in seconds from now.
    retry_after_s: float | None = None
    upstream_request_id: str = ""
    # A fault that no other channel would cure: the request itself, or the relay.
    skip_retry: bool = False
    # A 2xx that said nothing: passed on when no attempt is left (spec 02 section 1).
    empty_answer: bytes | None = None
    empty_answer_type: str = ""

    @property
    def is_channel_error(self) -> bool:
        """Return whether the channel's own configuration is at fault (`channel:*`)."""
        return bool(self.code) and str(self.code).startswith("channel:")

    @property
    def is_answered(self) -> bool:
        """Return whether the upstream sent an HTTP answer at all."""
        return self.status is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """How much may go through at most: requests and tokens a minute, requests at once; 0 is
    no limit."""

    rpm: int = 0
    tpm: int = 0
    concurrency: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """One enabled credential of a channel. `repr` never shows the value."""

    id: int
    value: str = field(repr=False)
    rates: RateLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """A channel's own time limits in seconds; None takes the option, 0 is no limit."""

    connect: float | None = None
    first_byte: float | None = None
    first_token: float | None = None
    idle: float | None = None
    response: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelView:
    """A channel as requests see it: a copy of its row that never changes.

    `status_map` maps upstream statuses to the ones that count; `settings` is what the
    provider type needs. A channel that the machine disabled is kept, not enabled, so
    that "disabled" and "unknown model" can be told apart.
    """

    id: int
    name: str
    provider: str
    base_url: str
    keys: tuple[KeyView, ...] = ()
    key_mode: str = "random"
    models: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    priority: int = 0
    weight: int = 0
    is_enabled: bool = True
    limits: TimeLimits = TimeLimits()
    # Whether it bills the model that it asks the upstream for, instead of the client's.
    bill_upstream_model: bool = False
    status_map: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    settings: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    # None where the row sets nothing, so that most requests skip the work.
    model_mapping: Mapping[str, str] | None = None
    param_override: Mapping[str, object] | None = field(default=None, repr=False)
    header_override: Mapping[str, str] | None = field(default=None, repr=False)
    rates: RateLimits | None = None
    proxy: str = field(default="", repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return what must never be shown: all keys, the proxy and its password, and headers
        set by hand."""
        headers = (self.header_override or {}).values()
        proxy = (self.proxy, _password(self.proxy)) if self.proxy else ()
        return (*(key.value for key in self.keys), *filter(None, (*proxy, *headers)))


def _password(url: str) -> str:
    """Return the password in a URL, empty if there is none or it is no URL."""
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A set of channels that tokens may use: those of users in `user_groups`, or all."""

    id: int
    name: str
    user_groups: tuple[str, ...] = ()
    # What its use costs, times the price.
    ratio: Decimal = Decimal(1)

    def is_open_to(self, user_group: str) -> bool:
        """Return whether tokens of users in `user_group` may use this group."""
        return not self.user_groups or user_group in self.user_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The enabled channels that serve one (group, model), by tier, best tier first.

    Within a tier channels stand in id order, so that the same roll picks the same one.
    """

    tiers: tuple[tuple[ChannelView, ...], ...]
