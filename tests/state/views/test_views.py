"""The views get the entries that a replica takes in, and lose the feeds that it drops."""

from collections.abc import Mapping
from typing import Any

import msgpack
import pytest

from shoal.state import defaults
from shoal.state.feeds.entry import NO_PARENT, Entry, FeedName, Proof, client_of, seal_entry
from shoal.state.feeds.feed import Document, EntryOutcome, Feed, snapshot
from shoal.state.feeds.kinds import KINDS
from shoal.state.feeds.writer import FeedWriter
from shoal.state.membership.record import Capacity, MemberRecord, ModelName, ShardRecord
from shoal.state.views.jobs import Job, JobState, claim_fact, job_fact, job_id, new_claim
from shoal.state.views.members import ABOUT, CAPACITY, capacity_fact
from shoal.state.views.models import model_fact
from shoal.state.views.placements import shard_fact, shard_key
from shoal.state.views.usage import UsageCount, usage_fact, usage_key
from shoal.state.views.views import Views
from shoal.transport.identity import Identity
from tests.bombs import SMALL_BOMBS

ALICE = Identity.from_seed(b"a" * 32)
PEER = ALICE.peer
BOB = Identity.from_seed(b"b" * 32).peer
ROOT = "1" * 64
JOB = Job(job_id(PEER, b"n"), PEER, "sum", b"1+2", ("2" * 64,), 60.0, (BOB,))
CAN = Capacity(8, 2**30, True)
MODEL = ModelName("tiny", ROOT, 4, 100)
SHARD = ShardRecord(ROOT, True, 0, 4, True, "f", 9)
USED = UsageCount(1, 2, 3, 4)
Facts = Mapping[str, Mapping[str, Any] | None]
SAID: dict[tuple[str, int], Facts] = {
    ("member", 0): {
        ABOUT: {"version": "0.2"},
        CAPACITY: capacity_fact(CAN),
    },
    ("models", 0): {"tiny": model_fact(MODEL)},
    ("shards", 1): {shard_key(ROOT, 0): shard_fact(SHARD)},
    ("jobs", 0): {JOB.id: job_fact(JOB, b"n")},
    ("claims", 0): {JOB.id: claim_fact(new_claim(PEER, JOB.id, 1, done=True))},
    ("usage", 0): {usage_key(PEER, ROOT): usage_fact(USED)},
}


def packed(facts: Facts) -> dict[str, bytes | None]:
    return {key: None if v is None else msgpack.packb(v) for key, v in facts.items()}


class Author:
    """An author whose entries go to a node's feeds and views."""

    def __init__(self, views: Views) -> None:
        self.views = views
        self.feeds: dict[FeedName, Feed] = {}

    def say(self, kind: str, part: int, facts: Facts, *, epoch: int = 1) -> Entry:
        name = FeedName(PEER, kind, part)
        feed = self.feeds.setdefault(name, Feed(name))
        fresh = feed.head is None or feed.head.epoch < epoch
        document = Document(KINDS[kind], client_of(name, epoch)) if fresh else feed.document
        assert document is not None
        update = document.write(packed(facts))
        entry = seal_entry(
            ALICE,
            kind,
            part,
            epoch=epoch,
            seq=0 if fresh or feed.head is None else feed.head.seq + 1,
            parent=NO_PARENT if fresh or feed.head is None else feed.head.hash,
            made=0,
            update=update,
        )
        verdict = feed.admit(entry)
        assert verdict.outcome is EntryOutcome.NEWS
        self.views.changed(name, verdict)
        return entry

    def say_all(self) -> None:
        for (kind, part), facts in SAID.items():
            self.say(kind, part, facts)


def is_full(views: Views) -> bool:
    """Whether every view shows the facts. If not, checks that no view shows any."""
    shows = {
        PEER in views.members,
        views.models.get("tiny") is not None,
        views.placements.get(ROOT) is not None,
        JOB.id in views.jobs.all_in(JobState.DONE),
        views.usage.get(PEER) is not None,
    }
    assert len(shows) == 1
    return shows.pop()


def test_admitted_entries_reach_every_view() -> None:
    views = Views()
    Author(views).say_all()
    assert is_full(views) and views.bad == 0
    record = views.record(PEER)
    assert record is not None and record.capacity.cores == 8 and record.version == "0.2"
    assert [model.name for model in record.models] == ["tiny"] and len(record.shards) == 1


def test_views_read_what_a_writer_writes() -> None:
    """Values of own facts are within the bounds of every reader."""
    views, feeds = Views(), dict[FeedName, Feed]()
    writer = FeedWriter(ALICE, lambda name: feeds.setdefault(name, Feed(name)), lot=lambda most: 0)
    for (kind, part), facts in SAID.items():
        for key, value in facts.items():
            writer.set(kind, part, key, value)
    for entry, verdict in writer.stored(writer.flush(0.0, 1)):
        views.changed(entry.name, verdict)
    assert is_full(views) and views.bad == 0
    standing, record = views.jobs.get(JOB.id), views.record(PEER)
    assert standing is not None and standing.job == JOB and record is not None
    assert standing.claim == new_claim(PEER, JOB.id, 1, done=True)
    assert record.models == (MODEL,) and record.shards == (SHARD,)
    assert record.capacity == CAN and views.usage.get(PEER) == USED


