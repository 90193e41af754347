"""Facts become entries that peers accept, and no number is ever used twice."""

import random

import msgpack
import pytest

from shoal.state import defaults
from shoal.state.errors import FeedFull
from shoal.state.feeds.entry import Entry, FeedName, open_entry, seal_entry
from shoal.state.feeds.feed import EntryOutcome, Feed
from shoal.state.feeds.kinds import KINDS
from shoal.state.feeds.writer import ENTRY_OVERHEAD, FeedWriter
from shoal.transport.identity import Identity

ALICE = Identity.from_seed(b"a" * 32)
JOBS = FeedName(ALICE.peer, "jobs", 0)
MEMBER = FeedName(ALICE.peer, "member", 0)
WALL = 1_700_000_000_000  # ms


class Node:
    """A writer with its feeds, the entries it stored, and a replica that follows them."""

    def __init__(self, stored: "list[Entry] | None" = None, **options: float) -> None:
        self.now = 0.0
        self.wall = WALL
        self.entries: list[Entry] = []
        self.feeds: dict[FeedName, Feed] = {}
        self.elsewhere: dict[FeedName, Feed] = {}
        for entry in stored or []:
            assert self.feed(entry.name).admit(entry).outcome is EntryOutcome.NEWS
            self.follow(entry)
        self.writer = FeedWriter(ALICE, self.feed, lot=lambda n: n // 2, **options)

    def feed(self, name: FeedName) -> Feed:
        return self.feeds.setdefault(name, Feed(name))

    def follow(self, entry: Entry) -> None:
        self.entries.append(entry)
        copy = self.elsewhere.setdefault(entry.name, Feed(entry.name))
        assert copy.admit(open_entry(entry.sealed)).outcome is EntryOutcome.NEWS

    def flush(self) -> list[Entry]:
        """Return the entries written after the pause, which are stored and replicated."""
        self.now += defaults.WRITE_PAUSE
        self.wall += 250
        entries = self.writer.flush(self.now, self.wall)
        for entry, verdict in self.writer.stored(entries):
            assert verdict.outcome is EntryOutcome.NEWS
            self.follow(entry)
        return entries

    def seen(self, name: FeedName = JOBS) -> dict[str, object]:
        """The facts as the replica has them."""
        document = self.elsewhere[name].document
        assert document
        return {key: msgpack.unpackb(value) for key, value in document.facts().items()}


def numbers(entries: list[Entry]) -> list[int]:
    return [entry.seq for entry in entries]


def test_facts_reach_a_replica() -> None:
    node = Node()
    node.writer.set("jobs", 0, "one", {"a": 1})
    node.writer.set("jobs", 0, "long", {"b": bytes(500)})
    node.writer.set("member", 0, "version", {"v": "1"})
    assert sorted(entry.name.kind for entry in node.flush()) == ["jobs", "member"]
    node.writer.set("jobs", 0, "two", {"a": 2})
    node.writer.set("jobs", 0, "one", {"a": 3})
    assert numbers(node.flush()) == [1]
    assert node.seen() == {"one": {"a": 3}, "two": {"a": 2}, "long": {"b": bytes(500)}}
    node.writer.set("jobs", 0, "one", None)
    assert numbers(node.flush()) == [2]
    assert list(node.seen()) == ["long", "two"]
    assert node.seen(MEMBER) == {"version": {"v": "1"}}


def test_changes_share_entries_and_no_empty_entry_is_written() -> None:
    node = Node()
    writer = node.writer
    assert writer.wake(0.0) is None
    writer.set("jobs", 0, "a", {"n": 1})
    assert writer.wake(0.0) == 0.0
    node.flush()
    writer.set("jobs", 0, "a", {"n": 1})
    assert writer.wake(node.now) is None, "the fact is written already"
    writer.set("jobs", 0, "a", {"n": 2})
    writer.set("jobs", 0, "b", {"n": 1})
    assert writer.flush(node.now + 0.1, node.wall) == []
    assert writer.wake(node.now + 0.1) == pytest.approx(defaults.WRITE_PAUSE - 0.1)
    writer.set("jobs", 0, "b", None)
    assert len(node.flush()) == 1
    assert node.seen() == {"a": {"n": 2}}
    writer.set("jobs", 0, "a", {"n": 3})
    writer.set("jobs", 0, "a", {"n": 2})
    assert node.flush() == [] and writer.wake(node.now) is None


def test_many_changes_are_written_in_as_few_entries_as_possible() -> None:
    node = Node()
    node.writer.set("jobs", 0, "first", {})
    node.flush()
    for number in range(1000):
        node.writer.set("jobs", 0, f"{number}", {"n": number})
    assert numbers(node.flush()) == [1]
    assert len(node.seen()) == 1001
    node = Node()
    for number in range(8):
        node.writer.set("jobs", 0, f"old {number}", {"b": bytes(15_000)})
    node.flush()
    for number in range(8):
        node.writer.set("jobs", 0, f"{number}", {"b": bytes(15_000)})
    written = [entry for _ in range(4) for entry in node.flush()]
    assert numbers(written) == [1, 2]
    assert all(len(entry.update) <= defaults.UPDATE_BYTES for entry in written)
    assert len(node.seen()) == 16


def test_a_long_history_is_replaced_by_a_snapshot() -> None:
    node = Node()
    epochs = set()
    for turn in range(300):
        node.writer.set("member", 0, f"{turn % 7}", {"n": turn})
        (entry,) = node.flush()
        epochs.add(entry.epoch)
        live = node.writer.own[MEMBER].live_bytes
        assert node.feeds[MEMBER].size <= 2 * (live + ENTRY_OVERHEAD)
    assert 10 < len(epochs) < 200
    assert node.seen(MEMBER) == {f"{turn % 7}": {"n": turn} for turn in range(293, 300)}


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_writes_stays_within_the_limits(kind: str) -> None:
    """Control: a writer that ignores the limits would in the end have its entries refused."""
    node = Node()
    name = FeedName(ALICE.peer, kind, 0)
    full = KINDS[kind].keys
    for turn in range(400):
        node.writer.set(kind, 0, f"{turn * 7 % (full + 50)}", {"n": turn})
        if turn > 50:
            node.writer.set(kind, 0, f"{(turn - 50) * 7 % (full + 50)}", None)
        node.flush()
    feed = node.elsewhere[name]
    assert feed.head == node.feeds[name].head and len(node.seen(name)) <= 51


def test_a_full_feed_refuses_facts_until_it_has_space() -> None:
    node = Node()
    writer = node.writer
    with pytest.raises(FeedFull) as refusal:
        for number in range(100):
            writer.set("member", 0, f"{number}", {"b": bytes(1000)})
    assert refusal.value.code == "feed-full"
    held = len(writer.own[MEMBER].facts)
    node.flush()
    assert len(node.seen(MEMBER)) == held
    writer.set("member", 0, "0", None)
    writer.set("member", 0, "again", {"b": bytes(990)})
    for _ in range(3):
        node.flush()
    assert "again" in node.seen(MEMBER)


def test_a_fact_as_large_as_the_feed_is_written() -> None:
    node = Node()
    for turn in range(3):
        room = KINDS["member"].live_bytes - 39 - turn
        node.writer.set("member", 0, "k", {"b": bytes(room)})
        assert numbers(node.flush()) == [0], "it fits into a snapshot, but not into an update"
        assert node.seen(MEMBER) == {"k": {"b": bytes(room)}}
    with pytest.raises(FeedFull):
        node.writer.set("member", 0, "k", {"b": bytes(room + 9)})


def test_entries_of_untouched_feeds_are_admitted() -> None:
    node, other = Node(), Node()
    other.writer.set("jobs", 0, "a", {})
    (entry,) = other.flush()
    node.feeds[JOBS] = Feed(JOBS, entry.head, entry.size)  # its document is not in memory
    assert node.writer.takes(entry, 0.0)


def test_keys_of_a_feed_are_limited() -> None:
    node = Node()
    for number in range(KINDS["member"].keys):
        node.writer.set("member", 0, f"{number}", {})
    with pytest.raises(FeedFull):
        node.writer.set("member", 0, "more", {})
    node.flush()
    node.writer.set("member", 0, "7", None)
    node.writer.set("member", 0, "more", {})
    node.flush()
    assert len(node.seen(MEMBER)) == KINDS["member"].keys


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("k", {"b": bytes(defaults.FACT_BYTES)}, "fact-too-large"),
        ("k" * (defaults.FACT_KEY_BYTES + 1), {}, "fact-too-large"),
        ("", {}, "fact-too-large"),
        ("\ud800", {}, "bad-fact"),
        ("k", {"t": "\ud800"}, "bad-fact"),
        ("k", {"n": 2**70}, "bad-fact"),
    ],
)
def test_facts_that_cannot_be_encoded_are_refused(
    key: str, value: dict[str, object], code: str
) -> None:
    with pytest.raises(FeedFull) as refusal:
        Node().writer.set("jobs", 0, key, value)
    assert refusal.value.code == code


