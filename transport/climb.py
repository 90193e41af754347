"""One climb: several ways to one peer at once, each a little later than a likelier one.

The order is that of happy eyeballs (RFC 8305): addresses of the own network and IPv6 first, the
versions in turns, 250 ms apart; relays follow soon after, since a relayed path brings
the first answer where no address does.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from . import defaults
from .address import Address
from .endpoint import Endpoint
from .errors import DialFailed
from .guard import mishap_of
from .identity import PeerId
from .link import Link
from .pipe import Way
from .place import way_to


class Allows(Protocol):
    """Which ways may be taken (`ladder.Rungs`)."""

    @property
    def direct(self) -> bool: ...

    @property
    def udp(self) -> bool: ...

    @property
    def relay(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One address of a peer, tried `after` seconds. Of a circuit, `others` are further addresses
    through the same relay."""

    peer: PeerId
    address: Address
    way: Way
    after: float
    others: tuple[Address, ...] = ()


def order(
    addresses: Sequence[Address],
    peer: PeerId,
    allows: Allows,
    linked: Collection[PeerId] = (),
    own: Sequence[Address] = (),
) -> list[Attempt]:
    """What to try, and when; at most `defaults.CLIMB_ADDRESSES` addresses, and
    through `defaults.CLIMB_CIRCUITS` relays, those that are `linked` first. `own` are relays at
    which this node has a place: they may know the peer or find it, whether it says so or not."""
    tcp = [each for each in addresses if each.relay is None and each.transport == "tcp"]
    udp = [each for each in addresses if each.relay is None and each.transport == "udp"]
    circuits = [each for each in addresses if each.relay is not None]
    near = [each for each in tcp if way_to(each.host) is not Way.DIRECT]
    far = [each for each in tcp if way_to(each.host) is Way.DIRECT]
    direct = [*near, *_alternate(far)] if allows.direct else []
    direct += udp if allows.udp else []
    direct = list(dict.fromkeys(direct))[: defaults.CLIMB_ADDRESSES]
    step, apart = defaults.STAGGER_S, defaults.RELAYS_STAGGER_S
    found = [
        Attempt(peer, address, way_to(address.host), index * step)
        for index, address in enumerate(direct)
    ]
    first = step if direct else 0.0
    if allows.relay:
        found += [
            Attempt(peer, address, Way.RELAYED, first + index * apart, tuple(others))
            for index, (address, *others) in enumerate(
                _by_relay(circuits, linked)[: defaults.CLIMB_CIRCUITS]
            )
        ]
        named = {each.relay.peer for each in circuits if each.relay is not None}
        ours = [each for each in own if each.peer not in named and each.peer != peer]
        first = defaults.OWN_RELAYS_S if found else 0.0
        found += [
            Attempt(peer, relay.through(peer), Way.RELAYED, first + index * apart)
            for index, relay in enumerate(ours[: defaults.CLIMB_OWN])
        ]
    return sorted(found, key=lambda each: each.after)


def _alternate(addresses: Sequence[Address]) -> list[Address]:
    """IPv6 and IPv4 in turns, names as they come."""
    six = [each for each in addresses if ":" in each.host]
    four = [each for each in addresses if ":" not in each.host]
    found: list[Address] = []
    while six or four:
        found += [pile.pop(0) for pile in (six, four) if pile]
    return found


def _by_relay(circuits: Sequence[Address], linked: Collection[PeerId]) -> list[list[Address]]:
    """The addresses of each relay, since a second circuit through the same relay is a waste; relays
    that need not be dialled first come before all others."""
    found: dict[PeerId, list[Address]] = {}
    for each in dict.fromkeys(circuits):
        if each.relay is not None and each.relay.peer is not None:
            found.setdefault(each.relay.peer, []).append(each)
    order = sorted(found, key=lambda relay: relay not in linked)
    return [found[relay][: defaults.CLIMB_CIRCUITS] for relay in order]


class Climb:
    """The attempts to reach one peer. Whoever wants the link waits for `first`."""

    def __init__(self, peer: PeerId, endpoint: Endpoint) -> None:
        self.peer = peer
        self.over = False
        self._found = False  # an attempt has worked
        self._endpoint = endpoint
        self._failures: list[DialFailed] = []
        self._news = trio.Event()
        self._scopes: dict[trio.CancelScope, Way] = {}

    @property
    def spent(self) -> bool:
        """Whether the link that it found has ended since: what is left may never find another."""
        return self._found and self._endpoint.link(self.peer) is None

    async def first(self) -> Link:
        """The link, as soon as something carries it. Raises DialFailed when nothing is left."""
        while True:
            link = self._endpoint.link(self.peer)
            if link is not None and link.connected:
                await trio.lowlevel.checkpoint()
                return link
            if self.over:
                await trio.lowlevel.checkpoint()
                raise self._failure()
            await self._news.wait()

    def _failure(self) -> DialFailed:
        """What says most: a refusal by the peer itself before a silence, and that before who
        else answers at its address on another network."""
        if not self._failures:
            return DialFailed("no-way", f"no address of `{self.peer}` is known that can be dialled")
        ranks = dict.fromkeys(("unreachable", "timeout", "refused", "no-reservation"), 1)
        ranks |= dict.fromkeys(("self", "wrong-peer"), 2)
        return min(self._failures, key=lambda error: ranks.get(error.code, 0))

    async def run(
        self, attempts: Sequence[Attempt], dial: Callable[[Attempt], Awaitable[Link]]
    ) -> None:
        """Until all have ended. One that works ends those that could not do better."""
        async with trio.open_nursery() as nursery:
            for attempt in attempts:
                nursery.start_soon(self._try, attempt, dial)

    async def _try(self, attempt: Attempt, dial: Callable[[Attempt], Awaitable[Link]]) -> None:
        with trio.CancelScope() as scope:
            self._scopes[scope] = attempt.way
            try:
                await trio.sleep(attempt.after)
                place = str(attempt.address)
                with self._endpoint.guard.around(place, instead=mishap_of(place)):
                    await dial(attempt)
            except DialFailed as error:
                self._failures.append(error)
            else:
                self._reached(attempt.way, scope)
            finally:
                del self._scopes[scope]
                self._wake()

    def _reached(self, way: Way, mine: trio.CancelScope) -> None:
        self._found = True
        for scope, other in self._scopes.items():
            if scope is not mine and other.rank >= way.rank:
                scope.cancel()

    def finish(self) -> None:
        """Nothing is tried any more."""
        self.over = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()
