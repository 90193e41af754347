"""Simple rules of placement that other systems use. Plans start from them and are compared with
them. Pure functions."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from .chains import capacity
from .coverage import Span
from .fleet import Costs, batch_index


def evenly(costs: Costs) -> dict[int, Span]:
    """Return as even a split as the memories allow: over all machines, in the order of their ids.

    Machines that have no memory for their part hold less, and the others more.
    """
    return _levelled(costs, [1] * len(costs.peers))


def by_memory(costs: Costs) -> dict[int, Span]:
    """Return a split over all machines in proportion to their memory."""
    return _levelled(costs, list(costs.memory))


def _levelled(costs: Costs, weights: Sequence[int]) -> dict[int, Span]:
    """Return a split of the layers over all machines in proportion to weights, as far as they fit.

    Returns nothing if the machines together have no room.
    """
    count = len(costs.peers)
    rooms = [capacity(costs, each, 1, ends=(each == 0, each == count - 1)) for each in range(count)]
    counts, left = [0] * count, costs.layers
    if sum(rooms) < left:
        return {}
    while left:
        open_ = [each for each in range(count) if counts[each] < rooms[each]]
        total, before = sum(weights[each] for each in open_), left
        for each in open_:
            more = min(before * weights[each] // total, rooms[each] - counts[each], left)
            counts[each] += more
            left -= more
        if left == before:  # less than one layer for each: one by one
            for each in sorted(open_, key=lambda n: (counts[n] * total // weights[n], n))[:left]:
                counts[each] += 1
                left -= 1
    used = [each for each in range(count) if counts[each]]
    cuts = [0, *accumulate(counts[each] for each in used)]
    return dict(zip(used, pairwise(cuts), strict=True))


def petals(costs: Costs) -> dict[int, Span]:
    """Return what the rule of Petals gives if machines join one after another.

    Each takes as many neighbouring layers as fit, where the sum of the throughputs of those that
    hold them is lowest (arXiv 2209.01188, section 3.2). Chains need not join exactly under that
    rule, so a placement may have no chain of whole shards.
    """
    through = [0] * costs.layers
    found: dict[int, Span] = {}
    for each in range(len(costs.peers)):
        size = min(capacity(costs, each, 1, ends=(end, not end)) for end in (True, False))
        if not size:
            continue
        starts = range(costs.layers - size + 1)
        start = min(starts, key=lambda at: (sorted(through[at : at + size]), at))
        found[each] = start, start + size
        for layer in range(start, start + size):
            through[layer] += 10**12 // costs.stage(each, found[each])[0]
    return found


Path = tuple[tuple[int, Span], ...]
"""A chain of parts: machines (their numbers) with the layers that each computes."""


def petals_chain(costs: Costs) -> dict[int, Span]:
    """Return the fastest chain of parts for one session under the rule of Petals, with each machine
    holding its part only. So it is a chain of whole shards, and as fast."""
    spans = petals(costs)
    path = parts_path(costs, spans, dict.fromkeys(spans, 0), 1) or ()
    chain = dict(path)
    return chain if len(chain) == len(path) else {}


def parts_path(
    costs: Costs, spans: Mapping[int, Span], load: Mapping[int, int], count: int
) -> Path | None:
    """Return the fastest chain for `count` more sessions, or None if there is none. A machine may
    compute any part of its layers. `load` has the sessions of each machine so far."""
    able = [each for each in spans if load[each] < costs.room(each, spans[each])]
    at = {each: batch_index(load[each] + count) for each in able}
    here: dict[int, tuple[int, Path]] = {}
    for layer in range(costs.layers):
        following = {}
        for each in able:
            if not spans[each][0] <= layer < spans[each][1]:
                continue
            took = costs.layer[each][at[each]]
            took += costs.head[each][at[each]] if layer == costs.layers - 1 else 0
            fresh = (each, (layer, layer + 1))
            ways = [
                (way + costs.hop[other][each] + costs.fixed[each], (*path, fresh))
                for other, (way, path) in here.items()
                if other != each
            ]
            if layer == 0:
                ways.append((costs.fixed[each], (fresh,)))
            if each in here:
                way, path = here[each]
                ways.append((way, (*path[:-1], (each, (path[-1][1][0], layer + 1)))))
            if ways:
                way, path = min(ways)
                following[each] = way + took, path
        here = following
    ends = [(way + costs.hop[each][path[0][0]], path) for each, (way, path) in here.items()]
    return min(ends)[1] if ends else None
