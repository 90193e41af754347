"""table: which contacts stay, limits per network, and the estimated network size."""

from random import Random

import pytest

from shoal.dht import defaults
from shoal.dht.kademlia.table import Table, random_rank
from shoal.dht.records.contact import Contact
from shoal.dht.records.key import SPACE, Key, distance, node_key, point
from shoal.transport.address import Address
from tests.dht.nodes import address, contact, contacts, entropy, peer, random_key

OWN = node_key(peer(0))


def table(*, subnet_limits: bool = True, spread: bool = True) -> Table:
    return Table(OWN, entropy(), subnet_limits=subnet_limits, spread=spread)


def far(count: int, first: int = 1) -> list[Contact]:
    """Return contacts of bucket 0, in the other half of the key space."""
    found: list[Contact] = []
    number = first
    while len(found) < count:
        one = contact(number)
        if (one.point ^ point(OWN)).bit_length() == 256:
            found.append(one)
        number += 1
    return found


def full(now: float = 0.0) -> tuple[Table, list[Contact], Contact]:
    """Return a table whose bucket 0 is full, the contacts in it, and one that waits."""
    made, listed = table(spread=False), far(defaults.K + 1)
    for one in listed:
        made.answered(one, now)
    return made, listed[:-1], listed[-1]


def test_the_nearest_contacts_come_first() -> None:
    made = table()
    for one in contacts(60):
        made.answered(one, 0.0)
    key = random_key(Random(1))
    found = made.nearest(key, 10)
    every = sorted(made.contacts(), key=lambda one: distance(one.key, key))
    assert found == every[:10]


def test_a_table_does_not_contain_its_own_node() -> None:
    made = table()
    assert not made.answered(Contact(peer(0)), 0.0)
    assert len(made) == 0


def test_old_contacts_stay() -> None:
    made, there, waiting = full()
    assert set(made.contacts()) == set(there)
    assert waiting.peer not in made
    assert not made.answered(waiting, 5.0)


def test_a_failing_contact_is_replaced_by_a_waiting_one() -> None:
    made, there, waiting = full()
    made.failed(there[3].peer, 1.0)
    assert there[3].peer in made
    made.failed(there[3].peer, 2.0)
    assert there[3].peer not in made and waiting.peer in made


def test_a_reply_clears_failures() -> None:
    made, there, waiting = full()
    made.failed(there[3].peer, 1.0)
    made.answered(there[3], 2.0)
    made.failed(there[3].peer, 3.0)
    assert there[3].peer in made and waiting.peer not in made


def test_a_failing_contact_without_replacement_stays_longer_but_is_not_returned() -> None:
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


def test_failures_do_not_count_while_our_own_network_fails() -> None:
    made = table()
    for one in contacts(10):
        made.answered(one, 0.0)
    for turn in range(20):
        for one in contacts(10):
            made.failed(one.peer, 100.0 + turn)
    assert len(made) == 10


def test_a_contact_that_stopped_serving_is_removed() -> None:
    made, there, waiting = full()
    made.forget(there[0].peer)
    assert there[0].peer not in made and waiting.peer in made
    made.forget(peer(12345))


def test_the_longest_silent_contact_of_a_full_bucket_is_pinged() -> None:
    made, there, _ = full()
    assert made.to_check(10.0, 60.0) == []
    assert made.to_check(100.0, 60.0) == [there[0]]
    made.answered(there[0], 100.0)
    assert made.to_check(100.0, 60.0) == [there[1]]
    quiet = table()
    for one in contacts(10):
        quiet.answered(one, 0.0)
    assert quiet.to_check(1000.0, 60.0) == []  # no contact waits


def crowd(count: int, networks: int) -> list[Contact]:
    """Return contacts in a few public networks."""
    return [
        Contact(peer(5000 + n), [Address(f"9.9.{n % networks}.{1 + n // networks}", 4001)])
        for n in range(count)
    ]


