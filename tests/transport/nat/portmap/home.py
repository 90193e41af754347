"""A simulated home: a router that maps ports, a computer inside, one outside."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.nat.portmap.igd import Igd
from shoal.netsim.nat.portmap.leases import Leases
from shoal.netsim.network.gateway import SubnetRouter
from shoal.netsim.network.packet import TCP, UDP
from shoal.netsim.world import World
from shoal.transport.nat.portmap.defaults import PortmapLimits
from shoal.transport.nat.portmap.mapper import PROTOCOLS, PortMapper
from shoal.transport.nat.portmap.mapping import PortMapping

PROFILE = PROFILES["laptop"]
PORT = 4001


@dataclass
class Node:
    """A mapper on a simulated computer, and what it told."""

    mapper: PortMapper
    host: Host
    told: list[PortMapping | None] = field(default_factory=list)
    told_at: list[float] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)

    def _hear(self, mapping: PortMapping | None) -> None:
        self.told.append(mapping)
        self.told_at.append(trio.current_time())

    async def run(self, ports: tuple[int, int]) -> None:
        with self.scope:
            await self.mapper.run(*ports)
        self.ended.set()

    async def stop(self) -> None:
        self.scope.cancel()
        await self.ended.wait()

    @property
    def mapping(self) -> PortMapping:
        assert self.mapper.mapping is not None, self.mapper.outcome
        return self.mapper.mapping


class Home:
    """`knobs` are the gateway's (`netsim/nat/portmap/igd.py`)."""

    def __init__(self, world: World, **knobs: Any) -> None:
        self.world = world
        self.gate: SubnetRouter = world.gateway("home", "linux-drop", **({"igd": True} | knobs))
        self.alice = world.host("alice", behind=self.gate)
        self.bob = world.host("bob")

    @property
    def leases(self) -> Leases:
        assert isinstance(self.gate.service, Igd)
        return self.gate.service.leases

    @property
    def held(self) -> dict[str, int]:
        """Outer ports by protocol, as the router has them."""
        return {{TCP: "tcp", UDP: "udp"}[each.proto]: each.port for each in self.leases}

    def start(
        self,
        nursery: trio.Nursery,
        *,
        host: Host | None = None,
        protocols: Collection[str] = PROTOCOLS,
        limits: PortmapLimits | None = None,
        key: bytes = b"",
        ports: tuple[int, int] = (PORT, PORT),
    ) -> Node:
        """A mapper at work on a computer inside."""
        on = host or self.alice
        seam = SimulatedHost(on, PROFILE, nursery)
        node = Node(PortMapper(seam, key=key, limits=limits, protocols=protocols), on)
        node.mapper.on_change(node._hear)
        on.start_soon(nursery, node.run, ports)
        return node

    async def until(self, node: Node, seconds: float = 30.0) -> PortMapping:
        """Wait for a mapping."""
        with trio.fail_after(seconds):
            while node.mapper.mapping is None:  # noqa: ASYNC110
                await trio.sleep(0.01)
        return node.mapping

    async def calls(self, port: int) -> bool:
        """Return whether a host outside can reach alice by that outer port."""
        accepted = trio.Event()

        async def listen() -> None:
            listeners = await trio.open_tcp_listeners(PORT, host="0.0.0.0")
            with listeners[0].socket:
                stream = await listeners[0].accept()
                accepted.set()
                await stream.aclose()

        async def dial() -> None:
            with trio.move_on_after(2):
                try:
                    await (await trio.open_tcp_stream(self.gate.address, port)).aclose()
                except OSError:
                    return

        async with trio.open_nursery() as nursery:
            self.alice.start_soon(nursery, listen)
            await trio.sleep(0.01)
            await self.bob.run(dial)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        return accepted.is_set()
