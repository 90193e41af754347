"""table: who stays, who goes, how many of one network; how large the network is."""

from random import Random

import pytest

from shoal.dht import defaults
from shoal.dht.contact import Contact
from shoal.dht.key import SPACE, Key, distance, node_key, point
from shoal.dht.table import Table, lot
from shoal.transport.address import Address
from tests.dht.nodes import address, contact, contacts, entropy, peer, random_key

OWN = node_key(peer(0))


def table(*, subnet_limits: bool = True, spread: bool = True) -> Table:
    return Table(OWN, entropy(), subnet_limits=subnet_limits, spread=spread)


def far(count: int, first: int = 1) -> list[Contact]:
    """Contacts of bucket 0: in the other half of the space."""
    found: list[Contact] = []
    number = first
    while len(found) < count:
        one = contact(number)
        if (one.point ^ point(OWN)).bit_length() == 256:
            found.append(one)
        number += 1
    return found


def full(now: float = 0.0) -> tuple[Table, list[Contact], Contact]:
    """A table whose bucket 0 is full, who is in it, and one that waits."""
    made, listed = table(spread=False), far(defaults.K + 1)
    for one in listed:
        made.answered(one, now)
    return made, listed[:-1], listed[-1]


def test_the_nearest_come_first() -> None:
    made = table()
    for one in contacts(60):
        made.answered(one, 0.0)
    key = random_key(Random(1))
    found = made.nearest(key, 10)
    every = sorted(made.contacts(), key=lambda one: distance(one.key, key))
    assert found == every[:10]


def test_it_does_not_know_itself() -> None:
    made = table()
    assert not made.answered(Contact(peer(0)), 0.0)
    assert len(made) == 0


def test_whoever_has_been_there_long_stays() -> None:
    made, there, waiting = full()
    assert set(made.contacts()) == set(there)
    assert waiting.peer not in made
    assert not made.answered(waiting, 5.0)


def test_one_that_fails_makes_room_for_one_that_waits() -> None:
    made, there, waiting = full()
    made.failed(there[3].peer, 1.0)
    assert there[3].peer in made
    made.failed(there[3].peer, 2.0)
    assert there[3].peer not in made and waiting.peer in made


def test_an_answer_clears_failures() -> None:
    made, there, waiting = full()
    made.failed(there[3].peer, 1.0)
    made.answered(there[3], 2.0)
    made.failed(there[3].peer, 3.0)
    assert there[3].peer in made and waiting.peer not in made


def test_one_that_nobody_replaces_stays_longer_but_is_not_named() -> None:
    made = table()
    one, two = contacts(2)
    made.answered(one, 0.0)
    made.answered(two, 0.0)
    for turn in range(1, defaults.FAILURES_LAST):
        made.failed(one.peer, float(turn))
        assert one.peer in made
        assert (one in made.nearest(OWN)) == (turn < defaults.FAILURES)
    made.failed(one.peer, 9.0)
    assert one.peer not in made


def test_nothing_is_held_against_them_while_our_own_network_fails() -> None:
    made = table()
    for one in contacts(10):
        made.answered(one, 0.0)
    for turn in range(20):
        for one in contacts(10):
            made.failed(one.peer, 100.0 + turn)
    assert len(made) == 10


def test_one_that_does_not_serve_any_more_is_forgotten() -> None:
    made, there, waiting = full()
    made.forget(there[0].peer)
    assert there[0].peer not in made and waiting.peer in made
    made.forget(peer(12345))


def test_the_oldest_of_a_full_bucket_is_to_be_checked() -> None:
    made, there, _ = full()
    assert made.to_check(10.0, 60.0) == []
    assert made.to_check(100.0, 60.0) == [there[0]]
    made.answered(there[0], 100.0)
    assert made.to_check(100.0, 60.0) == [there[1]]
    quiet = table()
    for one in contacts(10):
        quiet.answered(one, 0.0)
    assert quiet.to_check(1000.0, 60.0) == []  # nobody waits


def crowd(count: int, networks: int) -> list[Contact]:
    """Contacts of a few public networks."""
    return [
        Contact(peer(5000 + n), [Address(f"9.9.{n % networks}.{1 + n // networks}", 4001)])
        for n in range(count)
    ]


@pytest.mark.parametrize("limited", [True, False])
def test_one_network_does_not_fill_it(limited: bool) -> None:
    made = table(subnet_limits=limited)
    for one in crowd(200, 1):
        made.answered(one, 0.0)
    assert (len(made) <= defaults.SUBNET_PER_TABLE) == limited
    for bucket in made._buckets.values():
        assert (len(bucket.entries) <= defaults.SUBNET_PER_BUCKET) or not limited


def test_places_of_a_network_come_free_again() -> None:
    made = table()
    for turn in range(5):
        listed = crowd(60, 1)[turn * 12 :][:12]
        for one in listed:
            made.answered(one, float(turn))
        for one in listed:
            made.forget(one.peer)
        assert len(made) == 0
    for one in crowd(1, 1):
        assert made.answered(one, 0.0)
    moved = Contact(peer(5000), [address(1)])
    assert made.answered(moved, 1.0)
    assert made._networks == {"9.9.0.0/24": 0, "50.0.1.0/24": 1}


