"""Plans which layers each node of one model holds. Pure functions over shared facts.

A session runs through whole shards that join exactly. The plan therefore needs a chain of shards,
and not only a replica of each layer. All nodes compute the same plan from the same facts, and each
node executes its own part (`placing.py`). Reasons: docs/adr/0032-standing-placement.md.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import accumulate

from ...state.membership.record import Rank
from ...transport.identity import PeerId
from ..costs.rates import UNKNOWN, DeviceRates
from ..defaults import AHEAD_STEPS, PLAN_DROPS, PLAN_STEPS
from .coverage import Coverage, LayerSizes, Span


@dataclass(frozen=True, slots=True)
class Place:
    """A node that takes part in one model, and the layers that it holds or claims (None: it seeks
    some)."""

    peer: PeerId
    memory: int  # bytes that the node offers
    span: Span | None
    rank: Rank
    rates: DeviceRates = UNKNOWN  # as the node claims them

    @property
    def movable(self) -> bool:
        """Whether the node may be given other layers."""
        return self.rank is not Rank.FIXED


@dataclass(frozen=True, slots=True)
class Plan:
    """The layers of each node on which at least one layer fits."""

    spans: Mapping[PeerId, Span]
    complete: bool
    """Whether a chain of these nodes covers all layers."""


@dataclass(slots=True)
class _WorkBudget:
    """Counter of the nodes examined. It bounds how long hostile facts can keep a planner busy."""

    steps: int = 0


def plan(sizes: LayerSizes, places: Sequence[Place]) -> Plan:
    """Return the plan for these nodes.

    A seeking node that can hold the whole model does so. If a chain exists, no node moves. If no
    chain exists but one is possible, the plan preserves as many spans as it can. It fills the gaps
    first with nodes that seek layers, then with nodes whose layers others hold too (spares), and
    last with the remaining ones. If no chain is possible, seeking and spare nodes fill as many
    layers as they can.
    """
    found = {place.peer: place.span for place in places if _is_placed(sizes, place)}
    seeking = [place for place in sorted(places, key=_order) if place.peer not in found]
    for place in seeking:
        if sizes.everything <= place.memory:
            found[place.peer] = (0, sizes.layers)
    placed = [
        replace(place, span=found[place.peer])
        for place in sorted(places, key=_order)
        if place.peer in found
    ]
    seeking = [place for place in seeking if place.peer not in found]
    targets = {peer: span for peer, span in found.items() if span is not None}
    if not has_chain(sizes.layers, targets.values()):
        targets |= _mended(sizes, placed, seeking)
    complete = has_chain(sizes.layers, targets.values())
    left = [place for place in seeking if place.peer not in targets]
    return Plan(targets | _spread(sizes, targets.values(), left), complete)


def has_chain(layers: int, spans: Iterable[Span]) -> bool:
    """Return whether spans that join exactly lead from the first layer to the end of the last."""
    reached = {0}
    for start, stop in sorted(spans):
        if start in reached:
            reached.add(stop)
    return layers in reached


def _is_placed(sizes: LayerSizes, place: Place) -> bool:
    """Return whether the node has a valid layer range of this model."""
    return place.span is not None and 0 <= place.span[0] < place.span[1] <= sizes.layers


def _order(place: Place) -> tuple[int, int, PeerId]:
    """Return a sort key: the lowest rank first (it loses least by moving), then the most memory."""
    return place.rank, -place.memory, place.peer


def _spread(
    sizes: LayerSizes, spans: Iterable[Span], seeking: Sequence[Place]
) -> dict[PeerId, Span]:
    """Return spans for seeking nodes: missing layers, or else those with the fewest replicas.

    Each span counts as a replica for the nodes that follow. After AHEAD_STEPS steps of work, new
    spans are no longer counted, and each further node takes the next best choice instead.
    """
    coverage, found = Coverage.of_spans(sizes.layers, spans), dict[PeerId, Span]()
    turn = 0
    for place in seeking:
        busy = coverage.steps > AHEAD_STEPS
        turn += busy
        span = coverage.choose(sizes, place.memory, turn=turn)
        if span is not None:
            found[place.peer] = span
            if not busy:
                coverage.add(*span)
    return found


def _mended(
    sizes: LayerSizes, placed: Sequence[Place], seeking: Sequence[Place]
) -> dict[PeerId, Span]:
    """Return the spans of the nodes that should move or start, if there is no chain.

    First tries to preserve the spans of as many nodes as possible, and releases one node after
    another until the rest fill the gaps.
    """
    kept = _disjoint(placed)
    movable = [place for place in (*seeking, *placed) if place.movable]
    fixed = [place for place in kept if not place.movable]
    work = _WorkBudget()
    every = _filled(sizes, fixed, movable, work)
    if every is None:
        return _partly(sizes, kept, movable)
    work.steps = 0
    for _ in range(PLAN_DROPS):
        if work.steps > PLAN_STEPS:
            break
        names = {place.peer for place in kept}
        found = _filled(sizes, kept, [place for place in movable if place.peer not in names], work)
        if found is not None:
            return found
        loose = [place for place in kept if place.movable]
        if not loose:
            break
        kept.remove(max(loose, key=lambda place: (_waste(sizes, place), -place.rank, place.peer)))
    return every


def _disjoint(placed: Sequence[Place]) -> list[Place]:
    """Return nodes whose spans do not overlap and that together have the most layers.

    If several selections have as many layers, the one with the higher ranks wins, then the one with
    fewer nodes.
    """
    Found = tuple[int, int, int, tuple[Place, ...]]
    best: list[tuple[int, Found]] = [(0, (0, 0, 0, ()))]  # (end of last span, selection)
    for place in sorted(placed, key=lambda place: (_span(place)[::-1], -place.rank, place.peer)):
        start, stop = _span(place)
        before = next(found for end, found in reversed(best) if end <= start)
        with_it = (
            before[0] + stop - start,
            before[1] + place.rank * (stop - start),
            before[2] - 1,
            (*before[3], place),
        )
        if with_it[:3] > best[-1][1][:3]:
            best.append((stop, with_it))
    return list(best[-1][1][3])


def _span(place: Place) -> Span:
    """Return the layer range of a node. The caller has checked that the node has one."""
    assert place.span is not None
    return place.span


def _waste(sizes: LayerSizes, place: Place) -> int:
    """Return how many layers a node could hold in addition to its present ones."""
    start, stop = _span(place)
    return _room(sizes, place, first=start == 0, last=stop == sizes.layers) - (stop - start)


def _room(sizes: LayerSizes, place: Place, *, first: bool = False, last: bool = False) -> int:
    """Return how many layers fit on a node, at most all of them.

    If `first`, the node must also hold the embedding; if `last`, the head. If both, the result is
    either all layers or 0.
    """
    if first and last:
        return sizes.layers if place.memory >= sizes.everything else 0
    free = place.memory - first * sizes.first - last * sizes.last
    return max(0, min(free // sizes.layer, sizes.layers - 1))


def _gaps(layers: int, kept: Sequence[Place]) -> list[Span]:
    """Return the layer ranges between the spans of these nodes, the largest first.

    The spans must be in order and must not overlap.
    """
    ends = [0, *(end for place in kept for end in _span(place)), layers]
    gaps = [(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if a < b]
    return sorted(gaps, key=lambda gap: (gap[0] - gap[1], gap))


def _filled(
    sizes: LayerSizes, kept: Sequence[Place], free: Sequence[Place], work: _WorkBudget
) -> dict[PeerId, Span] | None:
    """Return spans with which free nodes fill all gaps between `kept`, or None if that is
    impossible."""
    pool, found = sorted(free, key=_order), dict[PeerId, Span]()
    for gap in _gaps(sizes.layers, kept):
        joined = _joined(sizes, gap, [place for place in pool if place.peer not in found], work)
        if not joined:
            return None
        found |= joined
    return found


def _joined(
    sizes: LayerSizes, gap: Span, pool: Sequence[Place], work: _WorkBudget
) -> dict[PeerId, Span]:
    """Return spans of a few nodes that fill a gap exactly, or nothing if all of them are too small.

    Uses nodes that hold no layers if these suffice.
    """
    free = [place for place in pool if place.rank < Rank.HOLDS]
    return dict(_row(sizes, gap, free, work) or _row(sizes, gap, pool, work))


def _row(
    sizes: LayerSizes, gap: Span, pool: Sequence[Place], work: _WorkBudget
) -> list[tuple[PeerId, Span]]:
    """Return (peer, span) for the nodes chosen to fill a gap, or nothing if the pool does not
    suffice.

    A node that can fill the gap alone is preferred. Otherwise the first nodes of the pool that
    suffice are chosen, without those that turn out to be unnecessary.
    """
    size = gap[1] - gap[0]
    work.steps += len(pool)
    alone = [
        (place.rank, room, place.peer)
        for place in pool
        if (room := _room(sizes, place, first=gap[0] == 0, last=gap[1] == sizes.layers)) >= size
    ]
    if alone:
        return [(min(alone)[2], gap)]
    able = [place for place in pool if _room(sizes, place)]
    totals = list(accumulate(_room(sizes, place) for place in able))
    # With more nodes there is always more room, so a binary search finds the smallest number.
    counts = range(bisect_left(totals, size) + 1, len(able) + 1)
    at = bisect_left(counts, True, key=lambda n: bool(_lined_up(sizes, gap, able[:n])))
    if at == len(counts):
        return []
    chosen, total = able[: counts[at]], totals[counts[at] - 1]
    row = _lined_up(sizes, gap, chosen)
    for place in chosen[::-1]:
        if (without := total - _room(sizes, place)) >= size:
            work.steps += len(chosen)
            fewer = [each for each in chosen if each is not place]
            if shorter := _lined_up(sizes, gap, fewer):
                chosen, row, total = fewer, shorter, without
    return row


def _lined_up(sizes: LayerSizes, gap: Span, nodes: Sequence[Place]) -> list[tuple[PeerId, Span]]:
    """Return (peer, span) for these nodes so that they fill the gap in a row, or nothing if
    impossible.

    The embedding and the head go to the nodes where they displace the fewest layers. If there are
    more nodes than layers, the nodes between these two that have the least memory get no span.
    """
    (start, stop), count = gap, len(nodes)
    row = sorted(nodes, key=lambda place: (place.span or gap[::-1], place.peer))
    ends = [start == 0, stop == sizes.layers]
    if count == 1:
        room = _room(sizes, row[0], first=ends[0], last=ends[1])
        return [(row[0].peer, gap)] if room >= stop - start else []
    rooms = [_room(sizes, place) for place in row]
    at_ends = _best_ends(
        [_room(sizes, place, first=ends[0]) for place in row],
        [_room(sizes, place, last=ends[1]) for place in row],
        rooms,
    )
    if at_ends is None or stop - start < 2:
        return []
    begin, end = at_ends
    between = [number for number in range(count) if number not in at_ends]
    if count > stop - start:
        between = sorted(nlargest(stop - start - 2, between, key=lambda number: rooms[number]))
    order = [begin, *between, end]
    rooms[begin] = _room(sizes, row[begin], first=ends[0])
    rooms[end] = _room(sizes, row[end], last=ends[1])
    if sum(rooms[number] for number in order) < stop - start:
        return []
    found, at = [], start
    for left, number in zip(range(len(order) - 1, -1, -1), order, strict=True):
        until = min(at + rooms[number], stop - left)
        found.append((row[number].peer, (at, until)))
        at = until
    return found


def _best_ends(
    first: Sequence[int], last: Sequence[int], inner: Sequence[int]
) -> tuple[int, int] | None:
    """Return the indexes of the nodes for the two ends of a row, or None if there is no such pair.

    The pair loses the fewest layers to the embedding and the head. `first`, `last` and `inner` are
    the layers that fit on each node at the beginning, at the end and in between. Among equal pairs,
    the outermost one wins.
    """
    numbers = range(len(inner))
    begins = sorted((n for n in numbers if first[n]), key=lambda n: (inner[n] - first[n], n))[:2]
    ends = sorted((n for n in numbers if last[n]), key=lambda n: (inner[n] - last[n], -n))[:2]
    pairs = [(a, b) for a in begins for b in ends if a != b]
    cost = {(a, b): inner[a] - first[a] + inner[b] - last[b] for a, b in pairs}
    return min(pairs, key=lambda pair: (cost[pair], pair[0], -pair[1]), default=None)


def _partly(
    sizes: LayerSizes, kept: Sequence[Place], movable: Sequence[Place]
) -> dict[PeerId, Span]:
    """Return spans with which seeking and spare nodes fill parts of the gaps that they cannot
    fill."""
    names = {place.peer for place in kept}
    coverage = Coverage.of_spans(sizes.layers, map(_span, kept))
    found: dict[PeerId, Span] = {}
    for place in sorted(movable, key=_order):
        if place.peer in names or coverage.steps > AHEAD_STEPS or not coverage.holes():
            continue
        span = coverage.choose(sizes, place.memory)
        if span is not None and coverage.lacks(*span):
            coverage.add(*span)
            found[place.peer] = span
    return found
