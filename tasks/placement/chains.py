"""Builds chains of machines that are near each other and fast. Pure functions over whole numbers.

These are the plans from which `optimise.py` starts its search.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, pairwise
from typing import Final

from .coverage import Span
from .fleet import Costs, batch_index
from .predict import NOTHING, better_rate, rate_of

ANCHORS: Final = 12
"""Machines around which chains are built."""
_REPLICA_LOOKS: Final = 3
"""Places that are compared for one more replica."""
_SLACK: Final = (4, 5, 8, 0)
"""Quarters of the evenest split's slowest step that a stage may take. 0: any time."""


def capacity(
    costs: Costs, number: int, sessions: int, *, ends: tuple[bool, bool] = (False, False)
) -> int:
    """Return how many layers fit on a machine beside the keys and values of some sessions.

    `ends`: whether it also holds the embedding, and the head.
    """
    key = number, sessions, *ends
    if key not in costs.capacities:
        costs.capacities[key] = _capacity(costs, number, sessions, ends)
    return costs.capacities[key]


def _capacity(costs: Costs, number: int, sessions: int, ends: tuple[bool, bool]) -> int:
    low, high = 0, costs.layers
    while low < high:  # the sessions that have room fall with the layers
        middle = (low + high + 1) // 2
        span = _span_like(costs.layers, middle, ends)
        if costs.fits(number, span) and costs.room(number, span) >= sessions:
            low = middle
        else:
            high = middle - 1
    return low


def _span_like(layers: int, count: int, ends: tuple[bool, bool]) -> Span:
    """Return a span of `count` layers with these ends of the model. A whole model has both."""
    if ends[0] or count >= layers - 1:
        return 0, count
    return (layers - count, layers) if ends[1] else (1, count + 1)


