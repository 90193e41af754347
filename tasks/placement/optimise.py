"""Finds a fast placement of one model on a fleet. Pure functions over whole numbers.

Starts from several plans and improves the best ones by small changes, until none helps or the
budget is used. The same machines, in any order, give the same plan.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .chains import many_chains, with_replicas
from .coverage import Span
from .fleet import Costs
from .predict import NOTHING, TokenRates, better_rate, rate_of
from .rules import by_memory, evenly, petals, petals_chain

STARTS: Final = 3
"""Plans that are improved."""
LOOKS: Final = 1500
"""Plans whose rate is predicted while one plan is improved."""
SMALL: Final = 6
"""Number of machines up to which any span is tried, and not only those of other machines."""
_SHIFTS: Final = (1, -1, 2, -2, 4, -4, 8, -8)
Spans = dict[int, Span]


@dataclass(slots=True)
class _BestPlan:
    """The best plan so far, and how many more plans may be looked at."""

    costs: Costs
    spans: Spans
    rate: TokenRates
    looks: int

    def offer(self, spans: Spans) -> bool:
        """Take over a plan if it is better."""
        self.looks -= 1
        rate = better_rate(self.costs, spans, self.rate)
        if rate is None:
            return False
        self.spans, self.rate = spans, rate
        return True


def optimise(
    costs: Costs, more: Sequence[Spans] = (), looks: int = LOOKS
) -> tuple[Spans, TokenRates]:
    """Return a fast placement and its predicted rate. `more` are further plans to start from.

    The placement is empty if the machines cannot hold the model and one session.
    """
    found = [(rate_of(costs, spans), spans) for spans in (*starts(costs, looks), *more) if spans]
    found.sort(key=lambda each: (*(-x for x in each[0]), len(each[1]), sorted(each[1].items())))
    best: Spans = {}
    best_rate = NOTHING
    seen = set[tuple[tuple[int, Span], ...]]()
    for rate, spans in found:
        key = tuple(sorted(spans.items()))
        if key in seen or rate == NOTHING:
            continue
        seen.add(key)
        better, reached = improved(costs, spans, rate, looks)
        if reached > best_rate or not best:
            best, best_rate = better, reached
        if len(seen) == STARTS:
            break
    return dict(sorted(best.items())), best_rate


def starts(costs: Costs, looks: int) -> Iterator[Spans]:
    """Yield plans to start from: chains of near machines, and what simple rules do. `looks` is the
    number of chains that are compared, at most."""
    wanted = costs.demand.sessions
    seen = list[Spans]()
    for sessions in sorted({1, -(-wanted // 4), wanted}):
        chains = many_chains(costs, sessions, looks)
        for most in sorted({1, 2, len(chains)} & set(range(len(chains) + 1))):
            joined = {each: span for chain in chains[:most] for each, span in chain.items()}
            if joined and joined not in seen:
                seen.append(joined)
                yield with_replicas(costs, joined)
    for rule in (by_memory, evenly, petals):
        yield rule(costs)
    yield with_replicas(costs, petals_chain(costs))


def improved(costs: Costs, spans: Spans, rate: TokenRates, looks: int) -> tuple[Spans, TokenRates]:
    """Return a plan that no small change makes better, or the best of `looks` plans on the way
    there."""
    search = _BestPlan(costs, dict(spans), rate, looks)
    climbing = True
    while climbing and search.looks > 0:
        climbing = False
        for changes in _CHANGES:
            climbing |= _climb(search, changes)
    return search.spans, search.rate


_Changes = Callable[[Costs, Spans], Iterator[Spans]]


def _climb(search: _BestPlan, changes: _Changes) -> bool:
    """Take over the first better of some changes, again and again. Return whether any was."""
    any_better, again = False, True
    while again and search.looks > 0:
        again = False
        for changed in changes(search.costs, search.spans):
            if search.looks <= 0:
                break
            if search.offer(changed):
                any_better = again = True
                break
    return any_better


def _shifted(costs: Costs, spans: Spans) -> Iterator[Spans]:
    """Yield plans in which all stages that meet at one layer meet at another one."""
    for cut in sorted({stop for _, stop in spans.values()} - {costs.layers}):
        for shift in _SHIFTS:
            changed = {
                each: (a + shift * (a == cut), b + shift * (b == cut))
                for each, (a, b) in spans.items()
            }
            if all(
                0 <= a < b <= costs.layers
                and (changed[each] == spans[each] or costs.fits(each, (a, b)))
                for each, (a, b) in changed.items()
            ):
                yield changed


def _swapped(costs: Costs, spans: Spans) -> Iterator[Spans]:
    """Yield plans in which two machines have each other's layers."""
    numbers = sorted(spans)
    for at, one in enumerate(numbers):
        for two in numbers[at + 1 :]:
            a, b = spans[one], spans[two]
            if a != b and costs.fits(one, b) and costs.fits(two, a):
                yield {**spans, one: b, two: a}


