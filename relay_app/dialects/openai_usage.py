"""How OpenAI's endpoints, and those compatible with them, tell what an answer used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from billing_app.core.usage import MAX_TOKENS, Usage

INPUT_NAMES = ("input_tokens", "prompt_tokens")
OUTPUT_NAMES = ("output_tokens", "completion_tokens")
INPUT_DETAILS = ("input_tokens_details", "prompt_tokens_details", "input_token_details")
OUTPUT_DETAILS = ("output_tokens_details", "completion_tokens_details", "output_token_details")
# What servers call tokens that went into a prompt cache, among the details or beside them.
WRITE_NAMES = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")


def usage_in(document: dict[str, Any]) -> Usage | None:
    """Return what `document` reports under any of the names in use, else None.

    Rerankers report a total only: all of it is input. Cohere tells its counts in `meta`.
    """
    meta = object_in(document, "meta")
    usage = (
        object_in(document, "usage") or object_in(meta, "tokens") or object_in(meta, "billed_units")
    )
    known = {*INPUT_NAMES, *OUTPUT_NAMES, "total_tokens"}
    return None if known.isdisjoint(usage) else read_usage(usage)


def read_usage(usage: dict[str, Any]) -> Usage:
    """Return a usage object in the one form; what is no count is 0.

    Parts are told inside the prompt and the output, or beside them: then only the total has
    them. Mistral tells audio so, xAI reasoning; Gemini does not even name its thinking. A total
    beside no output at all is no sign of thinking: such answers are empty ones.
    """
    input_tokens, output_tokens = _first(usage, INPUT_NAMES), _first(usage, OUTPUT_NAMES)
    total_tokens = count(usage.get("total_tokens"))
    if not input_tokens and not output_tokens:
        input_tokens = total_tokens
    inputs = [usage, *(object_in(usage, name) for name in INPUT_DETAILS)]
    cached = [object_in(place, "cached_tokens_details") for place in inputs]
    outputs = [object_in(usage, name) for name in OUTPUT_DETAILS]
    cached_tokens = _most(inputs, ("cached_tokens", "prompt_cache_hit_tokens"))
    audio_tokens = _most(inputs[1:], ("audio_tokens",))
    reasoning_tokens = _most(outputs, ("reasoning_tokens",))
    beside = total_tokens - input_tokens - output_tokens
    if beside > 0:
        in_prompt = max(cached_tokens, audio_tokens)
        if in_prompt <= input_tokens:
            in_prompt = 0  # it is inside
        more_input_tokens = min(in_prompt, beside)
        more_output_tokens = 0
        if output_tokens or reasoning_tokens:
            more_output_tokens = beside - more_input_tokens
        input_tokens += more_input_tokens
        output_tokens += more_output_tokens
        reasoning_tokens = max(reasoning_tokens, more_output_tokens)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=min(output_tokens, MAX_TOKENS),
        cached_input_tokens=cached_tokens,
        cache_write_tokens=_most(inputs, WRITE_NAMES),
        image_input_tokens=_most(inputs[1:], ("image_tokens",)),
        audio_input_tokens=audio_tokens,
        cached_image_input_tokens=_most(cached, ("image_tokens",)),
        cached_audio_input_tokens=_most(cached, ("audio_tokens",)),
        reasoning_tokens=reasoning_tokens,
        audio_output_tokens=_most(outputs, ("audio_tokens",)),
    )


def count(value: object) -> int:
    """Return `value` as a count within what a column takes; 0 for what is no number."""
    if not isinstance(value, int | float) or not value > 0:  # a NaN is not above 0 either
        return 0
    return int(min(value, MAX_TOKENS))


def object_in(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object in this field, empty if there is none."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _first(usage: dict[str, Any], names: Sequence[str]) -> int:
    return next((found for name in names if (found := count(usage.get(name)))), 0)


def _most(places: Sequence[dict[str, Any]], names: Sequence[str]) -> int:
    """Return the largest count under any of the names: servers repeat some elsewhere."""
    return max(count(place.get(name)) for place in places for name in names)
