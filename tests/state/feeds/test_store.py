"""The store extends chains only in order, notices damaged rows, and gives space back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from shoal.netsim.clock import Events
from shoal.netsim.daemons.files import DiskFiles
from shoal.netsim.disk.disk import Disk
from shoal.netsim.disk.mount import Mount, Operation, replay
from shoal.state.errors import BadOrder, FeedDamaged
from shoal.state.feeds import store as store_file
from shoal.state.feeds import stored as stored_file
from shoal.state.feeds.entry import FORKED, Proof
from shoal.state.feeds.kinds import KINDS
from shoal.state.feeds.store import DeleteFeeds, Drop, FeedCut, Put, Store, Work
from shoal.state.feeds.stored import StoredFeed
from shoal.transport.errors import DatabaseDamaged, HostError
from shoal.transport.host.real import RealHost

from ..chains import chain, identity, name, sealed

PLACE = Path("/state.db")


class Place:
    """A simulated disk with one store."""

    def __init__(self) -> None:
        self.disk = Disk(Events(), Random(1))
        self.mount = Mount(self.disk)
        self.files = DiskFiles(self.mount)

    @contextmanager
    def opened(self) -> Iterator[Store]:
        store = Store(self.files.database(PLACE))
        try:
            yield store
        finally:
            store.close()

    def change(self, statement: str, *values: int | bytes | str) -> None:
        """Change the database without the store."""
        database = self.files.database(PLACE)
        assert database.run(statement, *values) > 0
        database.close()


def done(store: Store, *works: Work) -> None:
    assert store.commit(works) == [None] * len(works)


def everything(store: Store) -> list[StoredFeed]:
    found, after = list[StoredFeed](), -1
    while True:
        batch = store.feeds(after)
        assert not batch.damaged
        found += batch.feeds
        if batch.after is None:
            return found
        after = batch.after


def test_entries_come_back_after_a_restart() -> None:
    place = Place()
    first, second = chain(1, 3), chain(2, 2, kind="shards", part=15)
    with place.opened() as store:
        done(store, Put(first), Put(second[:1]))
        done(store, Put(second[1:]))
    with place.opened() as store:
        assert everything(store) == [
            StoredFeed(name(1), first[-1].head, sum(e.size for e in first), tuple(sealed(first))),
            StoredFeed(
                name(2, "shards", 15),
                second[-1].head,
                sum(e.size for e in second),
                tuple(sealed(second)),
            ),
        ]
        assert store.entries(name(1), 1, 1, 10**6) == sealed(first[1:])
        assert store.entries(name(1), 2, 0, 10**6) == []
        assert store.entries(name(1), 1, 3, 10**6) == []
        assert store.entries(name(3), 1, 0, 10**6) == []
        limit = first[0].size + first[1].size
        assert store.entries(name(1), 1, 0, limit) == sealed(first[:2])
        assert store.entries(name(1), 1, 2, 1) == sealed(first[2:]), "one at least"


def test_only_entries_that_follow_are_stored() -> None:
    place = Place()
    entries, other = chain(1, 3), chain(1, 3, salt=b"other")
    later = chain(1, 2, epoch=5)
    with place.opened() as store:
        for bad in (entries[1:], [entries[0], entries[2]], [entries[0], other[1]], later[1:]):
            (error,) = store.commit([Put(bad)])
            assert isinstance(error, BadOrder)
        assert everything(store) == [], "nothing of a refused change stays"
        done(store, Put(entries))
        done(store, Put(entries[1:]))  # a second time
        (error,) = store.commit([Put(other[1:2])])
        assert isinstance(error, BadOrder), "a fork does not overwrite the stored entry"
        done(store, Put(later[:1]))
        (error,) = store.commit([Put(entries[:1])])
        assert isinstance(error, BadOrder), "an epoch that was replaced does not come back"
        (feed,) = everything(store)
        assert feed.entries == tuple(sealed(later[:1]))


def test_a_bad_change_does_not_affect_others_in_its_transaction() -> None:
    place = Place()
    with place.opened() as store:
        results = store.commit([Put(chain(1, 2)), Put(chain(2, 2)[1:]), Put(chain(3, 1))])
        assert [result is None for result in results] == [True, False, True]
        assert [feed.name for feed in everything(store)] == [name(1), name(3)]


def test_a_fork_leaves_only_the_proof() -> None:
    place = Place()
    entries, other = chain(1, 3), chain(1, 3, salt=b"other")
    proof = Proof.of(entries[2], other[2])
    with place.opened() as store:
        done(store, Put(entries), Put(chain(1, 1, kind="jobs")))
        done(store, proof)
        longer = Proof.of(entries[0], chain(1, 1, size=500)[0])
        assert longer.size != proof.size
        done(store, longer)
        assert store.proof(name(1)) == proof, "the first one is enough"
        assert store.proof(name(2)) is None
        (error,) = store.commit([Put(chain(1, 1, epoch=9))])
        assert isinstance(error, BadOrder)
    with place.opened() as store:
        forked, jobs = everything(store)
        assert (forked.name, forked.head, forked.entries) == (name(1), FORKED, ())
        assert forked.size == proof.size
        assert jobs.name == name(1, "jobs")
        assert store.proof(name(1)) == proof


def test_a_cut_leaves_the_entries_up_to_it() -> None:
    place, entries = Place(), chain(1, 5)
    with place.opened() as store:
        done(store, Put(entries), FeedCut(name(1), entries[2].head))
        (feed,) = everything(store)
        assert (feed.head, feed.entries) == (entries[2].head, tuple(sealed(entries[:3])))
        assert feed.size == sum(entry.size for entry in entries[:3])
        done(store, FeedCut(name(1), entries[2].head), Put(entries[3:]))
        assert everything(store)[0].head == entries[4].head
    with place.opened() as store:
        assert everything(store)[0].size == sum(entry.size for entry in entries)


@pytest.mark.parametrize("forked", [False, True])
def test_a_cut_at_a_missing_entry_leaves_nothing(forked: bool) -> None:
    place, entries, others = Place(), chain(1, 3), chain(1, 3, salt=b"x")
    with place.opened() as store:
        done(store, Put(entries))
        if forked:
            done(store, Proof.of(entries[0], others[0]))
        done(store, FeedCut(name(1), others[1].head))
        assert everything(store) == []
        assert store.proof(name(1)) is None
        done(store, Put(others), FeedCut(name(2), others[1].head))
        assert everything(store)[0].head == others[2].head


def test_dropped_authors_leave_nothing() -> None:
    place = Place()
    with place.opened() as store:
        for number in range(1, 4):
            done(store, *(Put(chain(number, 2, kind=kind)) for kind in KINDS))
        done(store, Proof.of(chain(2, 1, kind="jobs")[0], chain(2, 1, kind="jobs", salt=b"x")[0]))
        done(store, Drop([identity(2).peer, identity(9).peer]), DeleteFeeds([name(3, "jobs")]))
        found = {(feed.name.author, feed.name.kind) for feed in everything(store)}
        assert found == {(identity(1).peer, kind) for kind in KINDS} | {
            (identity(3).peer, kind) for kind in KINDS if kind != "jobs"
        }
        database = place_rows(store)
        assert database("SELECT count(*) FROM authors") == 2
        assert database("SELECT count(*) FROM proofs") == 0
        assert database("SELECT count(*) FROM entries") == 2 * (2 * len(KINDS) - 1)
        done(store, Put(chain(2, 1)))


def place_rows(store: Store) -> Callable[[str], int]:
    def count(statement: str) -> int:
        row = store.database.row(statement)
        assert row is not None
        number: int = row[0]
        return number

    return count


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        ("UPDATE entries SET sealed = zeroblob(length(sealed)) WHERE id & 4095 = 1", ()),
        ("UPDATE entries SET sum = zeroblob(8) WHERE id & 4095 = 2", ()),
        ("UPDATE entries SET id = id + 7 WHERE id & 4095 = 2", ()),
        ("DELETE FROM entries WHERE id & 4095 = 0", ()),
        ("DELETE FROM entries WHERE id & 4095 = 2", ()),
        ("UPDATE feeds SET seq = 1", ()),
        ("UPDATE feeds SET seq = -1", ()),
        ("UPDATE feeds SET epoch = 2", ()),
        ("UPDATE feeds SET hash = zeroblob(32)", ()),
        ("UPDATE feeds SET size = size + 1", ()),
        ("UPDATE feeds SET id = id + 16", ()),
        ("UPDATE authors SET key = ?", (bytes(range(32)),)),
        ("UPDATE authors SET key = ?", (b"short",)),
        ("UPDATE authors SET id = id + 1", ()),
        ("DELETE FROM authors", ()),
        ("DELETE FROM feeds", ()),
    ],
)
def test_rows_that_changed_are_noticed_and_removed(statement: str, values: tuple[bytes]) -> None:
    place, good = Place(), chain(7, 3, kind="usage")
    with place.opened() as store:
        done(store, Put(chain(1, 3)))
    place.change(statement, *values)
    with place.opened() as store:
        done(store, Put(good))  # by an author behind
        batch = store.feeds()
        while batch.after is not None:
            assert [feed.name for feed in batch.feeds if feed.name != name(7, "usage")] == []
            batch = store.feeds(batch.after)
        assert [feed.name for feed in everything(store)] == [name(7, "usage")]
        count = place_rows(store)
        assert count("SELECT count(*) FROM entries") == 3
        done(store, Put(chain(1, 3)))
        assert len(everything(store)) == 2


def test_damage_on_a_full_disk_is_dropped_later() -> None:
    place = Place()
    with place.opened() as store:
        done(store, Put(chain(1, 3)), Put(chain(2, 1)))
    place.change("DELETE FROM feeds WHERE id < 2 << 12")
    spec = place.disk.spec
    with place.opened() as store:
        place.disk.spec = replace(spec, capacity=place.disk.used)
        for _ in range(2):
            batch = store.feeds()
            assert [feed.name for feed in batch.feeds] == [name(2)]
        place.disk.spec = spec
        done(store, Put(chain(1, 2)))
        assert {feed.name: len(feed.entries) for feed in everything(store)} == {
            name(1): 2,
            name(2): 1,
        }


def test_without_the_sums_damage_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store_file, stored_file):
        monkeypatch.setattr(module, "entry_sum", lambda *_: bytes(8))
    place = Place()
    with place.opened() as store:
        done(store, Put(chain(1, 3)))
    place.change("UPDATE entries SET sealed = zeroblob(length(sealed)) WHERE id & 4095 = 1")
    with place.opened() as store:
        assert len(everything(store)) == 1


def test_an_outdated_page_is_noticed() -> None:
    """As if a write never reached the disk: each row is sound, but from another epoch of the
    feed."""
    place, old, new = Place(), chain(1, 3, epoch=1), chain(1, 3, epoch=2)
    with place.opened() as store:
        done(store, Put(old))
        (row,) = store.database.rows("SELECT id, sealed, sum FROM entries WHERE id & 4095 = 1")
        done(store, Put(new))
    place.change("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", *row)
    with place.opened() as store:
        with pytest.raises(FeedDamaged):
            store.entries(name(1), 2, 0, 10**6)
        assert store.feeds().damaged == [name(1)]
        assert everything(store) == []


def test_damage_of_the_disk_is_noticed_while_the_store_is_open(tmp_path: Path) -> None:
    """Fails if earlier reads are answered from the cache."""
    path, entries = tmp_path / "state.db", chain(1, 3)
    store = Store(RealHost().files.database(path))
    done(store, Put(entries))
    store.close()
    store = Store(RealHost().files.database(path))
    assert len(everything(store)) == 1
    data = path.read_bytes()
    piece = entries[1].sealed[48:80]  # part of its signature
    assert data.count(piece) == 1
    path.write_bytes(data.replace(piece, bytes(32)))
    assert store.feeds().damaged == [name(1)]
    store.close()


def test_a_damaged_proof_is_noticed() -> None:
    place = Place()
    with place.opened() as store:
        done(store, Proof.of(chain(1, 1)[0], chain(1, 1, salt=b"x")[0]))
    place.change("UPDATE proofs SET first = zeroblob(100)")
    with place.opened() as store, pytest.raises(FeedDamaged):
        store.proof(name(1))


def test_a_reader_notices_missing_entries() -> None:
    place = Place()
    with place.opened() as store:
        done(store, Put(chain(1, 3)))
        store.database.run("DELETE FROM entries WHERE id & 4095 = 2")
        with pytest.raises(FeedDamaged):
            store.entries(name(1), 1, 0, 10**6)
        assert len(store.entries(name(1), 1, 0, 1)) == 1


def test_a_store_of_a_later_version_is_left_alone() -> None:
    place = Place()
    with place.opened() as store:
        done(store, Put(chain(1, 1)))
    database = place.files.database(PLACE)
    database.run(f"PRAGMA user_version={store_file.VERSION + 1}")
    database.close()
    with pytest.raises(HostError, match="later version"), place.opened():
        pass


def test_feeds_of_a_removed_kind_are_deleted() -> None:
    place = Place()
    with place.opened() as store:
        done(store, Put(chain(1, 1)), Put(chain(1, 1, kind="jobs")))
    place.change("UPDATE kinds SET name = 'other' WHERE name = 'jobs'")
    with place.opened() as store:
        assert [feed.name for feed in everything(store)] == [name(1)]
        done(store, Put(chain(1, 1, kind="jobs")))
        assert len(everything(store)) == 2


def test_a_store_without_its_tables_is_damaged() -> None:
    place = Place()
    with place.opened():
        pass
    database = place.files.database(PLACE)
    database.run("DROP TABLE feeds")
    database.close()
    with pytest.raises(DatabaseDamaged), place.opened():
        pass


def test_the_end_note_of_earlier_versions_is_ignored() -> None:
    place = Place()
    with place.opened() as store:
        done(store, Put(chain(1, 1)))
    place.change("INSERT INTO meta VALUES ('closed', x'')")
    with place.opened() as store:
        done(store, Put(chain(2, 1)))
        store.probe()
        assert [feed.name for feed in everything(store)] == [name(1), name(2)]


def test_closing_a_store_writes_nothing_more() -> None:
    place = Place()
    with place.opened() as store:
        done(store, Put(chain(1, 1)))
    with place.opened() as store:
        assert store.database.rows("SELECT name FROM meta LIMIT 2") == []


def test_feeds_are_read_in_batches() -> None:
    place = Place()
    with place.opened() as store:
        for number in range(1, 40):
            done(store, Put(chain(number, 1, kind="jobs", size=50_000)))
        batch, batches = store.feeds(), 0
        while batch.after is not None:
            assert 0 < len(batch.feeds) < 30
            batch, batches = store.feeds(batch.after), batches + 1
        assert batches == 2


def test_free_space_is_given_back() -> None:
    place = Place()
    with place.opened() as store:
        for number in range(1, 101):
            done(store, Put(chain(number, 1, kind="jobs", size=50_000)))
        full = place.disk.used
        done(store, Drop([identity(number).peer for number in range(1, 91)]))
        slices = 0
        while store.loose:
            store.make_smaller()
            slices += 1
        assert 3 < slices < 20
    assert place.disk.used < full / 5
    with place.opened() as store:
        assert len(everything(store)) == 10


def cut_short(log: list[Operation], seed: int) -> set[int] | None:
    """Replay a log of disk operations and cut the power. Return the authors whose three entries are
    stored, or None if the store is damaged."""
    disk = Disk(Events(), Random(seed))
    mount = Mount(disk)
    replay(mount, log)
    disk.events.run_until(disk.busy_until)
    disk.crash()
    try:
        store = Store(DiskFiles(Mount(disk)).database(PLACE))
        batch = store.feeds()
    except (DatabaseDamaged, FileNotFoundError):
        return None
    peers = {identity(number).peer: number for number in range(1, 31)}
    whole = {peers[feed.name.author] for feed in batch.feeds if len(feed.entries) == 3}
    return None if batch.damaged or len(whole) < len(batch.feeds) else whole


def test_every_commit_survives_a_power_loss_at_any_point() -> None:
    place, when = Place(), list[int]()
    log = place.mount.log = list[Operation]()
    with place.opened() as store:
        for number in range(1, 31):
            done(store, Put(chain(number, 3, kind="jobs", size=10_000)))
            when.append(len(log))
    stream, lost = Random(1), 0
    for seed in range(40):
        at = stream.randrange(when[0], len(log))
        acknowledged = {number for number, end in enumerate(when, 1) if end <= at}
        assert acknowledged <= (cut_short(log[:at], seed) or set())
        unsynced = [item for item in log[:at] if "sync" not in item[0]]
        lost += not acknowledged <= (cut_short(unsynced, seed) or set())
    assert lost > 20, "control: without the syncs some are lost"
