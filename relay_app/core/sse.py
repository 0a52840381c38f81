"""Server-sent events on bytes: split a stream into events without changing a byte.

Lines end in CR LF, LF or CR and nothing else; splitting text by Python's idea of lines
would break JSON that contains U+2028.
"""

from __future__ import annotations

import re

# An event ends at a blank line: two line ends in a row. `(?>…)` keeps a CR LF whole.
_BLANK_LINE = re.compile(rb"(?>\r\n?|\n)(?>\r\n?|\n)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LONGEST_END = 4  # bytes: CR LF CR LF

# No provider sends events near this; a stream without blank lines must not fill memory.
MAX_EVENT_BYTES = 32 * 1024 * 1024


class BadStream(ValueError):
    """A stream that can't be one of events; the text says why."""


class EventTooLarge(BadStream):
    """An event grew past MAX_EVENT_BYTES without ending."""


class Splitter:
    """Cuts a byte stream into raw events, terminators included.

    All bytes fed come out again, in order and unchanged, however they were chunked.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that `data` completes."""
        buffer = self._buffer
        if not buffer and data.count(b"\n\n") == 1 and data.endswith(b"\n\n") and b"\r" not in data:
            return [data]  # the usual packet: one whole event
        buffer += data
        events, start = [], 0
        search_from = max(0, self._searched - _LONGEST_END)
        while match := _BLANK_LINE.search(buffer, max(search_from, start)):
            if match.end() == len(buffer) and match[0] == b"\r\n\r":
                break  # the other half of a CR LF is under way
            events.append(bytes(buffer[start : match.end()]))
            start = match.end()
        if start:
            del buffer[:start]
        self._searched = len(buffer)
        if len(buffer) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        return events

    def flush(self) -> bytes:
        """Return what is left when the stream has ended: an event cut off or unended."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return rest


def read_event(raw: bytes) -> tuple[bytes | None, bytes]:
    """Return the (data, name) of a raw event; data is None when it has no data line.

    Several data lines are joined with LF; the name is empty unless an `event` line
    gives one. Comments and other fields are passed over.
    """
    is_one_line = raw.endswith(b"\n\n") and raw.find(b"\n") == len(raw) - 2
    if is_one_line and raw.startswith(b"data: ") and b"\r" not in raw:
        return raw[6:-2], b""
    data: list[bytes] = []
    name = b""
    for line in _LINE_END.split(raw.removeprefix(b"\xef\xbb\xbf")):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return (b"\n".join(data) if data else None), name


def missing_end(raw: bytes) -> bytes:
    """Return the bytes that `raw` lacks to end in a blank line."""
    match = re.search(rb"(?:\r\n|\n|\r)*\Z", raw)
    ends = len(_LINE_END.findall(match[0])) if match else 0
    if raw.endswith(b"\r\n\r"):
        return b"\n"  # half of a CR LF: strict readers wait for the rest
    if ends == 1 and raw.endswith(b"\r"):
        ends = 0  # the first LF only makes this CR a CR LF
    return b"\n" * max(0, 2 - ends)
