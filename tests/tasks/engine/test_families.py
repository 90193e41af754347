"""config.json: what is read, what is refused; every value is hostile."""

import math
from typing import Any

import pytest

from shoal.tasks.engine import families
from shoal.tasks.engine.defaults import PADDING_BYTES
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
    for key in ("beta_fast", "beta_slow"):  # 0 is the default, and the frequencies stay finite
        assert architecture(changed(rope_scaling={**yarn, key: 0}))
        assert code(changed(rope_scaling={**yarn, key: 1e-310})) == "bad-config"


def test_a_head_has_values() -> None:
    assert code(changed(head_dim=..., hidden_size=16, num_key_value_heads=32)) == "bad-config"
    assert code(changed(head_dim=1 << 12, num_attention_heads=96)) == "bad-config"


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


def test_what_packing_adds_to_narrow_matrices_counts() -> None:
    """A kernel fills 1 input up to 32, and 1 output up to 64."""
    arch = architecture(changed(hidden_size=1, vocab_size=64))
    parts = Parts(False, 0, 1, False)
    assert sum(map(math.prod, tensor_shapes(arch, parts).values())) < 30_000
    outputs = 32 * 64 + 2 * 8 * 64 + 2 * 8192
    inputs = 32 * 64 + 8192
    packed = 4 * (32 * outputs + 64 * inputs)
    assert families.weight_bytes(arch, parts, "float32") > packed - PADDING_BYTES - 100
    many = architecture(changed(hidden_size=1, vocab_size=64, num_hidden_layers=32))
    layers = (families.weight_bytes(many, Parts(False, 0, n, False), "float32") for n in (32, 1))
    assert next(layers) == 32 * next(layers)  # as the placement counts on it


def test_shapes_that_are_not_the_configs() -> None:
    arch = architecture(LLAMA_3_2_1B)
    shapes = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
    check = families.check_model(LLAMA_3_2_1B)
    check(shapes)
    check({**shapes, "more.of.it": (3,)})
    for missing in ("model.norm.weight", "model.layers.7.mlp.up_proj.weight"):
        with pytest.raises(EngineError, match=f"lack 1 tensors .* first `{missing}`") as failure:
            check({role: shape for role, shape in shapes.items() if role != missing})
        assert failure.value.code == "missing-tensor"
    with pytest.raises(EngineError, match=r"`model.norm.weight` has the shape \[2, 2048\]"):
        check({**shapes, "model.norm.weight": (2, 2048)})


GEMMA_3_1B: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
PHI_3_5: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"type": "longrope", "long_factor": [2.0] * 48, "short_factor": [1.5] * 48},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "vocab_size": 32064,
}


def test_gemma_3_as_it_was_published() -> None:
    arch = architecture(GEMMA_3_1B)
    assert arch.windows[:7] == (512,) * 5 + (0, 512) and arch.windows.count(0) == 4
    assert {(kind.window, kind.rope.theta) for kind in arch.kinds} == {(512, 1e4), (0, 1e6)}
    assert arch.tied and arch.norm_offset == 1.0 and arch.attention_scale == 1 / 16
    assert arch.logit_cap == arch.attention_cap == 0.0
    assert kv_token_bytes(arch, 0, 26, "bfloat16") == 2 * 26 * 256 * 2
    whole = Parts(True, 0, 26, True)
    assert families.weight_bytes(arch, whole, "float32") == 4 * 999_885_952


def test_gemma_2_alternates_and_caps() -> None:
    arch = architecture(GEMMA_3_1B | {"architectures": ["Gemma2ForCausalLM"]})
    assert arch.windows == (512, 0) * 13
    assert (arch.attention_cap, arch.logit_cap) == (0.0, 0.0)  # null switches them off
    left_out = {key: value for key, value in GEMMA_3_1B.items() if "capping" not in key}
    arch = architecture(left_out | {"architectures": ["Gemma2ForCausalLM"]})
    assert (arch.attention_cap, arch.logit_cap) == (50.0, 30.0)


def test_wide_norms_are_counted_in_float32() -> None:
    arch = architecture(GEMMA_3_1B)
    parts = Parts(False, 0, 1, False)
    norms = 4 * 1152 + 2 * 256
    single = families.weight_bytes(arch, parts, "float32") // 2
    assert families.weight_bytes(arch, parts, "bfloat16") == single + 2 * norms


