"""Request bodies as their senders meant them: Content-Encoding taken off, within the limit."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Callable
from typing import Protocol

from relay_app.errors import InvalidRequest, RequestTooLarge, UnsupportedEncoding

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Nobody compresses more often than this; each layer costs as much as a whole body.
MAX_LAYERS = 3
# Bytes fed at once: what a decoder leaves over after the end of a member is a copy.
SLICE_BYTES = 64 * 1024
# Compressors of many cores begin a new member every 128 KiB or more.
MAX_MEMBERS = 1024
# zstd keeps as much of the past as a frame asks for: RFC 9659 allows 8 MiB over HTTP, but a body
# compressed in one call asks for all of itself.
MIN_ZSTD_WINDOW_LOG = 23
GZIP_BITS = 16 + zlib.MAX_WBITS


class _Decoder(Protocol):
    """What zlib's and zstd's incremental decoders have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _TooLargeError(Exception):
    """More bytes came out than are allowed."""


async def decode_body(body: bytes, header: str, *, limit: int) -> bytes:
    """Return `body` without the encodings that `header`, its Content-Encoding, names.

    The work is a thread's. Raises UnsupportedEncoding, InvalidRequest for data that is broken,
    RequestTooLarge as soon as more than `limit` bytes come out.
    """
    names = encodings(header)
    for name in reversed(names):  # the last one named was put on last
        try:
            body = await asyncio.to_thread(_decode, body, DECODERS[name], limit=limit)
        except _TooLargeError:
            raise RequestTooLarge(
                f"the request body is larger than {limit >> 20} MB after decoding"
            ) from None
        except (zlib.error, zstd.ZstdError, EOFError) as error:
            reason = f": {error}" if isinstance(error, EOFError) else ""
            raise InvalidRequest(
                f"the request body is not the {name} that Content-Encoding says it is{reason}"
            ) from None
    return body


def encodings(header: str) -> list[str]:
    """Return the encodings that `header` names, in its order; raise UnsupportedEncoding."""
    names = [name.strip().lower() for name in header.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    unknown = [name for name in names if name not in DECODERS]
    if unknown:
        raise UnsupportedEncoding(
            f"bodies in Content-Encoding {unknown[0][:40]!r} can't be read; "
            f"send {', '.join(KNOWN)} or plain JSON"
        )
    if len(names) > MAX_LAYERS:
        raise UnsupportedEncoding(f"Content-Encoding names more than {MAX_LAYERS} encodings")
    return names


def _decode(body: bytes, decoder: Callable[[bytes, int], _Decoder], *, limit: int) -> bytes:
    """Return what all members of `body`, one after another, hold."""
    current = decoder(body, limit)
    pieces: list[bytes] = []
    size, members = 0, 1
    for start in range(0, len(body), SLICE_BYTES):
        rest = body[start : start + SLICE_BYTES]
        while rest:
            if current.eof:
                current, members = decoder(rest, limit), members + 1
                if members > MAX_MEMBERS:
                    raise EOFError("it has too many parts")
            # One byte more than allowed tells; with less, all of `rest` is used up.
            piece = current.decompress(rest, limit - size + 1)
            size += len(piece)
            if size > limit:
                raise _TooLargeError
            pieces.append(piece)
            rest = current.unused_data if current.eof else b""
    if not current.eof:
        raise EOFError("it ends too early")
    return b"".join(pieces)


def _gzip(_: bytes, limit: int) -> _Decoder:
    return zlib.decompressobj(GZIP_BITS)


def _deflate(start: bytes, limit: int) -> _Decoder:
    """Return a decoder of the zlib format, or of the bare one that some clients send."""
    is_wrapped = len(start) > 1 and start[0] & 15 == 8 and (start[0] << 8 | start[1]) % 31 == 0
    return zlib.decompressobj(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS)


def _zstd(_: bytes, limit: int) -> _Decoder:
    window_log = max(MIN_ZSTD_WINDOW_LOG, limit.bit_length())
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: window_log})


DECODERS: dict[str, Callable[[bytes, int], _Decoder]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
}
KNOWN = ("gzip", "deflate", "zstd")
