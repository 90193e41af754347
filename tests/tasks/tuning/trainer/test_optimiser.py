"""AdamW against torch's, initial tensors, and gradients that are refused."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from shoal.tasks.engine.adapters import module_shapes
from shoal.tasks.tuning.interface import AdapterTensors, Batch, Gradients, TensorName, of_adapter
from shoal.tasks.tuning.trainer import optimiser
from shoal.tasks.tuning.trainer.errors import BadGradients
from tests.tasks.tuning.numpy_chain import ARCH, VOCABULARY, NumpyChain, settings

SHAPES = module_shapes(ARCH)
B0 = TensorName(0, "q_proj", "B")


def batch(seed: int = 1) -> Batch:
    random = np.random.default_rng(seed)
    tokens, targets = random.integers(0, VOCABULARY, (2, 3, 8)).astype(np.int32)
    return Batch(tokens, targets)


def test_the_gradients_of_the_stand_in_are_true() -> None:
    """The tests of the trainer would prove little otherwise."""
    learned = optimiser.begin(settings(), SHAPES)
    for name, tensor in of_adapter(learned.tensors).items():
        if name.side == "B":
            tensor += np.random.default_rng(2).normal(0, 0.1, tensor.shape).astype(np.float32)
    chain, one = NumpyChain(), batch()
    found = chain.computed(one, AdapterTensors(settings().terms, of_adapter(learned.tensors)))
    for name in of_adapter(learned.tensors):
        losses = []
        for step in (1e-2, -1e-2):
            moved = {**of_adapter(learned.tensors), name: learned.tensors[name].copy()}
            moved[name][1, 1] += step
            losses.append(chain.computed(one, AdapterTensors(settings().terms, moved)).loss)
        assert found.tensors[name][1, 1] == pytest.approx((losses[0] - losses[1]) / 2e-2, rel=0.02)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_torch(decay: float) -> None:
    chosen = settings(decay=decay, warmup=0)
    learned = optimiser.begin(chosen, SHAPES)
    theirs = {
        name: torch.nn.Parameter(torch.tensor(each))
        for name, each in of_adapter(learned.tensors).items()
    }
    adamw = torch.optim.AdamW(theirs.values(), lr=1.0, weight_decay=decay, eps=1e-8)
    for step in range(6):
        one = batch(step)
        found = NumpyChain().computed(
            one, AdapterTensors(chosen.terms, of_adapter(learned.tensors))
        )
        norm = optimiser.check(found, learned, one.tokens.size)
        for name, each in theirs.items():
            each.grad = torch.tensor(found.tensors[name] / found.counted)
        total = torch.nn.utils.clip_grad_norm_(list(theirs.values()), 1.0)
        assert norm == pytest.approx(float(total), rel=1e-5)
        adamw.param_groups[0]["lr"] = chosen.rate_at(step)
        adamw.step()
        optimiser.apply(learned, found, norm, chosen)
    for name, each in theirs.items():
        np.testing.assert_allclose(learned.tensors[name], each.detach(), rtol=1e-4, atol=1e-6)


def test_a_begins_as_in_peft_and_b_with_zeros() -> None:
    tensors = optimiser.begin(settings(rank=64), SHAPES).tensors
    a = tensors[TensorName(1, "q_proj", "A")]
    bound = 1 / math.sqrt(a.shape[1])
    assert abs(a).max() <= bound and abs(a).max() > 0.99 * bound
    assert abs(a.mean()) < 0.03 * bound and a.std() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert not tensors[B0].any() and tensors[B0].dtype == a.dtype == np.float32
    assert (a != tensors[TensorName(0, "q_proj", "A")]).any()
    other = optimiser.begin(settings(rank=64, seed=4), SHAPES).tensors
    assert (a != other[TensorName(1, "q_proj", "A")]).any()


def changed(found: Gradients, tensor: Any) -> Gradients:
    return replace(found, tensors={**found.tensors, B0: tensor})


def test_bad_gradients_are_refused_before_anything_changes() -> None:
    learned, one = optimiser.begin(settings(), SHAPES), batch()
    good = NumpyChain().computed(one, AdapterTensors(settings().terms, of_adapter(learned.tensors)))
    norm = optimiser.check(good, learned, 24)
    learned.norms = [norm] * 5
    b = good.tensors[B0]
    spoiled = b.copy()
    spoiled[0, 0] = np.nan
    rest = {name: each for name, each in good.tensors.items() if name != B0}
    cases = {
        "not finite": changed(good, spoiled),
        "shape": changed(good, b.T.copy()),
        "float32": changed(good, b.astype(np.float64)),
        "plausible": changed(good, b * np.float32(1e6)),
        "other tensors": replace(good, tensors=rest),
        "positions": replace(good, counted=23),
        "loss": replace(good, loss=float("nan")),
        "loss is -1": replace(good, loss=-1.0),
    }
    before = {name: each.copy() for name, each in of_adapter(learned.tensors).items()}
    for words, case in cases.items():
        with pytest.raises(BadGradients, match=words):
            optimiser.check(case, learned, 24)
    assert all((learned.tensors[name] == each).all() for name, each in before.items())
    with pytest.raises(BadGradients, match="finite"):
        optimiser.check(changed(good, b * np.float32(np.inf)), learned, 24)


def test_the_rate_rises_and_falls() -> None:
    chosen = settings(steps=100, warmup=10, rate=1.0)
    rates = [chosen.rate_at(step) for step in range(100)]
    assert rates[:10] == sorted(rates[:10]) and rates[0] == pytest.approx(1 / 11)
    assert rates[10] == 1.0 and rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_a_norm_after_data_that_is_known_by_heart_is_no_lie() -> None:
    """Its gradients are nearly 0, and those of the next row are not."""
    learned, one = optimiser.begin(settings(), SHAPES), batch()
    good = NumpyChain().computed(one, AdapterTensors(settings().terms, of_adapter(learned.tensors)))
    learned.norms = [1e-8] * 5
    quarter = {name: each * np.float32(0.25) for name, each in good.tensors.items()}
    assert 0.1 < optimiser.check(replace(good, tensors=quarter), learned, 24) < 1
    big = changed(good, good.tensors[B0] * np.float32(1e3))
    with pytest.raises(BadGradients, match="plausible"):
        optimiser.check(big, learned, 24)


def test_the_norm_does_not_depend_on_the_order_of_the_tensors() -> None:
    """A chain's order is that of a set, which differs between processes."""
    many = settings(modules=("q_proj", "k_proj", "v_proj", "o_proj"))
    learned = optimiser.begin(many, SHAPES)
    random = np.random.default_rng(3)
    for attempt in range(20):
        tensors = {
            name: random.normal(0, 10.0 ** random.integers(-3, 3), each.shape).astype(np.float32)
            for name, each in of_adapter(learned.tensors).items()
        }
        norms = set[float]()
        for _ in range(10):
            names = list(tensors)
            random.shuffle(names)
            found = Gradients(1.0, 5 + attempt, {name: tensors[name] for name in names})
            norms.add(optimiser.check(found, replace(learned, norms=[]), 5 + attempt))
        assert len(norms) == 1
