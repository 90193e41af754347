"""Redialling of peers whose links have lost their last path (docs/spec/lane.md, section 5)."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from .. import defaults
from ..address import Address
from ..bytestream import PathKind
from ..errors import DialFailed
from ..host.seam import Host
from ..link.link import Link
from ..networks import path_kind_to
from .rounds import RetryRounds

Finder = Callable[[Link], Awaitable[None]]
"""Searches for a new path of a link that has none, until cancelled."""


class ReachPeer(Protocol):
    """`Endpoint.reach`, which adds a path to the link of the peer that answers.

    Raises DialFailed if that fails.
    """

    async def __call__(self, address: Address, *, timeout: float, sure: bool) -> Link: ...


class Rescue:
    """Redialler of a peer at its last address. A registered finder searches elsewhere at the same
    time."""

    def __init__(self, host: Host, reach: ReachPeer, timeout: float) -> None:
        """`timeout` is the time limit of one dial, in seconds."""
        self._finder: Finder | None = None
        self._host = host
        self._reach = reach
        self._timeout = timeout
        self._rounds: dict[RetryRounds[str], None] = {}

    def register_finder(self, finder: Finder) -> None:
        """Register the search that runs beside redialling. It replaces an earlier one. Without any,
        links are only redialled."""
        self._finder = finder

    def wake(self) -> None:
        """Dial again at once. Call this when the network has changed."""
        for rounds in self._rounds:
            rounds.wake()

    async def __call__(self, link: Link) -> str | None:
        """Dial the peer of a link again and again, until cancelled or until a dial shows that the
        peer has ended. In the latter case, return the code with which the link must end at once."""
        rounds: RetryRounds[str] = RetryRounds(
            self._host,
            pause=defaults.REDIAL_S,
            every=pace(self._host),
            times=lambda: times(link, len(self._rounds)),
        )
        self._rounds[rounds] = None
        try:
            async with trio.open_nursery() as nursery:
                if self._finder is not None:
                    nursery.start_soon(self._finder, link)
                code = await rounds.run(lambda: self._dial_again(link))
                nursery.cancel_scope.cancel()
        finally:
            self._rounds.pop(rounds, None)
        return code

    async def _dial_again(self, link: Link) -> str | None:
        """Dial the peer's last IP address, at the port on which the peer listens.

        Returns `peer-gone` if that shows that the peer has ended, otherwise None.
        """
        ip, port = link.address[0], link.identities.port
        if not ip or not port:
            await trio.sleep(defaults.PROBE_S)
            return None
        address = Address(ip, port, link.peer)
        try:
            # If the peer had dialled, the port is only the peer's claim.
            await self._reach(address, timeout=self._timeout, sure=link.identities.dialled)
        except DialFailed as error:
            # If there is a router in between, the refusal may come from the router.
            near = path_kind_to(ip) in (PathKind.LOOPBACK, PathKind.LAN)
            if near and link.broken and error.code in ("refused", "wrong-peer"):
                return "peer-gone"
        return None


def pace(host: Host) -> Callable[[], float]:
    """Return a function that returns the longest time between two rounds of a search, in seconds.

    The time is short at first, and longer after `defaults.GRACE_S` seconds.
    """
    began = host.now()
    short, long = defaults.ROUND_S
    return lambda: short if host.now() < began + defaults.GRACE_S else long


def times(link: Link, searches: int) -> float:
    """Return the factor by which all pauses grow while `searches` links search for a path.

    With this factor, all links together search only as often as one link would. If many links
    search, this node is cut off from a part of the swarm. A single path that comes back then shows
    that the others may come back as well (`ConnectionAttempts.found`). A needed link has the factor
    1.
    """
    return 1.0 if link.needed else max(1.0, searches)
