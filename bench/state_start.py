"""Start of a node with the state of ten thousand members: how long it holds its event loop.

A real `State` opens a store with five feeds of each member, all connected to this node by vouches.
It restores the feeds, passes the facts to the views, and builds its digest. Then peers announce as
many missing feeds as each may, as after a month of absence, and the node chooses which to ask.

`value` is the longest step of any task, elapsed, in reference ms (`yardstick.py`, elapsed too);
goal 50. Beside it are the same in ms (`wall_ms`), and each part's worst in CPU time of the thread.
Also: the seconds until the node began and until the views are complete, and the growth of the
process; and the same for a small node, which only keeps members, names of models, and the sixteenth
of `shards` that contains one model. `--quick` is 1,000 members.
"""

import argparse
import gc
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, Final

import msgpack
import psutil
import trio
import trio.lowlevel
from state_views import Swarm
from yardstick import Yardstick

from shoal.state import defaults
from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import NO_PARENT, Entry, FeedName, client_of, seal_entry
from shoal.state.feeds.feed import snapshot
from shoal.state.feeds.kinds import KINDS
from shoal.state.feeds.store import Put, Store
from shoal.state.replication.gossip import Told
from shoal.state.replication.vouches import VOUCHES, write_vouches
from shoal.state.replication.wanted import Wanted
from shoal.state.service import State
from shoal.state.settings import StateSettings
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.host.realfiles import RealFiles
from shoal.transport.identity import Identity, PeerId

MEASURES = ("state", "transport")

MEMBERS: Final = 10_000
QUICK: Final = 1_000
GOAL: Final = 50.0  # reference ms
TELLERS: Final = 64
EPOCH: Final = 1_700_000_000_000
OWN: Final = Identity.from_seed(b"o" * 32)


