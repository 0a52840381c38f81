"""What an answer used, in one form for all dialects."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

# Counts above this are nonsense that no database column would take.
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one answer. `input_tokens` is all of the prompt, `output_tokens` all that was
    generated; the others are parts of them. What was written to a cache lives 5 minutes, unless
    it is of the part that lives an hour.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0  # of those written
    image_input_tokens: int = 0
    audio_input_tokens: int = 0
    cached_image_input_tokens: int = 0  # of those cached as well as of the pictures
    cached_audio_input_tokens: int = 0
    reasoning_tokens: int = 0
    audio_output_tokens: int = 0
    images: int = 0  # pictures that were made
    seconds: int = 0  # of sound that was listened to

    def updated(self, later: Usage) -> Usage:
        """Return what both reports of one answer say: `later` where it says something.

        Anthropic tells the input at the beginning of a stream and the output at its end. The end
        may tell anew what was cached and written, without the rest of the prompt beside it.
        """
        both = Usage(**{name: getattr(later, name) or getattr(self, name) for name in _NAMES})
        grown = 0 if later.input_tokens else both._beside_the_rest - self._beside_the_rest
        if not grown:
            return both
        return replace(both, input_tokens=min(max(self.input_tokens + grown, 0), MAX_TOKENS))

    @property
    def _beside_the_rest(self) -> int:
        return self.cached_input_tokens + self.cache_write_tokens


_NAMES = tuple(field.name for field in fields(Usage))


def merged(earlier: Usage | None, later: Usage | None) -> Usage | None:
    """Return what two reports of one answer say together; None: neither was made."""
    if later is None:
        return earlier
    return (earlier or Usage()).updated(later)
