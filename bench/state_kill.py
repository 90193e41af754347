"""A store that is killed while it writes: nothing is torn, and nothing acknowledged is lost.

First, a real process puts entries through the `Committer` on the real disk, and is killed with -9
at a random instant, again and again with the same file. Everything that it had acknowledged must be
there, and the signatures and the chain of every feed must be valid. Second, the power: all writes
and syncs of a store are logged. 2,000 times the log is replayed up to a random point onto a
simulated disk that then loses power. Of the writes since the last sync such a disk keeps any, in
any order, whole or torn. The other side is the same log without its syncs, which has to lose
something; otherwise the check would detect nothing.

`value` is the number of torn or lost items in both parts. Goal: 0. `--quick` is 50 kills and 100
cut points.
"""

import argparse
import copy
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from bisect import bisect_right
from pathlib import Path
from random import Random

import trio
from worlds.feeds import Writers, lacks

from shoal.netsim.clock import Events
from shoal.netsim.daemons.files import DiskFiles
from shoal.netsim.disk.disk import Disk
from shoal.netsim.disk.mount import Mount, Operation, replay
from shoal.state.feeds.committer import Committer
from shoal.state.feeds.entry import FeedName, Head
from shoal.state.feeds.store import Drop, Put, Store
from shoal.state.feeds.stored import StoredFeed, verify
from shoal.transport.errors import DatabaseDamaged
from shoal.transport.host.real import RealHost
from shoal.transport.host.realfiles import RealFiles
from shoal.transport.host.seam import Files

MEASURES = (
    "state",
    "netsim",
    "transport/host/database.py",
    "transport/errors.py",
    "transport/host/seam.py",
    "transport/identity.py",
    "transport/host/real.py",
    "transport/host/realfiles.py",
)

AUTHORS = 6
LIFE_S = 0.06  # of a process after its first put, at most
RECORDED_COMMITS = 300

Acknowledged = dict[FeedName, Head]


class Damage(Exception):
    """Stored data is torn."""


def read_all(files: Files, path: Path, *, signatures: bool) -> dict[FeedName, StoredFeed]:
    """Return what a store holds. Raises Damage, DatabaseDamaged."""
    store = Store(files.database(path))
    try:
        found, after = dict[FeedName, StoredFeed](), -1
        while True:
            batch = store.feeds(after)
            found |= {feed.name: feed for feed in batch.feeds}
            if batch.damaged or (signatures and not all(map(verify, batch.feeds))):
                raise Damage("a feed is not what was stored")
            if batch.after is None:
                return found
            after = batch.after
    finally:
        store.close()


# Killed with -9.


async def put_for_ever(folder: Path, seed: int, told: int) -> None:
    """Put entries and write each acknowledgement to a pipe, in few bytes, at once."""
    writers = Writers(AUTHORS, Random(seed))
    committer = Committer(RealHost(), folder, trouble=fail, lost=fail)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: committer.run(task_status=task_status))
        writers.resume([feed async for batch in committer.load() for feed in batch])
        while True:
            async with trio.open_nursery() as together:
                for _ in range(writers._random.randrange(1, 6)):
                    together.start_soon(put_one, committer, writers, told)


async def put_one(committer: Committer, writers: Writers, told: int) -> None:
    entries = writers.write(writers._random.randrange(1, 4))
    name, head = entries[-1].name, entries[-1].head
    await committer.put(entries, own=True)
    line = json.dumps([*name, head.epoch, head.seq, head.hash.hex()]) + "\n"
    os.write(told, line.encode())  # shorter than PIPE_BUF: whole or not at all


def fail(*what: object) -> None:
    os.write(2, f"{what}\n".encode())
    os._exit(3)


