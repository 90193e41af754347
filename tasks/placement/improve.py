"""Decides by predicted speed which layers a node takes, and whether a move pays. Pure functions.

`plan.py` sees to it that all layers are served. Where they are, or where no node holds any yet,
these functions choose among the ways to serve them. All nodes reach the same result from the same
facts. Reasons: docs/adr/0057-placement-by-speed.md.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...state.membership.record import Rank
from ...transport.identity import PeerId
from ..costs.rates import UNKNOWN, DeviceRates, LinkRates
from ..defaults import (
    CLAIM_BELIEF,
    MOVE_FETCH_RATE,
    MOVE_GAIN,
    MOVE_HORIZON,
    PLAN_LOOKS,
    PLAN_MACHINES,
)
from .chains import with_idle
from .coverage import Span
from .fleet import BATCHES, DEMAND, Costs, Demand, Fleet, Machine, Pair, PlanModel, named, ordered
from .optimise import optimise, single_moves
from .plan import Place, has_chain
from .predict import NOTHING, TokenRates, loads_of, rate_of, routes_of

_NANO: Final = 10**9


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """Facts and settings of a plan by speed, beside the places of the nodes.

    `rates` are those of this node. `steady` are the peers on which it relies if it gives up its own
    layers: those that its owner trusts, and those that have served their layers for long.
    """

    model: PlanModel
    links: Mapping[Pair, LinkRates] = field(default_factory=dict)
    demand: Demand = DEMAND
    rates: DeviceRates = UNKNOWN
    steady: Collection[PeerId] = ()


@dataclass(frozen=True, slots=True)
class BetterMove:
    """A move of one node that makes a model faster: tokens in 1,000 s before and after it."""

    peer: PeerId
    span: Span
    before: TokenRates
    after: TokenRates


def considered(places: Sequence[Place], most: int = PLAN_MACHINES) -> list[Place]:
    """Return the nodes among which a plan by speed chooses, in the order of their peer ids.

    They are at most `most`: those of the highest rank, and of these first one for each span,
    then a second one, and so on, so that a chain is among them.
    """
    seen: Counter[tuple[Rank, Span | None]] = Counter()
    ranked = []
    for place in sorted(places, key=lambda place: place.peer):
        alike = place.rank, place.span
        ranked.append((-place.rank, seen[alike], place.peer, place))
        seen[alike] += 1
    first = sorted(ranked, key=lambda each: each[:3])[:most]
    return sorted((each[3] for each in first), key=lambda place: place.peer)


def costs_of(terms: PlanTerms, places: Sequence[Place]) -> Costs:
    """Return the costs of a model on these nodes, as far as their claims are believed.

    Nodes with memory for short sessions only are better than none.
    """
    rates = believed([place.rates for place in places])
    machines = (
        Machine(place.peer, place.memory, each) for place, each in zip(places, rates, strict=True)
    )
    return Costs(Fleet(tuple(machines), terms.links), terms.model, terms.demand, least=1)


def believed(claims: Sequence[DeviceRates]) -> list[DeviceRates]:
    """Return claimed rates, each limited to CLAIM_BELIEF times the median of all claims and rounded
    to two digits: measured rates change a little all the time."""

    def most(rates: Sequence[float]) -> float:
        return CLAIM_BELIEF * sorted(rates)[(len(rates) - 1) // 2]

    if not claims:
        return []
    bandwidth, load = most([c.bandwidth for c in claims]), most([c.load for c in claims])
    float32, bfloat16 = most([c.float32 for c in claims]), most([c.bfloat16 for c in claims])
    return [
        replace(
            claim,
            bandwidth=_rounded(min(claim.bandwidth, bandwidth)),
            float32=_rounded(min(claim.float32, float32)),
            bfloat16=_rounded(min(claim.bfloat16, bfloat16)),
            load=_rounded(min(claim.load, load)),
        )
        for claim in claims
    ]


def _rounded(rate: float) -> float:
    return float(f"{rate:.1e}")


def divided(terms: PlanTerms, places: Sequence[Place]) -> Mapping[PeerId, Span]:
    """Return the layers of each node if no node holds any yet. Nodes of which the plan makes no use
    are left out."""
    costs = costs_of(terms, considered(places))
    spans, _ = optimise(costs, looks=PLAN_LOOKS)
    return named(costs, with_idle(costs, spans, PLAN_LOOKS)) if spans else {}


def addition(terms: PlanTerms, places: Sequence[Place], own: Place) -> Span | None:
    """Return the layers with which a node that has none adds most to those that are served, or None
    if it adds nothing."""
    others = [place for place in considered(places) if place.peer != own.peer]
    costs = costs_of(terms, [*others, own])
    spans = ordered(costs, _held(costs, others))
    number = costs.peers.index(own.peer)
    best = max(single_moves(costs, spans, number), key=_best_first, default=None)
    return best[1] if best is not None and best[0] > rate_of(costs, spans) else None


def better_move(terms: PlanTerms, places: Sequence[Place]) -> BetterMove | None:
    """Return the next move of one node that makes a served model faster, or None if none pays.

    Either this move alone pays, or it is the first of several moves that pay together. A move never
    makes the model slower, and never leaves the model without a chain. While a node claims layers,
    none moves.
    """
    if any(place.rank is Rank.CLAIMS for place in places):
        return None
    holders = [place for place in considered(places) if place.rank >= Rank.HOLDS]
    if not any(place.movable and _is_spare(terms, holders, place) for place in holders):
        return None
    costs = costs_of(terms, holders)
    spans = ordered(costs, _held(costs, holders))
    movers = [costs.peers.index(place.peer) for place in holders if place.movable and place.span]
    before = rate_of(costs, spans)
    best = _best_single(costs, spans, movers, before)
    if best is not None and _pays(costs, spans, before, [best]):
        return BetterMove(costs.peers[best[1]], best[2], before, best[0])
    way = _way(costs, spans, movers, before)
    if way and _pays(costs, spans, before, way):
        return BetterMove(costs.peers[way[0][1]], way[0][2], before, way[-1][0])
    return None


_Move = tuple[TokenRates, int, Span]
"""A move of a machine (its number) to other layers, and the rate after it."""


def _best_single(
    costs: Costs, spans: Mapping[int, Span], movers: Sequence[int], before: TokenRates
) -> _Move | None:
    """Return the move after which the rate is highest, or None if none raises it."""
    best: _Move | None = None
    looks = PLAN_LOOKS
    for number in movers:
        if not _has_chain_without(costs, spans, number):
            continue
        for rate, span in single_moves(costs, spans, number):
            looks -= 1
            if rate > (best[0] if best else before):
                best = rate, number, span
        if looks <= 0:
            break
    return best


def _way(
    costs: Costs, spans: Mapping[int, Span], movers: Sequence[int], before: TokenRates
) -> list[_Move]:
    """Return moves, one after another, that lead towards the best placement and do not make the
    model slower on the way. Those after which the rate is highest are the last.

    The best placement does not depend on the present layers. So the way stays the same while the
    nodes follow it.
    """
    target, _ = optimise(costs, looks=PLAN_LOOKS)
    held, rate, way = dict(spans), before, list[_Move]()
    left = [each for each in movers if each in target and target[each] != spans[each]]
    while left:
        steps = [
            (rate_of(costs, {**held, each: target[each]}), -each)
            for each in left
            if _has_chain_without(costs, held, each)
        ]
        after, number = max(steps, default=(NOTHING, 0))
        if after < rate or not steps:
            break
        rate, held[-number] = after, target[-number]
        way.append((rate, -number, target[-number]))
        left.remove(-number)
    while way and way[-1][0] == (way[-2][0] if len(way) > 1 else before):
        way.pop()  # moves after which nothing is faster
    return way


def _has_chain_without(costs: Costs, spans: Mapping[int, Span], number: int) -> bool:
    return has_chain(costs.layers, [span for each, span in spans.items() if each != number])


def is_safe(terms: PlanTerms, places: Sequence[Place], own: PeerId) -> bool:
    """Return whether the steady nodes serve the whole model without this node."""
    spans = [
        place.span
        for place in places
        if place.peer != own and place.peer in terms.steady and place.span is not None
        and place.rank >= Rank.HOLDS
    ]  # fmt: skip
    return has_chain(terms.model.sizes.layers, spans)


def _is_spare(terms: PlanTerms, holders: Sequence[Place], place: Place) -> bool:
    """Return whether the other nodes serve the whole model."""
    spans = [other.span for other in holders if other is not place and other.span is not None]
    return has_chain(terms.model.sizes.layers, spans)


def _held(costs: Costs, places: Sequence[Place]) -> dict[PeerId, Span]:
    """Return the valid layer ranges of these nodes."""
    return {
        place.peer: place.span
        for place in places
        if place.span is not None and 0 <= place.span[0] < place.span[1] <= costs.layers
    }


def _best_first(found: tuple[TokenRates, Span]) -> tuple[TokenRates, int, int]:
    """Return a sort key: the highest rate, then the fewest layers, then the first."""
    rate, (start, stop) = found
    return rate, start - stop, -start


def _pays(
    costs: Costs, spans: Mapping[int, Span], before: TokenRates, moves: Sequence[_Move]
) -> bool:
    """Return whether moves, one after another, gain more tokens within MOVE_HORIZON than they cost,
    and MOVE_GAIN at least."""
    after = moves[-1][0].demand
    if after * 100 < before.demand * (100 + MOVE_GAIN):
        return False
    held, rate, seconds, lost = dict(spans), before, 0, 0
    for reached, number, span in moves:
        took, tokens = _cost(costs, held, rate, number, span)
        seconds, lost = seconds + took, lost + tokens
        held[number], rate = span, reached
    return (after - before.demand) * (MOVE_HORIZON - seconds) > lost


def _cost(
    costs: Costs, spans: Mapping[int, Span], before: TokenRates, number: int, span: Span
) -> tuple[int, int]:
    """Return the seconds that a move takes, and the tokens (in thousandths) that are lost.

    Until the weights are fetched the node serves its old layers. While it loads the new ones it
    serves none, and the sessions on it compute their keys and values again elsewhere.
    """
    old, count = spans[number], span[1] - span[0]
    new = count - max(0, min(old[1], span[1]) - max(old[0], span[0]))
    layer = costs.sizes.layer
    fetching = layer * new // MOVE_FETCH_RATE
    loading = 1 + layer * count // max(1, round(costs.machines[number].rates.load))
    without = rate_of(costs, {each: s for each, s in spans.items() if each != number})
    lost = max(0, before.demand - without.demand) * loading
    return fetching + loading, lost + _replayed(costs, spans, number, before)


def _replayed(costs: Costs, spans: Mapping[int, Span], number: int, before: TokenRates) -> int:
    """Return the tokens (in thousandths) that the sessions on a machine lose while their keys and
    values are computed again."""
    routes = routes_of(costs, spans, costs.demand.sessions)
    sessions = loads_of(routes).get(number, 0)
    path = next((route.machines for route in routes if number in route.machines), ())
    step = sum(costs.stage(each, spans[each])[-1] for each in path)
    seconds = step * costs.demand.positions // (BATCHES[-1] * _NANO)
    return before.demand * sessions * (seconds + 1) // max(1, costs.demand.sessions)
