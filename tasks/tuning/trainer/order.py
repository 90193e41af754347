"""Order of the rows. No I/O. It is a function of the seed and the step alone.

So a fine-tuning that is resumed needs no state of the order. The random numbers are splitmix64
(Steele, Lea, Flood 2014) of a counter, because numpy's may change with its version.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .defaults import WINDOW

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1


def noise(seed: int, stream: int, count: int) -> NDArray[np.uint64]:
    """Return `count` random numbers of 64 bits. Each stream of a seed has others."""
    begin = np.uint64(_mix(_mix(seed & _MASK) ^ stream & _MASK))
    with np.errstate(over="ignore"):
        z = begin + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def _mix(value: int) -> int:
    z = (value + _GOLDEN) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def shuffled(seed: int, stream: int, count: int) -> NDArray[np.int64]:
    """Return a random order of the numbers below `count`."""
    return np.argsort(noise(seed, stream, count), kind="stable")


class RowSchedule:
    """Which rows each step takes, of rows with these lengths in tokens.

    The first rows of a random order are held out. In each epoch, the others are shuffled, sorted by
    length within windows of some batches, so that little is padded, and the batches are shuffled.
    """

    def __init__(self, lengths: NDArray[np.uint32], batch: int, seed: int, held_out: int) -> None:
        self._lengths = lengths
        self._batch = batch
        self._seed = seed
        first = shuffled(seed, 0, len(lengths))
        held = first[:held_out]
        self.held_out = held[np.argsort(lengths[held], kind="stable")]
        self._rows = np.sort(first[held_out:])
        self.steps = -(-len(self._rows) // batch)
        """Steps of one epoch."""
        self._epoch = lru_cache(maxsize=1)(self._arranged)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Return the rows of a step, which is counted from 0."""
        epoch, place = divmod(step, self.steps)
        mixed, places = self._epoch(epoch)
        at = int(places[place]) * self._batch
        return mixed[at : at + self._batch]

    def _arranged(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of an epoch, and the order of its batches."""
        mixed = self._rows[shuffled(self._seed, 2 * epoch + 1, len(self._rows))]
        window = np.arange(len(mixed)) // (self._batch * WINDOW)
        mixed = mixed[np.lexsort((self._lengths[mixed], window))]
        return mixed, shuffled(self._seed, 2 * epoch + 2, self.steps)
