"""Which addresses the relay connects to, seen from outside and at the moment of connecting."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import aiohappyeyeballs
import httpx
import pytest
from aiohttp.abc import AbstractResolver

from relay_app.connectors import AddressNotAllowed
from relay_app.transport import AiohttpTransport
from tests.support.upstream import answer, chat

REFUSED = "channel:address_not_allowed"


@pytest.fixture(autouse=True)
def connected(monkeypatch, upstream):
    """What is connected to; whatever the guard lets slip, nothing leaves this machine."""
    upstream.close_idle()  # or connections of other tests serve these
    found = []
    start = aiohappyeyeballs.start_connection

    async def local_only(addr_infos, **options):
        hosts = [info[4][0] for info in addr_infos]
        found.extend(hosts)
        if not all(host in {"127.0.0.1", "::1", "::ffff:127.0.0.1"} for host in hosts):
            raise OSError(f"a test would have connected to {hosts}")
        return await start(addr_infos=addr_infos, **options)

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", local_only)
    return found


class Resolver(AbstractResolver):
    """Answers with these addresses, one list after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def resolve(self, host, port=0, family=socket.AF_INET):
        hosts = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            {
                "hostname": host,
                "host": one,
                "port": port,
                "family": socket.AF_INET6 if ":" in one else socket.AF_INET,
                "proto": 0,
                "flags": 0,
            }
            for one in hosts
        ]

    async def close(self):
        pass


@pytest.fixture
async def transport():
    """One whose option can be changed: `transport.allows`."""
    made = AiohttpTransport(allows_private=lambda: made.allows)
    made.allows = True
    yield made
    await made.aclose()


async def resolving(transport, *answers):
    session = await transport._session_for(None)
    session.connector._resolver = Resolver(*answers)
    return session.connector


@contextlib.asynccontextmanager
async def keeping_server():
    """A server that keeps connections open; gives its port and what closes them all."""
    writers = []

    async def serve(reader, writer):
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    def close_connections():
        for writer in writers:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], close_connections
    finally:
        close_connections()
        server.close()


async def get(transport, url):
    response = await transport.handle_async_request(httpx.Request("POST", url))
    await response.aread()
    await response.aclose()
    return response.status_code


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
        "2130706433",
        "0x7f000001",
        "127.1",
        "10.0.0.1",
        "169.254.169.254",
        "metadata.google.internal",
    ],
)
def test_private_upstreams_are_a_channel_error_where_they_are_off(world, host):
    port = world.upstream.port
    world.channel("a", answer(200, chat()), base_url=f"http://{host}:{port}/a/v1")
    world.options(AllowPrivateUpstreams="off")

    response = world.ready().chat()

    assert response.status_code >= 500
    assert world.upstream.names() == []
    log = world.log(response.headers["x-request-id"])
    assert [a.upstream_code for a in log.attempts.all()] == [REFUSED]
    assert [a.failure_class for a in log.attempts.all()] == ["CHANNEL_CONFIG"]


def test_the_refusal_names_the_option(world):
    world.channel("a", answer(200, chat()))
    world.options(AllowPrivateUpstreams="off")

    response = world.ready().chat()

    log = world.log(response.headers["x-request-id"])
    assert "AllowPrivateUpstreams" in log.attempts.get().message


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[fe80::1]", "0.0.0.0", "[::]", "100.100.100.200"]
)
def test_some_addresses_are_refused_whatever_the_option_says(world, connected, host):
    world.channel("a", base_url=f"http://{host}:{world.upstream.port}/a/v1", priority=2)
    world.channel("b", answer(200, chat()), priority=1)
    world.options(AllowPrivateUpstreams="on", RetryTimes=1)

    response = world.ready().chat()

    assert response.status_code == 200
    log = world.log(response.headers["x-request-id"])
    assert log.attempts.get(number=1).upstream_code == REFUSED
    assert set(connected) <= {"127.0.0.1"}


def test_a_redirect_is_not_followed(world):
    target = world.upstream.url("b")
    moved = answer(307, b"", headers={"Location": f"{target}/chat/completions"})
    world.channel("a", moved)

    world.ready().chat()

    assert world.upstream.names() == ["a"]


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.1.1"])
async def test_a_name_is_judged_by_what_it_resolves_to(transport, connected, address):
    await resolving(transport, [address])

    with pytest.raises(AddressNotAllowed, match=r"harmless\.invalid"):
        await get(transport, "http://harmless.invalid/")
    assert connected == []


async def test_a_name_that_changes_its_mind_gains_nothing(transport, connected):
    """Each new connection looks at the addresses that it is about to use."""
    async with keeping_server() as (port, close_connections):
        connector = await resolving(transport, ["127.0.0.1"], ["169.254.169.254"])
        url = f"http://rebind.invalid:{port}/"
        assert await get(transport, url) == 200

        connector.clear_dns_cache()
        assert await get(transport, url) == 200  # on the pooled connection
        close_connections()

        with pytest.raises(AddressNotAllowed):
            await get(transport, url)
    assert connected == ["127.0.0.1"]


async def test_of_several_addresses_only_the_allowed_are_used(transport, upstream, connected):
    upstream.script("a", answer(200, chat()))
    await resolving(transport, ["169.254.169.254", "127.0.0.1", "fe80::1"])

    assert await get(transport, f"http://mixed.invalid:{upstream.port}/a/v1") == 200
    assert connected == ["127.0.0.1"]


async def test_the_option_counts_from_the_next_connection_on(transport, upstream):
    upstream.script("a", answer(200, chat()))
    await resolving(transport, ["127.0.0.1"])
    transport.allows = False
    url = f"http://name.invalid:{upstream.port}/a/v1"

    with pytest.raises(AddressNotAllowed, match="AllowPrivateUpstreams"):
        await get(transport, url)
    transport.allows = True
    assert await get(transport, url) == 200


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[fe80::1]",
        "metadata.google.internal",
        "2852039166",
        "0.0.0.0",
        "[64:ff9b:1::a9fe:a9fe]",
        "169\u3002254\u3002169\u3002254",
        "\uff11\uff16\uff19\uff0e254\uff0e169\uff0e254",
        "%31%36%39.254.169.254",
    ],
)
def test_addresses_that_are_never_allowed_are_refused_when_they_are_typed(host):
    from relay_app.config_fields import Place, base_url

    place = Place("channels[0].base_url")

    base_url(f"http://{host}/v1", place)

    assert len(place.problems) == 1
    assert "channels[0].base_url" in place.problems[0]
