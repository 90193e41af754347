"""brieflinks: number and lifetime of links for look-ups; links in other use are never closed."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shoal.dht import defaults
from shoal.dht.kademlia.brieflinks import BriefLinks
from shoal.dht.records.contact import Contact
from shoal.transport.address import Address
from shoal.transport.errors import DialFailed
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link

PEERS = [Identity.from_seed(number.to_bytes(32)).peer for number in range(1, 201)]


class FakeLink:
    def __init__(self, peer: PeerId, *, brief: bool = True) -> None:
        self.peer = peer
        self.brief = brief
        self.connected = True
        self.quiet = self.attended = False
        self.turns = 0
        self.closed: str | None = None

    def close(self, code: str) -> None:
        self.closed = code


class Board:
    """Fake endpoint; peers in `dead` do not answer."""

    def __init__(self) -> None:
        self.up: dict[PeerId, FakeLink] = {}
        self.dead: set[PeerId] = set()
        self.dials: list[PeerId] = []

    def link(self, peer: PeerId) -> Link | None:
        found = self.up.get(peer)
        return cast(Link, found) if found is not None and found.closed is None else None

    def links(self) -> list[Link]:
        return [cast(Link, each) for each in self.up.values() if each.closed is None]

    async def connect(self, peer: PeerId, addresses: Sequence[Address]) -> Link:
        await trio.lowlevel.checkpoint()
        self.dials.append(peer)
        if peer in self.dead:
            raise DialFailed("unreachable", "no reply")
        self.up[peer] = FakeLink(peer)
        return cast(Link, self.up[peer])


def make() -> tuple[Board, BriefLinks]:
    board = Board()
    host = cast(Host, RealHost())
    return board, BriefLinks(host, cast(Any, board), board.connect)


@pytest.mark.trio
async def test_existing_links_are_used(autojump_clock: MockClock) -> None:
    board, links = make()
    board.up[PEERS[0]] = lasting = FakeLink(PEERS[0], brief=False)
    assert await links.to(Contact(PEERS[0])) is cast(Link, lasting)
    assert board.dials == [] and links.linked(PEERS[0]) and not links.linked(PEERS[1])
    await links.to(Contact(PEERS[1]))
    assert board.dials == [PEERS[1]] and links.count() == 1


@pytest.mark.trio
async def test_idle_links_are_closed_and_used_ones_stay(autojump_clock: MockClock) -> None:
    board, links = make()
    for peer in PEERS[:4]:
        await links.to(Contact(peer))
    idle, used, awaited, kept = (board.up[peer] for peer in PEERS[:4])
    awaited.attended, kept.brief = True, False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(links.run)
        for _ in range(10):
            await trio.sleep(defaults.BRIEF_IDLE / 5)
            used.turns += 1
        nursery.cancel_scope.cancel()
    assert [each.closed for each in (idle, used, awaited, kept)] == ["idle", None, None, None]


@pytest.mark.trio
async def test_beyond_the_limit_the_longest_idle_links_are_closed(
    autojump_clock: MockClock,
) -> None:
    board, links = make()
    for peer in PEERS[: defaults.BRIEF_LINKS + 20]:
        await trio.sleep(0.1)
        await links.to(Contact(peer))
    links.sweep()
    links.sweep()
    assert links.count() <= defaults.BRIEF_LINKS + 1
    assert board.up[PEERS[0]].closed == "idle"
    assert board.up[PEERS[defaults.BRIEF_LINKS + 19]].closed is None


@pytest.mark.trio
async def test_a_failed_dial_is_followed_by_a_pause(autojump_clock: MockClock) -> None:
    board, links = make()
    board.dead.add(PEERS[0])
    for _ in range(3):
        with pytest.raises(DialFailed):
            await links.to(Contact(PEERS[0]))
    assert board.dials == [PEERS[0]]
    await trio.sleep(defaults.BRIEF_REST)
    with pytest.raises(DialFailed):
        await links.to(Contact(PEERS[0]))
    assert len(board.dials) == 2
    links.clear_backoffs()
    board.dead.clear()
    await links.to(Contact(PEERS[0]))
    assert links.linked(PEERS[0])


@pytest.mark.trio
async def test_the_number_of_remembered_pauses_is_limited(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "BRIEF_RESTING", 5)
    board, links = make()
    board.dead.update(PEERS)
    for peer in PEERS[:20]:
        with pytest.raises(DialFailed):
            await links.to(Contact(peer))
    assert len(links.resting) == 5


@pytest.mark.trio
async def test_a_paused_peer_may_be_tried_at_another_address(autojump_clock: MockClock) -> None:
    """Otherwise a liar that names a wrong address could keep a peer from being found."""
    board, links = make()
    false, right = Address("9.9.9.9", 1), Address("8.8.8.8", 1)
    board.dead.add(PEERS[0])
    with pytest.raises(DialFailed):
        await links.to(Contact(PEERS[0], [false]))
    board.dead.clear()
    with pytest.raises(DialFailed):
        await links.to(Contact(PEERS[0], [false]))
    await links.to(Contact(PEERS[0], [false, right]))
    assert len(board.dials) == 2


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_failed_dials_of_one_host_are_limited(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """A liar names endless peers at one host. Twin: without the limit each is dialled."""
    if not defended:
        monkeypatch.setattr(defaults, "FAILED_DIALS", (1e9, 1e9))
    board, links = make()
    relay = Address("9.9.9.9", 7, PEERS[198])
    burst = int(defaults.FAILED_DIALS[0]) if defended else 1000

    async def knock(number: int) -> None:
        peer = PEERS[number]
        there = Address("9.9.9.9", 1 + number) if number % 2 else relay.through(peer)
        with suppress(DialFailed):
            await links.to(Contact(peer, [there]))

    board.dead.update(PEERS)
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(knock, number)
    assert len(board.dials) == min(burst, 100)
    if not defended:
        return
    other = Contact(PEERS[150], [Address("9.9.9.9", 5), Address("8.8.8.8", 1)])
    with suppress(DialFailed):
        await links.to(other)
    assert board.dials[-1] == other.peer, "at its other address"
    board.dead.clear()
    met = Contact(PEERS[160], [Address("9.9.9.9", 5)])
    assert await links.to(met, met.addresses)
    near = Contact(PEERS[161], [Address("192.168.1.1", 5)])
    assert await links.to(near)


@pytest.mark.trio
async def test_successful_dials_are_not_limited(autojump_clock: MockClock) -> None:
    board, links = make()
    for peer in PEERS[:60]:
        await links.to(Contact(peer, [Address("9.9.9.9", 5)]))
    assert len(board.dials) == 60


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_addresses_that_never_answer_do_not_delay_other_dials(
    autojump_clock: MockClock, defended: bool
) -> None:
    """A liar names hundreds of dead addresses; a contact of another referrer is dialled at once.
    Twin: if it counts as named by the same referrer, it has to wait."""
    board, links = make()
    hole = PEERS[:150]

    async def connect(peer: PeerId, addresses: Sequence[Address]) -> Link:
        if peer in hole:
            await trio.sleep(4)
            raise DialFailed("timeout", "no reply")
        return await board.connect(peer, addresses)

    links.connect = connect

    async def lose(number: int) -> None:
        with suppress(DialFailed):
            there = Address(f"9.{number}.9.9", 1)
            await links.to(Contact(hole[number], [there]), by=["6.6.6.0/24"])

    async with trio.open_nursery() as nursery:
        for number in range(len(hole)):
            nursery.start_soon(lose, number)
        await trio.sleep(1)
        began = trio.current_time()
        by = ["8.8.8.0/24"] if defended else ["6.6.6.0/24"]
        assert await links.to(Contact(PEERS[160], [Address("8.8.8.8", 1)]), by=by)
        took = trio.current_time() - began
        assert (took < 0.1) is defended
        nursery.cancel_scope.cancel()