def test_who_answers_again_counts_once_and_where_it_is_now() -> None:
    made = table()
    for now, where in enumerate((1, 1, 1, 9)):
        assert made.answered(Contact(peer(1), [address(where)]), float(now))
    assert len(made) == 1
    assert made._networks == {"50.0.1.0/24": 0, "50.0.9.0/24": 1}


def test_who_answers_again_was_heard_last() -> None:
    made, _, _ = full()
    oldest = made.to_check(1_000.0, 300.0)
    made.answered(oldest[0], 1_000.0)
    assert made.to_check(1_000.0, 300.0) != oldest


def test_a_lan_is_no_crowd() -> None:
    made = table()
    for n in range(15):
        made.answered(Contact(peer(n + 1), [Address(f"192.168.1.{n + 1}", 4001)]), 0.0)
    assert len(made) == 15


def test_one_that_everybody_reaches_takes_the_place_of_one_that_relays_lead_to() -> None:
    made = table()
    listed = far(defaults.K + 1)
    behind = [Contact(one.peer, [Address("10.0.0.1", 4001)]) for one in listed[:-1]]
    for one in behind:
        made.answered(one, 0.0)
    assert made.answered(listed[-1], 1.0)
    assert len(made) == defaults.K and behind[0].peer not in made


def test_refreshing() -> None:
    made = table()
    assert made.refresh_due(0.0) == []
    for one in contacts(300):
        made.answered(one, 0.0)
    due = made.refresh_due(0.0)
    indexes = [256 - distance(key, OWN).bit_length() for key in due]
    assert indexes == list(range(len(due))) and 3 <= len(due) <= 6
    for key in due:
        made.looked(key, 10.0)
    assert made.refresh_due(20.0) == []
    assert len(made.refresh_due(20.0 + defaults.REFRESH)) == len(due)


def around(key: Key, everyone: list[Contact]) -> list[Contact]:
    """The 40 nearest, as a look-up finds them."""
    return sorted(everyone, key=lambda one: one.point ^ point(key))[:40]


@pytest.mark.parametrize("count", [5, 100, 1000, 10_000])
def test_the_size_of_the_network(count: int) -> None:
    random = Random(count)
    everyone = contacts(count)
    made = table()
    for one in everyone:
        made.answered(one, 0.0)
    for _ in range(defaults.SAMPLES):
        key = random_key(random)
        made.sample(key, around(key, everyone))
    assert made.size == pytest.approx(count, rel=0.25)
    inside = sum(distance(one.key, OWN) <= made.radius() for one in everyone)
    assert inside == pytest.approx(min(count, defaults.REGION_NODES), rel=0.6)


class _Near(Contact):
    """A contact next to a key, as if ground."""

    def __init__(self, number: int, at: int) -> None:
        super().__init__(peer(number), [address(number)])
        self.__dict__["point"] = at


def test_identities_ground_next_to_keys_move_the_size_little() -> None:
    """Most samples are elsewhere; and many look-ups of one key are one sample."""
    random = Random(3)
    everyone = contacts(1000)
    made = table()
    for one in everyone:
        made.answered(one, 0.0)
    for _ in range(10):
        key = random_key(random)
        made.sample(key, around(key, everyone))
    before = made.size
    victim = random_key(random)
    ground = [_Near(9000 + n, point(victim) ^ (SPACE >> 30) ^ n) for n in range(45)]
    for _ in range(100):
        made.sample(victim, ground)
    assert made.size == pytest.approx(before, rel=0.3)


@pytest.mark.parametrize("spread", [True, False])
def test_those_next_to_one_key_do_not_fill_a_bucket(spread: bool) -> None:
    """Even if they were there first."""
    made = table(spread=spread)
    victim = point(OWN) ^ (SPACE >> 1) ^ 99
    ground = [_Near(9000 + n, victim ^ n) for n in range(45)]
    for one in (*ground, *far(200)):
        made.answered(one, 0.0)
    there = [one for one in made.contacts() if (one.point ^ point(OWN)).bit_length() == 256]
    assert len(there) == defaults.K
    assert (len(set(there) & set(ground)) <= 3) == spread


def test_too_few_contacts_are_no_sample() -> None:
    made = table()
    made.sample(OWN, contacts(defaults.K - 1))
    assert made.size == 1.0
    assert made.radius() == SPACE


def test_it_is_remembered() -> None:
    made = table()
    for n, one in enumerate(contacts(50)):
        made.answered(one, float(n))
    found = Table.load(made.dump())
    assert set(found) == set(made.contacts())
    assert found[0].addresses  # with them
    assert len(table()) == 0  # nobody enters without an answer


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\xc0", b"\x80", b"\x91\xc4\x01x", b"x" * 99])
def test_damaged_memory_is_empty(data: bytes) -> None:
    assert Table.load(data) == []


def test_lots_of_neighbours_are_apart() -> None:
    """Keys ground next to each other get places all over the order."""
    lots = sorted(lot(b"n", bytes(31) + bytes([n])) / 2**64 for n in range(100))
    assert lots[0] < 0.1 < 0.9 < lots[-1]
    assert lot(b"n", bytes(32)) != lot(b"m", bytes(32))
