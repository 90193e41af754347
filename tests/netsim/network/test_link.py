"""Delay, rate, queue, loss, order: a pipe's behaviour compared with its specification."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from statistics import quantiles

import pytest
import trio

from shoal.netsim.network.link import (
    CUT,
    LOST,
    OVERFLOWED,
    TOO_BIG,
    Burst,
    Cycle,
    CyclePhase,
    LinkSpec,
    Pipe,
    PipeSpec,
)
from shoal.netsim.network.packet import ICMP, UDP, Icmp, Packet
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World

MBIT = 1e6 / 8
Z99 = 2.576


def pipe(seed: int = 1, **spec: object) -> Pipe:
    return Pipe(PipeSpec(**spec), Random(seed))  # type: ignore[arg-type]


def arrivals(link: Pipe, count: int, gap: float, size: int = 1000) -> list[float]:
    """Return when each of `count` packets arrives, sent `gap` seconds apart; negative if it does
    not.
    """
    return [link.offer(index * gap, size) for index in range(count)]


# Rate and queue.


def test_a_plain_pipe_only_delays() -> None:
    assert arrivals(pipe(delay=0.02), 3, 0.001) == pytest.approx([0.02, 0.021, 0.022])


@pytest.mark.parametrize("megabits", [1.0, 8.0, 100.0])
def test_a_saturated_link_carries_its_rate(megabits: float) -> None:
    """Twice as much as fits is offered; the bytes that arrive per second are the rate,
    within 5 %.
    """
    link = pipe(rate=megabits * MBIT, queue=0.1, delay=0.02)
    gap = 1200 / (2 * megabits * MBIT)
    got = [when for when in arrivals(link, 4000, gap, 1200) if when > 0]
    carried = (len(got) - 1) * 1200 / (got[-1] - got[0])
    assert carried == pytest.approx(megabits * MBIT, rel=0.05)
    assert carried == pytest.approx(megabits * MBIT, rel=1e-6)  # it is exact, even


def test_the_queue_holds_its_bytes_and_no_more() -> None:
    link = pipe(rate=10_000.0, queue=1.0)  # 10 kB wait
    got = arrivals(link, 12, 0.0)
    assert got == pytest.approx([0.1 * (n + 1) for n in range(10)] + [OVERFLOWED] * 2)
    assert link.waiting(0.0) == pytest.approx(10_000)
    assert link.waiting(0.5) == pytest.approx(5_000)
    assert link.offer(0.099, 1000) == OVERFLOWED
    assert link.offer(0.1, 1000) == pytest.approx(1.1)  # one has left
    assert link.waiting(5.0) == 0.0


def test_small_packets_still_fit_where_a_large_one_does_not() -> None:
    link = pipe(rate=10_000.0, queue=0.25)
    assert [link.offer(0.0, size) for size in (1000, 1000, 1000, 500)] == pytest.approx(
        [0.1, 0.2, OVERFLOWED, 0.25]
    )


def test_an_idle_link_takes_a_packet_larger_than_its_queue() -> None:
    link = pipe(rate=10_000.0, queue=0.01)
    assert link.offer(0.0, 1500) == pytest.approx(0.15)
    assert link.offer(0.0, 1500) == OVERFLOWED


def test_a_lost_packet_has_used_the_link() -> None:
    link = pipe(rate=10_000.0, queue=1.0, loss=1.0)
    assert link.offer(0.0, 1000) == LOST
    assert link.waiting(0.0) == pytest.approx(1000)


# Loss.


def binomial_band(count: int, chance: float) -> tuple[float, float]:
    """Return the range in which 99 of 100 counts lie."""
    spread = Z99 * math.sqrt(count * chance * (1 - chance))
    return count * chance - spread, count * chance + spread


def is_in_band(link: Pipe, chance: float, count: int = 20_000) -> bool:
    low, high = binomial_band(count, chance)
    return low <= sum(when == LOST for when in arrivals(link, count, 0.01)) <= high


@pytest.mark.parametrize("chance", [0.001, 0.02, 0.3])
def test_loss_is_within_the_binomial_interval(chance: float) -> None:
    assert is_in_band(pipe(loss=chance), chance)


def test_the_interval_can_fail() -> None:
    assert not is_in_band(pipe(loss=0.02), 0.027)


def test_bursts_are_as_long_and_as_frequent_as_in_theory() -> None:
    """Everything in the bad state is lost: its share is p/(p+r), its mean length 1/r."""
    burst = Burst(bad=0.01, good=0.2, loss_bad=1.0)
    lost = [when == LOST for when in arrivals(pipe(burst=burst), 200_000, 0.01)]
    share = sum(lost) / len(lost)
    starts = sum(now and not before for before, now in pairwise(lost))
    assert share == pytest.approx(0.01 / 0.21, rel=0.05) and share == pytest.approx(
        burst.loss, rel=0.05
    )
    assert sum(lost) / starts == pytest.approx(1 / 0.2, rel=0.05)


def test_independent_loss_has_no_bursts() -> None:
    """The twin: the same share of loss without the chain comes one by one."""
    lost = [when == LOST for when in arrivals(pipe(loss=0.01 / 0.21), 50_000, 0.01)]
    starts = sum(now and not before for before, now in pairwise(lost))
    assert sum(lost) / starts < 1.2


# Jitter, order, duplicates.


def test_sparse_packets_are_spread_over_the_jitter() -> None:
    link = pipe(delay=0.02, jitter=0.01)
    extra = [when - 0.02 - index for index, when in enumerate(arrivals(link, 4000, 1.0))]
    cuts = quantiles(extra, n=20)
    assert cuts[0] == pytest.approx(0.0005, abs=0.0003)
    assert cuts[9] == pytest.approx(0.005, rel=0.1)
    assert cuts[18] == pytest.approx(0.0095, rel=0.05)
    assert max(extra) <= 0.01 + 1e-9


def test_jitter_keeps_the_order_and_its_bound() -> None:
    got = arrivals(pipe(delay=0.02, jitter=0.05), 5000, 0.0007)
    assert got == sorted(got)
    assert all(0.02 <= when - 0.0007 * n <= 0.07 + 1e-9 for n, when in enumerate(got))


def test_reordering_is_as_frequent_as_asked_for() -> None:
    got = arrivals(pipe(delay=0.02, jitter=0.001, reorder=0.1, reorder_delay=0.05), 5000, 0.005)
    late = sum(any(later < when for later in got[n + 1 : n + 12]) for n, when in enumerate(got))
    assert binomial_band(5000, 0.1)[0] <= late <= binomial_band(5000, 0.1)[1]


def test_duplicates_are_as_frequent_as_asked_for() -> None:
    link = pipe(duplicate=0.05)
    assert link.duplicates and not pipe().duplicates
    low, high = binomial_band(20_000, 0.05)
    assert low <= sum(link.again() for _ in range(20_000)) <= high


# MTU, cuts, change.


def test_too_big_is_refused_and_takes_no_time() -> None:
    link = pipe(mtu=1280, rate=1000.0)
    assert link.offer(0.0, 1281) == TOO_BIG
    assert link.offer(0.0, 1280) == pytest.approx(1.28)


def test_a_cut_stops_all_packets_until_it_is_mended() -> None:
    link = pipe(delay=0.01)
    link.cut = True
    assert link.offer(0.0, 1) == CUT and link.offer(0.0, 9000) == CUT
    link.change(PipeSpec(mtu=9000), None)
    assert link.cut and link.offer(0.0, 1) == CUT
    link.cut = False
    assert link.offer(0.0, 9000) == 0.0


def test_a_change_lets_nothing_overtake() -> None:
    link = pipe(delay=0.5)
    assert link.offer(0.0, 100) == 0.5
    link.change(PipeSpec(delay=0.1), None)
    assert link.offer(0.1, 100) == 0.5
    assert link.offer(0.6, 100) == pytest.approx(0.7)


def test_a_random_pipe_needs_a_stream() -> None:
    with pytest.raises(ValueError, match="stream"):
        Pipe(PipeSpec(loss=0.1), None)
    assert Pipe(PipeSpec(rate=1e6, delay=0.1), None).offer(0.0, 1000) == pytest.approx(0.101)


# Effects that repeat.


HANDOVER = Cycle(
    15.0, (CyclePhase(0.0, 1.0, 0.1, loss=1.0, fades=True), CyclePhase(14.0, 1.0, 0.05))
)


def test_a_cycle_depends_only_on_the_time() -> None:
    assert HANDOVER.at(0.0) == (0.1, 1.0)
    assert HANDOVER.at(30.5) == pytest.approx((0.05, 1.0))
    assert HANDOVER.at(7.0) == (0.0, 0.0)
    assert HANDOVER.at(44.2) == (0.05, 0.0)


def test_a_handover_delays_loses_and_keeps_the_order() -> None:
    spikes = Cycle(15.0, tuple(replace(phase, loss=0.0) for phase in HANDOVER.phases))
    link = Pipe(PipeSpec(delay=0.02, cycle=spikes), None)  # nothing is drawn
    got = arrivals(link, 3000, 0.01)
    assert got == sorted(got)
    assert got[1450] - 14.5 == pytest.approx(0.07)
    assert got[700] - 7.0 == pytest.approx(0.02)
    lossy = pipe(delay=0.02, cycle=HANDOVER)
    lost = [n for n, when in enumerate(arrivals(lossy, 3000, 0.01)) if when == LOST]
    assert lost == [*range(100), *range(1500, 1600)]


# In a network.


@dataclass
class Talk:
    """UDP at the listener as a trace shows it, and the ICMP that came back to the talker."""

    outcomes: list[str]
    complaints: list[Packet]


def talk(link: LinkSpec, size: int, count: int = 1, down: LinkSpec | None = None) -> Talk:
    """Let one host send datagrams to another."""
    trace = Trace(keep=True)
    world = World(seed=3, trace=trace)
    alice, bob = world.host("alice", link=link), world.host("bob", link=down)
    heard: list[Packet] = []

    class Listener:
        def receive(self, packet: Packet) -> None:
            if packet.icmp.kind == "too-big":  # and not that the port is closed
                heard.append(packet)

    alice.protocols[ICMP] = Listener()
    via, source = alice.source(bob.addresses()[0])

    async def main() -> None:
        for _ in range(count):
            packet = Packet(UDP, (source, 1), (bob.addresses()[0], 2), size, b"", "alice", "")
            alice.send(packet, via)
            await trio.sleep(0.1)
        await trio.sleep(1)

    world.run(main)
    assert trace.digest
    of_bob = [what for _, what, who, proto, *_ in trace.records if (who, proto) == ("bob", UDP)]
    return Talk(of_bob, heard)


def test_a_network_drops_large_packets_and_reports_it() -> None:
    narrow = LinkSpec(PipeSpec(mtu=1280), PipeSpec(mtu=1280))
    for found in (talk(narrow, 1281), talk(LinkSpec(), 1281, down=narrow)):
        assert found.outcomes in (["mtu"], [])
        (told,) = found.complaints
        assert isinstance(told.data, Icmp)
        assert (told.icmp.kind, told.icmp.mtu, told.dst[0]) == ("too-big", 1280, told.icmp.src[0])
    assert not talk(narrow, 1280).complaints


def test_a_network_delivers_duplicates() -> None:
    twice = LinkSpec(PipeSpec(duplicate=1.0), PipeSpec(duplicate=1.0))
    assert talk(twice, 100, 5).outcomes == ["received"] * 10
    assert talk(LinkSpec(), 100, 5, down=twice).outcomes == ["received"] * 10
    assert talk(LinkSpec(), 100, 5).outcomes == ["received"] * 5
