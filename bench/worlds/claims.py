"""Twenty nodes that share jobs on the simulator's network, and the faults on them."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from random import Random
from typing import Any, Final, cast

from shoal.netsim.faults import Rule
from shoal.netsim.seeds import Figures
from shoal.state import defaults
from shoal.state.feeds.entry import Entry, FeedName
from shoal.state.feeds.feed import EntryVerdict
from shoal.state.feeds.writer import FeedWriter
from shoal.state.replication.replicafeeds import Watcher
from shoal.state.views.jobs import (
    Claim,
    Job,
    Jobs,
    JobStanding,
    JobState,
    claim_fact,
    job_fact,
    job_id,
)
from shoal.state.views.views import Views
from shoal.tasks.jobs.claimant import Claimant, JobHandling
from shoal.tasks.jobs.crew import WorkerRing, patience
from shoal.transport.identity import PeerId, public_key_of

from .replicanode import ReplicaNode, SharedReplica, at_once
from .replicas import Swarm
from .ringnode import WALL

NODES: Final = 20
JOBS: Final = 1_000
SUBMITTERS: Final = 4
LEASE_S: Final = 45.0
WORK_S: Final = (10.0, 60.0)
SPEEDS: Final = (0.5, 2.0)
CUTS: Final = 6
CUT_S: Final = (30.0, 300.0)
DEAD, BACK = 2, 2
DISK_S: Final = (0.01, 0.25)  # until its own entry is stored
IDLE_S: Final = 1.0  # between two searches for a job
NOTICED_S: Final = 5.0  # until a silent node is noticed
STEPS: Final = 4  # of the clock of a node
TWINS: Final = ("no attempts", "by the wall clock", "no shares")
SETTLE_S: Final = 60.0  # from the first packet until all nodes know all jobs


class OneAttempt(Claimant):
    """Twin that never starts another attempt at a job."""

    def _is_stuck(self, job: Job, claim: Claim, now: float) -> bool:
        return False


class ByClock(Claimant):
    """Twin for which a claim is void once its lease has ended by the wall clock."""

    def _place(self, standing: JobStanding, job: Job, now: float) -> int | None:
        claim = standing.claim
        if (
            claim
            and not claim.done
            and claim.claimant != self._own
            and cast(Node, self._workers).void(claim)
        ):
            standing = JobStanding(standing.id, job, None)
        return super()._place(standing, job, now)


CLAIMANTS: Final = {"no attempts": OneAttempt, "by the wall clock": ByClock}


class Node(ReplicaNode, Watcher):
    """A node: its copies of feeds, its views, and its current work.

    `number` and `sim` are set before it begins. A node that comes back is another object with the
    archive of the first.
    """

    sim: "Sim"
    number: int

    def prepare(self, sim: "Sim", number: int) -> None:
        """Start the process; it knows only its feeds."""
        self.sim, self.number, self.time = sim, number, sim.now
        self.views = Views()
        self.jobs = self.views.jobs
        self.watch = self.jobs.watch()
        self.last_word: dict[str, PeerId] = {}
        self.running, self.step_number = "", 0
        self.flushing = False
        at_once(self.replica.grouped(sim.peers))
        at_once(self.replica.restore())
        self.replica.watchers.append(self)
        own = {kind: FeedName(self.peer, kind, 0) for kind in ("jobs", "claims")}
        feeds = {name: at_once(self.replica.own_feed(name)) for name in own.values()}
        self.writer = FeedWriter(self.identity, feeds.__getitem__, lot=self._random.randrange)
        for peer in sim.peers:
            for kind in own:
                facts = at_once(self.replica.facts(public_key_of(peer), (kind, 0)))
                self.views.restored(FeedName(peer, kind, 0), facts)
        self.shares = WorkerRing()
        for peer in sim.peers if sim.twin != "no shares" else ():
            self.shares.add(peer)
        self.claimant = CLAIMANTS.get(sim.twin, Claimant)(
            self.peer, self.jobs, self, JobHandling(lambda job: True)
        )
        for job in self.claimant.known():
            self.claimant.noticed(job, self.clock())

    def takes(self, entry: Entry) -> bool:
        return self.writer.takes(entry, self.time)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` later, unless this process ends before."""
        self.at(self.time + seconds, action)

    def begin(self) -> None:
        super().begin()
        self.after(self._random.random(), self.idle)

    # Its clocks, and the peers that it hears.

    def clock(self) -> float:
        """Return the monotonic clock, in seconds since an arbitrary time."""
        return self.sim.since_boot[self.number] + self.time * self.sim.drifts[self.number]

    def wall(self) -> float:
        return self.time + self.sim.stepped[self.number]

    def void(self, claim: Claim) -> bool:
        return self.wall() - self.sim.made[claim.claimant, claim.job] > LEASE_S

    def silent(self, peer: PeerId) -> float:
        since = self.sim.away[self.number].get(self.sim.numbers[peer])
        return 0.0 if since is None else max(0.0, self.time - since - NOTICED_S)

    def patience(self) -> float:
        silences = [self.silent(peer) for peer in self.sim.peers]
        lately = [each for each in silences if each < defaults.CLAIM_PATIENCE[1]]
        return patience(sum(map(bool, lately)), len(lately))

    # Feeds.

    def submit(self, job: Job, nonce: bytes) -> None:
        self.writer.set("jobs", 0, job.id, job_fact(job, nonce))
        self.flush_soon()

    def say(self, job: str, claim: Claim | None) -> None:
        """Write into its own feed: the entry is stored soon, then announced."""
        self.sim.made[self.peer, job] = self.wall()
        self.writer.set("claims", 0, job, None if claim is None else claim_fact(claim))
        self.flush_soon()

    def flush_soon(self) -> None:
        wait = self.writer.wake(self.time)
        if wait is not None and not self.flushing:
            self.flushing = True
            self.after(max(wait, self._random.uniform(*DISK_S)), self.flush)

    def flush(self) -> None:
        self.flushing = False
        wall_ms = int((WALL + self.wall()) * 1000)
        if entries := self.writer.flush(self.time, wall_ms):
            self.start(self.exchange.write(entries, self.writer.stored))
        self.flush_soon()

    def changed(self, name: FeedName, verdict: EntryVerdict) -> None:
        for _ in self.steps(name, verdict):
            pass

    def steps(self, name: FeedName, verdict: EntryVerdict) -> Iterator[None]:
        """Follow an entry that was taken in, its own or another's."""
        yield from self.views.steps(name, verdict)
        for key, value in verdict.changed.items():
            if name.kind == "claims" and value is not None and b"done" in value:
                self.last_word[key] = name.author

    def dropped(self, author: PeerId) -> None:
        self.views.dropped(author)

    def _pump(self) -> None:
        super()._pump()
        while (change := self.watch.next_now()) is not None:
            for job in [change.subject] if change.subject else self.claimant.running:
                if self.claimant.noticed(job, self.clock()):
                    self.leave(job)

    # Work.

    def idle(self) -> None:
        self.after(IDLE_S, self.idle)
        self.seek()

    def seek(self) -> None:
        """Begin a job if there is one."""
        if self.running or self.sim.now < SETTLE_S:
            return
        claim = self.claimant.next(self.clock())
        if claim is not None:
            self.running, self.step_number = claim.job, 0
            self.say(claim.job, claim)
            seconds = self.sim.work[claim.job] / self.sim.speeds[self.number]
            execution = self.execution = object()
            self.after(seconds, lambda: self.finish(execution))
            self.after(LEASE_S / 2, lambda: self.step(execution))

    def step(self, execution: object) -> None:
        if execution is self.execution and self.running:
            self.step_number += 1
            self.say(self.running, self.claimant.step(self.running, self.step_number))
            self.after(LEASE_S / 2, lambda: self.step(execution))

    def finish(self, execution: object) -> None:
        if execution is self.execution and self.running:
            job, self.running = self.running, ""
            self.sim.completed(job)
            self.say(job, self.claimant.finish(job, b"result"))
            self.seek()

    def leave(self, job: str) -> None:
        assert job == self.running
        self.running = ""
        self.sim.left += 1
        self.say(job, None)