def test_each_run_begins_an_epoch_with_the_stored_facts() -> None:
    first = Node()
    for number in range(3):
        first.writer.set("jobs", 0, f"{number}", {"n": number})
        first.flush()
    again = Node(first.entries)
    again.wall = first.wall
    again.writer.set("jobs", 0, "0", {"n": 0})
    assert again.flush() == [], "the facts are written already: no entry, no epoch"
    again.writer.set("jobs", 0, "3", {"n": 3})
    (entry,) = again.flush()
    assert entry.seq == 0 and entry.epoch > first.entries[-1].epoch
    assert sorted(again.seen()) == ["0", "1", "2", "3"]
    again.writer.set("jobs", 0, "3", None)
    assert numbers(again.flush()) == [1]


def test_a_restored_old_copy_does_not_fork() -> None:
    """The store was copied, entries were written, and the copy was put back. A writer that
    continues in the copy's epoch (control) forks its feed."""
    first = Node()
    first.writer.set("jobs", 0, "a", {"n": 1})
    first.flush()
    copy = list(first.entries)
    first.writer.set("jobs", 0, "b", {"n": 2})
    first.flush()

    restored = Node(copy)
    restored.wall = first.wall + 1000
    restored.writer.set("jobs", 0, "c", {"n": 3})
    swarm = first.elsewhere[JOBS]
    (entry,) = restored.flush()
    assert (
        swarm.admit(entry).outcome is EntryOutcome.NEWS and swarm.head == restored.feed(JOBS).head
    )

    going_on = Node(copy)
    going_on.writer.set("jobs", 0, "c", {"n": 3})
    going_on.writer.own[JOBS].epoch = copy[-1].epoch
    (wrong,) = going_on.flush()
    assert wrong.seq == 1
    other = Node(first.entries).feed(JOBS)
    assert other.admit(wrong).outcome is EntryOutcome.CHECK
    assert other.compare(first.entries[1], wrong).outcome is EntryOutcome.FORK


