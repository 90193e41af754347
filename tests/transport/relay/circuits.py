"""A relay between two nodes on loopback, and what the tests say through it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from shoal.transport.bytestream import ByteStream
from shoal.transport.handshake.certificate import Certificate
from shoal.transport.handshake.secured import SecureStream
from shoal.transport.handshake.tls import Tls
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.lane.frame import Priority
from shoal.transport.lane.shaper import Shaper
from shoal.transport.limits import Limits
from shoal.transport.link.link import Link
from shoal.transport.relay.circuit import CircuitByteStream
from shoal.transport.relay.client import RelayClient
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.relay.service import RelayService
from shoal.transport.relay.vouch import Vouched
from tests.transport.fleet import Node, make_node, running, until

FAST = RelayLimits(volunteer=True, rate=1 << 40)


@dataclass
class Arrived:
    """A circuit that the relay offered to its target."""

    byte_stream: CircuitByteStream
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

    async def dial(self) -> tuple[CircuitByteStream, CircuitByteStream]:
        """Both ends of a new circuit."""
        before = len(self.arrived)
        near = await self.ca.dial(self.r.address, self.b.endpoint.peer, timeout=5)
        await until(lambda: len(self.arrived) > before)
        return near, self.arrived[-1].byte_stream

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


async def secure(
    near: ByteStream, far: ByteStream, a: Identity, b: Identity
) -> tuple[SecureStream, SecureStream]:
    """TLS between the two ends, `a` dialling."""
    host = RealHost()
    paths = (
        SecureStream(near, Tls(Certificate.generate(a, host), server=False, expect=b.peer)),
        SecureStream(far, Tls(Certificate.generate(b, host), server=True, expect=None)),
    )
    async with trio.open_nursery() as nursery:
        for path in paths:
            nursery.start_soon(path.handshake)
    return paths


BULK = Priority.BULK
