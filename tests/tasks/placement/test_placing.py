"""A node claims layers before it loads them, and moves only for a reason that lasts."""

from dataclasses import replace

import pytest

from shoal.netsim.daemons.placements import PlacementOutcome, PlacementSwarm
from shoal.state.membership.record import (
    Aim,
    Capacity,
    DeviceSpeed,
    LinkSpeed,
    MemberRecord,
    Rank,
    ShardRecord,
)
from shoal.state.membership.roster import tag_of
from shoal.tasks.costs.rates import UNKNOWN
from shoal.tasks.defaults import (
    CLAIM_LONGEST,
    CLAIM_TIME,
    CLAIM_WAIT,
    FACTOR_MOST,
    MOVE_JITTER,
    MOVE_SETTLE,
    PLACES,
    PLAN_MACHINES,
    SPREAD_SETTLE,
)
from shoal.tasks.engine.interface import Parts
from shoal.tasks.placement.coverage import LayerSizes, Span
from shoal.tasks.placement.improve import considered
from shoal.tasks.placement.links import links_between
from shoal.tasks.placement.placing import Facts, Placing
from shoal.tasks.placement.plan import Place
from shoal.transport.identity import PeerId
from tests.tasks.placement.fleets import model

from ...cost import cost

ROOT, OTHER = "ab" * 32, "cd" * 32
OWN, B = PeerId("a"), PeerId("b")
FIRST = PeerId("0")  # of two nodes that can move, it stays
SIZES = LayerSizes(6, 10, 0, 0, 60)
HOLE_S, MOVES = 30.0, 2


def place(span: Span | None, rank: Rank = Rank.HOLDS, peer: PeerId = B) -> Place:
    return Place(peer, 30, span, rank)


def test_a_node_claims_waits_and_loads() -> None:
    placing = Placing(OWN, 30)
    first = placing.look(0.0, SIZES, [place(None, Rank.SEEKS)])
    assert (first.span, first.rank, first.load) == ((0, 3), Rank.CLAIMS, False)
    assert first.wake == CLAIM_WAIT
    again = placing.look(CLAIM_WAIT, SIZES, [place((3, 6), Rank.CLAIMS)])
    assert (again.span, again.rank, again.load) == ((0, 3), Rank.HOLDS, True)


def test_of_two_that_claim_the_same_one_takes_other_layers() -> None:
    claiming = [Placing(OWN, 30), Placing(B, 30)]
    spans = [each.look(0.0, SIZES, [place((3, 6), peer=PeerId("c"))]).span for each in claiming]
    assert spans == [(0, 3)] * 2
    told = [place((0, 3), Rank.CLAIMS, peer) for peer in (B, OWN)]
    beyond = LayerSizes(9, 10, 0, 0, 90)
    found = [
        each.look(1.0, beyond, [place((3, 6), peer=PeerId("c")), other]).span
        for each, other in zip(claiming, told, strict=True)
    ]
    assert sorted(found) == [(0, 3), (6, 9)]  # type: ignore[type-var]


def test_it_does_not_wait_alone_or_if_all_layers_fit() -> None:
    assert Placing(OWN, 30).look(0.0, SIZES, []).load
    assert Placing(OWN, 60).look(0.0, SIZES, [place(None, Rank.SEEKS)]).load


def held(span: Span, jitter: float = 0.0) -> Placing:
    placing = Placing(OWN, 30, jitter)
    placing.hold(span)
    return placing


def test_a_reason_to_move_has_to_last() -> None:
    placing, dead = held((0, 3), 1.0), [place((0, 3), peer=FIRST)]
    settle = MOVE_SETTLE + MOVE_JITTER
    step = placing.look(0.0, SIZES, dead)
    assert (step.span, step.rank, step.wake) == ((0, 3), Rank.HOLDS, settle)
    placing.look(settle - 1, SIZES, [*dead, place((3, 6), peer=PeerId("c"))])  # it is back
    assert placing.look(settle, SIZES, dead).wake == 2 * settle
    step = placing.look(2 * settle, SIZES, dead)
    assert (step.span, step.rank, step.load) == ((3, 6), Rank.CLAIMS, False)
    assert placing.look(2 * settle + CLAIM_WAIT, SIZES, dead).load


def test_ever_changing_claims_of_another_node_do_not_keep_it_from_loading() -> None:
    placing, loaded = Placing(OWN, 40), []
    for second in range(60):
        theirs = place((0, 2 + second % 2), Rank.FIXED)
        if placing.look(second, SIZES, [theirs]).load:
            loaded.append(second)
    assert [second <= CLAIM_LONGEST + CLAIM_WAIT for second in loaded] == [True]


