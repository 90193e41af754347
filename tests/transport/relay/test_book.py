"""Reservations and circuits are counted and bounded."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.relay.book import Asker, Circuit, RelayBook, Reservation
from shoal.transport.relay.defaults import RelayLimits

ON = RelayLimits(volunteer=True, rate=1_000_000)


def a_book(**changes: object) -> RelayBook:
    return RelayBook(replace(ON, **changes))  # type: ignore[arg-type]


def places(book: RelayBook, count: int, *, subnet: str = "10.1.2", member: bool = False) -> int:
    """Reservations granted to as many peers of one /24."""
    granted = 0
    for number in range(count):
        answer = book.reserve(
            Asker(f"{subnet}-{number}", f"{subnet}.{number % 256}", 0.0 if member else None), 0.0
        )
        granted += isinstance(answer, Reservation)
    return granted


def circuit(book: RelayBook, source: str, target: str, *, now: float = 0.0, member: bool = True,
            ip: str = "9.9.9.9") -> Circuit:  # fmt: skip
    made = book.open_circuit(Asker(source, ip, 0.0 if member else None), target, now)
    assert isinstance(made, Circuit), made
    return made


def reserved(book: RelayBook, peer: str, *, member: bool = True, ip: str = "8.8.8.8") -> None:
    assert isinstance(book.reserve(Asker(peer, ip, 0.0 if member else None), 0.0), Reservation)


def test_it_lends_once_it_is_reachable_unless_its_owner_lends_nothing() -> None:
    for book, reachable in (
        (RelayBook(RelayLimits()), False),
        (RelayBook(RelayLimits(rate=0)), True),
        (a_book(rate=0), True),
    ):
        book.reachable = reachable
        assert not book.lends
        assert book.reserve(Asker("a", "1.2.3.4", 0.0), 0.0) == "not-a-relay"
        assert book.open_circuit(Asker("a", "1.2.3.4", 0.0), "b", 0.0) == "not-a-relay"
        assert book.figures().refused == {"not-a-relay": 2}
    book = RelayBook(RelayLimits())
    book.reachable = True
    assert book.lends and book.limits.rate == 64_000
    reserved(book, "b")
    circuit(book, "a", "b")
    book.reachable = False
    assert book.open_circuit(Asker("c", "1.2.3.4", 0.0), "b", 0.0) == "not-a-relay"


def test_two_that_dial_each_other_get_one_circuit() -> None:
    book = a_book()
    reserved(book, "a")
    reserved(book, "b")
    made = circuit(book, "a", "b")
    assert book.open_circuit(Asker("b", "9.9.9.9", 0.0), "a", 9.0) == "crossing"
    circuit(book, "b", "a", now=11.0)  # long after, the first one may be dead
    made.close()


def test_longer_members_replace_later_ones() -> None:
    book = a_book(circuits=4, reservations=4)
    cut: list[str] = []
    for number in range(4):
        book.reserve(Asker(f"late{number}", f"7.7.{number}.7", 100.0 + number), 0.0)
    assert book.reserve(Asker("later", "6.6.6.6", 200.0), 0.0) == "full"
    assert isinstance(book.reserve(Asker("b", "6.6.6.6", 5.0), 0.0), Reservation)
    for number in range(4):
        made = book.open_circuit(Asker(f"late{number}", "7.7.7.7", 100.0 + number), "b", 0.0)
        assert isinstance(made, Circuit)
        made.on_cut(partial(cut.append, f"late{number}"))
    late = book.open_circuit(Asker("later", "6.6.6.6", 200.0), "b", 0.0)
    assert late == "too-many-circuits" and not cut
    old = book.open_circuit(Asker("a", "9.9.9.9", 6.0), "b", 0.0)
    assert isinstance(old, Circuit) and old.open
    assert cut == ["late3"] and book.figures().circuits == 4


def test_an_old_stranger_s_circuit_makes_room_for_a_new_one_s() -> None:
    book = a_book(stranger_circuits=2)
    for number in range(3):
        reserved(book, f"b{number}", ip=f"8.8.{number}.8")
    first = circuit(book, "a", "b0", member=False)
    circuit(book, "b", "b1", member=False)
    early = book.open_circuit(Asker("c", "9.9.9.9"), "b2", 19.0)
    assert early == "too-many-circuits" and first.open
    circuit(book, "c", "b2", now=20.0, member=False)
    assert not first.open and first.over(20.0)


@pytest.mark.parametrize("member", [False, True])
def test_a_thousand_from_one_subnet_get_eight(member: bool) -> None:
    book = a_book()
    assert places(book, 1000, member=member) == 8
    assert book.figures().refused == {"subnet-full": 992}
    assert places(book, 1000, subnet="10.1.3") == 8


def test_a_thousand_from_one_subnet_without_the_limit() -> None:
    """The twin: it is that limit, and no other, which holds them back."""
    assert places(a_book(reservations_per_subnet=10**6, reservations=10**6), 1000) == 1000


def test_ipv6_counts_by_64() -> None:
    book = a_book()
    granted = [book.reserve(Asker(str(n), f"2600:1:2:3::{n + 1:x}"), 0.0) for n in range(20)]
    assert sum(isinstance(item, Reservation) for item in granted) == 8
    assert isinstance(book.reserve(Asker("x", "2600:1:2:4::1"), 0.0), Reservation)


def _granted_to_a_home(book: RelayBook) -> int:
    """Each asker has its own /64."""
    granted = (book.reserve(Asker(str(n), f"2600:1:2:{n:x}::1"), 0.0) for n in range(256))
    return sum(isinstance(item, Reservation) for item in granted)


def test_a_home_gets_two_shares_by_ipv6() -> None:
    assert _granted_to_a_home(a_book()) == 16


@pytest.mark.usefixtures("by_64_bits_alone")
def test_without_that_it_gets_all() -> None:
    assert _granted_to_a_home(a_book()) == ON.reservations


def test_there_is_a_total() -> None:
    book = a_book()
    granted = sum(places(book, 8, subnet=f"10.{n}.0") for n in range(100))
    assert granted == ON.reservations
    assert book.reserve(Asker("late", "1.2.3.4"), 0.0) == "full"


def test_members_push_out_idle_strangers_only() -> None:
    book = a_book(reservations=2, reservations_per_subnet=2)
    reserved(book, "busy", member=False)
    reserved(book, "idle", member=False)
    circuit(book, "x", "busy")
    assert book.reserve(Asker("stranger", "8.8.8.9"), 1.0) == "subnet-full"
    reserved(book, "member")
    assert book.holds("busy", 1.0) and book.holds("member", 1.0) and not book.holds("idle", 1.0)
    assert book.reserve(Asker("another", "8.8.8.9", 0.0), 1.0) == "subnet-full"
    assert book.reserve(Asker("another", "7.8.8.9", 0.0), 1.0) == "full"


def test_renewing_takes_no_second_place() -> None:
    book = a_book(reservations=1, reservations_per_subnet=1)
    for now in (0.0, 1800.0, 3600.0):
        again = book.reserve(Asker("a", "8.8.8.8", 0.0), now)
        assert isinstance(again, Reservation) and again.expires == now + 3600
    assert book.figures().reservations == 1


def test_a_peer_that_moves_takes_its_place_along() -> None:
    book = a_book(reservations_per_subnet=1)
    reserved(book, "a", ip="1.1.1.1", member=False)
    reserved(book, "b", ip="2.2.2.2")
    assert book.reserve(Asker("a", "2.2.2.3", 0.0), 1.0) == "subnet-full"
    assert book.holds("a", 1.0)
    reserved(book, "a", ip="3.3.3.3")
    reserved(book, "c", ip="1.1.1.2")  # free again


def test_reservations_run_out() -> None:
    book = a_book(reservations_per_subnet=1)
    reserved(book, "a")
    assert book.holds("a", 3599) and not book.holds("a", 3600)
    assert book.open_circuit(Asker("x", "1.1.1.1", 0.0), "a", 3600) == "no-reservation"
    assert isinstance(book.reserve(Asker("b", "8.8.8.9", 0.0), 3600), Reservation)
    book.release("b")
    book.release("b")
    assert book.figures().reservations == 0


def test_no_relay_of_relays() -> None:
    book = a_book()
    reserved(book, "b")
    assert book.reserve(Asker("a", "1.1.1.1", 0.0, relayed=True), 0.0) == "relayed"
    assert book.open_circuit(Asker("a", "1.1.1.1", 0.0, relayed=True), "b", 0.0) == "relayed"


def test_no_circuit_to_oneself_or_without_a_reservation() -> None:
    book = a_book()
    reserved(book, "a")
    assert book.open_circuit(Asker("a", "1.1.1.1", 0.0), "a", 0.0) == "self"
    assert book.open_circuit(Asker("a", "1.1.1.1", 0.0), "b", 0.0) == "no-reservation"


@pytest.mark.parametrize(("source", "target"), [(False, True), (True, False), (False, False)])
def test_strangers_get_two_minutes(source: bool, target: bool) -> None:
    book = a_book()
    reserved(book, "b", member=target)
    made = circuit(book, "a", "b", member=source, now=5.0)
    assert made.deadline == 125.0
    assert made.spend(1, 124.9) and not made.over(124.9)
    assert not made.spend(1, 125.0)
    assert made.over(125.0) and made.room(125.0) == 0


def test_members_get_what_the_rate_gives() -> None:
    book = a_book()
    reserved(book, "b")
    made = circuit(book, "a", "b")
    moved, now = 0, 0.0
    while now < 200:
        size = made.room(now)
        assert made.spend(size, now)
        moved += size
        now += max(0.005, made.pause())
    assert 0.95 * 200 * ON.rate <= moved  # the rest are the headers of the pieces
    assert moved <= 200.25 * ON.rate


def test_two_circuits_share_the_rate() -> None:
    book = a_book()
    reserved(book, "b")
    both = [circuit(book, "a", "b"), circuit(book, "c", "b")]
    got = [0, 0]
    for turn in range(2000):
        for index, made in enumerate(both):
            size = made.room(turn * 0.005)
            made.spend(size, turn * 0.005)
            got[index] += size
    assert sum(got) <= 10.25 * ON.rate
    assert abs(got[0] - got[1]) <= 0.05 * sum(got) + 250_000


def test_circuits_are_counted_by_peer_and_in_all() -> None:
    book = a_book(circuits_per_peer=4, circuits=6)
    reserved(book, "b")
    reserved(book, "c")
    made = [circuit(book, f"a{n}", "b") for n in range(4)]
    assert book.open_circuit(Asker("z", "1.1.1.1", 0.0), "b", 0.0) == "too-many-circuits"
    more = [circuit(book, "a0", "c") for _ in range(2)]
    assert book.open_circuit(Asker("z", "1.1.1.1", 0.0), "c", 0.0) == "too-many-circuits"
    for each in (*made, *more):
        each.close()
        each.close()
    circuit(book, "z", "b")
    assert book.figures().circuits == 1
    assert len(list(book.circuits())) == 1


def test_one_source_opens_so_many_circuits() -> None:
    book = a_book(circuits_per_peer=2)
    for peer in ("b", "c", "d"):
        reserved(book, peer)
    circuit(book, "a", "b")
    circuit(book, "a", "c")
    assert book.open_circuit(Asker("a", "1.1.1.1", 0.0), "d", 0.0) == "too-many-circuits"


@pytest.mark.parametrize("most", [3, 100])
def test_one_source_cannot_block_a_target(most: int) -> None:
    """Without the bound for a pair one peer has all circuits that lead to another."""
    book = a_book(circuits_per_pair=most)
    reserved(book, "b")
    got = [book.open_circuit(Asker("foe", "1.1.1.1", 0.0), "b", 0.0) for _ in range(60)]
    made = [each for each in got if isinstance(each, Circuit)]
    assert len(made) == min(most, ON.circuits_per_peer)
    shut = book.open_circuit(Asker("a", "2.2.2.2", 0.0), "b", 0.0) == "too-many-circuits"
    assert shut is (most == 100)
    made[0].close()
    circuit(book, "foe", "b")


def test_strangers_leave_room_for_members() -> None:
    book = a_book()
    for n in range(20):
        reserved(book, f"b{n}", ip=f"8.8.{n}.8")
    for n in range(90):  # many ids, one subnet
        book.open_circuit(Asker(f"a{n}", "9.9.9.9"), f"b{n % 20}", 0.0)
    assert book.figures().stranger_circuits == ON.stranger_circuits_per_subnet == 32
    for n in range(400):  # many ids, many subnets
        book.open_circuit(Asker(f"s{n}", f"9.9.{n % 250}.9"), "b0", 0.0)
    assert book.figures().circuits < ON.circuits
    circuit(book, "member", "b0")
    for n in range(4000):
        book.open_circuit(Asker(f"t{n}", f"9.{n % 99}.7.9"), f"b{n % 20}", 0.0)
    assert book.figures().stranger_circuits == ON.stranger_circuits
    for each in book.circuits():
        each.close()
    assert book.figures().stranger_circuits == 0


def test_a_closed_circuit_carries_nothing() -> None:
    book = a_book()
    reserved(book, "b")
    made = circuit(book, "a", "b")
    made.close()
    assert made.room(1.0) == 0 and not made.spend(1, 1.0) and made.over(1.0)


def test_a_circuit_outlives_its_reservation() -> None:
    book = a_book()
    reserved(book, "b")
    made = circuit(book, "a", "b")
    book.release("b")
    reserved(book, "b")
    assert made.spend(10, 1.0)
    made.close()
    assert book.figures().circuits == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "release", "open", "close", "spend"]),
            st.integers(0, 9),
            st.integers(0, 9),
            st.booleans(),
            st.floats(0, 1000),
        ),
        max_size=200,
    )
)
def test_whatever_comes_the_counts_hold(steps: list[tuple[str, int, int, bool, float]]) -> None:
    book = a_book(reservations=5, reservations_per_subnet=2, circuits=6, circuits_per_peer=3)
    now, made = 0.0, list[Circuit]()
    for what, one, other, member, later in steps:
        now += later
        if what == "reserve":
            book.reserve(Asker(str(one), f"1.1.{other % 3}.1", 0.0 if member else None), now)
        elif what == "release":
            book.release(str(one))
        elif what == "open":
            got = book.open_circuit(
                Asker(str(one), f"1.1.{one}.1", 0.0 if member else None), str(other), now
            )
            made += [got] if isinstance(got, Circuit) else []
        elif made and what == "close":
            made.pop(one % len(made)).close()
        elif made:
            each = made[one % len(made)]
            each.spend(each.room(now), now)
        figures = book.figures()
        assert figures.reservations <= 5 and figures.circuits == len(made) <= 6
        assert figures.stranger_circuits == sum(each.stranger is not None for each in made)
    for each in made:
        each.close()
    assert book.figures().circuits == 0
