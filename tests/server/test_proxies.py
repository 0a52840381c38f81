"""Channels behind proxies, on real sockets: HTTP forwarding, CONNECT, SOCKS5."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from relay_app import transport as transport_module
from relay_app.core.proxies import read_proxy
from relay_app.transport import MAX_SOCKS_SESSIONS, AiohttpTransport
from tests.support.loop_thread import close_sockets
from tests.support.proxy import Proxy
from tests.support.upstream import answer, chat, stream, whole_stream

HOST = "upstream.invalid"
SECRET = "hunter2-hunter2"


@pytest.fixture
def proxy(upstream):
    proxy = Proxy(answers={HOST: upstream.port})
    proxy.start()
    yield proxy
    proxy.stop()


def behind(world, name, proxy_url, *actions, **fields):
    """Make a channel whose host only a proxy knows."""
    url = f"http://{HOST}:{world.upstream.port}/{name}/v1"
    return world.channel(name, *actions, base_url=url, proxy=proxy_url, **fields)


@pytest.mark.parametrize("scheme", ["http", "socks5", "socks5h"])
def test_a_proxy_carries_requests_and_resolves_the_name(world, proxy, scheme):
    behind(world, "a", proxy.url(scheme), answer(200, chat()))
    client = world.ready()

    statuses = [client.chat().status_code for _ in range(3)]

    assert statuses == [200, 200, 200]
    assert proxy.asked == [HOST]  # one connection serves all
    assert world.upstream.seen[0].target == "/a/v1/chat/completions"
    assert world.upstream.seen[0].headers["host"] == f"{HOST}:{world.upstream.port}"


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_streams_come_through(world, proxy, scheme):
    behind(world, "a", proxy.url(scheme), stream(whole_stream("hello")))

    response = world.ready().chat(stream=True)

    assert b"".join(whole_stream("hello")).decode() in response.text


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_proxy_is_told_who_asks(world, proxy, scheme):
    proxy.user, proxy.password = "user", SECRET
    behind(world, "a", proxy.url(scheme, user="user", password=SECRET), answer(200, chat()))

    assert world.ready().chat().status_code == 200


@pytest.mark.parametrize("scheme", ["http", "socks5"])
@pytest.mark.parametrize("sent", ["wrong-hunter2", ""])
def test_a_proxy_that_refuses_us_is_no_answer_and_its_password_is_not_told(
    world, proxy, scheme, sent, caplog
):
    proxy.user, proxy.password = "user", SECRET
    url = proxy.url(scheme, user="user" if sent else "", password=sent)
    behind(world, "a", url, answer(200, chat()), priority=2)
    world.channel("b", answer(200, chat()), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert response.status_code == 200
    assert world.upstream.names() == ["b"]
    failed = world.log(response.headers["x-request-id"]).attempts.get(number=1)
    assert failed.failure_class == "TRANSPORT"
    assert "proxy" in failed.message
    assert "hunter2" not in failed.message + response.text + caplog.text


def test_the_row_of_a_request_says_that_the_proxy_refused(world, proxy):
    proxy.user, proxy.password = "user", SECRET
    behind(world, "a", proxy.url(), answer(200, chat()))

    response = world.ready().chat()

    told = "the proxy answered 407: it wants another user or password"
    log = world.log(response.headers["x-request-id"])
    assert (log.status, log.outcome) == (502, "upstream_unreachable")
    assert log.message.startswith("no upstream gave an answer (1 attempt): ")
    assert told in log.message
    assert told in log.attempts.get().message
    assert "proxy" not in response.text


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_proxy_that_is_down_is_no_answer(world, proxy, scheme):
    url = proxy.url(scheme, user="user", password=SECRET)
    proxy._loop.run(proxy._stop())
    behind(world, "a", url, priority=2)
    world.channel("b", answer(200, chat()), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert response.status_code == 200
    failed = world.log(response.headers["x-request-id"]).attempts.get(number=1)
    assert failed.failure_class == "TRANSPORT"
    assert SECRET not in failed.message


def test_what_is_no_proxy_is_the_channels_fault(world):
    behind(world, "a", f"socks4://user:{SECRET}@127.0.0.1:1")

    response = world.ready().chat()

    failed = world.log(response.headers["x-request-id"]).attempts.get()
    assert failed.upstream_code == "channel:proxy_invalid"
    assert SECRET not in failed.message + response.text


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_connections_of_a_proxy_serve_nobody_else(world, proxy, scheme):
    """The same host, once through the proxy and once without it."""
    world.channel("a", answer(200, chat()), model_names=["a"])
    world.channel("b", answer(200, chat()), model_names=["b"], proxy=proxy.url(scheme))
    client = world.ready()

    for model in ("b", "a", "b", "a"):
        assert client.chat(model).status_code == 200

    assert proxy.asked == ["127.0.0.1"]
    assert world.upstream.names() == ["b", "a", "b", "a"]


@pytest.mark.parametrize("scheme", ["http", "socks5"])
@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal"])
def test_a_proxy_is_not_asked_for_forbidden_addresses(world, proxy, scheme, host):
    world.channel("a", base_url=f"http://{host}/v1", proxy=proxy.url(scheme))

    response = world.ready().chat()

    failed = world.log(response.headers["x-request-id"]).attempts.get()
    assert failed.upstream_code == "channel:address_not_allowed"
    assert proxy.connections == 0


# -- TLS -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of HOST that signs itself, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "upstream.pem"
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(
        key.private_bytes(pem, form, serialization.NoEncryption()) + made.public_bytes(pem)
    )
    return path


@pytest.fixture
async def tls_port(certificate):
    """The port of a TLS server that answers each request with its own first line."""

    async def serve(reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line = head.split(b"\r\n")[0]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(line) + line)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def transport(certificate, monkeypatch):
    context = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(transport_module, "_tls", lambda: context)
    made = AiohttpTransport(allows_private=lambda: True)
    yield made
    await made.aclose()
    await close_sockets()


def request(url, proxy_url):
    made = httpx.Request("GET", url)
    made.extensions["proxy"] = read_proxy(proxy_url)
    return made


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_tls_goes_through_a_proxy_to_the_upstream_itself(proxy, tls_port, transport, scheme):
    proxy.answers[HOST] = tls_port
    proxy.user, proxy.password = "user", SECRET
    through = proxy.url(scheme, user="user", password=SECRET)

    for path in ("a", "b"):
        sent = request(f"https://{HOST}:{tls_port}/{path}", through)
        response = await transport.handle_async_request(sent)
        assert await response.aread() == f"GET /{path} HTTP/1.1".encode()
        await response.aclose()

    assert proxy.asked == [HOST]


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_certificate_of_another_host_is_no_answer(proxy, tls_port, transport, scheme):
    proxy.answers["other.invalid"] = tls_port

    with pytest.raises(httpx.ConnectError):
        await transport.handle_async_request(
            request(f"https://other.invalid:{tls_port}/", proxy.url(scheme))
        )


async def test_a_proxy_that_refuses_to_connect_is_no_answer(proxy, transport):
    proxy.user, proxy.password = "user", SECRET

    with pytest.raises(httpx.ProxyError, match="407"):
        await transport.handle_async_request(request(f"https://{HOST}/", proxy.url()))


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_proxy_that_says_nothing_is_a_timeout(transport, scheme):
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sent = request(f"https://{HOST}/", f"{scheme}://127.0.0.1:{port}")
    sent.extensions["timeout"] = {"connect": 0.1}
    try:
        with pytest.raises(httpx.ConnectTimeout):
            async with asyncio.timeout(5):
                await transport.handle_async_request(sent)
    finally:
        server.close()


async def test_sessions_of_many_proxies_are_not_kept_for_ever(proxy, upstream, transport):
    upstream.script("a", answer(200, chat()))

    for number in range(MAX_SOCKS_SESSIONS + 5):
        sent = request(
            f"{upstream.url('a')}/x", proxy.url("socks5", user="u", password=f"{number}")
        )
        response = await transport.handle_async_request(sent)
        await response.aread()
        await response.aclose()

    assert len(transport._socks) == MAX_SOCKS_SESSIONS
