"""Compressed request bodies are read, within the limit, and go upstream plain."""

from __future__ import annotations

import gzip
import os
import sys
import threading
import time
import zlib

import pytest

from relay_app import encodings
from tests.support.upstream import answer, chat

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GOOD = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
MIB = 2**20


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
}


@pytest.fixture
def client(world):
    world.channel("a", answer(200, chat()))
    return world.ready()


def send(client, body: bytes, encoding: str):
    return client.post(body, headers={"Content-Encoding": encoding})


def problem(response, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    return error["message"]


# -- what is read --------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", PACKERS)
@pytest.mark.parametrize("size", [len(GOOD), 3 * MIB])
def test_the_upstream_gets_the_plain_body(world, client, encoding, size) -> None:
    filler = os.urandom(1000).hex().encode() * (size // 2000)
    body = GOOD.replace(b"hi", filler)

    assert send(client, PACKERS[encoding](body), encoding).status_code == 200

    seen = world.upstream.seen[0]
    assert seen.body == body
    assert "content-encoding" not in seen.headers


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (bare_deflate(GOOD), "deflate"),
        (gzip.compress(GOOD), "GZIP"),
        (gzip.compress(GOOD), "gzip , identity,"),
        (zstd.compress(gzip.compress(GOOD)), "gzip, zstd"),
        (gzip.compress(zstd.compress(zlib.compress(GOOD))), "deflate, zstd, gzip"),
        (gzip.compress(GOOD[:20]) + gzip.compress(GOOD[20:]), "gzip"),
        (zstd.compress(GOOD[:20]) + zstd.compress(GOOD[20:]), "zstd"),
        (zstd.compress(b"") + zstd.compress(GOOD), "zstd"),
        (GOOD, "identity"),
        (GOOD, ""),
        (GOOD, "identity, identity"),
    ],
    ids=range(11),
)
def test_other_spellings(world, client, body, encoding) -> None:
    assert send(client, body, encoding).status_code == 200
    assert world.upstream.seen[0].body == GOOD


def test_two_header_lines_are_one_list(client) -> None:
    headers = [("Content-Encoding", "deflate"), ("Content-Encoding", "gzip")]

    assert client.post(gzip.compress(zlib.compress(GOOD)), headers=headers).status_code == 200


def test_broken_data_is_told_in_the_dialect_of_the_path(client) -> None:
    response = client.http.post("/v1/messages", content=b"x", headers={"Content-Encoding": "gzip"})

    assert response.status_code == 400
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "invalid_request_error"


# -- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["br", "compress", "nonsense", "gzip, br", "x" * 500])
def test_an_unknown_encoding_names_the_known_ones(world, client, encoding) -> None:
    message = problem(send(client, GOOD, encoding), 415, "unsupported_content_encoding")

    for known in ("gzip", "deflate", "zstd", "plain JSON"):
        assert known in message
    assert len(message) < 250
    assert world.upstream.seen == []


def test_too_many_layers(client) -> None:
    encoding = ", ".join(["gzip"] * 4)

    problem(send(client, GOOD, encoding), 415, "unsupported_content_encoding")


@pytest.mark.parametrize("encoding", PACKERS)
@pytest.mark.parametrize("fault", ["plain", "empty", "cut", "changed", "followed"])
def test_broken_data(world, client, encoding, fault) -> None:
    packed = PACKERS[encoding](GOOD * 50)
    body = {
        "plain": GOOD,
        "empty": b"",
        "cut": packed[:-5],
        "changed": packed[:12] + bytes([packed[12] ^ 0xFF]) + packed[13:],
        "followed": packed + b"something else",
    }[fault]

    message = problem(send(client, body, encoding), 400, "invalid_request")

    assert "Content-Encoding" in message or "not valid JSON" in message
    assert "Error -" not in message
    assert world.upstream.seen == []


def test_zstd_with_a_dictionary_of_the_client(client) -> None:
    dictionary = zstd.ZstdDict(os.urandom(2000), is_raw=True)
    body = zstd.compress(os.urandom(100) + dictionary.dict_content, zstd_dict=dictionary)

    problem(send(client, body, "zstd"), 400, "invalid_request")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_more_than_the_limit_after_decoding(client, settings, encoding) -> None:
    settings.MAX_REQUEST_BODY_BYTES = MIB
    just = GOOD + b" " * (MIB - len(GOOD))

    assert send(client, PACKERS[encoding](just), encoding).status_code == 200
    message = problem(
        send(client, PACKERS[encoding](just + b" "), encoding), 413, "request_too_large"
    )
    assert "larger than 1 MB after decoding" in message


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_stops_early(encoding) -> None:
    """A gigabyte of zeros is not written out to be refused."""
    pieces = [PACKERS[encoding](b"\0" * 64 * MIB)] * 16
    inner = b"".join(pieces)
    written = 0

    class Counting:
        def __init__(self, decoder) -> None:
            self._decoder = decoder

        def __getattr__(self, name: str):
            return getattr(self._decoder, name)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal written
            piece = self._decoder.decompress(data, most)
            written += len(piece)
            return piece

    def decoder(start: bytes, limit: int):
        return Counting(encodings.DECODERS[encoding](start, limit))

    with pytest.raises(encodings._TooLargeError):
        encodings._decode(inner, decoder, limit=MIB)
    assert written == MIB + 1


def test_a_bomb_in_a_bomb_stops_early(client, settings) -> None:
    settings.MAX_REQUEST_BODY_BYTES = MIB
    bomb = gzip.compress(gzip.compress(gzip.compress(b"\0" * 64 * MIB)))

    problem(send(client, bomb, "gzip, gzip, gzip"), 413, "request_too_large")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_flood_of_empty_members_stops_early(encoding) -> None:
    body = PACKERS[encoding](b"") * 1_000_000
    start_s = time.process_time()

    with pytest.raises(EOFError, match="too many parts"):
        encodings._decode(body, encodings.DECODERS[encoding], limit=MIB)
    assert time.process_time() - start_s < 5


async def test_the_work_is_not_done_on_the_loop(monkeypatch) -> None:
    threads = []

    def decoder(start: bytes, limit: int):
        threads.append(threading.current_thread())
        return encodings._gzip(start, limit)

    monkeypatch.setitem(encodings.DECODERS, "gzip", decoder)

    assert await encodings.decode_body(gzip.compress(GOOD), "gzip", limit=MIB) == GOOD
    assert threading.current_thread() not in threads


def test_the_token_is_looked_at_first(client) -> None:
    headers = {"Content-Encoding": "gzip", "Authorization": "Bearer sk-relay-wrong"}

    assert client.post(b"broken", headers=headers).status_code == 401
