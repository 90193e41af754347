"""Volunteers on simulated computers: real links, real feeds on simulated disks, real transfers."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host as Machine
from shoal.netsim.world import World
from shoal.state.service import State
from shoal.state.settings import StateSettings
from shoal.tasks.tuning.averaging.averager import Averager, AveragingNode, Judge, StartState
from shoal.tasks.tuning.averaging.codecs import Vector
from shoal.tasks.tuning.averaging.parcels import Parcels
from shoal.tasks.tuning.averaging.terms import RunTerms
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import DialFailed
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link

PORT = 4001


class Hill:
    """A trainer and a judge: its loss falls towards a goal."""

    def __init__(self, seed: int, values: int) -> None:
        self._random = np.random.default_rng(seed)
        self.goal = np.ones(values, np.float32)

    def train(self, base: StartState) -> Vector:
        noise = self._random.standard_normal(base.values.size, np.float32) * np.float32(0.02)
        values: Vector = base.values + np.float32(0.3) * (self.goal - base.values) + noise
        return values

    async def loss(self, values: Vector) -> float:
        await trio.lowlevel.checkpoint()
        return float(np.square(values - self.goal).mean()) + 0.1


class Volunteer:
    """Program for a simulated computer: an endpoint, a state, and an averager."""

    def __init__(self, machine: Machine, number: int, terms: RunTerms) -> None:
        self.machine = machine
        self.identity = Identity.from_seed(number.to_bytes(32))
        self.hill = Hill(number, terms.values)
        self.terms = terms
        self.spoil: Callable[[Vector], Vector] = lambda update: update
        self.others: Sequence[Address] = ()
        self.bases: list[StartState] = []
        self.keeps = 1000  # of the bases
        self.judge: Judge = self.hill
        self.seconds = 5.0
        self.mishaps: list[Any] = []

    @property
    def peer(self) -> PeerId:
        return self.identity.peer

    @property
    def root(self) -> str:
        """The root of the state from which it trains, or "" if it is not known yet."""
        return self.averager.rounds.root

    @property
    def address(self) -> Address:
        return Address(self.machine.addresses()[0], PORT, self.peer)

    async def run(self, machine: Machine, *, task_status: "trio.TaskStatus[Any]") -> None:
        async with trio.open_nursery() as nursery:
            host = SimulatedHost(machine, PROFILES["desktop"], nursery)
            self.endpoint = Endpoint(host, self.identity, admission=OpenSwarm())
            settings = StateSettings(Path("/data"), hold=0.0)
            self.state = State(
                host, self.endpoint, self.identity, settings, trouble=lambda *_: None
            )
            self.parcels = Parcels(host, self.endpoint, self._connect)
            await nursery.start(self.endpoint.run, "0.0.0.0", PORT)
            await nursery.start(self.state.run)
            for address in self.others:
                (await self.endpoint.dial(address, timeout=10)).keep()
            node = AveragingNode(host, self.state, self.peer, self.parcels)
            start = np.zeros(self.terms.values, np.float32)
            self.averager = Averager(node, self.terms, start, self.judge)
            await nursery.start(self.averager.run)
            task_status.started(self)
            await self._train()

    async def _train(self) -> None:
        base = self.averager.base
        while True:
            self.bases = [*self.bases, base][-self.keeps :]
            await trio.sleep(self.seconds)
            values = base.values - self.spoil(base.values - self.hill.train(base))
            base = await self.averager.exchange(base, values, 100)

    async def _connect(self, peer: PeerId) -> Link:
        known = self.endpoint.link(peer)
        if known is None:
            raise DialFailed.unreachable(peer, "there is no link")
        return known


class Group:
    """Volunteers of one run, each linked with all that came before."""

    def __init__(self, world: World, terms: RunTerms) -> None:
        self.world = world
        self.terms = terms
        self.members: list[Volunteer] = []

    def made(self) -> Volunteer:
        number = len(self.members) + 1
        member = Volunteer(self.world.host(f"v{number}"), number, self.terms)
        member.others = [each.address for each in self.members]
        self.members.append(member)
        return member

    async def start(self, member: Volunteer) -> Volunteer:
        await member.machine.start(member)
        return member

    async def until(self, holds: Callable[[], bool], seconds: float = 600.0) -> None:
        with trio.fail_after(seconds):
            while not holds():  # noqa: ASYNC110
                await trio.sleep(0.5)


def run(terms: RunTerms, body: Callable[[Group], Awaitable[None]]) -> None:
    world = World(seed=1)
    world.run(lambda: body(Group(world, terms)))
