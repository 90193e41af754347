"""Execution of a scenario's steps in virtual time."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import trio

from ..disk.disk import Disk
from ..errors import SimError
from ..faults import Faults, Rule
from .format import actions
from .format.tables import Step
from .result import Happening
from .topology import Member, Topology

Generate = Callable[[Member, actions.Generate], Awaitable[None]]


class Steps:
    """Executor of the steps; `happenings` records what was done."""

    def __init__(self, topology: Topology, faults: Faults, generate: Generate) -> None:
        self.topology = topology
        self.faults = faults
        self.happenings: list[Happening] = []
        self._generate = generate
        self._capacities: dict[str, int] = {}  # of disks that are full, by host

    async def run(self, steps: tuple[Step, ...]) -> None:
        """Execute all steps, each at its time; steps of one instant in the order of the file."""
        async with trio.open_nursery() as nursery:
            for step in sorted(steps, key=lambda step: step.at):
                await trio.sleep_until(step.at)
                if step.lasts is None:
                    nursery.start_soon(self._do, step)
                else:
                    nursery.start_soon(self._do_for, step, step.lasts)
                await trio.lowlevel.checkpoint()

    async def _do(self, step: Step) -> Any:
        action = step.action
        words = getattr(action, "target", getattr(action, "groups", ()))
        target = " ".join(word if isinstance(word, str) else " ".join(word) for word in words)
        happening = Happening(trio.current_time(), None, step.name, target)
        self.happenings.append(happening)
        return happening, await _DEEDS[type(action)](self, action, step.lasts)

    async def _do_for(self, step: Step, lasts: float) -> None:
        happening, rules = await self._do(step)
        await trio.sleep_until(step.at + lasts)
        happening.until = trio.current_time()
        undo = _UNDO.get(type(step.action))
        if undo is not None:
            await undo(self, step.action, rules)

    def _names(self, words: tuple[str, ...]) -> list[str]:
        return [member.host.name for member in self.topology.hosts_of(words)]

    def _plugs(self, words: tuple[str, ...]) -> list[Any]:
        """Return hosts and gateways; the name of a host with its own gateway also stands for that
        gateway.
        """
        groups = self.topology.groups
        found: list[Any] = []
        for word in words:
            if word in self.topology.gateways and word not in self.topology.members:
                found.append(self.topology.gateways[word])
            else:
                found += groups.get(word, [word])
        return found

    def _gateways(self, words: tuple[str, ...]) -> list[Any]:
        """Return the gateways of these names, and of the hosts of these groups that have
        their own.
        """
        gateways, groups = self.topology.gateways, self.topology.groups
        found: dict[str, Any] = {}
        for word in words:
            named = [name for name in groups.get(word, [word]) if name in gateways]
            if not named:
                raise SimError(f"no host of `{word}` has a gateway of its own")
            found |= {name: gateways[name] for name in named}
        return list(found.values())

    async def _partition(self, action: actions.Partition, _: float | None) -> list[Rule]:
        groups = [self._names(group) for group in action.groups]
        return self.faults.partition(*groups, oneway=action.oneway)

    async def _loss(self, action: actions.Loss, _: float | None) -> list[Rule]:
        ones, others = self._names(action.origins), self._names(action.receivers)
        return self.faults.loss(ones, others, action.share)

    async def _delay(self, action: actions.Delay, _: float | None) -> list[Rule]:
        ones, others = self._names(action.origins), self._names(action.receivers)
        return self.faults.delay(ones, others, action.by)

    async def _clog(self, action: actions.Clog, lasts: float | None) -> None:
        assert lasts is not None
        self.faults.clog(self._names(action.target), lasts)

    async def _swizzle(self, action: actions.Swizzle, lasts: float | None) -> None:
        assert lasts is not None
        self.faults.swizzle(self._names(action.target), lasts)

    async def _heal(self, *_: Any) -> None:
        self.faults.heal()

    async def _heal_rules(self, _: Any, rules: list[Rule]) -> None:
        self.faults.heal(*rules)

    async def _crash(self, action: Any, _: Any) -> None:
        await self.faults.crash(*self._names(action.target))

    async def _restart(self, action: Any, _: Any) -> None:
        await self.faults.restart(*self._names(action.target))

    async def _sleep(self, action: Any, _: Any) -> None:
        self.faults.sleep(*self._names(action.target))

    async def _resume(self, action: Any, _: Any) -> None:
        self.faults.resume(*self._names(action.target))

    async def _clock(self, action: actions.Clock, _: Any) -> None:
        self.faults.step_clock(*self._names(action.target), seconds=action.step)

    async def _drift(self, action: actions.Drift, _: Any) -> None:
        self.faults.drift_clock(*self._names(action.target), rate=action.rate)

    async def _reboot(self, action: actions.NatReboot, _: Any) -> None:
        self.faults.reboot(*self._gateways(action.target))

    async def _redial(self, action: actions.Redial, _: Any) -> None:
        self.faults.redial(*self._gateways(action.target))

    async def _link_down(self, action: Any, _: Any) -> None:
        self.faults.link_down(*self._plugs(action.target))

    async def _link_up(self, action: Any, _: Any) -> None:
        self.faults.link_up(*self._plugs(action.target))

    async def _cut(self, action: actions.Cut, _: Any) -> None:
        for item in self._plugs(action.target):
            self.faults.cut(item, action.way)

    async def _mend(self, action: actions.Cut, _: Any) -> None:
        for item in self._plugs(action.target):
            self.faults.cut(item, action.way, cut=False)

    async def _disk_full(self, action: actions.DiskFull, _: Any) -> None:
        for name, disk in self._disks(action):
            self._capacities.setdefault(name, disk.spec.capacity)
            disk.spec = replace(disk.spec, capacity=disk.used)

    async def _disk_read_only(self, action: actions.DiskReadOnly, _: Any) -> None:
        for _name, disk in self._disks(action):
            disk.read_only = True

    async def _disk_lost_syncs(self, action: actions.DiskLostSyncs, _: Any) -> None:
        for _name, disk in self._disks(action):
            disk.lost_syncs = True

    async def _mend_disk(self, action: Any, _: Any) -> None:
        for name, disk in self._disks(action):
            if isinstance(action, actions.DiskFull):
                disk.spec = replace(disk.spec, capacity=self._capacities.pop(name))
            elif isinstance(action, actions.DiskReadOnly):
                disk.read_only = False
            else:
                disk.lost_syncs = False

    def _disks(self, action: Any) -> Iterator[tuple[str, Disk]]:
        """Return the disks of the hosts. Raises SimError for a daemon that has never started."""
        for member in self.topology.hosts_of(action.target):
            if member.host.disk is None:
                raise SimError(f"{member.host.name} has no disk before its daemon starts")
            yield member.host.name, member.host.disk

    async def _generate_text(self, action: actions.Generate, _: Any) -> None:
        for member in self.topology.hosts_of(action.target):
            await self._generate(member, action)


Deed = Callable[[Steps, Any, Any], Awaitable[Any]]
_DEEDS: Final[dict[type, Deed]] = {
    actions.Partition: Steps._partition, actions.Loss: Steps._loss, actions.Delay: Steps._delay,
    actions.Clog: Steps._clog, actions.Swizzle: Steps._swizzle, actions.Heal: Steps._heal,
    actions.Crash: Steps._crash, actions.Restart: Steps._restart, actions.Sleep: Steps._sleep,
    actions.Resume: Steps._resume, actions.Clock: Steps._clock, actions.Drift: Steps._drift,
    actions.NatReboot: Steps._reboot, actions.Redial: Steps._redial,
    actions.LinkDown: Steps._link_down, actions.LinkUp: Steps._link_up, actions.Cut: Steps._cut,
    actions.DiskFull: Steps._disk_full, actions.DiskReadOnly: Steps._disk_read_only,
    actions.DiskLostSyncs: Steps._disk_lost_syncs,
    actions.Generate: Steps._generate_text,
}  # fmt: skip
_UNDO: Final[dict[type, Deed]] = {  # clogs end by themselves
    actions.Partition: Steps._heal_rules, actions.Loss: Steps._heal_rules,
    actions.Delay: Steps._heal_rules, actions.Crash: Steps._restart,
    actions.Sleep: Steps._resume, actions.LinkDown: Steps._link_up, actions.Cut: Steps._mend,
    actions.DiskFull: Steps._mend_disk, actions.DiskReadOnly: Steps._mend_disk,
    actions.DiskLostSyncs: Steps._mend_disk,
}  # fmt: skip
