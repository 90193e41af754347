"""Ports offered to new mappings."""

from itertools import islice
from random import Random

import pytest

from shoal.netsim.nat.ports import HIGH_PORT, LOW_PORT, PortAllocator

IP = "198.51.100.1"


def ports(policy: str, block: int = 512) -> PortAllocator:
    random = Random(1)
    return PortAllocator(policy, block, lambda: random)


@pytest.mark.parametrize("policy", ["preserve", "random", "sequential"])
def test_every_port_is_offered_at_last(policy: str) -> None:
    offered = set(ports(policy).candidates(("192.168.1.2", 5000), IP))
    assert offered == set(range(LOW_PORT, HIGH_PORT + 1))


def test_own_port_comes_first() -> None:
    assert next(ports("preserve").candidates(("192.168.1.2", 80), IP)) == 80


def test_sequence_goes_on_and_wraps() -> None:
    mine = ports("sequential")
    assert list(islice(mine.candidates(("a", 1), IP), 3)) == [1024, 1025, 1026]
    assert next(mine.candidates(("b", 1), IP)) == 1027
    mine = ports("sequential")
    everything = list(mine.candidates(("a", 1), IP))
    assert everything[-1] == HIGH_PORT and next(mine.candidates(("a", 1), IP)) == LOW_PORT


def test_blocks_are_per_host_and_address_and_run_out() -> None:
    mine = ports("block", 30000)
    first = set(mine.candidates(("a", 1), IP))
    second = set(mine.candidates(("b", 1), IP))
    assert len(first) == len(second) == 30000 and not first & second
    assert list(mine.candidates(("c", 1), IP)) == []
    assert set(mine.candidates(("c", 1), "198.51.100.2")) == first
    mine.clear()
    assert set(mine.candidates(("c", 1), IP)) == first