def test_lost_facts_come_back_from_peers_before_a_write() -> None:
    first = Node()
    for key in "ab":
        first.writer.set("jobs", 0, key, {"n": 1})
        first.flush()
    lost = Node(held_until=defaults.WRITE_HOLD)
    lost.writer.set("jobs", 0, "c", {"n": 2})
    assert lost.flush() == [] and lost.writer.wake(lost.now) == pytest.approx(9.75)
    for entry in first.entries:
        assert lost.writer.takes(entry, lost.now)
        assert lost.feed(JOBS).admit(entry).outcome is EntryOutcome.NEWS
    peers = [Identity.from_seed(bytes([n]) * 32).peer for n in range(3)]
    for peer in (peers[0], peers[1], peers[1]):
        assert not lost.writer.reported(peer, linked=5)
        assert lost.flush() == []
    assert lost.writer.reported(peers[2], linked=5)
    assert not lost.writer.reported(peers[2], linked=5)  # the writer no longer waits
    lost.wall = first.wall
    lost.elsewhere = first.elsewhere
    assert numbers(lost.flush()) == [0]
    assert sorted(lost.seen()) == ["a", "b", "c"]


def test_fewer_than_three_peers_are_enough_if_there_are_no_more() -> None:
    node = Node(held_until=defaults.WRITE_HOLD)
    node.writer.set("jobs", 0, "c", {"n": 2})
    node.writer.reported(Identity.from_seed(b"p" * 32).peer, linked=1)
    assert numbers(node.flush()) == [0]


