"""Twenty nodes do a thousand jobs through partitions, crashes and clocks that jump by an hour.

Each node has the real view of jobs and the real `Claimant`; feeds come by a model: a change reaches
who can be reached within half a second, one push in twenty is lost, and every second a node takes
what it lacks from one that it can reach. Wall clocks jump by an hour up or down, monotonic ones
are off by up to 200 ppm. In each seed there are six cuts of half a minute to five minutes,
two nodes that die for good and two that come back with nothing but their feeds. Jobs take 10 to
60 s on a machine of speed 1; machines have 0.5 to 2; a holder that shows nothing for 45 s is tried
again. Ideal is when the machines that were up could have done all work with no word between them.

`value` is the most reruns of any seed: completed executions beyond one a job, by jobs; goal 0.05.
`ok` asks besides, of each seed: every job is done, every view shows the same winners, and it took
at most 1.5 x ideal. Beside it the twins: of how many jobs two views would show two winners if the
last word heard counted; and, for the first 5 seeds, how many jobs are never done where no further
attempt is made, how many executions give way (beside `gave_way`) where a claim is void once its
lease is over by the wall clock, and the reruns where no job falls to anybody first.

`--out FILE` keeps a line a seed, and goes on from there after a stop. `-j` seeds at a time.
`--quick` is 5 seeds.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from random import Random
from typing import Any, Final

import msgpack

from shoal.netsim.clock import Events
from shoal.netsim.seeds import Figures, Ledger
from shoal.state import defaults
from shoal.state.claimant import Claimant, patience
from shoal.state.claims import Claim, claim_fact
from shoal.state.entry import FeedName
from shoal.state.shares import Shares
from shoal.state.views.fact import read_fields
from shoal.state.views.jobs import Job, Jobs, Standing, State, job_fact, job_id
from shoal.transport.identity import PeerId, peer_id_of

MEASURES = ("state", "netsim", "transport/identity.py")

NODES: Final = 20
JOBS: Final = 1_000
SUBMITTERS: Final = 4
LEASE_S: Final = 45.0
WORK_S: Final = (10.0, 60.0)
SPEEDS: Final = (0.5, 2.0)
CUTS: Final = 6
CUT_S: Final = (30.0, 300.0)
DEAD, BACK = 2, 2
NOTICED_S: Final = 5.0  # until a silent node counts as one
STEPS: Final = 4  # of the clock of a node
TWINS: Final = ("no attempts", "by the wall clock", "no shares")
TWIN_SEEDS: Final = 5
GOALS: Final = {"reruns": 0.05, "makespan": 1.5}


class OneAttempt(Claimant):
    """The twin that never tries again what another holds."""

    def _is_stuck(self, job: Job, claim: Claim, now: float) -> bool:
        return False


class ByClock(Claimant):
    """The twin by whose wall clock a claim is void once its lease is over."""

    void: Callable[[Claim], bool]

    def _place(self, standing: Standing, job: Job, now: float) -> int | None:
        claim = standing.claim
        if claim and not claim.done and claim.claimant != self._own and self.void(claim):
            standing = Standing(standing.id, job, None)
        return super()._place(standing, job, now)


KINDS: Final = {"no attempts": OneAttempt, "by the wall clock": ByClock}


@dataclass(slots=True, eq=False)
class Log:
    """An author's feed of one kind, as the list of its changes."""

    name: FeedName
    changes: list[tuple[str, Any]] = field(default_factory=list)


