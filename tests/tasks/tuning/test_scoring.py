"""Losses of texts: which tokens count, and which requests a chain gets."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from shoal.tasks.engine.adapters import AdapterTerms
from shoal.tasks.engine.families import architecture
from shoal.tasks.errors import PromptTooLong, SessionError
from shoal.tasks.inference.generation import Model
from shoal.tasks.tuning.chain.parts import check_adapter, check_batch
from shoal.tasks.tuning.interface import AdapterTensors, Batch, Gradients, TensorName
from shoal.tasks.tuning.scoring import TEXTS_AT_ONCE, Scorer

ROOT = "ab" * 32
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "tie_word_embeddings": True,
}  # fmt: skip
ARCH = architecture(CONFIG)


class Chain:
    """Says how many tokens count."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    async def gradients(
        self, batch: Batch, adapter: AdapterTensors, names: Collection[TensorName] | None = None
    ) -> Gradients:
        raise NotImplementedError

    async def loss(self, batch: Batch, adapter: AdapterTensors) -> tuple[float, int]:
        check_adapter(adapter, ROOT, ARCH, None)
        check_batch(batch, ARCH)
        self._node.adapters.append(adapter)
        self._node.batches.append((batch.tokens[0].tolist(), batch.targets[0].tolist()))
        self._node.open += 1
        self._node.most = max(self._node.most, self._node.open)
        await trio.sleep(1)
        self._node.open -= 1
        if self._node.fails:
            raise SessionError("no-backward", "refused")
        return 1.5, int((batch.targets >= 0).sum())

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self._node.closed += 1


class Node:
    def __init__(self) -> None:
        self.batches: list[tuple[list[int], list[int]]] = []
        self.open = self.most = self.closed = 0
        self.fails = False
        self.arch: Any = ARCH
        self.adapters: list[AdapterTensors] = []
        chain = Chain(self)
        self.scorer = Scorer(self._use, self._encode, lambda *_which, **_how: chain, _adapter)

    @asynccontextmanager
    async def _use(self, name: str) -> AsyncIterator[Model]:
        text: Any = None
        yield Model(ROOT, name, 2, 64, 32, 256, text, arch=self.arch)

    @staticmethod
    async def _encode(_model: Model, text: str) -> Sequence[int]:
        await trio.lowlevel.checkpoint()
        merged = text.replace("xy", "\x01")  # two letters that are one token
        return [ord(letter) for letter in merged]


async def _adapter(text: str, model: Model) -> tuple[AdapterTerms, NDArray[np.float32]]:
    await trio.lowlevel.checkpoint()
    if text != "poet":
        raise SessionError("no-adapter", "there is none")
    assert model.arch is not None
    terms = AdapterTerms(model.root, 2, 1.0, False, "BF16", ("q_proj",), (1,))
    return terms, np.arange(terms.values(model.arch), dtype=np.float32)


async def scored(node: Node, given: str, text: str) -> tuple[float, int]:
    return await node.scorer.loss("m", given, text)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("given", "text", "targets"),
    [
        ("", "abc", [98, 99]),
        ("a", "bc", [98, 99]),
        ("ab", "cd", [-1, 99, 100]),
        ("ax", "y", [1]),  # the last letter of what was given became part of a new token
    ],
)
async def test_the_tokens_of_the_text_count(
    given: str, text: str, targets: list[int], autojump_clock: object
) -> None:
    node = Node()
    _, count = await scored(node, given, text)
    ((tokens, found),) = node.batches
    assert found == targets and len(tokens) == len(targets)
    assert count == sum(target >= 0 for target in targets)
    assert node.closed == 1
    (adapter,) = node.adapters
    assert not any(values.any() for values in adapter.tensors.values())


@pytest.mark.trio
async def test_a_text_is_scored_with_an_adapter(autojump_clock: object) -> None:
    node = Node()
    await node.scorer.loss("m", "", "abc", adapter="poet")
    ((terms, tensors),) = [(each.terms, each.tensors) for each in node.adapters]
    assert terms.dtype == "F32" and terms.rank == 2
    first, second = sorted(tensors, key=lambda name: name.side)
    assert tensors[first].shape == (2, 64) and tensors[second].shape[1] == 2
    assert tensors[first][0, 1] == 1.0 and tensors[second][0, 0] == 128.0, "in the file's order"
    with pytest.raises(SessionError, match="none"):
        await node.scorer.loss("m", "", "abc", adapter="other")


@pytest.mark.trio
async def test_texts_that_cannot_be_scored(autojump_clock: object) -> None:
    node = Node()
    for given, text in (("", "a"), ("abc", "")):
        with pytest.raises(SessionError) as caught:
            await scored(node, given, text)
        assert caught.value.code == "bad-request"
    with pytest.raises(PromptTooLong):
        await scored(node, "", "a" * 34)
    await scored(node, "", "a" * 33)
    node.arch = None
    with pytest.raises(SessionError) as caught:
        await scored(node, "", "ab")
    assert caught.value.code == "no-backward"


@pytest.mark.trio
async def test_a_few_texts_are_read_at_once_and_chains_are_closed(autojump_clock: object) -> None:
    node = Node()
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(scored, node, "", "abc")
    assert node.most == TEXTS_AT_ONCE and node.closed == 8
    node.fails = True
    with pytest.raises(SessionError):
        await scored(node, "", "abc")
    assert node.closed == 9