def test_a_clock_set_back_still_gives_a_later_epoch() -> None:
    first = Node()
    first.writer.set("jobs", 0, "a", {})
    first.flush()
    again = Node(first.entries)
    again.wall = 1000
    again.writer.set("jobs", 0, "b", {})
    (entry,) = again.flush()
    assert entry.epoch == first.entries[-1].epoch + 1 + defaults.EPOCH_LOT // 2


def test_another_process_with_this_key_is_answered_with_a_later_epoch() -> None:
    node, other = Node(), Node()
    node.writer.set("jobs", 0, "mine", {})
    node.flush()
    other.wall += 60_000
    other.writer.set("jobs", 0, "theirs", {})
    (theirs,) = other.flush()
    assert not node.writer.takes(theirs, node.now) and node.writer.contested_at == node.now
    assert not node.writer.takes(theirs, node.now + 1)
    assert node.writer.contested_at == node.now, "noted once"
    node.writer.set("jobs", 0, "more", {})
    assert node.writer.wake(node.now) == pytest.approx(defaults.RECLAIM_PAUSE)
    assert node.flush() == []
    node.now += defaults.RECLAIM_PAUSE
    (answer,) = node.flush()
    assert answer.epoch > theirs.epoch and answer.seq == 0
    assert sorted(node.seen()) == ["mine", "more"]
    assert node.writer.wake(node.now) is None


def test_returning_own_entries_change_nothing() -> None:
    node = Node()
    node.writer.set("jobs", 0, "a", {})
    (entry,) = node.flush()
    assert node.writer.takes(entry, node.now) and node.writer.contested_at < 0
    assert node.feed(JOBS).admit(entry).outcome is EntryOutcome.KNOWN


def test_a_failed_entry_is_written_again_with_another_number() -> None:
    """It may have been stored nonetheless, so another entry with its number would be a fork."""
    node = Node()
    node.writer.set("jobs", 0, "a", {"n": 1})
    node.flush()
    node.writer.set("jobs", 0, "b", {"n": 1})
    node.now += 1
    (lost,) = node.writer.flush(node.now, node.wall)
    node.writer.set("jobs", 0, "b", {"n": 2})
    node.writer.set("jobs", 0, "c", {"n": 1})
    assert node.writer.flush(node.now + 9, node.wall) == [], "not while one is being stored"
    node.writer.failed([lost])
    (entry,) = node.flush()
    assert (entry.epoch, entry.seq) > (lost.epoch, lost.seq) and entry.seq == 0
    assert node.seen() == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 1}}


def test_the_number_of_a_failed_snapshot_is_not_reused() -> None:
    node = Node()
    node.writer.set("jobs", 0, "a", {"n": 1})
    (lost,) = node.writer.flush(1.0, node.wall)
    node.writer.failed([lost])
    (entry,) = node.writer.flush(2.0, lost.epoch)
    assert entry.epoch > lost.epoch


def test_a_forked_feed_is_not_written() -> None:
    node = Node()
    node.writer.set("jobs", 0, "a", {"n": 1})
    (mine,) = node.flush()
    node.writer.set("jobs", 0, "b", {"n": 1})
    (flying,) = node.writer.flush(node.now + 1, node.wall)
    twin = seal_entry(
        ALICE, "jobs", 0, epoch=mine.epoch, seq=0, parent=mine.parent, made=1, update=mine.update
    )
    assert node.feed(JOBS).compare(mine, twin).outcome is EntryOutcome.FORK
    ((_, verdict),) = node.writer.stored([flying])
    assert verdict.code == "forked"
    assert node.writer.wake(node.now) is None and node.flush() == []
    with pytest.raises(FeedFull):
        node.writer.set("jobs", 0, "c", {})


