"""Predicts how many tokens per second a placement delivers. Pure functions over whole numbers.

Sessions are routed one group after another, each along the chain that is fastest under the load of
those before it. A machine computes the sessions that wait for it in one step, and the steps of
different machines overlap. The time of a token is therefore the longer of its way through the chain
and of the rounds of the busiest machine. Links that carry activations count as machines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from .coverage import Span
from .fleet import BATCHES, Costs, batch_index

ROUNDS: Final = 4
"""Groups of sessions that are routed one after another."""
_NANO: Final = 10**9
MILLI: Final = 1000
"""Rates are whole numbers of tokens in this many seconds."""


class TokenRates(NamedTuple):
    """Predicted tokens in 1,000 s: of all sessions of the demand, and of a session alone.

    Better rates compare as larger.
    """

    demand: int
    single: int


NOTHING: Final = TokenRates(0, 0)
_INDEX: Final = tuple(map(batch_index, range(BATCHES[-1] + 1)))


@dataclass(frozen=True, slots=True)
class Route:
    """A chain through machines (their numbers), and the sessions that run through it."""

    machines: tuple[int, ...]
    sessions: int


def rate_of(costs: Costs, spans: Mapping[int, Span]) -> TokenRates:
    """Return the predicted rate of a placement: `spans` by the numbers of their machines."""
    return better_rate(costs, spans, NOTHING) or NOTHING


def better_rate(costs: Costs, spans: Mapping[int, Span], than: TokenRates) -> TokenRates | None:
    """Return the predicted rate of a placement, or None if it is not above `than`.

    Results are kept in `costs`, since a search comes to many plans more than once. The rate
    of a session alone is computed only where that of the demand leaves it open.
    """
    key = tuple(sorted(spans.items()))
    demand, single = costs.rates.get(key, (-1, -1))
    if single < 0 and not 0 <= demand < than.demand:
        graph = _RoutedMachines(costs, spans)
        if demand < 0:
            demand = _total(costs, spans, _routes(graph, costs.demand.sessions))
        if costs.demand.sessions == 1:
            single = demand
        elif demand >= than.demand:
            single = _total(costs, spans, _routes(graph, 1))
        costs.rates[key] = demand, single
    rate = TokenRates(demand, single) if single else NOTHING
    return rate if single >= 0 and rate > than else None


def routes_of(costs: Costs, spans: Mapping[int, Span], sessions: int) -> list[Route]:
    """Return the routes of this many sessions, or of as many as have memory."""
    return _routes(_RoutedMachines(costs, spans), sessions)


def _routes(graph: "_RoutedMachines", sessions: int) -> list[Route]:
    graph.load = dict.fromkeys(graph.room, 0)
    found, left, group = list[Route](), sessions, -(-sessions // ROUNDS)
    while left > 0:
        path = graph.fastest(min(group, left))
        if path is None:
            break
        count = min(group, left, *(graph.room[each] - graph.load[each] for each in path))
        for each in path:
            graph.load[each] += count
        found.append(Route(path, count))
        left -= count
    return found


def token_nanoseconds(
    costs: Costs, spans: Mapping[int, Span], route: Route, load: Mapping[int, int]
) -> int:
    """Return the nanoseconds between two tokens of each session on a route. `load` has the sessions
    of all routes by machine."""
    path = route.machines
    stages = [costs.stage(each, spans[each]) for each in path]
    loads = [load[each] for each in path]
    hop, wire = _links(costs, path)
    best, most = 0, max(loads)
    for batch, steps in zip(BATCHES, zip(*stages, strict=True), strict=True):
        way = hop + wire * batch + sum(steps)
        took = max(way, *[each * step // batch for each, step in zip(loads, steps, strict=True)])
        best = min(best or took, took)
        if batch >= most:
            break
    return best


class _RoutedMachines:
    """The machines of a placement, with the sessions that were routed through each."""

    def __init__(self, costs: Costs, spans: Mapping[int, Span]) -> None:
        self._layers, self._hop = costs.layers, costs.hop
        self._rows = [
            (each, *span, *costs.served(each, span))
            for span, each in sorted((span, each) for each, span in spans.items())
        ]
        self.room = {row[0]: row[3] for row in self._rows}
        self.load = dict.fromkeys(spans, 0)

    def fastest(self, sessions: int) -> tuple[int, ...] | None:
        """Return the fastest chain for one more group of sessions, or None if there is none.

        Every machine leads forward, so one pass in the order of the layers finds it.
        """
        hop, load = self._hop, self.load
        ends: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        best: tuple[int, tuple[int, ...]] | None = None
        for each, start, stop, room, stage in self._rows:
            if load[each] >= room:
                continue
            took = stage[_INDEX[min(load[each] + sessions, BATCHES[-1])]]
            path: tuple[int, ...] = (each,)
            if start:
                before = ends.get(start)
                if not before:
                    continue
                way, path = before[0]
                way += hop[path[-1]][each]
                if len(before) > 1:
                    way, path = min((way + hop[path[-1]][each], path) for way, path in before)
                took, path = took + way, (*path, each)
            if stop < self._layers:
                ends.setdefault(stop, []).append((took, path))
                continue
            whole = took + (hop[each][path[0]] if len(path) > 1 else 0)
            if best is None or (whole, path) < best:
                best = whole, path
        return best[1] if best else None


def _links(costs: Costs, path: Sequence[int]) -> tuple[int, int]:
    """Return the nanoseconds of the links of a ring: of the messages, and of each row on the
    wire. The last link carries only tokens."""
    if len(path) == 1:
        return 0, 0
    steps = list(pairwise(path))
    hop = sum(costs.hop[a][b] for a, b in steps) + costs.hop[path[-1]][path[0]]
    return hop, sum(costs.wire[a][b] for a, b in steps)


def loads_of(routes: Sequence[Route]) -> dict[int, int]:
    """Return the sessions of all routes by machine."""
    load: dict[int, int] = {}
    for route in routes:
        for each in route.machines:
            load[each] = load.get(each, 0) + route.sessions
    return load


def _total(costs: Costs, spans: Mapping[int, Span], routes: Sequence[Route]) -> int:
    """Return the tokens in 1,000 s of all routes together."""
    load, took = loads_of(routes), dict[tuple[int, ...], int]()
    for route in routes:
        if route.machines not in took:
            took[route.machines] = token_nanoseconds(costs, spans, route, load)
    return sum(route.sessions * MILLI * _NANO // took[route.machines] for route in routes)
