"""An adapter as the subject of a run: exact averaging, and the loss of a chain."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
import trio

from shoal.tasks.engine.adapters import AdapterTerms, module_shapes
from shoal.tasks.engine.families import architecture
from shoal.tasks.tuning.averaging.aggregate import Weighed, aggregate, norm_of
from shoal.tasks.tuning.averaging.errors import BadUpdate
from shoal.tasks.tuning.averaging.lora import LoraTensors
from shoal.tasks.tuning.interface import AdapterTensors, Batch, Gradients, TensorName
from shoal.tasks.tuning.trainer.settings import Wishes, settle
from shoal.tasks.tuning.trainer.subject import AdapterSubject
from shoal.tasks.tuning.trainer.together import HeldOutJudge

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
ARCH = architecture(CONFIG)
TERMS = AdapterTerms(
    base="ab" * 32,
    rank=4,
    alpha=8.0,
    rslora=False,
    dtype="F32",
    modules=("q_proj", "down_proj"),
    layers=(0, 1),
)


def test_the_tensors_come_back_and_start_as_nothing() -> None:
    lora = LoraTensors("ours", TERMS, ARCH)
    adapter = lora.adapter(lora.start())
    shapes = module_shapes(ARCH)
    assert len(adapter.tensors) == 8 and len(lora.trained) == 4
    for name, tensor in adapter.tensors.items():
        outputs, inputs = shapes[name.module]
        assert tensor.shape == ((4, inputs) if name.side == "A" else (outputs, 4))
        assert bool(tensor.any()) == (name.side == "A")
    values = np.arange(lora.run.values, dtype=np.float32)
    np.testing.assert_array_equal(lora.flat(lora.tensors(values)), values)
    with pytest.raises(BadUpdate) as refused:
        lora.adapter(values[1:])
    assert refused.value.code == "wrong-shape"
    with pytest.raises(BadUpdate) as refused:
        lora.flat({TensorName(0, "q_proj", "B"): np.zeros((3, 3), np.float32)})
    assert refused.value.code == "wrong-shape"


def test_all_members_draw_the_same_a_and_other_runs_another() -> None:
    one, same = LoraTensors("ours", TERMS, ARCH), LoraTensors("ours", TERMS, ARCH)
    other = LoraTensors("ours", replace_rank(TERMS), ARCH)
    name = TensorName(1, "down_proj", "A")
    drawn = [each.adapter(each.start()).tensors[name] for each in (one, same, other)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert one.run.id == same.run.id != other.run.id
    assert not np.array_equal(drawn[0], drawn[2][:4])
    assert np.abs(drawn[0]).max() <= 1 / np.sqrt(48) and abs(float(drawn[0].mean())) < 0.05


def replace_rank(terms: AdapterTerms) -> AdapterTerms:
    return AdapterTerms(
        terms.base, 5, terms.alpha, terms.rslora, terms.dtype, terms.modules, terms.layers
    )


def test_the_mean_of_b_is_the_mean_of_the_adapters() -> None:
    """B A of the average equals the average of B A, which is not so if A differs."""
    lora, random = LoraTensors("ours", TERMS, ARCH), np.random.default_rng(1)
    values = [random.standard_normal(lora.run.values, np.float32) for _ in range(3)]
    mean = aggregate([Weighed(each, norm_of(each), 1, 0) for each in values], trim=False)
    a, b = TensorName(0, "q_proj", "A"), TensorName(0, "q_proj", "B")

    def product(vector: np.ndarray) -> np.ndarray:
        tensors = lora.adapter(vector).tensors
        return np.asarray(tensors[b] @ tensors[a])

    np.testing.assert_allclose(
        product(mean), np.mean([product(each) for each in values], axis=0), rtol=1e-4, atol=1e-5
    )


class Counted:
    """A chain whose loss is the sum of the adapter's values."""

    async def gradients(
        self, batch: Batch, adapter: AdapterTensors, names: Collection[TensorName] | None = None
    ) -> Gradients:
        raise NotImplementedError

    async def loss(self, batch: Batch, adapter: AdapterTensors) -> tuple[float, int]:
        await trio.lowlevel.checkpoint()
        of_b = [tensor for name, tensor in adapter.tensors.items() if name.side == "B"]
        return float(sum(tensor.sum() for tensor in of_b)), batch.targets.size

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def test_the_judge_asks_the_chain_for_the_mean_loss() -> None:
    lora, wishes = LoraTensors("ours", TERMS, ARCH), Wishes(rank=4, modules=TERMS.modules)
    chosen = settle(wishes, TERMS.base, ARCH, 16, 40, 1)
    batch = Batch(np.zeros((2, 5), np.int32), np.zeros((2, 5), np.int32))
    judge = HeldOutJudge(AdapterSubject(chosen, module_shapes(ARCH), Counted()), lora, batch)
    found = trio.run(judge.loss, np.ones(lora.run.values, np.float32))
    assert found == pytest.approx(lora.run.values / 10)


def test_terms_that_make_no_sense_are_refused() -> None:
    run = LoraTensors("ours", TERMS, ARCH).run
    for change in ({"values": 0}, {"patience": 1.0}, {"inner_steps": 0}, {"least": 0}):
        with pytest.raises(ValueError, match=r"out of range|expected"):
            replace(run, **change)
