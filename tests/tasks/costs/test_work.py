"""The work of a step: what a formula says, against counting."""

from dataclasses import replace

import pytest

from shoal.tasks.costs.work import EqualRows, ModelWork
from shoal.tasks.engine.families import Config, architecture, weight_bytes
from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.layouts import INT4, INT8, Layouts

LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 600,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 200,
}
MIXTURE: Config = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 600,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "vocab_size": 200,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}


@pytest.mark.parametrize("window", [0, 1, 5, 40, 1000])
@pytest.mark.parametrize(("count", "position"), [(1, 0), (1, 70), (16, 0), (16, 3), (30, 37)])
def test_pairs_and_positions_are_those_that_counting_finds(
    count: int, position: int, window: int
) -> None:
    rows = EqualRows(count, position, sessions=3)
    seen = [
        [other for other in range(row + 1) if not window or other > row - window]
        for row in range(position, position + count)
    ]
    assert rows.pairs(window) == 3 * sum(map(len, seen))
    read = len({other for each in seen for other in each})
    assert rows.read(window) == 3 * read


def test_the_weights_of_a_shard_are_those_that_it_loads() -> None:
    arch = architecture(LLAMA)
    for parts in (Parts(False, 0, 3, True), Parts(False, 1, 2, False), Parts(False, 0, 0, True)):
        work = ModelWork(arch, "float32").of(parts)
        assert work.weight_bytes + work.head_bytes == weight_bytes(arch, parts, "float32")
        assert work.row_flops + work.head_flops == work.bytes(1, 1) / 2


def test_the_parts_of_a_model_add_up_to_it() -> None:
    model = ModelWork(architecture(LLAMA), "bfloat16")
    whole = model.of(Parts(True, 0, 3, True))
    parts = [model.of(Parts(True, 0, 1, False)), model.of(Parts(False, 1, 3, True))]
    rows = (EqualRows(5, 100), EqualRows(1, 7))
    assert whole.flops(6, 2) == sum(each.flops(6, 2) for each in parts)
    assert whole.kv_bytes(rows) == sum(each.kv_bytes(rows) for each in parts)
    assert whole.pair_flops(rows) == sum(each.pair_flops(rows) for each in parts)


def test_a_row_of_a_mixture_reads_the_experts_that_it_chooses() -> None:
    arch = architecture(MIXTURE)
    work = ModelWork(arch, "float32").of(Parts(False, 0, 2, False))
    everything = weight_bytes(arch, Parts(False, 0, 2, False), "float32")
    assert work.weight_bytes + work.expert_bytes == everything
    one, many = work.bytes(1, 0), work.bytes(500, 0)
    assert one == work.weight_bytes + work.expert_bytes * 2 / 8
    assert many == pytest.approx(everything)
    assert work.row_flops == pytest.approx(one / 2)


def test_quantised_weights_count_as_they_are_stored() -> None:
    arch = architecture(LLAMA)
    mixed = replace(arch, layouts=Layouts(INT4, {"model.layers.1.mlp.down_proj": INT8}))
    for parts in (Parts(False, 0, 3, True), Parts(False, 1, 2, False)):
        work = ModelWork(mixed, "float32").of(parts)
        assert work.precision == "int4"
        assert work.weight_bytes + work.head_bytes == weight_bytes(mixed, parts, "float32")
    alike, other = (ModelWork(mixed, "float32").of(Parts(False, n, n + 1, False)) for n in (0, 1))
    assert alike.weight_bytes < other.weight_bytes
    assert alike.row_flops == other.row_flops
