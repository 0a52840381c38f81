"""Read and set the text fields of a multipart/form-data body. Pure; files are never copied
to be read, and every byte that is not of a set field stays as it is (RFC 7578, RFC 2046).

The first boundary line decides whether lines end in CR LF or LF; from then on only that
counts as a line end. A form that two readers could take for different ones is refused: the
upstream must not find another model in it than the relay did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# A form has a handful of parts, an array of images some dozens.
MAX_PARTS = 1000
MAX_PART_HEADER_BYTES = 16 * 1024
# RFC 2046 allows 70 characters.
MAX_BOUNDARY_CHARS = 200
# So many lines that begin like a boundary and are none: the boundary was badly chosen.
MAX_LOOKALIKES = 1000

CR_LF, LF = b"\r\n", b"\n"

_VALUE = rb'(?:"((?:[^"\\]|\\.)*)"|([^;\s"]*))'
_BOUNDARY = re.compile(rb";\s*boundary\s*=\s*" + _VALUE, re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition[ \t]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_PARAMETER = re.compile(rb";[ \t]*([\w*-]+)[ \t]*=[ \t]*" + _VALUE)
_FOLD = re.compile(rb"\r?\n[ \t]+")
_ESCAPED = re.compile(rb"\\(.)")
# What may follow a boundary on its line: nothing but blanks, or the two hyphens of the end.
_PADDING = re.compile(rb"(--)?[ \t]*(\r\n|\n|\Z)")


class FormError(ValueError):
    """A body that is no form to be read; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Where the content of a part lies in the body, and what its header calls it."""

    name: str
    is_file: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One boundary line: where it and the line end before it lie; `is_last`: the closing."""

    before: int
    start: int
    after: int
    is_last: bool


def is_form(content_type: str) -> bool:
    """Return whether `content_type` is that of a form with files."""
    return content_type.partition(";")[0].strip().lower() == "multipart/form-data"


def read_fields(body: bytes, content_type: str) -> dict[str, list[str | None]]:
    """Return the fields by name, those of one name in their order: text, or None for a file.

    Raises FormError.
    """
    fields: dict[str, list[str | None]] = {}
    for part in _parts(body, boundary_of(content_type)):
        values = fields.setdefault(part.name, [])
        is_text = not part.is_file  # a file is not even cut out
        values.append(body[part.start : part.end].decode("utf-8", "replace") if is_text else None)
    return fields


def file_bytes(body: bytes, content_type: str) -> int:
    """Return how large the files of the form are together; raise FormError."""
    parts = _parts(body, boundary_of(content_type))
    return sum(part.end - part.start for part in parts if part.is_file)


