"""Checks of single values in a configuration file: each returns the tidy value, or notes why not.

A check takes the raw value and the `Place` where it stood. On a refusal it adds one line to
the place's problems and returns UNSET, so that reading goes on and all problems are found.
Secrets are never repeated in a problem.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from ipaddress import ip_network
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from msgspec import UNSET, UnsetType

from channels_app.core.option_values import LIMIT_NAMES, MAX_SECONDS
from relay_app.core.addresses import address_fault

SHOWN_CHARS = 60  # enough to find the value in the file
MAX_INT = 2**31 - 1  # what PostgreSQL's integer columns hold
MAX_RATIO = Decimal(9_999_999_999)  # ten digits before the point fit the column
MAX_BALANCE_USD = Decimal(9_000_000_000)  # in nano-dollars just inside 64 bits
# Bounds of a free mapping; YAML aliases can make a short text very large or endless.
MAX_JSON_DEPTH = 20
MAX_JSON_VALUES = 10_000
MAX_URL = 290  # the column holds 300, of which a provider's suffix may take some
TIMEOUTS = LIMIT_NAMES
# What addresses end in that are pasted whole from a provider's reference.
_ENDPOINT = re.compile(
    r"/(?:chat/completions|completions|responses|embeddings|moderations|rerank"
    r"|images/(?:generations|edits|variations)|audio/(?:transcriptions|translations|speech)"
    r"|messages(?:/count_tokens)?|(?<=/v1/)models|(?<=/v1beta/)models"
    r"|(?:models|tunedModels|publishers/[^/]+/models)/[^/]+:[A-Za-z]+)$"
)
_KEY_TEXT = re.compile(r"[!-~]+")
_STATUS = re.compile(r"[1-5][0-9]{2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the file, such as `channels[2].keys[0]`, and where its problems go."""

    path: str = ""
    problems: list[str] = field(default_factory=list)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def key(self, name: object) -> Place:
        """Return the place of `name` inside the mapping that stands here."""
        word = name if isinstance(name, str) and name.isprintable() else shown(name)
        word = word[:SHOWN_CHARS]
        return Place(f"{self.path}.{word}" if self.path else word, self.problems, self.environ)

    def item(self, index: int) -> Place:
        """Return the place of an item of the list that stands here."""
        return Place(f"{self.path}[{index}]", self.problems, self.environ)

    def refuse(self, reason: str) -> UnsetType:
        """Note a problem; returns UNSET, for the check to return."""
        self.problems.append(f"{self.path}: {reason}")
        return UNSET

    def wrong(self, value: object, wanted: str) -> UnsetType:
        """Note that `value` is not what is `wanted`."""
        return self.refuse(f"{shown(value)} is not {wanted}")

    def wrong_kind(self, value: object, kind: str, example: str) -> UnsetType:
        """Note that `value` is no list or mapping at all, with an example of one."""
        return self.wrong(value, f"{kind}; want one, such as {self.such_as(example)}")

    def such_as(self, example: str) -> str:
        """Return `example` as the value of the key that stands here."""
        name = self.path.rpartition(".")[2]
        return example if name.endswith("]") else f"{name}: {example}"


Check: TypeAlias = Callable[[Any, Place], Any]


