"""asking: an address is trusted no further than the link it came over."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

import pytest
import trio

from shoal.dht import defaults
from shoal.dht.kademlia import asking
from shoal.dht.kademlia.asking import NoAnswer, as_seen, better, dialable, of_link
from shoal.dht.kademlia.messages import Find
from shoal.dht.records.contact import Contact
from shoal.transport.address import Address
from shoal.transport.errors import DialFailed
from shoal.transport.identity import Identity
from shoal.transport.link.link import Link
from shoal.transport.networks import Nearness
from tests.dht.ring import name, ring

PEER, RELAY = (Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2))
LOOP, HOME, OUT, AWAY = (
    Address(ip, 4001, PEER) for ip in ("127.0.0.1", "192.168.1.7", "1.1.1.1", "2.2.2.2")
)
RELAYED = Address("3.3.3.3", 4001, RELAY).through(PEER)
METADATA = Address("169.254.169.254", 80, PEER)
NAMED = Address("metadata.internal", 80, PEER, dns="dns4")
EVERYTHING = [LOOP, HOME, OUT, AWAY, METADATA, NAMED]


@dataclass
class Ids:
    dialled: bool
    port: int = 4001


@dataclass
class FakeLink:
    peer: object
    address: tuple[str, int]
    identities: Ids


def link(ip: str, *, dialled: bool = True) -> Link:
    return cast(Link, FakeLink(PEER, (ip, 50000), Ids(dialled)))


@pytest.mark.parametrize(
    ("near", "found"),
    [
        (Nearness.PUBLIC, [OUT, AWAY]),
        (Nearness.PRIVATE, [HOME, OUT, AWAY]),
        (Nearness.LOOPBACK, [LOOP, HOME, OUT, AWAY]),
    ],
)
def test_no_address_is_nearer_than_its_referrer(near: Nearness, found: list[Address]) -> None:
    assert dialable(EVERYTHING, near) == found


@pytest.mark.parametrize(
    ("ip", "found"),
    [
        ("1.1.1.1", (OUT,)),
        ("192.168.1.7", (HOME,)),
        ("127.0.0.1", (LOOP, HOME)),
        ("", ()),  # relayed
    ],
)
def test_of_public_addresses_only_the_linked_one_counts(
    ip: str, found: tuple[Address, ...]
) -> None:
    """Otherwise one machine could claim to be in any number of networks."""
    assert as_seen(Contact(PEER, EVERYTHING), link(ip)).addresses == found


def test_relays_are_kept() -> None:
    assert as_seen(Contact(PEER, [AWAY, RELAYED]), link("")).addresses == (RELAYED,)
    whole = Contact(PEER, [OUT, RELAYED])
    assert as_seen(whole, link("1.1.1.1")) is whole


def test_a_link_confirms_the_address_that_was_dialled() -> None:
    assert of_link(link("1.1.1.1"), [AWAY]).addresses == (OUT,)
    assert of_link(link("1.1.1.1", dialled=False), []).addresses == ()


def test_a_public_address_is_not_replaced_by_a_lesser_one() -> None:
    public, private, nothing = (Contact(PEER, each) for each in ([OUT], [HOME], []))
    assert better(private, public) is public and better(public, private) is public
    assert better(public, nothing) is public and better(nothing, private) is private
    moved = Contact(PEER, [AWAY])
    assert better(public, moved) is moved


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_a_peer_cannot_make_this_node_dial_local_services(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """A local node names metadata services. Twin: without the check they are dialled."""
    if not defended:
        monkeypatch.setattr(asking, "dialable", lambda addresses, near: list(addresses))
        monkeypatch.setattr(asking, "_limited", lambda contact, near: contact)
    nodes = await ring(nursery, 3)
    bait = Contact(Identity.from_seed(b"b" * 32).peer, [replace(METADATA, peer=None)])
    for node in nodes[1:]:
        node.dht.table._limited = False
        node.dht.table.answered(bait, trio.current_time())
    dialled: list[Address] = []
    real = nodes[0].endpoint.reach

    async def reach(address: Address, **how: object) -> Link:
        dialled.append(address)
        if address.host == METADATA.host:
            raise DialFailed("unreachable", "not in a test")
        return await real(address, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(nodes[0].endpoint, "reach", reach)
    await nodes[0].dht.find(name("anything").key)
    assert (METADATA.host not in {address.host for address in dialled}) is defended
    for node in nodes:
        node.stop()


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_a_contact_is_not_evicted_because_a_peer_names_it_at_a_wrong_address(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """Twin: if only the named address is dialled, the table loses a live contact."""
    nodes = await ring(nursery, 2)
    one, other = nodes
    known = one.dht.table.contact(other.peer)
    assert known is not None and known.addresses
    if not defended:
        monkeypatch.setattr(asking, "_SURE", 0)
    false = Contact(other.peer, [Address("127.0.0.1", 9)])
    for _ in range(defaults.FAILURES_LAST):
        for link in one.endpoint.links():
            link.close("idle")
        while one.endpoint.links():  # noqa: ASYNC110
            await trio.sleep(0.01)
        one.dht.links.clear_backoffs()
        with suppress(NoAnswer):
            await one.dht.asking.find(false, Find(()))
    assert (other.peer in one.dht.table) is defended
    for node in nodes:
        node.stop()


@pytest.mark.trio
async def test_dials_count_for_the_network_of_the_referrer(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = await ring(nursery, 3)
    bait = Contact(Identity.from_seed(b"b" * 32).peer, [Address("127.0.0.1", 9)])
    nodes[1].dht.table.answered(bait, trio.current_time())
    links = nodes[0].dht.links
    real, named = links.to, {}

    async def to(contact: Contact, sure: object = (), by: Sequence[str] = ("",)) -> Link:
        named[contact.peer] = list(by)
        return await real(contact, sure, by)  # type: ignore[arg-type]

    monkeypatch.setattr(links, "to", to)
    await nodes[0].dht.find(name("anything").key)
    assert named[bait.peer] == ["127.0.0.1"]
    assert named[nodes[1].peer] == [""], "it is in the own table"
    for node in nodes:
        node.stop()


@pytest.mark.trio
@pytest.mark.parametrize("code", ["crowded", "timeout"])
async def test_a_contact_whose_dial_lost_its_slot_is_not_taken_for_dead(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Otherwise a flood of dials could empty the table. Twin: a dead contact is evicted."""
    one, other = nodes = await ring(nursery, 2)

    async def to(*_: object) -> Link:
        raise DialFailed(code, "not now")

    monkeypatch.setattr(one.dht.links, "to", to)
    known = one.dht.table.contact(other.peer)
    assert known is not None
    for _ in range(defaults.FAILURES_LAST):
        with suppress(NoAnswer):
            await one.dht.asking.find(known, Find(()))
    assert (other.peer in one.dht.table) is (code == "crowded")
    for node in nodes:
        node.stop()
