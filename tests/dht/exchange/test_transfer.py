"""transfer: choice of requests; any order of replies ends with the whole content."""

import hashlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dht.defaults import (
    BACKOFF_MAX,
    CHUNK,
    CHUNK_TIMEOUT,
    CHUNK_TIMEOUT_MAX,
    CHUNK_TIMEOUT_MIN,
    COPIES_MAX,
    IN_FLIGHT,
    OFFER_STEP,
    SPARED_FOR,
    WINDOW_MAX,
    WINDOW_START,
)
from shoal.dht.exchange import transfer as transfer_module
from shoal.dht.exchange.transfer import Transfer
from shoal.transport.identity import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def digests(count: int) -> list[str]:
    return [hashlib.sha256(bytes([n, n >> 8])).hexdigest() for n in range(count)]


def transfer(count: int, *peers: PeerId) -> Transfer:
    wanted = dict.fromkeys(digests(count), CHUNK)
    found = Transfer(wanted, b"salt")
    for peer in peers:
        found.offers(peer, wanted)
    return found


def drain(found: Transfer, now: float) -> list[tuple[PeerId, str]]:
    chosen = []
    while (choice := found.choose(now)) is not None:
        chosen.append(choice)
    return chosen


def test_an_unmeasured_peer_gets_a_small_window() -> None:
    found = transfer(20, A)
    assert len(drain(found, 0.0)) == WINDOW_START


def test_windows_follow_measured_rates() -> None:
    found = transfer(60, A, B)
    for peer, digest in drain(found, 0.0):
        found.arrived(peer, digest, 0.01 if peer == A else 60.0)
    asked = [peer for peer, _ in drain(found, 61.0)]
    assert asked.count(A) == WINDOW_MAX
    assert asked.count(B) == 0  # A delivers all 56 sooner than B delivers one


def test_a_slow_peer_is_asked_for_chunks_that_no_faster_peer_has() -> None:
    every = digests(60)
    found = transfer(60, A, B)
    for peer, digest in drain(found, 0.0):
        found.arrived(peer, digest, 0.01 if peer == A else 60.0)
    found.offers(A, every[:-10])
    asked = [peer for peer, _ in drain(found, 61.0)]
    assert asked.count(B) == 1


@pytest.mark.parametrize("rates", [(1.0, 1.0, 1.0), (9.0, 3.0, 1.0), (1e-3, 1.0, 1e3)])
def test_the_fastest_source_of_a_chunk_is_always_asked(rates: tuple[float, float, float]) -> None:
    """A source that is too slow is skipped only if another takes the chunk."""
    found = transfer(1, A, B, C)
    for peer, rate in zip((A, B, C), rates, strict=True):
        found.sources[peer].measure(rate * CHUNK)
    assert found.choose(0.0) is not None


def test_the_rarest_chunk_comes_first() -> None:
    every = digests(40)
    found = transfer(40, A)
    found.offers(B, every[:-1])
    assert found.choose(0.0) is not None
    assert every[-1] in found.sources[A].asked or every[-1] in found.sources[B].asked
    found.adds(B, every)
    assert not found.is_rare(every[0])


def test_a_postponed_chunk_is_not_requested_from_that_peer_for_a_while() -> None:
    found = transfer(2, A)
    (_, first), (_, second) = drain(found, 0.0)
    assert found.spare(A, first)
    found.given(A, first, 0.0)
    assert not found.spare(A, first)
    found.arrived(A, second, 0.1)
    assert found.choose(1.0) is None
    assert found.choose(SPARED_FOR) == (A, first)


def test_notifications_of_a_peer_without_an_offer_are_ignored() -> None:
    found = transfer(2, A)
    assert not found.adds(B, digests(2))
    assert not found.adds(A, digests(2))
    found.lied(A)
    assert not found.adds(A, digests(2))


def test_requests_in_flight_are_limited() -> None:
    peers = [PeerId(f"p{n}") for n in range(40)]
    assert len(drain(transfer(200, *peers), 0.0)) == IN_FLIGHT


def test_two_getters_take_chunks_in_different_orders() -> None:
    wanted = dict.fromkeys(digests(50), 1)
    firsts = set()
    for salt in (b"1", b"2", b"3", b"4"):
        found = Transfer(wanted, salt)
        found.offers(A, wanted)
        firsts.add(found.choose(0.0))
    assert len(firsts) > 1


def test_peers_are_asked_only_for_what_they_have() -> None:
    every = digests(4)
    found = transfer(4)
    found.offers(A, every[:1])
    found.offers(B, [*every[1:3], "f" * 64])
    assert set(drain(found, 0.0)) == {(A, every[0]), (B, every[1]), (B, every[2])}
    assert not found.has_all(B)
    assert found.left == 4


