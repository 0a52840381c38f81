"""How much of an answer a model wrote: what is counted where no usage is told.

The same words count the same in every dialect, whole or streamed: the UTF-8 bytes of texts,
thoughts, names and arguments of tool calls. What is around them, and data of files, is nothing.
"""

from __future__ import annotations

import json

# Fields that hold what a model wrote, or hold such fields, in any dialect.
WRITTEN = frozenset(
    {
        *("content", "text", "thinking", "summary", "refusal", "transcript"),
        *("name", "function", "custom", "functionCall", "function_call"),
        *("code", "executableCode", "executable_code"),
    }
)
# Fields that hold a tool's arguments, as a text or as the JSON that the text would be.
ARGUMENTS = frozenset({"arguments", "args", "input"})


def text_bytes(text: str) -> int:
    """Return how long the text is in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def written_bytes(value: object) -> int:
    """Return how much of an answer, or of a part of one, the model wrote."""
    if isinstance(value, str):
        return text_bytes(value)
    if isinstance(value, list):
        return sum(map(written_bytes, value))
    if not isinstance(value, dict) or str(value.get("type", "")).endswith("_result"):
        return 0  # a tool wrote its result
    size = 0
    for name, inner in value.items():
        if name in WRITTEN:
            size += written_bytes(inner)
        elif name in ARGUMENTS:
            size += _argument_bytes(inner)
    return size


def _argument_bytes(arguments: object) -> int:
    if not isinstance(arguments, dict):
        return written_bytes(arguments)
    return text_bytes(json.dumps(arguments, ensure_ascii=False)) if arguments else 0
