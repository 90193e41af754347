"""The archive in memory stores entries as every archive must."""

from shoal.state.feeds.archive import MemoryArchive
from shoal.state.feeds.entry import FORKED, Proof
from tests.state.fake_feeds import Writer, at_once


def test_entries_are_stored_in_order() -> None:
    archive, writer = MemoryArchive(), Writer(1)
    entries = [writer.write(a={"v": number}) for number in range(5)]
    at_once(archive.put(entries[:3]))
    at_once(archive.put(entries))  # the first ones are stored already
    name, sealed = entries[0].name, [entry.sealed for entry in entries]
    assert at_once(archive.entries(name, 1, 0, 10**6)) == sealed
    assert at_once(archive.entries(name, 1, 3, 10**6)) == sealed[3:]
    assert at_once(archive.entries(name, 1, 1, 0)) == sealed[1:2]
    assert at_once(archive.entries(name, 2, 0, 10**6)) == []
    (stored,) = at_once(archive.load())
    assert (stored.name, stored.head) == (name, entries[-1].head)
    assert stored.bytes == sum(entry.size for entry in entries)
    assert archive.sizes() == {name: (stored.bytes, 5)}


def test_an_epoch_replaces_earlier_entries() -> None:
    archive, writer = MemoryArchive(), Writer(1)
    first = writer.write(a={"v": 1})
    writer.next_epoch()
    second = writer.write(a={"v": 2})
    at_once(archive.put([first, second, first]))
    assert at_once(archive.entries(first.name, 1, 0, 10**6)) == []
    assert at_once(archive.entries(first.name, 2, 0, 10**6)) == [second.sealed]


def test_a_proof_replaces_all_entries_until_its_author_is_dropped() -> None:
    archive, one, other = MemoryArchive(), Writer(1), Writer(1)
    entry = one.write(a={"v": 1})
    proof = Proof.of(entry, other.write(a={"v": 2}))
    at_once(archive.put([entry]))
    at_once(archive.put_proof(entry.name, proof))
    at_once(archive.put([entry]))
    assert at_once(archive.entries(entry.name, 1, 0, 10**6)) == []
    assert at_once(archive.proof(entry.name)) == proof
    assert [stored.head for stored in at_once(archive.load())] == [FORKED]
    at_once(archive.drop([one.peer]))
    assert at_once(archive.proof(entry.name)) is None
    assert at_once(archive.load()) == []
