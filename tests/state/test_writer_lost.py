"""After a loss of stored own feeds, all of them are written again, and nothing else."""

import pytest
import trio

from shoal.state import defaults
from shoal.state.feeds.entry import seal_entry
from shoal.state.feeds.feed import EntryOutcome
from tests.state.feeds.test_writer import ALICE, JOBS, MEMBER, Node
from tests.state.test_service import MODEL, Swarm, run


def earlier() -> Node:
    """Return a run that finds two feeds, and has written nothing to one of them."""
    before = Node()
    before.writer.set("member", 0, "version", {"v": "1"})
    before.writer.set("jobs", 0, "one", {"a": 1})
    before.flush()
    again = Node(before.entries)
    again.wall = before.wall
    again.writer.set("member", 0, "version", {"v": "1"})  # written already
    assert again.flush() == []
    return again


def test_unchanged_feeds_are_written_again() -> None:
    node = earlier()
    before = {name: feed.head for name, feed in node.feeds.items()}
    node.writer.renew()
    assert node.writer.wake(node.now) == 0.0
    entries = node.flush()
    assert {entry.name for entry in entries} == {JOBS, MEMBER}
    for entry in entries:
        head = before[entry.name]
        assert entry.seq == 0 and head is not None and entry.epoch > head.epoch
    assert node.seen() == {"one": {"a": 1}} and node.seen(MEMBER) == {"version": {"v": "1"}}
    assert node.writer.wake(node.now) is None and node.flush() == [], "once"
    node.writer.set("jobs", 0, "two", {"a": 2})
    assert [entry.seq for entry in node.flush()] == [1]


def test_facts_of_this_run_are_written_again_in_a_new_epoch() -> None:
    node = Node()
    node.writer.set("jobs", 0, "one", {"a": 1})
    (first,) = node.flush()
    node.writer.renew()
    (again,) = node.flush()
    assert again.seq == 0 and again.epoch > first.epoch and node.seen() == {"one": {"a": 1}}


def test_facts_lost_while_being_stored_are_written_again() -> None:
    node = Node()
    node.writer.set("jobs", 0, "one", {"a": 1})
    (flying,) = node.writer.flush(1.0, node.wall)
    node.writer.renew()
    assert node.writer.wake(9.0) is None, "not while one is being stored"
    node.writer.stored([flying])
    node.now = 9.0
    (again,) = node.flush()
    assert again.epoch > flying.epoch and node.seen() == {"one": {"a": 1}}


def test_lost_feeds_are_written_again_until_they_are_stored() -> None:
    """A disk that damages rows may refuse as well. Fails if the first attempt is the last."""
    node = earlier()
    node.writer.renew()
    for _ in range(3):
        node.now, node.wall = node.now + 9, node.wall + 9000
        entries = node.writer.flush(node.now, node.wall)
        assert len(entries) == 2
        node.writer.failed(entries)
    node.now += 9
    assert len(node.flush()) == 2 and node.writer.wake(node.now) is None


def test_a_feed_that_has_forked_or_is_empty_is_not_written_again() -> None:
    node = earlier()
    (mine,) = [entry for entry in node.entries if entry.name == JOBS]
    twin = seal_entry(
        ALICE, "jobs", 0, epoch=mine.epoch, seq=0, parent=mine.parent, made=1, update=mine.update
    )
    assert node.feed(JOBS).compare(mine, twin).outcome is EntryOutcome.FORK
    node.writer.renew()
    assert [entry.name for entry in node.flush()] == [MEMBER]


@pytest.mark.parametrize("runs", [1, 2])
def test_own_feeds_survive_damage_of_the_store(runs: int) -> None:
    """With 2 runs, the second one has nothing to add to the entries of the first."""

    async def body(swarm: Swarm) -> None:
        one = await swarm.node()
        one.state.set("models", "mine", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 10)
        if runs == 2:
            await one.stop()
            await one.start()
            await trio.sleep(defaults.WRITE_HOLD + 10)
        store = one.state.committer.store
        assert store is not None
        store.database.run("UPDATE entries SET sealed = x'00'")
        assert (await one.state.inspection.verified()).damaged
        await trio.sleep(5)
        await one.stop()
        await one.start()
        await trio.sleep(3)
        assert one.names() == ["mine"]

    run(body)