class Node:
    """A node: what it has of each feed, its view, and what it is doing."""

    def __init__(self, sim: "Sim", number: int) -> None:
        self.sim = sim
        self.number = number
        self.peer: PeerId = peer_id_of(number.to_bytes(32))
        self.speed = sim.random.uniform(*SPEEDS)
        self.drift = 1 + sim.random.uniform(-2e-4, 2e-4)
        self.since_boot = sim.random.uniform(0, 1e6)
        self.stepped = 0.0  # seconds that its wall clock is off
        self.up = True
        self.side = 0
        self.away: dict[int, float] = {}  # since when a node cannot be reached
        self.have: dict[FeedName, int] = {}
        self.log = Log(FeedName(self.peer, "claims", 0))
        self.jobs = Jobs()
        self.watch = self.jobs.watch()
        self.last_word: dict[str, PeerId] = {}
        self.boot()

    def boot(self) -> None:
        """The process begins: nothing but the feeds is left of the one before."""
        shares = Shares()
        for number in range(NODES if self.sim.twin != "no shares" else 0):
            shares.add(peer_id_of(number.to_bytes(32)))
        kind = KINDS.get(self.sim.twin, Claimant)
        self.claimant = kind(
            self.peer,
            self.jobs,
            shares,
            willing=lambda job: True,
            silent=self.silent,
            patience=self.patience,
        )
        if isinstance(self.claimant, ByClock):
            self.claimant.void = self.void
        for job in self.claimant.known():
            self.claimant.noticed(job, self.clock())
        self.job = ""
        self.turn = object()  # of what it is doing

    def clock(self) -> float:
        """The monotonic clock, in seconds since some time."""
        return self.since_boot + self.sim.events.now * self.drift

    def void(self, claim: Claim) -> bool:
        made = self.sim.made[claim.claimant, claim.job]
        return self.wall() - made > LEASE_S

    def wall(self) -> float:
        return self.sim.events.now + self.stepped

    def silent(self, peer: PeerId) -> float:
        number = self.sim.numbers[peer]
        since = self.away.get(number)
        return 0.0 if since is None else max(0.0, self.sim.events.now - since - NOTICED_S)

    def patience(self) -> float:
        silences = [self.silent(node.peer) for node in self.sim.nodes]
        lately = [each for each in silences if each < defaults.CLAIM_PATIENCE[1]]
        return patience(sum(map(bool, lately)), len(lately))

    def reaches(self, other: "Node") -> bool:
        return self.up and other.up and self.side == other.side

    # Feeds.

    def write(self, job: str, claim: Claim | None) -> None:
        """Into its own feed: stored soon, then told."""
        self.sim.made[self.peer, job] = self.wall()
        value = None if claim is None else msgpack.packb(claim_fact(claim))
        turn, delay = self.sim.boots[self.number], self.sim.random.uniform(0.01, 0.25)
        self.sim.after(delay, self.stored, (turn, job, value))

    def stored(self, what: tuple[int, str, bytes | None]) -> None:
        turn, job, value = what
        if not self.up or turn != self.sim.boots[self.number]:
            return
        self.log.changes.append((job, value))
        self.take(self.log, len(self.log.changes))
        for other in self.sim.nodes:
            if other is not self and self.sim.random.random() > 0.05:
                self.sim.after(self.sim.random.uniform(0.03, 0.5), other.told, (self, self.log))

    def told(self, what: tuple["Node", Log]) -> None:
        by, log = what
        if self.reaches(by):
            self.take(log, by.have.get(log.name, 0))

    def take(self, log: Log, until: int) -> None:
        """Have a feed up to some entry, and see what it changes."""
        for key, value in log.changes[self.have.get(log.name, 0) : until]:
            self.jobs.changed(log.name, key, None if value is None else read_fields(value))
            if value is not None and b"done" in value and log.name.kind == "claims":
                self.last_word[key] = log.name.author
        self.have[log.name] = max(until, self.have.get(log.name, 0))
        while (change := self.watch.next_now()) is not None:
            gone = [change.subject] if change.subject else self.claimant.running
            for job in gone:
                if self.claimant.noticed(job, self.clock()):
                    self.leave(job)
        if not self.job:
            self.sim.after(0.0, self.look)

    def gossip(self, _: None) -> None:
        """What it lacks, from one that it can reach."""
        self.sim.after(self.sim.random.uniform(0.8, 1.2), self.gossip)
        other = self.sim.random.choice(self.sim.nodes)
        if other is self or not self.reaches(other):
            return
        for log in self.sim.logs:
            if other.have.get(log.name, 0) > self.have.get(log.name, 0):
                self.take(log, other.have[log.name])

    # Work.

    def look(self, _: None = None) -> None:
        """Begin something where there is something to do."""
        if not self.up or self.job:
            return
        claim = self.claimant.next(self.clock())
        if claim is None:
            return
        self.job, self.turn = claim.job, object()
        self.write(claim.job, claim)
        seconds = self.sim.work[claim.job] / self.speed
        self.sim.after(seconds, self.finish, self.turn)
        for part in range(1, int(seconds / (LEASE_S / 2)) + 1):
            self.sim.after(part * LEASE_S / 2, self.step, (self.turn, part))

    def idle(self, _: None) -> None:
        self.sim.after(1.0, self.idle)
        self.look()

    def step(self, what: tuple[object, int]) -> None:
        if what[0] is self.turn:
            self.write(self.job, self.claimant.step(self.job, what[1]))

    def finish(self, turn: object) -> None:
        if turn is self.turn:
            job, self.job, self.turn = self.job, "", object()
            self.sim.completed(job)
            self.write(job, self.claimant.finish(job, b"result"))
            self.look()

    def leave(self, job: str) -> None:
        assert job == self.job
        self.job, self.turn = "", object()
        self.sim.left += 1
        self.write(job, None)

    # Fate.

    def crash(self, _: None) -> None:
        self.up, self.turn = False, object()
        self.sim.boots[self.number] += 1
        self.sim.see()

    def come_back(self, _: None) -> None:
        self.up = True
        self.boot()
        self.sim.see()

    def jump(self, seconds: float) -> None:
        self.stepped += seconds


