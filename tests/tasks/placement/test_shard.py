"""Tests of a shard's requirements: its dtype, its KV and its files."""

from pathlib import Path

import pytest

from shoal.tasks.engine.families import architecture, kv_token_bytes, weight_bytes
from shoal.tasks.engine.interface import Parts
from shoal.tasks.errors import NoFit
from shoal.tasks.placement.shard import choose_dtype, kv_bytes, properties_of, shard_of
from tests.tasks.fake_model import CONFIG, small_manifest

WHOLE = Parts(True, 0, 2, True)


def test_auto_is_float32_for_small_models_and_the_same_on_every_node() -> None:
    small, large = small_manifest(), small_manifest(8_000_000)  # 128 million parameters
    assert choose_dtype(small, "auto") == "float32"
    assert choose_dtype(large, "auto") == "bfloat16"
    assert choose_dtype(large, "float32") == "float32"
    assert choose_dtype(small, "bfloat16") == "bfloat16"


def test_kv_takes_the_remaining_memory_up_to_a_limit() -> None:
    arch = architecture(CONFIG)
    weights = weight_bytes(arch, WHOLE, "float32")
    token = kv_token_bytes(arch, 0, 2, "float32")
    assert kv_bytes(arch, WHOLE, "float32", weights + 700 * token) == 700 * token
    assert kv_bytes(arch, WHOLE, "float32", 2**40) == 16 * 600 * token
    with pytest.raises(NoFit, match=r"layers 0:2 need 1 MiB of memory and this node offers 0 MiB"):
        kv_bytes(arch, WHOLE, "float32", 0)
    with pytest.raises(NoFit):
        kv_bytes(arch, WHOLE, "float32", weights + 511 * token)


def test_the_order_for_the_engine_names_the_files_of_its_tensors() -> None:
    manifest, arch = small_manifest(), architecture(CONFIG)
    parts = Parts(False, 1, 2, True)
    shard = shard_of(manifest, arch, parts, "bfloat16", 2**30, lambda digest: Path("/c") / digest)
    assert [source.roles for source in shard.tensors] == [
        ("lm_head.weight",),
        ("model.layers.1.input_layernorm.weight",),
        ("model.norm.weight",),
    ]
    assert shard.tensors[1].chunks == ("/c/" + "0300" * 16,)
    assert shard.tensors[1].digests == (bytes.fromhex("0300" * 16),)
    assert (shard.root, shard.dtype) == (manifest.root, "bfloat16")
    held = properties_of(shard, arch)
    assert (held.token_bytes, held.vocabulary, held.context) == (16, 20, 600)
    assert held.kv_tokens == shard.kv_bytes // kv_token_bytes(arch, 1, 2, "bfloat16") == 16 * 600
