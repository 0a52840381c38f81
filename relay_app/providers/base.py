"""What a provider type is to the relay: how a request to it is built. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol
from urllib.parse import quote

import httpx

from channels_app.core.types import ChannelView, KeyView
from relay_app.core.types import Call

USER_AGENT = "relayproject"


class Adapter(Protocol):
    """One provider type. Instances hold no state of requests."""

    # The dialects (names of DIALECTS) whose bodies it takes as they are.
    dialects: frozenset[str]
    # What base URLs end in, e.g. `/v1`; empty: nothing is expected.
    base_url_suffix: str
    needs_base_url: bool
    needs_key: bool

    def build(self, call: Call, *, channel: ChannelView, key: KeyView | None) -> httpx.Request:
        """Return the request that carries `call` to `channel` with `key`."""


@lru_cache(maxsize=4096)
def parse_url(url: str) -> httpx.URL:
    """Return the parsed URL; parsing costs more than the rest of a request's set-up."""
    return httpx.URL(url)


def headers_for(call: Call, names: Iterable[str]) -> dict[str, str]:
    """Return those of the client's headers that a provider of this type understands."""
    return {name: call.headers[name] for name in names if name in call.headers}


def upstream_url(call: Call, base_url: str) -> httpx.URL:
    """Return where `call` goes under `base_url`, the client's query string kept.

    Raises ValueError for a model whose name would lead out of there.
    """
    query = f"?{call.query}" if call.query else ""
    path = call.endpoint.upstream_path
    if "{" in path:
        if ".." in call.model.split("/"):
            raise ValueError(f"the model's name {call.model!r} leads out of the base URL")
        named = {name: quote(value, safe="") for name, value in call.path.items()}
        path = path.format_map({**named, "model": quote(call.model, safe="/")})
    return parse_url(f"{base_url}{path}{query}")
