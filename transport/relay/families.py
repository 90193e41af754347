"""Second connections to relays, so that each relay is linked over both IPv4 and IPv6.

A relay tells each end of a circuit at which addresses it sees the other end. Nothing is sent to an
address at which no third node has seen the peer (docs/spec/punch.md). Two peers can therefore meet
over an IP version only if a relay has seen both of them on it. A node with both IP versions
connects to its relays over both for this reason.
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
from ..peertasks import PeerTasks


class Families:
    """Dialer of relays over the IP version (IPv4 or IPv6) that their links do not use yet. `book`
    returns the addresses of a relay."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        book: Callable[[PeerId], Sequence[Address]],
        tasks: PeerTasks,
    ) -> None:
        self._host = host
        self._endpoint = endpoint
        self._book = book
        self._tasks = tasks
        self._tried: dict[tuple[PeerId, bool], float] = {}

    async def meet(self, relay: Address) -> None:
        """Dial a linked relay over the IP version that is missing.

        Returns when that is done, or after `defaults.BOTH_S` seconds.
        """
        for address in self._missing(relay):
            done = trio.Event()
            if not self._tasks.start(str(address), self._dial, address, done, end=done.set):
                return
            with trio.move_on_after(defaults.BOTH_S):
                await done.wait()

    async def _dial(self, address: Address, done: trio.Event) -> None:
        """Dial one address of a relay, and set `done` at the end."""
        with suppress(DialFailed):
            await self._endpoint.reach(address, timeout=defaults.ATTEMPT_S)
        done.set()

    def _missing(self, relay: Address) -> list[Address]:
        """Return one address for each IP version that both ends have but no path uses."""
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
        """Return whether the last try is long ago, and record this one if so.

        Without this, a dead IP version would be tried for each circuit.
        """
        if self._tried.get((peer, six), -defaults.FAMILY_S) + defaults.FAMILY_S > now:
            return False
        self._tried = {key: at for key, at in self._tried.items() if at + defaults.FAMILY_S > now}
        self._tried[peer, six] = now
        return True

    def _seen(self, peer: PeerId) -> set[bool]:
        """Return the IP versions on which a peer is seen. True stands for IPv6."""
        link = self._endpoint.link(peer)
        return set() if link is None else {":" in ip for ip in link.seen}


def versions(host: Host) -> set[bool]:
    """Return the IP versions with which this machine reaches the internet. True stands for IPv6."""
    addresses = [item.address for item in host.interfaces()]
    return {
        ":" in ip
        for ip in addresses
        if path_kind_to(ip) is PathKind.DIRECT
        or (":" not in ip and path_kind_to(ip) is PathKind.LAN)
    }
