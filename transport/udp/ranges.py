"""Set of ranges with binary search. aioquic's own class searches linearly."""

from bisect import bisect_left

from aioquic.quic.rangeset import RangeSet


class Ranges(RangeSet):
    """Set of disjoint ranges: the received parts of a stream, or received packet numbers."""

    def add(self, start: int, stop: int | None = None) -> None:
        """Add the range from `start` up to, but not including, `stop` (None: `start + 1`). Ranges
        that touch are merged, as in aioquic's method."""
        if stop is None:
            stop = start + 1
        assert stop > start
        ranges: list[range] = self._RangeSet__ranges  # type: ignore[attr-defined]
        first = last = bisect_left(ranges, start, key=lambda each: each.stop)
        while last < len(ranges) and ranges[last].start <= stop:
            last += 1
        if first < last:
            start = min(start, ranges[first].start)
            stop = max(stop, ranges[last - 1].stop)
        ranges[first:last] = [range(start, stop)]
