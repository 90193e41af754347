"""Expectations: metrics compared at the end, and invariants checked during the run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .format.metrics import OPERATORS, Metrics, value_of
from .format.parse import moments_after
from .format.tables import Expect, Scenario
from .programs import Echo, daemon
from .result import Verdict
from .topology import Topology

Invariant = Callable[[Topology, float], bool]
"""Whether it holds now, as a consequence of what happened since a moment (seconds)."""


@dataclass(slots=True)
class Wait:
    """One moment after which an invariant has to hold within a time."""

    expect: Expect
    since: float
    reached: float | None = None

    @property
    def deadline(self) -> float:
        return self.since + self.expect.within


class Watch:
    """Checks the invariants of a scenario at every sample."""

    def __init__(self, scenario: Scenario, topology: Topology) -> None:
        self._topology = topology
        self.waits = [
            Wait(expect, since)
            for expect in scenario.expects
            if expect.invariant
            for since in (moments_after(scenario.steps, expect.after) if expect.after else [0.0])
        ]

    def deadlines(self) -> list[float]:
        """Return the latest moments at which the invariants have to hold."""
        return [wait.deadline for wait in self.waits]

    def look(self, now: float) -> None:
        """Record which invariants hold now."""
        for wait in self.waits:
            due = wait.reached is None and wait.since < now <= wait.deadline
            if due and INVARIANTS[wait.expect.invariant](self._topology, wait.since):
                wait.reached = now - wait.since

    def verdict(self, expect: Expect) -> Verdict:
        """Return the verdict on an invariant; the slowest of its moments decides."""
        mine = [wait.reached for wait in self.waits if wait.expect is expect]
        times = [reached for reached in mine if reached is not None]
        met = len(times) == len(mine)
        slowest = max(times) if met else None
        return Verdict(str(expect), met, slowest, expect.line, expect.found(slowest))


def judge(scenario: Scenario, metrics: Metrics, watch: Watch) -> list[Verdict]:
    """Return a verdict for each expectation, in the order of the file."""
    return [
        watch.verdict(expect) if expect.invariant else compare(expect, metrics)
        for expect in scenario.expects
    ]


def compare(expect: Expect, metrics: Metrics) -> Verdict:
    """Return the verdict on a metric; it fails if nothing was measured."""
    found = value_of(expect.metric, metrics)
    met = found is not None and OPERATORS[expect.op](found, expect.value)
    return Verdict(str(expect), met, found, expect.line, expect.found(found))


# The invariants.


def _answered(topology: Topology, since: float) -> bool:
    running = {member.host.name: member.program for member in topology.running("udp-echo")}
    for program in running.values():
        assert isinstance(program, Echo)
        for target in program.targets:
            if target in running and program.result.last_answer.get(target, -1.0) < since:
                return False
    return bool(running)


def _links(topology: Topology) -> dict[str, set[str]]:
    """Return, for each running daemon, the other running ones to which it has a link."""
    hosts = [member.host for member in topology.running("daemon")]
    peers = {daemon.peer(host): daemon.linked(host) for host in hosts}
    return {peer: linked & peers.keys() for peer, linked in peers.items()}


def is_connected(links: Mapping[str, set[str]]) -> bool:
    """Whether a graph is connected; links are listed at both ends."""
    todo: list[str] = list(links)[:1]
    seen = set(todo)
    while todo:
        for peer in links[todo.pop()]:
            if peer not in seen:
                seen.add(peer)
                todo.append(peer)
    return bool(links) and len(seen) == len(links)


def is_complete(links: Mapping[str, set[str]]) -> bool:
    """Whether a graph has every possible link."""
    return bool(links) and all(len(linked) == len(links) - 1 for linked in links.values())


def _connected(topology: Topology, _: float) -> bool:
    return is_connected(_links(topology))


def _linked(topology: Topology, _: float) -> bool:
    return is_complete(_links(topology))


def _members(topology: Topology, _: float) -> bool:
    hosts = [member.host for member in topology.running("daemon")]
    wanted = {daemon.peer(host) for host in hosts}
    return bool(hosts) and all(wanted <= daemon.known(host) for host in hosts)


INVARIANTS: Final[dict[str, Invariant]] = {
    "answered": _answered,
    "connected": _connected,
    "linked": _linked,
    "members": _members,
}
