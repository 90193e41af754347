"""A job whose submitter is away from its acknowledgement to its end, while half of the workers die.

Whole daemons on simulated hosts, one world for each seed: WORKERS that each serve all of a model,
and a submitter. Once the command says that another node has the job, the submitter's host crashes.
Half of the workers are killed for good, at random times until most of the job would be done. When
the rest has finished, the submitter comes back and writes the output. `complete` is the share of
jobs whose output has each row exactly once and in order; goal 1. `twice` counts rows that are in an
output twice; goal 0. `repeated` is the share of pieces that were computed more than once.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World

MEASURES = ("tasks/jobs", "state", "dht", "node/control", "node/daemon", "netsim")

WORKERS, ROWS, TOKENS = 6, 120, 40
SLOW = replace(PROFILES["raspberry"], step_s=0.1)
PATIENCE_S = 3600.0
ROWS_FILE, OUTPUT = Path("/home/rows.jsonl"), Path("/home/out.jsonl")


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


async def away(world: World, lot: Random) -> dict[str, Any]:
    """Return what became of one job."""
    workers, asker = await swarm(world)
    files = asker.node.library._host.files
    files.make_folder(ROWS_FILE.parent)
    files.write(ROWS_FILE, rows(ROWS))
    asked: dict[str, Any] = {"model": "tiny", "file": str(ROWS_FILE), "max_tokens": TOKENS}
    sent = await asker.ask("job_submit", seed=1, raw=True, **asked)
    if not sent["replicated"]:
        raise SystemExit("the job was not replicated")
    (job,), pieces = sent["jobs"], sent["pieces"]
    await asker.host.crash()
    dying = lot.sample(workers, WORKERS // 2)
    done = 0
    for worker in dying:
        await trio.sleep(lot.uniform(0.5, 10.0))
        done += worker.node.working.worker.done
        await worker.host.crash()
    left = [worker for worker in workers if worker not in dying]
    began = trio.current_time()
    while any(worker.node.state.views.jobs.waiting for worker in left):
        if trio.current_time() - began > PATIENCE_S:
            break
        await trio.sleep(1)
    took = trio.current_time() - began
    done += sum(worker.node.working.worker.done for worker in left)
    asker = await asker.host.restart()
    with trio.move_on_after(PATIENCE_S):
        await asker.ask("job_output", job=job, path=str(OUTPUT), until_done=True)
    files = asker.node.library._host.files
    data = files.read(OUTPUT, limit=2**26) if files.size(OUTPUT) else b""
    found = [json.loads(line) for line in data.splitlines()]
    lines = [row["line"] for row in found]
    texts = all(row.get("text") for row in found)
    return {
        "complete": texts and lines == list(range(1, ROWS + 1)),
        "twice": len(lines) - len(set(lines)),
        "pieces": pieces,
        "done": done,
        "took_s": round(took, 1),
    }


def one(seed: int) -> dict[str, Any]:
    world = World(seed=seed)

    async def main() -> dict[str, Any]:
        with trio.fail_after(4 * PATIENCE_S):
            return await away(world, Random(seed))

    found: dict[str, Any] = world.run(main)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 seeds")
    parser.add_argument("--seeds", type=int, default=100)
    args = parser.parse_args()
    seeds = 3 if args.quick else args.seeds
    results = [one(seed) for seed in range(1, seeds + 1)]
    complete = sum(each["complete"] for each in results) / seeds
    twice = sum(each["twice"] for each in results)
    pieces, done = (sum(each[key] for each in results) for key in ("pieces", "done"))
    ok = complete == 1.0 and twice == 0
    report = {
        "name": "jobs_offline", "value": {"complete": complete, "twice": twice},
        "goal": {"complete": 1.0, "twice": 0}, "ok": ok, "seeds": seeds,
        "repeated": round(max(0, done - pieces) / pieces, 3),
        "failed": [seed for seed, each in enumerate(results, 1) if not each["complete"]],
        "took_s": [each["took_s"] for each in results],
    }  # fmt: skip
    print(json.dumps(report))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
