"""Checks of what only channels and their keys have: mappings, overrides, proxies, limits.

As in `config_fields`, a check returns the tidy value, or notes why not and returns UNSET.
Proxies and headers may hold passwords: nothing of them is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from msgspec import UNSET, UnsetType

from channels_app.core.types import RateLimits
from relay_app.config_fields import Check, Place, integer, json_fault, nearest, text, variable
from relay_app.core.overrides import (
    check_header_override,
    check_model_mapping,
    check_param_override,
)
from relay_app.core.proxies import check_proxy

LIMITS = tuple(field.name for field in fields(RateLimits))


@dataclass(frozen=True, slots=True)
class Kept:
    """Stands for what the channel has already; variable `env`, if any, was not set."""

    env: str = ""

    @property
    def advice(self) -> str:
        """Return what to do where there is nothing to keep."""
        return f"set the variable {self.env}" if self.env else "write it out"


def or_kept(one: Check) -> Check:
    """Return a check for what `one` takes, or a mapping that stands for it.

    `{env: NAME}` is what the variable holds, `{kept: true}` what the channel has (`Kept`);
    both together are the variable if it is set.
    """

    def check(value: object, place: Place) -> Any:
        return _stand_in(value, place, one) if isinstance(value, dict) else one(value, place)

    return check


def _stand_in(value: dict[Any, Any], place: Place, one: Check) -> Any:
    is_kept = value.get("kept") is True
    if not value or not value.keys() <= {"env", "kept"} or ("kept" in value and not is_kept):
        return place.refuse("want a text, {env: NAME} or {kept: true}")
    if "env" not in value:
        return Kept()
    name = variable(value["env"], place.key("env"))
    if isinstance(name, UnsetType):
        return UNSET
    if found := place.environ.get(name, ""):
        return one(found, place.key("env"))
    if is_kept:
        return Kept(name)
    return place.key("env").refuse(f"the environment variable {name} is not set")


def proxy(value: object, place: Place) -> str | UnsetType:
    """Check the address of a proxy, with a user and password if it wants them; "" is none."""
    tidy = value.strip().removesuffix("/") if isinstance(value, str) else value
    reason = check_proxy(tidy)
    return str(tidy) if reason is None else place.refuse(reason)


def header_override(value: object, place: Place) -> dict[str, str | Kept] | UnsetType:
    """Check a mapping of header names to values."""
    if not isinstance(value, dict):
        return place.refuse("is not a mapping of headers; want one, such as {X-Team: relay}")
    found: dict[str, str | Kept] = {}
    for name, raw in value.items():
        if not isinstance(name, str):
            return place.refuse("has a name that is not a text (put it in quotes)")
        one = or_kept(_header_value)(raw, place.key(name))
        if one is not UNSET:
            found[name] = one
    # What the channel has was checked when it came.
    texts = {name: "" if isinstance(one, Kept) else one for name, one in found.items()}
    reason = check_header_override(texts)
    return found if reason is None else place.refuse(reason)


def _header_value(value: object, place: Place) -> str | UnsetType:
    if isinstance(value, str):
        return value.strip()
    quotes = " (put it in quotes)" if isinstance(value, int | float) else ""
    return place.refuse(f"what stands here is not a text{quotes}")


def param_override(value: object, place: Place) -> dict[str, Any] | UnsetType:
    """Check the parameters to set: plain keys, or `{"operations": [...]}`."""
    if not isinstance(value, dict):
        return place.wrong_kind(value, "a mapping of parameters", "{temperature: 0}")
    reason = json_fault(value) or check_param_override(value)
    return value if reason is None else place.refuse(reason)


def settings(value: object, place: Place) -> dict[str, Any] | UnsetType:
    """Check a free mapping of what JSON can hold; `{kept: true}` stands for a value."""
    if not isinstance(value, dict):
        return place.wrong_kind(value, "a mapping", "{region: eu}")
    fault = json_fault(value)
    if fault is not None:
        return place.refuse(fault)
    return {
        name: Kept() if isinstance(one, dict) and one == {"kept": True} else one
        for name, one in value.items()
    }


def model_mapping(value: object, place: Place) -> dict[str, str] | UnsetType:
    """Check a mapping of models to the names that the upstream has for them."""
    if not isinstance(value, dict):
        return place.wrong_kind(value, "a mapping of models", "{gpt-4o: gpt-4o-2024-11-20}")
    found = {}
    one = text(200)
    for raw_name, raw_other in value.items():
        entry = place.key(raw_name)
        name, other = one(raw_name, entry), one(raw_other, entry)
        if name is not UNSET and other is not UNSET:
            found[name] = other
    reason = check_model_mapping(found)
    return found if reason is None else place.refuse(reason)


def rate_limits(value: object, place: Place) -> dict[str, int] | UnsetType:
    """Check a mapping of limits; those of 0 or null, which are none, are left out."""
    if not isinstance(value, dict):
        return place.wrong_kind(value, "a mapping of limits", "{rpm: 600, concurrency: 20}")
    found = {}
    for name, raw in value.items():
        entry = place.key(name)
        if name not in LIMITS:
            known = nearest(name, LIMITS) if isinstance(name, str) else ""
            entry.refuse(f"unknown key{known or '; known: ' + ', '.join(LIMITS)}")
        elif raw is not None and (number := integer(0)(raw, entry)):
            found[name] = number
    return found


def set_limits(value: object) -> Mapping[str, object]:
    """Return the limits of a column that limit something."""
    return {k: v for k, v in value.items() if v} if isinstance(value, dict) else {}
