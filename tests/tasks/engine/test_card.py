"""The kernels of a graphics card against the code of torch.

They run on a card if this machine has one, else in Triton's interpreter if Triton is installed.
"""

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from shoal.tasks.engine.compute import quantised, torchcompute
from shoal.tasks.engine.compute.device import ComputeDevice
from shoal.tasks.engine.compute.products import (
    Layout,
    Linear,
    PlainLinear,
    Quantised,
    QuantisedLinear,
)
from shoal.tasks.engine.compute.torchcompute import TorchCompute
from shoal.tasks.engine.core import Core
from shoal.tasks.engine.interface import DType, Sampling, Span

CARD = torch.cuda.is_available()
if not CARD:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported
TRITON = importlib.util.find_spec("triton") is not None
if TRITON:
    from shoal.tasks.engine.compute.gpu import launch, trial
    from shoal.tasks.engine.compute.gpu.card import CardCompute

pytestmark = pytest.mark.skipif(not TRITON, reason="Triton is not installed")

DTYPES: Sequence[DType] = (
    ("float32", "bfloat16") if CARD else ("float32",)
)  # no bf16 in interpreter
FAMILIES = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"sliding_window": 24},
}
TOKENS = tuple((7 * at) % 101 for at in range(50 if CARD else 20))
SIZE = len(TOKENS)
NEW = 14 if CARD else 4


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ComputeDevice:
    if CARD:
        return ComputeDevice("cuda:0")
    monkeypatch.setattr(quantised, "linear_of", lambda weight, bias, **_: plain(weight, bias))
    # The interpreter computes at once, and torch would not know what to wait for.
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: None)
    made = ComputeDevice("cpu")
    made.is_cpu = False
    return made


def plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    return PlainLinear(weight, bias)


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch, device: ComputeDevice) -> None:
    """Cores compute with the kernels."""
    monkeypatch.setattr(Core, "compute", lambda _, arch, shard: CardCompute(arch, shard, device))


def texts(driver: Any, made: Any, dtype: DType, sampling: Sampling, mates: int) -> Any:
    """The tokens of one session beside others, all of which begin with different prompts."""
    engine = driver(made.shard(dtype=dtype))
    spans = []
    for number in range(mates + 1):
        name, tokens = engine.open(b"%d" % number), TOKENS[number:]
        spans.append(
            Span(name, 0, 0, len(tokens), tokens=tokens, want="token", steps=NEW, sampling=sampling)
        )
    for span in spans:
        engine.submit(span)
    events = engine.events()
    mine = [each for each in events if each.session == spans[0].session]
    return [each.token for each in mine], [each.logprob for each in mine]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_are_those_of_torch(
    checkpoint: Any, driver: Any, on_card: None, family: str
) -> None:
    made = checkpoint(family, **FAMILIES[family])
    tokens, _ = texts(driver, made, "float32", Sampling(), 0)
    assert tokens == made.greedy(TOKENS, NEW)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 20, 0.9, seed=7)])
def test_a_row_is_the_same_beside_others(
    checkpoint: Any, driver: Any, on_card: None, dtype: DType, sampling: Sampling
) -> None:
    made = checkpoint("Llama")
    assert texts(driver, made, dtype, sampling, 0) == texts(
        driver, made, dtype, sampling, 4 if CARD else 1
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prompt_in_parts_is_the_same(
    checkpoint: Any, driver: Any, on_card: None, dtype: DType
) -> None:
    made = checkpoint("Qwen3", head_dim=16)
    whole = driver(made.shard(dtype=dtype))
    name = whole.open(b"a")
    expected = whole.hidden(Span(name, 0, 0, SIZE, tokens=TOKENS, want="logits"))
    for cut in (1, 16, 33) if CARD else (17,):
        parts = driver(made.shard(dtype=dtype))
        name = parts.open(b"a")
        found = b"".join(
            bytes(
                parts.hidden(
                    Span(name, 0, first, end - first, tokens=TOKENS[first:end], want="logits")
                )
            )
            for first, end in ((0, cut), (cut, SIZE))
        )
        if CARD:
            assert found == bytes(expected)
        else:  # numpy, with which the interpreter multiplies, is not the same for any rows
            ours, theirs = (torch.frombuffer(bytearray(x), dtype=torch.float32)
                            for x in (found, bytes(expected)))  # fmt: skip
            assert torch.allclose(ours, theirs, atol=1e-4)


def test_logits_are_those_of_transformers(checkpoint: Any, chain: Any, on_card: None) -> None:
    for family, options in FAMILIES.items():
        made = checkpoint(family, **options)
        found = chain(made, made.splits(2)).logits(TOKENS)
        assert torch.allclose(found, made.logits(TOKENS), atol=1e-4)


def test_the_torch_code_is_another(checkpoint: Any, driver: Any, on_card: None) -> None:
    """These tests would show nothing if the kernels were not used."""
    made = checkpoint("Llama")
    engine = driver(made.shard())
    assert isinstance(engine.shard.compute, CardCompute)
    assert "triton" in engine.shard.compute.exactness
    assert torchcompute.TorchCompute is TorchCompute


@pytest.mark.parametrize("layout", ["int8", "int4"])
def test_products_with_quantised_matrices(device: ComputeDevice, layout: Layout) -> None:
    made, where = torch.Generator().manual_seed(1), device.torch
    outputs, inputs = (600, 1536) if CARD else (70, 160)
    size = inputs if layout == "int8" else inputs // 2
    low, high, kind = (-128, 128, torch.int8) if layout == "int8" else (0, 256, torch.uint8)
    q = torch.randint(low, high, (outputs, size), generator=made).to(kind).to(where)
    scale = torch.rand(outputs, inputs // 32, generator=made).half().to(where)
    minimum = torch.randn(outputs, inputs // 32, generator=made).half().to(where)
    bias = torch.randn(outputs, generator=made).to(where)
    weight = Quantised(layout, q, scale, minimum if layout == "int4" else None)
    linear = QuantisedLinear(weight, bias)
    x = torch.randn(33, inputs, generator=made).to(where)
    expected = linear(x)
    product = launch.text_rows(x, linear)
    found = product.sums.sum(0)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-3 * float(expected.abs().max()))
    # numpy, with which the interpreter multiplies, is not the same for any number of rows.
    same = torch.equal if CARD else torch.allclose
    assert same(launch.text_rows(x[:1], linear).sums[:, 0], product.sums[:, 0])
    whole = launch.dequantised(linear, torch.float32).weight
    assert torch.equal(whole, weight.dequantised(0, outputs, torch.float32))


def test_kernels_are_tried_before_they_are_used(
    device: ComputeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    if CARD:
        assert trial.fault(device) == ""
    trial.fault.cache_clear()

    def broken(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(launch, "text_rows", broken)
    assert trial.fault(device) == "the kernel for plain weights: Failed to find C compiler"
    trial.fault.cache_clear()

    def other(x: torch.Tensor, linear: Linear) -> launch.Product:
        return launch.Product(linear(x)[None] + 9, 1)

    monkeypatch.setattr(launch, "text_rows", other)
    assert "something else" in trial.fault(device)
    trial.fault.cache_clear()
