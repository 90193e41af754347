"""Checks of a scenario's expectations.

A metric is compared at the end of the run. An invariant is checked at every sample.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .format.metrics import OPERATORS, Metrics, value_of
from .format.parse import moments_after
from .format.tables import Expect, Scenario
from .programs import Echo, daemon
from .result import ExpectationVerdict
from .topology import Topology

Invariant = Callable[[Topology, float], bool]
"""Function that returns whether an invariant holds now, given the topology and a time in seconds.
Events before that time are ignored.
"""


@dataclass(slots=True)
class Wait:
    """Check of one invariant after one event: it must hold within `expect.within` seconds of
    `since`.

    `since` is in virtual seconds. `reached` is the number of seconds from `since` until the
    invariant was first seen to hold, or None if it has not held yet.
    """

    expect: Expect
    since: float
    reached: float | None = None

    @property
    def deadline(self) -> float:
        """The virtual time, in seconds, by which the invariant has to hold."""
        return self.since + self.expect.within


class InvariantWatch:
    """Checker of a scenario's invariants. The run calls `look` at every sample."""

    def __init__(self, scenario: Scenario, topology: Topology) -> None:
        self._topology = topology
        self.waits = [
            Wait(expect, since)
            for expect in scenario.expects
            if expect.invariant
            for since in (moments_after(scenario.steps, expect.after) if expect.after else [0.0])
        ]
        """Expectations that wait for an event."""

    def deadlines(self) -> list[float]:
        """Return the virtual times, in seconds, by which the invariants have to hold."""
        return [wait.deadline for wait in self.waits]

    def look(self, now: float) -> None:
        """Check each invariant that has not held yet and whose deadline is not over. Record those
        that hold at `now`.
        """
        for wait in self.waits:
            due = wait.reached is None and wait.since < now <= wait.deadline
            if due and INVARIANTS[wait.expect.invariant](self._topology, wait.since):
                wait.reached = now - wait.since

    def verdict(self, expect: Expect) -> ExpectationVerdict:
        """Return the verdict on an invariant, which must hold after every event that it waits for.

        The value found is the longest time, in seconds, that the invariant took to hold. It is
        None, and the expectation fails, if the invariant missed a deadline.
        """
        mine = [wait.reached for wait in self.waits if wait.expect is expect]
        times = [reached for reached in mine if reached is not None]
        met = len(times) == len(mine)
        slowest = max(times) if met else None
        return ExpectationVerdict(str(expect), met, slowest, expect.line, expect.found(slowest))


def judge(scenario: Scenario, metrics: Metrics, watch: InvariantWatch) -> list[ExpectationVerdict]:
    """Return a verdict for each expectation, in the order in which the file lists them."""
    return [
        watch.verdict(expect) if expect.invariant else compare(expect, metrics)
        for expect in scenario.expects
    ]


def compare(expect: Expect, metrics: Metrics) -> ExpectationVerdict:
    """Compare a metric with its expected value, and return the verdict.

    The expectation fails if the run has no measurement for the metric.
    """
    found = value_of(expect.metric, metrics)
    met = found is not None and OPERATORS[expect.op](found, expect.value)
    return ExpectationVerdict(str(expect), met, found, expect.line, expect.found(found))


# The invariants.


def _answered(topology: Topology, since: float) -> bool:
    """Return whether each running udp-echo host has had an echo from each target after `since`.

    Targets that are not running are ignored.
    """
    running = {member.host.name: member.program for member in topology.running("udp-echo")}
    for program in running.values():
        assert isinstance(program, Echo)
        for target in program.targets:
            if target in running and program.result.last_answer.get(target, -1.0) < since:
                return False
    return bool(running)


def _links(topology: Topology) -> dict[str, set[str]]:
    """Map each running daemon to the other running daemons to which it has a link, by peer id."""
    hosts = [member.host for member in topology.running("daemon")]
    peers = {daemon.peer(host): daemon.linked(host) for host in hosts}
    return {peer: linked & peers.keys() for peer, linked in peers.items()}


def is_connected(links: Mapping[str, set[str]]) -> bool:
    """Return whether a graph is connected. `links` lists each link at both of its ends.

    A graph without nodes is not connected.
    """
    todo: list[str] = list(links)[:1]
    seen = set(todo)
    while todo:
        for peer in sorted(links[todo.pop()]):
            if peer not in seen:
                seen.add(peer)
                todo.append(peer)
    return bool(links) and len(seen) == len(links)


def is_complete(links: Mapping[str, set[str]]) -> bool:
    """Return whether every node of a graph is linked to every other.

    An empty graph is not complete.
    """
    return bool(links) and all(len(linked) == len(links) - 1 for linked in links.values())


def _connected(topology: Topology, _: float) -> bool:
    """Return whether the links of the running daemons form one connected graph."""
    return is_connected(_links(topology))


def _linked(topology: Topology, _: float) -> bool:
    """Return whether every running daemon has a link to every other."""
    return is_complete(_links(topology))


def _members(topology: Topology, _: float) -> bool:
    """Return whether every running daemon considers all the running daemons alive."""
    hosts = [member.host for member in topology.running("daemon")]
    wanted = {daemon.peer(host) for host in hosts}
    return bool(hosts) and all(wanted <= daemon.known(host) for host in hosts)


INVARIANTS: Final[dict[str, Invariant]] = {
    "answered": _answered,
    "connected": _connected,
    "linked": _linked,
    "members": _members,
}
