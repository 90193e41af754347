"""Replicas that saw the same entries are equal, whatever the order of arrival."""

import random
from dataclasses import replace

import pytest

from shoal.state import defaults
from shoal.state.errors import BadEntry
from shoal.state.feeds import feed as module
from shoal.state.feeds.entry import FORKED, NO_PARENT, Entry, FeedName, Proof, client_of, seal_entry
from shoal.state.feeds.feed import Document, EntryOutcome, EntryVerdict, Feed, snapshot
from shoal.state.feeds.kinds import KINDS
from shoal.transport.identity import Identity

ALICE = Identity.from_seed(b"a" * 32)
NAME = FeedName(ALICE.peer, "member", 0)
KIND = KINDS["member"]
Facts = dict[str, bytes | None]


def sealed(epoch: int, seq: int, parent: bytes, update: bytes, made: int = 0) -> Entry:
    return seal_entry(
        ALICE, "member", 0, epoch=epoch, seq=seq, parent=parent, made=made, update=update
    )


def chain(epoch: int, *steps: Facts, made: int = 0) -> list[Entry]:
    """Return the entries of an epoch: a snapshot of the first step, then an update for each
    other."""
    document = Document(KIND, client_of(NAME, epoch))
    entries: list[Entry] = []
    for step in steps:
        update = document.write(step)
        document.apply(update)
        parent = entries[-1].hash if entries else NO_PARENT
        entries.append(sealed(epoch, len(entries), parent, update, made))
    return entries


def fed(*entries: Entry) -> Feed:
    feed = Feed(NAME)
    for entry in entries:
        assert feed.admit(entry).outcome is EntryOutcome.NEWS
    return feed


def facts(feed: Feed) -> dict[str, bytes]:
    assert feed.document is not None
    return feed.document.facts()


OLD = chain(5, {"a": b"1"}, {"b": b"2"}, {"a": None, "c": b"3"})
NEW = chain(6, {"z": b"9"}, {"a": b"8"})


def test_entries_are_stored_in_order() -> None:
    feed = Feed(NAME)
    assert feed.head is None
    assert feed.admit(OLD[0]) == EntryVerdict(EntryOutcome.NEWS, changed={"a": b"1"}, fresh=True)
    assert feed.admit(OLD[1]) == EntryVerdict(EntryOutcome.NEWS, changed={"b": b"2"})
    assert feed.admit(OLD[2]).changed == {"a": None, "c": b"3"}
    assert feed.head == OLD[2].head
    assert feed.size == sum(entry.size for entry in OLD)
    assert facts(feed) == {"b": b"2", "c": b"3"}


def test_known_entries_and_gaps() -> None:
    feed = fed(OLD[0])
    assert feed.admit(OLD[2]).outcome is EntryOutcome.GAP
    assert feed.admit(NEW[1]).outcome is EntryOutcome.GAP
    assert Feed(NAME).admit(OLD[1]).outcome is EntryOutcome.GAP
    assert feed.admit(OLD[0]).outcome is EntryOutcome.KNOWN
    feed.admit(OLD[1])
    assert feed.admit(OLD[0]).outcome is EntryOutcome.CHECK
    assert feed.compare(OLD[0], OLD[0]).outcome is EntryOutcome.KNOWN
    assert feed.head == OLD[1].head


def test_a_later_epoch_replaces_all_facts() -> None:
    feed = fed(*OLD)
    assert feed.admit(NEW[0]) == EntryVerdict(EntryOutcome.NEWS, changed={"z": b"9"}, fresh=True)
    assert facts(feed) == {"z": b"9"} and feed.size == NEW[0].size
    for entry in OLD:
        assert feed.admit(entry).outcome is EntryOutcome.OLD
    assert feed.admit(NEW[1]).outcome is EntryOutcome.NEWS


def test_a_fork_empties_the_feed_for_good() -> None:
    other = chain(5, {"a": b"1"}, {"b": b"2"}, made=1)
    feed = fed(*OLD[:2])
    assert feed.admit(other[1]).outcome is EntryOutcome.CHECK
    verdict = feed.compare(OLD[1], other[1])
    assert verdict == EntryVerdict(EntryOutcome.FORK, proof=Proof.of(OLD[1], other[1]), fresh=True)
    assert feed.forked and feed.head == FORKED and feed.document is None
    assert feed.size == OLD[1].size + other[1].size, "the size of the proof"
    for entry in (*OLD, *NEW):
        assert feed.admit(entry) == EntryVerdict(EntryOutcome.REFUSED, code="forked")
    assert feed.compare(OLD[0], other[0]).outcome is EntryOutcome.KNOWN
    assert feed.load(OLD) and feed.document is None