def test_another_node_cannot_make_it_move_for_ever() -> None:
    placing, moves, sizes = Placing(OWN, 40), 0, LayerSizes(8, 10, 0, 0, 80)
    placing.hold((4, 8))
    for second in range(3600):
        theirs = place((0, 4 + second // 30 % 2), Rank.FIXED)
        moves += placing.look(second, sizes, [theirs]).load
    assert 2 <= moves <= 10


def test_a_claim_is_withdrawn_if_another_node_fills_the_hole() -> None:
    placing = held((0, 3))
    placing.look(0.0, SIZES, [place((0, 3), peer=FIRST)])
    assert placing.look(MOVE_SETTLE, SIZES, [place((0, 3), peer=FIRST)]).rank is Rank.CLAIMS
    step = placing.look(MOVE_SETTLE + 1, SIZES, [place((0, 3), peer=FIRST), place((3, 6))])
    assert (step.span, step.rank, step.load) == ((0, 3), Rank.HOLDS, False)


def test_it_waits_longer_if_not_all_layers_can_be_served() -> None:
    large = LayerSizes(12, 10, 0, 0, 120)
    assert held((0, 3)).look(0.0, large, [place((0, 3), peer=FIRST)]).wake == SPREAD_SETTLE


def test_nothing_fits() -> None:
    assert Placing(OWN, 9).look(0.0, SIZES, []).span is None


def record(peer: str, aim: Aim | None, *spans: Span, engine: bool = True) -> MemberRecord:
    shards = tuple(ShardRecord(ROOT, a == 0, a, b, b == 6, "float32", 1) for a, b in spans)
    aims = (aim,) if aim else ()
    capacity = Capacity(2, 30, engine)
    return MemberRecord(PeerId(peer), 1, capacity=capacity, shards=shards, aims=aims)


def test_which_members_count() -> None:
    members = [
        record("a", Aim(ROOT, 0, 3, Rank.HOLDS)),  # this node
        record("b", Aim(ROOT, 0, 0, Rank.SEEKS)),
        record("c", Aim(OTHER, 0, 3, Rank.CLAIMS), (0, 3)),  # about to leave
        record("d", None, (3, 6)),  # of an earlier version: it does not move
        record("e", Aim(ROOT, 2, 4, Rank.FIXED), engine=False),
        record("f", Aim(ROOT, 2, 4, Rank.CLAIMS)),
        record("g", None),
    ]
    found = Facts(ROOT).places(members, OWN, 0.0)
    assert {each.peer: (each.span, each.rank) for each in found} == {
        "b": (None, Rank.SEEKS), "d": ((3, 6), Rank.FIXED), "f": ((2, 4), Rank.CLAIMS),
    }  # fmt: skip


def test_a_member_that_seeks_layers_and_never_serves_any_expires() -> None:
    """Otherwise one that offers memory for the whole model would keep all others from moving."""
    facts, seeking = Facts(ROOT), record("b", Aim(ROOT, 0, 0, Rank.SEEKS))
    assert facts.places([seeking], OWN, 0.0)
    assert facts.places([seeking], OWN, CLAIM_TIME - 1)
    assert not facts.places([seeking], OWN, CLAIM_TIME)


def test_a_claim_that_is_never_served_expires() -> None:
    facts, aim = Facts(ROOT), Aim(ROOT, 0, 3, Rank.HOLDS)
    assert facts.places([record("b", aim)], OWN, 0.0)
    assert not facts.places([record("b", aim)], OWN, CLAIM_TIME)
    assert facts.places([record("b", aim, (0, 3))], OWN, CLAIM_TIME + 1)
    assert facts.places([record("b", aim)], OWN, CLAIM_TIME + 2), "it loads again"


@pytest.mark.parametrize("change", ["memory", "layers", "rank", "pause"])
def test_a_claim_that_changes_again_and_again_expires_too(change: str) -> None:
    """Otherwise a liar could keep all others from layers that it never serves."""
    facts, counted = Facts(ROOT), 0
    for look in range(100):
        aim = {
            "memory": Aim(ROOT, 0, 3, Rank.HOLDS, 20 + look % 2),
            "layers": Aim(ROOT, 0, 3 + look % 2, Rank.HOLDS),
            "rank": Aim(ROOT, 0, 3, Rank.HOLDS if look % 2 else Rank.CLAIMS),
            "pause": Aim(ROOT if look % 2 else OTHER, 0, 3, Rank.HOLDS),
        }[change]
        counted += len(facts.places([record("b", aim)], OWN, look * CLAIM_TIME / 10))
    assert counted <= 10


def test_a_member_that_has_long_claimed_nothing_may_claim_again() -> None:
    facts, aim = Facts(ROOT), Aim(ROOT, 0, 3, Rank.HOLDS)
    assert facts.places([record("b", aim)], OWN, 0.0)
    assert not facts.places([record("b", aim)], OWN, CLAIM_TIME)
    facts.places([], OWN, CLAIM_TIME + 1)
    assert not facts.places([record("b", aim)], OWN, CLAIM_TIME + 2)
    facts.places([], OWN, CLAIM_TIME + 3)
    facts.places([], OWN, 2 * CLAIM_TIME + 3)
    assert facts.places([record("b", aim)], OWN, 2 * CLAIM_TIME + 4)


@pytest.mark.parametrize(
    ("spans", "served"),
    [
        ([(0, 3), (3, 6)], True),
        ([(3, 6), (0, 3), (1, 4)], True),
        ([(0, 2), (2, 3), (3, 6)], True),
        ([(0, 3), (4, 6)], False),
        ([(0, 3), (2, 6)], False),  # no chain joins them
        ([(3, 6)], False),
        ([(0, 3), (3, 6), (6, 6)], True),
        ([(0, 8)], False),  # while it changes from more layers to fewer
        ([(0, 3), (3, 8), (3, 3)], False),
    ],
)
def test_a_member_may_serve_what_it_aims_at_on_several_devices(
    spans: list[Span], served: bool
) -> None:
    facts, aim = Facts(ROOT), Aim(ROOT, 0, 6, Rank.HOLDS)
    member = record("b", aim, *spans)
    facts.places([member], OWN, 0.0)
    assert [each.span for each in facts.places([member], OWN, CLAIM_TIME)] == [(0, 6)] * served


def test_a_flood_of_members_is_bounded() -> None:
    many = [record(f"m{n}", Aim(ROOT, 0, 0, Rank.SEEKS)) for n in range(PLACES)]
    found = Facts(ROOT).places([*many, record("x", Aim(ROOT, 0, 3, Rank.HOLDS))], OWN, 0.0)
    assert len(found) == PLACES and found[0].peer == "x"


def check(outcomes: list[PlacementOutcome]) -> None:
    assert max(outcome.hole_s for outcome in outcomes) <= HOLE_S
    assert max(outcome.moves for outcome in outcomes) <= MOVES


def test_swarms_that_start_restart_and_die_fill_their_holes() -> None:
    check([PlacementSwarm(seed).run() for seed in range(25)])


def test_without_looking_again_holes_stay() -> None:
    holes = [PlacementSwarm(seed, standing=False).run().hole_s for seed in range(20)]
    assert max(holes) > HOLE_S


@pytest.mark.ci
def test_hundreds_of_swarms_fill_their_holes() -> None:
    """1,000 of them took 60 s at most before nodes planned by speed (ADR 0057)."""
    with cost() as spent:
        check([PlacementSwarm(seed).run() for seed in range(600)])
    assert spent.reference_ms < 150_000


def test_members_are_as_fast_as_they_measured() -> None:
    """A measurement of a shard counts more than the probe of its node."""
    slow = DeviceSpeed("cpu", "", 10**9, 1e10, 1e11, 1e11, 4)
    member = record("b", Aim(ROOT, 0, 3, Rank.HOLDS), (0, 3))
    member = replace(member, capacity=replace(member.capacity, devices=(slow,)))
    (probed,) = Facts(ROOT, model(6)).places([member], OWN, 0.0)
    assert probed.rates.bandwidth == 1e10
    shard = replace(member.shards[0], costs=(3.0, 1e-4, 1e-9))
    (measured,) = Facts(ROOT, model(6)).places([replace(member, shards=(shard,))], OWN, 0.0)
    assert measured.rates != probed.rates


def test_a_thousand_members_with_many_facts_do_not_stall_the_loop() -> None:
    device = DeviceSpeed("cpu", "", 10**9, 1e10, 1e11, 1e11, 4)
    shard = ShardRecord(ROOT, True, 0, 6, True, "float32", 1, costs=(1e-3, 1e-5, 1e-9))
    names = [PeerId(f"{number:04}") for number in range(1024)]
    links = [LinkSpeed(tag_of(name), 1.0, 1e7) for name in names]
    members = [
        MemberRecord(
            name, 1, capacity=Capacity(1, 10**9, True, 1e9, (device,) * 16),
            shards=(shard,) * 16, aims=(Aim(ROOT, 0, 6, Rank.HOLDS),), links=tuple(links[:64]),
        )
        for name in names
    ]  # fmt: skip
    facts, known, spent = Facts(ROOT, model(6)), {each.peer: each for each in members}, []
    for _ in range(3):
        with cost() as each:
            places = facts.places(members, OWN, 0.0)
            links_between([known[place.peer] for place in considered(places)])
            facts.steady((), 0.0)
        spent.append(each.reference_ms)
    assert min(spent) < 50
    assert sum(place.rates != UNKNOWN for place in places) == 2 * PLAN_MACHINES


@pytest.mark.parametrize(("factor", "counts"), [(0.5, 1), (1.9, 1), (9.0, 8), (1e99, FACTOR_MOST)])
def test_a_liar_counts_as_slow_as_the_gateway_measured(factor: float, counts: int) -> None:
    """A thousandfold claim has no effect after its first measured steps."""
    member = record("b", Aim(ROOT, 0, 3, Rank.HOLDS), (0, 3))
    asked: list[tuple[PeerId, str, Parts]] = []

    def slower(peer: PeerId, root: str, parts: Parts, token_s: float) -> float:
        assert token_s > 0
        asked.append((peer, root, parts))
        return factor

    (place,) = Facts(ROOT, model(6)).places([member], OWN, 0.0, slower)
    assert place.rates.factor == counts
    assert asked == [(B, ROOT, Parts(True, 0, 3, False))]
