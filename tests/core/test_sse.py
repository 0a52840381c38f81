"""Server-sent events: bytes stay as they are, however the network cuts them."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay_app.core import sse
from relay_app.core.sse import EventTooLarge, Splitter, missing_end, read_event

BOM = b"\xef\xbb\xbf"


def split(*chunks):
    """Return the raw events of the chunks, the unended rest last if there is one."""
    splitter = Splitter()
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    rest = splitter.flush()
    return [*events, rest] if rest else events


def said(raw_events):
    """Return the (data, name) of the events that have data."""
    return [event for event in map(read_event, raw_events) if event[0] is not None]


def cut_up(wire, cuts):
    edges = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    return [wire[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_end_at_a_blank_line_of_any_kind(end):
    wire = b"data: 1" + end + end + b"event: x" + end + b"data: 2" + end + end

    assert said(split(wire)) == [(b"1", b""), (b"2", b"x")]


def test_kinds_of_line_ends_may_be_mixed():
    wire = b"data: 1\r\n\ndata: 2\n\r\ndata: 3\r\rdata: 4\n\n"

    assert [data for data, _ in said(split(wire))] == [b"1", b"2", b"3", b"4"]


def test_a_cr_lf_cut_in_two_is_one_line_end():
    assert said(split(b"data: 1\r", b"\ndata: 2\r", b"\n\r", b"\n")) == [(b"1\n2", b"")]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: x\n\n", (b"x", b"")),
        (b"data:x\n\n", (b"x", b"")),
        (b"data:  x\n\n", (b" x", b"")),  # one space is the field's, the next is data
        (b"data\n\n", (b"", b"")),
        (b"data:\n\n", (b"", b"")),
        (b"data: \n\n", (b"", b"")),
        (b"data: 1\ndata: 2\n\n", (b"1\n2", b"")),
        (b"data: 1\r\ndata:\r\ndata: 3\r\n\r\n", (b"1\n\n3", b"")),
        (b"event: error\ndata: {}\n\n", (b"{}", b"error")),
        (b"data: {}\nevent:error\n\n", (b"{}", b"error")),
        (b": comment\n\n", (None, b"")),
        (b": comment\ndata: x\n\n", (b"x", b"")),
        (b"event: ping\n\n", (None, b"ping")),
        (b"id: 7\nretry: 100\n\n", (None, b"")),
        (b"id: 7\ndata: x\nretry: 100\n\n", (b"x", b"")),
        (b"database: x\n\n", (None, b"")),
        (b" data: x\n\n", (None, b"")),
        (b"\n\n", (None, b"")),
        (b"", (None, b"")),
        (BOM + b"data: x\n\n", (b"x", b"")),
        (b"data: a: b\n\n", (b"a: b", b"")),
        (b"data: x", (b"x", b"")),  # cut off before its line end
        (b"data: x\n", (b"x", b"")),
        (b"data: a\nb", (b"a", b"")),
        (b"data: a\n\n\n", (b"a", b"")),
    ],
)
def test_fields_are_read_by_the_rules_of_server_sent_events(raw, expected):
    assert read_event(raw) == expected


@pytest.mark.parametrize("space", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_cr_and_lf_end_lines(space):
    """Python's `splitlines` knows more line ends; JSON text may hold them."""
    payload = f'{{"a": "x{space}{space}y"}}'.encode()

    assert said(split(b"data: " + payload + b"\n\n")) == [(payload, b"")]


def test_a_character_cut_in_two_is_whole_again():
    payload = '{"a": "déjà 😀"}'.encode()
    wire = b"data: " + payload + b"\n\n"

    assert said(split(*(wire[i : i + 1] for i in range(len(wire))))) == [(payload, b"")]


def test_an_event_is_given_out_as_soon_as_it_is_complete():
    splitter = Splitter()

    assert splitter.feed(b"data: 1\n") == []
    assert splitter.feed(b"\ndata: 2\n\ndat") == [b"data: 1\n\n", b"data: 2\n\n"]
    assert splitter.feed(b"a: 3\r\r") == [b"data: 3\r\r"]
    assert splitter.flush() == b""


lines = st.one_of(
    st.sampled_from(
        [b"data: 1", b"data:2", b"data", b"event: error", b": ping", b"id: 3", b"", b"retry: 4"]
    ),
    st.text("a:é\u2028 😀d", max_size=8).map(str.encode),
    st.binary(max_size=6),
)
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
streams = st.builds(
    lambda start, parts: start + b"".join(line + end for line, end in parts),
    st.sampled_from([b"", BOM]),
    st.lists(st.tuples(lines, ends), max_size=12),
)
cuts = st.lists(st.integers(0, 200), max_size=12)


