"""Whether a prompt contains a word that the operator blocks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from ahocorasick_rs import AhoCorasick

from relay_app.core.json_names import json_pairs
from relay_app.core.multipart import is_form, read_fields

# Fields that are no prompt at whatever depth: names, kinds and settings, in all dialects.
_NO_PROMPT = frozenset(
    {
        "call_id",
        "detail",
        "encrypted_content",
        "file_id",
        "format",
        "id",
        "media_type",
        "metadata",
        "mimeType",
        "mime_type",
        "model",
        "prompt_cache_key",
        "response_format",
        "role",
        "safety_identifier",
        "signature",
        "thoughtSignature",
        "tool_call_id",
        "tool_use_id",
        "type",
        "user",
        "voice",
    }
)
# No text goes on for that long without a space; pictures and sound in base64 do.
_BASE64_CHARS = 2048
_BASE64 = re.compile(r"[A-Za-z0-9+/_=\r\n-]*")
# No part of a word: none goes on from one text to the next.
BETWEEN_TEXTS = "\0"
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+[^,]{0,100};base64,", re.IGNORECASE)


def blocked_word(body: bytes, content_type: str, words: Sequence[str]) -> str | None:
    """Return the first of `words` that the texts of a request contain, in any case and with any
    white space between their parts; else None.

    Looks at all texts of a JSON body, those of names that stand twice too, or the text fields of
    a form, but for names and data in base64. A body that can't be read contains none: it is
    refused elsewhere. Raises RecursionError for one that is nested too deeply.
    """
    if not words or not body:
        return None
    try:
        texts = BETWEEN_TEXTS.join(_texts(_document(body, content_type)))
    except ValueError:
        return None
    finder = _finder(tuple(words))
    found = finder.find_matches_as_indexes(_folded(texts))
    return words[found[0][0]] if found else None


def _document(body: bytes, content_type: str) -> Any:
    """Return the request, its objects as tuples of (name, value)."""
    if is_form(content_type):
        return tuple(read_fields(body, content_type).items())
    return json_pairs(body)


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        if not _is_data(node):
            yield node
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value)
    elif isinstance(node, tuple):
        for name, value in node:
            if name not in _NO_PROMPT:
                yield from _texts(value)


def _is_data(text: str) -> bool:
    """Return whether `text` is data in base64, as far as its beginning and its spaces tell."""
    found = _DATA_URL.match(text)
    if found is None and len(text) < _BASE64_CHARS:
        return False
    start = found.end() if found else 0
    return _BASE64.fullmatch(text, start, start + _BASE64_CHARS) is not None and " " not in text


@lru_cache(maxsize=4)
def _finder(words: tuple[str, ...]) -> AhoCorasick:
    """Return one automaton for all words: the time it takes does not depend on their number."""
    return AhoCorasick([_folded(word) or word for word in words])


def _folded(text: str) -> str:
    """Return `text` without case, with one space for any run of white space, and without what
    UTF-8 can't hold (lone surrogates)."""
    return " ".join(text.casefold().split()).encode("utf-8", "replace").decode()
