"""The forward against transformers: every family and feature, every split, float32 and bfloat16."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from shoal.tasks.engine.compute.native import choice
from shoal.tasks.engine.interface import Span, Want
from shoal.tasks.engine.scheduling.costs import StepCosts
from tests.marks import in_ci

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
MIXED = ["sliding_attention", "full_attention"] * 2
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama sharded files": ("Llama", {"shards": True}),
    "llama without grouping": ("Llama", {"num_key_value_heads": 4}),
    "llama one kv head": ("Llama", {"num_key_value_heads": 1}),
    "llama head_dim": ("Llama", {"head_dim": 16}),
    "llama llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}},
    ),
    "llama dynamic": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}},
    ),
    "llama yarn": ("Llama", {"rope_parameters": YARN}),
    "qwen2": ("Qwen2", {}),
    "qwen2 yarn": (
        "Qwen2",
        {"rope_parameters": YARN | {"beta_fast": 16.0, "mscale": 1.2, "mscale_all_dim": 0.8}},
    ),
    "qwen2 window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3 tied biased": ("Qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3 yarn untruncated": ("Qwen3", {"rope_parameters": YARN | {"truncate": False}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral window": ("Mistral", {"sliding_window": 7}),
    "mistral head_dim": ("Mistral", {"head_dim": 16, "sliding_window": 4096}),
}
GEMMA3_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 900.0, "factor": 2.0},
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 300.0,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [3.0, 4.0, 5.0],
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
}
CASES |= {
    "phi3": ("Phi3", {}),
    "phi3 window": ("Phi3", {"sliding_window": 11}),
    "phi3 longrope": ("Phi3", {"rope_parameters": LONGROPE}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 20}),
    "gemma2 uncapped": (
        "Gemma2",
        {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma2 small caps": (
        "Gemma2",
        {"head_dim": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    ),
    "gemma3": ("Gemma3", {"head_dim": 16, "sliding_window": 9, "layer_types": MIXED}),
    "gemma3 ropes": (
        "Gemma3",
        {
            "head_dim": 8,
            "sliding_window": 9,
            "layer_types": MIXED,
            "rope_parameters": GEMMA3_ROPES,
            "query_pre_attn_scalar": 11,
        },
    ),
}
CASES |= {
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral window": ("Mixtral", {"num_local_experts": 3, "sliding_window": 7}),
    "qwen3_moe": ("Qwen3Moe", {"num_experts": 8, "norm_topk_prob": True}),
    "qwen3_moe mixed": (
        "Qwen3Moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 3,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "head_dim": 16,
        },
    ),
}
CASES |= {
    "gpt_oss": ("GptOss", {"sliding_window": 9}),
    "gpt_oss yarn": ("GptOss", {"rope_parameters": YARN, "attention_bias": False}),
}
HYBRID = ["linear_attention", "full_attention"] * 2
CASES |= {
    "qwen3_next": ("Qwen3Next", {"layer_types": HYBRID}),
    "qwen3_next stages of one kind": (  # when split in 4
        "Qwen3Next",
        {"full_attention_interval": 4, "norm_topk_prob": False},
    ),
    "qwen3_next biased": (
        "Qwen3Next",
        {"full_attention_interval": 3, "attention_bias": True, "linear_num_value_heads": 2},
    ),
}
# Each kind of layer. The others differ in the angles of rotation, in biases and in how the file
# stores them, which no step changes.
STEPS = (
    "llama", "gemma2", "qwen3_moe", "gpt_oss", "llama one kv head", "llama dynamic",
    "qwen2 window", "qwen3", "mistral window", "phi3", "phi3 longrope", "gemma3 ropes",
    "mixtral", "qwen3_moe mixed",
)  # fmt: skip
OTHERS = [case for case in CASES if case not in STEPS]
TOKENS = [int(token) for token in torch.randint(0, 101, (40,), generator=torch.manual_seed(3))]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return ours.shape == theirs.shape and float((ours - theirs).abs().max()) < 1e-4


def differs_at_ties_only(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether bfloat16 logits choose other tokens at most twice, and only near ties."""
    top = theirs.topk(2).values
    ulp = 2.0 ** (torch.floor(torch.log2(top[:, 0].abs())) - 7)
    differs = ours.argmax(-1) != theirs.argmax(-1)
    ties = (top[:, 0] - top[:, 1]) <= 2 * ulp
    return bool(ties[differs].all()) and int(differs.sum()) <= 2


@pytest.mark.parametrize("case", [*STEPS, *in_ci(*OTHERS)])
def test_logits_equal_transformers_over_every_split(case: str, checkpoint: Any, chain: Any) -> None:
    family, config = CASES[case]
    made = checkpoint(family, **config)
    theirs = made.logits(TOKENS)
    assert float(theirs.abs().max()) > 1  # else 1e-4 would say nothing
    for count in (1, 2, 3, made.layers):
        assert close(chain(made, made.splits(count)).logits(TOKENS), theirs), count


