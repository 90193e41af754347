"""Measurements of chains count before predictions, and for a bounded time."""

import pytest

from shoal.tasks.routing.beliefs import Times
from shoal.tasks.routing.defaults import (
    CHAINS_MEASURED,
    LABELS,
    MEASURED_HALF_LIFE,
    MEASURED_TOKENS,
    MODELS_MEASURED,
    PAIRS_MEASURED,
    UNMEASURED,
)
from shoal.tasks.routing.measured import MeasuredChains, MeasuredModel
from shoal.tasks.routing.paths import Hop
from shoal.tasks.routing.router import GatewayView, Router, Want
from shoal.transport.identity import PeerId
from tests.tasks.routing.test_router import ROOT, hop, want

A, B = hop("a", 0, 6), hop("b", 6, 12)
OTHER_A, OTHER_B = hop("c", 0, 6), hop("d", 6, 12)
CHAIN = A, B
EVEN = [0.05, 0.05]


def noted(seconds: float = 0.2, tokens: int = MEASURED_TOKENS, now: float = 0.0) -> MeasuredModel:
    known = MeasuredModel()
    known.note(CHAIN, EVEN, seconds, tokens, now)
    return known


def test_a_measured_chain_counts_before_its_prediction() -> None:
    assert noted().chain_s(CHAIN, 0.1, 0.0) == pytest.approx(0.2)
    assert noted().chain_s((A, OTHER_B), 0.1, 0.0) == 0.1


def test_a_measurement_counts_less_as_it_gets_older() -> None:
    known = noted()
    assert known.chain_s(CHAIN, 0.1, MEASURED_HALF_LIFE) == pytest.approx(0.15)
    assert known.chain_s(CHAIN, 0.1, 20 * MEASURED_HALF_LIFE) == pytest.approx(0.1, rel=1e-3)


