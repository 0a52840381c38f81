"""Addresses of proxies, read without ever telling the credentials in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_app.core.proxies import check_proxy, read_proxy


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://host", ("http", "host", 80, "", "")),
        ("https://host:8443/", ("https", "host", 8443, "", "")),
        ("http://u:p%40ss@host:3128", ("http", "host", 3128, "u", "p@ss")),
        ("socks5://host", ("socks5", "host", 1080, "", "")),
        ("socks5h://u:p@[::1]:9", ("socks5h", "::1", 9, "u", "p")),
    ],
)
def test_a_proxy_is_read_into_its_parts(url, parts):
    proxy = read_proxy(url)

    assert (proxy.scheme, proxy.host, proxy.port, proxy.user, proxy.password) == parts
    assert check_proxy(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "host:3128",
        "u:hunter2@host:3128",
        "ftp://u:hunter2@host",
        "socks4://u:hunter2@host",
        "http://u:hunter2@",
        "http://u:hunter2@host:0",
        "http://u:hunter2@host:99999",
        "http://u:hunter2@[::1",
        "http://u:hunter2@host/path",
        "http://u:hunter2@host?x=1",
        "http://u:hunter2 @host",
        "http://u:hunter2\r\nX: y@host",
        "http://u%0d%0a:hunter2@host",
        "http://a%3Ab:hunter2@host",
        f"http://u:hunter2{'x' * 300}@host",
    ],
)
def test_what_is_no_proxy_is_refused_without_its_password(url):
    fault = check_proxy(url)

    assert fault
    assert "hunter2" not in fault


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "2852039166", "%31%32%37.0.0.1"])
def test_a_proxy_at_an_address_that_is_never_connected_to_is_refused(host):
    fault = check_proxy(f"http://u:hunter2@{host}:3128")

    assert fault
    assert "hunter2" not in fault


def test_no_proxy_is_fine_and_other_values_are_not():
    assert check_proxy("") is None
    assert check_proxy(None)
    assert check_proxy({})


def test_credentials_are_not_shown():
    assert "hunter2" not in repr(read_proxy("http://user:hunter2@host"))


@given(st.text(max_size=40))
def test_no_text_makes_the_check_fail(text):
    assert isinstance(check_proxy(text), str | None)
    assert isinstance(check_proxy(f"http://{text}"), str | None)
