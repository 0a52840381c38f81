"""Which address a request counts as, behind proxies and without."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_app.client_address import client_address, is_in, parse_address

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]
CLIENT, INNER, OUTER = "203.0.113.7", "10.0.0.2", "10.0.0.3"

trusted_ips = st.ip_addresses(network="10.0.0.0/8").map(str)
foreign_ips = st.ip_addresses(network="203.0.113.0/24") | st.ip_addresses(network="2001:db8::/32")
anything = st.text(max_size=60)


def seen(peer: str | None, forwarded: str | None = None, *, trusted=PROXIES) -> str:
    meta = {"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": forwarded}
    return client_address({k: v for k, v in meta.items() if v is not None}, trusted=trusted)


@given(foreign_ips, anything)
def test_a_peer_that_is_no_trusted_proxy_counts_whatever_it_claims(peer, forwarded) -> None:
    assert seen(str(peer), forwarded) == str(peer)


@given(st.ip_addresses(), anything)
def test_without_trusted_proxies_only_the_peer_counts(peer, forwarded) -> None:
    assert seen(str(peer), forwarded, trusted=[]) == str(parse_address(str(peer)))


@given(st.lists(trusted_ips, max_size=4), foreign_ips, anything, trusted_ips)
def test_what_stands_left_of_the_first_foreign_address_is_only_a_claim(
    proxies, client, claim, peer
) -> None:
    chain = ", ".join([claim.replace(",", ""), str(client), *proxies])

    assert seen(peer, chain) == str(client)


@given(st.lists(trusted_ips, min_size=1, max_size=5), trusted_ips)
def test_with_trusted_addresses_alone_the_leftmost_counts(chain, peer) -> None:
    assert seen(peer, ",".join(chain)) == chain[0]


@given(trusted_ips, anything)
def test_any_header_gives_an_address_or_none(peer, forwarded) -> None:
    found = seen(peer, forwarded)

    assert found == "" or str(ip_address(found)) == found


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        (None, INNER),
        ("", INNER),
        (CLIENT, CLIENT),
        (f"6.6.6.6, {CLIENT}", CLIENT),
        (f"6.6.6.6, {CLIENT}, {OUTER}", CLIENT),
        (f" ,{CLIENT},, ", CLIENT),
        (f"{CLIENT}:443", CLIENT),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:203.0.113.7", CLIENT),
        ("[::ffff:203.0.113.7]:1", CLIENT),
        (f"{CLIENT}, fd00::1", CLIENT),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_the_spellings_of_proxies(forwarded, address) -> None:
    assert seen(INNER, forwarded) == address


@pytest.mark.parametrize(
    "entry",
    [
        "unknown",
        "_hidden",
        "x",
        "1.2.3",
        "1.2.3.4.5",
        "01.2.3.4",
        "1.2.3.4:",
        "1.2.3.4/8",
        "[::1",
        "::g",
    ],
)
def test_an_entry_that_is_no_address_makes_the_client_unknown(entry) -> None:
    """Not the proxy's own address: it may stand on an allow list."""
    assert seen(INNER, entry) == ""
    assert seen(INNER, f"{CLIENT}, {entry}") == ""
    assert seen(INNER, f"{entry}, {CLIENT}") == CLIENT


def test_a_peer_in_the_clothes_of_ipv6_is_the_ipv4_address() -> None:
    assert seen("::ffff:203.0.113.7", "6.6.6.6") == CLIENT
    assert seen("::ffff:10.0.0.2", CLIENT) == CLIENT


@pytest.mark.parametrize("peer", [None, "", "unix:", "/run/relay.sock", "localhost"])
def test_a_peer_without_an_address_is_unknown(peer) -> None:
    assert seen(peer, CLIENT, trusted=[ip_network("0.0.0.0/0"), ip_network("::/0")]) == ""


EVERYWHERE = [ip_network("0.0.0.0/0"), ip_network("::/0")]


@given(anything)
def test_what_is_no_address_is_in_no_network(text) -> None:
    try:
        ip_address(text)
    except ValueError:
        parsed = parse_address(text)
        assert parsed is None or ":" in text  # with a port
        assert parsed is not None or not is_in(parsed, EVERYWHERE)


@pytest.mark.parametrize(
    ("address", "network", "is_inside"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("::ffff:10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "::ffff:10.0.0.0/104", True),
        ("11.1.2.3", "::ffff:10.0.0.0/104", False),
        ("2001:db8::5", "2001:db8::/32", True),
        ("2001:db9::5", "2001:db8::/32", False),
        ("::1", "0.0.0.0/0", False),
        ("10.1.2.3", "::/0", False),
        ("10.1.2.3", "10.1.2.3/32", True),
    ],
)
def test_membership(address, network, is_inside) -> None:
    assert is_in(parse_address(address), [ip_network(network)]) is is_inside
