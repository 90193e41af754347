"""Parsing and printing of addresses."""

from collections.abc import Callable

import pytest

from shoal.transport.address import Address
from shoal.transport.defaults import ADDRESS_LETTERS
from shoal.transport.errors import TransportError
from shoal.transport.identity import Identity

PEER = Identity.from_seed(bytes(32)).peer
OTHER = Identity.from_seed(b"1" * 32).peer
RELAY = Address("1.2.3.4", 443, PEER)
UDP_RELAY = Address("a.example", 4001, PEER, "dns4", "udp")


@pytest.mark.parametrize(
    ("text", "expected", "printed"),
    [
        ("/ip4/1.2.3.4/tcp/4001", Address("1.2.3.4", 4001), None),
        (f"/ip4/1.2.3.4/tcp/4001/p2p/{PEER}", Address("1.2.3.4", 4001, PEER), None),
        ("/ip6/::1/tcp/1", Address("::1", 1), None),
        ("/ip6/2001:DB8:0::1/tcp/1", Address("2001:db8::1", 1), "/ip6/2001:db8::1/tcp/1"),
        (f"/dns4/a.example/tcp/65535/p2p/{PEER}", Address("a.example", 65535, PEER, "dns4"), None),
        ("/dns6/a.example/tcp/80", Address("a.example", 80, None, "dns6"), None),
        ("/dns/A.Example/tcp/80", Address("a.example", 80), "/dns/a.example/tcp/80"),
        ("/ip4/1.2.3.4/udp/9/quic-v1", Address("1.2.3.4", 9, None, "dns", "udp"), None),
        (f"/ip6/::1/udp/9/quic-v1/p2p/{PEER}", Address("::1", 9, PEER, "dns", "udp"), None),
        (f"/ip4/1.2.3.4/tcp/443/p2p/{PEER}/p2p-circuit/p2p/{OTHER}", RELAY.through(OTHER), None),
        (
            f"/dns4/a.example/udp/4001/quic-v1/p2p/{PEER}/p2p-circuit/p2p/{OTHER}",
            UDP_RELAY.through(OTHER),
            None,
        ),
        ("1.2.3.4:4001", Address("1.2.3.4", 4001), "/ip4/1.2.3.4/tcp/4001"),
        ("[::1]:4001", Address("::1", 4001), "/ip6/::1/tcp/4001"),
        ("localhost:4001", Address("localhost", 4001), "/dns/localhost/tcp/4001"),
    ],
)
def test_parse_and_print(text: str, expected: Address, printed: str | None) -> None:
    address = Address.parse(text)
    assert address == expected
    assert str(address) == (printed or text)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "4001",
        ":4001",
        "1.2.3.4",
        "1.2.3.4:",
        "1.2.3.4:0",
        "1.2.3.4:65536",
        "1.2.3.4:04001",
        "1.2.3.4:+1",
        "1.2.3.4:4001 ",
        "1.2.3.4:٤٠٠١",
        "1.2.3:4001",
        "1.2.3.400:4001",
        "01.2.3.4:4001",
        "::1:4001",
        "[::1]",
        "[1.2.3.4]:4001",
        "[fe80::1%eth0]:4001",
        "a b:1",
        "-a.example:1",
        "a..example:1",
        "exämple:1",
        "a.example.:1",
        "a" * 64 + ":1",
        ".".join(["abcdefgh"] * 30) + ":1",
        "/ip4/1.2.3.4",
        "/ip4/::1/tcp/1",
        "/ip6/1.2.3.4/tcp/1",
        "/ip6/fe80::1%eth0/tcp/1",
        "/ip4/1.2.3.4/udp/1",
        "/ip4/1.2.3.4/tcp/1/",
        "/ip4/1.2.3.4/tcp/1/p2p",
        "/ip4/1.2.3.4/tcp/1/p2p/",
        "/ip4/1.2.3.4/tcp/1/p2p/12D3",
        f"/ip4/1.2.3.4/tcp/1/ipfs/{PEER}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit/",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit/p2p",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit/p2p/",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit/p2p/{PEER}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit/p2p/{OTHER}/",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit/p2p/{OTHER}/p2p-circuit/p2p/{PEER}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit/ip4/1.2.3.4/tcp/1/p2p/{OTHER}",
        f"/ip4/1.2.3.4/tcp/1/p2p-circuit/p2p/{OTHER}",
        f"/p2p-circuit/p2p/{OTHER}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuitous/p2p/{OTHER}",
        f"/ip4/1.2.3.4/udp/1/p2p/{PEER}",
        "/ip4/1.2.3.4/udp/1/quic",
        "/ip4/1.2.3.4/udp/1/quic-v1/",
        "/ip4/1.2.3.4/tcp/1/quic-v1",
        "/ip4/1.2.3.4/udp/0/quic-v1",
        "/ip4/1.2.3.4/sctp/1",
        "/unix/tmp/tcp/1",
        "/dns4/1.2.3.4/tcp/1",
        "/ip4/1.2.3.4/tcp/1\n",
        "/ip4/1.2.3.4/tcp/1\0",
        "/ip4/" + "1" * ADDRESS_LETTERS + "/tcp/1",
        "9" * 1_000_000,
    ],
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(TransportError) as caught:
        Address.parse(text)
    assert caught.value.code == "bad-address"
    assert len(caught.value.message) < 2 * ADDRESS_LETTERS + 100


def test_hints() -> None:
    for text, hint in [("a.example", "a.example:4001"), ("::1:4001", "[::1]:4001")]:
        with pytest.raises(TransportError) as caught:
            Address.parse(text)
        assert caught.value.hint is not None and f"`{hint}`" in caught.value.hint


def test_through_a_relay() -> None:
    address = RELAY.through(OTHER)
    assert address.relay == RELAY
    assert (address.host, address.port, address.peer) == (RELAY.host, RELAY.port, OTHER)
    assert UDP_RELAY.through(OTHER).transport == "udp"


@pytest.mark.parametrize(
    "make",
    [
        lambda: RELAY.through(PEER),
        lambda: RELAY.through(OTHER).through(PEER),
        lambda: Address("1.2.3.4", 443).through(OTHER),
        lambda: Address("1.2.3.4", 444, OTHER, relay=RELAY),
        lambda: Address("1.2.3.4", 443, None, relay=RELAY),
    ],
)
def test_relay_chains_and_contradictions_are_refused(make: Callable[[], Address]) -> None:
    with pytest.raises(ValueError):
        make()
