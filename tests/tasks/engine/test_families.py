"""config.json: what is read, what is refused; every value is hostile."""

import math
from typing import Any

import pytest

from shoal.tasks.engine import families
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families import architecture, kv_token_bytes, tensor_shapes
from shoal.tasks.engine.interface import Parts

LLAMA_3_2_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}


def changed(**values: Any) -> dict[str, Any]:
    merged = {**LLAMA_3_2_1B, **values}
    return {key: value for key, value in merged.items() if value is not ...}


def code(config: dict[str, Any]) -> str:
    with pytest.raises(EngineError) as failure:
        architecture(config)
    return failure.value.code


def test_a_real_config() -> None:
    arch = architecture(LLAMA_3_2_1B)
    assert (arch.family, arch.kv_heads, arch.head_dim, arch.tied) == ("llama", 8, 64, True)
    assert arch.kinds[0].rope.kind == "llama3" and arch.kinds[0].rope.original_context == 8192
    assert arch.windows == (0,) * 16
    assert kv_token_bytes(arch, 0, 16, "bfloat16") == 2 * 16 * 8 * 64 * 2
    whole = Parts(True, 0, 16, True)
    assert families.weight_bytes(arch, whole, "bfloat16") == 2 * 1_235_814_400


def test_both_generations_of_rotary_parameters_are_one() -> None:
    parameters = {**LLAMA_3_2_1B["rope_scaling"], "rope_theta": 500000.0}
    new = changed(rope_scaling=..., rope_theta=..., rope_parameters=parameters)
    assert architecture(new) == architecture(LLAMA_3_2_1B)


def test_defaults_are_those_of_transformers() -> None:
    bare = {
        key: LLAMA_3_2_1B[key]
        for key in LLAMA_3_2_1B
        if key
        not in ("rope_scaling", "rope_theta", "head_dim", "num_key_value_heads", "rms_norm_eps")
    }
    arch = architecture({**bare, "tie_word_embeddings": None})
    assert (arch.head_dim, arch.kv_heads, arch.eps, arch.tied) == (64, 32, 1e-6, False)
    assert (arch.kinds[0].rope.theta, arch.kinds[0].rope.kind) == (1e4, "default")
    assert architecture({**bare, "architectures": None, "model_type": "qwen3"}).head_dim == 128


def test_yarn_scales_its_tables() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    rope = architecture(changed(rope_scaling=yarn)).kinds[0].rope
    assert math.isclose(rope.attention_factor, 0.1 * math.log(4) + 1)
    rope = (
        architecture(changed(rope_scaling={**yarn, "mscale": 2, "mscale_all_dim": 1})).kinds[0].rope
    )
    assert math.isclose(rope.attention_factor, (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1))
    assert architecture(changed(rope_scaling={**yarn, "factor": None})).kinds[0].rope.factor == 4.0


def test_windows_by_family() -> None:
    window = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 14}
    assert architecture(changed(**window)).windows == (0,) * 16  # Llama has none
    qwen = changed(architectures=["Qwen2ForCausalLM"], **window)
    assert architecture(qwen).windows == (0,) * 14 + (4096,) * 2
    kinds = ["sliding_attention"] + ["full_attention"] * 15
    assert architecture({**qwen, "layer_types": kinds}).windows == (4096,) + (0,) * 15
    assert architecture({**qwen, "use_sliding_window": False}).windows == (0,) * 16
    mistral = changed(architectures=["MistralForCausalLM"])
    assert architecture(mistral).windows == (4096,) * 16
    assert architecture({**mistral, "sliding_window": None}).windows == (0,) * 16
    assert architecture({**mistral, "sliding_window": 1 << 20}).windows == (0,) * 16


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": ["LlamaModel"]},
        {"hidden_act": "gelu"},
        {"partial_rotary_factor": 0.5},
        {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
        {"rope_scaling": {"type": "mrope"}},
        {
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "layer_types": ["chunked_attention"] * 16,
        },
    ],
)
def test_what_cannot_be_computed_exactly_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EngineError) as failure:
        architecture(changed(**change))
    assert failure.value.code == "unsupported-architecture"
    assert "`shoal model list --supported`" in str(failure.value.hint)


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ...},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": []},
        {"architectures": [7]},
        {"hidden_size": ...},
        {"hidden_size": 0},
        {"hidden_size": 1 << 40},
        {"hidden_size": "2048"},
        {"hidden_size": True},
        {"num_hidden_layers": 2000},
        {"num_key_value_heads": 5},
        {"head_dim": 63},
        {"rms_norm_eps": -1},
        {"rms_norm_eps": math.nan},
        {"vocab_size": 10**400},
        {"tie_word_embeddings": "yes"},
        {"rope_theta": 0},
        {"rope_theta": 10**400},
        {"rope_scaling": [1]},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_scaling": {"rope_type": "linear", "factor": math.inf}},
        {
            "rope_scaling": {
                **LLAMA_3_2_1B["rope_scaling"],
                "low_freq_factor": 4.0,
            }
        },
        {"architectures": ["MistralForCausalLM"], "sliding_window": -1},
        {
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "layer_types": ["full_attention"],
        },
    ],
)
def test_malformed_values_are_named(change: dict[str, Any]) -> None:
    assert code(changed(**change)) == "bad-config"


def test_shapes_cover_each_part_once() -> None:
    arch = architecture(changed(tie_word_embeddings=False, num_hidden_layers=4))
    whole = tensor_shapes(arch, Parts(True, 0, 4, True))
    pieces = [
        tensor_shapes(arch, parts)
        for parts in (
            Parts(True, 0, 1, False),
            Parts(False, 1, 3, False),
            Parts(False, 3, 4, False),
            Parts(False, 4, 4, True),
        )
    ]
    assert sum(map(len, pieces)) == len(whole)
    assert {key: value for piece in pieces for key, value in piece.items()} == whole
    tied = architecture(changed(num_hidden_layers=4))
    assert list(tensor_shapes(tied, Parts(False, 4, 4, True))) == [
        "model.embed_tokens.weight",
        "model.norm.weight",
    ]


def test_parts_outside_the_model_are_refused() -> None:
    arch = architecture(LLAMA_3_2_1B)
    for start, stop in ((-1, 2), (3, 2), (0, 17)):
        with pytest.raises(EngineError):
            families.check_parts(arch, Parts(False, start, stop, False))


def test_a_small_tied_table_counts_twice_in_bfloat16() -> None:
    """This is what model.py may store, because the memory limit is a promise to the owner."""
    arch = architecture(changed(vocab_size=4096))
    whole, start = Parts(True, 0, arch.layers, True), Parts(True, 0, arch.layers, False)
    table = arch.vocab * arch.hidden
    single = families.weight_bytes(arch, whole, "float32") // 2
    assert families.weight_bytes(arch, whole, "bfloat16") == single + 2 * table
    assert families.weight_bytes(arch, start, "bfloat16") < single


def test_shapes_that_are_not_the_configs() -> None:
    arch = architecture(LLAMA_3_2_1B)
    shapes = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
    check = families.check_model(LLAMA_3_2_1B)
    check(shapes)
    check({**shapes, "more.of.it": (3,)})
    with pytest.raises(EngineError, match=r"`model.norm.weight` has the shape \[2, 2048\]"):
        check({**shapes, "model.norm.weight": (2, 2048)})