def test_a_proof_counts_for_any_epoch() -> None:
    twins = chain(3, {"a": b"1"})[0], chain(3, {"a": b"2"})[0]
    for feed in (Feed(NAME), fed(*OLD)):
        assert feed.fork(Proof.of(*twins)).outcome is EntryOutcome.FORK
        assert feed.fork(Proof.of(*twins)).outcome is EntryOutcome.KNOWN
        assert feed.head == FORKED


def refused(feed: Feed, entry: Entry) -> str:
    """Return the code of a refusal, after checking that the feed is unchanged."""
    before = feed.head, feed.size, feed.document and feed.document.facts()
    verdict = feed.admit(entry)
    assert verdict.outcome is EntryOutcome.REFUSED and not verdict.changed
    assert (feed.head, feed.size, feed.document and feed.document.facts()) == before
    return verdict.code


def test_the_chain_is_checked() -> None:
    feed = fed(*OLD[:2])
    assert refused(feed, replace(OLD[2], parent=OLD[0].hash)) == "bad-chain"
    assert refused(feed, replace(NEW[0], parent=OLD[1].hash)) == "bad-chain"


def test_bad_updates_are_refused_without_a_change() -> None:
    feed = fed(*OLD[:2])
    head = OLD[1].hash
    for update in (b"", b"\0\0", bytes.fromhex("8088debe01"), OLD[1].update, NEW[1].update):
        assert refused(feed, sealed(5, 2, head, update)) == "bad-update"
        if update != b"\0\0":
            assert refused(feed, sealed(7, 0, NO_PARENT, update)) == "bad-update"
    assert feed.admit(OLD[2]).outcome is EntryOutcome.NEWS
    assert feed.admit(sealed(7, 0, NO_PARENT, b"\0\0")).outcome is EntryOutcome.NEWS


def test_sizes_are_limited() -> None:
    value = bytes(defaults.FACT_BYTES)
    document = Document(replace(KIND, live_bytes=2**20), client_of(NAME, 5))
    document.apply(OLD[0].update)
    large = document.write({"x": value, "y": value})
    assert refused(fed(OLD[0]), sealed(5, 1, OLD[0].hash, large)) == "too-large"
    wide = snapshot(KINDS["jobs"], client_of(NAME, 7), {"x": value, "y": value})
    assert refused(fed(OLD[0]), sealed(7, 0, NO_PARENT, wide)) == "too-large"
    for seq, parent, most in ((0, NO_PARENT, KIND.live_bytes), (1, OLD[0].hash, KIND.update_bytes)):
        for size, code in ((most, "bad-update"), (most + 1, "too-large")):
            garbage = sealed(5 + (seq == 0), seq, parent, bytes(size))
            assert refused(fed(OLD[0]), garbage) == code, "before it is read"
    lone = document.write({"x": value})
    assert len(lone) > KIND.live_bytes > KIND.live_bytes - 20
    assert refused(fed(OLD[0]), sealed(5, 1, OLD[0].hash, lone)) == "too-large"


def grown(feed: Feed, document: Document, epoch: int = 5) -> Entry:
    head = feed.head
    assert head
    update = document.write({"a": bytes(100)})
    document.apply(update)
    return sealed(epoch, head.seq + 1, head.hash, update)


def test_an_epoch_is_full_at_its_bytes() -> None:
    feed, document = fed(OLD[0]), Document(KIND, client_of(NAME, 5))
    document.apply(OLD[0].update)
    while feed.size + (entry := grown(feed, document)).size <= KIND.epoch_bytes:
        assert feed.admit(entry).outcome is EntryOutcome.NEWS
    assert refused(feed, entry) == "epoch-full"
    assert feed.size <= KIND.epoch_bytes
    assert feed.admit(NEW[0]).outcome is EntryOutcome.NEWS, "a new epoch is admitted"


def test_an_epoch_is_full_at_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "member", replace(KIND, entries=3))
    feed, document = fed(*OLD), Document(KIND, client_of(NAME, 5))
    for entry in OLD:
        document.apply(entry.update)
    assert refused(feed, grown(feed, document)) == "epoch-full"


def test_a_feed_without_its_document_requests_a_load() -> None:
    feed = fed(*OLD[:2])
    feed = Feed(NAME, feed.head, feed.size)
    assert feed.document is None and feed.admit(OLD[1]).outcome is EntryOutcome.KNOWN
    assert feed.admit(OLD[2]).outcome is EntryOutcome.LOAD and feed.head == OLD[1].head
    assert not feed.load(OLD[:1]) and feed.document is None
    assert feed.load(OLD[1:2])
    assert feed.admit(OLD[2]).outcome is EntryOutcome.NEWS
    assert (feed.head, feed.size, facts(feed)) == (
        OLD[2].head,
        fed(*OLD).size,
        {"b": b"2", "c": b"3"},
    )


