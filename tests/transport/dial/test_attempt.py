"""Order of the dials in one connection attempt."""

import gc
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import pytest
import trio
import trio.testing

from shoal.transport.address import Address
from shoal.transport.bytestream import PathKind
from shoal.transport.dial.attempt import AddressAttempt, ConnectionAttempt, order
from shoal.transport.dial.attempts import ConnectionAttempts
from shoal.transport.errors import DialFailed
from shoal.transport.guard import Guard
from shoal.transport.identity import Identity, PeerId
from shoal.transport.peertasks import PeerTasks
from shoal.transport.strategies.dialer import Strategies

PEER, R1, R2 = (Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2, 3))
FOUR = Address("11.0.0.1", 4001, PEER)
SIX = Address("2600::1", 4001, PEER)
NEAR = Address("192.168.1.7", 4001, PEER)
UDP = Address("11.0.0.1", 4001, PEER, transport="udp")
FIRST = Address("12.0.0.1", 4001, R1).through(PEER)
FIRST_443 = Address("12.0.0.1", 443, R1).through(PEER)
SECOND = Address("13.0.0.1", 4001, R2).through(PEER)


def told(
    *addresses: Address, strategies: Strategies | None = None, linked: tuple[str, ...] = ()
) -> object:
    found = order(addresses, PEER, strategies or Strategies(), linked)  # type: ignore[arg-type]
    return [(each.address, each.after) for each in found]


def test_order_is_lan_then_ipv6_then_ipv4_then_udp() -> None:
    assert told(UDP, FOUR, SIX, NEAR) == [(NEAR, 0.0), (SIX, 0.25), (FOUR, 0.5), (UDP, 0.75)]


def test_relays_follow_soon_after_the_first_address() -> None:
    assert told(FOUR, FIRST, SECOND) == [(FOUR, 0.0), (FIRST, 0.25), (SECOND, 1.25)]
    assert told(FIRST) == [(FIRST, 0.0)]


def test_each_relay_once_with_all_its_addresses() -> None:
    assert told(FIRST, FIRST_443, SECOND) == [(FIRST, 0.0), (SECOND, 1.0)]
    assert order([FIRST, FIRST_443], PEER, Strategies())[0].others == (FIRST_443,)


def test_relays_that_are_linked_come_first() -> None:
    assert told(FIRST, SECOND, linked=(R2,)) == [(SECOND, 0.0), (FIRST, 1.0)]


def test_disabled_strategies_are_left_out() -> None:
    off = Strategies(direct=False, udp=False, relay=False)
    assert told(FOUR, UDP, FIRST, strategies=off) == []


def test_the_number_of_addresses_is_bounded() -> None:
    many = [Address("11.0.0.1", port, PEER) for port in range(1, 40)]
    ids = [Identity.from_seed(bytes([n]) * 32).peer for n in range(10, 20)]
    relays = [
        Address("12.0.0.1", port, each).through(PEER) for each in ids for port in range(1, 40)
    ]
    found = order([*many, *relays], PEER, Strategies())
    assert len(found) == 12
    assert sum(each.path_kind is PathKind.RELAYED for each in found) == 4
    assert max(len(each.others) for each in found) == 3


@pytest.mark.trio
async def test_a_failed_attempt_keeps_nothing_that_it_used() -> None:
    """The frames of a dial hold buffers and TLS state."""

    class Buffer:
        pass

    used: list[ref[Buffer]] = []

    async def dial(attempt: AddressAttempt) -> Any:
        buffer = Buffer()
        used.append(ref(buffer))
        try:
            raise OSError("no route")
        except OSError as error:
            raise DialFailed("unreachable", "no route") from error

    attempt = ConnectionAttempt(PEER, cast(Any, Links()))
    gc.disable()
    try:
        await attempt.run(order([FOUR, SIX], PEER, Strategies()), dial)
        attempt.finish()
        for _ in range(2):
            with pytest.raises(DialFailed):
                await attempt.first()
        assert [each() for each in used] == [None, None]
    finally:
        gc.enable()


class Links:
    """The endpoint, as far as connection attempts use it. `current` is the link to the peer."""

    def __init__(self) -> None:
        self.current: Any = None
        self.guard = Guard()

    def link(self, peer: PeerId) -> Any:
        return self.current


@pytest.mark.trio
async def test_a_connection_attempt_whose_link_has_ended_is_not_awaited(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its slower attempts continue, but a new dial starts from the beginning."""
    links = Links()

    async def dial(attempt: AddressAttempt) -> Any:
        if attempt.path_kind is PathKind.DIRECT:
            await trio.sleep_forever()
        await trio.sleep(1)
        links.current = SimpleNamespace(connected=True)
        return links.current

    plan = SimpleNamespace(
        attempts=lambda peer, addresses, own: [
            AddressAttempt(peer, FOUR, PathKind.RELAYED, 0.0),
            AddressAttempt(peer, SIX, PathKind.DIRECT, 0.0),
        ],
        attempt=dial,
    )
    tasks = PeerTasks(links.guard)
    attempts = ConnectionAttempts(cast(Any, None), cast(Any, links), cast(Any, plan), tasks)
    async with trio.open_nursery() as nursery:
        with tasks.run_in(nursery):
            first = attempts.to(PEER, (), 60.0)
            link = await first.first()
            assert attempts.to(PEER, (), 60.0) is first, "its link is there"
            links.current = None
            second = attempts.to(PEER, (), 60.0)
            assert second is not first
            assert await second.first() is not link
            nursery.cancel_scope.cancel()
