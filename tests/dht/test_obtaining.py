"""obtaining: bytes of a digest, however many hold them back, lie, or drip them."""

import hashlib
from collections import Counter
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shoal.dht import obtaining as module
from shoal.dht.defaults import ASKED_AT_ONCE, MANIFEST_TIMEOUT, PATIENCE
from shoal.dht.obtaining import Obtaining
from shoal.dht.switchboard import Caller
from shoal.transport.guard import Mishap
from shoal.transport.identity import PeerId
from tests.dht.models import FakeHost
from tests.dht.network import Network

DATA = b"what is wanted"
DIGEST = hashlib.sha256(DATA).hexdigest()

pytestmark = pytest.mark.trio


class Peers:
    """Some that never answer, some that send other bytes, and at the end one that gives it."""

    def __init__(self, silent: int, liars: int) -> None:
        network = Network()
        self.node = network.node("own")
        names = [f"silent{n}" for n in range(silent)] + [f"liar{n}" for n in range(liars)]
        self.peers = [network.node(name).peer for name in (*names, "good")]
        self.asked: Counter[PeerId] = Counter()
        self.at_once = self.most = 0
        self.liars: list[PeerId] = []
        self.obtaining = Obtaining(
            FakeHost(inline=True),
            cast(Any, self.node),
            lambda: self.peers,
            lambda peer, _: self.liars.append(peer),
        )

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
async def test_those_that_hold_it_back_hold_nobody_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """Sixty holders that say nothing. Twin: one after the other they outlast all patience."""
    if not defended:
        monkeypatch.setattr(module, "ASKED_AT_ONCE", 1)
    peers = Peers(60, 0)
    took = await peers.get()
    assert (took < PATIENCE) is defended
    assert peers.most == (ASKED_AT_ONCE if defended else 1)


async def test_who_gave_something_is_asked_first_for_the_next(autojump_clock: MockClock) -> None:
    peers = Peers(8, 0)
    assert await peers.get() > 5
    assert await peers.get() < 1
    assert peers.asked[PeerId("good")] == 2


async def test_who_lied_is_not_asked_again(autojump_clock: MockClock) -> None:
    peers = Peers(0, 10)
    assert await peers.get() < 1
    assert len(peers.liars) == 10
    await peers.get()
    assert max(peers.asked[peer] for peer in peers.liars) == 1


async def test_one_that_answers_at_once_is_the_only_one_asked(autojump_clock: MockClock) -> None:
    peers = Peers(3, 0)
    peers.peers.reverse()
    assert await peers.get() < 0.1
    assert peers.asked == {"good": 1}


async def test_who_falls_quiet_is_not_waited_for(autojump_clock: MockClock) -> None:
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


async def test_peers_that_find_a_mistake_of_ours_take_no_place(autojump_clock: MockClock) -> None:
    """Otherwise as many of them as are asked at once would stop the search."""
    peers = Peers(ASKED_AT_ONCE, 0)
    told, guard = list[Mishap](), peers.obtaining._guard
    guard.report = told.append
    ask = peers.ask

    async def find(link: Caller, digest: str) -> bytes | None:
        if link.peer.startswith("silent"):
            peers.node.network.nodes.pop(link.peer)  # the guard ends the link
            raise KeyError(digest)
        return await ask(link, digest)

    with trio.fail_after(60):
        assert await peers.obtaining.get(find, DIGEST) == DATA
    assert len(told) == ASKED_AT_ONCE
