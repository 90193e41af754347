"""Tests of what a chain with faults measures."""

from bench.worlds.survival import Told


def test_waits_since_last_text() -> None:
    told = Told("text", 4, 9.0, (1.0, 2.25, 2.75, 6.0))
    assert told.waits(2.0, 4.0) == 2.75  # later stages still had what became this text
    assert told.waits(3.0, 4.0) == 3.0  # nothing came between the fault and its notice
    assert told.pause(2.0) == 3.25
