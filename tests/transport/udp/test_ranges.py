"""Tests of `ranges`: the same set as aioquic's, computed faster."""

import random

import pytest
from aioquic.quic.rangeset import RangeSet

from shoal.transport.udp.connection import Ranges


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_same_set(seed: int) -> None:
    rng = random.Random(seed)
    ours, theirs = Ranges(), RangeSet()
    for _ in range(300):
        start = rng.randrange(2000)
        stop = start + rng.randint(1, 30)
        if rng.random() < 0.8:
            ours.add(start, stop)
            theirs.add(start, stop)
        elif rng.random() < 0.5:
            ours.subtract(start, stop)
            theirs.subtract(start, stop)
        else:
            ours.add(start)
            theirs.add(start)
        assert list(ours) == list(theirs)


def test_what_touches_is_joined() -> None:
    ranges = Ranges([range(2), range(4, 6)])
    ranges.add(2, 4)
    assert list(ranges) == [range(6)]