def test_few_tokens_count_for_a_part_and_do_not_replace_many() -> None:
    assert noted(tokens=MEASURED_TOKENS // 4).chain_s(CHAIN, 0.1, 0.0) == pytest.approx(0.125)
    known = noted()
    known.note(CHAIN, EVEN, 0.7, MEASURED_TOKENS // 4, 1.0)
    assert known.chain_s(CHAIN, 0.1, 1.0) == pytest.approx(0.3, rel=0.01)
    known.note(CHAIN, EVEN, 0.7, MEASURED_TOKENS, 1.0)
    assert known.chain_s(CHAIN, 0.1, 1.0) == pytest.approx(0.5, rel=0.01)


def test_the_pairs_of_a_measured_chain_have_their_parts_of_its_time() -> None:
    known = MeasuredModel()
    known.note(CHAIN, [0.02, 0.08], 0.2, MEASURED_TOKENS, 0.0)
    assert known.pair_s(A, B, 1.0, 0.0) == pytest.approx(0.04)
    assert known.pair_s(B, A, 1.0, 0.0) == pytest.approx(0.16)
    assert known.pair_s(B, OTHER_A, 1.0, 0.0) == UNMEASURED
    assert MeasuredModel().pair_s(A, B, 1.0, 0.0) == 1.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_seconds_that_no_clock_shows_are_not_remembered(seconds: float) -> None:
    assert noted(seconds).chain_s(CHAIN, 0.1, 0.0) == 0.1


def test_the_memory_is_bounded_and_forgets_what_was_measured_first() -> None:
    known = noted()
    for number in range(max(CHAINS_MEASURED, PAIRS_MEASURED)):
        known.note((hop(f"x{number}", 0, 6), B), EVEN, 0.2, MEASURED_TOKENS, 1.0)
    assert known.chain_s(CHAIN, 0.1, 1.0) == 0.1
    assert known.pair_s(A, B, 0.1, 1.0) == 0.1 * UNMEASURED
    chains = MeasuredChains()
    first = chains.of("0")
    for number in range(1, MODELS_MEASURED + 1):
        chains.of(str(number))
    assert chains.of("0") is not first


def around(*trips: tuple[Hop, Hop, float]) -> GatewayView:
    """Return the view of a gateway to which members report these round trips."""
    reported = {(one.peer, other.peer): seconds for one, other, seconds in trips}

    def between(one: PeerId, other: PeerId) -> float:
        return reported.get((one, other)) or reported.get((other, one)) or 0.2

    return GatewayView(None, lambda _: Times(1e-3, 1e-3), lambda _: 0.02, reported=between)


def chosen(router: Router, view: GatewayView, hops: list[Hop], now: float = 0.0) -> str:
    plan = router.plan(view, want(), hops, now)
    assert plan is not None
    return "".join(each.peer for each in plan.chain)


def test_a_liar_gains_nothing_after_the_first_answer_whatever_it_reports_then() -> None:
    """Both `b` and `a` say that they are near each other. They are not."""
    router, hops = Router(), [A, B, OTHER_A, OTHER_B]
    honest = OTHER_A, OTHER_B, 0.05
    view = around((A, B, 0.01), honest)
    assert chosen(router, view, hops) == "ab"
    router.measured.of(ROOT).note(CHAIN, [0.006, 0.006], 0.5, MEASURED_TOKENS, 0.0)
    assert chosen(router, view, hops) == "cd"
    assert chosen(router, around((A, B, 0.001), honest), hops, now=30.0) == "cd"


def test_a_chain_that_was_measured_counts_before_one_that_only_seems_faster() -> None:
    """The report of one link is too short by a third, and of another too long by as much."""
    router, hops = Router(), [A, B, OTHER_A, OTHER_B]
    view = around((A, B, 0.08), (OTHER_A, OTHER_B, 0.09))
    assert chosen(router, view, hops) == "ab"
    model = router.measured.of(ROOT)
    model.note((OTHER_A, OTHER_B), [0.046, 0.046], 0.06, MEASURED_TOKENS, 0.0)
    assert chosen(router, view, hops) == "cd"
    model.note(CHAIN, [0.041, 0.041], 0.05, MEASURED_TOKENS, 1.0)
    assert chosen(router, view, hops, now=1.0) == "ab"


def test_a_measured_chain_is_not_chosen_once_one_of_its_stages_is_gone() -> None:
    router, view = Router(), around((OTHER_A, OTHER_B, 0.1))
    router.measured.of(ROOT).note(CHAIN, EVEN, 0.001, MEASURED_TOKENS, 0.0)
    assert chosen(router, view, [A, B, OTHER_A, OTHER_B]) == "ab"
    assert chosen(router, view, [A, OTHER_A, OTHER_B]) == "cd"


def test_a_chain_that_was_not_measured_must_seem_faster_by_more_than_a_guess() -> None:
    router, hops = Router(), [A, B, OTHER_A, OTHER_B]
    router.measured.of(ROOT).note(CHAIN, EVEN, 0.1, MEASURED_TOKENS, 0.0)
    # A token: the round trip between the two, and 1 ms at each.
    assert chosen(router, around((OTHER_A, OTHER_B, 0.0965)), hops) == "ab"
    assert chosen(router, around((OTHER_A, OTHER_B, 0.088)), hops) == "cd"


def test_what_was_measured_of_two_stages_counts_in_another_chain() -> None:
    """Of three stages one is lost. The link between the other two was slower than reported."""
    first, middle, last = hop("a", 0, 4), hop("b", 4, 8), hop("e", 8, 12)
    new, others = hop("f", 8, 12), [hop("c", 0, 4), hop("d", 4, 8)]
    view = around((first, middle, 0.01), (middle, last, 0.01), (last, first, 0.01),
                  (middle, new, 0.05), (first, new, 0.05), (others[0], others[1], 0.06),
                  (others[1], new, 0.05), (others[0], new, 0.05))  # fmt: skip
    router = Router()
    request = Want(ROOT, 12, 20, want().prefix, 100, b"s" * 16)

    def best(hops: list[Hop]) -> str:
        plan = router.plan(view, request, hops, 0.0)
        assert plan is not None
        return "".join(each.peer for each in plan.chain)

    left = [first, middle, new, *others]
    assert best(left) == "abf"
    router.measured.of(ROOT).note((first, middle, last), [0.006] * 3, 0.6, MEASURED_TOKENS, 0.0)
    assert best(left) == "cdf"


def test_a_measured_chain_is_compared_even_where_the_search_would_not_get_to_it() -> None:
    """Its first two stages were slow in another chain, so the search follows many others."""
    router, model = Router(), MeasuredModel()
    chain = hop("a", 0, 4), hop("b", 4, 8), hop("e", 8, 12)
    slow = (*chain[:2], hop("f", 8, 12))
    others = [hop(f"{name}{n}", at, at + 4) for n in range(LABELS + 4) for name, at in (("x", 0),
              ("y", 4), ("z", 8))]  # fmt: skip
    router.measured._models[ROOT] = model
    model.note(chain, [0.1] * 3, 0.01, MEASURED_TOKENS, 0.0)
    model.note(slow, [0.1] * 3, 9.0, MEASURED_TOKENS, 1.0)
    assert chosen(router, around(), [*chain, slow[-1], *others], now=1.0) == "abe"
