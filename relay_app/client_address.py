"""Whose request it is by address, behind proxies that are trusted to say so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Length of ::ffff:0:0/96, where IPv6 has the IPv4 addresses.
MAPPED_BITS = 96
# Proxies write IPv4 addresses with a port, and IPv6 ones in brackets, with a port or without.
_WITH_PORT = re.compile(r"\[([^\[\]]+)\](?::\d{1,5})?|(\d{1,3}(?:\.\d{1,3}){3}):\d{1,5}")


def client_address(meta: Mapping[str, Any], *, trusted: Sequence[Network]) -> str:
    """Return the address of the client whose request has this META; empty when unknown.

    That is the peer, unless it is a trusted proxy: then X-Forwarded-For is walked from the right,
    past trusted proxies, to the first address that is none. Further left stands only what the
    client itself claims. An entry that is no address makes the client unknown: the proxy that
    wrote it must not pass for its clients.
    """
    current = parse_address(str(meta.get("REMOTE_ADDR") or ""))
    if current is None or not is_in(current, trusted):
        return _text(current)
    entries = str(meta.get("HTTP_X_FORWARDED_FOR") or "").split(",")
    for entry in reversed([entry.strip() for entry in entries]):
        if not entry:
            continue
        current = parse_address(entry)
        if current is None or not is_in(current, trusted):
            break
    return _text(current)


@lru_cache(maxsize=4096)
def parse_address(text: str) -> Address | None:
    """Return the address in `text`, which may have brackets and a port, or None.

    An IPv4 address in IPv6's clothes comes out as IPv4; a zone (`%eth0`) is dropped.
    """
    found = _WITH_PORT.fullmatch(text)
    bare = (found[1] or found[2]) if found else text
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))


def is_in(address: Address | None, networks: Sequence[Network]) -> bool:
    """Return whether one of `networks` has `address`; an unknown one is in none."""
    if address is None or not networks:
        return False
    if isinstance(address, IPv6Address):
        return any(address in network for network in networks)
    # A network may be written in IPv6's clothes too, but not every network that has those.
    mapped = IPv6Address(0xFFFF << 32 | int(address))
    return any(
        address in network or (mapped in network and network.prefixlen >= MAPPED_BITS)
        for network in networks
    )


def _text(address: Address | None) -> str:
    return "" if address is None else str(address)
