"""Tests of the plan: a chain if one is possible, with as few moves as necessary."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.netsim.daemons.placements import suffices
from shoal.state.membership.record import Rank
from shoal.tasks.defaults import PLACES
from shoal.tasks.placement.coverage import LayerSizes, Span
from shoal.tasks.placement.plan import Place, Plan, has_chain, plan
from shoal.transport.identity import PeerId

from ...cost import cost

LAYERS = 12
SIZES = LayerSizes(LAYERS, 10, 0, 0, LAYERS * 10)


def place(
    peer: str, memory: int, span: Span | None = None, rank: Rank = Rank.HOLDS, *, layer: int = 10
) -> Place:
    """Make a node with memory for `memory` layers; without a span it seeks."""
    return Place(PeerId(peer), memory * layer, span, Rank.SEEKS if span is None else rank)


def moved(places: list[Place], found: Plan) -> dict[str, Span]:
    """Return the nodes whose layers should change."""
    return {
        each.peer: found.spans[each.peer]
        for each in places
        if each.span not in (None, found.spans.get(each.peer))
    }


def test_a_node_that_can_hold_all_layers_does() -> None:
    assert plan(SIZES, [place("a", 12), place("b", 3, (0, 3))]).spans[PeerId("a")] == (0, 12)


def test_seeking_nodes_fill_a_hole_to_its_ends() -> None:
    found = plan(SIZES, [place("a", 4, (0, 4)), place("b", 4, (8, 12)), place("c", 6)])
    assert found.complete and found.spans[PeerId("c")] == (4, 8)


def test_without_a_hole_the_weakest_layers_get_a_replica() -> None:
    served = [
        place("a", 4, (0, 4)), place("b", 4, (4, 8)), place("c", 4, (8, 12)),
        place("d", 4, (0, 4)), place("e", 4, (8, 12)),
    ]  # fmt: skip
    found = plan(SIZES, [*served, place("f", 5)])
    assert found.spans[PeerId("f")] == (4, 8) and not moved(served, found)


def test_nodes_that_start_together_take_different_layers() -> None:
    found = plan(SIZES, [place(name, 5) for name in "abc"])
    assert found.complete and has_chain(LAYERS, found.spans.values())


def test_the_swarm_of_the_issue_repairs_itself() -> None:
    """All three took 0:5. Only the two that have to move do."""
    stuck = [place(name, 5, (0, 5)) for name in "abc"]
    found = plan(SIZES, stuck)
    assert found.complete and len(moved(stuck, found)) == 2


def test_a_spare_moves_and_not_a_node_of_the_chain() -> None:
    served = [place("a", 6, (0, 6)), place("b", 6, (0, 6)), place("c", 6, (6, 12))]
    assert not moved(served, plan(SIZES, served))
    dead = served[:2]
    assert list(moved(dead, plan(SIZES, dead)).values()) == [(6, 12)]


def test_a_seeking_node_goes_before_a_spare() -> None:
    served = [place("a", 6, (0, 6)), place("b", 6, (0, 6))]
    found = plan(SIZES, [*served, place("c", 7)])
    assert not moved(served, found) and found.spans[PeerId("c")] == (6, 12)


def test_one_node_moves_if_shards_cover_all_but_do_not_join() -> None:
    served = [place("a", 7, (0, 7)), place("b", 7, (5, 12))]
    found = plan(SIZES, served)
    assert found.complete and len(moved(served, found)) == 1


def test_needed_nodes_move_too_if_boundaries_do_not_fit() -> None:
    """The only spare is too small for the hole, but others have room to spare."""
    served = [place("a", 6, (0, 4)), place("b", 6, (7, 12)), place("c", 1, (0, 1))]
    found = plan(SIZES, served)
    assert found.complete and "c" in found.spans


def test_layers_that_an_owner_named_stay() -> None:
    served = [place("a", 6, (0, 6), Rank.FIXED), place("b", 6, (0, 6), Rank.FIXED)]
    assert not moved(served, plan(SIZES, served))
    found = plan(SIZES, [*served, place("c", 6, (0, 6))])
    assert moved([*served, place("c", 6, (0, 6))], found) == {"c": (6, 12)}


def test_a_node_that_can_hold_an_end_replaces_one_that_cannot() -> None:
    """Each layer needs a node of its own, and only two nodes can hold the embedding or the head."""
    sizes = LayerSizes(3, 10, 1, 1, 31)
    places = [Place(PeerId("a"), 11, (0, 1), Rank.CLAIMS)]
    places += [Place(PeerId(peer), 10, None, Rank.SEEKS) for peer in "bc"]
    places.append(Place(PeerId("d"), 11, None, Rank.SEEKS))
    found = plan(sizes, places)
    assert found.complete and not moved(places, found)
    assert found.spans[PeerId("d")] == (2, 3)


def test_too_little_memory_is_spread_over_as_much_as_it_can_hold() -> None:
    served = [place("a", 4, (0, 4)), place("b", 4, (0, 4))]
    found = plan(SIZES, served)
    assert not found.complete and list(moved(served, found).values()) == [(4, 8)]
    assert not moved(served[:1], plan(SIZES, served[:1]))


def test_nodes_that_fit_no_layer_have_no_span() -> None:
    assert not plan(SIZES, [Place(PeerId("a"), 9, None, Rank.SEEKS)]).spans


@st.composite
def swarms(draw: st.DrawFn) -> tuple[LayerSizes, list[Place]]:
    layers = draw(st.integers(1, 16))
    first, last = draw(st.integers(0, 40)), draw(st.integers(0, 40))
    sizes = LayerSizes(layers, 10, first, last, layers * 10 + max(first, last))
    found = []
    for number in range(draw(st.integers(0, 8))):
        memory = draw(st.integers(0, layers * 12))
        start = draw(st.integers(0, layers - 1))
        span = start, sizes.reach(start, draw(st.integers(start, layers)), memory)
        rank = draw(st.sampled_from([Rank.SEEKS, Rank.CLAIMS, Rank.HOLDS]))
        seeks = rank is Rank.SEEKS or span[0] == span[1]
        found.append(
            Place(
                PeerId(str(number)), memory, None if seeks else span, Rank.SEEKS if seeks else rank
            )
        )
    return sizes, found


@settings(deadline=None, max_examples=80)
@given(swarms())
def test_with_enough_memory_there_is_a_chain_and_all_nodes_agree(
    swarm: tuple[LayerSizes, list[Place]],
) -> None:
    sizes, places = swarm
    found = plan(sizes, places)
    enough = suffices(sizes, [each.memory for each in places])
    had = has_chain(sizes.layers, [each.span for each in places if each.span is not None])
    assert found.complete == has_chain(sizes.layers, found.spans.values())
    assert found.complete == (enough or had)
    assert not had or not moved(places, found)
    for each in places:
        span = found.spans.get(each.peer)
        assert span is None or span == each.span or sizes.of_span(*span) <= each.memory
    assert plan(sizes, places[::-1]) == found


@settings(deadline=None, max_examples=40)
@given(swarms())
def test_a_finished_plan_is_stable(
    swarm: tuple[LayerSizes, list[Place]],
) -> None:
    sizes, places = swarm
    found = plan(sizes, places)
    done = [
        Place(each.peer, each.memory, found.spans.get(each.peer), Rank.HOLDS)
        for each in places
        if each.peer in found.spans
    ]
    if found.complete:
        assert plan(sizes, done).spans == found.spans


def test_many_gaps_take_little_time() -> None:
    """Each second layer is missing, and each node has room for one more."""
    sizes = LayerSizes(1024, 10, 0, 0, 10240)
    places = [place(f"{n:04}", 2, (2 * n, 2 * n + 1)) for n in range(PLACES)]
    with cost() as spent:
        assert plan(sizes, places).complete
    assert spent.reference_ms < 500


@pytest.mark.parametrize("dead", [False, True])
def test_a_thousand_nodes_of_a_thousand_layers_take_little_time(dead: bool) -> None:
    lot, layers = random.Random(1), 1024
    sizes = LayerSizes(layers, 10, 30, 30, layers * 10 + 60)
    places, at = [], 0
    for number in range(1000):
        count = lot.randint(4, 40)
        start = at if at < layers else lot.randrange(layers)
        span = start, min(layers, start + count)
        at = max(at, span[1])
        places.append(Place(PeerId(f"{number:04}"), count * 10 + 60, span, Rank.HOLDS))
    if dead:
        del places[10:12]
    with cost() as spent:
        assert plan(sizes, places).complete
    assert spent.reference_ms < 500


def test_facts_of_strangers_do_not_keep_the_planner_busy() -> None:
    """No node that seeks layers can hold the embedding, and no node of the chain is freed that
    can."""
    sizes = LayerSizes(4096, 10, 10_000, 0, 4096 * 10 + 10_000)
    places = [Place(PeerId(f"s{n:03d}"), 5000, None, Rank.SEEKS) for n in range(430)]
    places += [
        Place(PeerId(f"h{n:02d}"), 5000, (2100 + 20 * n, 2101 + 20 * n), Rank.HOLDS)
        for n in range(75)
    ]
    places.append(Place(PeerId("z"), 10_010, (1000, 2001), Rank.HOLDS))
    with cost() as spent:
        assert plan(sizes, places).complete
    assert spent.reference_ms < 2000
