"""Run of a scenario: builds a world from a scenario and a seed, and a result from the world.

run = Run(scenario, seed=7)
result = run.go()
"""

from collections.abc import Callable, Iterator
from functools import partial

import trio

from ..errors import SimError
from ..faults import Faults
from ..host import Program
from ..population.churn import churn, power_off
from ..population.mix import Volunteer
from ..trace.trace import CountingTrace, Writable
from ..world import World
from .expect import InvariantWatch, judge
from .figures import figures, pairs
from .format import actions
from .format.metrics import Metrics
from .format.tables import Scenario
from .programs import daemon
from .result import MOST_DEEDS, HostFigures, PairMatrix, RunResult, pair_matrix, thinned
from .steps import StepRunner
from .topology import RunHost, Topology, latency, relay_program

Measured = tuple[Metrics, dict[str, list[float]], PairMatrix, list[HostFigures]]
"""The state at one time: metrics, samples of the distributions, matrix of pairs, and hosts."""
Progress = Callable[[float], None]
"""Function that is called at every sample with the virtual time in seconds."""


def _innermost(group: BaseExceptionGroup[SimError]) -> SimError:
    """Return the first error in an exception group, searching nested groups as well."""
    first = group.exceptions[0]
    return _innermost(first) if isinstance(first, BaseExceptionGroup) else first


class ScenarioRun:
    """One run of a scenario with one seed.

    `trace_file` receives the records of the trace. `progress` is called at every sample. `clock`
    returns the real time in seconds, because netsim itself never reads a real clock. If `until`
    (virtual seconds) is given, the run stops at that time.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        trace_file: Writable | None = None,
        progress: Progress | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        until: float | None = None,
    ) -> None:
        self.scenario = scenario
        self.seed = seed
        self.ledger = CountingTrace(file=trace_file)
        self.world = World(seed, trace=self.ledger, latency=latency(scenario))
        self.faults = Faults(self.world)
        """The faults of the scenario, which are carried out at their times."""
        self.topology = Topology(scenario, self.world)
        self.generations: list[tuple[str, float | None]] = []  # host, seconds (None: failed)
        self.steps = StepRunner(self.topology, self.faults, self._generate)
        self.watch = InvariantWatch(scenario, self.topology)
        self.series: dict[str, list[float]] = {
            "at": [], "sent": [], "delivered": [], "dropped": [], "up": [],
        }  # fmt: skip
        self._progress = progress
        self._clock = clock
        self._began = clock()
        self._until = scenario.sim.duration if until is None else until
        self._ended = "interrupted"
        self._final: Measured | None = None

    def go(self) -> RunResult:
        """Run to the end, and return the result.

        An exception of a program ends the run and is raised here. After that, `result` returns the
        figures up to that time.
        """
        self._began = self._clock()
        try:
            self.world.run(self._main)
        except BaseExceptionGroup as group:
            refused = group.subgroup(SimError)
            if refused is not None:
                raise _innermost(refused) from None
            # Errors during the shutdown (a full disk, for example) are not part of the run.
            if self._final is None or group.split(OSError)[1] is not None:
                raise
        return self.result()

    async def _main(self) -> None:
        """Start the programs and the steps, sample until the end, and measure."""
        async with trio.open_nursery() as nursery:
            for host in self.topology.relays:
                await host.start(relay_program())
            self._start_all(nursery)
            nursery.start_soon(self.steps.run, self.scenario.steps)
            await self._sample()
            self._ended = "done" if self._until >= self.scenario.sim.duration else "stopped"
            self._final = self._measure()
            nursery.cancel_scope.cancel()

    def _start_all(self, nursery: trio.Nursery) -> None:
        """Start each host's program at its time.

        If the scenario has a [churn] table, `churn` starts the programs of the population's hosts.
        """
        table = self.scenario.churn
        ours = set(self.topology.groups["population"]) if table is not None else set()
        for member in self.topology.members.values():
            if member.host.name not in ours:
                nursery.start_soon(self._start, member)
        if table is not None:
            program = self.scenario.world.program
            end = daemon.stop if program == "daemon" else power_off
            nursery.start_soon(partial(
                churn, self.faults, self.topology.volunteers, self._program_of,
                model=table.model, stop=end,
            ))  # fmt: skip

    def _program_of(self, one: Volunteer) -> Program[object]:
        """Return the program of a volunteer's host."""
        return self.topology.members[one.name].program

    async def _start(self, member: RunHost) -> None:
        """Start a host's program at its time, unless the host is off at that time."""
        await trio.sleep_until(member.start)
        if not member.host.up:
            return
        await member.host.start(member.program)

    async def _generate(self, member: RunHost, action: actions.MakeText) -> None:
        """Generate text with a host's daemon, and record the time that it took."""
        took = await daemon.generate(member.host, action)
        self.generations.append((member.host.name, took))

    # Samples.

    def _moments(self) -> Iterator[float]:
        """Yield the times of the samples, in virtual seconds.

        They are the multiples of the interval `sample`, the deadlines of invariants, and the end.
        """
        every = self.scenario.sim.sample
        count = int(self._until / every)
        moments = {number * every for number in range(1, count + 1)}
        moments.update(self.watch.deadlines())
        return iter(sorted({moment for moment in moments if moment < self._until} | {self._until}))

    async def _sample(self) -> None:
        """Record the series and check the invariants at the time of each sample, until the end."""
        network = self.world.network
        for moment in self._moments():
            await trio.sleep_until(moment)
            for name, value in (
                ("at", moment), ("sent", network.sent), ("delivered", network.delivered),
                ("dropped", network.dropped), ("up", self._up()),
            ):  # fmt: skip
                self.series[name].append(value)
            self.watch.look(moment)
            if self._progress is not None:
                self._progress(moment)

    def _measure(self) -> "Measured":
        """Compute the metrics and figures from the present state."""
        metrics, samples = figures(self)
        hosts = [self._host(member) for member in self.topology.members.values()]
        return metrics, samples, pair_matrix(*pairs(self.topology)), hosts

    def _up(self) -> int:
        """Return the number of hosts that are switched on."""
        return sum(member.host.up for member in self.topology.members.values())

    # The result.

    def result(self) -> RunResult:
        """Return the result of the run, or the result so far if the run has not ended.

        Expectations get verdicts only after a complete run.
        """
        metrics, samples, matrix, hosts = self._final or self._measure()
        return RunResult(
            name=self.scenario.sim.name,
            seed=self.seed,
            duration=self.scenario.sim.duration,
            virtual=min(self.world.events.now, self._until),
            real=self._clock() - self._began,
            digest=self.ledger.digest,
            records=self.ledger.count,
            ended=self._ended,
            metrics=metrics,
            samples={name: thinned(values) for name, values in samples.items()},
            hosts=hosts,
            pairs=matrix,
            series=self.series,
            happenings=sorted(self.steps.happenings, key=lambda item: item.at),
            deeds=[
                (deed.time, deed.what, " ".join(deed.targets), deed.detail)
                for deed in self.faults.timeline[:MOST_DEEDS]
            ],
            verdicts=judge(self.scenario, metrics, self.watch) if self._ended == "done" else [],
        )

    def _host(self, member: RunHost) -> HostFigures:
        """Return the figures of one host."""
        return HostFigures(
            name=member.host.name,
            kind=member.kind,
            program=member.program_name,
            site=member.site,
            up=member.host.up,
            counters=self.ledger.counters(member.host.name),
        )
