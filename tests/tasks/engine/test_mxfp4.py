"""Experts in MXFP4: each value, and a checkpoint whose experts are converted as it is loaded."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from shoal.tasks.engine.compute.mxfp4 import converted
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families import architecture as read
from shoal.tasks.engine.families import tensor_shapes, weight_bytes
from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.messages import load_payload
from tests.tasks.engine.test_llama import TOKENS, close

QUANTISED = {"quantization_config": {"quant_method": "mxfp4"}}


def test_every_value_at_every_scale() -> None:
    """By the definition of the format: sign, 2 bits of exponent with bias 1, 1 bit of mantissa."""
    values = []
    for code in range(16):
        exponent, mantissa = code >> 1 & 3, code & 1
        size = mantissa / 2 if not exponent else 2 ** (exponent - 1) * (1 + mantissa / 2)
        values.append(-size if code & 8 else size)
    blocks = torch.arange(16, dtype=torch.uint8)[None, None].repeat(1, 251, 1)
    blocks |= torch.arange(15, -1, -1, dtype=torch.uint8) << 4
    scales = torch.arange(1, 252, dtype=torch.uint8)[None]
    found = converted(blocks, scales, torch.float32).view(251, 16, 2)
    for at, scale in enumerate(range(1, 252)):
        unit = 2.0 ** (scale - 127)
        assert found[at, :, 0].tolist() == [value * unit for value in values]
        assert found[at, :, 1].tolist() == [value * unit for value in reversed(values)]
    bf16 = converted(blocks, scales, torch.bfloat16).float().view(251, 16, 2)
    assert torch.equal(bf16[8:], found[8:])  # exact, except where bfloat16 is subnormal


@pytest.mark.parametrize("scale", [254, 255])
def test_values_that_are_not_finite_are_refused(scale: int) -> None:
    blocks = torch.full((1, 1, 16), 0x77, dtype=torch.uint8)
    with pytest.raises(EngineError, match="not finite"):
        converted(blocks, torch.full((1, 1), scale, dtype=torch.uint8), torch.bfloat16)


@pytest.fixture
def packed(checkpoint: Any, cut_one: Any, tmp_path: Any) -> Any:
    """A gpt-oss whose experts are random values of MXFP4, for transformers and for the engine."""
    made = checkpoint("GptOss", intermediate_size=64, initializer_range=0.2)
    state, tensors = made.model.state_dict(), list(made.tensors)
    random = torch.Generator().manual_seed(1)
    for name in [name for name in state if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, outputs = state[name].shape
        groups = inputs // 32
        blocks = torch.randint(256, (count, outputs, groups, 16), generator=random).byte()
        scales = torch.randint(121, 125, (count, outputs, groups), generator=random).byte()
        each = zip(blocks, scales, strict=True)
        state[name] = torch.stack([converted(*pair, torch.float32).T for pair in each])
        tensors = [tensor for tensor in tensors if name not in tensor.roles]
        for end, value in (("_blocks", blocks), ("_scales", scales)):
            tensors.append(cut_one(value, (name + end,), tmp_path / "chunks"))
    config = json.loads(json.dumps(made.config | QUANTISED))
    model = type(made.model)(made.model.config).eval()
    model.load_state_dict(state)
    return replace(made, model=model, config=config, tensors=tuple(tensors))


def test_a_checkpoint_in_mxfp4_gives_the_logits_of_its_values(packed: Any, chain: Any) -> None:
    theirs = packed.logits(TOKENS)
    assert float(theirs.abs().max()) > 1
    for count in (1, 3):
        assert close(chain(packed, packed.splits(count)).logits(TOKENS), theirs)


def test_its_memory_is_that_of_the_converted_values(packed: Any) -> None:
    arch = read(packed.config)
    plain = {key: value for key, value in packed.config.items() if key not in QUANTISED}
    whole = Parts(True, 0, arch.layers, True)
    assert weight_bytes(arch, whole, "bfloat16") == weight_bytes(read(plain), whole, "bfloat16")
    assert len(tensor_shapes(arch, whole)) == len(tensor_shapes(read(plain), whole)) + 2 * 4


@pytest.mark.parametrize("what", ["floats", "short", "shape", "no scale"])
def test_hostile_bytes_are_refused(
    packed: Any, cut_one: Any, driver: Any, tmp_path: Any, what: str
) -> None:
    role = "model.layers.2.mlp.experts.down_proj_scales"
    shard = packed.shard()
    (good,) = [each for each in shard.tensors if role in each.roles]
    value = torch.full(good.shape, 125, dtype=torch.uint8)
    if what == "floats":
        bad = cut_one(value.float(), (role,), tmp_path / "bad")
    elif what == "shape":
        bad = cut_one(value[:-1], (role,), tmp_path / "bad")
    elif what == "no scale":
        value[3, 2, 1] = 255
        bad = cut_one(value, (role,), tmp_path / "bad")
    else:
        bad = msgspec.structs.replace(good, chunks=good.chunks * 2, digests=good.digests * 2)
    tensors = (*(each for each in shard.tensors if each is not good), bad)
    reply = driver().request("load", 0, payload=load_payload(replace(shard, tensors=tensors)))
    assert reply[:2] == ("refused", "bad-tensor"), reply


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "", None, 7])
def test_other_ways_of_quantising_are_refused(packed: Any, method: Any) -> None:
    config = packed.config | {"quantization_config": {"quant_method": method}}
    with pytest.raises(EngineError) as failure:
        read(config)
    assert failure.value.code == "unsupported-architecture"
