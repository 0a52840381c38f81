"""Which addresses the relay may connect to. Pure: names are resolved elsewhere."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

# Services of clouds that hand out the machine's own credentials, beyond link-local ones.
METADATA = frozenset(
    map(
        ip_address,
        (
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure
            "192.0.0.192",  # Oracle
            "fd00:ec2::254",  # AWS
            "fd20:ce::254",  # Google
        ),
    )
)
METADATA_NAMES = frozenset({"metadata.google.internal", "metadata.goog"})

# IPv6 networks whose addresses carry an IPv4 address, and where: the bits right of it.
_CARRIERS = (
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("::/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)
# The prefix of translators of one's own (RFC 8215).
LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
# All that C libraries read as an IPv4 address: one to four numbers, also octal and hex.
_LEGACY = re.compile(r"(?:0x[0-9a-f]*|\d+)(?:\.(?:0x[0-9a-f]*|\d+)){0,3}")


@lru_cache(maxsize=4096)
def address_fault(host: str, *, allows_private: bool = True) -> str | None:
    """Return why the relay may not connect to `host`, an IP address or a name; else None.

    Link-local, metadata, multicast and unspecified addresses are never allowed; private and
    loopback ones only with `allows_private`. A name is judged as such: what it resolves to is
    to be asked for as well, each time it is connected to.
    """
    name = host.strip().strip("[]").rstrip(".").lower()
    # As IDNA reads it: full-width letters and digits, and the dots of other scripts.
    plain = unicodedata.normalize("NFKC", name).replace("\u3002", ".").rstrip(".")
    if plain in METADATA_NAMES:
        return f"{plain} is a cloud metadata service, which the relay never connects to"
    try:
        address = ip_address(name)
    except ValueError:
        return _odd_spelling(name, plain)
    return _ip_fault(address, allows_private=allows_private)


def _ip_fault(address: IPv4Address | IPv6Address, *, allows_private: bool) -> str | None:
    if isinstance(address, IPv6Address) and address in LOCAL_NAT64:
        return _local_nat64_fault(address, allows_private=allows_private)
    inner = _carried(address)
    # The zero network is "this host" to most systems.
    is_zero = isinstance(inner, IPv4Address) and int(inner) >> 24 == 0
    if (
        inner.is_link_local
        or inner.is_multicast
        or inner.is_unspecified
        or is_zero
        or inner in METADATA
        or str(inner) == "255.255.255.255"
    ):
        return (
            f"{address} is a link-local, metadata, multicast or unspecified address, which the"
            " relay never connects to"
        )
    is_private = not inner.is_global or (isinstance(inner, IPv6Address) and inner.is_site_local)
    return None if allows_private or not is_private else _private(address)


def _private(address: IPv4Address | IPv6Address) -> str:
    return f"{address} is a private address; the option AllowPrivateUpstreams allows those"


def _local_nat64_fault(address: IPv6Address, *, allows_private: bool) -> str | None:
    """Return the fault of a private translator's address.

    Its network decides where the IPv4 address is in it, so any place counts at which there would
    be a link-local or metadata one (RFC 6052 section 2.2).
    """
    bits = int(address)
    inside = (
        (bits >> 64 & 0xFFFF) << 16 | bits >> 40 & 0xFFFF,
        (bits >> 64 & 0xFF) << 24 | bits >> 32 & 0xFFFFFF,
        bits >> 24 & 0xFFFFFFFF,
        bits & 0xFFFFFFFF,
    )
    for inner in map(IPv4Address, inside):
        if inner.is_link_local or inner in METADATA:
            return f"{address} leads to {inner}, which the relay never connects to"
    return None if allows_private else _private(address)


def _carried(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 one stands for, else the address itself."""
    if isinstance(address, IPv6Address):
        if address.scope_id:
            address = IPv6Address(int(address))
        for network, shift in _CARRIERS:
            if address in network and int(address) > 1:
                return IPv4Address(int(address) >> shift & 0xFFFFFFFF)
    return address


def _odd_spelling(name: str, plain: str) -> str | None:
    """Return a fault for IP addresses in spellings other than the usual ones.

    Systems read them differently, so what one check lets through another may connect to.
    """
    if "%" in name:
        return f"{name} is percent-encoded; write the host as it is"
    if _LEGACY.fullmatch(plain) is None and ":" not in plain:
        return None
    return f"{name} is an unusual spelling of an IP address; write four decimal numbers"
