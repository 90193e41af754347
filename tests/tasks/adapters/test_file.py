"""Adapter files: the head is bounded, typed and canonical, and must fit the model."""

import random
from typing import Any

import msgspec
import pytest

from shoal.dht.errors import ModelError
from shoal.tasks.adapters.adapters import spans_of
from shoal.tasks.adapters.defaults import HEAD_BYTES
from shoal.tasks.adapters.file import encode_head, read_head
from shoal.tasks.engine.adapters import AdapterTerms
from shoal.tasks.engine.families import architecture
from shoal.transport.message import pack
from tests.tasks import peft_folder

BASE = "ab" * 32
TERMS = AdapterTerms(BASE, 4, 8.0, False, "BF16", ("q_proj", "down_proj"), (0, 2, 3))
ARCH = architecture(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 101,
        "max_position_embeddings": 96,
    }
)
LAYER = 2 * 4 * (32 + 32 + 48 + 32)  # bytes of a layer


def size_of(terms: AdapterTerms) -> int:
    return len(encode_head(terms)) + len(terms.layers) * LAYER


def test_the_head_survives_and_says_where_layers_are() -> None:
    data = encode_head(TERMS)
    head = read_head(data + b"x" * 100, size_of(TERMS))
    assert head.terms == TERMS and head.start == len(data)
    head.check_fits(BASE, ARCH)
    at = head.start
    assert head.range_of(ARCH, 0, 4) == (at, at + 3 * LAYER)
    assert head.range_of(ARCH, 0, 2) == (at, at + LAYER)
    assert head.range_of(ARCH, 1, 3) == (at + LAYER, at + 2 * LAYER)
    assert head.range_of(ARCH, 1, 2) == (at + LAYER, at + LAYER)
    assert head.range_of(ARCH, 4, 4) == (at + 3 * LAYER, at + 3 * LAYER)


@pytest.mark.parametrize(
    "change",
    [
        {"base": "cd" * 32},
        {"rank": 5},
        {"modules": peft_folder.LLAMA_MODULES},
        {"layers": (0, 2, 4)},
        {"layers": (0, 2)},
        {"dtype": "F32"},
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    terms = msgspec.structs.replace(TERMS, **change)
    head = read_head(encode_head(terms), len(encode_head(terms)) + 3 * LAYER)
    with pytest.raises(ModelError) as caught:
        head.check_fits(BASE, ARCH)
    assert caught.value.code == "bad-adapter" and caught.value.hint


def test_every_cut_and_change_of_a_head_is_refused_or_read() -> None:
    data, chance = encode_head(TERMS), random.Random(3)
    for end in range(len(data)):
        with pytest.raises(ModelError):
            read_head(data[:end], size_of(TERMS))
    for _ in range(2000):
        broken = bytearray(data)
        broken[chance.randrange(len(data))] = chance.randrange(256)
        try:
            head = read_head(bytes(broken), size_of(TERMS))
        except ModelError as error:
            assert error.code == "bad-adapter"
        else:
            assert encode_head(head.terms) == bytes(broken)


def test_a_head_is_bounded() -> None:
    for junk in (b"", b"\xff" * 8, (HEAD_BYTES + 1).to_bytes(4) + bytes(HEAD_BYTES + 1)):
        with pytest.raises(ModelError, match="cannot be used"):
            read_head(junk, 1 << 20)
    fields = list(msgspec.structs.astuple(TERMS))
    junk_of: dict[int, list[Any]] = {
        0: ["x", BASE.upper(), 7],
        1: [0, 257, -1, "4", True],
        2: [float("nan"), float("inf"), 1e7, "1"],
        3: [1, None],
        4: ["I8", ""],
        5: [[], ["q_proj", "q_proj"], ["down_proj", "q_proj"], ["lm_head"], ["q_proj"] * 8],
        6: [[], [1, 0], [0, 0], [-1], [4096], list(range(5000))],
    }
    for index, values in junk_of.items():
        for value in values:
            changed = [*fields[:index], value, *fields[index + 1 :]]
            data = pack(["shoal-adapter/1", changed])
            with pytest.raises(ModelError):
                read_head(len(data).to_bytes(4) + data, 1 << 20)
    other = pack(["shoal-adapter/2", TERMS])
    with pytest.raises(ModelError, match="format"):
        read_head(len(other).to_bytes(4) + other, 1 << 20)


def test_layers_are_written_as_spans() -> None:
    assert spans_of((0, 1, 2, 5, 7, 8)) == "0:3, 5:6, 7:9"