def test_a_failed_request_goes_to_another_peer_and_the_peer_is_backed_off() -> None:
    found = transfer(1, A)
    assert found.choose(0.0) == (A, digests(1)[0])
    found.offers(B, digests(1))
    found.failed(A, digests(1)[0], 0.0)
    assert found.choose(0.0) == (B, digests(1)[0])
    found.failed(B, digests(1)[0], 0.0)
    assert found.choose(0.1) is None
    assert found.choose(BACKOFF_MAX) is not None


def test_back_offs_grow_and_are_limited() -> None:
    found = transfer(1, A)
    now, rests = 0.0, []
    for _ in range(30):
        choice = found.choose(now)
        assert choice is not None
        found.failed(*choice, now)
        rests.append(found.sources[A].rest_until - now)
        now = found.sources[A].rest_until
    assert rests == sorted(rests)
    assert rests[-1] == BACKOFF_MAX


def test_an_absent_chunk_is_not_requested_from_that_peer_again() -> None:
    found = transfer(1, A)
    found.choose(0.0)
    found.absent(A, digests(1)[0])
    assert found.choose(100.0) is None
    found.offers(A, digests(1))
    assert found.choose(100.0) is not None


def test_a_liar_is_never_asked_again() -> None:
    found = transfer(3, A)
    asked = {digest for _, digest in drain(found, 0.0)}
    assert set(found.lied(A)) == asked
    assert found.liars == {A}
    assert not found.offers(A, digests(3))
    assert found.choose(1000.0) is None
    found.offers(B, digests(3))
    assert found.choose(1000.0) is not None


def slow_and_fast() -> Transfer:
    """Return a transfer in which slow A owes the last two chunks, and B is fast."""
    found = transfer(20, A)
    (_, first), *rest = drain(found, 0.0)
    found.arrived(A, first, 10.0)
    found.offers(B, digests(20))
    while any(
        found.wants(digest) and digest not in found.sources[A].asked for digest in digests(20)
    ):
        for peer, digest in drain(found, 10.0):
            if peer == B:
                found.arrived(B, digest, 10.001)
    assert rest
    return found


def test_late_chunks_are_hedged_once_with_a_faster_peer() -> None:
    found = slow_and_fast()
    owed = set(found.sources[A].asked)
    stolen = drain(found, 20.0)
    assert {digest for _, digest in stolen} == owed
    assert {peer for peer, _ in stolen} == {B}
    found.offers(C, owed)
    assert all(len(peers) <= COPIES_MAX for peers in found.asked.values())
    assert drain(found, 1000.0) == []
    digest = stolen[0][1]
    assert found.arrived(B, digest, 20.1) == {A}
    assert not found.wants(digest)


