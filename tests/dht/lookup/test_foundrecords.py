"""foundrecords: records are verified, the latest counts, and a liar is a single witness."""

import pytest

from shoal.dht import defaults
from shoal.dht.kademlia.messages import Aged, FindReply
from shoal.dht.lookup.foundrecords import FoundRecords
from tests.dht.nodes import WALL, blob, peer, record, sealed

KEY = blob(1).key


def handed(*listed: Aged) -> FindReply:
    return FindReply((listed,), ((),))


def test_all_records_of_a_reply_count_or_none() -> None:
    """One invalid record makes the whole reply worthless."""
    good = Aged(0, sealed(blob(1)))
    for bad, code in (
        (b"junk", "bad-signature"),
        (sealed(blob(1))[:-1] + b"\0", "bad-signature"),
        (sealed(blob(2)), "bad-type"),
    ):
        found = FoundRecords([KEY])
        assert found.take(peer(9), handed(good, Aged(0, bad)), WALL) == code
        assert found.of(KEY) == [] and not found.enough(1, witnesses=False)
        assert found.take(peer(9), handed(good), WALL) == ""  # twin: without the invalid record
        assert len(found.of(KEY)) == 1


def test_expired_records_do_not_count() -> None:
    old = sealed(blob(1), made=WALL - 20_000)
    for aged in (Aged(3600, sealed(blob(1))), Aged(0, old)):
        found = FoundRecords([KEY])
        assert found.take(peer(9), handed(aged), WALL) == ""
        assert found.of(KEY) == []


def test_the_latest_record_counts_and_withdrawn_ones_do_not() -> None:
    found = FoundRecords([KEY])
    later = record(blob(1), made=WALL + 5)
    found.take(peer(8), handed(Aged(0, later.sealed)), WALL)
    found.take(peer(9), handed(Aged(9, sealed(blob(1)))), WALL)
    assert [each.record for each in found.of(KEY)] == [later]
    found.take(peer(7), handed(Aged(2, later.sealed)), WALL)
    (one,) = found.of(KEY)
    assert one.age == 0 and one.by == peer(8)
    gone = sealed(blob(1), made=WALL + 9, gone=True)
    found.take(peer(9), handed(Aged(0, gone)), WALL)
    assert found.of(KEY) == []
    assert [each.record.sealed for each in found.gone(KEY)] == [gone]


def test_enough_counts_authors() -> None:
    found = FoundRecords([KEY])
    for number, aged in enumerate(
        (Aged(0, sealed(blob(1))), Aged(0, sealed(blob(1), made=WALL + 1)))
    ):
        found.take(peer(number), handed(aged), WALL)
        assert not found.enough(2, witnesses=True)
    found.take(peer(1), handed(Aged(0, sealed(blob(1), 2))), WALL)
    assert found.enough(2, witnesses=True)


def test_enough_applies_to_each_key() -> None:
    found = FoundRecords([KEY, blob(2).key])
    found.take(peer(9), FindReply(((Aged(0, sealed(blob(1))),), ()), ((), ())), WALL)
    assert not found.enough(1, witnesses=False)
    found.take(peer(9), FindReply(((), (Aged(0, sealed(blob(2))),)), ((), ())), WALL)
    assert found.enough(1, witnesses=False)


@pytest.mark.parametrize("defended", [True, False])
def test_one_node_is_one_witness(defended: bool) -> None:
    """It may invent any number of authors. Twin: if witnesses do not count, they are enough."""
    found = FoundRecords([KEY])
    forged = [Aged(0, sealed(blob(1), 100 + n)) for n in range(16)]
    found.take(peer(9), handed(*forged), WALL)
    assert found.enough(16, witnesses=defended) is not defended
    for number in range(1, defaults.WITNESSES):
        assert found.enough(16, witnesses=defended) is not defended
        found.take(peer(number), handed(forged[0]), WALL)
    assert found.enough(16, witnesses=defended)
