"""Jobs whose submitter is away from their acknowledgement to their end, while half of the workers
die.

Whole daemons on simulated hosts, one world for each seed: WORKERS that each serve all of a model,
and a submitter. Once the command says that another node has the jobs, the submitter's host crashes.
Half of the workers are killed for good, at random times until most of the work would be done. When
the rest has finished, the submitter comes back and writes the outputs. There is a job for each
worker, so those that die were at work. `complete` is the share of jobs whose output has each row
exactly once and in order; goal 1. `twice` counts rows that are in an output twice; goal 0. `again`
counts the jobs that a worker had begun when it died.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World

MEASURES = ("tasks/jobs", "state", "dht", "node/control", "node/daemon", "netsim")

WORKERS, ROWS, TOKENS = 6, 20, 40  # a job of ROWS rows for each worker
SLOW = replace(PROFILES["raspberry"], step_s=0.1)
PATIENCE_S = 3600.0
HOME = Path("/home")


def rows(count: int) -> bytes:
    """Return prompts that do not fit into the specs of the job, so that they become a blob."""
    said = "a row that takes its time " * 4
    return b"".join(
        json.dumps({"prompt": f"{number} {said}"}).encode() + b"\n" for number in range(count)
    )


async def swarm(world: World) -> tuple[list[DaemonHandle], DaemonHandle]:
    """Start the workers and the submitter."""
    more: dict[str, Any] = {"model": "tiny", "layers": (0, 6), "profile": SLOW}
    workers = [await world.host("w0").start(**more)]
    for number in range(1, WORKERS):
        workers.append(await world.host(f"w{number}").start(bootstrap=workers[:1], **more))
    for worker in workers:
        await worker.serving()
        await worker.until(lambda status: status["peers"] == WORKERS - 1)
    asker = await world.host("asker").start(bootstrap=workers[:2], engine=False)
    await asker.until(lambda status: status["peers"] >= WORKERS)
    await trio.sleep(20)
    return workers, asker


async def submit(asker: DaemonHandle) -> list[str]:
    """Submit the jobs, and return their ids."""
    files, found = asker.node.library._host.files, list[str]()
    files.make_folder(HOME)
    files.write(HOME / "rows.jsonl", rows(ROWS))
    asked: dict[str, Any] = {"model": "tiny", "file": str(HOME / "rows.jsonl"), "raw": True}
    for seed in range(WORKERS):
        sent = await asker.ask("job_submit", seed=seed, max_tokens=TOKENS, **asked)
        if not sent["replicated"]:
            raise SystemExit("a job was not replicated")
        found += sent["jobs"]
    return found


async def kill(workers: list[DaemonHandle], lot: Random) -> int:
    """Kill workers for good, one after the other. Return the number of jobs that they had begun."""
    begun = 0
    for worker in workers:
        await trio.sleep(lot.uniform(0.5, 10.0))
        begun += worker.node.working.worker.pieces
        await worker.host.crash()
    return begun


async def output(asker: DaemonHandle, job: str) -> list[dict[str, Any]]:
    """Return the lines of the output of a job, or none if it is not done in time."""
    files, path = asker.node.library._host.files, HOME / f"{job}.jsonl"
    with trio.move_on_after(PATIENCE_S):
        await asker.ask("job_output", job=job, path=str(path), until_done=True)
    data = files.read(path, limit=2**26) if files.size(path) else b""
    return [json.loads(line) for line in data.splitlines()]


async def away(world: World, lot: Random) -> dict[str, Any]:
    """Return what became of the jobs."""
    workers, asker = await swarm(world)
    jobs = await submit(asker)
    await asker.host.crash()
    dying = lot.sample(workers, WORKERS // 2)
    again = await kill(dying, lot)
    left = [worker for worker in workers if worker not in dying]
    began = trio.current_time()
    while any(worker.node.state.views.jobs.waiting for worker in left):
        if trio.current_time() - began > PATIENCE_S:
            break
        await trio.sleep(1)
    took = trio.current_time() - began
    asker = await asker.host.restart()
    complete = twice = 0
    for job in jobs:
        found = await output(asker, job)
        lines = [row["line"] for row in found]
        complete += lines == list(range(1, ROWS + 1)) and all(row.get("text") for row in found)
        twice += len(lines) - len(set(lines))
    return {"complete": complete, "twice": twice, "again": again, "took_s": round(took, 1)}


def one(seed: int) -> dict[str, Any]:
    world = World(seed=seed)

    async def main() -> dict[str, Any]:
        with trio.fail_after(4 * PATIENCE_S):
            return await away(world, Random(seed))

    found: dict[str, Any] = world.run(main)
    return found


def every(seeds: int, jobs: int) -> list[dict[str, Any]]:
    """Return what became of the jobs with each seed, `jobs` seeds in parallel."""
    found = list[dict[str, Any]]()
    with ProcessPoolExecutor(jobs) as pool:
        for seed, each in enumerate(pool.map(one, range(1, seeds + 1)), 1):
            found.append(each)
            print(f"seed {seed} of {seeds}: {json.dumps(each)}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 seeds")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("-j", type=int, default=1, help="seeds in parallel (1)")
    args = parser.parse_args()
    seeds = 3 if args.quick else args.seeds
    results = every(seeds, args.j)
    complete = sum(each["complete"] for each in results) / (seeds * WORKERS)
    twice = sum(each["twice"] for each in results)
    ok = complete == 1.0 and twice == 0
    report = {
        "name": "jobs_offline", "value": {"complete": complete, "twice": twice},
        "goal": {"complete": 1.0, "twice": 0}, "ok": ok, "seeds": seeds,
        "again": sum(each["again"] for each in results),
        "failed": [s for s, each in enumerate(results, 1) if each["complete"] < WORKERS],
        "took_s": [each["took_s"] for each in results],
    }  # fmt: skip
    print(json.dumps(report))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
