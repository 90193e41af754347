"""Simple rules of placement that other systems use. Plans start from them and are compared with
them. Pure functions."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from .chains import capacity
from .coverage import Span
from .fleet import Costs


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
