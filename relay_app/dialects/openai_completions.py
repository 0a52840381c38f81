"""The older OpenAI completions: a prompt in, text out; answers as those of chat."""

from __future__ import annotations

import msgspec

from relay_app.dialects.base import Envelope, Incoming, count_in, decode_envelope
from relay_app.dialects.openai_base import checked_model
from relay_app.dialects.openai_chat import OpenAIChat, asking_usage


class _Request(msgspec.Struct):
    model: str
    stream: bool | None = None
    max_tokens: msgspec.Raw = msgspec.Raw(b"")
    stream_options: msgspec.Raw = msgspec.Raw(b"")


_decode_request = msgspec.json.Decoder(_Request)


class OpenAICompletions(OpenAIChat):
    """POST /v1/completions."""

    def read_request(self, incoming: Incoming) -> Envelope:
        request: _Request = decode_envelope(_decode_request, incoming.body)
        return Envelope(
            model=checked_model(request.model),
            is_stream=bool(request.stream),
            max_output_tokens=count_in(request.max_tokens),
            body_asking_usage=asking_usage(incoming.body, request) if request.stream else None,
        )