class Sim:
    """Twenty nodes on the simulator's network, and the faults on them."""

    def __init__(self, seed: int, jobs: int, twin: str = "") -> None:
        self.random = rng = Random(seed)
        self.swarm = Swarm(seed)
        self.twin = twin
        self.left = 0  # executions that yielded to another claim
        self.executions: dict[str, list[float]] = {}  # when a job was completed
        self.speeds = [rng.uniform(*SPEEDS) for _ in range(NODES)]
        self.drifts = [1 + rng.uniform(-2e-4, 2e-4) for _ in range(NODES)]
        self.since_boot = [rng.uniform(0, 1e6) for _ in range(NODES)]
        self.stepped = [0.0] * NODES  # seconds by which wall clocks are off
        self.away: list[dict[int, float]] = [
            {} for _ in range(NODES)
        ]  # the nodes that a node cannot reach, and since when
        self.up = [True] * NODES
        self.cuts: list[frozenset[int]] = []
        self.made: dict[tuple[PeerId, str], float] = {}  # by the wall clock of the claimant
        self.work: dict[str, float] = {}
        self.nodes = [self.swarm.add(Node) for _ in range(NODES)]
        self.peers = [node.peer for node in self.nodes]
        self.numbers = {peer: number for number, peer in enumerate(self.peers)}
        for number, node in enumerate(self.nodes):
            node.prepare(self, number)
        self.swarm.introduce()
        for number, node in enumerate(self.nodes):
            for other in self.nodes[:number]:
                self.swarm.connect(node, other)
        self.swarm.begin()
        self.submit(jobs)
        self.fates: list[tuple[float, float, float]] = []  # from, to, speed that is missing
        self.ideal = sum(self.work.values()) / sum(self.speeds)
        self.plan()
        self.ideal = self.least()

    @property
    def now(self) -> float:
        return self.swarm.now

    def at(self, when: float, action: Callable[[Any], None], what: Any = None) -> None:
        self.swarm.world.events.at(when, action, what)

    def submit(self, jobs: int) -> None:
        """Submit the jobs from a few nodes, all at the beginning."""
        for number in range(jobs):
            node, nonce = self.nodes[number % SUBMITTERS], number.to_bytes(16)
            job = Job(job_id(node.peer, nonce), node.peer, "sum", lease=LEASE_S)
            self.work[job.id] = self.random.uniform(*WORK_S)
            self.swarm.call(node, partial(node.submit, job, nonce))

    def plan(self) -> None:
        """Plan partitions, deaths and clock steps within the minimum time of the work."""
        rng = self.random
        time_of = partial(rng.uniform, SETTLE_S, SETTLE_S + self.ideal)
        for _ in range(CUTS):
            few = frozenset(rng.sample(range(NODES), rng.randrange(1, NODES // 2 + 1)))
            self.at(time_of(), self.cut, (few, rng.uniform(*CUT_S)))
        for index, number in enumerate(rng.sample(range(SUBMITTERS, NODES), DEAD + BACK)):
            begin, end = time_of(), inf
            self.at(begin, self.crash, number)
            if index >= DEAD:
                end = begin + rng.uniform(*CUT_S)
                self.at(end, self.come_back, number)
            self.fates.append((begin - SETTLE_S, end - SETTLE_S, self.speeds[number]))
        for number in range(NODES):
            for _ in range(STEPS):
                self.at(time_of(), self.jump, (number, rng.choice((-3600.0, 3600.0))))

    def jump(self, what: tuple[int, float]) -> None:
        number, seconds = what
        self.stepped[number] += seconds

    def cut(self, what: tuple[frozenset[int], float]) -> None:
        """Cut some nodes off from the others for a while. Two partitions at a time make
        four sides.
        """
        few, seconds = what
        names = [self.swarm.hosts[peer].name for peer in self.peers]
        ones = [names[number] for number in sorted(few)]
        others = [name for name in names if name not in ones]
        rules = self.swarm.faults.partition(ones, others)
        self.cuts.append(few)
        self.see()
        self.at(self.now + seconds, self.mend, (few, rules))

    def mend(self, what: tuple[frozenset[int], list[Rule]]) -> None:
        few, rules = what
        self.swarm.faults.heal(*rules)
        self.cuts.remove(few)
        self.see()

    def crash(self, number: int) -> None:
        self.up[number] = False
        self.swarm.hosts[self.peers[number]].crash()
        self.see()

    def come_back(self, number: int) -> None:
        """Start a new process on the same disk."""
        before = self.nodes[number]
        node = Node(
            before.identity,
            self.swarm.world.streams.get(f"n{number}", "again"),
            self.swarm.where,
            self.swarm.names,
            archive=before.archive,
            replica=SharedReplica,
        )
        node.prepare(self, number)
        self.nodes[number] = self.swarm.nodes[number] = node
        self.swarm.hosts[node.peer].restart(node)
        self.up[number] = True
        self.swarm.introduce()
        self.swarm.call(node, node.begin)
        self.see()

    def reach(self, one: int, other: int) -> bool:
        apart = any((one in few) != (other in few) for few in self.cuts)
        return self.up[one] and self.up[other] and not apart

    def see(self) -> None:
        """Update which nodes can reach each other."""
        for one in range(NODES):
            for other in range(NODES):
                if one == other or self.reach(one, other):
                    self.away[one].pop(other, None)
                else:
                    self.away[one].setdefault(other, self.now)

    def least(self) -> float:
        """Return when the running nodes could have done all work: their speed, piece by piece."""
        work, now, full = sum(self.work.values()), 0.0, sum(self.speeds)
        for edge in [*sorted({t for fate in self.fates for t in fate[:2]}), inf]:
            speed = full - sum(lost for begin, end, lost in self.fates if begin <= now < end)
            if (edge - now) * speed >= work:
                return now + work / speed
            work, now = work - (edge - now) * speed, edge
        raise AssertionError

    def completed(self, job: str) -> None:
        self.executions.setdefault(job, []).append(self.now - SETTLE_S)

    def run(self) -> Figures:
        began = time.process_time()
        end = SETTLE_S + 3 * self.ideal
        while len(self.executions) < len(self.work) and self.now < end:
            self.swarm.advance(5.0)
        makespan = max(min(times) for times in self.executions.values())
        over = max(self.now, SETTLE_S + self.ideal + CUT_S[1]) + 60.0
        self.swarm.advance(over - self.now)
        up = [node for node, is_up in zip(self.nodes, self.up, strict=True) if is_up]
        views = [{job: winner(node.jobs, job) for job in self.work} for node in up]
        done = [job for job in self.work if all(view[job] for view in views)]
        count = sum(map(len, self.executions.values()))
        return {
            "undone": len(self.work) - len(done),
            "two_winners": sum(len({view[job] for view in views}) > 1 for job in self.work),
            "last_word_two": sum(len({n.last_word.get(job) for n in up}) > 1 for job in self.work),
            "reruns": (count - len(self.executions)) / len(self.work),
            "makespan": makespan / self.ideal,
            "makespan_s": round(makespan, 1),
            "gave_way": self.left,
            "packets": self.swarm.world.network.sent,
            "cpu_s": round(time.process_time() - began, 2),
        }


def winner(jobs: Jobs, job: str) -> PeerId | None:
    """Return the claimant whose result a view shows."""
    standing = jobs.get(job)
    done = standing is not None and standing.state is JobState.DONE
    return standing.claim.claimant if standing and done and standing.claim else None
