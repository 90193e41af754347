"""Response of small jobs beside one user that floods the queue, under four orders of jobs.

Arrivals and sizes are those of the Azure code trace, of which each request is a row: consecutive
rows of one second are a job, and jobs are dealt to USERS users in turn. One more user submits
FLOODS jobs at once, which together need as much again as the machines can do. MACHINES do pieces of
up to 10 s, each by the queue that the product uses, or by another one: first come first served,
fair by job (each job in turn gets a piece) and round robin by user. All run on the same arrivals.
`against_fcfs`, `against_by_job` and `against_by_user` are the mean response of small jobs, divided
by that under the other order; goals 0.4, 0.4 and 1.0. `throughput` is the work per second, divided
by that of first come first served; goal 0.97.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import groupby
from random import Random
from statistics import mean

from worlds.traces import find_traces

from shoal.tasks.jobs.defaults import PIECE_TIME
from shoal.tasks.jobs.fairness import FairQueue
from shoal.transport.identity import PeerId

MEASURES = ("tasks/jobs", "transport/identity.py", "bench/worlds/traces.py")

GOALS = {"against_fcfs": 0.4, "against_by_job": 0.4, "against_by_user": 1.0, "throughput": 0.97}
USERS, MACHINES, LOAD, FLOODS = 12, 4, 0.6, 200
PREFILL_S, TOKEN_S = 0.0005, 0.02
FLOOD = PeerId("f" * 52)


@dataclass
class Job:
    user: PeerId
    name: str
    at: float
    pieces: list[float]
    begun: int = 0
    done: int = 0
    ended: float = 0.0

    @property
    def work(self) -> float:
        return sum(self.pieces)


@dataclass
class Order:
    """An order of jobs. `key` is smallest for the job that gets the next piece."""

    key: Callable[[Job], tuple[float, ...]]
    came: Callable[[Job], None] = lambda job: None
    begun: Callable[[Job, float], None] = lambda job, work: None


def fcfs() -> Order:
    return Order(lambda job: (job.at,))


def by_job() -> Order:
    return Order(lambda job: (job.begun, job.at))


def by_user() -> Order:
    turns: dict[PeerId, int] = {}
    now = 0

    def begun(job: Job, _work: float) -> None:
        nonlocal now
        now = max(turns.get(job.user, 0), now)
        turns[job.user] = now + 1

    return Order(lambda job: (max(turns.get(job.user, 0), now), job.at), begun=begun)


def ours() -> Order:
    queue = FairQueue()
    return Order(
        lambda job: (*queue.order(job.user, job.name, job.work), job.at),
        lambda job: queue.came(job.user, job.name, job.work),
        lambda job, work: queue.begin(job.user, work),
    )


ORDERS = {"fcfs": fcfs, "by_job": by_job, "by_user": by_user, "ours": ours}


def cut(work: float) -> list[float]:
    """Return the seconds of the pieces of a job."""
    count = max(1, round(work / PIECE_TIME))
    return [work / count] * count


def arrivals(seed: int, seconds: float) -> list[Job]:
    """Return the small jobs of `seconds` of the trace, from a random moment on, and the flood."""
    with open(find_traces() / "azure-llm" / "code.csv", newline="") as file:
        rows = [
            (_seconds(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row in csv.DictReader(file)
        ]
    lot = Random(seed)
    begin = lot.uniform(rows[0][0], max(rows[0][0], rows[-1][0] - seconds))
    some = [row for row in rows if begin <= row[0] < begin + seconds]
    jobs = list[Job]()
    for second, group in groupby(some, key=lambda row: int(row[0] - begin)):
        work = sum(PREFILL_S * prompt + TOKEN_S * made for _, prompt, made in group)
        user = PeerId(f"{len(jobs) % USERS:052d}")
        jobs.append(Job(user, f"small {len(jobs)}", float(second), cut(work)))
    scale = LOAD * MACHINES * seconds / sum(job.work for job in jobs)
    for job in jobs:
        job.pieces = cut(job.work * scale)
    each = MACHINES * seconds / FLOODS
    floods = [Job(FLOOD, f"flood {number}", 0.01 * number, cut(each)) for number in range(FLOODS)]
    return sorted([*jobs, *floods], key=lambda job: job.at)


def _seconds(text: str) -> float:
    hours, minutes, seconds = text.split()[1].split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)


@dataclass
class Outcome:
    responses: list[float] = field(default_factory=list)
    ended: float = 0.0
    work: float = 0.0


def simulate(jobs: list[Job], order: Order) -> Outcome:
    """Do all jobs, and return the responses of the small ones."""
    jobs = [Job(job.user, job.name, job.at, list(job.pieces)) for job in jobs]
    coming, waiting = jobs[::-1], list[Job]()
    machines: list[tuple[float, int, Job | None]] = [(0.0, n, None) for n in range(MACHINES)]
    found, idle = Outcome(), list[int]()
    now = 0.0
    while machines or coming:
        arrives = coming[-1].at if coming else float("inf")
        if not machines or arrives <= machines[0][0]:
            now = arrives
            job = coming.pop()
            order.came(job)
            waiting.append(job)
            for number in idle:
                heappush(machines, (now, number, None))
            idle.clear()
            continue
        now, number, ended = heappop(machines)
        if ended is not None:
            ended.done += 1
            if ended.done == len(ended.pieces):
                ended.ended = found.ended = now
                if ended.user != FLOOD:
                    found.responses.append(now - ended.at)
        if not waiting:
            idle.append(number)
            continue
        job = min(waiting, key=order.key)
        work = job.pieces[job.begun]
        order.begun(job, work)
        job.begun += 1
        found.work += work
        if job.begun == len(job.pieces):
            waiting.remove(job)
        heappush(machines, (now + work, number, job))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 seeds of 5 minutes")
    quick = parser.parse_args().quick
    seeds, seconds = (2, 300.0) if quick else (10, 1200.0)
    responses: dict[str, list[float]] = {name: [] for name in ORDERS}
    rates: dict[str, list[float]] = {name: [] for name in ORDERS}
    for seed in range(seeds):
        jobs = arrivals(seed, seconds)
        for name, order in ORDERS.items():
            found = simulate(jobs, order())
            responses[name].append(mean(found.responses))
            rates[name].append(found.work / found.ended)
    means = {name: mean(each) for name, each in responses.items()}
    value = {
        "against_fcfs": means["ours"] / means["fcfs"],
        "against_by_job": means["ours"] / means["by_job"],
        "against_by_user": means["ours"] / means["by_user"],
        "throughput": mean(rates["ours"]) / mean(rates["fcfs"]),
    }
    shown = {name: round(each, 3) for name, each in value.items()}
    ok = all(
        shown[name] >= goal if name == "throughput" else shown[name] <= goal
        for name, goal in GOALS.items()
    )
    seconds_of = {name: round(each, 2) for name, each in means.items()}
    print(json.dumps({"name": "jobs_fairness", "value": shown, "goal": GOALS, "ok": ok,
                      "seeds": seeds, "response_s": seconds_of}))  # fmt: skip
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
