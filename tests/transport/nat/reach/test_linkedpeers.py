"""Linked peers: which are asked for their offer, and where a peer counts as seen."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from shoal.transport.errors import CallRefused
from shoal.transport.guard import Guard
from shoal.transport.host.real import RealHost
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Reply
from shoal.transport.nat.reach import defaults
from shoal.transport.nat.reach.linkedpeers import LinkedPeers
from shoal.transport.nat.reach.offers import ObserverOffer

pytestmark = pytest.mark.trio
OFFER = ObserverOffer((4001,), dials=True)


@dataclass
class FakeLink:
    peer: PeerId
    ip: str
    path: str = "direct"
    asked: int = 0
    refuses: bool = False

    @property
    def status(self) -> Any:
        return SimpleNamespace(address=(self.ip, 4001), path=self.path)

    async def call(self, method: str, **_: Any) -> Reply:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        if self.refuses:
            raise CallRefused("unknown-method", "an older version")
        return Reply(OFFER.header)


@dataclass
class FakeEndpoint:
    all: list[FakeLink] = field(default_factory=list)
    port: int = 4001

    def links(self) -> list[Any]:
        return list(self.all)

    def link(self, peer: PeerId) -> Any:
        return next((link for link in self.all if link.peer == peer), None)

    def handle(self, method: str, handler: Any) -> None: ...

    def on_link(self, callback: Callable[[Any], None]) -> None: ...


def some(*ips: str) -> tuple[LinkedPeers, FakeEndpoint]:
    endpoint = FakeEndpoint([FakeLink(PeerId(f"{n}"), ip) for n, ip in enumerate(ips)])
    return LinkedPeers(RealHost(), endpoint, None, Guard()), endpoint


async def test_peers_are_queried_once_in_a_while(autojump_clock: trio.testing.MockClock) -> None:
    linked, endpoint = some("11.0.0.1", "12.0.0.1")
    for _ in range(3):
        found = await linked.ask()
    assert [(each.ip, each.offer) for each in found] == [("11.0.0.1", OFFER), ("12.0.0.1", OFFER)]
    assert [link.asked for link in endpoint.all] == [1, 1]
    await trio.sleep(defaults.OFFER_S + 1)
    await linked.ask()
    assert [link.asked for link in endpoint.all] == [2, 2]


async def test_a_peer_that_refuses_is_not_known() -> None:
    linked, endpoint = some("11.0.0.1", "12.0.0.1")
    endpoint.all[0].refuses = True
    assert [each.ip for each in await linked.ask()] == ["12.0.0.1"]


@pytest.mark.parametrize("path", ["relayed", "webrtc", "none"])
async def test_a_peer_behind_another_address_is_seen_nowhere(path: str) -> None:
    """A relay's address is not the peer's, and dialling it would be useless."""
    linked, endpoint = some("11.0.0.1")
    assert linked.seen_at(PeerId("0")) == ("11.0.0.1",)
    endpoint.all[0].path = path
    assert not linked.seen_at(PeerId("0"))
    assert linked.places() == frozenset()
    assert await linked.ask() == []


async def test_one_network_does_not_fill_the_list() -> None:
    """After a hundred links from one /16, others are still asked."""
    crowd = [f"66.6.{n}.1" for n in range(100)]
    linked, endpoint = some(*crowd, "11.0.0.1", "12.0.0.1")
    known = {each.ip for each in await linked.ask()}
    assert {"11.0.0.1", "12.0.0.1"} < known
    assert sum(link.asked for link in endpoint.all) == defaults.OBSERVER_LINKS


async def test_a_peer_that_has_left_is_forgotten() -> None:
    linked, endpoint = some("11.0.0.1", "12.0.0.1")
    await linked.ask()
    del endpoint.all[0]
    assert [each.ip for each in linked.known()] == ["12.0.0.1"]
    await linked.ask()
    assert len(linked.offers) == 1
