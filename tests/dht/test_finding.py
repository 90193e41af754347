"""finding: merging records from several sources, and grouping keys into look-ups."""

from random import Random

from shoal.dht import defaults
from shoal.dht.finding import Gathering, regions
from shoal.dht.lookup.foundrecords import FoundRecord
from shoal.dht.records.key import SPACE, key_at
from shoal.dht.records.record import NameBody, open_record, seal_record
from shoal.transport.identity import Identity

ONE, TWO = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2))


def said(by: Identity, made: int, *, gone: bool = False, age: float = 0.0) -> FoundRecord:
    body = NameBody("tiny", "ab" * 32, 1, 1)
    sealed = seal_record(by, body, made=made, ttl=600, gone=gone)
    return FoundRecord(open_record(sealed), age, by.peer)


def test_the_latest_of_each_author() -> None:
    found = Gathering()
    found.add([said(ONE, 1), said(ONE, 3), said(TWO, 1), said(ONE, 2)])
    assert sorted(each.record.made for each in found.records()) == [1, 3]
    assert found.authors() == 2


def test_a_withdrawal_wins_over_older_records_of_other_sources() -> None:
    found = Gathering()
    found.add([said(ONE, 2, gone=True)])
    found.add([said(ONE, 1)])
    assert found.records() == [] and found.authors() == 0
    found.add([said(ONE, 3)])
    assert found.authors() == 1


def test_of_equal_records_the_fresher_copy_counts() -> None:
    found = Gathering()
    found.add([said(ONE, 1, age=50.0), said(ONE, 1, age=5.0), said(ONE, 1, age=20.0)])
    assert [each.age for each in found.records()] == [5.0]


def test_keys_of_one_region_go_into_one_look_up() -> None:
    random = Random(1)
    keys = [key_at(random.randrange(SPACE)) for _ in range(100)]
    everywhere = regions(keys, SPACE)
    assert [len(group) for group in everywhere] == [defaults.FIND_KEYS] * 3 + [4]
    parts = regions(keys, SPACE // 8)
    assert len(parts) > 4 and sum(map(len, parts)) == 100
    assert all(len({key[0] >> 6 for key in group}) == 1 for group in parts), "a quarter each"
    assert regions([], SPACE) == []
