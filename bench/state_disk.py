"""Disk space of the store with ten thousand members for a month, compared with its live content.

Each member has five feeds whose documents have sizes drawn once. Every simulated day a tenth of the
members leave for good and as many join, and every feed changes about once: an entry with a part of
the document. When more than half of an epoch is dead, the author begins another with a snapshot.
Entries are put into a real store in any order, as gossip delivers them. They are random bytes of
the right sizes, so compression saves nothing.

Live content is a snapshot of every feed, as it travels. `value` is the size of the store's files
divided by that, at the end of the month, the worst of the days. Goal: 2. Beside it: the files
divided by the stored entries; the growth of the process; CPU time of a put; a start. `--quick` is
1,000 members and 8 days, where the log of 1 MiB weighs more, with its own goal: 2.2.
"""

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil

from shoal.state.feeds.entry import NO_PARENT, Entry, FeedName, Head
from shoal.state.feeds.store import Drop, Put, Store, Work
from shoal.transport.host.realfiles import RealFiles
from shoal.transport.identity import PeerId, peer_id_of

MEASURES = (
    "state",
    "transport/host/database.py",
    "transport/identity.py",
    "transport/host/real.py",
    "transport/host/realfiles.py",
)

GOAL, QUICK_GOAL = 2.0, 2.2
LEAVE = 0.1  # of the members, per day
CHANGES = 1.0  # per feed and day, on average
ENVELOPE = 270  # bytes of an entry besides its update
KINDS = {"member": 600, "models": 300, "jobs": 4000, "claims": 2000, "usage": 1500}  # mean bytes
TOGETHER = 100  # puts in one transaction


@dataclass(slots=True, eq=False)
class Feed:
    """One feed as its author has it."""

    name: FeedName
    live: int  # bytes of its document
    head: Head | None = None
    size: int = field(default=0)

    def change(self, random: Random) -> Entry:
        """Write a part of the document again, or all of it in another epoch."""
        change = ENVELOPE + random.randrange(20, max(self.live // 4, 21))
        if self.head is None or self.size + change > 2 * self.snapshot:
            epoch = self.head.epoch + 1 if self.head else 1
            return self._entry(random, Head(epoch, 0, b""), NO_PARENT, self.snapshot, 0)
        head = self.head
        return self._entry(
            random, Head(head.epoch, head.seq + 1, b""), head.hash, change, self.size
        )

    @property
    def snapshot(self) -> int:
        """The bytes of a snapshot, as it travels."""
        return ENVELOPE + self.live

    def _entry(self, random: Random, at: Head, parent: bytes, size: int, before: int) -> Entry:
        digest = random.randbytes(32)
        entry = Entry(self.name, at.epoch, at.seq, parent, 0, b"", digest, random.randbytes(size))
        self.head, self.size = entry.head, before + size
        return entry


def arrive(random: Random) -> tuple[PeerId, list[Feed]]:
    peer = peer_id_of(random.randbytes(32))
    feeds = [
        Feed(FeedName(peer, kind, 0), 50 + int(random.expovariate(1 / mean)) % (10 * mean))
        for kind, mean in KINDS.items()
    ]
    return peer, feeds


def day(members: dict[PeerId, list[Feed]], random: Random) -> Iterator[Work]:
    """Yield the departures, arrivals and changes of a day, in any order."""
    gone = random.sample(sorted(members), int(LEAVE * len(members)))
    for peer in gone:
        del members[peer]
        yield Drop([peer])
    new = dict(arrive(random) for _ in gone)
    members.update(new)
    changing = [feed for feeds in new.values() for feed in feeds]
    everybody = [feed for feeds in members.values() for feed in feeds]
    changing += random.choices(everybody, k=int(CHANGES * len(everybody)))
    random.shuffle(changing)
    for feed in changing:
        yield Put([feed.change(random)])


def keep(store: Store, works: Iterator[Work]) -> tuple[int, float]:
    """Store all works; return their number, and the CPU seconds."""
    count, seconds = 0, 0.0
    while batch := [work for _, work in zip(range(TOGETHER), works, strict=False)]:
        began = time.process_time()
        if any(store.commit(batch)):
            raise SystemExit("a put was refused")
        while store.loose:
            store.make_smaller()
        seconds += time.process_time() - began
        count += len(batch)
    return count, seconds


def start(folder: Path) -> tuple[float, float]:
    """Open the store and read all of it; return CPU seconds and elapsed seconds."""
    cpu, wall = time.process_time(), time.monotonic()
    store, after = Store(RealFiles().database(folder / "state.db")), -1
    while True:
        batch = store.feeds(after)
        if batch.damaged:
            raise SystemExit("a feed is damaged")
        if batch.after is None:
            break
        after = batch.after
    store.close()
    return time.process_time() - cpu, time.monotonic() - wall


def month(folder: Path, count: int, days: int) -> dict[str, float]:
    random, files = Random(1), RealFiles()
    members = dict(arrive(random) for _ in range(count))
    everybody = [feed for feeds in members.values() for feed in feeds]
    random.shuffle(everybody)
    rss = psutil.Process().memory_info().rss
    store = Store(files.database(folder / "state.db"))
    puts, cpu = keep(store, (Put([feed.change(random)]) for feed in everybody))
    worst = dense = grown = 0.0
    for number in range(days):
        done, seconds = keep(store, day(members, random))
        puts, cpu = puts + done, cpu + seconds
        used = sum(entry.size for entry in files.list(folder))
        feeds = [feed for listed in members.values() for feed in listed if feed.head]
        live = sum(feed.snapshot for feed in feeds)
        worst, dense = max(worst, used / live), used / sum(feed.size for feed in feeds)
        grown = max(grown, psutil.Process().memory_info().rss - rss)
        print(f"day {number + 1}: {used / 1e6:.1f} MB, {used / live:.3f}, {dense:.3f}", flush=True)
    store.close()
    cpu_s, wall_s = start(folder)
    return {
        "worst": worst,
        "files_by_entries": dense,
        "live_mb": live / 1e6,
        "files_mb": used / 1e6,
        "process_grew_mb": grown / 1e6,
        "puts": puts,
        "put_cpu_us": cpu / puts * 1e6,
        "start_cpu_s": cpu_s,
        "start_s": wall_s,
        "largest_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,000 members, 8 days")
    args = parser.parse_args()
    memory = Path("/dev/shm")  # only sizes are measured: no need to wait for a disk
    parent = memory if memory.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="shoal-disk-", dir=parent))
    try:
        figures = month(folder, *((1000, 8) if args.quick else (10_000, 30)))
    finally:
        shutil.rmtree(folder)
    figures = {name: round(figure, 3) for name, figure in figures.items()}
    worst = figures.pop("worst")
    goal = QUICK_GOAL if args.quick else GOAL
    result = {"name": "state_disk", "value": worst, "goal": goal, "ok": worst <= goal, **figures}
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