@pytest.mark.parametrize("update", [b"", bytes(200), bytes(defaults.UPDATE_BYTES)], ids=len)
def test_the_overhead_constant_is_an_upper_bound(update: bytes) -> None:
    most = 2**53 - 1
    entry = seal_entry(
        ALICE, "member", 0, epoch=most, seq=most, parent=bytes(32), made=most, update=update
    )
    assert ENTRY_OVERHEAD - 12 < entry.size - len(update) <= ENTRY_OVERHEAD


@pytest.mark.parametrize("seed", range(30))
def test_no_number_is_used_twice(seed: int) -> None:
    """Crashes, lost stores, old copies, full disks and clocks that jump by an hour."""
    rng = random.Random(seed)
    disk: list[Entry] = []  # the entries that a start would find
    backup: list[Entry] = []
    given: dict[tuple[int, int], bytes] = {}  # told to a peer, or perhaps stored

    def started(entries: list[Entry]) -> Node:
        node = Node()
        node.wall, node.now = WALL + rng.randrange(-3_600_000, 3_600_000), 0.0
        node.writer = FeedWriter(ALICE, node.feed, lot=rng.randrange)
        for entry in entries:
            assert node.feed(JOBS).admit(entry).outcome is EntryOutcome.NEWS
        return node

    def keep(entry: Entry) -> None:
        disk[:] = [entry] if entry.seq == 0 else [*disk, entry]

    node = started(disk)
    for turn in range(120):
        event = rng.choices(("write", "fail", "crash", "copy", "restore"), (70, 8, 8, 6, 8))[0]
        if event in ("write", "fail"):
            key = rng.choice("abcdef")
            node.writer.set("jobs", 0, key, {"n": turn})
            node.now, node.wall = node.now + 1, node.wall + rng.choice((0, 1, 1000))
            (entry,) = node.writer.flush(node.now, node.wall)
            assert given.setdefault((entry.epoch, entry.seq), entry.hash) == entry.hash
            if event == "write":
                keep(entry)
                node.writer.stored([entry])
            else:
                node.writer.failed([entry])
                if rng.random() < 0.5:
                    keep(entry)  # it was stored nonetheless
                    node = started(disk)
        elif event == "copy":
            backup = list(disk)
        else:
            if event == "restore":
                disk[:] = backup
            node = started(disk)
    assert len(given) > 60


def test_a_writer_that_continues_its_store_uses_numbers_twice() -> None:
    """Control for the test above: the copy's epoch is continued."""
    first = Node()
    first.writer.set("jobs", 0, "a", {})
    (begun,) = first.flush()
    numbers_given = []
    for value in (1, 2):
        node = Node([begun])
        node.writer.set("jobs", 0, "b", {"n": value})
        node.writer.own[JOBS].epoch = begun.epoch
        (entry,) = node.flush()
        numbers_given.append((entry.epoch, entry.seq))
    assert len(set(numbers_given)) == 1


def test_pending_facts_can_be_read() -> None:
    """This holds before a fact is written, after that, and for facts of an earlier run."""
    node = Node()
    node.writer.set("jobs", 0, "one", {"a": 1})
    node.writer.set("jobs", 0, "two", {"a": 2})
    assert node.writer.get("jobs", 0, "one") == msgpack.packb({"a": 1})
    assert node.writer.get("jobs", 0, "none") is None
    node.flush()
    assert node.writer.get("jobs", 0, "one") == msgpack.packb({"a": 1})
    again = Node(node.entries)
    assert again.writer.get("jobs", 0, "one") == msgpack.packb({"a": 1})
    again.writer.set("jobs", 0, "one", None)
    again.writer.set("jobs", 0, "two", {"a": 3})
    assert again.writer.get("jobs", 0, "one") is None
    assert again.writer.get("jobs", 0, "two") == msgpack.packb({"a": 3})
    again.flush()
    assert again.writer.get("jobs", 0, "one") is None
