"""contact: addresses of a node, their limits, and their networks."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht import defaults
from shoal.dht.errors import BadMessage
from shoal.dht.records.contact import Contact, met_at, read_contact
from shoal.dht.records.key import node_key, point
from shoal.transport.address import Address
from shoal.transport.identity import public_key_of
from tests.dht.nodes import address, contact, identity, peer

ME = identity(1).peer


def at(*hosts: str) -> Contact:
    return Contact(ME, [Address(host, 4001) for host in hosts])


def test_encoding_round_trip() -> None:
    one = at("8.8.8.8", "2001:4860::1", "a.example")
    found = read_contact(one.packed)
    assert found == one and found.addresses == one.addresses
    assert found.key == node_key(ME) and found.point == point(node_key(ME))


def test_contacts_are_equal_by_peer() -> None:
    assert at("8.8.8.8") == at() and len({at("8.8.8.8"), at()}) == 1
    assert contact(1) != contact(2)


def test_addresses_are_bounded() -> None:
    many = Contact(ME, [address(number) for number in range(9)])
    assert many.addresses == tuple(replace(address(number), peer=ME) for number in range(4))
    long = [Address(f"{'a' * 60}.{'b' * 60}.{'c' * 60}.x{n}", 4001) for n in range(4)]
    assert 0 < len(Contact(ME, long).addresses) < 4
    assert len(Contact(ME, long).packed) <= defaults.CONTACT_BYTES
    assert len(Contact(ME, [address(1)] * 3).addresses) == 1


def test_addresses_do_not_repeat_the_peer_id() -> None:
    """A reply names twenty contacts, each with several addresses, so the bytes matter."""
    relay = Address("8.8.8.8", 4001, peer(2))
    one = Contact(ME, [address(1), relay.through(ME)])
    assert one.packed.count(ME.encode()) == 0 and one.packed.count(peer(2).encode()) == 1
    assert read_contact(one.packed).addresses == one.addresses
    long = msgpack.packb([public_key_of(ME), [str(each) for each in one.addresses]])
    assert read_contact(long).addresses == one.addresses, "the long form is understood"
    other = msgpack.packb([public_key_of(ME), [str(replace(address(1), peer=peer(3)))]])
    assert read_contact(other).addresses == (), "an address of another peer is dropped"


def test_direct_means_an_address_without_a_relay() -> None:
    relay = Address("8.8.8.8", 4001, peer(2))
    assert not Contact(ME, [relay.through(ME)]).direct and not Contact(ME, []).direct
    assert Contact(ME, [relay.through(ME), address(1)]).direct


def test_networks() -> None:
    assert at("8.8.8.8", "8.8.8.9").networks == {"8.8.8.0/24"}
    assert at("2001:4860:1:2::1").networks == {"2001:4860:1::/48"}
    assert at("a.example", "b.example").networks == {"names"}
    assert at("10.1.2.3", "127.0.0.1", "fd00::1", "192.168.1.1").networks == set()
    relay = Address("8.8.8.8", 4001, peer(2))
    assert Contact(ME, [relay.through(ME)]).networks == set()
    assert at("::ffff:8.8.8.8").networks == {"8.8.8.0/24"}


def test_addresses_of_a_later_version_are_left_out() -> None:
    packed = msgpack.packb([public_key_of(ME), ["/moon/1", "/ip4/8.8.8.8/tcp/1"], "more"])
    (only,) = read_contact(packed).addresses
    assert only == Address("8.8.8.8", 1, ME)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        [b"x" * 32],
        [b"x" * 31, []],
        ["x" * 32, []],
        [b"x" * 32, ["/ip4/8.8.8.8/tcp/1"] * 5],
        [b"x" * 32, [7]],
        [b"x" * 32, ["x" * 500]],
    ],
)
def test_invalid_contacts_are_refused(value: Any) -> None:
    with pytest.raises(BadMessage):
        read_contact(msgpack.packb(value))


@given(st.binary(max_size=600))
def test_random_bytes_are_refused_or_valid(data: bytes) -> None:
    try:
        found = read_contact(data)
    except BadMessage:
        return
    assert len(found.packed) <= defaults.CONTACT_BYTES


def test_the_network_of_a_link() -> None:
    assert met_at("8.8.8.8") == met_at("8.8.8.9") == "8.8.8.0/24"
    assert met_at("192.168.1.4") == met_at("127.0.0.1") == ""
    assert met_at("") == "relayed"
