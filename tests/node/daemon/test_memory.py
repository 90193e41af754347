"""Warnings about the memory that an owner offers."""

import pytest

from shoal.node.daemon.memory import memory_condition
from shoal.transport.host.seam import MachineFigures

MIB, GIB = 2**20, 2**30


def machine(available: int) -> MachineFigures:
    return MachineFigures(4, 16 * GIB, available, "Linux", "x86_64")


@pytest.mark.parametrize(
    ("asked", "free", "sentence", "hint"),
    [
        (120 * MIB, 8 * GIB, "120 MiB of memory is less than one layer", "set memory 1GiB"),
        (4 * GIB, 4 * GIB, "only 4.0 GiB is free", "set memory 3696MiB"),
        (4 * GIB, 100 * MIB, "only 100 MiB is free", "end other programs"),
    ],
)
def test_warning_about_too_little_and_too_much_memory(
    asked: int, free: int, sentence: str, hint: str
) -> None:
    found = memory_condition(asked, machine(free))
    assert found is not None and sentence in found.sentence and hint in str(found.hint)
    assert "memory 0MiB" not in str(found.hint), "too little to serve anything"
    assert "400 MiB" in found.sentence, "the programs need memory as well"


def test_no_warning_about_enough_memory() -> None:
    assert memory_condition(GIB, machine(8 * GIB)) is None
