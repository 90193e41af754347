"""CPU of an idle node with 32 links compared with that of commit 981b9fd, and the bytes that it
sends.

All run on loopback. One process is the node, with its files on a real disk and without an engine. A
second process has 32 daemons that dial the node, with default options: they link with each other as
well, as the peers of a real node do. The idle node's CPU is divided by that of a node of that
commit, measured alternately in the same run: goal 1.2. The bytes that it sends per second over all
its links have the goal 2,000. `--quick` measures 10 s, before links rest, so
it only shows that the script runs.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from typing import Any

import trio
from worlds.earlier import TODAY, answer, checkout, environment, measured, moved

from shoal.transport.address import Address

daemons = moved("shoal.node.daemon.daemon", "shoal.node.daemon")
settings = moved("shoal.node.settings.config", "shoal.node.config")
hosts = moved("shoal.transport.host.real", "shoal.transport.realhost")

MEASURES = ("node", "tasks", "state", "dht", "transport")

GOALS = {"cpu_over_base": 1.2, "bytes_per_s": 2000}
LINKS = 32
LOOPBACK = "127.0.0.1"
SETTLE_S = 150.0  # seconds until the work of starting is done, and links rest
QUICK_S = 10.0
TURNS = 3
MEETING_S = 300.0


def daemon(folder: Path, number: int, known: tuple[Address, ...] = ()) -> Any:
    """Return a function that starts a daemon."""
    config = settings.NodeConfig(folder / str(number), LOOPBACK, 0, known, memory=2**30)
    return partial(daemons.run_node, hosts.RealHost(), config, engine_factory=lambda *_: None)


async def crowd(port: int) -> None:
    """Run the daemons that dial a port, until this process is terminated."""
    with tempfile.TemporaryDirectory(prefix="shoal-crowd-") as folder:
        async with trio.open_nursery() as nursery:
            for number in range(LINKS):
                await nursery.start(daemon(Path(folder), number, (Address(LOOPBACK, port),)))


@contextmanager
def other_side(root: Path, port: int) -> Iterator[None]:
    """Run the crowd in a process of its own."""
    command = [sys.executable, __file__, "--crowd", str(port)]
    with Popen(command, env=environment(root), cwd=root, stdout=PIPE, stderr=PIPE) as process:
        try:
            yield
        finally:
            process.terminate()


def sent(node: Any) -> int:
    """Return the bytes that a node has sent over all its links."""
    return sum(link.status.bytes_out for link in node.endpoint.links())


async def look(root: Path, settle: float, seconds: float) -> dict[str, Any]:
    """Measure the CPU and the bytes of an idle node with all its links, `settle` seconds after
    these were made.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-idle-") as folder:
        async with trio.open_nursery() as nursery:
            node = await nursery.start(daemon(Path(folder), 0))
            with other_side(root, node.endpoint.port):
                with trio.fail_after(MEETING_S):
                    while len(node.endpoint.links()) < LINKS:  # noqa: ASYNC110
                        await trio.sleep(0.5)
                await trio.sleep(settle)
                cpu, before, began = time.process_time(), sent(node), time.perf_counter()
                await trio.sleep(seconds)
                took = time.perf_counter() - began
                found["cpu_share"] = (time.process_time() - cpu) / took
                found["bytes_per_s"] = (sent(node) - before) / took
                found["links"] = len(node.endpoint.links())
            nursery.cancel_scope.cancel()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn of 10 s")
    parser.add_argument("--crowd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--look", type=float, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.crowd:
        trio.run(crowd, args.crowd)
        return 0
    if args.look:
        answer(trio.run(look, Path.cwd(), *args.look))
        return 0
    turns, times = (1, (QUICK_S, QUICK_S)) if args.quick else (TURNS, (SETTLE_S, 120.0))
    base, ours = [], []
    with checkout() as folder:
        for _ in range(turns):
            base.append(measured(folder, __file__, "--look", *times))
            ours.append(measured(TODAY, __file__, "--look", *times))
    share, before = (median(each["cpu_share"] for each in side) for side in (ours, base))
    value = {
        "cpu_over_base": round(share / before, 3),
        "bytes_per_s": round(median(each["bytes_per_s"] for each in ours)),
    }
    ok = all(value[name] <= goal for name, goal in GOALS.items())
    result = {"name": "node_idle", "value": value, "goal": GOALS, "ok": ok}
    more = {
        "cpu_share": round(share, 5),
        "base_cpu_share": round(before, 5),
        "base_bytes_per_s": round(median(each["bytes_per_s"] for each in base)),
        "links": [each["links"] for each in ours],
        "base_links": [each["links"] for each in base],
    }
    print(json.dumps(result | more))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
