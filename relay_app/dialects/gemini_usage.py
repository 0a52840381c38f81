"""How Gemini tells what an answer used."""

from __future__ import annotations

from typing import Any

from billing_app.core.usage import MAX_TOKENS, Usage
from relay_app.dialects.openai_usage import count, object_in


def read_usage(chunk: dict[str, Any]) -> Usage | None:
    """Return the tokens; what tools read is input, what was thought is output."""
    usage = object_in(chunk, "usageMetadata")
    if not usage:
        return None
    names = ("promptTokenCount", "toolUsePromptTokenCount")
    input_tokens = sum(count(usage.get(name)) for name in names)
    names = ("candidatesTokenCount", "thoughtsTokenCount")
    output_tokens = sum(count(usage.get(name)) for name in names)
    return Usage(
        input_tokens=min(input_tokens, MAX_TOKENS),
        output_tokens=min(output_tokens, MAX_TOKENS),
        cached_input_tokens=count(usage.get("cachedContentTokenCount")),
        image_input_tokens=_of_kind(usage, "promptTokensDetails", "IMAGE"),
        audio_input_tokens=_of_kind(usage, "promptTokensDetails", "AUDIO"),
        cached_image_input_tokens=_of_kind(usage, "cacheTokensDetails", "IMAGE"),
        cached_audio_input_tokens=_of_kind(usage, "cacheTokensDetails", "AUDIO"),
        reasoning_tokens=count(usage.get("thoughtsTokenCount")),
        audio_output_tokens=_of_kind(usage, "candidatesTokensDetails", "AUDIO"),
    )


def _of_kind(usage: dict[str, Any], name: str, kind: str) -> int:
    """Return the tokens of a kind of content among the details."""
    details = usage.get(name)
    return sum(
        count(detail.get("tokenCount"))
        for detail in (details if isinstance(details, list) else [])
        if isinstance(detail, dict) and detail.get("modality") == kind
    )