def kill_one(folder: Path, seed: int) -> Acknowledged:
    """Start a process and kill it; return what it had acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            trio.run(put_for_ever, folder, seed, writing)
        finally:
            os._exit(4)
    os.close(writing)
    with open(reading, "rb") as pipe:
        first = pipe.readline()
        time.sleep(Random(seed).random() * LIFE_S)
        os.kill(child, signal.SIGKILL)
        lines = [first, *pipe.read().splitlines()]
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise Damage(f"the process ended by itself, {status}")
    found = Acknowledged()
    for line in lines:
        author, kind, part, epoch, seq, digest = json.loads(line)
        found[FeedName(author, kind, part)] = Head(epoch, seq, bytes.fromhex(digest))
    return found


def kills(count: int) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="shoal-kill-"))
    acknowledged, torn, lost, puts = Acknowledged(), 0, 0, 0
    try:
        for seed in range(count):
            news = kill_one(folder, seed)
            acknowledged |= news
            puts += len(news)
            try:
                found = read_all(RealFiles(), folder / "state.db", signatures=True)
            except (Damage, DatabaseDamaged):
                torn += 1
            else:
                lost += len(lacks(found, acknowledged))
    finally:
        shutil.rmtree(folder)
    return {"kills": count, "feeds_acknowledged": puts, "torn": torn, "lost": lost}


# Without power.


def record(seed: int) -> tuple[list[Operation], list[int], list[Acknowledged]]:
    """Record a store's operations on its disk; return them, and the acknowledgements with the
    number of operations before each.
    """
    mount = Mount(Disk(Events(), Random(seed)))
    log = mount.log = list[Operation]()
    files, writers = DiskFiles(mount), Writers(AUTHORS, Random(seed))
    path, random = Path("/state.db"), Random(seed + 1)
    store, when, what = Store(files.database(path)), [0], [Acknowledged()]
    for number in range(RECORDED_COMMITS):
        works: list[Put | Drop] = [Put(writers.write(random.randrange(1, 4))) for _ in range(3)]
        if number % 50 == 49:
            peer = random.choice(writers.peers)
            works.append(Drop([peer]))
            writers.heads = {name: at for name, at in writers.heads.items() if name.author != peer}
        if any(store.commit(works)):
            raise Damage("a put was refused")
        when.append(len(log))
        what.append(dict(writers.heads))
        if store.loose:
            store.make_smaller()
        if number % 100 == 99:
            store.close()
            store = Store(files.database(path))
    return log, when, what


def cut(disk: Disk, step: list[Operation], seed: int) -> dict[FeedName, StoredFeed]:
    """Return what a store holds if the power is cut while `step` is in progress."""
    random = Random(seed)
    began = disk.events.now
    replay(Mount(disk), step)
    disk.events.run_until(began + random.random() * (disk.busy_until - began))
    disk.crash()
    return read_all(DiskFiles(Mount(disk)), Path("/state.db"), signatures=seed % 10 == 0)


def cuts(count: int, *, syncs: bool, seed: int) -> dict[str, int]:
    """Cut one recorded log at `count` points."""
    log, when, what = record(seed)
    random = Random(seed)
    disk, torn, lost, done = Disk(Events(), random), 0, 0, 0
    for at in sorted(random.randrange(len(log)) for _ in range(count)):
        step = log[done:at]
        replay(Mount(disk), [item for item in step if syncs or "sync" not in item[0]])
        disk.events.run_until(disk.busy_until)
        done = at
        try:
            found = cut(copy.deepcopy(disk), log[at : at + 1], random.getrandbits(32))
        except (Damage, DatabaseDamaged, FileNotFoundError):
            torn += 1
        else:
            # A drop in progress may have removed a feed, which is then not missing.
            expected = what[bisect_right(when, at) - 1]
            lost += bool(set(lacks(found, expected)) - going(what, when, at))
    return {"cuts": count, "operations": len(log), "torn": torn, "lost": lost}


def all_cuts(count: int, *, syncs: bool = True) -> dict[str, int]:
    """Make this many cuts, 100 per log."""
    totals: dict[str, int] = {}
    for seed in range(max(count // 100, 1)):
        for name, figure in cuts(min(count, 100), syncs=syncs, seed=seed).items():
            totals[name] = totals.get(name, 0) + figure
    return totals


def going(what: list[Acknowledged], when: list[int], at: int) -> set[FeedName]:
    """Return the feeds that the commit in progress drops."""
    number = bisect_right(when, at)
    if number >= len(what):
        return set()
    now, then = what[number - 1], what[number]
    return {name for name in now if name not in then or then[name].epoch < now[name].epoch}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="50 kills, 100 cut points")
    args = parser.parse_args()
    killed = kills(50 if args.quick else 1000)
    print("killed:", killed, flush=True)
    powerless = all_cuts(100 if args.quick else 2000)
    print("cut:", powerless, flush=True)
    unsynced = all_cuts(40, syncs=False)
    print("cut, without syncs:", unsynced, flush=True)
    broken = sum(side[what] for side in (killed, powerless) for what in ("torn", "lost"))
    noticed = unsynced["torn"] + unsynced["lost"]
    result = {
        "name": "state_kill",
        "value": broken,
        "goal": 0,
        "ok": broken == 0 and noticed > 0,
        "killed": killed,
        "cut": powerless,
        "cut_without_syncs": unsynced,
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
