"""Divides the layers of a node among its devices. Pure functions.

A node has one place in a model's plan, and one range of layers. If no device of it has room for all
of them, several devices get a part each, and the node is as many stages. Reasons:
docs/adr/0088-several-devices.md.
"""

from collections.abc import Sequence

from .coverage import LayerSizes, Span


def joint_memory(sizes: LayerSizes, rooms: Sequence[int]) -> int:
    """Return bytes such that every range of a model's layers that needs no more can be divided
    among devices with `rooms` bytes each.

    This is less than their sum, because no layer is on two devices.
    """
    best = max(rooms)
    for count in range(2, len(rooms) + 1):
        most = _most(sizes, (0, sizes.layers), [rooms[device] for device in _row(rooms, count)])
        if min(most) < 1:
            break
        layers = sum(most)
        ends = max(sizes.first, sizes.last)
        whole = layers >= sizes.layers
        best = max(best, sizes.everything if whole else layers * sizes.layer + ends)
    return best


def divide(sizes: LayerSizes, span: Span, rooms: Sequence[int]) -> list[tuple[int, Span]]:
    """Return (index of a device, its layers) in the order of the layers, with as few devices as
    possible, or nothing if they have no room.

    Several devices get layers in proportion to their rooms, so that all have memory left for
    sessions.
    """
    start, stop = span
    for count in range(1, min(len(rooms), stop - start) + 1):
        row = _row(rooms, count)
        if count == 1:
            if sizes.of_span(start, stop) <= rooms[row[0]]:
                return [(row[0], span)]
            continue
        most = _most(sizes, span, [rooms[device] for device in row])
        if min(most) >= 1 and sum(most) >= stop - start:
            found, at = list[tuple[int, Span]](), start
            for device, layers in zip(row, _counts(stop - start, most), strict=True):
                found.append((device, (at, at + layers)))
                at += layers
            return found
    return []


def _row(rooms: Sequence[int], count: int) -> list[int]:
    """Return the `count` devices with the most room. The two largest get the ends of the row, where
    embedding and head take memory."""
    order = sorted(range(len(rooms)), key=lambda device: (-rooms[device], device))[:count]
    return [*order[:1], *order[2:], *order[1:2]]


def _most(sizes: LayerSizes, span: Span, rooms: Sequence[int]) -> list[int]:
    """Return how many layers of a range fit on each device of a row."""
    left = list(rooms)
    left[0] -= sizes.first * (span[0] == 0)
    left[-1] -= sizes.last * (span[1] == sizes.layers)
    return [room // sizes.layer for room in left]


def _counts(layers: int, most: Sequence[int]) -> list[int]:
    """Return a number of layers for each device, in proportion to `most`, but 1 at least."""
    total = sum(most)
    counts = [max(1, layers * each // total) for each in most]
    while (lacking := layers - sum(counts)) != 0:
        if lacking > 0:
            counts[max(range(len(most)), key=lambda at: most[at] - counts[at])] += 1
        else:
            counts[max(range(len(most)), key=counts.__getitem__)] -= 1
    return counts