@pytest.mark.parametrize("case", [*STEPS, *in_ci(*OTHERS)])
def test_chunks_and_single_tokens_equal_one_prefill(case: str, checkpoint: Any, chain: Any) -> None:
    family, config = CASES[case]
    made = checkpoint(family, **config)
    stages = chain(made, made.splits(2))
    cuts = [0, 5, 19, *range(20, len(TOKENS) + 1)]
    pieces = [stages.logits(TOKENS[a:b], a) for a, b in pairwise(cuts)]
    assert close(torch.cat(pieces), made.logits(TOKENS))


@pytest.mark.parametrize("case", CASES)
def test_each_token_is_the_likeliest_to_transformers(
    case: str, checkpoint: Any, driver: Any
) -> None:
    """So the text is that of `generate`, which takes a step for each token to say so."""
    family, config = CASES[case]
    made = checkpoint(family, **config)
    worker = driver(made.shard(), measured=True)
    span = Span(worker.open(b"s"), 0, 0, 8, tokens=tuple(TOKENS[:8]), want="token", steps=40)
    text = worker.tokens(span)
    assert len(text) == 40
    assert text == made.logits([*TOKENS[:8], *text[:-1]])[7:].argmax(-1).tolist()


@pytest.mark.parametrize("case", ["llama", "llama biased", "qwen2", "qwen3", "mistral window"])
def test_bfloat16_differs_at_ties_only(case: str, checkpoint: Any, chain: Any) -> None:
    family, config = CASES[case]
    made = checkpoint(family, **config, dtype=torch.bfloat16)
    theirs = made.logits(TOKENS)
    stages = chain(made, made.splits(3), "bfloat16")
    pieces = [stages.logits(TOKENS[:30]), *(stages.logits([TOKENS[i]], i) for i in range(30, 40))]
    ours = torch.cat(pieces)
    if choice.kernels() is None:
        assert differs_at_ties_only(ours, theirs)
    else:  # the kernels round less often than transformers
        exact = chain(made, made.splits(3)).logits(TOKENS)
        assert (ours - exact).norm() < 1.05 * (theirs - exact).norm()


@pytest.mark.parametrize("case", ["gpt_oss", "mixtral", "qwen3_moe", "qwen3_next"])
def test_experts_round_bfloat16_where_transformers_does(
    case: str, checkpoint: Any, chain: Any
) -> None:
    """Otherwise rows choose other experts than in transformers, and so other tokens."""
    family, config = CASES[case]
    made = checkpoint(family, **(config | {"num_experts_per_tok": 4}), dtype=torch.bfloat16)
    theirs = made.logits(TOKENS)
    ours = chain(made, made.splits(3), "bfloat16").logits(TOKENS)
    exact = chain(made, made.splits(3)).logits(TOKENS)
    assert (ours - theirs).abs().mean() < 0.25 * (theirs - exact).abs().mean()


def test_float16_and_bfloat16_files_load_as_float32(checkpoint: Any, chain: Any) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        made = checkpoint("Llama", dtype=dtype, as_dtype=torch.float32, tie_word_embeddings=True)
        assert close(chain(made, made.splits(2)).logits(TOKENS), made.logits(TOKENS))


def test_truncation_leaves_no_trace(checkpoint: Any, chain: Any) -> None:
    made = checkpoint("Qwen3", head_dim=16)
    stages = chain(made, made.splits(2))
    stages.logits(TOKENS)
    other = [*TOKENS[:11], *reversed(TOKENS[11:30])]
    assert close(stages.logits(other[11:], 11), made.logits(other)[11:])


@pytest.mark.parametrize(
    ("case", "shards"),
    [
        *((case, 1) for case in STEPS),
        ("llama", 3),
        *in_ci(*((case, 1) for case in OTHERS), *((case, 3) for case in CASES if case != "llama")),
    ],
)
def test_pooled_states_equal_those_of_transformers(
    case: str, shards: int, checkpoint: Any, driver: Any
) -> None:
    """The sum over spans, each computed in parts of at most 16 rows beside another session."""
    family, config = CASES[case]
    made = checkpoint(family, **config)
    with torch.inference_mode():
        theirs = made.model.model(torch.tensor([TOKENS])).last_hidden_state[0].float().sum(0)
    stages = [driver(made.shard(parts)) for parts in made.splits(shards)]
    total = torch.zeros(len(theirs))
    for stage in stages:
        stage.core.runner.scheduler.costs = StepCosts(1.0, 10.0, 0.0)
        stage.open(b"s")
        stage.open(b"other")
    for first, end in ((0, 21), (21, 22), (22, len(TOKENS))):
        data: Any = None
        for stage in stages:
            given = {"tokens": tuple(TOKENS[first:end])} if data is None else {"hidden": data}
            want: Want = "pooled" if stage is stages[-1] else "hidden"
            span = Span(b"s".ljust(16, b"."), 0, first, end - first, want=want, **given)
            other = Span(b"other".ljust(16, b"."), 0, 0, 9, **{**given, "tokens": (3,) * 9})
            if data is None:
                stage.submit(other)
            stage.submit(span)
            (event,) = [each for each in stage.events() if each.session == span.session]
            data = event.data
        assert len(data) == 4 * len(theirs), "however long the span is"
        total += torch.frombuffer(bytearray(data), dtype=torch.float32)
    assert float((total - theirs).abs().max() / len(TOKENS)) < 1e-5