class Steps(trio.abc.Instrument):
    """Longest step of the loop, by CPU time and by elapsed time."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0
        self.task = ""
        self._gc = 0.0
        self._cpu, self._wall = time.thread_time(), time.perf_counter()
        self.collect = 0.0  # the longest garbage collection, CPU seconds
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, _: object) -> None:
        if phase == "start":
            self._gc = time.thread_time()
        else:
            self.collect = max(self.collect, time.thread_time() - self._gc)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._cpu, self._wall = time.thread_time(), time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        cpu = time.thread_time() - self._cpu
        self.wall = max(self.wall, time.perf_counter() - self._wall)
        if cpu > self.cpu:
            self.cpu, self.task = cpu, task.name.rsplit(".", 1)[-1]


def size_of(folder: Path) -> float:
    """Return the MB of the files in a folder."""
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def fill(folder: Path, count: int) -> None:
    """Fill a store in which each author vouches for the next 64, from this node down."""
    members = [Identity.from_seed(number.to_bytes(32)) for number in range(1, count + 1)]
    swarm = Swarm(1, [member.peer for member in members])
    by_kind: dict[PeerId, dict[tuple[str, int], dict[str, bytes]]] = {OWN.peer: {("member", 0): {}}}
    for name, facts in swarm.feeds.items():
        by_kind.setdefault(name.author, {})[name.kind, name.part] = facts
    everybody = [OWN, *members]
    works = []
    for number, author in enumerate(everybody):
        first = number * defaults.AUTHOR_VOUCHED + 1
        named = everybody[first : first + defaults.AUTHOR_VOUCHED]
        value = write_vouches(other.public_key for other in named)
        by_kind[author.peer]["member", 0][VOUCHES] = msgpack.packb(value)
        for (kind, part), facts in by_kind[author.peer].items():
            works.append(Put([entry_of(author, kind, part, facts)]))
    Random(1).shuffle(works)
    store = Store(RealFiles().database(folder / "state.db"))
    for start in range(0, len(works), 500):
        store.commit(works[start : start + 500])
    store.close()


def entry_of(author: Identity, kind: str, part: int, facts: dict[str, bytes]) -> Entry:
    client = client_of(FeedName(author.peer, kind, part), EPOCH)
    update = snapshot(KINDS[kind], client, facts)
    return seal_entry(
        author, kind, part, epoch=EPOCH, seq=0, parent=NO_PARENT, made=0, update=update
    )


def _started(folder: Path, count: int, small: bool = False) -> dict[str, float | str]:
    return trio.run(start, folder, count, small)


async def start(folder: Path, count: int, small: bool = False) -> dict[str, float | str]:
    """Start a node and measure it; `small`: one that keeps only what it needs, with one model."""
    host = RealHost()
    endpoint = Endpoint(host, OWN, admission=OpenSwarm())
    gc.collect()
    grew, began, cpu = psutil.Process().memory_info().rss, time.monotonic(), time.process_time()
    keeps: tuple[Plot, ...] | None = (("shards", 3),) if small else None
    stick = Yardstick(time.perf_counter)
    stick.sample(50)
    state = State(host, endpoint, OWN, StateSettings(folder, keeps), trouble=lambda *told: None)
    async with trio.open_nursery() as nursery:
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await nursery.start(state.run)
        figures: dict[str, float | str] = {
            "restore_ms": steps.cpu * 1e3,
            "restore_task": steps.task,
            "restored_s": time.monotonic() - began,
            "restored_cpu_s": time.process_time() - cpu,
        }
        steps.cpu = 0.0
        with trio.fail_after(300):
            while not shown(state, (2 if small else 5) * count):  # noqa: ASYNC110
                await trio.sleep(0.05)
        figures |= {
            "show_ms": steps.cpu * 1e3,
            "show_task": steps.task,
            "shown_s": time.monotonic() - began,
            "start_cpu_s": time.process_time() - cpu,
        }
        steps.cpu = 0.0
        state.replica.digest.top()
        await trio.lowlevel.checkpoint()
        figures["digest_ms"] = steps.cpu * 1e3
        figures["gc_ms"] = steps.collect * 1e3
        steps.cpu = 0.0
        await trio.sleep(3.0)
        figures |= {"after_ms": steps.cpu * 1e3, "wall_ms": steps.wall * 1e3}
        gc.collect()
        figures["grew_mb"] = (psutil.Process().memory_info().rss - grew) / 1e6
        trio.lowlevel.remove_instrument(steps)
        stick.sample(50)
        figures["reference_ms"] = stick.ms
        nursery.cancel_scope.cancel()
    return figures


def shown(state: State, count: int) -> bool:
    """Whether the views show at least `count` facts."""
    views = set(state.views._by_kind.values())
    return sum(len(said) for view in views for said in view.facts.values()) >= count


def choose(count: int) -> float:
    """Return the milliseconds that choosing a peer takes when most of the announced feeds have
    arrived.
    """
    come: set[bytes] = set()
    wanted = Wanted(lambda told: told.key not in come, Random(0).randrange)
    for number in range(TELLERS):
        peer = PeerId(f"p{number}")
        keys = (Random(number * count + n).randbytes(32) for n in range(defaults.TOLD))
        wanted.heard(peer, [Told(key, "member", 0, 1, 1, bytes(16)) for key in keys], 0.0)
        come |= {key for key, _ in wanted.all_tellers[peer].told}
    worst = 0.0
    for now in range(20):
        began = time.perf_counter()
        wanted.next(float(now))
        worst = max(worst, time.perf_counter() - began)
    return worst * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} members")
    count = QUICK if parser.parse_args().quick else MEMBERS
    folder = Path(tempfile.mkdtemp(prefix="shoal-start-"))
    try:
        fill(folder, count)
        gc.collect()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            figures: dict[str, Any] = pool.submit(_started, folder, count).result()
        figures["files_mb"] = size_of(folder)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            small = pool.submit(_started, folder, count, True).result()
        figures["small_files_mb"] = size_of(folder)
        for name in ("grew_mb", "start_cpu_s"):
            figures["small_" + name] = small[name]
    finally:
        shutil.rmtree(folder)
    figures["choose_ms"] = choose(count)
    value = max(figures["wall_ms"], figures["choose_ms"]) / figures["reference_ms"]
    rounded = {k: v if isinstance(v, str) else round(v, 3) for k, v in figures.items()}
    ok = value <= GOAL
    result = {"name": "state_start", "value": round(value, 1), "goal": GOAL, "ok": ok, **rounded}
    print(json.dumps(result))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
