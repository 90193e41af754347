"""Memory of a node with ten thousand members for a month, compared with the live facts in it.

One process is the members: they write, sign and compact their feeds, and a tenth of them per day
leave for good while as many join. The other is the node: a replica with its views over a real store
that takes all of that in. At the end it is compared with a process that only has the views with the
live facts, and with a node that starts from the same store. (The 512 latest of the departed members
are still kept.) Besides the views a node has heads and sizes of the feeds, 0.15 KB each; keys of
authors and of facts; obsolete claims, until their job is tidied; documents, the database's cache
and the code that reads all this, 5 MB.

`value` is the growth of the node's process (resident, after a garbage collection), divided by the
memory of the views alone. Goal: 2. `--quick` is 1,000 members and 8 days, where fixed costs (the
database's cache, documents in memory) weigh more, with its own goal: 6.
"""

import argparse
import gc
import json
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final

import msgpack
import pycrdt  # noqa: F401  # a library is no content
import state_views
from state_views import OWN, Swarm
from worlds.replicanode import at_once

from shoal.state.feeds.archive import ArchivedFeed
from shoal.state.feeds.entry import (
    NO_PARENT,
    Entry,
    FeedName,
    Head,
    Proof,
    client_of,
    seal_entry,
)
from shoal.state.feeds.kinds import KINDS
from shoal.state.feeds.scan import DocumentFacts, write_update
from shoal.state.feeds.store import DeleteFeeds, Drop, FeedCut, Put, Store, Work
from shoal.state.replication.replica import Replica
from shoal.state.views.views import Views
from shoal.transport.host.allocator import give_back, keep_freed_memory
from shoal.transport.host.realfiles import RealFiles
from shoal.transport.identity import Identity, PeerId, public_key_of

MEASURES = ("state", "bench/worlds/replicanode.py", "transport", "netsim")

GOAL, QUICK_GOAL = 2.0, 6.0
LEAVE: Final = 0.1  # of the members, per day
CHANGES: Final = 0.1  # per feed and day, on average
TOGETHER: Final = 100  # entries passed on at once
EPOCH: Final = 1_700_000_000_000


@dataclass(slots=True)
class Feed:
    """One feed as its author has it."""

    author: Identity
    name: FeedName
    facts: dict[str, bytes]
    ledger: DocumentFacts = field(default_factory=lambda: DocumentFacts(1, 1))
    epoch: int = EPOCH - 1
    head: tuple[int, bytes] = (-1, NO_PARENT)
    size: int = 0
    least: int = 0  # of the epoch's first entry

    def begin(self) -> Entry:
        self.epoch += 1
        self.ledger = DocumentFacts(client_of(self.name, self.epoch), KINDS[self.name.kind].keys)
        self.head, self.size = (-1, NO_PARENT), 0
        entry = self._seal(dict(self.facts))
        self.least = entry.size
        return entry

    def change(self, random: Random) -> Entry:
        """Change one fact to another of as many bytes, or write all of them in another epoch."""
        key = random.choice(sorted(self.facts))
        fields = msgpack.unpackb(self.facts[key])
        self.facts[key] = msgpack.packb({**fields, "note": random.randrange(2**30)})
        if self.size > 2 * self.least:
            return self.begin()
        return self._seal({key: self.facts[key]})

    def _seal(self, changes: dict[str, bytes]) -> Entry:
        update = write_update(self.ledger, changes)
        seq, parent = self.head
        entry = seal_entry(
            self.author, self.name.kind, self.name.part,
            epoch=self.epoch, seq=seq + 1, parent=parent, made=0, update=update,
        )  # fmt: skip
        self.ledger.record(changes)
        self.head, self.size = (seq + 1, entry.hash), self.size + entry.size
        return entry


def arrive(first: int, count: int) -> dict[PeerId, list[Feed]]:
    identities = (Identity.from_seed((first + number).to_bytes(32)) for number in range(count))
    members = {identity.peer: identity for identity in identities}
    found: dict[PeerId, list[Feed]] = {peer: [] for peer in members}
    for name, facts in Swarm(first, list(members)).feeds.items():
        found[name.author].append(Feed(members[name.author], name, facts))
    return found


def members(pipe: Connection, count: int, days: int) -> None:
    """Run the other process: send the members, then what they write, day by day, and the facts at
    the end.
    """
    random, came = Random(1), count
    there = arrive(1, count)
    entries = [feed.begin() for feeds in there.values() for feed in feeds]
    for number in range(days + 1):
        if number:
            new = arrive(1 + came, int(LEAVE * count))
            came += len(new)
            for peer in random.sample(sorted(there), len(new)):
                del there[peer]
            there |= new
            entries = [feed.begin() for feeds in new.values() for feed in feeds]
            feeds = [feed for feeds in there.values() for feed in feeds if feed.size]
            changing = random.choices(feeds, k=int(CHANGES * len(feeds)))
            entries += [feed.change(random) for feed in changing]
        else:
            random.shuffle(entries)
        pipe.send(list(there))
        for start in range(0, len(entries), TOGETHER):
            pipe.send([entry.sealed for entry in entries[start : start + TOGETHER]])
        pipe.send(None)
    pipe.send({f.name: f.facts for feeds in there.values() for f in feeds})


