"""A session's KV: its budget, and copies that come from strangers."""

import msgpack
import pytest
import torch

from shoal.tasks.engine.budget import KvBudget
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families import architecture, kv_token_bytes
from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.kv import KV

ARCH = architecture(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
        "max_position_embeddings": 64,
    }
)
PARTS = Parts(False, 1, 3, False)
TOKEN = kv_token_bytes(ARCH, 1, 3, "float32")


def made(tokens: int = 10, *, parts: Parts = PARTS, root: str = "ab", fill: int = 0) -> KV:
    kv = KV(root, ARCH, parts, "float32", tokens, KvBudget(1 << 20))
    for views in (kv.keys, kv.values):
        for view in views:
            view.copy_(torch.randn(view.shape))
    kv.length = fill
    return kv


def refused(kv: KV, state: bytes) -> bool:
    with pytest.raises(EngineError) as failure:
        kv.install(state)
    assert kv.length == 3  # untouched
    return failure.value.code == "bad-state"


def test_the_budget_is_kept_and_given_back() -> None:
    budget = KvBudget(10 * TOKEN)
    first = KV("", ARCH, PARTS, "float32", 6, budget)
    with pytest.raises(EngineError) as failure:
        KV("", ARCH, PARTS, "float32", 5, budget)
    assert failure.value.code == "no-memory"
    assert budget.reserved == 6 * TOKEN
    first.free()
    first.free()
    assert budget.reserved == 0
    assert KV("", ARCH, PARTS, "float32", 10, budget).bytes == 10 * TOKEN


def test_a_copy_is_exact_and_fits_other_capacities() -> None:
    kv, other = made(10, fill=7), made(7)
    assert other.install(kv.export()) == 7
    assert other.export() == kv.export()
    assert torch.equal(other.keys[1], kv.keys[1][:, :7])
    assert len(kv.export()) > 7 * TOKEN
    assert made(5).install(made(9, fill=0).export()) == 0


def test_copies_of_other_shards_are_refused() -> None:
    kv = made(fill=3)
    assert refused(kv, made(root="cd", fill=2).export())
    assert refused(kv, made(parts=Parts(False, 0, 2, False), fill=2).export())
    assert refused(kv, made(parts=Parts(False, 1, 4, False), fill=2).export())
    narrow = KV("ab", ARCH, PARTS, "bfloat16", 4, KvBudget(1 << 20))
    assert refused(kv, narrow.export())
    assert refused(kv, made(20, fill=11).export())


def test_malformed_copies_are_refused() -> None:
    kv, good = made(fill=3), made(fill=2).export()
    size = int.from_bytes(good[:4], "big")
    fields = msgpack.unpackb(good[4 : 4 + size])

    def with_fields(*changed: object) -> bytes:
        header: bytes = msgpack.packb(list(changed))
        return len(header).to_bytes(4, "big") + header + good[4 + size :]

    assert refused(kv, b"")
    assert refused(kv, b"\xff\xff\xff\xff" + good[4:])
    assert refused(kv, good[:-1])
    assert refused(kv, good + b"x")
    assert refused(kv, (3).to_bytes(4, "big") + b"\xc1\xc1\xc1")
    assert refused(kv, (1).to_bytes(4, "big") + b"\x01")
    for length in (-1, 11, True, "2", None, 1 << 60):
        assert refused(kv, with_fields(*fields[:6], length, *fields[7:]))
    assert refused(kv, with_fields(*fields[:-1]))
    header = msgpack.packb([[0] * 1000] * 100)
    with pytest.raises(EngineError, match="announces a header"):
        kv.install(len(header).to_bytes(4, "big") + header)
    assert kv.install(with_fields(*fields)) == 2


def test_a_length_that_a_slice_would_clamp_is_refused() -> None:
    kv = made(fill=3)
    for fill, lie in ((10, 11), (9, -1)):
        state = made(fill=fill).export()
        size = int.from_bytes(state[:4], "big")
        fields = msgpack.unpackb(state[4 : 4 + size])
        header: bytes = msgpack.packb([*fields[:6], lie, *fields[7:]])
        assert refused(kv, len(header).to_bytes(4, "big") + header + state[4 + size :])


def test_values_that_are_not_finite_are_refused() -> None:
    kv, poisoned = made(fill=3), made(fill=2)
    poisoned.values[1][1, 1, 0] = float("nan")
    assert refused(kv, poisoned.export())


def test_copying_within_the_worker() -> None:
    source, target, small = made(fill=8), made(), made(7)
    target.copy_from(source)
    assert target.export() == source.export()
    with pytest.raises(EngineError):
        small.copy_from(source)
