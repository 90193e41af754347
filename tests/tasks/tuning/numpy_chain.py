"""A small language model in numpy with true gradients, as a `TuningChain` for tests of the trainer.

The state of a position is the sum of the embeddings of its token and its predecessor. Each layer
adds tanh((W + s B A) x), and the logits are the products with the embeddings.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from shoal.tasks.engine import families
from shoal.tasks.engine.families import Architecture
from shoal.tasks.tuning.interface import (
    NOT_COUNTED,
    AdapterTensors,
    Batch,
    Gradients,
    TensorName,
    TuningChain,
)

HIDDEN, VOCABULARY, LAYERS = 32, 64, 2
ARCH: Architecture = families.architecture(
    {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": HIDDEN // 2, "vocab_size": VOCABULARY,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": True,
    }
)  # fmt: skip
Array = NDArray[np.float32]


class NumpyChain:
    """`disturb` is called before each answer, with its number; it may raise or change it."""

    def __init__(
        self, disturb: Callable[[int], Callable[[Gradients], Gradients] | None] | None = None
    ) -> None:
        random = np.random.default_rng(7)
        self._embedding = random.normal(0, 0.5, (VOCABULARY, HIDDEN)).astype(np.float32)
        self._weights = [
            random.normal(0, 0.1, (HIDDEN, HIDDEN)).astype(np.float32) for _ in range(LAYERS)
        ]
        self._disturb = disturb
        self.calls = self.looks = 0
        self.closed = False

    async def gradients(
        self, batch: Batch, adapter: AdapterTensors, names: Collection[TensorName] | None = None
    ) -> Gradients:
        await trio.lowlevel.checkpoint()
        self.calls += 1
        change = self._disturb(self.calls) if self._disturb is not None else None
        found = self.computed(batch, adapter)
        if names is not None:
            found = replace(found, tensors={name: found.tensors[name] for name in names})
        return found if change is None else change(found)

    def computed(self, batch: Batch, adapter: AdapterTensors) -> Gradients:
        """Return the loss and its true derivatives."""
        loss, counted, states, slope = self._forward(batch, adapter)
        scale = np.float32(adapter.terms.scale)
        tensors = {name: np.zeros_like(each) for name, each in adapter.tensors.items()}
        for layer in reversed(range(LAYERS)):
            x = states[layer]
            a, b = (adapter.tensors[TensorName(layer, "q_proj", side)] for side in ("A", "B"))
            weight = self._weights[layer] + scale * b @ a
            inner = slope * (1 - np.tanh(x @ weight.T) ** 2)
            tensors[TensorName(layer, "q_proj", "B")] = scale * inner.T @ (x @ a.T)
            tensors[TensorName(layer, "q_proj", "A")] = scale * (inner @ b).T @ x
            slope = slope + inner @ weight
        return Gradients(loss, counted, dict(tensors.items()))

    async def loss(self, batch: Batch, adapter: AdapterTensors) -> tuple[float, int]:
        await trio.lowlevel.checkpoint()
        self.looks += 1
        return self._forward(batch, adapter)[:2]

    def _forward(
        self, batch: Batch, adapter: AdapterTensors
    ) -> tuple[float, int, list[Array], Array]:
        tokens, targets = batch.tokens, batch.targets.reshape(-1)
        before = np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)
        x = (self._embedding[tokens] + self._embedding[before]).reshape(-1, HIDDEN)
        states = []
        for layer in range(LAYERS):
            states.append(x)
            a, b = (adapter.tensors[TensorName(layer, "q_proj", side)] for side in ("A", "B"))
            weight = self._weights[layer] + np.float32(adapter.terms.scale) * b @ a
            x = x + np.tanh(x @ weight.T)
        logits = x @ self._embedding.T
        logits = logits - logits.max(-1, keepdims=True)
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        kept = targets != NOT_COUNTED
        wanted = np.where(kept, targets, 0)
        each = -np.log(shares[np.arange(len(wanted)), wanted]) * kept
        error = shares.copy()
        error[np.arange(len(wanted)), wanted] -= 1
        error *= kept[:, None]
        return float(each.sum(dtype=np.float64)), int(kept.sum()), states, error @ self._embedding

    async def aclose(self) -> None:
        self.closed = True


def _is_a_chain(chain: NumpyChain) -> TuningChain:
    return chain


def settings(**changes: Any) -> Any:
    """Settings of a small fine-tuning."""
    from shoal.tasks.tuning.trainer.settings import TuningSettings

    given: dict[str, Any] = {
        "root": "ab" * 32, "rank": 4, "alpha": 8.0, "modules": ("q_proj",), "layers": LAYERS,
        "rate": 0.01, "warmup": 2, "decay": 0.0, "batch": 4, "length": 16, "steps": 12,
        "seed": 3, "held_out": 4, "look": 3,
    }  # fmt: skip
    return TuningSettings(**{**given, **changes})