def shown(value: object) -> str:
    """Return `value` as it may stand in a message: short, and never a whole container."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return repr(value if len(value) <= SHOWN_CHARS else value[:SHOWN_CHARS] + "…")
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a very large number"  # Python refuses to print the largest
    if isinstance(value, int | float):
        return str(value)
    names: dict[type, str] = {dict: "a mapping", list: "a list", bytes: "binary data"}
    return names.get(type(value), f"a {type(value).__name__}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean NAME?` with the nearest known name, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def text(limit: int, *, may_be_empty: bool = False) -> Check:
    """Return a check for text of up to `limit` characters without control characters."""
    wanted = "a text" if may_be_empty else "a text that is not empty"

    def check(value: object, place: Place) -> str | UnsetType:
        if not isinstance(value, str):
            quotes = " (put it in quotes)" if isinstance(value, int | float | date) else ""
            return place.wrong(value, wanted + quotes)
        tidy = value.strip()
        if not tidy and not may_be_empty:
            return place.wrong(value, wanted)
        if len(tidy) > limit:
            return place.refuse(f"{shown(value)} is longer than {limit} characters")
        if not _is_clean(tidy):
            return place.wrong(value, "free of control characters")
        return tidy

    return check


def user_name(value: object, place: Place) -> str | UnsetType:
    """Check the name of a user, in the normal form that accounts are stored with."""
    name: str | UnsetType = text(150)(value, place)
    return name if isinstance(name, UnsetType) else unicodedata.normalize("NFKC", name)


def boolean(value: object, place: Place) -> bool | UnsetType:
    """Check for true or false."""
    return value if isinstance(value, bool) else place.wrong(value, "true or false")


def boolean_or_null(value: object, place: Place) -> bool | UnsetType | None:
    """Check for true, false, or null: unknown."""
    if value is None or isinstance(value, bool):
        return value
    return place.wrong(value, "true, false or null")


def integer(low: int, high: int = MAX_INT) -> Check:
    """Return a check for a whole number from `low` to `high`."""

    def check(value: object, place: Place) -> int | UnsetType:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not low <= value <= high:  # type: ignore[operator]  # an int
            return place.wrong(value, f"a whole number from {low} to {high}")
        return value  # type: ignore[return-value]  # an int, by is_whole

    return check


def decimal(*, places: int, high: Decimal) -> Check:
    """Return a check for a decimal from 0 to `high` of up to `places` decimal places."""
    step = Decimal(1).scaleb(-places)
    wanted = f"a number from 0 to {high} with at most {places} decimal places"

    def check(value: object, place: Place) -> Decimal | UnsetType:
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            number = Decimal(str(value))
            if not 0 <= number <= high or number.quantize(step) != number:
                raise ValueError
        except (InvalidOperation, ValueError):
            return place.wrong(value, wanted)
        return abs(number.quantize(step))  # abs: no negative zero

    return check


def one_of(*choices: str) -> Check:
    """Return a check for one of the words `choices`."""

    def check(value: object, place: Place) -> str | UnsetType:
        if not isinstance(value, str) or value not in choices:
            return place.wrong(value, " or ".join(choices))
        return value

    return check


def list_of(one: Check, *, example: str = "..., ...") -> Check:
    """Return a check for a list whose items all pass `one`; repeated items count once."""

    def check(value: object, place: Place) -> list[str] | UnsetType:
        if not isinstance(value, list):
            return place.wrong_kind(value, "a list", f"[{example}]")
        items = [one(item, place.item(number)) for number, item in enumerate(value)]
        return list(dict.fromkeys(item for item in items if item is not UNSET))

    return check


def model_name(value: object, place: Place) -> str | UnsetType:
    """Check the name of a model; `*` may stand at its end only."""
    name: str | UnsetType = text(200)(value, place)
    if isinstance(name, str) and "*" in name[:-1]:
        return place.refuse(f"{shown(name)} has a * that is not at its end")
    return name


def network(value: object, place: Place) -> str | UnsetType:
    """Check an IP address or a network, such as 10.0.0.0/8."""
    found: str | UnsetType = text(50)(value, place)
    if isinstance(found, UnsetType):
        return found
    try:
        return tidy_network(found)
    except ValueError:
        return place.wrong(value, "an IP address or a network like 10.0.0.0/8")


def tidy_network(text: str) -> str:
    """Return the one way to write an address or network; raises ValueError if it is none."""
    found = ip_network(text, strict=False)
    return str(found.network_address if found.num_addresses == 1 else found)


def base_url(value: object, place: Place) -> str | UnsetType:
    """Check an address; trailing slashes are dropped. Empty: the type's own, if it has one."""
    if value == "":
        return ""
    url: str | UnsetType = text(MAX_URL)(value, place)
    if isinstance(url, UnsetType):
        return url
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port or an IPv6 address that is none
        has_host = False
    if not has_host or parts.scheme not in {"http", "https"} or re.search(r"\s", url):
        return place.wrong(without_password(url), "an address like https://host/v1")
    if "@" in parts.netloc:
        return place.refuse("a user or password in the address is never sent; use keys")
    if endpoint := _ENDPOINT.search(parts.path.rstrip("/")):
        base = f"{parts.scheme}://{parts.netloc}{parts.path[: endpoint.start()]}"
        return place.refuse(f"{endpoint[0]} is an endpoint, which the relay adds; want {base}")
    if parts.query or parts.fragment:
        return place.refuse("an address with a query or fragment can't be a base")
    if fault := address_fault(parts.hostname or "", allows_private=True):
        return place.refuse(fault)
    return url.rstrip("/")


def without_password(url: str) -> str:
    """Return `url` with its user and password hidden."""
    return re.sub(r"//[^/@]*@", "//…@", url)


def status_mapping(value: object, place: Place) -> dict[str, int] | UnsetType:
    """Check a mapping of upstream statuses (100-599) to others (400-599)."""
    if not isinstance(value, dict):
        return place.wrong_kind(value, "a mapping of statuses", "{404: 503}")
    found = {}
    for raw_from, raw_to in value.items():
        entry = place.key(raw_from)
        status, other = _status(raw_from), _status(raw_to)
        if status is None:
            entry.wrong(raw_from, "a status from 100 to 599")
        elif other is None or other < 400:
            entry.wrong(raw_to, "a status from 400 to 599")
        elif str(status) in found:
            entry.refuse("is there twice, as a number and as a text")
        else:
            found[str(status)] = other
    return found