class Sim:
    """Twenty nodes, and what happens to them."""

    def __init__(self, seed: int, jobs: int, twin: str = "") -> None:
        self.random = Random(seed)
        self.events = Events()
        self.twin = twin
        self.left = 0  # executions that gave way
        self.executions: dict[str, list[float]] = {}  # when a job was completed
        self.boots = [0] * NODES
        self.nodes: list[Node] = []
        for number in range(NODES):
            self.nodes.append(Node(self, number))
        self.numbers = {node.peer: node.number for node in self.nodes}
        self.work: dict[str, float] = {}
        self.made: dict[tuple[PeerId, str], float] = {}  # by the wall clock of who claims
        self.logs = [node.log for node in self.nodes] + self.submit(jobs)
        for node in self.nodes:
            self.after(self.random.random(), node.gossip)
            self.after(self.random.random(), node.idle)
        self.fates: list[tuple[float, float, float]] = []  # from, to, speed that is lacking
        self.ideal = sum(self.work.values()) / sum(node.speed for node in self.nodes)
        self.plan()
        self.ideal = self.least()

    def after(self, seconds: float, action: Callable[[Any], None], what: Any = None) -> None:
        self.events.at(self.events.now + seconds, action, what)

    def submit(self, jobs: int) -> list[Log]:
        """The jobs, by a few nodes, all there from the beginning."""
        logs = [Log(FeedName(node.peer, "jobs", 0)) for node in self.nodes[:SUBMITTERS]]
        for number in range(jobs):
            log, nonce = logs[number % SUBMITTERS], number.to_bytes(16)
            job = Job(job_id(log.name.author, nonce), log.name.author, "sum", lease=LEASE_S)
            self.work[job.id] = self.random.uniform(*WORK_S)
            log.changes.append((job.id, msgpack.packb(job_fact(job, nonce))))
        for node, log in zip(self.nodes, logs, strict=False):
            self.events.at(0.0, lambda log, node=node: node.take(log, len(log.changes)), log)
        return logs

    def plan(self) -> None:
        """Cuts, deaths and clocks, all within the time that the work takes at least."""
        time_of, rng = partial(self.random.uniform, 0.0, self.ideal), self.random
        for number in range(CUTS):
            few = rng.sample(self.nodes, rng.randrange(1, NODES // 2 + 1))
            begin = time_of()
            self.events.at(begin, self.cut, (few, 1 << number))
            self.events.at(begin + rng.uniform(*CUT_S), self.cut, (few, 1 << number))
        for index, node in enumerate(rng.sample(self.nodes[SUBMITTERS:], DEAD + BACK)):
            begin, end = time_of(), float("inf")
            self.events.at(begin, node.crash)
            if index >= DEAD:
                end = begin + rng.uniform(*CUT_S)
                self.events.at(end, node.come_back)
            self.fates.append((begin, end, node.speed))
        for node in self.nodes:
            for _ in range(STEPS):
                self.events.at(time_of(), node.jump, rng.choice((-3600.0, 3600.0)))

    def cut(self, what: tuple[list[Node], int]) -> None:
        """Some cannot reach the others, or can again. Two cuts at a time make four sides."""
        few, bit = what
        for node in few:
            node.side ^= bit
        self.see()

    def see(self) -> None:
        """Who can reach whom has changed."""
        for node in self.nodes:
            for other in self.nodes:
                if node is other or node.reaches(other):
                    node.away.pop(other.number, None)
                else:
                    node.away.setdefault(other.number, self.events.now)

    def least(self) -> float:
        """When those that are up could have done all work: their speed, piece by piece."""
        work, now, full = sum(self.work.values()), 0.0, sum(node.speed for node in self.nodes)
        for edge in [*sorted({t for fate in self.fates for t in fate[:2]}), float("inf")]:
            speed = full - sum(lost for begin, end, lost in self.fates if begin <= now < end)
            if (edge - now) * speed >= work:
                return now + work / speed
            work, now = work - (edge - now) * speed, edge
        raise AssertionError

    def completed(self, job: str) -> None:
        self.executions.setdefault(job, []).append(self.events.now)

    def run(self) -> Figures:
        began = time.process_time()
        end = 3 * self.ideal
        while len(self.executions) < len(self.work) and self.events.now < end:
            self.events.run_until(self.events.now + 5.0)
        makespan = max(min(times) for times in self.executions.values())
        self.events.run_until(max(self.events.now, self.ideal + CUT_S[1]) + 60.0)
        up = [node for node in self.nodes if node.up]
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
            "cpu_s": round(time.process_time() - began, 2),
        }


def winner(jobs: Jobs, job: str) -> PeerId | None:
    """Whose result a view shows."""
    standing = jobs.get(job)
    done = standing is not None and standing.state is State.DONE
    return standing.claim.claimant if done and standing.claim else None


def one(seed: int, jobs: int) -> Figures:
    found = Sim(seed, jobs).run()
    for twin in TWINS if seed <= TWIN_SEEDS else ():
        found[twin] = Sim(seed, jobs, twin).run()
    return found


def result_of(figures: list[Figures]) -> dict[str, Any]:
    def most(name: str) -> float:
        return round(max(float(each[name]) for each in figures), 4)

    def mean(name: str) -> float:
        return round(sum(float(each[name]) for each in figures) / len(figures), 4)

    twins = [each for each in figures if TWINS[0] in each]
    ok = (
        not most("undone")
        and not most("two_winners")
        and most("reruns") <= GOALS["reruns"]
        and most("makespan") <= GOALS["makespan"]
    )
    return {
        "name": "state_claims",
        "value": most("reruns"),
        "goal": GOALS["reruns"],
        "ok": ok,
        "seeds": len(figures),
        "undone": most("undone"),
        "two_winners": most("two_winners"),
        "mean_reruns": mean("reruns"),
        "makespan": most("makespan"),
        "mean_makespan": mean("makespan"),
        "makespan_s": most("makespan_s"),
        "gave_way": mean("gave_way"),
        "without": {
            "two_winners_by_last_word": mean("last_word_two"),
            "undone_without_attempts": [each["no attempts"]["undone"] for each in twins],
            "gave_way_by_the_wall_clock": [
                (each["gave_way"], each["by the wall clock"]["gave_way"]) for each in twins
            ],
            "reruns_without_shares": [each["no shares"]["reruns"] for each in twins],
        },
        "cpu_s": round(sum(each["cpu_s"] for each in figures), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 seeds")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"that are to be done ({JOBS})")
    parser.add_argument("-j", type=int, default=1, help="seeds at a time")
    parser.add_argument("--out", type=Path, help="keep a line a seed here, and resume")
    args = parser.parse_args()
    wanted = list(range(1, 1 + (5 if args.quick else args.seeds)))
    ledger = Ledger(args.out, {"bench": "state_claims", "jobs": args.jobs})
    lacking = [seed for seed in wanted if seed not in ledger]
    with Pool(args.j) as pool:
        measured = pool.imap(partial(one, jobs=args.jobs), lacking)
        for seed, figures in zip(lacking, measured, strict=True):
            ledger.add(seed, figures)
            print(f"seed {seed}: {figures}", flush=True)
    result = result_of(ledger.figures(wanted))
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
