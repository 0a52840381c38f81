"""What an answer used, in one form for all dialects."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one answer. `input_tokens` is all of the prompt, `output_tokens` all that was
    generated; the others are parts of them. Cache writes live 5 minutes or an hour.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    image_input_tokens: int = 0
    audio_input_tokens: int = 0
    reasoning_tokens: int = 0
    audio_output_tokens: int = 0
    images: int = 0  # pictures that were made

    def updated(self, later: Usage) -> Usage:
        """Return what both reports of one answer say: `later` where it says something.

        Anthropic tells the input at the beginning of a stream and the output at its end.
        """
        return Usage(**{name: getattr(later, name) or getattr(self, name) for name in _NAMES})


_NAMES = tuple(field.name for field in fields(Usage))
