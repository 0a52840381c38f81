"""The request and the streamed response that relay views and the lean handler share."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, MutableMapping
from io import BytesIO
from typing import Any, Protocol

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http.response import HttpResponseBase

from relay_app.dialects.base import Framing


class RelayRequest(ASGIRequest):
    """A request with its body read and an id of its own."""

    def __init__(self, scope: MutableMapping[str, Any], body: bytes, *, is_oversized: bool) -> None:
        super().__init__(scope, BytesIO(body))
        self._body = body
        if not self.path_info.startswith("/"):
            self.path_info = f"/{self.path_info}"  # `OPTIONS *`: the resolver wants a path
        self.relay_id = uuid.uuid4().hex
        self.is_oversized = is_oversized
        self.is_cut_off = False  # the relay stops while the body still comes
        self.body_limit: int = settings.MAX_REQUEST_BODY_BYTES
        self.urlconf = "relay_app.urls"


class PieceStream(Protocol):
    """Where the pieces of a streamed response come from."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes for the client."""

    def interrupt(self) -> None:
        """End soon, with an error for the client: the relay stops."""

    async def aclose(self) -> None:
        """Close what is open; called once the response ended, however."""


class StreamResponse(HttpResponseBase):
    """An answer whose pieces are sent as they come."""

    streaming = True

    def __init__(
        self,
        stream: PieceStream,
        *,
        content_type: str,
        headers: Mapping[str, str],
        framing: Framing | None = None,
    ) -> None:
        super().__init__(content_type=content_type, headers=headers)
        self.stream = stream
        self._framing = framing

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes for the client."""
        return self.stream.pieces() if self._framing is None else self._framed(self._framing)

    async def _framed(self, framing: Framing) -> AsyncIterator[bytes]:
        async for events in self.stream.pieces():
            if piece := framing.feed(events):
                yield piece
        yield framing.end()
