"""The options of the relay: one typed table with names, defaults, ranges and help.

`Options` is what the relay reads (`options.retry_times`), `OPTIONS` what people edit
(`RetryTimes`). Both come from the fields below, so an option is added in one place.
Rows of `channels_app.Option` hold only what differs from the default.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any

from channels_app.core.option_values import STRUCTURED, thawed
from channels_app.core.status_ranges import (
    Ranges,
    format_status_ranges,
    parse_status_ranges,
)
from channels_app.core.types import TimeLimits

DEFAULT_RETRY_STATUSES = "100-199,300-399,401-407,409-499,500-503,505-523,525-599"


class OptionError(ValueError):
    """An unknown option or a refused value; the text says which and what is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """One row of the table: how an option is named, read, bounded and explained.

    `kind` says what a value is: int, float, bool; ranges (of statuses), choice (one of
    `choices`), lines (texts, one a line), names (a list of texts), model_lists (model → list
    of models), model_timeouts (model pattern → time limits), usd (an amount, Decimal),
    ratio_tables (user group → group → ratio). `low` and `high` bound numbers,
    inclusive.
    """

    name: str
    attribute: str
    kind: str
    default: Any
    help: str
    unit: str = ""
    low: float = 0
    high: float = math.inf
    choices: tuple[str, ...] = ()

    def parse(self, raw: object) -> Any:
        """Return `raw` as the option's typed value; raise OptionError if refused."""
        try:
            return self._reader(raw)
        except OptionError:
            raise
        except ValueError as error:
            raise OptionError(f"{self.name}: {error}") from None

    def stored(self, raw: object) -> Any:
        """Return the form that is kept in the database and shown: JSON-able, tidy."""
        value = self.parse(raw)
        if self.kind == "ranges":
            return format_status_ranges(value)
        if self.kind == "lines":
            return "\n".join(value)
        return thawed(value)

    @property
    def _reader(self) -> Callable[[object], Any]:
        own: dict[str, Callable[[object], Any]] = {
            "bool": self._parse_bool,
            "ranges": self._parse_ranges,
            "choice": self._parse_choice,
        }
        return own.get(self.kind) or STRUCTURED.get(self.kind) or self._parse_number

    def _parse_choice(self, raw: object) -> str:
        word = {True: "on", False: "off"}.get(raw, raw) if isinstance(raw, bool) else raw
        if isinstance(word, str) and word.strip() in self.choices:
            return word.strip()
        raise OptionError(f"{self.name}: {raw!r} is not {' or '.join(self.choices)}")

    def _parse_bool(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        words = {"true": True, "on": True, "false": False, "off": False}
        if isinstance(raw, str) and raw.strip().lower() in words:
            return words[raw.strip().lower()]
        raise OptionError(f"{self.name}: {raw!r} is not true or false")

    def _parse_ranges(self, raw: object) -> Ranges:
        if isinstance(raw, int) and not isinstance(raw, bool):
            raw = str(raw)  # YAML reads a lone 429 as a number
        if not isinstance(raw, str):
            raise OptionError(f"{self.name}: {raw!r} is not a text like 429,500-503")
        try:
            return parse_status_ranges(raw)
        except ValueError as error:
            raise OptionError(f"{self.name}: {error}") from None

    def _parse_number(self, raw: object) -> float:
        wanted = "a whole number" if self.kind == "int" else "a number"
        bounds = f"{wanted} from {self.low:g} to {self.high:g}"
        try:
            if isinstance(raw, bool) or not isinstance(raw, int | float | str):
                raise ValueError
            value = float(raw)
            if self.kind == "int" and not value.is_integer():
                raise ValueError
        except (ValueError, OverflowError):
            raise OptionError(f"{self.name}: {raw!r} is not {bounds}") from None
        if not self.low <= value <= self.high:  # also catches nan
            raise OptionError(f"{self.name}: {raw!r} is not {bounds}")
        return int(value) if self.kind == "int" else value


def _option(kind: str, default: object, help: str, **bounds: Any) -> Any:
    """Return a dataclass field that carries its row of the table."""
    value = parse_status_ranges(str(default)) if kind == "ranges" else default
    if kind in STRUCTURED:
        value = STRUCTURED[kind](default)
    return field(
        default_factory=lambda: value,
        metadata={"kind": kind, "default": default, "help": help, **bounds},
    )


def _seconds(default: float, help: str, *, high: float = 86_400) -> Any:
    return _option("float", default, help, unit="s", high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The values in force, typed; field `retry_times` is option `RetryTimes`."""

    retry_times: int = _option(
        "int",
        0,
        "Further channel selections after the first attempt of a request failed.",
        high=20,
    )
    automatic_retry_status_codes: Ranges = _option(
        "ranges",
        DEFAULT_RETRY_STATUSES,
        "Upstream statuses that another attempt may cure; 504 and 524 never are.",
    )
    retry_strategy: str = _option(
        "choice",
        "tier_per_attempt",
        "Where the next attempt goes: one tier lower each time; the same, but untried channels "
        "before any is asked again; or every channel of a tier before the next tier.",
        choices=("tier_per_attempt", "untried_first", "exhaust_tier"),
    )
    same_channel_retries: int = _option(
        "int",
        0,
        "Further sends to a channel that failed for a moment (rate limit, 5xx, broken "
        "connection) before another is chosen; they do not use up RetryTimes.",
        high=20,
    )
    max_switches_per_request: int = _option(
        "int", 8, "Most changes from one channel to another in one request.", high=100
    )
    retry_after_wait_max: float = _seconds(
        3,
        "Longest published Retry-After that is waited out before a channel that failed "
        "is asked again.",
        high=60,
    )
    retry_after_to_client_max: float = _seconds(
        60,
        "Longest Retry-After passed on to a client; for a longer one it is told not to "
        "retry, because SDKs sleep for as long as the header says.",
    )
    blocked_words: tuple[str, ...] = _option(
        "lines",
        "",
        "A prompt that contains one of these (one a line, in any case) is refused.",
    )
    model_fallbacks: Mapping[str, tuple[str, ...]] = _option(
        "model_lists",
        {},
        "Other models to try, in order, when every channel for a model failed or is parked.",
    )
    auto_groups: tuple[str, ...] = _option(
        "names", [], "The groups that a token of group auto walks, in order."
    )
    all_parked_wait_max: float = _seconds(
        3,
        "Longest wait for a channel when all that is left are parked or full.",
        high=60,
    )
    allow_private_upstreams: str = _option(
        "choice",
        "auto",
        "Whether upstreams may have private addresses (127.0.0.1, 10.0.0.0/8, ...); auto: only "
        "while the relay brings its own Valkey. Link-local and metadata addresses never.",
        choices=("auto", "on", "off"),
    )
    total_timeout: float = _seconds(
        600, "No further attempt of a request starts after this; 0 is no limit."
    )
    connect_timeout: float = _seconds(
        5, "Time limit of an attempt for reaching the upstream; 0 is no limit."
    )
    first_byte_timeout: float = _seconds(
        30, "Time limit of a stream for its response headers; 0 is no limit."
    )
    first_token_timeout: float = _seconds(
        120, "Time limit of a stream for its first content; 0 is no limit."
    )
    idle_timeout: float = _seconds(
        30, "Longest silence of a stream after its first content; 0 is no limit."
    )
    response_timeout: float = _seconds(
        300, "Time limit of an answer that is not streamed; 0 is no limit."
    )
    attempt_timeout: float = _seconds(0, "Time limit of one attempt in all; 0 is no limit.")
    keepalive_before_commit: bool = _option(
        "bool",
        False,
        "Keep streams that wait long for their first content alive by comments; the status is "
        "200 from then on, and errors come as events.",
    )
    model_timeouts: Mapping[str, TimeLimits] = _option(
        "model_timeouts",
        {},
        "Time limits of models that are slow by nature, by name or prefix with *; they "
        "outrank those of channels.",
    )
    pre_consumed_tokens: int = _option(
        "int",
        500,
        "A reservation counts a prompt as at least so long.",
        unit="tokens",
        high=1_000_000,
    )
    reserve_output_tokens_max: int = _option(
        "int",
        4096,
        "A reservation counts the longest answer that the request allows as at most so long.",
        unit="tokens",
        high=10_000_000,
    )
    trust_quota: Decimal = _option(
        "usd",
        "10",
        "Requests of wallets (and limited tokens) with more than this are not reserved first, "
        "only charged afterwards; 0 trusts nobody.",
        unit="USD",
    )
    allow_unpriced_models: bool = _option(
        "bool",
        False,
        "Serve models without a price, for nothing; else they are refused.",
    )
    group_group_ratio: Mapping[str, Mapping[str, Decimal]] = _option(
        "ratio_tables",
        {},
        "What a group costs the users of a group, instead of its own ratio.",
    )
    violation_fee_enabled: bool = _option(
        "bool",
        False,
        "Charge a fee for a prompt that the upstream refused and charged for.",
    )
    violation_fee: Decimal = _option("usd", "0.05", "The fee for a refused prompt.", unit="USD")
    violation_markers: tuple[str, ...] = _option(
        "lines",
        "SAFETY_CHECK_TYPE",
        "An upstream's error that contains one of these (one a line, in any case) is such a "
        "refusal.",
    )
    request_log_days: int = _option(
        "int",
        30,
        "Request logs are kept this long; 0 keeps them for ever.",
        unit="days",
        high=3650,
    )


def _camel(attribute: str) -> str:
    return "".join(part.capitalize() for part in attribute.split("_"))


OPTIONS: Mapping[str, OptionSpec] = {
    _camel(f.name): OptionSpec(name=_camel(f.name), attribute=f.name, **f.metadata)
    for f in fields(Options)
}


def option_spec(name: str) -> OptionSpec:
    """Return the row of option `name`; raise OptionError with the nearest known one."""
    spec = OPTIONS.get(name)
    if spec is None:
        near = difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise OptionError(f"unknown option {name!r}{hint}")
    return spec


def build_options(stored: Mapping[str, object]) -> Options:
    """Return the options in force: `stored` values over the defaults.

    Names that are not in the table are ignored (a row of a newer version), and so is a
    stored value that the table refuses: the relay must start all the same.
    """
    values: dict[str, Any] = {}
    for name, raw in stored.items():
        spec = OPTIONS.get(name)
        if spec is None:
            continue
        try:
            values[spec.attribute] = spec.parse(raw)
        except OptionError:
            continue
    return Options(**values)