def test_phi_3_ends_where_its_short_factors_do() -> None:
    arch = architecture(PHI_3_5)
    assert arch.context == 4096 and arch.windows == (0,) * 32
    rope = arch.kinds[0].rope
    assert rope.factors == (1.5,) * 48
    assert math.isclose(rope.attention_factor, math.sqrt(1 + math.log(32) / math.log(4096)))
    partial = PHI_3_5 | {"rope_scaling": None, "partial_rotary_factor": 0.75}
    assert architecture(partial).rotated == 72 and architecture(partial).context == 131072


@pytest.mark.parametrize(
    ("config", "change", "expected"),
    [
        (GEMMA_3_1B, {"query_pre_attn_scalar": 0}, "bad-config"),
        (GEMMA_3_1B, {"query_pre_attn_scalar": -4}, "bad-config"),
        (GEMMA_3_1B, {"sliding_window_pattern": 0}, "bad-config"),
        (GEMMA_3_1B, {"final_logit_softcapping": math.nan}, "bad-config"),
        (GEMMA_3_1B, {"rope_parameters": 7}, "bad-config"),
        (GEMMA_3_1B, {"rope_parameters": {"full_attention": [1]}}, "bad-config"),
        (GEMMA_3_1B, {"layer_types": ["full_attention"] * 25}, "bad-config"),
        (GEMMA_3_1B, {"layer_types": ["recurrent"] * 26}, "unsupported-architecture"),
        (GEMMA_3_1B, {"hidden_activation": "gelu"}, "unsupported-architecture"),
        (GEMMA_3_1B, {"use_bidirectional_attention": True}, "unsupported-architecture"),
        (GEMMA_3_1B, {"rope_scaling": {"rope_type": "longrope"}}, "unsupported-architecture"),
        (PHI_3_5, {"partial_rotary_factor": 0.5}, "bad-config"),  # other factors are needed
        (PHI_3_5, {"partial_rotary_factor": 0.0}, "unsupported-architecture"),
        (PHI_3_5, {"partial_rotary_factor": 1.5}, "bad-config"),
        (PHI_3_5, {"rope_scaling": {"type": "longrope"}}, "bad-config"),
        (
            PHI_3_5,
            {"rope_scaling": {"type": "longrope", "short_factor": [1.5] * 47 + ["1"]}},
            "bad-config",
        ),
        (
            PHI_3_5,
            {"rope_scaling": {"type": "longrope", "short_factor": [0.0] * 48}},
            "bad-config",
        ),
    ],
)
def test_hostile_values_of_other_families(
    config: dict[str, Any], change: dict[str, Any], expected: str
) -> None:
    assert code(config | change) == expected


MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "vocab_size": 32000,
}
QWEN_3_30B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}


def test_models_with_experts_have_their_published_size() -> None:
    for config, size in ((MIXTRAL, 46_702_792_704), (QWEN_3_30B, 30_532_122_624)):
        arch = architecture(config)
        whole = Parts(True, 0, arch.layers, True)
        assert families.weight_bytes(arch, whole, "bfloat16") == 2 * size


def test_layers_without_experts_are_dense() -> None:
    arch = architecture(QWEN_3_30B | {"decoder_sparse_step": 2, "mlp_only_layers": [3]})
    has = [kind.experts is not None for kind in arch.kinds]
    assert has[:8] == [False, True, False, False, False, True, False, True]
    shapes = tensor_shapes(arch, Parts(False, 2, 4, False))
    assert not [name for name in shapes if "experts" in name]


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (MIXTRAL, {"num_local_experts": 0}),
        (MIXTRAL, {"num_local_experts": None}),
        (MIXTRAL, {"num_local_experts": 1 << 11}),  # of 32 layers: too many tensors
        (MIXTRAL, {"num_experts_per_tok": 9}),
        (MIXTRAL, {"num_experts_per_tok": 0}),
        (QWEN_3_30B, {"moe_intermediate_size": 1 << 40}),
        (QWEN_3_30B, {"num_experts": 1 << 30, "num_hidden_layers": 1}),
        (QWEN_3_30B, {"mlp_only_layers": [48]}),
        (QWEN_3_30B, {"mlp_only_layers": [True]}),
        (QWEN_3_30B, {"mlp_only_layers": [1] * 49}),
        (QWEN_3_30B, {"mlp_only_layers": "all"}),
        (QWEN_3_30B, {"decoder_sparse_step": 0}),
        (QWEN_3_30B, {"norm_topk_prob": 1}),
    ],
)
def test_hostile_experts_are_refused(config: dict[str, Any], change: dict[str, Any]) -> None:
    assert code(config | change) == "bad-config"


