"""What is in memory while the disk refuses: bounded, in order, readable."""

from shoal.state import defaults
from shoal.state.entry import Proof
from shoal.state.held import Held
from shoal.state.work import Drop, Put, Work

from .chains import chain, identity, name, sealed


def test_what_is_held_follows_what_is_stored() -> None:
    entries, held = chain(1, 5), Held(10**6)
    stored = sealed(entries[:2])
    assert held.after(stored, name(1), 1, 0, 10**6) == stored
    held.add(Put(entries[2:4]))
    held.add(Put(entries[4:]))
    assert held.after(stored, name(1), 1, 0, 10**6) == sealed(entries)
    assert held.after([], name(1), 1, 3, 10**6) == sealed(entries[3:])
    assert held.after([], name(1), 1, 3, 1) == sealed(entries[3:4])
    assert held.after([], name(1), 2, 3, 10**6) == []
    assert held.after([], name(2), 1, 3, 10**6) == []
    room = sum(entry.size for entry in entries[:3])
    assert held.after(stored, name(1), 1, 0, room) == sealed(entries[:3])


def test_works_leave_in_their_order() -> None:
    entries, held = chain(1, 2), Held(10**6)
    proof = Proof.of(chain(2, 1)[0], chain(2, 1, salt=b"x")[0])
    works: list[Work] = [Put(entries), proof, Drop([identity(3).peer])]
    for work in works:
        assert held.add(work)
    assert held.proof(name(2)) == proof
    assert held.first(1) == works[:1]
    assert held.first(10**6) == works
    held.forget(1)
    assert held.first(10**6) == works[1:]
    assert held.after([], name(1), 1, 0, 10**6) == []
    held.forget(2)
    assert not held and held.proof(name(2)) is None


def test_memory_is_bounded() -> None:
    entries = chain(1, 20, size=1000)
    held = Held(limit=5000 + 5 * defaults.HELD_WORK)
    taken = [held.add(Put([entry])) for entry in entries]
    assert taken == [True] * 4 + [False] * 16
    held.forget(1)
    assert held.add(Put(entries[4:5]))
    few = Held(limit=10 * defaults.HELD_WORK)
    assert sum(few.add(Drop([identity(1).peer])) for _ in range(20)) == 10
