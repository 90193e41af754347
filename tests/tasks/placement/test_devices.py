"""Layers are divided among devices with as few parts as possible, and never more than fit."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tasks.placement.coverage import LayerSizes, Span
from shoal.tasks.placement.devices import divide, joint_memory

SIZES = LayerSizes(layers=10, layer=100, first=50, last=30, everything=1080)
TIED = LayerSizes(layers=6, layer=10, first=40, last=40, everything=100)


@pytest.mark.parametrize(
    ("rooms", "span", "found"),
    [
        ([1080], (0, 10), [(0, (0, 10))]),
        ([1079], (0, 10), []),
        ([500, 1080], (0, 10), [(1, (0, 10))]),
        ([650, 650], (0, 10), [(0, (0, 5)), (1, (5, 10))]),
        ([900, 330], (0, 10), [(0, (0, 8)), (1, (8, 10))]),
        ([330, 900], (0, 10), [(1, (0, 8)), (0, (8, 10))]),
        ([400, 400], (2, 9), [(0, (2, 6)), (1, (6, 9))]),
        ([350, 350], (2, 9), []),  # half a layer is of no use on either
        ([450, 100, 450], (0, 9), [(0, (0, 4)), (1, (4, 5)), (2, (5, 9))]),
    ],
)
def test_divided(rooms: list[int], span: Span, found: list[tuple[int, Span]]) -> None:
    assert divide(SIZES, span, rooms) == found


def test_one_device_has_all_its_memory() -> None:
    assert joint_memory(SIZES, [-5]) == -5 and joint_memory(SIZES, [777]) == 777


@given(
    st.sampled_from((SIZES, TIED)),
    st.lists(st.integers(0, 1200), min_size=1, max_size=4),
    st.data(),
)
def test_what_fits_by_the_joint_memory_can_be_divided(
    sizes: LayerSizes, rooms: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, sizes.layers - 1))
    span = start, data.draw(st.integers(start + 1, sizes.layers))
    found = divide(sizes, span, rooms)
    memory = joint_memory(sizes, rooms)
    assert max(rooms) <= memory <= max(sum(rooms), sizes.everything)
    if sizes.of_span(*span) <= memory:
        assert found
    for device, part in found:
        assert part[0] < part[1] and sizes.of_span(*part) <= rooms[device]
    if found:
        assert (found[0][1][0], found[-1][1][1]) == span
        assert all(before[1][1] == after[1][0] for before, after in pairwise(found))
        assert len({device for device, _ in found}) == len(found)
