"""obtaining: bytes of a digest arrive although many peers stay silent, lie, or stall."""

import hashlib
from collections import Counter
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shoal.dht.defaults import ASKED_AT_ONCE, MANIFEST_TIMEOUT, PATIENCE
from shoal.dht.exchange import obtaining as module
from shoal.dht.exchange.obtaining import Obtaining
from shoal.dht.exchange.parts import ExchangeParts
from shoal.dht.exchange.switchboard import Caller, Swarm
from shoal.transport.guard import Guard, Mishap
from shoal.transport.identity import PeerId
from tests.dht.models import FakeHost
from tests.dht.network import Network

DATA = b"what is wanted"
DIGEST = hashlib.sha256(DATA).hexdigest()

pytestmark = pytest.mark.trio


class Peers:
    """Peers that never answer, peers that send wrong bytes, and last one that has the data."""

    def __init__(self, silent: int, liars: int) -> None:
        network = Network()
        self.node = network.node("own")
        names = [f"silent{n}" for n in range(silent)] + [f"liar{n}" for n in range(liars)]
        self.peers = [network.node(name).peer for name in (*names, "good")]
        self.asked: Counter[PeerId] = Counter()
        self.at_once = self.most = 0
        self.liars: list[PeerId] = []
        parts = ExchangeParts(
            FakeHost(inline=True),
            cast(Any, self.node),
            cast(Any, None),
            Swarm(on_liar=lambda peer, _: self.liars.append(peer)),
            Guard(),
        )
        self.obtaining = Obtaining(parts, lambda: self.peers)

    async def ask(self, link: Caller, digest: str) -> bytes | None:
        self.asked[link.peer] += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            if link.peer.startswith("silent"):
                await trio.sleep(MANIFEST_TIMEOUT)
                return None
            await trio.sleep(0.05)
            return DATA if link.peer == "good" else b"something else"
        finally:
            self.at_once -= 1

    async def get(self) -> float:
        began = trio.current_time()
        assert await self.obtaining.get(self.ask, DIGEST) == DATA
        return trio.current_time() - began


@pytest.mark.parametrize("defended", [True, False])
async def test_silent_peers_do_not_delay_the_result(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """Sixty providers stay silent. Twin: asked one after the other, they outlast the patience."""
    if not defended:
        monkeypatch.setattr(module, "ASKED_AT_ONCE", 1)
    peers = Peers(60, 0)
    took = await peers.get()
    assert (took < PATIENCE) is defended
    assert peers.most == (ASKED_AT_ONCE if defended else 1)


async def test_a_peer_that_delivered_is_asked_first_for_the_next_object(
    autojump_clock: MockClock,
) -> None:
    peers = Peers(8, 0)
    assert await peers.get() > 5
    assert await peers.get() < 1
    assert peers.asked[PeerId("good")] == 2


async def test_a_liar_is_not_asked_again(autojump_clock: MockClock) -> None:
    peers = Peers(0, 10)
    assert await peers.get() < 1
    assert len(peers.liars) == 10
    await peers.get()
    assert max(peers.asked[peer] for peer in peers.liars) == 1


async def test_a_fast_reply_needs_no_second_request(autojump_clock: MockClock) -> None:
    peers = Peers(3, 0)
    peers.peers.reverse()
    assert await peers.get() < 0.1
    assert peers.asked == {"good": 1}


async def test_a_request_to_a_quiet_peer_is_cancelled(autojump_clock: MockClock) -> None:
    peers = Peers(1, 0)
    peers.peers.pop()

    async def fall() -> None:
        await trio.sleep(0.5)
        peers.node.quiet.add(peers.peers[0])
        peers.obtaining.quiet(peers.peers[0])
        assert peers.at_once == 1
        await trio.sleep(0.01)
        assert peers.at_once == 0
        peers.node.network.node("good")
        peers.peers.append(PeerId("good"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fall)
        assert await peers.get() < 2


async def test_peers_that_trigger_an_internal_error_free_their_slot(
    autojump_clock: MockClock,
) -> None:
    """Otherwise a few of them would use all concurrent requests and stop the search."""
    peers = Peers(ASKED_AT_ONCE, 0)
    told, guard = list[Mishap](), peers.obtaining.guard
    guard.report = told.append
    ask = peers.ask

    async def find(link: Caller, digest: str) -> bytes | None:
        if link.peer.startswith("silent"):
            peers.node.network.nodes.pop(link.peer)  # the guard closes the link
            raise KeyError(digest)
        return await ask(link, digest)

    with trio.fail_after(60):
        assert await peers.obtaining.get(find, DIGEST) == DATA
    assert len(told) == ASKED_AT_ONCE
