"""Memory that is used again: never while anything can still see it."""

import numpy as np

from shoal.tasks.tuning.averaging.memory import SPARE, SpareMemory


def address(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> int:
    return int(array.__array_interface__["data"][0])


def test_a_piece_is_used_again_once_its_array_is_gone() -> None:
    memory = SpareMemory()
    one = memory.vector(1000)
    first = address(one)
    assert one.dtype == np.float32 and one.size == 1000 and one.flags.writeable
    del one
    assert address(memory.octets(4000)) == first


def test_a_piece_is_not_used_again_while_a_view_of_it_lives() -> None:
    memory = SpareMemory()
    array = memory.octets(4000)
    views = [array[10:20], array.data[5:], array.view(np.float32)[3:].reshape(1, -1)]
    views.append(np.frombuffer(array.data.toreadonly(), np.float32, 7, 8))
    first = address(array)
    del array
    while views:
        fresh = [memory.octets(4000) for _ in range(3)]
        assert first not in map(address, fresh)
        fresh.clear()
        views.pop()
    assert first in [address(each) for each in [memory.octets(4000) for _ in range(4)]]


def test_few_pieces_wait_whichever_sizes_they_have() -> None:
    memory = SpareMemory()
    held = [memory.octets(100 + size) for size in range(50)]
    last = address(held[-1])
    while held:
        held.pop(0)
    assert len(memory.spare) == SPARE
    assert address(memory.octets(149)) == last and len(memory.spare) == SPARE - 1
