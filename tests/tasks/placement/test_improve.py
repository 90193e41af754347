"""A move for speed pays for itself, never takes the last replica, and believes no wild claims."""

import time
from dataclasses import replace
from random import Random

import pytest

from shoal.state.membership.record import Rank
from shoal.tasks.costs.rates import DeviceRates
from shoal.tasks.defaults import CLAIM_BELIEF, PLAN_MACHINES
from shoal.tasks.placement.coverage import Span
from shoal.tasks.placement.fleet import Demand, Machine, PlanModel
from shoal.tasks.placement.improve import (
    PlanTerms,
    addition,
    believed,
    better_move,
    considered,
    divided,
    is_safe,
)
from shoal.tasks.placement.plan import Place, has_chain
from shoal.transport.identity import PeerId
from tests.tasks.placement.fleets import LAYER, fleet, machine, model


def terms(machines: list[Machine], regions: str = "", *, of: PlanModel | None = None) -> PlanTerms:
    return PlanTerms(of or model(), fleet(machines, regions).links, Demand(8, 256, 64))


def place(each: Machine, span: Span | None, rank: Rank = Rank.HOLDS) -> Place:
    return Place(each.peer, each.memory, span, rank, each.rates)


A, B, C = machine("a", 4), machine("b", 4), machine("c", 4, 4)


def test_the_faster_of_two_spares_replaces_the_slow_stage() -> None:
    """The machine `c` beside `a` is fast, and of no use where it is."""
    far = [A, B, replace(C, memory=9 * LAYER)]
    places = [place(A, (0, 4)), place(B, (4, 8)), place(far[2], (0, 4))]
    move = better_move(terms(far), places)
    assert move is not None
    assert (move.peer, move.span) == ("c", (0, 8)) and move.after > move.before


def test_the_last_replica_never_moves() -> None:
    fast = machine("b", 8, 9)
    assert better_move(terms([A, fast]), [place(A, (0, 4)), place(fast, (4, 8))]) is None
    spare = [place(A, (0, 4)), place(fast, (4, 8)), place(C, (0, 4))]
    assert better_move(terms([A, fast, C]), spare) is None


def test_owners_choices_and_claims_of_others_stop_moves() -> None:
    large = replace(C, memory=9 * LAYER)
    places = [place(A, (0, 4)), place(B, (4, 8)), place(large, (0, 4), Rank.FIXED)]
    assert better_move(terms([A, B, large]), places) is None
    places = [place(A, (0, 4)), place(B, (4, 8)), place(large, (0, 4))]
    claiming = place(machine("d", 4), (0, 4), Rank.CLAIMS)
    assert better_move(terms([A, B, large]), [*places, claiming]) is None


def test_a_move_has_to_pay_for_the_weights() -> None:
    """A move gains the same with layers of 100 MB and of 30 GB each, and costs more."""
    small, large = model(), model()
    sizes = replace(large.sizes, layer=300 * LAYER, everything=2400 * LAYER)
    large = replace(large, sizes=sizes)
    for of, scale, moves in ((small, 1, True), (large, 300, False)):
        c = replace(C, memory=9 * LAYER * scale)
        ab = [replace(each, memory=5 * LAYER * scale) for each in (A, B)]
        places = [place(ab[0], (0, 4)), place(ab[1], (4, 8)), place(c, (0, 4))]
        assert (better_move(terms([*ab, c], of=of), places) is not None) == moves


def test_a_move_has_to_pay_for_computing_sessions_again() -> None:
    """Slow machines make the same move with sessions of 2,000 and not of 30,000 positions."""
    of = replace(model(), context=10**6)
    a, b, c = (machine(name, 4, speed) for name, speed in (("a", 0.01), ("b", 0.01), ("c", 0.015)))
    c = replace(c, memory=9 * LAYER)
    places = [place(a, (0, 4)), place(b, (4, 8)), place(c, (0, 4))]
    links = fleet([a, b, c]).links
    for prompt, moves in ((2000, True), (30_000, False)):
        move = better_move(PlanTerms(of, links, Demand(1, prompt, 64)), places)
        assert (move is not None) == moves, prompt


def test_a_small_gain_is_no_reason() -> None:
    c = machine("c", 4, 1.1)
    places = [place(A, (0, 4)), place(B, (4, 8)), place(c, (0, 4))]
    assert better_move(terms([A, B, c]), places) is None


