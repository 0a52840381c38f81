"""Take secrets out of text before it reaches a log, a row or a client."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
CUT = 200  # characters of upstream text kept in logs and rows (spec 02 section 5)

# Credentials in URLs, Bearer tokens, key-like parameters, and the key shapes of
# providers. Cheap words first decide whether the patterns are worth running.
_HINTS = ("://", "bearer", "key", "token", "sk-", "pk-", "rk-", "xai-", "gsk", "aiza")
_PATTERNS = (
    (re.compile(r"(?<=://)[^/\s?#]+(?=@)"), MASK),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{4,}"), rf"\1{MASK}"),
    (
        re.compile(
            r"(?i)(?<![a-z0-9])((?:api)?(?:key|token)"
            r"""["']?\s*[=:]\s*["']?)[A-Za-z0-9._~+/=%-]{6,}"""
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"\b(?:sk-|pk-|rk-|xai-|gsk[-_])[A-Za-z0-9_*.-]{8,}"), MASK),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{20,}"), MASK),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without credentials.

    `secrets` are known ones (the keys of a channel), masked wherever they stand;
    whatever else looks like a credential is masked too.
    """
    # The longest first: a key that begins another one must not leave the other's rest.
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4 and secret in text:
            text = text.replace(secret, MASK)
    lowered = text.lower()
    if any(hint in lowered for hint in _HINTS):
        for pattern, mask in _PATTERNS:
            text = pattern.sub(mask, text)
    return text


def cut(text: str, length: int = CUT) -> str:
    """Return at most `length` characters of `text`, with an ellipsis if shortened."""
    return text if len(text) <= length else text[: length - 1] + "…"
