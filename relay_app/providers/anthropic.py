"""Anthropic and every server that speaks its messages API."""

from __future__ import annotations

import httpx

from channels_app.core.types import ChannelView, KeyView
from relay_app.core.types import Call
from relay_app.providers.base import USER_AGENT, headers_for, upstream_url

# Headers of clients that it understands.
FORWARDED = ("anthropic-version", "anthropic-beta")
# The API refuses requests without a version; clients that send none get the oldest one.
DEFAULT_VERSION = "2023-06-01"


class AnthropicAdapter:
    """`x-api-key` authentication and the client's own body, byte for byte."""

    dialects = frozenset({"anthropic", "anthropic_count"})
    base_url_suffix = "/v1"
    needs_base_url = True
    needs_key = True

    def build(self, call: Call, *, channel: ChannelView, key: KeyView | None) -> httpx.Request:
        """Return the request; streams ask for identity, so that bytes can be read."""
        return httpx.Request(
            "POST",
            upstream_url(call, channel.base_url),
            content=call.body,
            headers={
                "x-api-key": key.value if key else "",
                "anthropic-version": DEFAULT_VERSION,
                "Content-Type": call.content_type,
                "Accept": "text/event-stream" if call.is_stream else "application/json",
                "Accept-Encoding": "identity",
                "User-Agent": USER_AGENT,
                **headers_for(call, FORWARDED),
            },
        )
