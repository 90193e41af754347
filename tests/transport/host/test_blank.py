"""blank: aligned memory, which a disk takes without a copy."""

from OpenSSL._util import ffi

from shoal.transport.host.allocator import blank


def test_blank_memory_has_its_size_and_begins_at_a_page() -> None:
    kept = [blank(size) for size in (1, 4096, 70_001, 2**20)]
    for memory, size in zip(kept, (1, 4096, 70_001, 2**20), strict=True):
        assert len(memory) == memory.nbytes == size
        assert int(ffi.cast("uintptr_t", ffi.from_buffer(memory))) % 4096 == 0


def test_written_bytes_survive_other_allocations() -> None:
    memories = [blank(2**16) for _ in range(64)]
    for number, memory in enumerate(memories):
        memory[:] = bytes([number]) * len(memory)
    parts = [memory[100:200].toreadonly() for memory in memories]
    del memories
    others = [blank(2**16) for _ in range(64)]
    for memory in others:
        memory[:] = b"\xff" * len(memory)
    assert [bytes(part) for part in parts] == [bytes([n]) * 100 for n in range(64)]