def test_without_hedging_a_slow_peer_delays_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above."""
    monkeypatch.setattr(transfer_module, "COPIES_MAX", 1)
    assert drain(slow_and_fast(), 20.0) == []


def test_timeouts_follow_the_measured_rate_within_bounds() -> None:
    found = transfer(9, A)
    assert found.timeout(A) == CHUNK_TIMEOUT
    choice = found.choose(0.0)
    assert choice is not None
    found.failed(*choice, 0.0)
    assert found.timeout(A) == 2 * CHUNK_TIMEOUT
    for took, limit in ((0.001, CHUNK_TIMEOUT_MIN), (1e6, CHUNK_TIMEOUT_MAX)):
        other = transfer(9, A)
        choice = other.choose(0.0)
        assert choice is not None
        other.arrived(*choice, took)
        assert other.timeout(A) == limit


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_any_course_of_events_ends_with_every_chunk(seed: int, count: int) -> None:
    """Random deliveries, failures, absences and lies; at the end an honest peer has all chunks."""
    numbers = random.Random(seed)
    every = digests(count)
    found = transfer(count)
    for peer in (A, B, C):
        found.offers(peer, numbers.sample(every, numbers.randint(0, count)))
    now, open_requests, stored = 0.0, set[tuple[PeerId, str]](), set[str]()
    for _ in range(60):
        now += numbers.random() * 3
        open_requests.update(drain(found, now))
        if not open_requests:
            break
        peer, digest = numbers.choice(sorted(open_requests))
        open_requests.discard((peer, digest))
        event = numbers.randrange(5)
        if event == 0:
            found.failed(peer, digest, now)
        elif event == 1:
            found.absent(peer, digest)
        elif event == 2 and peer != A:
            open_requests -= {(peer, other) for other in found.lied(peer)}
        else:
            stored.add(digest)
            for other in found.arrived(peer, digest, now):
                found.abandoned(other, digest)
                open_requests.discard((other, digest))
        assert {d for s in found.sources.values() for d in s.asked} == {d for _, d in open_requests}
        assert found.left == count - len(stored)
    for peer, digest in open_requests:
        found.abandoned(peer, digest)
    while not found.done:
        now += 100.0
        found.offers(A, every)
        for peer, digest in drain(found, now):
            stored.add(digest)
            found.arrived(peer, digest, now)
    assert stored == set(every)


def test_a_quiet_peer_owes_nothing_and_is_not_penalised() -> None:
    found = transfer(20, A, B)
    asked = drain(found, 0.0)
    of_a = [digest for peer, digest in asked if peer == A]
    assert len(of_a) == WINDOW_START
    assert found.quiet(A) == of_a and found.quiet(C) == []
    for peer, digest in asked:
        if peer == B:
            found.arrived(B, digest, 1.0)
    assert {peer for peer, _ in drain(found, 1.0)} == {B}
    found.back(A)
    source = found.sources[A]
    assert source.failures == 0 and source.rest_until < 0 and len(source.has) == 20
    choice = found.choose(2.0)
    assert choice is not None and choice[0] == A


def test_a_received_chunk_is_no_longer_owed_before_it_is_stored() -> None:
    found = transfer(100, A)
    for peer, digest in drain(found, 0.0):
        found.arrived(peer, digest, 0.01)
    chosen = drain(found, 0.02)
    assert len(chosen) == WINDOW_MAX
    for peer, digest in chosen:
        found.received(peer, digest, 0.03)
        assert found.wants(digest)
    assert len(drain(found, 0.04)) == WINDOW_MAX
    assert not found.done


def test_chunks_not_yet_stored_count_as_in_flight() -> None:
    found = transfer(100, A)
    for peer, digest in drain(found, 0.0):
        found.arrived(peer, digest, 0.01)
    waiting = []
    while chosen := drain(found, 0.02):
        for peer, digest in chosen:
            found.received(peer, digest, 0.03)
        waiting += chosen
    assert len(waiting) == IN_FLIGHT
    found.arrived(*waiting[0], 0.04)
    assert len(drain(found, 0.05)) == 1


def received_unproven(found: Transfer) -> int:
    """Return how many chunks a peer may send before any of them was verified."""
    sent = 0
    while chosen := drain(found, 0.0):
        sent += len(chosen)
        for peer, digest in chosen:
            found.received(peer, digest, 0.001)
    return sent


def test_a_peer_that_never_sent_correct_bytes_gets_few_requests() -> None:
    assert received_unproven(transfer(100, A)) == WINDOW_START


def test_if_unverified_bytes_counted_a_liar_would_get_many_requests() -> None:
    """The twin of the test above."""
    found = transfer(100, A)
    found.sources[A].measure(1e9)
    assert received_unproven(found) == IN_FLIGHT


def test_a_received_chunk_is_not_hedged() -> None:
    found = slow_and_fast()
    owed = set(found.sources[A].asked)
    come = owed.pop()
    found.received(A, come, 19.0)
    assert {digest for _, digest in drain(found, 20.0)} == owed


def test_a_received_chunk_with_wrong_bytes_is_wanted_again() -> None:
    found = transfer(1, A, B)
    chosen = found.choose(0.0)
    assert chosen is not None
    found.received(*chosen, 0.1)
    found.lied(chosen[0])
    found.abandoned(*chosen)
    again = found.choose(0.2)
    assert again is not None
    assert again[0] != chosen[0]
    assert again[1] == chosen[1]


def test_an_offer_prepared_in_a_thread_is_the_same_and_loses_no_news() -> None:
    every = digests(50)
    one, other = transfer(50), transfer(50)
    one.offers(A, every[:30])
    offer = other.weigh(A, every[:30])
    assert not other.sources
    assert other.take(A, offer)
    assert one.sources[A] == other.sources[A]
    offer = other.weigh(A, every[:30])
    assert other.adds(A, every[30:32])  # while the offer is prepared
    assert not other.take(A, offer)
    assert other.sources[A].has == set(every[:32])
    assert set(every[:32]) == set(other.sources[A].queue)


def test_no_step_of_a_large_offer_blocks_the_event_loop() -> None:
    """A single operation that holds the interpreter lock handles a limited slice."""
    steps: list[int] = []

    class Counted(set[str]):
        def intersection(self, *others: Any) -> set[str]:
            steps.append(max(map(len, others)))
            return super().intersection(*others)

    wanted = {f"{n:064x}": CHUNK for n in range(3 * OFFER_STEP + 5)}
    found = Transfer(wanted, b"salt")
    found.wanted = Counted(found.wanted)
    assert len(found.weigh(A, list(wanted)).queue) == len(wanted)
    assert steps == [OFFER_STEP] * 3 + [5]
