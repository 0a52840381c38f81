"""What recorded answers and streams used: every token that their total has is paid for once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from billing_app.core.pricing import PriceView, amount_nusd
from billing_app.core.usage import Usage, merged
from relay_app.core.sse import Splitter, read_event
from relay_app.dialects.base import Dialect
from relay_app.dialects.registry import DIALECTS
from tests.support.wire import ENDPOINTS, Recording, recordings

NAMES = {
    **{endpoint: dialect for endpoint, (dialect, _) in ENDPOINTS.items()},
    "chat-completions": "openai",
    "messages": "anthropic",
    "generateContent": "gemini",
    "streamGenerateContent": "gemini",
}
# It ends in an error event, whose usage is nobody's bill.
BROKEN = {"openrouter__chat-completions__stream__01"}
# Whisper tells how long the recording was, nothing else.
TIMED = {"openai__audio-transcriptions__json__v-openai-transcription"}
# What xAI's pictures cost there, and no token.
COSTED = {"xai__images-edits__json__01", "xai__images-generations__json__01"}


def usages_in(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the usage objects in a document, at any depth."""
    for name, value in document.items() if isinstance(document, dict) else ():
        if name in ("usage", "usageMetadata") and isinstance(value, dict):
            yield value
        else:
            yield from usages_in(value)
    for value in document if isinstance(document, list) else ():
        yield from usages_in(value)


def documents_in(recording: Recording) -> Iterator[Any]:
    """Yield what is JSON in the answer or its events."""
    bodies = [recording.body]
    if "event-stream" in recording.content_type:
        bodies = [data or b"" for data, _ in recording.events()]
    for body in bodies:
        try:
            yield json.loads(body)
        except ValueError:
            continue


def usage_of(recording: Recording, dialect: Dialect) -> Usage | None:
    """Return what the dialect reads of the recording."""
    if "event-stream" not in recording.content_type:
        return dialect.read_answer(recording.body, recording.content_type).usage
    usage: Usage | None = None
    splitter = Splitter()
    for raw in [*splitter.feed(recording.body), splitter.flush()]:
        usage = merged(usage, dialect.read_event(*read_event(raw)).usage)
    return usage


@pytest.mark.wire
@pytest.mark.parametrize("recording", [*recordings("json", *NAMES), *recordings("stream", *NAMES)])
def test_a_recorded_answer_costs_what_its_total_says(recording):
    told = [usage for document in documents_in(recording) for usage in usages_in(document)]

    usage = usage_of(recording, DIALECTS[NAMES[recording.endpoint]])

    if recording.path.stem in BROKEN | TIMED | COSTED:
        assert usage is None
        return
    if not any(told):
        return  # no usage is told: it is counted by length
    total = told[-1].get("total_tokens", told[-1].get("totalTokenCount"))
    if total is not None:
        assert usage.input_tokens + usage.output_tokens == total
    one = PriceView(model="m", input=Decimal(1), output=Decimal(1))
    assert amount_nusd(one, usage) == 1000 * (usage.input_tokens + usage.output_tokens)
