"""Settings that follow from what a user asked for, the model and the data."""

import hashlib
from dataclasses import replace as with_fields
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.tasks.engine import families
from shoal.tasks.engine.adapters import module_shapes
from shoal.tasks.engine.families import Architecture
from shoal.tasks.engine.families.architecture import Experts
from shoal.tasks.tuning.interface import WeightName
from shoal.tasks.tuning.trainer import defaults
from shoal.tasks.tuning.trainer.checkpoint import run_digest
from shoal.tasks.tuning.trainer.errors import TuningError
from shoal.tasks.tuning.trainer.settings import (
    TuningSettings,
    Wishes,
    check_wishes,
    default_rate,
    held_out_rows,
    parts_without_backward,
    settle,
)
from shoal.transport.message import pack
from tests.tasks.tuning.numpy_chain import ARCH

ROOT = "ab" * 32


def chosen(rows: int = 300, **wishes: object) -> TuningSettings:
    return settle(Wishes(**wishes), ROOT, ARCH, 64, rows, 9)  # type: ignore[arg-type]


def test_without_a_wish() -> None:
    found = chosen()
    assert (found.rank, found.alpha, found.batch, found.seed) == (16, 32.0, 8, 9)
    assert found.modules[0] == "q_proj" and len(found.modules) == 7
    assert (found.held_out, found.steps, found.warmup) == (30, 3 * 34, 5)
    assert found.terms.layers == (0, 1) and found.terms.scale == 2.0


def test_little_data_is_passed_more_often_and_much_data_less_looked_at() -> None:
    assert chosen(rows=40).steps == 50  # 10 times 5 steps
    assert chosen(rows=100).steps == defaults.STEPS_LEAST
    much = chosen(rows=100_000)
    assert much.held_out == defaults.HELD_OUT_ROWS and much.look == much.steps // defaults.LOOKS
    assert chosen(rows=1300, steps=50).look == 20  # 128 rows take as long as 4 steps


def test_wishes() -> None:
    found = chosen(rank=4, alpha=3.0, epochs=2.0, batch=16, rate=0.5, warmup=0, seed=0,
                   modules=("v_proj", "q_proj"), held_out=0.5, decay=0.1)  # fmt: skip
    assert (found.rank, found.alpha, found.batch, found.rate) == (4, 3.0, 16, 0.5)
    assert found.modules == ("q_proj", "v_proj") and found.steps == 2 * -(-172 // 16)
    assert (found.warmup, found.seed, found.held_out, found.decay) == (0, 0, 128, 0.1)
    assert chosen(steps=7).steps == 7


@pytest.mark.parametrize(
    ("share", "rows", "held"),
    [(None, 9, 0), (None, 10, 1), (0.0, 1000, 0), (0.9, 2, 1), (0.9, 1, 0), (0.01, 20, 1)],
)
def test_held_out_rows(share: float | None, rows: int, held: int) -> None:
    assert held_out_rows(share, rows) == held


def test_the_rate_falls_with_the_width() -> None:
    assert default_rate(256) == 3.9e-3 and default_rate(4096) == 2.4e-4 and default_rate(8) == 0.01


def test_what_a_model_does_not_have() -> None:
    for wishes, code in (
        (Wishes(modules=("qkv_proj",)), "bad-modules"),
        (Wishes(length=65), "bad-length"),
    ):
        with pytest.raises(TuningError) as raised:
            check_wishes(wishes, ARCH, 64)
        assert raised.value.code == code
    check_wishes(Wishes(modules=("q_proj",), length=64), ARCH, 64)


def test_models_without_modules_are_refused() -> None:
    with pytest.raises(TuningError, match="no modules that an adapter could change"):
        check_wishes(Wishes(), _recurrent(), 64)


def _recurrent() -> Architecture:
    return families.architecture(
        {
            "model_type": "qwen3_next", "hidden_size": 64, "intermediate_size": 64,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "vocab_size": 64, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
            "hidden_act": "silu", "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
            "linear_value_head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
            "decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": [],
            "tie_word_embeddings": False,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("experts", {"kinds": "experts"}),
        ("attention sinks", {"sinks": True}),
        ("gated attention", {"gated_attention": True}),
    ],
)
def test_models_with_parts_without_derivatives_are_refused(
    words: str, changes: dict[str, Any]
) -> None:
    """They have modules that an adapter could change, but no node can compute a step."""
    if changes.get("kinds"):
        (kind,) = set(ARCH.kinds)
        experts = Experts(count=4, active=2, wide=8)
        changes = {"kinds": tuple(with_fields(kind, experts=experts) for _ in ARCH.kinds)}
    arch = with_fields(ARCH, **changes)
    assert parts_without_backward(arch) == [words] and module_shapes(arch)
    with pytest.raises(TuningError, match=words) as raised:
        check_wishes(Wishes(), arch, 64)
    assert raised.value.code == "no-backward"


def test_full_training_has_no_adapter() -> None:
    found = chosen(full=True)
    assert (found.rank, found.alpha, found.modules, found.full) == (0, 0.0, (), True)
    assert found.rate == default_rate(ARCH.hidden, full=True) and found.every == 24
    assert found.trains(WeightName("model.norm.weight"))
    for change in ({"rank": 4}, {"full": False}, {"modules": ("q_proj",)}):
        with pytest.raises(ValueError, match="rank, alpha and modules"):
            replace(found, **change).check()
    with pytest.raises(ValueError, match="rank, alpha and modules"):
        replace(chosen(), full=True).check()


def test_checkpoints_of_adapters_from_before_full_training_are_still_theirs() -> None:
    fields = chosen().fields()
    assert "full" not in fields
    old = hashlib.sha256(pack(["shoal-tuning/1", fields, "cd" * 32])).hexdigest()
    assert run_digest(chosen(), "cd" * 32) == old
    assert run_digest(chosen(full=True), "cd" * 32) != old
