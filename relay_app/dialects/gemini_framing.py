"""How a Gemini stream is written: as server-sent events, or as the items of one JSON array.

Upstreams are always asked for events. What clients get is what they asked for, and so it is
when an upstream answered a request for a stream with a whole body.
"""

from __future__ import annotations

from relay_app.core.json_edit import split_items
from relay_app.core.sse import Splitter, read_event

EVENT_STREAM = "text/event-stream"


class EventFraming:
    """Events stay as they are."""

    content_type = EVENT_STREAM

    def feed(self, events: bytes) -> bytes:
        """Return what the client gets for `events`."""
        return events

    def end(self) -> bytes:
        """Return what the client still needs."""
        return b""

    def whole(self, body: bytes, content_type: str) -> bytes:
        """Return a whole answer, in whatever form it came, as events."""
        if _is_events(content_type):
            return body
        # Line ends in JSON stand between its parts only; many clients read one line an event.
        return b"".join(
            b"data: " + item.translate(None, b"\r\n") + b"\n\n" for item in _items(body)
        )


class ArrayFraming:
    """The data of each event is an item of a JSON array, byte for byte.

    Written as the API does; whoever reads it line by line finds its marks where they expect
    them.
    """

    content_type = "application/json"

    def __init__(self) -> None:
        self._splitter = Splitter()
        self._is_begun = False

    def feed(self, events: bytes) -> bytes:
        """Return what the client gets for `events`, however they are cut into pieces."""
        return b"".join(map(self._item_of, self._splitter.feed(events)))

    def end(self) -> bytes:
        """Return the end of the array, after what is left of the last event."""
        rest = self._item_of(self._splitter.flush())
        return rest + (b"\n]" if self._is_begun else b"[]")

    def whole(self, body: bytes, content_type: str) -> bytes:
        """Return a whole answer, in whatever form it came, as an array."""
        if _is_events(content_type):
            return self.feed(body) + self.end()
        if body.lstrip().startswith(b"["):
            return body
        return self._item(body.strip()) + self.end()

    def _item_of(self, raw: bytes) -> bytes:
        data, _ = read_event(raw)
        return self._item(data) if data else b""

    def _item(self, data: bytes) -> bytes:
        start = b"\n,\r\n" if self._is_begun else b"["
        self._is_begun = True
        return start + data


def _is_events(content_type: str) -> bool:
    return content_type.lower().startswith(EVENT_STREAM)


def _items(body: bytes) -> list[bytes]:
    """Return the items of an array; anything else is the only one."""
    return split_items(body) if body.lstrip().startswith(b"[") else [body.strip()]