def test_moves_end_and_never_make_it_slower() -> None:
    """Each move raises one number that all nodes share, by a fifth, so they cannot go round."""
    for seed in range(10):
        luck = Random(seed)
        machines = [machine(f"m{n}", luck.uniform(2, 9), luck.uniform(0.5, 9)) for n in range(6)]
        known, held = terms(machines, "xyxyxy"), dict[str, Span]()
        for each in machines:
            stop = min(8, int((each.memory - LAYER) // LAYER))
            held[each.peer] = (0, stop) if luck.random() < 0.5 else (8 - stop, 8)
        rates = []
        for _ in range(12):
            move = better_move(known, [place(each, held[each.peer]) for each in machines])
            if move is None:
                break
            rest = [span for peer, span in held.items() if peer != move.peer]
            assert has_chain(8, rest)
            held[move.peer] = move.span
            rates.append((move.before.demand, move.after.demand))
        else:
            raise AssertionError("it never stops moving")
        assert all(after >= 1.2 * before for before, after in rates)


def test_a_newcomer_takes_what_adds_most() -> None:
    slow, fast = machine("b", 4, 0.2), machine("n", 4, 4)
    others = [place(A, (0, 4)), place(slow, (4, 8))]
    own = place(fast, None, Rank.SEEKS)
    assert addition(terms([A, slow, fast]), others, own) == (4, 8)
    lame = place(machine("n", 4, 0.01), None, Rank.SEEKS)
    assert addition(terms([A, slow, fast]), others, lame) is None


def test_wild_claims_are_limited_by_those_of_the_others() -> None:
    claims = [DeviceRates(1e11, 1e12, 2e12)] * 4 + [DeviceRates(1e14, 1e15, 2e15, load=1e15)]
    most = believed(claims)[-1]
    assert (most.bandwidth, most.float32) == (CLAIM_BELIEF * 1e11, CLAIM_BELIEF * 1e12)
    assert most.load == CLAIM_BELIEF * 1e9
    assert believed(claims)[:4] == claims[:4]


def test_a_thousandfold_claim_does_not_leave_the_honest_without_a_chain() -> None:
    """The liar claims memory for the whole model, too. The others serve it beside the liar."""
    honest = [machine(name, 4) for name in "abcd"]
    liar = machine("zz", 1000, 1000)
    places = [place(each, None, Rank.SEEKS) for each in (*honest, liar)]
    spans = divided(terms([*honest, liar]), places)
    assert has_chain(8, [span for peer, span in spans.items() if peer != liar.peer])


def test_a_node_relies_only_on_steady_ones() -> None:
    liar = machine("zz", 1000, 1000)
    places = [place(A, (0, 4)), place(B, (4, 8)), place(liar, (0, 8))]
    known = terms([A, B, liar])
    assert not is_safe(known, places, B.peer)
    assert is_safe(replace(known, steady=(liar.peer,)), places, B.peer)
    assert not is_safe(replace(known, steady=(A.peer, B.peer)), places, B.peer)


@pytest.mark.parametrize("rank", [Rank.HOLDS, Rank.SEEKS])
def test_thousands_of_members_are_looked_at_in_bounded_time(rank: Rank) -> None:
    luck = Random(2)
    many = [machine(f"m{n:04}", luck.uniform(1, 9), luck.uniform(1, 999)) for n in range(512)]
    places = [
        place(each, (0, 8) if rank is Rank.HOLDS and each.memory > 9 * LAYER else None, rank)
        for each in many
    ]
    assert len(considered(places)) == PLAN_MACHINES
    known = PlanTerms(model(), {}, Demand(8, 256, 64))
    began = time.process_time()
    if rank is Rank.HOLDS:
        better_move(known, places)
    else:
        divided(known, places)
    assert time.process_time() - began < 6.0


def test_a_chain_is_among_the_nodes_of_a_large_swarm() -> None:
    """The peers with the lowest ids may all hold the same layers."""
    places = [
        Place(PeerId(f"{number:03}"), 9 * LAYER, (0, 4) if number < 90 else (4, 8), Rank.HOLDS)
        for number in range(100)
    ]
    found = considered(places)
    assert has_chain(8, [place.span for place in found if place.span])
    assert considered(places[::-1]) == found