def timeouts(value: object, place: Place) -> dict[str, float] | UnsetType:
    """Check a mapping of time limits in seconds."""
    if not isinstance(value, dict):
        return place.wrong_kind(value, "a mapping of time limits", "{connect: 5, idle: 60}")
    found = {}
    for name, seconds in value.items():
        entry = place.key(name)
        if name not in TIMEOUTS:
            known = nearest(name, TIMEOUTS) if isinstance(name, str) else ""
            entry.refuse(f"unknown key{known or '; known: ' + ', '.join(TIMEOUTS)}")
            continue
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if is_number and 0 <= seconds <= MAX_SECONDS:
            found[name] = seconds
        else:
            entry.wrong(seconds, f"a number of seconds from 0 to {MAX_SECONDS}")
    return found


def json_mapping(value: object, place: Place) -> dict[str, Any] | UnsetType:
    """Check a free mapping of what JSON can hold."""
    if not isinstance(value, dict):
        return place.wrong_kind(value, "a mapping", "{region: eu}")
    fault = json_fault(value)
    return value if fault is None else place.refuse(fault)


def json_fault(value: object) -> str | None:
    """Return why `value` can't be stored as JSON, or None. Values are not repeated."""
    waiting = [(value, 1)]
    count = 0
    while waiting:
        part, depth = waiting.pop()
        count += 1
        if depth > MAX_JSON_DEPTH or count > MAX_JSON_VALUES:
            return (
                f"nested more than {MAX_JSON_DEPTH} deep or of more than {MAX_JSON_VALUES} values"
            )
        if isinstance(part, dict):
            waiting += [(inner, depth + 1) for inner in part.values()]
            if not all(isinstance(name, str) and _is_clean(name) for name in part):
                return "has a key that is not a text"
        elif isinstance(part, list):
            waiting += [(inner, depth + 1) for inner in part]
        elif fault := _scalar_fault(part):
            return fault
    return None


def moment(value: object, place: Place) -> datetime | UnsetType | None:
    """Check a date-time, in UTC unless it says otherwise; null is never."""
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        if isinstance(found, date) and not isinstance(found, datetime):
            found = datetime.combine(found, time())
        if isinstance(found, datetime):
            aware = found if found.tzinfo else found.replace(tzinfo=UTC)
            return aware.astimezone(UTC)
    except (ValueError, OverflowError):  # no date, or one that UTC can't express
        pass
    return place.wrong(value, "a date-time like 2027-01-31T12:00:00Z")


def secret(value: object, place: Place) -> str | UnsetType:
    """Check a credential: printable ASCII without spaces. It is never repeated."""
    if isinstance(value, str) and _KEY_TEXT.fullmatch(value.strip()):
        return value.strip()
    kind = "the text" if isinstance(value, str) else f"a {type(value).__name__}"
    return place.refuse(f"{kind} that stands here is not a key of printable ASCII without spaces")


def variable(value: object, place: Place) -> str | UnsetType:
    """Check the name of an environment variable. It is not repeated: a key may stand here."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", value.strip()):
        return value.strip()
    return place.refuse("what stands here is not the name of an environment variable")


def hex_hash(value: object, place: Place) -> str | UnsetType:
    """Check a SHA-256 in hex. It is not repeated: a key may stand here by mistake."""
    if isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{64}", value.strip()):
        return value.strip().lower()
    return place.refuse("what stands here is not a SHA-256 of 64 hex digits")


def _is_clean(value: str) -> bool:
    """Return whether databases take the text: no control characters, no lone surrogates."""
    return (value.isascii() and value.isprintable()) or not any(
        unicodedata.category(char) in {"Cc", "Cs"} for char in value
    )


def _status(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if isinstance(value, str):
        return int(value) if _STATUS.fullmatch(value) else None
    return value if 100 <= value <= 599 else None


def _is_exact(value: int) -> bool:
    """Return whether JSON readers agree on `value`: it has 64 bits, or was a float such as
    1e30, which PostgreSQL gives back as a whole number."""
    try:
        return abs(value) < 2**63 or Decimal(repr(float(value))) == value
    except OverflowError:
        return False


def _scalar_fault(value: object) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        # Line breaks are welcome in a setting, for instance in a private key.
        bare = value.replace("\n", "").replace("\r", "").replace("\t", "")
        return None if _is_clean(bare) else "has a text with control characters"
    if isinstance(value, int):
        return None if _is_exact(value) else "has a number of more than 64 bits"
    if isinstance(value, float):
        is_finite = value - value == 0
        return None if is_finite else "has a number that is not finite"
    return f"has a {type(value).__name__}, which JSON can't hold (put it in quotes)"
