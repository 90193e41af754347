"""A relay between two nodes on loopback, and what the tests say through it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from shoal.transport.certificate import Certificate
from shoal.transport.frame import Priority
from shoal.transport.identity import Identity, PeerId
from shoal.transport.limits import Limits
from shoal.transport.link import Link
from shoal.transport.path import Path
from shoal.transport.pipe import Pipe
from shoal.transport.realhost import RealHost
from shoal.transport.relay.circuit import CircuitPipe
from shoal.transport.relay.client import RelayClient
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.relay.service import RelayService
from shoal.transport.relay.vouch import Vouched
from shoal.transport.shaper import Shaper
from shoal.transport.tls import Tls
from tests.transport.fleet import Node, make_node, running, until

FAST = RelayLimits(volunteer=True, rate=1 << 40)


@dataclass
class Arrived:
    """A circuit that the relay offered to its target."""

    pipe: CircuitPipe
    source: PeerId
    relay: PeerId
    seen: Vouched | None


@dataclass
class Trio:
    """A relay, and two nodes with a client each; `b` has a reservation."""

    a: Node
    b: Node
    r: Node
    service: RelayService
    ca: RelayClient
    cb: RelayClient
    nursery: trio.Nursery
    arrived: list[Arrived] = field(default_factory=list)

    async def dial(self) -> tuple[CircuitPipe, CircuitPipe]:
        """Both ends of a new circuit."""
        before = len(self.arrived)
        near = await self.ca.dial(self.r.address, self.b.endpoint.peer, timeout=5)
        await until(lambda: len(self.arrived) > before)
        return near, self.arrived[-1].pipe

    def link(self, node: Node) -> Link:
        """The relay's link to a node."""
        found = self.r.endpoint.link(node.endpoint.peer)
        assert found is not None
        return found


@asynccontextmanager
async def relayed(
    limits: RelayLimits = FAST,
    *,
    link_limits: Limits | None = None,
    reserve: bool = True,
    shaper: Shaper | None = None,
) -> AsyncIterator[Trio]:
    """Three running nodes on loopback; `shaper` holds the relay's caps."""
    a, b = (make_node(seed, limits=link_limits) for seed in (1, 2))
    r = make_node(3, limits=link_limits, shaper=shaper)
    service = RelayService(RealHost(), r.endpoint, limits, member=lambda peer: 0.0)
    ca, cb = RelayClient(RealHost(), a.endpoint), RelayClient(RealHost(), b.endpoint)
    ca.reachable = True
    async with running(a, b, r) as nursery:
        made = Trio(a, b, r, service, ca, cb, nursery)
        cb.on_circuit(lambda *item: made.arrived.append(Arrived(*item)))
        await nursery.start(ca.run)
        await nursery.start(cb.run)
        if reserve:
            cb.offer([(r.endpoint.peer, r.address)])
            await until(cb.addresses)
        yield made


async def secure(near: Pipe, far: Pipe, a: Identity, b: Identity) -> tuple[Path, Path]:
    """TLS between the two ends, `a` dialling."""
    host = RealHost()
    paths = (
        Path(near, Tls(Certificate.generate(a, host), server=False, expect=b.peer)),
        Path(far, Tls(Certificate.generate(b, host), server=True, expect=None)),
    )
    async with trio.open_nursery() as nursery:
        for path in paths:
            nursery.start_soon(path.handshake)
    return paths


BULK = Priority.BULK
