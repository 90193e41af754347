"""Free blocks of a pool, as runs of consecutive numbers. No I/O."""


class FreeRuns:
    """Free blocks as runs of consecutive numbers."""

    def __init__(self, blocks: int) -> None:
        self.count = blocks
        self._length = {0: blocks} if blocks else {}  # by the run's first block
        self._first = {blocks: 0} if blocks else {}  # by the block after the run

    def add(self, block: int) -> None:
        """Add a block, joining it with the runs beside it."""
        first, end = self._first.pop(block, block), block + 1
        if end in self._length:
            end += self._length.pop(end)
        self._length[first] = end - first
        self._first[end] = first
        self.count += 1

    def take(self, wanted: int, after: int) -> range:
        """Remove and return 1 to `wanted` consecutive blocks, following the block `after` if they
        are free.

        Otherwise they come from the longest run. They begin in its middle where the run's start is
        needed by the table that ends before it, so that both can grow in place.
        """
        if after + 1 in self._length:
            return self._cut(after + 1, after + 1, wanted)
        run = max(self._length, key=self._length.__getitem__)
        spare = self._length[run] - wanted
        return self._cut(run, run + spare // 2 if run and spare > 0 else run, wanted)

    def _cut(self, run: int, first: int, wanted: int) -> range:
        """Remove up to `wanted` blocks that begin with `first` from the run that begins with
        `run`."""
        end = run + self._length.pop(run)
        stop = min(first + wanted, end)
        del self._first[end]
        if first > run:
            self._length[run] = first - run
            self._first[first] = run
        if stop < end:
            self._length[stop] = end - stop
            self._first[end] = stop
        self.count -= stop - first
        return range(first, stop)
