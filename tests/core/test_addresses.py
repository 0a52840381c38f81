"""Addresses that the relay may connect to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_app.core.addresses import address_fault

NEVER = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "FE80::1%eth0",
    "[fd00:ec2::254]",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "metadata.google.internal",
    "Metadata.Google.Internal.",
    "224.0.0.1",
    "ff02::1",
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "255.255.255.255",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:a9:fe:a9fe::",
    "64:ff9b:1:0:a9:fea9:fe00:0",
    "\uff4detadata.google.internal",
    "metadata\u3002google\uff0einternal\uff61",
    "::ffff:0.0.0.0",
]
PRIVATE = [
    "127.0.0.1",
    "127.8.8.8",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1.",
    "100.64.0.1",
    "::1",
    "fc00::1",
    "fec0::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "2002:7f00:1::",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "64:ff9b:1::808:808",
]
PUBLIC = [
    "8.8.8.8",
    "2606:4700:4700::1111",
    "64:ff9b::808:808",
    "::ffff:8.8.8.8",
    "example.com",
    "b\u00fccher.example",
]
ODD = ["2130706433", "0x7f000001", "0x7f.1", "017700000001", "127.1", "0250.1.1.1", "134744072"]
ODD += ["\uff11\uff16\uff19.254.169.254", "169\u3002254\uff0e169\uff61254", "\uff18.8.8.8"]


@pytest.mark.parametrize("host", NEVER)
def test_some_addresses_are_never_connected_to(host):
    assert "never" in address_fault(host)
    assert "never" in address_fault(host, allows_private=False)


@pytest.mark.parametrize("host", PRIVATE)
def test_private_addresses_need_the_option(host):
    assert address_fault(host) is None
    assert "AllowPrivateUpstreams" in address_fault(host, allows_private=False)


@pytest.mark.parametrize("host", PUBLIC)
def test_public_addresses_and_names_pass(host):
    assert address_fault(host, allows_private=False) is None


@pytest.mark.parametrize("host", ODD)
def test_odd_spellings_of_addresses_are_refused(host):
    assert "four decimal numbers" in address_fault(host)


@pytest.mark.parametrize("host", ["%31%36%39.254.169.254", "metadata%2egoogle.internal", "a%20b"])
def test_percent_encoded_hosts_are_refused(host):
    assert "percent-encoded" in address_fault(host)


@given(st.text(max_size=40) | st.ip_addresses().map(str))
def test_no_host_makes_it_fail(host):
    strict, lax = (address_fault(host, allows_private=allows) for allows in (False, True))

    assert lax is None or strict is not None


@given(st.ip_addresses(v=4))
def test_an_address_in_ipv6_clothes_is_judged_as_the_same(address):
    for allows_private in (True, False):
        fault = address_fault(str(address), allows_private=allows_private)
        mapped = address_fault(f"::ffff:{address}", allows_private=allows_private)
        assert (fault is None) == (mapped is None)
