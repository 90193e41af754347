"""Memory for packed weights: apart, aligned, and freed with the last of its matrices."""

import gc
import sys
import weakref
from itertools import pairwise

import pytest
import torch

from shoal.tasks.engine.compute.native.pages import Pages

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="large pages of Linux")
SIZES = (3 << 20, 1 << 20, 5_000_001, 300 << 20, 2 << 20)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_matrices_lie_apart_and_at_lines_of_the_cache() -> None:
    pages = Pages()
    taken = [pages.take(size) for size in SIZES]
    assert [len(each) for each in taken] == list(SIZES)
    assert all(each.data_ptr() % 64 == 0 for each in taken)
    places = sorted((each.data_ptr(), each.data_ptr() + len(each)) for each in taken)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))


def test_the_first_matrix_of_a_region_begins_at_a_large_page() -> None:
    assert Pages().take(3 << 20).data_ptr() % (2 << 20) == 0


@pytest.mark.usefixtures("own_garbage")
def test_a_region_takes_the_memory_of_what_is_written_and_is_freed_with_its_last_matrix() -> None:
    pages = Pages()
    first, second = pages.take(64 << 20), pages.take(64 << 20)
    region = weakref.ref(pages.region)
    before = resident()
    first.fill_(1)
    assert 60 << 20 < resident() - before < 72 << 20
    del pages, first
    gc.collect()
    assert region() is not None and not second.any()
    del second
    gc.collect()
    assert region() is None


def test_a_small_matrix_keeps_no_region() -> None:
    pages = Pages()
    small = pages.take(1000)
    assert small.untyped_storage().nbytes() == 1000 and small.dtype == torch.uint8