def split(costs: Costs, order: Sequence[int], sessions: int, slack: int = 0) -> dict[int, Span]:
    """Return spans of machines in a row that hold the whole model, or nothing if they cannot.

    The fastest machines get as many layers as they have memory for and as `slack` allows: quarters
    of the slowest step that the evenest split needs. Each machine gets one layer at least.
    """
    count = len(order)
    rooms = [
        capacity(costs, each, sessions, ends=(at == 0, at == count - 1))
        for at, each in enumerate(order)
    ]
    if sum(rooms) < costs.layers or count > costs.layers or not all(rooms):
        return {}
    at = batch_index(sessions)
    if slack:
        key = tuple(order), sessions
        if key not in costs.evenest:
            costs.evenest[key] = evenest(costs, order, rooms, at)
        even = costs.evenest[key]
        rooms = within(costs, order, rooms, at, even * slack // 4)
    counts = [1] * count
    left = costs.layers - count
    for number in sorted(range(count), key=lambda n: (costs.layer[order[n]][at], order[n])):
        more = min(left, rooms[number] - 1)
        counts[number] += more
        left -= more
    cuts = [0, *accumulate(counts)]
    return dict(zip(order, pairwise(cuts), strict=True)) if not left else {}


def evenest(costs: Costs, order: Sequence[int], rooms: Sequence[int], at: int) -> int:
    """Return the nanoseconds of the slowest step in the split with the shortest slowest step.

    Each machine has one layer. Each further one goes to the machine that is then the quickest with
    it, so the last of these steps is the slowest one that is needed.
    """
    steps = [
        (costs.fixed[each] + 2 * costs.layer[each][at], costs.layer[each][at], room - 1)
        for each, room in zip(order, rooms, strict=True)
        if room > 1
    ]
    heapify(steps)
    took = 1
    for _ in range(costs.layers - len(order)):
        took, layer, left = steps[0]
        if left > 1:
            heapreplace(steps, (took + layer, layer, left - 1))
        else:
            heappop(steps)
    return took


def within(
    costs: Costs, order: Sequence[int], rooms: Sequence[int], at: int, limit: int
) -> list[int]:
    """Return how many layers each machine computes within `limit` nanoseconds, 1 at least."""
    return [
        min(room, max(1, (limit - costs.fixed[each]) // costs.layer[each][at]))
        for each, room in zip(order, rooms, strict=True)
    ]


def chains_around(
    costs: Costs, pool: Collection[int], anchor: int, sessions: int
) -> Iterator[dict[int, Span]]:
    """Yield chains of the whole model, for a number of sessions at a time, that begin with the
    machines nearest to the machine with the number `anchor`."""
    rooms = {each: capacity(costs, each, sessions) for each in pool}
    if not rooms.get(anchor):
        return
    at = batch_index(sessions)

    def price(each: int) -> tuple[int, int]:
        """Return a machine's nanoseconds per layer, with the way to it and back."""
        way = costs.hop[anchor][each] + costs.fixed[each]
        return costs.layer[each][at] + 2 * way // rooms[each], each

    able = [anchor, *sorted((e for e in pool if rooms[e] and e != anchor), key=price)]
    totals = list(accumulate(rooms[each] for each in able))
    needed = next((n + 1 for n, total in enumerate(totals) if total >= costs.layers), 0)
    if not needed:
        return
    for extra in (0, 1, 2):
        chosen = able[: needed + extra]
        chosen = _without_needless(chosen, rooms, costs.layers) if extra == 0 else chosen
        for order in _orders(costs, chosen):
            for slack in _SLACK:
                if spans := split(costs, order, sessions, slack):
                    yield spans
        if needed + extra >= len(able):
            break


def _without_needless(chosen: Sequence[int], rooms: Mapping[int, int], layers: int) -> list[int]:
    """Return the machines without those that the others do not need, the last ones first."""
    kept, total = list(chosen), sum(rooms[each] for each in chosen)
    for each in chosen[::-1]:
        if len(kept) > 1 and total - rooms[each] >= layers:
            kept.remove(each)
            total -= rooms[each]
    return kept


def _orders(costs: Costs, chosen: Sequence[int]) -> list[list[int]]:
    """Return orders of machines in a ring with short ways: from each of a few machines always to
    the nearest one that is left."""
    found = []
    for first in chosen[:3]:
        order, left = [first], sorted(set(chosen) - {first})
        while left:
            following = min(left, key=lambda each: (costs.hop[order[-1]][each], each))
            order.append(following)
            left.remove(following)
        if order not in found:
            found.append(order)
    return found


def anchors_of(costs: Costs, pool: Collection[int]) -> list[int]:
    """Return the machines around which to build: the fastest ones, and those with most memory."""
    fast = sorted(pool, key=lambda each: (costs.layer[each][0], each))
    large = sorted(pool, key=lambda each: (-costs.memory[each], each))
    mixed = [each for two in zip(fast, large, strict=True) for each in two]
    return list(dict.fromkeys(mixed))[:ANCHORS]


def many_chains(
    costs: Costs, sessions: int, looks: int, used: Collection[int] = ()
) -> list[dict[int, Span]]:
    """Return chains of the whole model that share no machine, the fastest first.

    Each has memory for `sessions` sessions. At most `looks` chains are compared for each. Machines
    in `used` are left out.
    """
    pool, found = set(range(len(costs.peers))) - set(used), list[dict[int, Span]]()
    while chain := _fastest_chain(costs, pool, sessions, looks):
        found.append(chain)
        pool -= chain.keys()
    return found


def _fastest_chain(
    costs: Costs, pool: Collection[int], sessions: int, looks: int
) -> dict[int, Span]:
    best, chosen = NOTHING, dict[int, Span]()
    anchors = anchors_of(costs, pool)
    for anchor in anchors:
        seen = set[tuple[tuple[int, Span], ...]]()
        for chain in chains_around(costs, pool, anchor, sessions):
            key = tuple(chain.items())
            if key in seen:
                continue
            seen.add(key)
            if rate := better_rate(costs, chain, best):
                best, chosen = rate, chain
            if len(seen) > looks // len(anchors):
                break
    return chosen


def with_idle(costs: Costs, spans: Mapping[int, Span], looks: int) -> dict[int, Span]:
    """Return the spans with some for the machines that have none: further chains as far as these
    machines suffice, then replicas.

    So what depends on one machine, which may have lied, is served by others too if they can.
    """
    found = dict(spans)
    for chain in many_chains(costs, 1, looks, found):
        found |= chain
    return with_replicas(costs, found)


def with_replicas(costs: Costs, spans: Mapping[int, Span]) -> dict[int, Span]:
    """Return the spans with one more for each machine that has none: a replica of other machines'
    layers, where it adds most, or else where there are fewest.

    Of each machine's choices those with the fewest replicas, and then the slowest, are compared.
    """
    found = dict(spans)
    idle = set(range(len(costs.peers))) - found.keys()
    rate = rate_of(costs, found)
    for each in sorted(idle, key=lambda number: (-costs.memory[number], number)):
        counts = Counter(found.values())
        slow = {
            span: max(costs.stage(n, s)[0] for n, s in found.items() if s == span)
            for span in counts
        }
        order = sorted(counts, key=lambda span: (counts[span], -slow[span], span))
        choices = [span for span in order if costs.fits(each, span)][:_REPLICA_LOOKS]
        if not choices:
            continue
        rates = [rate_of(costs, {**found, each: span}) for span in choices]
        best = max(range(len(choices)), key=lambda at: (rates[at], -at))
        found[each] = choices[best] if rates[best] > rate else choices[0]
        rate = max(rate, rates[best])
    return found
