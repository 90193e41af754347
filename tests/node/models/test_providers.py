"""Look-up of providers in the DHT."""

from collections.abc import Iterable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from shoal.dht.content.ranges import pack_indexes
from shoal.dht.finding import FindingResult
from shoal.dht.lookup.foundrecords import FoundRecord
from shoal.dht.records.key import Key, record_key
from shoal.dht.records.record import BlobBody, Body, PeerBody, open_record, seal_record
from shoal.node.models.providers import Providers
from shoal.transport.address import Address
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.networks import Nearness

HOST = RealHost()
ROOT = "ab" * 32
OWN = PeerId("own")
MADE = 1_700_000_000_000


def identity(number: int) -> Identity:
    return Identity.from_seed(Random(number).randbytes(32))


class Net:
    """A DHT that answers at once, and a dialer that records the dialled addresses."""

    peer = OWN

    def __init__(self) -> None:
        self.records: list[FoundRecord] = []
        self.own: dict[Key, Body] = {}
        self.linked: list[Any] = []
        self.needed: list[Any] = []
        self.dialled: list[tuple[PeerId, list[str]]] = []
        self.endpoint = self
        self.known: Sequence[Address] = ()
        self.providers = Providers(HOST, self, self)  # type: ignore[arg-type]

    # Replaces a Dht.
    async def find(self, key: Key, **how: Any) -> FindingResult:
        await trio.lowlevel.checkpoint()
        return FindingResult(tuple(each for each in self.records if each.record.key == key))

    def publish(self, body: Body, *, lasting: bool) -> None:
        assert not lasting
        self.own[body.key] = body

    def withdraw(self, body: Body) -> None:
        del self.own[body.key]

    # Replaces an Endpoint and a Dialer.
    def links(self) -> list[Any]:
        return self.linked

    def link(self, peer: PeerId) -> Any:
        return next((link for link in self.linked if link.peer == peer), None)

    def book(self, peer: PeerId) -> Sequence[Address]:
        return self.known

    async def dial(self, peer: PeerId, addresses: Iterable[Address]) -> Any:
        self.dialled.append((peer, [each.host for each in addresses]))

    def need(self, link: Any) -> None:
        self.needed.append(link)

    # For tests.
    def says(self, author: int, body: Body, by: PeerId = OWN) -> PeerId:
        one = identity(author)
        sealed = seal_record(one, body, made=MADE, ttl=3600)
        self.records.append(FoundRecord(open_record(sealed), 1.0, by))
        return one.peer

    def meets(self, peer: PeerId, ip: str) -> None:
        status = SimpleNamespace(address=(ip, 4001))
        self.linked.append(SimpleNamespace(peer=peer, connected=True, status=status))


@pytest.mark.trio
async def test_complete_providers_come_first() -> None:
    net = Net()
    some = net.says(1, BlobBody(ROOT, 9, 4, ((0, 2),)))
    whole = net.says(2, BlobBody(ROOT, 9, 4))
    net.says(3, BlobBody("cd" * 32, 9, 4))
    assert await net.providers.providers(ROOT) == [whole, some]
    assert await net.providers.replicas(ROOT) == {whole}
    assert await net.providers.providers("ef" * 32) == []


@pytest.mark.trio
async def test_connect_uses_a_link_then_the_address_book_then_the_dht() -> None:
    net = Net()
    peer = net.says(1, PeerBody(identity(1).peer, ("/ip4/8.8.4.4/tcp/4001",)))
    await net.providers.connect(peer)
    net.known = [Address("9.9.9.9", 4001)]
    await net.providers.connect(peer)
    assert net.dialled == [(peer, ["8.8.4.4"]), (peer, ["9.9.9.9"])]
    net.meets(peer, "8.8.4.4")
    assert await net.providers.connect(peer) is net.linked[0]
    assert len(net.dialled) == 2
    assert net.needed[-1] is net.linked[0], "the data over it is worth a direct path"


NEAR = ("/ip4/127.0.0.1/tcp/4022", "/ip4/192.168.1.1/tcp/4080", "/ip4/8.8.4.4/tcp/4001")


@pytest.mark.trio
@pytest.mark.parametrize(
    ("seen", "dialled"),
    [
        ("93.184.216.34", ["8.8.4.4"]),
        ("192.168.1.7", ["192.168.1.1", "8.8.4.4"]),
        ("127.0.0.1", ["127.0.0.1", "192.168.1.1", "8.8.4.4"]),
    ],
)
async def test_address_is_trusted_as_far_as_its_source_is_near(
    seen: str, dialled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer's own record must not make this node dial machines in its owner's network."""
    net, keeper = Net(), PeerId("keeper")
    net.meets(keeper, seen)
    peer = net.says(1, PeerBody(identity(1).peer, NEAR), by=keeper)
    await net.providers.connect(peer)
    assert net.dialled == [(peer, dialled)]

    # For comparison: if all addresses were trusted, all would be dialled.
    monkeypatch.setattr(Providers, "nearness", lambda self, found: Nearness.LOOPBACK)
    await net.providers.connect(peer)
    assert len(net.dialled[-1][1]) == 3


@pytest.mark.trio
async def test_locally_stored_record_counts_as_the_farthest_link() -> None:
    net = Net()
    peer = net.says(1, PeerBody(identity(1).peer, NEAR))
    await net.providers.connect(peer)
    net.meets(PeerId("a"), "192.168.1.7")
    await net.providers.connect(peer)
    net.meets(PeerId("b"), "93.184.216.34")
    await net.providers.connect(peer)
    assert [hosts for _, hosts in net.dialled] == [
        ["8.8.4.4"], ["192.168.1.1", "8.8.4.4"], ["8.8.4.4"],
    ]  # fmt: skip


@pytest.mark.trio
async def test_announced_root_is_withdrawn() -> None:
    net = Net()
    swarm = net.providers.swarm
    swarm.announce(ROOT, 9, 4, pack_indexes([0, 1, 3]))
    key = record_key("blob", ROOT)
    assert net.own == {key: BlobBody(ROOT, 9, 4, ((0, 2), (3, 4)))}
    swarm.announce(ROOT, 9, 4, None)
    assert net.own == {key: BlobBody(ROOT, 9, 4)}
    swarm.withdraw(ROOT)
    swarm.withdraw(ROOT)
    assert not net.own
