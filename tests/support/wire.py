"""Recorded traffic of the OpenAI endpoints beside chat, as the relay and the SDK need it."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from relay_app.core.json_edit import set_fields
from relay_app.core.sse import Splitter, read_event
from tests.conftest import WIRE_DIR
from tests.support.upstream import Action, answer, stream

PACKET = 997  # bytes: cuts events and characters anywhere
NOT_FORWARDED = ("content-length", "content-encoding", "transfer-encoding", "content-type")

# Endpoints as recordings name them: our dialect and our path.
ENDPOINTS = {
    "completions": ("openai_completions", "/v1/completions"),
    "responses": ("openai_responses", "/v1/responses"),
    "embeddings": ("openai_embeddings", "/v1/embeddings"),
    "moderations": ("openai_moderations", "/v1/moderations"),
    "images-generations": ("openai_images", "/v1/images/generations"),
    "images-edits": ("openai_image_edits", "/v1/images/edits"),
    "images-variations": ("openai_image_edits", "/v1/images/variations"),
    "audio-transcriptions": ("openai_transcriptions", "/v1/audio/transcriptions"),
    "audio-translations": ("openai_transcriptions", "/v1/audio/translations"),
    "audio-speech": ("openai_speech", "/v1/audio/speech"),
    "rerank": ("openai_rerank", "/v1/rerank"),
}
# Stored as the first 2 KB of their base64, or with JSON that lost its end: no whole answer.
CUT = {
    "bedrock__responses__stream__01",
    "deepseek__responses__json__01",
    "openai__responses__stream__v-parallel-tool-call-wrapper.1",
    "xai__responses__stream__01",
}
# Events of a dialect of its own.
FOREIGN = {"writer__completions__stream__01"}


@dataclass(frozen=True)
class Recording:
    """One recorded exchange."""

    path: Path

    @cached_property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.path.read_text())
        return document

    @property
    def endpoint(self) -> str:
        return self.path.stem.split("__")[1]

    @property
    def is_cut(self) -> bool:
        return self.path.stem in CUT

    @property
    def status(self) -> int:
        return int(self.document["response"]["status"])

    @property
    def content_type(self) -> str:
        headers = self.document["response"]["headers"]
        return str(headers.get("content-type", "application/json"))

    @cached_property
    def body(self) -> bytes:
        """The body as it was on the wire: some are stored as base64."""
        text: str = self.document["response"]["body"]
        if re.fullmatch(r"[A-Za-z0-9+/=\s]+", text):
            return base64.b64decode(text + "=" * (-len(text) % 4))
        return text.encode()

    @property
    def action(self) -> Action:
        """Answer as recorded."""
        headers = {
            name: value
            for name, value in self.document["response"]["headers"].items()
            if name.lower() not in NOT_FORWARDED
        }
        headers["Content-Type"] = self.content_type
        if "event-stream" not in self.content_type:
            return answer(self.status, self.body, headers=headers)
        packets = [self.body[i : i + PACKET] for i in range(0, len(self.body), PACKET)]
        return stream(packets, headers=headers)

    def events(self) -> list[tuple[bytes | None, bytes]]:
        """Return data and name of each event that ends in a blank line."""
        return [read_event(raw) for raw in Splitter().feed(self.body)]


def recordings(kind: str, *endpoints: str) -> list[Any]:
    """Return the recordings of a kind (json, stream, err) as parameters of a test, or one that
    skips when there are none."""
    names = endpoints or tuple(ENDPOINTS)
    found = [
        path
        for name in names
        for path in sorted((WIRE_DIR / "recordings").glob(f"*__{name}__{kind}*.json"))
        if path.stem not in FOREIGN
    ]
    return [pytest.param(Recording(path), id=path.stem) for path in found] or [
        pytest.param(None, id="none", marks=pytest.mark.skip("recorded traffic is not here"))
    ]


def arrives_as(sent: bytes) -> bytes:
    """What of a request for a chat stream goes upstream: usage is asked for in any case."""
    if not sent.startswith(b"{"):
        return sent  # a form
    document = json.loads(sent)
    if not document.get("stream") or not {"messages", "prompt"} & document.keys():
        return sent
    options = document.get("stream_options") or {}
    if options.get("include_usage") is True:
        return sent
    return set_fields(sent, {"stream_options": {**options, "include_usage": True}})


def without_usage(events: list[Any], sent: dict[str, Any]) -> list[Any]:
    """The events that a client gets: the one of the usage only if it asked for it."""
    asked = (sent.get("stream_options") or {}).get("include_usage") is True
    return [e for e in events if asked or not (e.get("choices") == [] and e.get("usage"))]
