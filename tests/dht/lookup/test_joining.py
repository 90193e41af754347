"""joining: peers that make contact are probed, and none can keep others from being known."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shoal.dht import defaults
from shoal.dht.kademlia.asking import NoAnswer
from shoal.dht.kademlia.messages import Find, FindReply
from shoal.dht.kademlia.table import Table
from shoal.dht.lookup.joining import Joining
from shoal.dht.records.contact import Contact
from shoal.transport.guard import Guard
from shoal.transport.host.real import RealHost
from shoal.transport.identity import PeerId
from shoal.transport.link.link import Link
from shoal.transport.rates import DialLimiter
from tests.dht.nodes import contact, contacts, entropy


class Asking:
    """Fakes the `Asking` of a node; peers in `silent` time out."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.silent: set[PeerId] = set()
        self.asked: list[PeerId] = []
        self.guard = Guard()

    def serves(self) -> None:
        return None

    async def find(self, contact: Contact, find: Find, by: Sequence[PeerId] = ()) -> FindReply:
        self.asked.append(contact.peer)
        if contact.peer in self.silent:
            await trio.sleep(defaults.FIND_S)
            raise NoAnswer("timeout")
        self.table.answered(contact, trio.current_time())
        return FindReply((), ())


class Searching:
    async def survey(self, key: object) -> None:
        await trio.lowlevel.checkpoint()


def make(limiter: DialLimiter | None = None) -> tuple[Joining, Asking]:
    own = contact(0)
    table = Table(own.key, entropy())
    asking = Asking(table)
    client = SimpleNamespace(
        host=RealHost(), peer=own.peer, table=table, asking=asking, limiter=limiter
    )
    joining = Joining(
        cast(Any, client),
        cast(Any, Searching()),
        links=list,
        addresses=lambda peer: (),
    )
    return joining, asking


def ask(joining: Joining, one: Contact, ip: str) -> None:
    link = SimpleNamespace(peer=one.peer, address=(ip, 1), brief=True)
    joining.on_request(cast(Link, link), one)


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_silent_peers_do_not_keep_others_from_being_known(
    autojump_clock: MockClock, defended: bool
) -> None:
    """Thousands of peers of one network make contact and then stay silent. Twin: if networks did
    not count, a newcomer would wait behind them, or not be asked at all."""
    joining, asking = make()
    liars = contacts(3_000, first=10)
    asking.silent = {one.peer for one in liars}
    newcomers = [Contact(one.peer, one.addresses) for one in contacts(20, first=9_000)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(joining.run)
        for number, liar in enumerate(liars):
            ask(joining, liar, "6.6.6.6")
            if number % 30 == 0:
                await trio.sleep(0.01)
        for number, one in enumerate(newcomers):
            ask(joining, one, f"8.8.{number}.8" if defended else "6.6.6.6")
            await trio.sleep(0.01)
        known = sum(one.peer in asking.table for one in newcomers)
        assert (known == len(newcomers)) is defended
        assert known > 0 or not defended
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_each_peer_is_asked_once_per_pause(autojump_clock: MockClock) -> None:
    joining, asking = make()
    one = contact(5)
    asking.silent = {one.peer}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(joining.run)
        for _ in range(100):
            ask(joining, one, "8.8.8.8")
            await trio.sleep(defaults.PROBE_PAUSE / 200)
        assert asking.asked == [one.peer]
        await trio.sleep(defaults.PROBE_PAUSE)
        ask(joining, one, "8.8.8.8")
        await trio.sleep(1)
        assert asking.asked == [one.peer] * 2
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_peer_is_asked_again_once_it_has_an_address(autojump_clock: MockClock) -> None:
    """As behind a NAT before it has a relay. Otherwise it would store nothing for an hour."""
    joining, asking = make()
    one = contact(5)
    asking.silent = {one.peer}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(joining.run)
        for known in (Contact(one.peer, []), one):
            for _ in range(10):
                ask(joining, known, one.addresses[0].host)
                await trio.sleep(0.5)
            assert asking.asked == [one.peer] * (1 + (known is one))
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_remembered_peers_are_limited(autojump_clock: MockClock) -> None:
    joining, asking = make()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(joining.run)
        for number, one in enumerate(contacts(2 * defaults.BRIEF_RESTING)):
            asking.silent.add(one.peer)
            ask(joining, one, f"8.{number // 250}.{number % 250}.8")
            if number % 40 == 0:
                await trio.sleep(0.1)
        await trio.sleep(1)
        assert len(joining._asked) <= defaults.BRIEF_RESTING
        assert len(joining._to_probe) <= defaults.PROBES
        assert len(joining._probes.waiting) < defaults.PROBES
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_restarted_daemon_does_not_dial_all_contacts_of_its_last_run(
    autojump_clock: MockClock,
) -> None:
    """Twin: a node without members has only the contacts of its last run, and dials many."""
    limiter = DialLimiter(20.0, 0.0)
    for limit, most in ((limiter, defaults.BOOTSTRAP_AT_ONCE), (None, defaults.BRIEF_DIALS)):
        joining, asking = make(limit)
        remembered = contacts(100, first=10)
        asking.silent = {one.peer for one in remembered}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(joining.run, remembered)
            await trio.sleep(defaults.FIND_S / 2)
            assert len(asking.asked) == most
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_links_of_the_first_minute_precede_the_first_look_up(
    autojump_clock: MockClock,
) -> None:
    joining, asking = make(DialLimiter(20.0, 0.0))
    surveyed: list[float] = []

    class Surveying:
        async def survey(self, key: object) -> None:
            surveyed.append(trio.current_time() - began)
            await trio.lowlevel.checkpoint()

    joining._searching = cast(Any, Surveying())
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        asking.table.answered(contact(5), began)
        nursery.start_soon(joining.run)
        with trio.fail_after(1):
            await joining.joined.wait()
        await trio.sleep(200)
        nursery.cancel_scope.cancel()
    assert 60 <= surveyed[0] <= 120
