"""Gets links that have lost their last connection a new one (docs/spec/lane.md, section 5)."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from . import defaults
from .address import Address
from .errors import DialFailed
from .host import Host
from .link import Link
from .pipe import Way
from .place import way_to
from .rounds import Rounds

Finder = Callable[[Link], Awaitable[None]]
"""Looks for a new path of a link that has none, until it is cancelled."""


class Reach(Protocol):
    """`Endpoint.reach`: a further path of the link to who answers there, or DialFailed."""

    async def __call__(self, address: Address, *, timeout: float, sure: bool) -> Link: ...


class Rescue:
    """Dials the peer where it was last, while `finder` looks elsewhere. Fulfils `link.Rescue`."""

    def __init__(self, host: Host, reach: Reach, timeout: float) -> None:
        """`timeout` seconds for one dial, at most."""
        self.finder: Finder | None = None
        self._host = host
        self._reach = reach
        self._timeout = timeout
        self._rounds: set[Rounds[str]] = set()

    def wake(self) -> None:
        """The network is another than before: dial again now."""
        for rounds in self._rounds:
            rounds.wake()

    async def __call__(self, link: Link) -> str | None:
        """Until it is cancelled; the code by which the link must end at once."""
        rounds: Rounds[str] = Rounds(
            self._host,
            pause=defaults.REDIAL_S,
            every=pace(self._host),
            times=lambda: times(link, len(self._rounds)),
        )
        self._rounds.add(rounds)
        try:
            async with trio.open_nursery() as nursery:
                if self.finder is not None:
                    nursery.start_soon(self.finder, link)
                code = await rounds.run(lambda: self._dial_again(link))
                nursery.cancel_scope.cancel()
        finally:
            self._rounds.discard(rounds)
        return code

    async def _dial_again(self, link: Link) -> str | None:
        """Where the peer was last, at the port on which it listens."""
        ip, port = link.address[0], link.identities.port
        if not ip or not port:
            await trio.sleep(defaults.PROBE_S)
            return None
        address = Address(ip, port, link.peer)
        try:
            # This node did not dial it, so the port is the peer's claim.
            await self._reach(address, timeout=self._timeout, sure=link.identities.dialled)
        except DialFailed as error:
            # Behind a router it may be the router that refuses.
            near = way_to(ip) in (Way.LOOPBACK, Way.LAN)
            if near and link.broken and error.code in ("refused", "wrong-peer"):
                return "peer-gone"
        return None


def pace(host: Host) -> Callable[[], float]:
    """How long a round of looking may hold up the next: longer after the first while."""
    began = host.now()
    short, long = defaults.ROUND_S
    return lambda: short if host.now() < began + defaults.GRACE_S else long


def times(link: Link, searches: int) -> float:
    """Return the factor of all pauses while so many links search for a path.

    All of them share the pace of one: then this node is cut off from a part of the swarm, and a
    single path that comes back shows that the others may (`Climbs.found`). Needed links never wait.
    """
    return 1.0 if link.needed else max(1.0, searches)
