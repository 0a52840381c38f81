"""The provider types, by the name that channels use."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache

from relay_app.providers.anthropic import AnthropicAdapter
from relay_app.providers.base import Adapter
from relay_app.providers.gemini import GeminiAdapter
from relay_app.providers.openai import OpenAIAdapter
from relay_app.providers.simulated import SimulatedAdapter, behaviour_fault

ADAPTERS: Mapping[str, Adapter] = {
    "openai": OpenAIAdapter(),
    "anthropic": AnthropicAdapter(),
    "gemini": GeminiAdapter(),
    "simulated": SimulatedAdapter(),
}


@cache
def deaf_to(dialect: str) -> frozenset[str]:
    """Return the provider types that cannot take bodies of `dialect`."""
    return frozenset(name for name, adapter in ADAPTERS.items() if dialect not in adapter.dialects)


def settings_fault(provider: str, settings: object) -> str | None:
    """Return what a channel of this type can't have in its settings, with the name in front."""
    if provider != "simulated" or not isinstance(settings, dict) or "behaviour" not in settings:
        return None
    fault = behaviour_fault(settings["behaviour"])
    return None if fault is None else f"behaviour: {fault}"


def unknown_provider(name: str) -> str | None:
    """Return why `name` is no provider type, with the nearest known one, else None."""
    if name in ADAPTERS:
        return None
    near = difflib.get_close_matches(name, ADAPTERS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(ADAPTERS)}"
    return f"unknown type {name!r}; {hint}"