def set_fields(body: bytes, content_type: str, values: Mapping[str, str]) -> bytes:
    """Return `body` with these text fields set, each where it stands or else in front.

    Raises FormError, also when a value would end its own part.
    """
    boundary = boundary_of(content_type)
    parts = list(_parts(body, boundary))
    first = _first_line(body, boundary)
    line_end = _line_end(body, first)
    encoded = {name: value.encode() for name, value in values.items()}
    if any(line_end + b"--" + boundary in line_end + value for value in encoded.values()):
        raise FormError("a value to be set holds the boundary of the form")
    pieces, copied, found = [body[: first.start]], first.start, set()
    for part in parts:
        if part.name in encoded and not part.is_file:
            found.add(part.name)
            pieces += [body[copied : part.start], encoded[part.name]]
            copied = part.end
    for name in encoded.keys() - found:
        head = b'--%b%bContent-Disposition: form-data; name="%b"' % (
            boundary,
            line_end,
            name.encode(),
        )
        pieces.insert(1, head + line_end * 2 + encoded[name] + line_end)
    return b"".join([*pieces, body[copied:]])


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a Content-Type names; raise FormError if it names none."""
    if not is_form(content_type):
        kind = content_type.partition(";")[0].strip()[:100]
        raise FormError(f"the content type is {kind!r}; send multipart/form-data")
    if not content_type.isascii():
        raise FormError("the content type holds characters outside ASCII")
    match = _BOUNDARY.search(content_type.encode())
    boundary = _text(match) if match else b""
    if not 0 < len(boundary) <= MAX_BOUNDARY_CHARS:
        raise FormError("the content type names no boundary; leave the header to your HTTP library")
    return boundary


def _parts(body: bytes, boundary: bytes) -> Iterator[_Part]:
    """Yield the parts in their order; raise FormError where the body breaks the rules."""
    line = _first_line(body, boundary)
    line_end = _line_end(body, line)
    delimiter = line_end + b"--" + boundary
    count = lookalikes = 0
    while not line.is_last:
        count += 1
        if count > MAX_PARTS:
            raise FormError(f"the form has more than {MAX_PARTS} parts")
        start = _end_of_header(body, line.after, line_end)
        header = body[line.after : start]
        search_from = start - len(line_end)  # an empty part may have no line end of its own
        while True:
            at = body.find(delimiter, search_from)
            if at < 0:
                raise FormError("the form has no closing boundary: it was cut off")
            found = _line_at(body, at, boundary, line_end)
            if found is not None:
                break
            search_from = at + 1
            lookalikes += 1
            if lookalikes > MAX_LOOKALIKES:
                raise FormError("a file holds the boundary of the form; choose another one")
        yield _named(header, start=start, end=max(start, found.before))
        line = found
    if body.find(b"--" + boundary, line.after) >= 0:
        raise FormError("the form goes on behind its closing boundary")


def _first_line(body: bytes, boundary: bytes) -> _Line:
    """Return the first boundary line; text before it says nothing (RFC 2046)."""
    mark = b"--" + boundary
    at = body.find(mark)
    padding = _PADDING.match(body, at + len(mark))
    is_line = at == 0 or body[at - 1 : at] == LF
    if at < 0 or not is_line or padding is None or not padding[2]:
        raise FormError("the body does not begin with the boundary that its content type names")
    return _Line(before=at, start=at, after=padding.end(), is_last=bool(padding[1]))


def _line_end(body: bytes, line: _Line) -> bytes:
    return CR_LF if body[line.after - 2 : line.after] == CR_LF else LF


def _line_at(body: bytes, at: int, boundary: bytes, line_end: bytes) -> _Line | None:
    """Return the boundary line whose leading line end is at `at`, None if it is content."""
    start = at + len(line_end)
    padding = _PADDING.match(body, start + 2 + len(boundary))
    if padding is None:
        return None
    is_last = bool(padding[1])
    if padding[2] != line_end and not is_last:
        return None
    return _Line(before=at, start=start, after=padding.end(), is_last=is_last)


def _end_of_header(body: bytes, start: int, line_end: bytes) -> int:
    """Return where the content of a part begins: behind the blank line that ends its header."""
    if body.startswith(line_end, start):
        return start + len(line_end)
    blank = body.find(line_end * 2, start, start + MAX_PART_HEADER_BYTES)
    if blank < 0:
        raise FormError("the header of a part has no end, or is too large")
    return blank + 2 * len(line_end)


def _named(header: bytes, *, start: int, end: int) -> _Part:
    """Return the part with its name, empty if it has none.

    Two names would be read one way here and another by the upstream, so they are refused.
    """
    dispositions = _DISPOSITION.findall(_FOLD.sub(b" ", header))
    parameters = [
        (match[1].lower(), _text(match, group=2))
        for disposition in dispositions
        for match in _PARAMETER.finditer(disposition)
    ]
    names = [value for key, value in parameters if key == b"name"]
    if len(dispositions) > 1 or len(names) > 1:
        raise FormError("a part of the form has two names")
    if any(key.startswith(b"name*") for key, _ in parameters):
        raise FormError('a part of the form has a name written as name*; write name="..." alone')
    is_file = any(key in (b"filename", b"filename*") for key, _ in parameters)
    name = names[0].decode("utf-8", "replace") if names else ""
    return _Part(name=name, is_file=is_file, start=start, end=end)


def _text(match: re.Match[bytes], *, group: int = 1) -> bytes:
    """Return a parameter's value, quoted or not."""
    quoted = match[group]
    return match[group + 1] if quoted is None else _ESCAPED.sub(rb"\1", quoted)
