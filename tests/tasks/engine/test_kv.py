"""Copies of a session's KV: exact between memories in pieces, and refused if a stranger lies."""

from random import Random

import msgpack
import pytest
import torch

from shoal.tasks.engine.compute.kv import KvMemory
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families import architecture, kv_token_bytes
from shoal.tasks.engine.interface import DType, Parts
from shoal.tasks.engine.kv.blocks import BLOCK, BlockCopy, BlockPool, BlockTable
from shoal.tasks.engine.kv.copy import KvCopies

ARCH = architecture(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
        "max_position_embeddings": 256,
    }
)
PARTS = Parts(False, 1, 3, False)
TOKEN = kv_token_bytes(ARCH, 1, 3, "float32")


class Held:
    """One session's KV of random values, in blocks in a random order."""

    def __init__(
        self,
        tokens: int = 10,
        *,
        fill: int = 0,
        parts: Parts = PARTS,
        root: str = "ab",
        dtype: DType = "float32",
    ) -> None:
        self.memory = KvMemory(ARCH, parts, dtype, 12)
        for memory in (self.memory.keys, self.memory.values):
            memory.copy_(torch.randn(memory.shape))
        self.table = BlockTable(BlockPool(12), tokens)
        for block in Random(tokens).sample(range(12), -(-tokens // BLOCK)):
            self.table._append(block)
        self.table.length = fill
        self.copies = KvCopies(root, ARCH, parts, dtype, "class")

    def export(self) -> bytes:
        return self.copies.encode(self.table.length, self.memory.export(self.table))

    def install(self, state: bytes) -> int:
        length, data = self.copies.parse(memoryview(state), self.table.tokens)
        self.memory.install(self.table, length, self.memory.imported(length, data))
        self.table.length = length
        return length


def refused(held: Held, state: bytes) -> bool:
    before = held.memory.keys.clone(), held.memory.values.clone()
    with pytest.raises(EngineError) as failure:
        held.install(state)
    assert torch.equal(before[0], held.memory.keys) and torch.equal(before[1], held.memory.values)
    return failure.value.code == "bad-state"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fill", [0, 1, 15, 16, 17, 48, 100])
def test_a_copy_is_exact_and_fits_other_blocks(fill: int, dtype: DType) -> None:
    held = Held(100, fill=fill, dtype=dtype)
    other = Held(max(fill, 1) + 20, dtype=dtype)
    assert other.install(held.export()) == fill
    assert other.export() == held.export()
    slots = [held.table.slot(at) for at in range(fill)]
    theirs = [other.table.slot(at) for at in range(fill)]
    assert torch.equal(held.memory.keys[:, :, slots], other.memory.keys[:, :, theirs])
    assert torch.equal(held.memory.values[:, :, slots], other.memory.values[:, :, theirs])
    size = int.from_bytes(held.export()[:4], "big")
    width = TOKEN if dtype == "float32" else TOKEN // 2
    assert len(held.export()) == 4 + size + fill * width


def test_a_copy_has_for_each_layer_the_keys_and_then_the_values() -> None:
    held = Held(40, fill=35)
    state = held.export()
    data = torch.frombuffer(bytearray(state[-35 * TOKEN :]), dtype=torch.float32)
    rows = data.view(2, 2, ARCH.kv_heads, 35, ARCH.head_dim)
    slots = [held.table.slot(at) for at in range(35)]
    assert torch.equal(rows[:, 0], held.memory.keys[:, :, slots])
    assert torch.equal(rows[:, 1], held.memory.values[:, :, slots])


def test_an_import_writes_its_own_blocks_only() -> None:
    held, other = Held(40, fill=40), Held(33)
    before = other.memory.keys.clone()
    other.table.tokens = 40
    state = held.export()
    other.install(Held(33, fill=33).export())
    mine = {other.table.slot(at) for at in range(33)}
    others = sorted({*range(12 * BLOCK)} - mine)
    assert torch.equal(before[:, :, others], other.memory.keys[:, :, others])
    assert held.export() == state


def test_copies_of_other_shards_are_refused() -> None:
    held = Held(fill=3)
    assert refused(held, Held(root="cd", fill=2).export())
    assert refused(held, Held(parts=Parts(False, 0, 2, False), fill=2).export())
    assert refused(held, Held(parts=Parts(False, 1, 4, False), fill=2).export())
    assert refused(held, Held(4, dtype="bfloat16").export())
    assert refused(held, Held(20, fill=11).export())


def test_malformed_copies_are_refused() -> None:
    held, good = Held(fill=3), Held(fill=2).export()
    size = int.from_bytes(good[:4], "big")
    fields = msgpack.unpackb(good[4 : 4 + size])

    def with_fields(*changed: object) -> bytes:
        header: bytes = msgpack.packb(list(changed))
        return len(header).to_bytes(4, "big") + header + good[4 + size :]

    assert refused(held, b"")
    assert refused(held, b"\xff\xff\xff\xff" + good[4:])
    assert refused(held, good[:-1])
    assert refused(held, good + b"x")
    assert refused(held, (3).to_bytes(4, "big") + b"\xc1\xc1\xc1")
    assert refused(held, (1).to_bytes(4, "big") + b"\x01")
    for length in (-1, 11, True, "2", None, 1 << 60):
        assert refused(held, with_fields(*fields[:6], length, *fields[7:]))
    assert refused(held, with_fields(*fields[:-1]))
    header = msgpack.packb([[0] * 1000] * 100)
    with pytest.raises(EngineError, match="announces a header"):
        held.install(len(header).to_bytes(4, "big") + header)
    assert held.install(with_fields(*fields)) == 2


def test_a_length_that_a_slice_would_clamp_is_refused() -> None:
    held = Held(fill=3)
    for fill, lie in ((10, 11), (9, -1)):
        state = Held(fill=fill).export()
        size = int.from_bytes(state[:4], "big")
        fields = msgpack.unpackb(state[4 : 4 + size])
        header: bytes = msgpack.packb([*fields[:6], lie, *fields[7:]])
        assert refused(held, len(header).to_bytes(4, "big") + header + state[4 + size :])


def test_values_that_are_not_finite_are_refused() -> None:
    held, poisoned = Held(fill=3), Held(fill=2)
    poisoned.memory.values[1, 1, poisoned.table.slot(1), 0] = float("nan")
    assert refused(held, poisoned.export())


def test_blocks_are_copied_in_order() -> None:
    memory = Held().memory
    keys, values = memory.keys.clone(), memory.values.clone()
    memory.copy([BlockCopy(2, 5), BlockCopy(7, 2), BlockCopy(5, 0)])
    for block, source in {0: 2, 2: 7, 5: 2, 7: 7, 3: 3}.items():
        ours = slice(block * BLOCK, (block + 1) * BLOCK)
        theirs = slice(source * BLOCK, (source + 1) * BLOCK)
        assert torch.equal(memory.keys[:, :, ours], keys[:, :, theirs])
        assert torch.equal(memory.values[:, :, ours], values[:, :, theirs])


def test_memory_that_the_system_refuses_has_its_code() -> None:
    with pytest.raises(EngineError) as failure:
        KvMemory(ARCH, PARTS, "float32", 1 << 44)
    assert failure.value.code == "no-memory"