def test_a_later_epoch_leaves_only_its_own_facts() -> None:
    views = Views()
    author = Author(views)
    author.say("models", 0, {name: model_fact(ModelName(name, ROOT, 4, 1)) for name in "abc"})
    author.say("models", 0, {"b": model_fact(ModelName("b", ROOT, 5, 1))}, epoch=2)
    assert set(views.models.names()) == {"b"}
    author.say("models", 0, {"d": model_fact(ModelName("d", ROOT, 5, 1)), "b": None}, epoch=2)
    assert set(views.models.names()) == {"d"}


def test_a_fork_removes_all_facts_of_the_feed() -> None:
    views = Views()
    author = Author(views)
    author.say_all()
    for (kind, part), feed in {(n.kind, n.part): f for n, f in author.feeds.items()}.items():
        update = snapshot(KINDS[kind], client_of(feed.name, 7), {})
        twins = (
            seal_entry(
                ALICE, kind, part, epoch=7, seq=0, parent=NO_PARENT, made=made, update=update
            )
            for made in (1, 2)
        )
        views.changed(feed.name, feed.fork(Proof.of(*twins)))
    assert not is_full(views) and views.record(PEER) == MemberRecord(PEER, seq=0)


def test_a_dropped_author_leaves_no_facts() -> None:
    views = Views()
    Author(views).say_all()
    views.dropped(BOB)
    assert is_full(views)
    views.dropped(PEER)
    assert not is_full(views)


def test_stored_facts_are_shown_after_a_start() -> None:
    views = Views()
    for (kind, part), facts in SAID.items():
        held = {key: msgpack.packb(value) for key, value in facts.items()}
        views.restored(FeedName(PEER, kind, part), held)
    assert is_full(views)
    views.restored(FeedName(PEER, "usage", 0), {})
    assert views.usage.get(PEER) is None


def test_malformed_facts_are_counted_and_skipped() -> None:
    views = Views()
    author = Author(views)
    author.say_all()
    views.restored(
        FeedName(PEER, "models", 0), {"tiny": b"\xc1", "other": msgpack.packb({"root": 1})}
    )
    assert views.bad == 2 and not list(views.models.names())
    views.restored(FeedName(PEER, "group", 0), {"a": b"\xc1"})
    assert views.bad == 2


def test_facts_of_authors_that_do_not_count_are_not_shown() -> None:
    """Fails if a view is updated before the check whether the author counts."""
    hidden: set[str] = {"shards"}
    views = Views(lambda peer, kind: kind not in hidden)
    author = Author(views)
    for (kind, part), facts in SAID.items():
        author.say(kind, part, facts)
    assert views.placements.get(ROOT) is None
    assert views.models.get("tiny") is not None
    hidden.add("models")
    views.hide(PEER, hidden)
    assert views.models.get("tiny") is None
    assert PEER in views.members
    hidden.clear()
    name = FeedName(PEER, "shards", 1)
    shard = msgpack.packb(shard_fact(SHARD))
    views.restored(name, {shard_key(ROOT, 0): shard})
    assert views.placements.get(ROOT) is not None


MANY = {f"model {number}": model_fact(MODEL) for number in range(3 * defaults.SHOWN_AT_ONCE)}


def test_a_feed_of_many_facts_is_shown_in_steps() -> None:
    """Other tasks run between the steps, and unchanged facts are visible all the time."""
    views, name = Views(), FeedName(PEER, "models", 0)
    facts = {key: value for key, value in packed(MANY).items() if value is not None}
    seen = [len(set(views.models.names())) for _ in views.restoring(name, facts)]
    assert seen == [defaults.SHOWN_AT_ONCE * step for step in (1, 2, 3)]
    kept = dict(list(facts.items())[: defaults.SHOWN_AT_ONCE // 2])
    seen = [len(set(views.models.names())) for _ in views.restoring(name, kept)]
    assert seen[0] == 2 * defaults.SHOWN_AT_ONCE and set(views.models.names()) == set(kept)


def test_slow_facts_are_shown_in_shorter_steps() -> None:
    """A snapshot of 4 KiB facts full of empty maps took 67 ms in one step."""
    slow = msgpack.packb({"a": [{}] * 4_000})
    most = defaults.SNAPSHOT_BYTES // len(slow)
    views, name = Views(), FeedName(PEER, "models", 0)
    steps = sum(1 for _ in views.restoring(name, {f"{n}": slow for n in range(most)}))
    assert steps >= most * len(slow) // (defaults.SHOWN_BYTES + len(slow))


def test_facts_hidden_meanwhile_are_not_shown() -> None:
    shown = [True]
    views, name = Views(lambda author, kind: shown[0]), FeedName(PEER, "models", 0)
    facts = {key: value for key, value in packed(MANY).items() if value is not None}
    for _ in views.restoring(name, facts):
        shown[0] = False
        views.hide(PEER, ["models"])
    assert not set(views.models.names())


@pytest.mark.parametrize("name", SMALL_BOMBS)
def test_a_bomb_is_a_malformed_fact(name: str) -> None:
    views = Views()
    feed = FeedName(PEER, "models", 0)
    views.restored(feed, {"bomb": SMALL_BOMBS[name], "b": msgpack.packb(model_fact(MODEL))})
    assert set(views.models.names()) == {"b"} and views.bad == 1
