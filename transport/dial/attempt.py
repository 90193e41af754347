"""One connection attempt: dials several addresses of a peer, the likelier ones slightly earlier.

The order is that of Happy Eyeballs (RFC 8305): addresses in the local network and IPv6 come first,
IP versions alternate, and dials begin 250 ms apart. Relays follow soon after, so that a relayed
path can carry the link if no direct address works.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from .. import defaults
from ..address import Address
from ..bytestream import PathKind
from ..errors import DialFailed
from ..guard import mishap_of
from ..identity import PeerId
from ..link.link import Link
from ..networks import path_kind_to
from .endpoint import Endpoint


class Allows(Protocol):
    """The strategies that are enabled (`strategies.dialer.Strategies`)."""

    @property
    def direct(self) -> bool: ...

    @property
    def udp(self) -> bool: ...

    @property
    def relay(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class AddressAttempt:
    """One address of a peer, to be dialled after `after` seconds.

    For a circuit, `others` are further addresses through the same relay.
    """

    peer: PeerId
    address: Address
    path_kind: PathKind
    after: float
    others: tuple[Address, ...] = ()


def order(
    addresses: Sequence[Address],
    peer: PeerId,
    allows: Allows,
    linked: Collection[PeerId] = (),
    own: Sequence[Address] = (),
) -> list[AddressAttempt]:
    """Return the addresses to dial, and when.

    There are at most `defaults.ATTEMPT_ADDRESSES` direct addresses and `defaults.ATTEMPT_CIRCUITS`
    relays. `linked` are the peers to which this node has a direct link; relays among them come
    first. `own` are relays at which this node has a reservation: they may know or find the peer
    even if the peer does not name them.
    """
    tcp = [each for each in addresses if each.relay is None and each.transport == "tcp"]
    udp = [each for each in addresses if each.relay is None and each.transport == "udp"]
    circuits = [each for each in addresses if each.relay is not None]
    near = [each for each in tcp if path_kind_to(each.host) is not PathKind.DIRECT]
    far = [each for each in tcp if path_kind_to(each.host) is PathKind.DIRECT]
    direct = [*near, *_alternate(far)] if allows.direct else []
    direct += udp if allows.udp else []
    direct = list(dict.fromkeys(direct))[: defaults.ATTEMPT_ADDRESSES]
    step, apart = defaults.STAGGER_S, defaults.RELAYS_STAGGER_S
    found = [
        AddressAttempt(peer, address, path_kind_to(address.host), index * step)
        for index, address in enumerate(direct)
    ]
    first = step if direct else 0.0
    if allows.relay:
        found += [
            AddressAttempt(peer, address, PathKind.RELAYED, first + index * apart, tuple(others))
            for index, (address, *others) in enumerate(
                _by_relay(circuits, linked)[: defaults.ATTEMPT_CIRCUITS]
            )
        ]
        named = {each.relay.peer for each in circuits if each.relay is not None}
        ours = [each for each in own if each.peer not in named and each.peer != peer]
        first = defaults.OWN_RELAYS_S if found else 0.0
        found += [
            AddressAttempt(peer, relay.through(peer), PathKind.RELAYED, first + index * apart)
            for index, relay in enumerate(ours[: defaults.ATTEMPT_OWN])
        ]
    return sorted(found, key=lambda each: each.after)


def _alternate(addresses: Sequence[Address]) -> list[Address]:
    """Alternate IPv6 addresses with other ones. The order within each kind stays."""
    six = [each for each in addresses if ":" in each.host]
    four = [each for each in addresses if ":" not in each.host]
    found: list[Address] = []
    while six or four:
        found += [pile.pop(0) for pile in (six, four) if pile]
    return found


def _by_relay(circuits: Sequence[Address], linked: Collection[PeerId]) -> list[list[Address]]:
    """Group addresses by relay, because a second circuit through the same relay helps little.

    Relays in `linked` come first.
    """
    found: dict[PeerId, list[Address]] = {}
    for each in dict.fromkeys(circuits):
        if each.relay is not None and each.relay.peer is not None:
            found.setdefault(each.relay.peer, []).append(each)
    order = sorted(found, key=lambda relay: relay not in linked)
    return [found[relay][: defaults.ATTEMPT_CIRCUITS] for relay in order]


class ConnectionAttempt:
    """A connection attempt to one peer. Tasks that need the link wait in `first`.

    `over` says whether the attempt has ended.
    """

    def __init__(self, peer: PeerId, endpoint: Endpoint) -> None:
        self.peer = peer
        self.over = False
        self._found = False  # whether a dial has succeeded
        self._endpoint = endpoint
        self._failures: list[DialFailed] = []
        self._news = trio.Event()
        self._scopes: dict[trio.CancelScope, PathKind] = {}

    @property
    def spent(self) -> bool:
        """Whether the attempt has found a link that has ended since.

        The dials that remain may then find no other link.
        """
        return self._found and self._endpoint.link(self.peer) is None

    async def first(self) -> Link:
        """Return the link as soon as a path carries it. Raises DialFailed if the attempt ends
        without one."""
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
        """Return the most informative failure.

        A refusal by the peer itself takes precedence over a timeout, and a timeout over an answer
        by another peer, which may have the same address in another network.
        """
        if not self._failures:
            return DialFailed("no-way", f"no address of `{self.peer}` is known that can be dialled")
        ranks = dict.fromkeys(("unreachable", "timeout", "refused", "no-reservation"), 1)
        ranks |= dict.fromkeys(("self", "wrong-peer"), 2)
        return min(self._failures, key=lambda error: ranks.get(error.code, 0)).copy()

    async def run(
        self, attempts: Sequence[AddressAttempt], dial: Callable[[AddressAttempt], Awaitable[Link]]
    ) -> None:
        """Run all dials to their end. A dial that succeeds cancels those that cannot find a better
        path."""
        async with trio.open_nursery() as nursery:
            for attempt in attempts:
                nursery.start_soon(self._try, attempt, dial)

    async def _try(
        self, attempt: AddressAttempt, dial: Callable[[AddressAttempt], Awaitable[Link]]
    ) -> None:
        """Wait for the start of one dial, run it, and record its failure."""
        with trio.CancelScope() as scope:
            self._scopes[scope] = attempt.path_kind
            try:
                await trio.sleep(attempt.after)
                place = str(attempt.address)
                with self._endpoint.guard.around(place, instead=mishap_of(place)):
                    await dial(attempt)
            except DialFailed as error:
                self._failures.append(error.copy())
            else:
                self._reached(attempt.path_kind, scope)
            finally:
                del self._scopes[scope]
                self._wake()

    def _reached(self, path_kind: PathKind, mine: trio.CancelScope) -> None:
        """Cancel the dials whose path kind is no better than the one that was found."""
        self._found = True
        for scope, other in self._scopes.items():
            if scope is not mine and other.rank >= path_kind.rank:
                scope.cancel()

    def finish(self) -> None:
        """Mark the attempt as ended: no further dial begins."""
        self.over = True
        self._wake()

    def _wake(self) -> None:
        """Wake the tasks that wait in `first`."""
        self._news.set()
        self._news = trio.Event()
