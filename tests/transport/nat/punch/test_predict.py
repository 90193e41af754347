"""Plans for pairs of NATs, and predicted ports."""

from random import Random

import pytest

from shoal.transport.nat.punch import defaults
from shoal.transport.nat.punch.predict import (
    NatProfile,
    PredictionPlan,
    plan,
    random_ports,
    sequence,
    step_of,
)
from shoal.transport.nat.reach.reachability import (
    Allocation,
    Behaviour,
    Pattern,
    Reachability,
    UdpKind,
)
from tests.transport.nat.punch.street import AD, APD, EI, NATS

EASY, HOME = NatProfile(EI, EI), NatProfile(EI, APD)
DRAWS, COUNTS = NatProfile(APD, APD), NatProfile(APD, APD, counts=True)


def meets(sockets: int, probes: int, ports: int = defaults.NAT_PORTS) -> float:
    """Return the probability that a birthday search succeeds if no packet is lost."""
    missed = 1.0
    for i in range(min(probes, ports)):
        missed *= max(0, ports - sockets - i) / (ports - i)
    return 1.0 - missed


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (HOME, HOME, PredictionPlan.CHECKS),
        (DRAWS, EASY, PredictionPlan.CHECKS),
        (DRAWS, NatProfile(EI, AD), PredictionPlan.CHECKS),
        (DRAWS, HOME, PredictionPlan.OPEN),
        (HOME, DRAWS, PredictionPlan.SPRAY),
        (COUNTS, HOME, PredictionPlan.COUNT),
        (HOME, COUNTS, PredictionPlan.FOLLOW),
        (COUNTS, COUNTS, PredictionPlan.STEP),
        (COUNTS, DRAWS, PredictionPlan.HOPELESS),
        (DRAWS, DRAWS, PredictionPlan.HOPELESS),
        (NatProfile(APD, EI), NatProfile(APD, EI), PredictionPlan.HOPELESS),
        (NatProfile(AD, EI), NatProfile(AD, EI), PredictionPlan.CHECKS),
        (NatProfile(AD, EI), NatProfile(APD, EI), PredictionPlan.CHECKS),
        (NatProfile(AD, AD), NatProfile(AD, EI), PredictionPlan.CHECKS),
        (NatProfile(AD, AD), NatProfile(AD, AD), PredictionPlan.HOPELESS),
        (NatProfile(AD, EI), NatProfile(AD, APD), PredictionPlan.HOPELESS),
        (NatProfile(AD, EI), HOME, PredictionPlan.OPEN),
        (NatProfile(), NatProfile(), PredictionPlan.CHECKS),
        (NatProfile(udp=False), HOME, PredictionPlan.BLOCKED),
        (HOME, NatProfile(udp=False), PredictionPlan.BLOCKED),
    ],
)
def test_plan(mine: NatProfile, theirs: NatProfile, expected: PredictionPlan) -> None:
    assert plan(mine, theirs) is expected


def test_without_a_search_other_plans_are_unchanged() -> None:
    for mine in (*NATS.values(), COUNTS):
        for theirs in (*NATS.values(), COUNTS):
            full = plan(mine, theirs)
            spared = (
                PredictionPlan.SPARED
                if full in (PredictionPlan.OPEN, PredictionPlan.SPRAY)
                else full
            )
            assert plan(mine, theirs, search=False) is spared


def test_the_plans_of_both_sides_match() -> None:
    partner = {
        PredictionPlan.OPEN: PredictionPlan.SPRAY,
        PredictionPlan.COUNT: PredictionPlan.FOLLOW,
    }
    partner |= {b: a for a, b in partner.items()}
    nats = [*NATS.values(), COUNTS, NatProfile(AD, APD, counts=True)]
    for a in nats:
        for b in nats:
            assert plan(b, a) is partner.get(plan(a, b), plan(a, b))


@pytest.mark.parametrize(
    ("ports", "step"),
    [
        ([5000, 5001, 5002], 1),
        ([5000, 5002, 5004], 2),
        ([5000, 5001, 5004], 1),
        ([5000, 4998], -2),
        ([5000, 5000, 5000], None),
        ([5000, 5001, 5000], None),
        ([5000, 40000, 1234], None),
        ([5000], None),
        ([], None),
    ],
)
def test_step(ports: list[int], step: int | None) -> None:
    assert step_of(ports) == step


def test_sequence_stays_in_range() -> None:
    assert sequence(5000, 2, 3) == [5002, 5004, 5006]
    assert sequence(65534, 1, 3) == [65535, 1024, 1025]
    assert sequence(1025, -1, 3) == [1024, 65535, 65534]


def test_the_probability_matches_a_simulation() -> None:
    luck, runs, ports, sockets, probes = Random(1), 2000, 6000, 60, 150
    hits = sum(
        not set(luck.sample(range(ports), sockets)).isdisjoint(luck.sample(range(ports), probes))
        for _ in range(runs)
    )
    assert hits / runs == pytest.approx(meets(sockets, probes, ports), abs=0.03)
    assert meets(256, 1400) > 0.996
    assert meets(1, 1400) < 0.03, "one socket is not enough"


def test_random_ports_are_different_and_cover_the_range() -> None:
    ports = list(random_ports(Random(1).randbytes, 1400))
    assert len(set(ports)) == 1400 and min(ports) >= 1024
    assert min(ports) < 1300 and max(ports) > 65200
    assert list(random_ports(Random(1).randbytes, -5)) == []


def test_the_nat_follows_from_the_measurement() -> None:
    kind = UdpKind(APD, APD, Allocation(Pattern.SEQUENTIAL, 1))
    assert NatProfile.of(Reachability(udp=kind)) == COUNTS
    public = NatProfile.of(Reachability(udp=UdpKind(Behaviour.NONE, EI)))
    assert public.preserves and not public.hard and not public.strict and public.udp
    assert not NatProfile.of(Reachability(udp=UdpKind(blocked=True))).udp
    unknown = NatProfile.of(Reachability())
    assert unknown == NatProfile() and unknown.strict and not unknown.hard
