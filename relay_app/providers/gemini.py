"""The Gemini API of Google AI Studio, and servers that are compatible with it."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote_plus

import httpx

from channels_app.core.types import ChannelView, KeyView
from relay_app.core.types import Call
from relay_app.dialects.gemini import resource_name
from relay_app.providers.base import USER_AGENT, upstream_url

# How the API is told the form of its answer; the second is the older name.
FORM_NAMES = ("alt", "$alt")


class GeminiAdapter:
    """`x-goog-api-key` authentication and the client's own body, byte for byte."""

    dialects = frozenset({"gemini", "gemini_embeddings", "gemini_count"})
    base_url_suffix = "/v1beta"
    needs_base_url = True
    needs_key = True

    def build(self, call: Call, *, channel: ChannelView, key: KeyView | None) -> httpx.Request:
        """Return the request; streams are always asked for as events."""
        asked = replace(call, model=resource_name(call.model), query=_query(call))
        return httpx.Request(
            "POST",
            upstream_url(asked, channel.base_url),
            content=call.body,
            headers={
                "x-goog-api-key": key.value if key else "",
                "Content-Type": call.content_type,
                "Accept": "text/event-stream" if call.is_stream else "application/json",
                "Accept-Encoding": "identity",
                "User-Agent": USER_AGENT,
            },
        )


def _query(call: Call) -> str:
    """Return the client's query, for streams with the form that the relay reads."""
    if not call.is_stream:
        return call.query
    pairs = [p for p in call.query.split("&") if p and not _is_form(p)]
    return "&".join([*pairs, "alt=sse"])


def _is_form(pair: str) -> bool:
    return unquote_plus(pair.partition("=")[0]) in FORM_NAMES