def test_a_later_epoch_needs_no_document() -> None:
    feed = Feed(NAME, OLD[1].head, 999)
    assert not feed.load(OLD[:1])
    assert feed.admit(NEW[0]).fresh and feed.size == NEW[0].size and facts(feed) == {"z": b"9"}


@pytest.mark.parametrize(
    "stored",
    [
        OLD[1:],
        [OLD[0], OLD[2]],
        [*OLD, *NEW],
        [NEW[0]],
        chain(5, {"a": b"1"}, {"b": b"2"}, {"a": None, "c": b"3"}, made=1),
        [OLD[0], sealed(5, 1, OLD[0].hash, OLD[1].update, made=1), OLD[2]],
        [OLD[0], OLD[1], replace(OLD[2], update=b"\0")],
        [OLD[0], OLD[1], replace(OLD[2], hash=bytes(32))],
    ],
    ids=[
        "no snapshot",
        "a hole",
        "too many",
        "other epoch",
        "other",
        "one other",
        "bad update",
        "other head",
    ],
)
def test_a_damaged_store_is_noticed(stored: list[Entry]) -> None:
    with pytest.raises(BadEntry) as error:
        Feed(NAME, OLD[2].head, 999).load(stored)
    assert error.value.code == "damaged"


def test_entries_of_another_feed_are_a_callers_mistake() -> None:
    other = Feed(FeedName(ALICE.peer, "jobs", 0))
    with pytest.raises(AssertionError):
        other.admit(OLD[0])


class Replica:
    """A feed together with its stored entries, as in a replica."""

    def __init__(self) -> None:
        self.feed = Feed(NAME)
        self.kept: dict[int, Entry] = {}
        self.proof: Proof | None = None

    def hear(self, entry: Entry) -> None:
        verdict = self.feed.admit(entry)
        if verdict.outcome is EntryOutcome.CHECK:
            verdict = self.feed.compare(self.kept[entry.seq], entry)
        if verdict.outcome is EntryOutcome.NEWS:
            self.kept = ({} if verdict.fresh else self.kept) | {entry.seq: entry}
        if verdict.proof is not None:
            self.kept, self.proof = {}, verdict.proof

    def exchange(self, other: "Replica") -> None:
        """Give each replica all that the other one has, its proof first."""
        for this, that in ((self, other), (other, self)):
            if that.proof is not None and this.feed.fork(that.proof).proof is not None:
                this.kept, this.proof = {}, that.proof
            for entry in [that.kept[seq] for seq in sorted(that.kept)]:
                this.hear(entry)


def bad_entries() -> list[Entry]:
    """Return signed entries that every node refuses, and that fork no number in use."""
    return [
        sealed(5, 3, OLD[2].hash, b"garbage"),
        sealed(6, 2, bytes(32), NEW[1].update),
        sealed(9, 0, NO_PARENT, b"garbage"),
    ]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("forks", [0, 1], ids=["one chain", "a fork"])
def test_replicas_agree_in_any_order_of_arrival(seed: int, forks: int) -> None:
    rng = random.Random(seed)
    said = [*OLD, *NEW, *bad_entries()]
    twins = chain(6, {"z": b"9"}, {"a": b"7"}, made=1) if forks else []
    replicas = Replica(), Replica(), Replica()
    for replica in replicas:
        heard = [*said, *twins]
        rng.shuffle(heard)
        for entry in heard[: rng.randrange(len(heard) + 1)]:
            replica.hear(entry)
    for entry in (*OLD, *NEW):  # an honest node has them all
        replicas[0].hear(entry)
    for entry in twins:
        replicas[2].hear(entry)
    for _ in range(3):
        replicas[0].exchange(replicas[1])
        replicas[1].exchange(replicas[2])
    heads = {replica.feed.head for replica in replicas}
    assert heads == {FORKED if forks else NEW[1].head}


def test_without_the_refusals_replicas_would_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a limit that depends on more than the feed, here on the order of arrival."""
    first, second = fed(*OLD), fed(*OLD)
    garbage = sealed(5, 3, OLD[2].hash, b"garbage")
    monkeypatch.setattr(module, "applied", lambda document, entry: {})
    assert first.admit(garbage).outcome is EntryOutcome.NEWS
    monkeypatch.undo()
    assert second.admit(garbage).outcome is EntryOutcome.REFUSED
    assert first.head != second.head
