"""Second connections to relays, so that each relay is linked over both IPv4 and IPv6.

A relay tells each end of a circuit where it sees the other. Nothing is sent to an address at which
no third peer has seen the peer (docs/spec/punch.md). So a node with both IP versions shows itself
to its relays over both. Otherwise the two ends could not meet over a version that the relay has
not seen.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from .. import defaults
from ..address import Address
from ..bytestream import PathKind
from ..dial.endpoint import Endpoint
from ..errors import DialFailed
from ..host.seam import Host
from ..identity import PeerId
from ..networks import path_kind_to


class Families:
    """Dialer of one node's relays. `book` returns the addresses of a relay."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        book: Callable[[PeerId], Sequence[Address]],
    ) -> None:
        self._host = host
        self._endpoint = endpoint
        self._book = book
        self._tried: dict[tuple[PeerId, bool], float] = {}

    async def meet(self, relay: Address, nursery: trio.Nursery) -> None:
        """Dial a linked relay over the IP version that is missing, in `nursery`. Return when that
        is done, or after `defaults.BOTH_S`."""
        for address in self._missing(relay):
            done = trio.Event()
            guard = self._endpoint.guard
            guard.start(nursery, str(address), self._dial, address, done, end=done.set)
            with trio.move_on_after(defaults.BOTH_S):
                await done.wait()

    async def _dial(self, address: Address, done: trio.Event) -> None:
        with suppress(DialFailed):
            await self._endpoint.reach(address, timeout=defaults.CLIMB_S)
        done.set()

    def _missing(self, relay: Address) -> list[Address]:
        """Return an address for each IP version that both ends have but no path uses."""
        if relay.peer is None or relay.transport != "tcp":
            return []
        ours, theirs = versions(self._host), self._seen(relay.peer)
        if not theirs:
            return []
        by: dict[bool, Address] = {}
        for each in (relay, *self._book(relay.peer)):
            if (
                each.relay is None
                and each.transport == "tcp"
                and path_kind_to(each.host) is PathKind.DIRECT
            ):
                by.setdefault(":" in each.host, each)
        now = self._host.now()
        found = []
        for six, address in by.items():
            if six not in theirs and six in ours and self._may_try(relay.peer, six, now):
                found.append(address)
        return found

    def _may_try(self, peer: PeerId, six: bool, now: float) -> bool:
        """Whether the last try is long enough ago, so that a dead IP version is not retried with
        each circuit."""
        if self._tried.get((peer, six), -defaults.FAMILY_S) + defaults.FAMILY_S > now:
            return False
        self._tried = {key: at for key, at in self._tried.items() if at + defaults.FAMILY_S > now}
        self._tried[peer, six] = now
        return True

    def _seen(self, peer: PeerId) -> set[bool]:
        link = self._endpoint.link(peer)
        return set() if link is None else {":" in ip for ip in link.status.seen}


def versions(host: Host) -> set[bool]:
    """Return the IP versions with a route to the internet; True is IPv6."""
    addresses = [item.address for item in host.interfaces()]
    return {
        ":" in ip
        for ip in addresses
        if path_kind_to(ip) is PathKind.DIRECT
        or (":" not in ip and path_kind_to(ip) is PathKind.LAN)
    }