@pytest.mark.parametrize("limited", [True, False])
def test_one_network_does_not_fill_the_table(limited: bool) -> None:
    made = table(subnet_limits=limited)
    for one in crowd(200, 1):
        made.answered(one, 0.0)
    assert (len(made) <= defaults.SUBNET_PER_TABLE) == limited
    for bucket in made.buckets.values():
        assert (len(bucket.entries) <= defaults.SUBNET_PER_BUCKET) or not limited


def test_removed_contacts_free_the_limit_of_their_network() -> None:
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
    assert made.networks == {"9.9.0.0/24": 0, "50.0.1.0/24": 1}


def test_a_contact_counts_once_and_with_its_latest_address() -> None:
    made = table()
    for now, where in enumerate((1, 1, 1, 9)):
        assert made.answered(Contact(peer(1), [address(where)]), float(now))
    assert len(made) == 1
    assert made.networks == {"50.0.1.0/24": 0, "50.0.9.0/24": 1}


def test_a_contact_that_replies_again_was_heard_last() -> None:
    made, _, _ = full()
    oldest = made.to_check(1_000.0, 300.0)
    made.answered(oldest[0], 1_000.0)
    assert made.to_check(1_000.0, 300.0) != oldest


def test_local_networks_have_no_limit() -> None:
    made = table()
    for n in range(15):
        made.answered(Contact(peer(n + 1), [Address(f"192.168.1.{n + 1}", 4001)]), 0.0)
    assert len(made) == 15


def test_a_publicly_reachable_contact_replaces_one_behind_a_relay() -> None:
    made = table()
    listed = far(defaults.K + 1)
    behind = [Contact(one.peer, [Address("10.0.0.1", 4001)]) for one in listed[:-1]]
    for one in behind:
        made.answered(one, 0.0)
    assert made.answered(listed[-1], 1.0)
    assert len(made) == defaults.K and behind[0].peer not in made


def test_refreshing_buckets() -> None:
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
    """Return the 40 nearest contacts, as a look-up would find them."""
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
    """Contact next to a key, as if generated to be there."""

    def __init__(self, number: int, at: int) -> None:
        super().__init__(peer(number), [address(number)])
        self.__dict__["point"] = at


def test_identities_generated_next_to_keys_hardly_change_the_size() -> None:
    """Most samples are elsewhere, and many look-ups of one key count as one sample."""
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
def test_identities_next_to_one_key_do_not_fill_a_bucket(spread: bool) -> None:
    """Even if they come first."""
    made = table(spread=spread)
    victim = point(OWN) ^ (SPACE >> 1) ^ 99
    ground = [_Near(9000 + n, victim ^ n) for n in range(45)]
    for one in (*ground, *far(200)):
        made.answered(one, 0.0)
    there = [one for one in made.contacts() if (one.point ^ point(OWN)).bit_length() == 256]
    assert len(there) == defaults.K
    assert (len(set(there) & set(ground)) <= 3) == spread


def test_too_few_contacts_are_not_a_sample() -> None:
    made = table()
    made.sample(OWN, contacts(defaults.K - 1))
    assert made.size == 1.0
    assert made.radius() == SPACE


def test_contacts_survive_a_restart() -> None:
    made = table()
    for n, one in enumerate(contacts(50)):
        made.answered(one, float(n))
    found = Table.load(made.dump())
    assert set(found) == set(made.contacts())
    assert found[0].addresses  # the addresses survive too
    assert len(table()) == 0  # a contact enters only after it has answered


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\xc0", b"\x80", b"\x91\xc4\x01x", b"x" * 99])
def test_a_damaged_dump_is_empty(data: bytes) -> None:
    assert Table.load(data) == []


def test_ranks_of_neighbouring_keys_are_far_apart() -> None:
    """Keys generated next to each other get ranks all over the order."""
    lots = sorted(random_rank(b"n", bytes(31) + bytes([n])) / 2**64 for n in range(100))
    assert lots[0] < 0.1 < 0.9 < lots[-1]
    assert random_rank(b"n", bytes(32)) != random_rank(b"m", bytes(32))
