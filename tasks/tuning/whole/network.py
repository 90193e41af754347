"""A whole model in torch, with derivatives by all its weights, in float32.

The process of `child.py` has one, and `answer` replies to its requests. It computes the families
whose layers are attention and a dense feed-forward part, from their `Architecture`, as
`tasks/engine/compute` does for frozen weights.
"""

import math
from collections.abc import Iterator
from typing import Final

import torch
from torch.nn import functional as F

from ...engine.compute.backward.attention import Triple, attended
from ...engine.compute.backward.pointwise import activated
from ...engine.compute.kv import raw_bytes
from ...engine.compute.rotary import frequencies
from ...engine.compute.scores import Scoring
from ...engine.errors import EngineError
from ...engine.families import Architecture, LayerKind, Rope, tensor_shapes
from ...engine.families.shapes import EMBEDDING, HEAD, NORM, layer_prefix
from ...engine.interface import Parts
from ...engine.wire import Buffer, Header
from .defaults import LEAST_ROWS, LOGITS, PART_POSITIONS

Turn = tuple[torch.Tensor, torch.Tensor]


class WholeNetwork:
    """All layers of a model. Its weights are zero until they are set."""

    def __init__(self, arch: Architecture) -> None:
        self.arch = arch
        shapes = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
        self.weights = {role: torch.zeros(shape) for role, shape in shapes.items()}
        self._scoring = Scoring(arch.attention_scale or None, arch.attention_cap)
        for each in self.weights.values():
            each.requires_grad_()

    def set(self, role: str, values: torch.Tensor) -> None:
        """Replace a weight. Raises KeyError or ValueError if the model has none of this shape."""
        weight = self.weights[role]
        if values.numel() != weight.numel():
            raise ValueError(f"`{role}` has {weight.numel()} values, not {values.numel()}")
        with torch.no_grad():
            weight.copy_(values.view(weight.shape))

    def compute(
        self, tokens: torch.Tensor, targets: torch.Tensor, *, back: bool
    ) -> tuple[float, int]:
        """Return the sum of the cross-entropies of rows x length in nats, and the number of counted
        positions. If `back`, the derivatives are in `gradient` afterwards.

        `targets` are token ids, or negative for positions that do not count.
        """
        for each in self.weights.values():
            each.grad = None
        total = 0.0
        rows = max(1, PART_POSITIONS // tokens.shape[1])
        with torch.set_grad_enabled(back):
            for first in range(0, len(tokens), rows):
                some = slice(first, first + rows)
                total += self._part(tokens[some], targets[some], back=back)
        return total, int((targets >= 0).sum())

    def gradient(self, role: str) -> torch.Tensor:
        """Return the derivative by a weight. Raises KeyError."""
        weight = self.weights[role]
        return torch.zeros_like(weight) if weight.grad is None else weight.grad

    def _part(self, tokens: torch.Tensor, targets: torch.Tensor, *, back: bool) -> float:
        """Return the loss of some rows, and add their derivatives.

        Logits of a part may take gigabytes, so only those of some positions are in memory at once.
        """
        targets = targets.reshape(-1)
        places = (targets >= 0).nonzero()[:, 0]
        if not len(places):
            return 0.0
        normed = self._norm(self._layers(tokens)[places], NORM)
        leaf = normed.detach().requires_grad_(back)
        total = 0.0
        for some in self._slices(len(places)):
            loss = F.cross_entropy(self._logits(leaf[some]), targets[places[some]], reduction="sum")
            total += float(loss.detach().double())
            if back:
                loss.backward()
        if back:
            assert leaf.grad is not None
            normed.backward(leaf.grad)
        return total

    def _slices(self, count: int) -> Iterator[slice]:
        each = max(LEAST_ROWS, LOGITS // self.arch.vocab)
        for first in range(0, count, each):
            yield slice(first, first + each)

    def _logits(self, normed: torch.Tensor) -> torch.Tensor:
        logits = F.linear(normed, self.weights[EMBEDDING if self.arch.tied else HEAD])
        if cap := self.arch.logit_cap:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def _layers(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the residual stream after all layers, as positions x hidden."""
        arch, (rows, length) = self.arch, tokens.shape
        x = F.embedding(tokens, self.weights[EMBEDDING]) * arch.embedding_scale
        x = x.view(rows * length, arch.hidden)
        turns = {
            rope: self._turn(rope, length)
            for rope in dict.fromkeys(kind.rope for kind in arch.kinds)
        }
        for layer, kind in enumerate(arch.kinds):
            prefix, names = layer_prefix(layer), arch.names
            mixed = self._attention(x, prefix, kind, (rows, length), turns[kind.rope])
            x = x + self._normed(mixed, prefix, names.mixed_norm)
            added = self._feed_forward(x, prefix)
            x = x + self._normed(added, prefix, names.output_norm)
        return x

    def _attention(
        self, x: torch.Tensor, prefix: str, kind: LayerKind, shape: tuple[int, int], turn: Turn
    ) -> torch.Tensor:
        names = self.arch.names
        normed = self._norm(x, f"{prefix}{names.input_norm}.weight")
        heads = torch.cat([self._linear(normed, f"{prefix}{name}") for name in names.qkv], -1)
        arch = self.arch
        counts = (arch.heads, arch.kv_heads, arch.kv_heads)
        queries, keys, values = heads.view(*shape, -1, arch.head_dim).split(counts, 2)
        if self.arch.qk_norm:
            queries = self._norm(queries, f"{prefix}{names.query_norm}.weight")
            keys = self._norm(keys, f"{prefix}{names.key_norm}.weight")
        triple: Triple = (_turned(queries, turn), _turned(keys, turn), values)
        found = attended(triple, self._scoring, kind.window)
        return self._linear(found, f"{prefix}{names.output}")

    def _feed_forward(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        names = self.arch.names
        normed = self._norm(x, f"{prefix}{names.mlp_norm}.weight")
        both = torch.cat([self._linear(normed, f"{prefix}{name}") for name in names.gate_up], -1)
        gate, up = both.chunk(2, -1)
        return self._linear(activated(self.arch.activation, gate) * up, f"{prefix}{names.down}")

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _normed(self, x: torch.Tensor, prefix: str, name: str | None) -> torch.Tensor:
        """Return the norm of what a layer adds to the residual stream, if the family has one."""
        return x if name is None else self._norm(x, f"{prefix}{name}.weight")

    def _norm(self, x: torch.Tensor, role: str) -> torch.Tensor:
        weight = self.weights[role]
        if self.arch.norm_offset:
            weight = weight + self.arch.norm_offset
        return torch.rms_norm(x, weight.shape, weight, self.arch.eps)

    def _turn(self, rope: Rope, length: int) -> Turn:
        """Return cosines and sines (length x 1 x rotated). The first half of the sines is
        negated."""
        angles = torch.arange(length).float()[:, None]
        angles = angles * frequencies(rope, self.arch.rotated or self.arch.head_dim)
        cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
        return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]


def _turned(heads: torch.Tensor, turn: Turn) -> torch.Tensor:
    """Apply the rotary embedding to the leading values of each head."""
    cos, sin = turn
    rotated: Final = cos.shape[-1]
    first = heads[..., :rotated]
    first = first * cos + first.roll(rotated // 2, -1) * sin
    return torch.cat((first, heads[..., rotated:]), -1)


_INT32: int = 4  # bytes


def answer(network: WholeNetwork, header: Header, payload: memoryview) -> tuple[Header, Buffer]:
    """Answer one request. Raises EngineError if it is malformed, or a result is not finite."""
    match header:
        case ("set", str(role)) if role in network.weights:
            return _set(network, role, payload)
        case ("gradient", str(role)) if role in network.weights:
            return ("ok",), raw_bytes(network.gradient(role).contiguous())
        case ("compute", int(rows), int(length), bool(back)) if rows > 0 < length:
            return _compute(network, (rows, length), payload, back=back)
    raise EngineError("bad-message", "the request is malformed")


def _set(network: WholeNetwork, role: str, payload: memoryview) -> tuple[Header, Buffer]:
    if len(payload) != 4 * network.weights[role].numel():
        raise EngineError("bad-tensor", f"`{role}` has another size")
    values = torch.frombuffer(payload, dtype=torch.float32)
    if not bool(torch.isfinite(values).all()):
        raise EngineError("not-finite", f"`{role}` has values that are not finite")
    network.set(role, values)
    return ("ok",), b""


def _compute(
    network: WholeNetwork, shape: tuple[int, int], payload: memoryview, *, back: bool
) -> tuple[Header, Buffer]:
    size = _INT32 * shape[0] * shape[1]
    if len(payload) != 2 * size:
        raise EngineError("bad-message", f"{len(payload)} bytes are not that batch")
    if shape[1] > network.arch.context:
        raise EngineError("too-long", f"the context is {network.arch.context}")
    tokens, targets = (
        torch.frombuffer(part, dtype=torch.int32).long().view(shape)
        for part in (payload[:size], payload[size:])
    )
    vocab = network.arch.vocab
    if int(tokens.min()) < 0 or max(int(tokens.max()), int(targets.max())) >= vocab:
        raise EngineError("bad-token", f"a token is not among the {vocab} known")
    loss, counted = network.compute(tokens, targets, back=back)
    if not math.isfinite(loss):
        raise EngineError("not-finite", "the loss is not finite")
    return ("ok", loss, counted), b""