QWEN_3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
    "shared_expert_intermediate_size": 512,
    "vocab_size": 151936,
}
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"quant_method": "mxfp4"},
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "vocab_size": 201088,
}


def test_qwen_3_next_as_it_was_published() -> None:
    arch = architecture(QWEN_3_NEXT)
    assert [kind.recurrent is None for kind in arch.kinds[:5]] == [False] * 3 + [True, False]
    assert arch.rotated == 64 and arch.kinds[0].rope.theta == 1e7
    assert kv_token_bytes(arch, 0, 48, "bfloat16") == 12 * 2 * 2 * 256 * 2
    assert families.state_bytes(arch, 0, 4, "bfloat16") == 3 * (3 * 8192 * 2 + 32 * 128 * 128 * 4)
    whole = Parts(True, 0, 48, True)
    vectors = 211_712  # values of norms and the like, in float32
    size = families.weight_bytes(arch, whole, "bfloat16")
    assert size == 2 * 79_674_391_296 + 2 * vectors


def test_gpt_oss_as_it_was_published() -> None:
    arch = architecture(GPT_OSS)
    assert arch.windows == (128, 0) * 12 and arch.sinks and arch.qkv_bias
    assert not arch.kinds[0].rope.truncate and arch.kinds[0].rope.theta == 150_000
    shapes = tensor_shapes(arch, Parts(False, 3, 4, False))
    experts = "model.layers.3.mlp.experts."
    assert shapes[f"{experts}gate_up_proj_blocks"] == (32, 5760, 90, 16)
    assert shapes[f"{experts}down_proj_scales"] == (32, 2880, 90)
    without = {key: value for key, value in GPT_OSS.items() if key != "rope_scaling"}
    assert architecture(without).kinds == arch.kinds  # it is the family's default
    whole = Parts(True, 0, 24, True)
    vectors = 335_424  # values of norms and the like, in float32
    size = families.weight_bytes(arch, whole, "bfloat16")
    assert size == 2 * 20_914_757_184 + 2 * vectors


@pytest.mark.parametrize(
    ("config", "change", "expected"),
    [
        (QWEN_3_NEXT, {"linear_num_value_heads": 24}, "bad-config"),
        (QWEN_3_NEXT, {"linear_num_key_heads": 0}, "bad-config"),
        (QWEN_3_NEXT, {"linear_key_head_dim": 1 << 20}, "bad-config"),
        (QWEN_3_NEXT, {"linear_conv_kernel_dim": 1}, "bad-config"),
        (QWEN_3_NEXT, {"linear_conv_kernel_dim": 1 << 20}, "bad-config"),
        (QWEN_3_NEXT, {"full_attention_interval": 0}, "bad-config"),
        (QWEN_3_NEXT, {"shared_expert_intermediate_size": -1}, "bad-config"),
        (QWEN_3_NEXT, {"layer_types": ["linear_attention"] * 47}, "bad-config"),
        (QWEN_3_NEXT, {"layer_types": ["mamba"] * 48}, "unsupported-architecture"),
        (QWEN_3_NEXT, {"num_experts": 1 << 10}, "bad-config"),
        (GPT_OSS, {"intermediate_size": 2881}, "bad-config"),
        (GPT_OSS, {"hidden_size": 2900}, "bad-config"),
        (GPT_OSS, {"swiglu_limit": 0}, "bad-config"),
        (GPT_OSS, {"swiglu_alpha": "1.7"}, "bad-config"),
        (GPT_OSS, {"num_local_experts": 1 << 20}, "bad-config"),
        (GPT_OSS, {"quantization_config": {"quant_method": "gptq"}}, "unsupported-architecture"),
        (GPT_OSS, {"quantization_config": []}, "unsupported-architecture"),
    ],
)
def test_hostile_values_of_hybrids_and_gpt_oss(
    config: dict[str, Any], change: dict[str, Any], expected: str
) -> None:
    assert code(config | change) == expected
