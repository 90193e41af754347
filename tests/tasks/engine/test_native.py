"""Native kernels against torch, for each instruction set of this machine."""

import platform
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from shoal.tasks.engine.compute.native import check, choice, library
from shoal.tasks.engine.compute.native.library import FLOAT32, INT4, INT8, Kernels, NativeLinear
from shoal.tasks.engine.compute.products import linear_of_quantised
from shoal.tasks.engine.compute.torchcompute import TorchCompute, computing
from shoal.tasks.engine.families import architecture, shapes
from shoal.tasks.engine.interface import DType, LoadShard
from shoal.tasks.engine.kernels import VARIABLE, library_path
from shoal.tasks.engine.kv.blocks import BlockPool, BlockTable
from shoal.tasks.engine.layouts import LAYOUTS
from shoal.tasks.engine.shard import Piece
from tests.marks import in_ci
from tests.tasks.engine import quantised_model
from tests.tasks.engine.test_products import quantised

PATH = library_path()
SHAPES = [(130, 96), (512, 256), (64, 2048 + 64), (300, 160), (7, 32)]
ROWS = ((0, 1), (3, 1), (1, 2), (2, 3), (5, 4), (0, 5), (7, 6), (8, 7), (1, 8), (3, 33), (0, 255))


def available(name: str) -> bool:
    """Whether the machine has the instruction set of kernels."""
    try:
        return PATH is not None and bool(Kernels(PATH, name, 1))
    except ValueError:
        return False


SETS = list(filter(available, (*choice.SETS.get(platform.machine(), ()), "portable")))

pytestmark = pytest.mark.skipif(PATH is None, reason="no compiler built the kernels")


@pytest.fixture(params=[(name, threads) for name in SETS for threads in (1, 2)], ids=str)
def kernels(request: Any) -> Iterator[Kernels]:
    assert PATH is not None
    name, threads = request.param
    yield Kernels(PATH, name, threads)
    Kernels(PATH, "portable", torch.get_num_threads())  # the number of threads is for all


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def exact(kernels: Kernels, kind: int) -> bool:
    """Whether rows are multiplied without being rounded to the kind of the matrix."""
    if kind in (INT4, INT8):
        return kernels.name in ("portable", "neon")
    return kind == FLOAT32 or kernels.name != "avx512bf16"