def _respanned(costs: Costs, spans: Spans) -> Iterator[Spans]:
    """Yield plans in which one machine has other layers: those of another one, or of two in a
    row."""
    for each in range(len(costs.peers)):
        for span in _choices(costs, spans):
            if span != spans.get(each) and costs.fits(each, span):
                yield {**spans, each: span}


def _choices(costs: Costs, spans: Spans) -> list[Span]:
    """Return the spans that a machine may try."""
    cuts = sorted({0, costs.layers, *(end for span in spans.values() for end in span)})
    if len(costs.peers) <= SMALL:
        return [(a, b) for a in cuts for b in cuts if a < b]
    own = set(spans.values())
    joined = {(a, d) for a, b in own for c, d in own if b == c}
    return sorted(own | joined | {(0, costs.layers)})


def _merged(costs: Costs, spans: Spans) -> Iterator[Spans]:
    """Yield plans with one stage less, whose layers a neighbouring stage takes."""
    for each in sorted(spans):
        a, b = spans[each]
        for other in sorted(spans):
            c, d = spans[other]
            if other == each or (c != b and d != a):
                continue
            whole = (min(a, c), max(b, d))
            if costs.fits(other, whole):
                fewer = {number: span for number, span in spans.items() if number != each}
                yield {**fewer, other: whole}
                yield {**fewer, other: whole, **_as_replica(costs, fewer, each)}


def _as_replica(costs: Costs, spans: Spans, number: int) -> Spans:
    """Return a span for a machine without one: the largest of the others' that fits."""
    fitting = [span for span in dict.fromkeys(spans.values()) if costs.fits(number, span)]
    return {number: max(fitting, key=lambda span: (span[1] - span[0], span))} if fitting else {}


def _cut(costs: Costs, spans: Spans) -> Iterator[Spans]:
    """Yield plans in which a machine takes a part of another one's layers."""
    for each in sorted(spans):
        a, b = spans[each]
        for other in range(len(costs.peers)):
            if other == each:
                continue
            for middle in sorted({a + (b - a) // 4, (a + b) // 2, b - (b - a) // 4, a + 1, b - 1}):
                if not a < middle < b:
                    continue
                for mine, theirs in (((a, middle), (middle, b)), ((middle, b), (a, middle))):
                    if costs.fits(each, mine) and costs.fits(other, theirs):
                        yield {**spans, each: mine, other: theirs}


_CHANGES: Final[tuple[_Changes, ...]] = (_shifted, _respanned, _merged, _swapped, _cut)


def single_moves(
    costs: Costs, spans: Mapping[int, Span], number: int
) -> Iterator[tuple[TokenRates, Span]]:
    """Yield (rate, span) for each span that one machine could take while the others stay."""
    for span in _choices(costs, dict(spans)):
        if costs.fits(number, span):
            yield rate_of(costs, {**spans, number: span}), span
