"""Executes a scenario's steps on a real kernel: crashes, link failures and partitions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ..netns.backend import KernelHost, KernelWorld
from ..netns.gateway import KernelGateway
from ..netns.namespaces import Namespace
from ..scenario.format.actions import Cut, Partition, targets_of
from ..scenario.format.tables import Scenario, StepTable
from ..scenario.result import Happening

# Actions that the kernel backend supports.
STEPS: Final = ("crash", "restart", "cut", "link.down", "link.up", "partition", "heal")
# nftables rules that drop packets from some addresses, before the kernel tracks connections.
DROP: Final = """table ip {name} {{
chain prerouting {{
type filter hook prerouting priority raw; policy accept;
ip saddr {{ {addresses} }} drop
}}
}}
"""


def why_not(step: StepTable, scenario: Scenario) -> str:
    """Return the reason why the kernel backend cannot execute a step, or an empty text if it
    can.
    """
    if step.name not in STEPS:
        return f"the kernel backend has no step `{step.name}`"
    if step.name in ("cut", "link.down", "link.up"):
        inner = {nat.id for nat in scenario.nats if nat.behind}
        inner |= {name for table in scenario.hosts if table.nat for name in table.names()}
        for name in members(targets_of(step.action), scenario):
            if name in inner:
                return f"`{name}` has no link of its own: it shares its gateway's"
    if isinstance(step.action, Partition):
        outer = outer_names(scenario)
        seen: dict[str, int] = {}
        for number, group in enumerate(step.action.groups):
            for name in members(group, scenario):
                if seen.setdefault(outer[name], number) != number:
                    return f"`{name}` shares a gateway with a host of another group"
    return ""


def members(words: tuple[str, ...], scenario: Scenario) -> list[str]:
    """Return the hosts and gateways to which the words of a step refer, each once."""
    groups = {table.name: table.names() for table in scenario.hosts}
    groups["all"] = [name for names in groups.values() for name in names]
    return list(dict.fromkeys(name for word in words for name in groups.get(word, [word])))


def outer_names(scenario: Scenario) -> dict[str, str]:
    """Map each host to its outermost gateway, or to itself if it is not behind a gateway."""
    behind = {nat.id: nat.behind for nat in scenario.nats}
    found = {}
    for table in scenario.hosts:
        for name in table.names():
            own = bool(table.nat) and table.nat not in behind
            at = table.behind or (f"{name}-gateway" if own else table.nat or name)
            while behind.get(at):
                at = behind[at]
            found[name] = at
    return found


Wall = tuple[Namespace, str]
"""A table of nftables rules that drops packets, given by its namespace and its name."""


@dataclass(slots=True)
class _Done:
    """Effects of a step, which are needed to undo it."""

    happening: Happening | None = None
    walls: list[Wall] = field(default_factory=list)


class KernelFaults:
    """Executor of a scenario's steps. `off` has the names of the crashed hosts.

    `start` is called with a host's name to start its daemon.
    """

    def __init__(
        self, scenario: Scenario, world: KernelWorld, start: Callable[[str], None]
    ) -> None:
        self.off: set[str] = set()
        """Names of the hosts that are switched off."""
        self.happenings: list[Happening] = []
        self._scenario = scenario
        self._world = world
        self._start = start
        self._walls: list[Wall] = []  # those of partitions that have not healed
        self._tables = 0  # number of tables made so far, to name them
        self._due = sorted(self._events(), key=lambda event: event[0])

    def _events(self) -> Iterator[tuple[float, Callable[[float], None]]]:
        """Yield (time in seconds, action) for the start and the end of each step."""
        for step in self._scenario.steps:
            done = _Done()
            yield step.at, partial(self._do, step, done)
            if step.lasts is not None:
                end = step.at + step.lasts
                yield end, partial(self._undo, step, done)

    def carry_out(self, now: float) -> None:
        """Execute every event that is due at `now`, in the order of their times."""
        while self._due and self._due[0][0] <= now:
            self._due.pop(0)[1](now)

    def _do(self, step: StepTable, done: _Done, now: float) -> None:
        """Execute a step and record it. Store in `done` what is needed to undo the step."""
        words = targets_of(step.action)
        names = members(words, self._scenario)
        if step.name == "crash":
            self._crash(names)
        elif step.name == "restart":
            self._crash(names)
            self._restart(names)
        elif isinstance(step.action, Partition):
            done.walls = self._partition(step.action)
            words = tuple(" ".join(group) for group in step.action.groups)
        elif step.name == "heal":
            self._heal(list(self._walls))
        else:
            self._cut(step, names, step.name != "link.up")
        done.happening = Happening(now, None, step.name, " ".join(words))
        self.happenings.append(done.happening)

    def _undo(self, step: StepTable, done: _Done, now: float) -> None:
        """End a step that had a `for`."""
        names = members(targets_of(step.action), self._scenario)
        if step.name == "crash":
            self._restart(names)
        elif step.name == "partition":
            self._heal(done.walls)
        else:
            self._cut(step, names, False)
        assert done.happening is not None
        done.happening.until = now

    def _crash(self, names: list[str]) -> None:
        """Kill the daemons of these hosts, unless they have crashed already."""
        for name in names:
            if name not in self.off:
                self._world.hosts[name].crash()
                self.off.add(name)

    def _restart(self, names: list[str]) -> None:
        """Start the daemons of those hosts that have crashed."""
        for name in names:
            if name in self.off:
                self._start(name)
                self.off.discard(name)

    def _cut(self, step: StepTable, names: list[str], cut: bool) -> None:
        """Cut the links of hosts or gateways, or repair them if `cut` is False.

        A `cut` step affects one direction, and the other steps both.
        """
        way = step.action.way if isinstance(step.action, Cut) else "both"
        for name in names:
            self._world.cut(
                name,
                up=cut and way != "down",
                down=cut and way != "up",
            )

    def _partition(self, action: Partition) -> list[Wall]:
        """Start to drop packets between the groups of a partition. Return the tables that do so.

        The tables are in the outermost gateways, and in the hosts without a gateway.
        """
        outer = outer_names(self._scenario)
        sides = [
            list(dict.fromkeys(outer[name] for name in members(group, self._scenario)))
            for group in action.groups
        ]
        walls: list[Wall] = []
        for number, side in enumerate(sides):
            senders = sides[:1] if action.oneway else sides
            others = [name for one in senders if one is not side for name in one]
            if not others or (action.oneway and number == 0):
                continue
            self._tables += 1
            table = f"partition{self._tables}"
            addresses = ", ".join(self._place(name).address for name in others)
            for name in side:
                space = self._place(name).space
                space.nft(DROP.format(name=table, addresses=addresses))
                walls.append((space, table))
        self._walls += walls
        return walls

    def _place(self, name: str) -> KernelGateway | KernelHost:
        """Return the gateway or host with this name."""
        return self._world.gateways.get(name) or self._world.hosts[name]

    def _heal(self, walls: list[Wall]) -> None:
        """Delete these tables of nftables rules, unless they have been deleted already."""
        for wall in walls:
            if wall in self._walls:
                self._walls.remove(wall)
                space, table = wall
                space.nft(f"delete table ip {table}\n")
