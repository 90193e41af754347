"""Membership at a relay of an open swarm."""

from shoal.transport.relay.book import Asker, Circuit, RelayBook, Reservation
from shoal.transport.relay.defaults import (
    AWAY_S,
    MEMBERS,
    MEMBERS_PER_NETWORK,
    STANDING_S,
    RelayLimits,
)
from shoal.transport.relay.standing import LinkedTimes

LATER = STANDING_S + 1


def test_a_newcomer_becomes_a_member_with_time() -> None:
    standing = LinkedTimes()
    standing.linked("a", "11.0.0.1", 5.0)
    assert standing.since("a", STANDING_S) is None
    assert standing.since("a", LATER + 5) == 5.0
    assert standing.since("b", LATER + 5) is None


def test_a_short_absence_costs_nothing_a_long_one_all() -> None:
    standing = LinkedTimes()
    for peer in ("short", "long"):
        standing.linked(peer, "11.0.0.1", 0.0)
        standing.gone(peer, 10.0)
    standing.linked("short", "11.0.0.1", 10.0 + AWAY_S)
    standing.linked("long", "11.0.0.1", 11.0 + AWAY_S)
    assert standing.since("short", LATER + AWAY_S) == 0.0
    assert standing.since("long", LATER + AWAY_S) is None


def test_a_peer_that_moves_keeps_its_time_where_the_other_network_has_room() -> None:
    standing = LinkedTimes()
    for number in range(MEMBERS_PER_NETWORK):
        standing.linked(f"s{number}", f"13.0.0.{number}", 0.0)
    for peer in ("a", "b"):
        standing.linked(peer, "11.0.0.1", 0.0)
    standing.linked("a", "12.0.0.1", 100.0)
    standing.linked("b", "13.0.0.9", 100.0)
    assert standing.since("a", LATER) == 0.0
    assert standing.since("b", 2 * LATER) is None


def test_no_number_of_moves_makes_more_members_of_two_networks() -> None:
    standing, now = LinkedTimes(), 0.0
    for turn in range(50):
        for number in range(20):
            standing.linked(f"s{number}", f"1{(number + turn) % 2}.0.0.{number}", now)
        now += STANDING_S
    members = [n for n in range(20) if standing.since(f"s{n}", now) is not None]
    assert len(members) <= 2 * MEMBERS_PER_NETWORK


def test_of_one_network_the_first_few() -> None:
    standing = LinkedTimes()
    for number in range(1000):
        standing.linked(f"s{number}", f"11.0.0.{number % 256}", 0.0)
    members = [n for n in range(1000) if standing.since(f"s{n}", LATER) is not None]
    assert members == list(range(MEMBERS_PER_NETWORK))


def test_later_peers_replace_only_long_absent_ones() -> None:
    standing = LinkedTimes()
    for number in range(MEMBERS + 10):
        standing.linked(f"s{number}", f"{20 + number % 70}.{number // 70}.7.1", 0.0)
    assert standing.since("s0", LATER) == 0.0
    assert standing.since(f"s{MEMBERS}", LATER) is None
    standing.gone("s0", 1.0)
    standing.linked("new", "12.0.0.1", AWAY_S)
    assert standing.since("new", 2 * LATER) is None
    standing.linked("new", "12.0.0.1", AWAY_S + 2)
    assert standing.since("new", AWAY_S + 2 + STANDING_S) == AWAY_S + 2


def test_two_old_members_get_a_circuit_beside_a_thousand_identities() -> None:
    """From a thousand networks, half of them patient enough to be members by now; each takes all
    that it gets: places, circuits among themselves and to the two, and the rate."""
    standing, book = LinkedTimes(), RelayBook(RelayLimits())
    book.reachable = True
    where = {f"s{n}": f"20.{n // 250}.{n % 250}.1" for n in range(1000)}
    where |= {"a": "11.0.0.1", "b": "12.0.0.1"}
    for peer in ("a", "b"):
        standing.linked(peer, where[peer], 0.0)
    for number in range(1000):
        standing.linked(f"s{number}", where[f"s{number}"], 1.0 if number % 2 else 500.0)
    now = LATER + 1

    def reserve(peer: str) -> Reservation | str:
        since = standing.since(peer, now)
        return book.reserve(Asker(peer, where[peer], since), now)

    def connect(source: str, target: str) -> Circuit | str:
        since = standing.since(source, now)
        return book.open_circuit(Asker(source, where[source], since), target, now)

    foes = [f"s{number}" for number in range(1000)]
    for foe in foes:
        reserve(foe)
    assert isinstance(reserve("b"), Reservation)
    for turn in range(4):
        for number, foe in enumerate(foes):
            connect(foe, "b")
            connect(foe, foes[(7 * number + turn) % 1000])
    assert book.figures().circuits > 150
    made = connect("a", "b")
    assert isinstance(made, Circuit) and made.stranger is None
    for foe in foes:
        connect(foe, "b")
    assert made.open and book.holds("b", now)
    circuits, got = list(book.circuits()), 0
    for turn in range(400):
        for each in circuits:
            size = each.room(now + turn * 0.05)
            if size and each.spend(size, now + turn * 0.05) and each is made:
                got += size
    assert got > 2_000  # of 20 s: an offer for hole punching, and slow calls