class StoreArchive:
    """`Archive` directly on a store: no other task runs here."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(RealFiles().database(folder / "state.db"))

    def _commit(self, work: Work) -> None:
        (error,) = self.store.commit([work])
        if error is not None:
            raise error
        while self.store.loose:
            self.store.make_smaller()

    def batches(self) -> Iterator[Any]:
        after: int | None = -1
        while after is not None:
            batch = self.store.feeds(after)
            yield from batch.feeds
            after = batch.after

    async def load(self) -> Sequence[ArchivedFeed]:
        return [ArchivedFeed(feed.name, feed.head, feed.size) for feed in self.batches()]

    async def entries(
        self, name: FeedName, epoch: int, from_seq: int, limit: int
    ) -> Sequence[bytes]:
        return self.store.entries(name, epoch, from_seq, limit)

    async def put(self, entries: Sequence[Entry]) -> None:
        self._commit(Put(tuple(entries)))

    async def put_proof(self, name: FeedName, proof: Proof) -> None:
        self._commit(proof)

    async def proof(self, name: FeedName) -> Proof | None:
        return self.store.proof(name)

    async def cut(self, name: FeedName, head: Head | None) -> None:
        self._commit(DeleteFeeds((name,)) if head is None else FeedCut(name, head))

    async def drop(self, authors: Collection[PeerId]) -> None:
        self._commit(Drop(tuple(authors)))

    async def forget(self, names: Sequence[FeedName]) -> None:
        self._commit(DeleteFeeds(tuple(names)))


def resident() -> float:
    """Return the MB of this process."""
    gc.collect()
    give_back()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def month(out: Connection, pipe: Connection, folder: Path, days: int) -> None:
    """Run the node; send its growth, day by day."""
    keep_freed_memory()
    before, cpu = resident(), time.process_time()
    archive = StoreArchive(folder)
    replica, views = Replica(OWN.peer, archive), Views()
    replica.watchers.append(views)
    grew, count = list[float](), 0
    for _ in range(days + 1):
        at_once(replica.grouped(pipe.recv()))
        while (batch := pipe.recv()) is not None:
            at_once(replica.take([(sealed,) for sealed in batch]))
            count += len(batch)
        grew.append(round(resident() - before, 1))
        print(f"day {len(grew) - 1}: {grew[-1]} MB", file=sys.stderr, flush=True)
    archive.store.close()
    out.send({"grew": grew, "entries": count, "cpu_s": time.process_time() - cpu,
              "kept": len(replica.authors), "facts": views_facts(views)})  # fmt: skip


def views_facts(views: Views) -> int:
    every = set(views._by_kind.values())
    feeds = (feed for view in every for said in view.facts.values() for feed in said.values())
    return sum(map(len, feeds))


def alone(out: Connection, facts: dict[FeedName, dict[str, bytes]]) -> None:
    """Run the views, and nothing else."""
    keep_freed_memory()
    before, views = resident(), Views()
    for name, said in facts.items():
        views.restored(name, said)
    out.send({"views": resident() - before, "facts": views_facts(views)})


def again(out: Connection, folder: Path, peers: list[PeerId]) -> None:
    """Run a node that starts."""
    keep_freed_memory()
    before = resident()
    archive = StoreArchive(folder)
    replica, views = Replica(OWN.peer, archive), Views()
    at_once(replica.grouped(peers))
    at_once(replica.restore())
    for feed in archive.batches():
        key, plot = public_key_of(feed.name.author), (feed.name.kind, feed.name.part)
        views.restored(feed.name, at_once(replica.facts(key, plot)))
    out.send({"started": resident() - before, "facts": views_facts(views)})


def child(work: Any, *args: Any) -> Any:
    """Return what a process of its own sends at its end."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=work, args=(its, *args))
    process.start()
    its.close()
    try:
        return mine.recv()
    finally:
        process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,000 members, 8 days")
    quick = parser.parse_args().quick
    count, days = (1_000, 8) if quick else (state_views.MEMBERS, 30)
    context = multiprocessing.get_context("spawn")
    node_end, members_end = context.Pipe()
    memory = Path("/dev/shm")  # the disk is not measured
    folder = Path(tempfile.mkdtemp(prefix="shoal-memory-", dir=memory if memory.is_dir() else None))
    try:
        writer = context.Process(target=members, args=(members_end, count, days))
        writer.start()
        figures = child(month, node_end, folder, days)
        facts = node_end.recv()
        writer.join()
        live = child(alone, facts)
        start = child(again, folder, sorted({name.author for name in facts}))
    finally:
        shutil.rmtree(folder)
    grew = figures.pop("grew")
    value, goal = round(max(grew[1:]) / live["views"], 3), QUICK_GOAL if quick else GOAL
    result = {
        "name": "state_memory",
        "value": value,
        "goal": goal,
        "ok": value <= goal,
        "grew_mb": grew[-1],
        "first_day_mb": grew[0],
        "views_alone_mb": round(live["views"], 1),
        "started_mb": round(start["started"], 1),
        "live_facts": live["facts"],
        **{name: round(figure, 1) for name, figure in figures.items()},
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
