"""Each architecture of GGUF files, written by the `gguf` package, against transformers.

The files are made as llama.cpp's converter makes them: with its names of tensors and metadata, rows
of `llama` turned, experts stacked, and 1 added to the norms of Gemma.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from shoal.dht.errors import ModelError
from shoal.tasks.models.gguf.families import FAMILIES
from shoal.tasks.models.gguf.header import Header
from shoal.tasks.models.gguf.metadata import Metadata
from shoal.tasks.models.gguf.model import gguf_model
from shoal.tasks.models.output import write_folder
from tests.tasks.engine.conftest import Checkpoint, cut
from tests.tasks.engine.quantised_model import read
from tests.tasks.engine.test_llama import GEMMA3_ROPES, LONGROPE, MIXED, TOKENS, close
from tests.tasks.models.ggufs import bpe_tokens

VOCABULARY = 320
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "Llama", {}),
    "llama tied": ("llama", "Llama", {"tie_word_embeddings": True}),
    "mistral": ("llama", "Mistral", {"sliding_window": 7}),
    "mixtral": ("llama", "Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", "Qwen2", {}),
    "qwen3": ("qwen3", "Qwen3", {"head_dim": 16}),
    "qwen3 with experts": ("qwen3moe", "Qwen3Moe", {"num_experts": 8, "norm_topk_prob": True}),
    "gemma 2": ("gemma2", "Gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16,
                                     "sliding_window": 9, "final_logit_softcapping": 9.0}),
    "gemma 3": ("gemma3", "Gemma3", {"head_dim": 16, "query_pre_attn_scalar": 16,
                                     "sliding_window": 9, "layer_types": MIXED,
                                     "rope_parameters": GEMMA3_ROPES}),
    "phi 3": ("phi3", "Phi3", {"sliding_window": 11}),
    "phi 3 longrope": ("phi3", "Phi3", {"rope_parameters": LONGROPE}),
}  # fmt: skip
KEYS = {
    "num_hidden_layers": "add_block_count", "max_position_embeddings": "add_context_length",
    "hidden_size": "add_embedding_length", "intermediate_size": "add_feed_forward_length",
    "num_attention_heads": "add_head_count", "num_key_value_heads": "add_head_count_kv",
    "rms_norm_eps": "add_layer_norm_rms_eps", "head_dim": "add_key_length",
    "sliding_window": "add_sliding_window", "num_local_experts": "add_expert_count",
    "num_experts": "add_expert_count", "num_experts_per_tok": "add_expert_used_count",
    "moe_intermediate_size": "add_expert_feed_forward_length",
    "attn_logit_softcapping": "add_attn_logit_softcapping",
    "final_logit_softcapping": "add_final_logit_softcapping",
}  # fmt: skip


def write(path: Path, architecture: str, made: Checkpoint) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    config = made.config
    for key, name in KEYS.items():
        if config.get(key) is not None:
            getattr(writer, name)(config[key])
    if config.get("head_dim") is not None:
        writer.add_value_length(config["head_dim"])
    write_ropes(writer, architecture, config)
    tokens, types, merges = bpe_tokens(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    for name, values in tensors(architecture, made):
        writer.add_tensor(name, np.ascontiguousarray(values.float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_ropes(writer: Any, architecture: str, config: Mapping[str, Any]) -> None:
    told = config["rope_parameters"]
    if architecture == "gemma3":
        full, near = told["full_attention"], told["sliding_attention"]
        writer.add_rope_freq_base(full["rope_theta"])
        writer.add_rope_freq_base_swa(near["rope_theta"])
        writer.add_sliding_window_pattern(2)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
        return
    writer.add_rope_freq_base(told["rope_theta"])
    if architecture == "phi3":
        head = config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(int(head * told.get("partial_rotary_factor", 1.0)))
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])


def tensors(architecture: str, made: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, made.layers)
    stacks: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for source in made.tensors:
        role, values = source.roles[0], read(source)
        if expert := re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", role):
            name = f"{expert[1]}.{expert[3]}"
            stacks.setdefault(name, []).append((int(expert[2]), values))
            continue
        if architecture == "llama" and role.endswith(("q_proj.weight", "k_proj.weight")):
            head = made.config.get("head_dim") or 8
            values = values.view(-1, 2, head // 2, values.shape[1]).transpose(1, 2)
            values = values.reshape(-1, values.shape[-1])
        if architecture.startswith("gemma") and role.endswith("norm.weight"):
            values = values.float() + 1
        base, _, end = role.rpartition(".")
        yield f"{names.get_name(base)}.{end}", values
    for base, parts in stacks.items():
        stacked = torch.stack([values for _, values in sorted(parts, key=lambda each: each[0])])
        yield f"{names.get_name(base)}.weight", stacked
    for length in ("short", "long"):
        if factors := made.config["rope_parameters"].get(f"{length}_factor"):
            yield f"rope_factors_{length}.weight", torch.tensor(factors)


def converted(path: Path, folder: Path, made: Checkpoint) -> Checkpoint:
    """The model in a file, beside transformers' original."""
    folder.mkdir()
    model = gguf_model(path)
    write_folder(folder, model, lambda *_: None)
    return Checkpoint(made.model, dict(model.config), cut(folder, folder / "chunks"))


@pytest.mark.parametrize("case", list(CASES))
def test_a_file_gives_the_logits_of_transformers(
    case: str, checkpoint: Any, chain: Any, tmp_path: Path
) -> None:
    architecture, family, config = CASES[case]
    made = checkpoint(family, vocab_size=VOCABULARY, **config)
    ours = converted(write(tmp_path / "model.gguf", architecture, made), tmp_path / "out", made)
    assert ours.config["architectures"] == made.config["architectures"]
    assert close(chain(ours, ours.splits(2)).logits(TOKENS), made.logits(TOKENS))


def test_every_architecture_that_is_read_is_compared() -> None:
    assert {architecture for architecture, _, _ in CASES.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3next", "deepseek2", "bert", "mamba"])
def test_other_architectures_are_refused_by_their_names(name: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", name)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=f"GGUF files of '{name}' are not supported") as failure:
        gguf_model(tmp_path / "x.gguf")
    assert failure.value.code == "unsupported-architecture"
    assert "supported are llama, qwen2, qwen3" in (failure.value.hint or "")


@pytest.mark.parametrize(
    ("family", "layers", "hidden", "head_dim", "scalar"),
    [("gemma2", 42, 3584, 256, 256), ("gemma2", 46, 4608, 128, 144),
     ("gemma3", 48, 3840, 256, 256), ("gemma3", 62, 5376, 128, 168)],
)  # fmt: skip
def test_the_largest_gemmas_scale_their_scores_as_they_were_published(
    family: str, layers: int, hidden: int, head_dim: int, scalar: int
) -> None:
    heads = {3584: 16, 4608: 32, 3840: 16, 5376: 32}[hidden]
    metadata: dict[str, Any] = {"general.architecture": family, f"{family}.block_count": layers}
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "head_dim": head_dim}
    meta = Metadata(Header(metadata, {}))
    found = FAMILIES[family].special(meta, {**sizes, "num_hidden_layers": layers}, {})
    assert found["query_pre_attn_scalar"] == scalar
