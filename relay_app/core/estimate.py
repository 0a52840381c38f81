"""How many tokens a request may come to, cheaply: limits reserve so much and correct it later."""

from __future__ import annotations

import re

from relay_app.core import multipart

# Bytes of JSON to a token: nearer for English and code than for other scripts.
BYTES_A_TOKEN = 4
# A picture or sound in base64 costs far fewer tokens than its letters; this is a large picture.
TOKENS_OF_A_FILE = 1_500
# Sound of 128 kbit a second, as much of it is.
SOUND_BYTES_A_SECOND = 16_000
_FILES = re.compile(rb"[A-Za-z0-9+/_=-]{2000,}")


def estimate_tokens(body: bytes, *, content_type: str, max_output_tokens: int) -> int:
    """Return about how many tokens the prompt in `body` and its answer will have.

    Files of forms are not counted: their endpoints do not charge by the length.
    """
    if content_type.startswith("multipart/"):
        return max_output_tokens
    files = [len(found) for found in _FILES.findall(body)] if len(body) >= 2000 else []
    prompt = (len(body) - sum(files)) // BYTES_A_TOKEN + len(files) * TOKENS_OF_A_FILE
    return prompt + max_output_tokens


def estimate_seconds(body: bytes, *, content_type: str) -> int:
    """Return about how long the sound is that was sent in `body`, as a file or as base64."""
    if multipart.is_form(content_type):
        try:
            size = multipart.file_bytes(body, content_type)
        except multipart.FormError:
            return 0
    else:
        size = sum(map(len, _FILES.findall(body))) * 3 // 4
    return -(-size // SOUND_BYTES_A_SECOND)