@pytest.mark.parametrize(("outputs", "inputs"), [*SHAPES, (50, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_that_of_torch(
    kernels: Kernels, dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    torch.manual_seed(inputs)
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs)
    linear, x = library.dense(kernels, weight, bias), torch.randn(600, inputs)
    expected = x.double() @ weight.double().T + bias.double()
    allowed = 1e-6 if exact(kernels, library.KINDS[dtype]) else 4e-3
    assert relative(linear(x), expected) < allowed
    rounded = x.bfloat16()
    expected = rounded.double() @ weight.double().T + bias.double()
    assert relative(linear(rounded), expected) < 3e-3
    strided = torch.randn(4, 2 * inputs)[:, ::2]
    assert torch.equal(linear(strided), linear(strided.contiguous()))
    assert linear(x[:0]).shape == (0, outputs)
    same_rows(linear, x)
    assert torch.equal(linear.rows(torch.tensor([outputs - 1, 0])), weight[[outputs - 1, 0]])


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize(("kind", "group"), [(INT8, 32), (INT8, 16), (INT4, 32)])
def test_a_quantised_product_is_that_of_the_dequantised_matrix(
    kernels: Kernels, kind: int, group: int, outputs: int, inputs: int
) -> None:
    weight = quantised("int8" if kind == INT8 else "int4", outputs, inputs, group)
    parts = [part for part in (weight.q, weight.scale, weight.minimum) if part is not None]
    linear = NativeLinear(kernels, *kernels.pack(kind, group, (outputs, inputs), parts), None)
    x = torch.randn(600, inputs)
    expected = x.double() @ weight.dequantised(0, outputs, torch.float64).T
    assert relative(linear(x), expected) < (2e-6 if exact(kernels, kind) else 2e-2)
    same_rows(linear, x)
    x[3, 5] = torch.nan
    out = linear(x[:6])
    assert out[3].isnan().all()
    assert out[[0, 1, 2, 4, 5]].isfinite().all()


def same_rows(linear: NativeLinear, x: torch.Tensor) -> None:
    """Check that rows have the same bits beside any number of other rows."""
    whole = linear(x)
    for first, count in ROWS:
        assert torch.equal(linear(x[first : first + count]), whole[first : first + count])


def test_linear_of_quantised_uses_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = quantised("int4", 70, 64), torch.randn(3, 64)
    parts = (weight.q, weight.scale, weight.minimum, torch.randn(70))
    assert PATH is not None
    found = Kernels(PATH, SETS[0], 1)
    monkeypatch.setattr(choice, "kernels", lambda: found)
    fast = linear_of_quantised("int4", *parts)
    monkeypatch.setattr(choice, "kernels", lambda: None)
    slow = linear_of_quantised("int4", *parts)
    assert isinstance(fast, NativeLinear)
    assert not isinstance(slow, NativeLinear)
    assert relative(fast(x), slow(x).double()) < 2e-2


# ---- whole steps


def compute(shard: LoadShard, monkeypatch: pytest.MonkeyPatch, found: Kernels | None) -> Any:
    """The shard with some kernels, or without, and a pool for 40 blocks. How fast they are does not
    matter."""
    monkeypatch.setattr(choice, "choice", lambda: choice.KernelsInUse(found, {}, {}))
    made = TorchCompute(architecture(shard.config), shard)
    made.allocate(40, 0)
    assert (made.steps is None) == (found is None)
    return made


class Session:
    """One session on a compute."""

    def __init__(self, made: TorchCompute, pool: BlockPool, tokens: Sequence[int]) -> None:
        self.made, self.tokens = made, np.asarray(tokens)
        self.table = BlockTable(pool, len(tokens))
        self.table.prepare(0, len(tokens))

    def piece(self, first: int, end: int, adapter: Any = None) -> Piece:
        decode = end - first == 1
        return Piece(self.table, self.tokens, first, end - first, first, decode, adapter)


CASES = {
    "plain": ("Llama", {"head_dim": 16}),
    "norms": ("Qwen3", {"head_dim": 32}),
    "window": ("Mistral", {"head_dim": 16, "sliding_window": 21}),
    "many heads": (
        "Llama",
        {"head_dim": 48, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 1},
    ),
}


LONG = {"max_position_embeddings": 512}
SOME = [("plain", "float32"), ("norms", "bfloat16"), ("window", "float32")]
SOME += [("many heads", "bfloat16")]
BOTH = [(case, dtype) for case in CASES for dtype in ("float32", "bfloat16")]
STEPS = SOME + in_ci(*(each for each in BOTH if each not in SOME))
# Matrices of whole groups alone are quantised, so every product of these shapes is.
WIDE = {"hidden_size": 64, "intermediate_size": 96}
SOME = [("int8/32", "float32"), ("int4/32", "bfloat16")]
BOTH = [(layout, dtype) for layout in LAYOUTS for dtype in ("float32", "bfloat16")]
QUANTISED = SOME + in_ci(*(each for each in BOTH if each not in SOME))


def text(seed: int, count: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(101) for _ in range(count)]


def logits_of(made: Any, dtype: DType, monkeypatch: pytest.MonkeyPatch, found: Any) -> torch.Tensor:
    """The logits of a prompt of 70 tokens and of 30 single ones after it."""
    one, tokens = compute(made.shard(dtype=dtype), monkeypatch, found), text(3, 100)
    with computing():
        session = Session(one, BlockPool(40), tokens)
        rows = [one.forward([session.piece(0, 70)])[0]]
        rows += [one.forward([session.piece(i, i + 1)])[0] for i in range(70, 100)]
        out: torch.Tensor = one.logits(torch.cat(rows))
        return out.double()


@pytest.mark.parametrize(("case", "dtype"), STEPS)
def test_steps_are_those_of_torch(
    case: str, dtype: DType, checkpoint: Any, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, config = CASES[case]
    made = checkpoint(family, **LONG, **config, dtype=getattr(torch, dtype))
    reference = logits_of(made, "float32", monkeypatch, None)
    ours = relative(logits_of(made, dtype, monkeypatch, kernels), reference)
    if dtype == "float32":
        assert ours < 3e-5
    else:  # at most as far from the exact result as torch, which rounds more often
        assert ours < 1.1 * relative(logits_of(made, dtype, monkeypatch, None), reference)


@pytest.fixture
def quantised_checkpoint(checkpoint: Any, tmp_path: Path) -> Any:
    def make(layout: str) -> Any:
        plain = checkpoint("Qwen3", head_dim=32, **LONG, **WIDE)
        return quantised_model.quantised(
            plain, quantised_model.fitting_of(plain, LAYOUTS[layout]), tmp_path
        )

    return make


@pytest.mark.parametrize(("layout", "dtype"), QUANTISED)
def test_quantised_steps_are_those_of_torch(
    layout: str,
    dtype: DType,
    quantised_checkpoint: Any,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = quantised_checkpoint(layout)
    reference = logits_of(made, "float32", monkeypatch, None)
    ours = relative(logits_of(made, dtype, monkeypatch, kernels), reference)
    if not exact(kernels, INT8):  # each product rounds its inputs to 8 bits
        assert ours < 0.04
    elif dtype == "float32":
        assert ours < 3e-5
    else:
        assert ours < 1.1 * relative(logits_of(made, dtype, monkeypatch, None), reference)


def same_bits(made: Any, dtype: DType, monkeypatch: pytest.MonkeyPatch, found: Kernels) -> None:
    """Check that the rows of a text have the same bits in parts, and beside those of another."""
    one = compute(made.shard(dtype=dtype), monkeypatch, found)
    with computing():
        pool = BlockPool(40)
        alone, other = Session(one, pool, text(5, 90)), Session(one, pool, text(6, 60))
        whole = one.forward([alone.piece(0, 80)])[0]
        decoded = one.forward([alone.piece(80, 81)])[0]
        # Old content of blocks, also if it is not finite, must not reach a row.
        one._memory.keys[:] = one._memory.values[:] = torch.nan
        parts = []
        for first, end in pairwise((0, 7, 16, 33, 35, 64, 80)):
            parts.append(one.forward([other.piece(0, 37), alone.piece(first, end)])[1])
        beside = one.forward([other.piece(37, 38), alone.piece(80, 81), other.piece(38, 60)])[1]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(beside, decoded)


@pytest.mark.parametrize(("case", "dtype"), STEPS)
def test_a_row_has_the_same_bits_in_any_step(
    case: str, dtype: DType, checkpoint: Any, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, config = CASES[case]
    made = checkpoint(family, **LONG, **config, dtype=getattr(torch, dtype))
    same_bits(made, dtype, monkeypatch, kernels)


@pytest.mark.parametrize(("layout", "dtype"), QUANTISED)
def test_a_row_of_a_quantised_model_has_the_same_bits_in_any_step(
    layout: str,
    dtype: DType,
    quantised_checkpoint: Any,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same_bits(quantised_checkpoint(layout), dtype, monkeypatch, kernels)


def test_another_order_of_blocks_and_threads_change_nothing(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PATH is not None
    made = checkpoint("Llama", head_dim=16, **LONG)
    found = []
    for threads in (1, 2, 3):
        one = compute(made.shard(), monkeypatch, Kernels(PATH, SETS[0], threads))
        with computing():
            pool = BlockPool(40)
            held = [pool.allocate(1, -1)[0] for _ in range(threads)]
            session = Session(one, pool, text(7, 300))
            pool.give_back(held)
            found.append(one.forward([session.piece(0, 300)])[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_threads_use_no_processor_while_they_wait() -> None:
    """The pool of the kernels sleeps soon after its work: one second costs at most 2 %."""
    assert PATH is not None
    found = Kernels(PATH, SETS[0], 4)
    linear, x = library.dense(found, torch.ones(1024, 1024), None), torch.ones(64, 1024)
    try:
        idle = []
        for _ in range(3):  # the threads of earlier tests may have something to end
            linear(x)
            time.sleep(0.01)
            began, used = time.monotonic(), time.process_time()
            time.sleep(0.33)
            idle.append((time.process_time() - used) / (time.monotonic() - began))
        assert min(idle) < 0.02, idle
    finally:
        Kernels(PATH, "portable", torch.get_num_threads())


# ---- when they are used


def test_a_kernel_that_differs_from_torch_is_not_used(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    original = Kernels.product

    def wrong(self: Kernels, matrix: Any, x: torch.Tensor, out: torch.Tensor) -> None:
        original(self, matrix, x, out)
        out[:, 69] = 0

    monkeypatch.setattr(Kernels, "product", wrong)
    monkeypatch.setenv(VARIABLE, SETS[0])
    choice.choice.cache_clear()
    try:
        assert choice.kernels() is None
    finally:
        choice.choice.cache_clear()
    assert "products of kind 0 differ from torch" in capfd.readouterr().err


def test_wrong_attention_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PATH is not None
    found = Kernels(PATH, SETS[0], 1)
    assert check.difference(found) is None
    monkeypatch.setattr(Kernels, "attend", lambda self, attending: None)
    assert "attention differs" in (check.difference(found) or "")


@pytest.mark.parametrize(
    ("value", "said"), [("off", ""), ("avx1024", "this processor has no `avx1024` instructions")]
)
def test_the_kernels_can_be_switched_off(
    value: str, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    choice.choice.cache_clear()
    try:
        assert choice.kernels() is None
    finally:
        choice.choice.cache_clear()
    assert said in capfd.readouterr().err


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PATH is not None
    monkeypatch.setattr(library, "VERSION", 0)
    with pytest.raises(ValueError, match="another version"):
        Kernels(PATH, "", 1)


def test_the_class_of_exactness_names_the_kernels(
    checkpoint: Any, driver: Any, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "kernels", lambda: kernels)
    found, worker = kernels, driver(checkpoint("Llama").shard())
    assert found.exactness in worker.shard.compute.exactness


@pytest.mark.parametrize("shape", [(1, 1), (64, 32), (65, 33), (200, 1)])
def test_the_padding_that_counts_is_that_of_the_kernels(
    kernels: Kernels, shape: tuple[int, int]
) -> None:
    padding = shapes._padding({"a.weight": shape})
    assert library.dense(kernels, torch.zeros(shape), None).data.nbytes == 4 * (
        shape[0] * shape[1] + padding
    )
