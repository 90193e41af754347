"""Execution of a scenario's steps in virtual time."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio

from ..errors import SimError
from ..faults import Faults, Rule
from ..network.gateway import SubnetRouter
from .format import actions
from .format.actions import targets_of
from .format.tables import StepTable
from .result import Happening
from .topology import RunHost, Topology

DiskFault = actions.DiskFull | actions.DiskReadOnly | actions.DiskLostSyncs
Generate = Callable[[RunHost, actions.MakeText], Awaitable[None]]  # generates text with a daemon


class StepRunner:
    """Executor of a scenario's steps. `happenings` records the steps that have been executed.

    A step refers to hosts and gateways by words. A word is the name of a host, gateway or group, or
    `all`.
    """

    def __init__(self, topology: Topology, faults: Faults, generate: Generate) -> None:
        self.topology = topology
        self.faults = faults
        """What carries out the faults."""
        self.happenings: list[Happening] = []
        self._generate = generate
        self._capacities: dict[str, int] = {}  # original capacity of each filled disk, by host

    async def run(self, steps: tuple[StepTable, ...]) -> None:
        """Execute each step at its time. Steps of the same time begin in the order of the file."""
        async with trio.open_nursery() as nursery:
            for step in sorted(steps, key=lambda step: step.at):
                await trio.sleep_until(step.at)
                if step.lasts is None:
                    nursery.start_soon(self._do, step)
                else:
                    nursery.start_soon(self._do_for, step, step.lasts)
                await trio.lowlevel.checkpoint()

    async def _do(self, step: StepTable) -> tuple[Happening, list[Rule]]:
        """Carry out a step's action and record it.

        Return the record and the rules that the action has added to the network.
        """
        action = step.action
        words = action.groups if isinstance(action, actions.Partition) else targets_of(action)
        target = " ".join(word if isinstance(word, str) else " ".join(word) for word in words)
        happening = Happening(trio.current_time(), None, step.name, target)
        self.happenings.append(happening)
        return happening, await self._act(action, step.lasts or 0.0)

    async def _do_for(self, step: StepTable, lasts: float) -> None:
        """Carry out a step's action, and end the action after `lasts` seconds."""
        happening, rules = await self._do(step)
        await trio.sleep_until(step.at + lasts)
        happening.until = trio.current_time()
        await self._undo(step.action, rules)

    def _names(self, words: tuple[str, ...]) -> list[str]:
        """Return the names of the hosts to which the words refer."""
        return [member.host.name for member in self.topology.hosts_of(words)]

    def _plugs(self, words: tuple[str, ...]) -> list[str | SubnetRouter]:
        """Return the targets of a link fault to which the words refer: names of hosts, and
        gateways.

        A word that names both a host and its own gateway refers to the host.
        """
        groups = self.topology.groups
        found: list[str | SubnetRouter] = []
        for word in words:
            if word in self.topology.gateways and word not in self.topology.members:
                found.append(self.topology.gateways[word])
            else:
                found += groups.get(word, [word])
        return found

    def _gateways(self, words: tuple[str, ...]) -> list[SubnetRouter]:
        """Return the gateways to which the words refer.

        A host's name refers to the host's own gateway. In groups, hosts without a gateway of their
        own are ignored. Raises SimError if a word refers to no gateway at all.
        """
        gateways, groups = self.topology.gateways, self.topology.groups
        found: dict[str, SubnetRouter] = {}
        for word in words:
            named = [name for name in groups.get(word, [word]) if name in gateways]
            if not named:
                raise SimError(f"no host of `{word}` has a gateway of its own")
            found |= {name: gateways[name] for name in named}
        return list(found.values())

    async def _act(self, action: actions.Action, lasts: float) -> list[Rule]:
        """Carry out an action. Return the rules that it has added to the network; removing them
        ends the action.

        `lasts` is the step's `for` in seconds, which only clogs use.
        """
        faults, names = self.faults, self._names
        match action:
            case actions.Partition(groups, oneway):
                return faults.partition(*map(names, groups), oneway=oneway)
            case actions.Loss(origins, receivers, share):
                return faults.loss(names(origins), names(receivers), share)
            case actions.Delay(origins, receivers, by):
                return faults.delay(names(origins), names(receivers), by)
            case actions.Clog(target):
                faults.clog(names(target), lasts)
            case actions.Swizzle(target):
                faults.swizzle(names(target), lasts)
            case actions.Heal():
                faults.heal()
            case actions.Crash(target):
                await faults.crash(*names(target))
            case actions.Restart(target):
                await faults.restart(*names(target))
            case actions.Sleep(target):
                faults.sleep(*names(target))
            case actions.WakeHosts(target):
                faults.resume(*names(target))
            case actions.Clock(target, step):
                faults.step_clock(*names(target), seconds=step)
            case actions.Drift(target, rate):
                faults.drift_clock(*names(target), rate=rate)
            case actions.NatReboot(target):
                faults.reboot(*self._gateways(target))
            case actions.Redial(target):
                faults.redial(*self._gateways(target))
            case actions.LinkDown(target):
                faults.link_down(*self._plugs(target))
            case actions.LinkUp(target):
                faults.link_up(*self._plugs(target))
            case actions.Cut(target, way):
                self._cut(target, way, True)
            case actions.DiskFull() | actions.DiskReadOnly() | actions.DiskLostSyncs():
                self._spoil_disks(action, True)
            case actions.MakeText(target):
                for member in self.topology.hosts_of(target):
                    await self._generate(member, action)
        return []

    async def _undo(self, action: actions.Action, rules: list[Rule]) -> None:
        """End an action. Clogs need nothing here, because they end by themselves."""
        match action:
            case actions.Partition() | actions.Loss() | actions.Delay():
                self.faults.heal(*rules)
            case actions.Crash(target):
                await self.faults.restart(*self._names(target))
            case actions.Sleep(target):
                self.faults.resume(*self._names(target))
            case actions.LinkDown(target):
                self.faults.link_up(*self._plugs(target))
            case actions.Cut(target, way):
                self._cut(target, way, False)
            case actions.DiskFull() | actions.DiskReadOnly() | actions.DiskLostSyncs():
                self._spoil_disks(action, False)

    def _cut(self, words: tuple[str, ...], way: str, cut: bool) -> None:
        """Cut one direction of the links that the words refer to; repair it if `cut` is False."""
        for item in self._plugs(words):
            self.faults.cut(item, way, cut=cut)

    def _spoil_disks(self, action: DiskFault, spoil: bool) -> None:
        """Make the disks of hosts faulty, or repair them if `spoil` is False.

        Raises SimError if the daemon of a host has never started.
        """
        for member in self.topology.hosts_of(action.target):
            name, disk = member.host.name, member.host.disk
            if disk is None:
                raise SimError(f"{name} has no disk before its daemon starts")
            if isinstance(action, actions.DiskReadOnly):
                disk.read_only = spoil
            elif isinstance(action, actions.DiskLostSyncs):
                disk.lost_syncs = spoil
            elif spoil:
                self._capacities.setdefault(name, disk.spec.capacity)
                disk.spec = replace(disk.spec, capacity=disk.used)
            else:
                disk.spec = replace(disk.spec, capacity=self._capacities.pop(name))
