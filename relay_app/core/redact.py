"""Take secrets out of text before it reaches a log, a row or a client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

MASK = "***"
CUT = 200  # characters of upstream text kept in logs and rows (spec 02 section 5)

# Credentials in URLs, Bearer tokens, key-like parameters, and the key shapes of
# providers. Cheap words first decide whether the patterns are worth running.
_HINTS = ("://", "bearer", "key", "token", "sk-", "pk-", "rk-", "xai-", "gsk", "aiza")
_NAME = r"(?i)(?<![a-z0-9])((?:api)?(?:key|token)"
_VALUE = "[A-Za-z0-9._~+/=%-]"
# What follows the word Bearer where people write about it.
_PROSE = "(?:or|and|is|was|in|to|for|not)"
_PATTERNS = (
    (re.compile(r"(?<=://)[^/\s?#]+(?=@)"), MASK),
    (re.compile(rf"(?i)\b(bearer\s+)(?!{_PROSE}(?!{_VALUE})){_VALUE}+"), rf"\1{MASK}"),
    # A parameter of any length; behind a colon shorter ones are ordinary words.
    (re.compile(rf"""{_NAME}["']?\s*=\s*["']?){_VALUE}+"""), rf"\1{MASK}"),
    (re.compile(rf"""{_NAME}["']?\s*:\s*["']?){_VALUE}{{6,}}"""), rf"\1{MASK}"),
    (re.compile(r"\b(?:sk-|pk-|rk-|xai-|gsk[-_])[A-Za-z0-9_*.-]{8,}"), MASK),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{20,}"), MASK),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without credentials.

    `secrets` are known ones (the keys of a channel), masked wherever they stand;
    whatever else looks like a credential is masked too.
    """
    # The longest first: a key that begins another one must not leave the other's rest.
    for secret in sorted(_spellings(secrets), key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, MASK)
    lowered = text.lower()
    if any(hint in lowered for hint in _HINTS):
        for pattern, mask in _PATTERNS:
            text = pattern.sub(mask, text)
    return text


def _spellings(secrets: Iterable[str]) -> set[str]:
    """Return how `secrets` may stand in a text: as they are, or as JSON writes them."""
    known = [secret for secret in secrets if len(secret) >= 4]
    return {*known, *(json.dumps(secret)[1:-1] for secret in known)}


def cut(text: str, length: int = CUT) -> str:
    """Return at most `length` characters of `text`, with an ellipsis if shortened."""
    return text if len(text) <= length else text[: length - 1] + "…"