@given(wire=streams, cuts=cuts)
def test_all_bytes_come_out_again_in_order(wire, cuts):
    assert b"".join(split(*cut_up(wire, cuts))) == wire


@given(wire=streams, cuts=cuts)
@example(wire=b"data: a\n\r\ndata: b\r\r\ndata: c\r\n\r\n", cuts=list(range(40)))
def test_chunking_does_not_matter(wire, cuts):
    """A CR LF cut behind a blank line may leave its LF to the next event, no more."""
    assert said(split(*cut_up(wire, cuts))) == said(split(wire))


def as_the_standard_says(wire):
    """Return the (data, name) of a stream by the letter of the HTML standard, which also
    drops an event that has no blank line behind it; here that one counts."""
    found, data, name = [], [], b""
    for line in [*re.split(rb"\r\n|\n|\r", wire.removeprefix(BOM)), b""]:
        if not line:
            if data:
                found.append((b"\n".join(data), name))
            data, name = [], b""
            continue
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return found


@given(wire=streams.filter(lambda wire: BOM not in wire[1:]), cuts=cuts)
def test_events_are_those_of_the_standard(wire, cuts):
    assert said(split(*cut_up(wire, cuts))) == as_the_standard_says(wire)


@given(raw=st.one_of(st.binary(), streams))
def test_reading_never_raises(raw):
    read_event(raw)


@given(wire=streams.filter(bool))
def test_the_missing_end_ends_the_stream(wire):
    """With it nothing is left over: a strict client sees its last event."""
    whole = wire + missing_end(wire)

    assert re.search(rb"(\r\n|\n|\r)(\r\n|\n|\r)\Z", whole)
    splitter = Splitter()
    events = splitter.feed(whole)
    assert splitter.flush().strip(b"\r\n") == b""
    assert said(events) == said(split(wire))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: x", b"\n\n"),
        (b"data: x\n", b"\n"),
        (b"data: x\r\n", b"\n"),
        (b"data: x\r", b"\n\n"),  # the first only completes a CR LF
        (b"data: x\n\n", b""),
        (b"data: x\r\n\r\n", b""),
        (b"data: x\r\r", b""),
        (b"data: x\n\r", b""),
        (b"data: x\r\n\n\n", b""),
        (b"", b"\n\n"),
    ],
)
def test_just_what_lacks_is_added(raw, expected):
    assert missing_end(raw) == expected


class Counting:
    """The pattern of blank lines; counts the bytes that it was sent to look through."""

    def __init__(self, pattern):
        self.pattern = pattern
        self.searched = 0

    def search(self, buffer, start):
        self.searched += len(buffer) - start
        return self.pattern.search(buffer, start)


def test_a_large_event_in_small_pieces_is_searched_once(monkeypatch):
    """Each byte is looked at about once, not once more for every packet after it."""
    counting = Counting(sse._BLANK_LINE)
    monkeypatch.setattr(sse, "_BLANK_LINE", counting)
    wire = b"data: " + b"x" * 1024 * 1024 + b"\n\n"
    pieces = [wire[i : i + 64] for i in range(0, len(wire), 64)]

    events = split(*pieces)

    assert events == [wire]
    assert counting.searched < 1.2 * len(wire)


def test_an_event_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    splitter = Splitter()

    assert len(splitter.feed(b"data: " + b"x" * 60 + b"\n\n")) == 1
    splitter.feed(b"data: " + b"x" * 94)
    with pytest.raises(EventTooLarge, match="100 bytes"):
        splitter.feed(b"x")


@given(
    st.lists(st.sampled_from([b"data: x", b": c", b"event: e"]), min_size=1, max_size=4),
    st.sampled_from([b"\n", b"\r\n"]),
    st.data(),
)
def test_events_do_not_depend_on_the_packets(lines, line_end, data):
    """With line ends of one kind no packet boundary, within a CR LF either, changes an event."""
    stream = b"".join(line + line_end * 2 for line in lines)
    splitter, events, start = Splitter(), [], 0
    while start < len(stream):
        size = data.draw(st.integers(1, len(stream) - start))
        events += splitter.feed(stream[start : start + size])
        start += size

    assert events == [line + line_end * 2 for line in lines]
    assert splitter.flush() == b""
