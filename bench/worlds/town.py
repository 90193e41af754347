"""Nodes of one world that know each other's addresses, and the outcome when two of them connect."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from shoal.netsim.host import Host
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.bytestream import PathKind
from shoal.transport.defaults import HTTPS_PORT
from shoal.transport.errors import DialFailed
from shoal.transport.identity import PeerId
from shoal.transport.link.link import Link
from shoal.transport.nat.punch.outcome import PunchOutcome
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.strategies.dialer import Dialer

from .transportnode import TransportNode

VOLUNTEER: Final = RelayLimits(volunteer=True, rate=1_000_000)
HTTPS: Final = (("0.0.0.0", 443),)
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Meeting:
    """Outcome of one node's dial to another.

    Times are seconds from its start, None for never. `known`: a link existed before. `code`: why no
    link came up. `why`: why the link is not direct.
    """

    known: bool
    connected: float | None
    direct: float | None
    path_kind: str = ""
    medium: str = ""
    code: str = ""
    why: str = ""
    six: bool = False


class Town:
    """Factory of nodes that share one address book, which lists at once what each would publish."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: dict[PeerId, TransportNode] = {}
        self.relays: list[TransportNode] = []

    async def node(self, host: Host, **settings: Any) -> TransportNode:
        """Start a node on a host; it listens when this returns."""
        seed = (len(self.nodes) + 1).to_bytes(32)
        node = TransportNode(host, seed, book=self.book, **settings)
        self.nodes[node.peer] = node
        await host.start(node)
        return node

    async def relay(
        self, host: Host, *, everywhere: bool = False, **settings: Any
    ) -> TransportNode:
        """Start a node that relays; `everywhere`: on TCP 443 as well."""
        further = HTTPS if everywhere else ()
        node = await self.node(host, relaying=VOLUNTEER, further=further, **settings)
        self.relays.append(node)
        return node

    def book(self, peer: PeerId) -> Sequence[Address]:
        node = self.nodes.get(peer)
        return [] if node is None else node.addresses()

    async def introduce(
        self, node: TransportNode, relays: Sequence[TransportNode], *, web: bool = False
    ) -> None:
        """Connect a node to some relays, as a node that has just joined; ignore failures.

        `web`: if a relay does not answer, also try TCP 443, as a daemon does.
        """

        async def greet(relay: TransportNode) -> None:
            if relay is not node:
                with_relay = list(self.book(relay.peer))
                if web:
                    with_relay.append(replace(relay.address(), port=HTTPS_PORT))
                try:
                    await node.connect(relay.peer, with_relay)
                except DialFailed:
                    return

        async with trio.open_nursery() as nursery:
            for relay in relays:
                nursery.start_soon(greet, relay)


async def meet(
    one: TransportNode, other: TransportNode, *, timeout: float = 15.0, patience: float = 25.0
) -> tuple[Meeting, Link | None]:
    """Dial `other` from `one`, and wait at most `patience` seconds until the link is direct."""

    async def go() -> tuple[Meeting, Link | None]:
        return await climb(one.dialer, other.peer, timeout=timeout, patience=patience)

    return await one.within(go)


async def climb(
    dialer: Dialer, peer: PeerId, *, timeout: float, patience: float
) -> tuple[Meeting, Link | None]:
    """Do the same with any dialer, by the addresses in its book."""
    began = trio.current_time()
    known = dialer.endpoint.link(peer) is not None
    try:
        link = await dialer.connect(peer, timeout=timeout)
    except DialFailed as error:
        return Meeting(known, None, None, code=error.code, why=str(error)), None
    connected = trio.current_time() - began
    with trio.move_on_at(began + patience):
        while link.alive and not is_direct(link):  # noqa: ASYNC110
            await trio.sleep(_LOOK_S)
    if not is_direct(link):
        outcome = dialer.outcome(peer)
        why = link.code or (_words(outcome) if outcome is not None else "not tried")
        return Meeting(known, connected, None, str(link.path_kind), why=why), link
    direct = trio.current_time() - began
    path = next(path for path in link.status.paths if path.used)
    six = ":" in path.address[0]
    return Meeting(known, connected, direct, str(path.path_kind), path.medium, six=six), link


def is_direct(link: Link) -> bool:
    """Whether the link is carried by a path that is not relayed."""
    return link.path_kind not in (None, PathKind.RELAYED)


def _words(outcome: PunchOutcome) -> str:
    strategies = (
        f"{name} {strategy.reason or strategy.result}"
        for name, strategy in sorted(outcome.strategies.items())
    )
    return ", ".join(strategies)
