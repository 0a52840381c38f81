"""OpenAI and every server that is compatible with it."""

from __future__ import annotations

import httpx

from channels_app.core.types import ChannelView, KeyView
from relay_app.core.types import Call
from relay_app.providers.base import USER_AGENT, headers_for, upstream_url

# Headers of clients that it understands.
FORWARDED = ("openai-beta",)

# The endpoints beside chat, and what to ask for there if no stream.
ACCEPTED = {
    "openai_completions": "application/json",
    "openai_responses": "application/json",
    "openai_embeddings": "application/json",
    "openai_moderations": "application/json",
    "openai_images": "application/json",
    "openai_image_edits": "application/json",
    "openai_transcriptions": "*/*",  # JSON, text or subtitles
    "openai_speech": "*/*",
    "openai_rerank": "application/json",
}


class OpenAIAdapter:
    """Bearer authentication and the client's own body, byte for byte."""

    dialects = frozenset({"openai", *ACCEPTED})
    base_url_suffix = "/v1"
    needs_base_url = True
    needs_key = True

    def build(self, call: Call, *, channel: ChannelView, key: KeyView | None) -> httpx.Request:
        """Return the request; streams ask for identity, so that bytes can be read."""
        accepted = ACCEPTED.get(call.endpoint.dialect, "application/json")
        return httpx.Request(
            call.endpoint.method,
            upstream_url(call, channel.base_url),
            content=call.body,
            headers={
                "Authorization": f"Bearer {key.value if key else ''}",
                "Content-Type": call.content_type,
                "Accept": "text/event-stream" if call.is_stream else accepted,
                "Accept-Encoding": "identity",
                "User-Agent": USER_AGENT,
                **headers_for(call, FORWARDED),
            },
        )
