"""A node with a gate: proven browsers get links of the node's own endpoint."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import trio

from shoal.transport.browser.clear import BrowserSession
from shoal.transport.browser.defaults import BrowserLimits
from shoal.transport.browser.gate import BrowserGate
from shoal.transport.bytestream import PathKind
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import DialFailed
from shoal.transport.handshake.hello import Admission
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link
from tests.transport.fleet import LOOPBACK, Node, make_node

SEED = 1


@dataclass
class HouseNode:
    """A node with a gate for browsers."""

    node: Node
    gate: BrowserGate
    nursery: trio.Nursery

    @property
    def peer(self) -> PeerId:
        return self.node.endpoint.peer

    @property
    def up(self) -> list[Link]:
        return self.node.up

    @property
    def lost(self) -> list[str]:
        return self.node.lost


@asynccontextmanager
async def open_node(
    *, admission: Admission | None = None, limits: BrowserLimits | None = None
) -> AsyncIterator[HouseNode]:
    node = make_node(SEED, admission=admission)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)

        def deliver(session: BrowserSession) -> None:
            nursery.start_soon(greet, node.endpoint, session)

        identity = Identity.from_seed(bytes([SEED]) * 32)
        limits = limits or BrowserLimits(joins_per_minute=1000)
        gate = BrowserGate(RealHost(), identity, deliver, limits=limits)
        await nursery.start(gate.run, LOOPBACK, 0)
        yield HouseNode(node, gate, nursery)
        nursery.cancel_scope.cancel()


async def greet(endpoint: Endpoint, session: BrowserSession) -> None:
    """The listener's side of a hello."""
    with suppress(DialFailed):
        await endpoint.join_secured(session.secure(), PathKind.BROWSER, f"browser {session.peer}")
