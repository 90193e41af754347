"""Forward and backward pass of one frozen layer with the changes of an adapter, in float32.

The backward pass recomputes what the forward pass has not saved. `SavedValues` says what that is:
with the results of the products, only cheap operations and attention are computed again.
"""

from dataclasses import dataclass

import torch

from ...errors import EngineError
from ..layers import AttentionPart, DensePart
from ..lora import Matrix
from ..model import Layer
from .attention import Heads, attend, attend_reverse
from .low_rank import Changes
from .matrices import Frozen, frozen
from .pacing import PassSpeed, Work, product, reverse
from .pointwise import FrozenNorm, HeadRotation, activated, activation_reverse


@dataclass(slots=True)
class SavedValues:
    """Values that a forward pass saves of one layer: its input, and perhaps results of products.

    All are positions x values: `x` the input, `heads` queries, keys and values, `attended` the
    result of attention, `mixed` its product, `gate_up` gates and ups, `output` what the
    feed-forward part adds, if it is normed.
    """

    x: torch.Tensor
    heads: torch.Tensor | None = None
    attended: torch.Tensor | None = None
    mixed: torch.Tensor | None = None
    gate_up: torch.Tensor | None = None
    output: torch.Tensor | None = None


class FrozenLayer:
    """One loaded layer: attention and a dense feed-forward part."""

    def __init__(self, layer: Layer, heads: Heads, family: str) -> None:
        """Read a layer. Raises EngineError `no-backward` if it has other parts."""
        mixer, mlp = layer.mixer, layer.mlp
        if not isinstance(mixer, AttentionPart) or not isinstance(mlp, DensePart):
            raise no_backward(family)
        if heads.gated or mixer.scoring.sinks is not None:
            raise no_backward(family)
        self._heads = heads
        self._matrices: dict[Matrix, Frozen] = {
            "qkv": frozen(mixer.qkv),
            "output": frozen(mixer.output),
            "gate_up": frozen(mlp.gate_up),
            "down": frozen(mlp.down),
        }
        self._window, self._scoring = mixer.window, mixer.scoring
        self._activation = mlp.activation
        self._input_norm = FrozenNorm.of(layer.input_norm)
        self._mlp_norm = FrozenNorm.of(layer.mlp_norm)
        self._mixed_norm = FrozenNorm.of(layer.mixed_norm) if layer.mixed_norm else None
        self._output_norm = FrozenNorm.of(layer.output_norm) if layer.output_norm else None
        self._query_norm = FrozenNorm.of(mixer.query_norm) if mixer.query_norm else None
        self._key_norm = FrozenNorm.of(mixer.key_norm) if mixer.key_norm else None

    @property
    def weights(self) -> int:
        """Number of weights in its matrices."""
        return sum(each.outputs * each.inputs for each in self._matrices.values())

    @property
    def widest(self) -> Frozen:
        """The matrix with most outputs."""
        return max(self._matrices.values(), key=lambda each: each.outputs)

    def forward(
        self, kept: SavedValues, changes: Changes, step: "Sequences", *, keep: bool
    ) -> Work[torch.Tensor]:
        """Compute the layer for `kept.x`, and return the residual stream.

        If `keep`, the results of products are stored in `kept`.
        """
        x = kept.x
        heads = yield from self._times("qkv", self._input_norm(x), changes, step.pace)
        attended = yield from self._attended(heads, step)
        mixed = yield from self._times("output", attended, changes, step.pace)
        middle = x + self._normed(self._mixed_norm, mixed)
        gate_up = yield from self._times("gate_up", self._mlp_norm(middle), changes, step.pace)
        inner = yield from self._inner(gate_up, step.pace)
        output = yield from self._times("down", inner, changes, step.pace)
        if keep:
            kept.heads, kept.attended, kept.mixed = heads, attended, mixed
            kept.gate_up = gate_up
            kept.output = None if self._output_norm is None else output
        return middle + self._normed(self._output_norm, output)

    def backward(
        self,
        kept: SavedValues,
        gradient: torch.Tensor,
        changes: Changes,
        step: "Sequences",
        *,
        down: bool,
    ) -> Work[torch.Tensor]:
        """Compute the derivative by the input from that by the output (`gradient`).

        Those by the tensors of the adapter are added to the sums of `changes`. Unless `down`, the
        derivative by the input is not needed, and the result has no meaning.
        """
        if kept.gate_up is None:
            yield from self.forward(kept, changes, step, keep=True)
        heads, mixed, gate_up = kept.heads, kept.mixed, kept.gate_up
        assert heads is not None and mixed is not None and gate_up is not None
        middle = kept.x + self._normed(self._mixed_norm, mixed)
        by_middle = yield from self._mlp_reverse(kept, middle, gradient, changes, step.pace)
        by_mixed = by_middle
        if self._mixed_norm is not None:
            by_mixed = self._mixed_norm.reverse(mixed, by_middle)
        by_heads = yield from self._attention_reverse(kept, by_mixed, changes, step)
        normed = self._input_norm(kept.x)
        found = yield from self._reverse("qkv", normed, by_heads, changes, step.pace, down=down)
        if found is None:
            return by_middle
        return by_middle + self._input_norm.reverse(kept.x, found)

    def _mlp_reverse(
        self,
        kept: SavedValues,
        middle: torch.Tensor,
        gradient: torch.Tensor,
        changes: Changes,
        pace: PassSpeed,
    ) -> Work[torch.Tensor]:
        """Compute the derivative by the input of the feed-forward part and its residual stream."""
        gate_up = kept.gate_up
        assert gate_up is not None
        by_output = gradient
        if self._output_norm is not None:
            assert kept.output is not None
            by_output = self._output_norm.reverse(kept.output, gradient)
        inner = None
        if "down" in changes:
            inner = yield from self._inner(gate_up, pace)
        by_inner = yield from self._reverse("down", inner, by_output, changes, pace)
        assert by_inner is not None
        del inner
        by_gate_up = yield from self._inner_reverse(gate_up, by_inner, pace)
        normed = self._mlp_norm(middle)
        by_normed = yield from self._reverse("gate_up", normed, by_gate_up, changes, pace)
        assert by_normed is not None
        return gradient + self._mlp_norm.reverse(middle, by_normed)

    def _attention_reverse(
        self, kept: SavedValues, by_mixed: torch.Tensor, changes: Changes, step: "Sequences"
    ) -> Work[torch.Tensor]:
        """Compute the derivative by queries, keys and values."""
        attended, heads = kept.attended, kept.heads
        assert heads is not None
        by_attended = yield from self._reverse("output", attended, by_mixed, changes, step.pace)
        assert by_attended is not None
        queries, keys, values = self._turned(heads, step)
        found = yield from attend_reverse(
            (queries, keys, values),
            self._heads.split(by_attended, step)[0],
            self._scoring,
            self._window,
            step.pace,
        )
        return self._turn_reverse(heads, found, step)

    # Products with an adapter.

    def _times(
        self, matrix: Matrix, x: torch.Tensor, changes: Changes, pace: PassSpeed
    ) -> Work[torch.Tensor]:
        out = yield from product(self._matrices[matrix], x, pace)
        for change in changes.get(matrix, ()):
            change.add(out, x)
        return out

    def _reverse(
        self,
        matrix: Matrix,
        x: torch.Tensor | None,
        gradient: torch.Tensor,
        changes: Changes,
        pace: PassSpeed,
        *,
        down: bool = True,
    ) -> Work[torch.Tensor | None]:
        found = None
        if down:
            found = yield from reverse(self._matrices[matrix], gradient, pace)
        for change in changes.get(matrix, ()):
            assert x is not None  # it was computed for the changes
            change.reverse(x, gradient, found)
        return found

    # Attention.

    def _attended(self, heads: torch.Tensor, step: "Sequences") -> Work[torch.Tensor]:
        turned = self._turned(heads, step)
        return (yield from attend(turned, self._scoring, self._window, step.pace))

    def _turned(
        self, heads: torch.Tensor, step: "Sequences"
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values, each sequences x length x heads x head_dim."""
        queries, keys, values = self._heads.split(heads, step)
        if self._query_norm is not None and self._key_norm is not None:
            queries, keys = self._query_norm(queries), self._key_norm(keys)
        return step.turn(queries), step.turn(keys), values

    def _turn_reverse(
        self,
        heads: torch.Tensor,
        gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        step: "Sequences",
    ) -> torch.Tensor:
        """Return the derivative by the product with queries, keys and values."""
        by_queries, by_keys, by_values = gradients
        by_queries, by_keys = step.turn.reverse(by_queries), step.turn.reverse(by_keys)
        if self._query_norm is not None and self._key_norm is not None:
            queries, keys, _ = self._heads.split(heads, step)
            by_queries = self._query_norm.reverse(queries, by_queries)
            by_keys = self._key_norm.reverse(keys, by_keys)
        flat = [each.flatten(2) for each in (by_queries, by_keys, by_values)]
        return torch.cat(flat, -1).flatten(0, 1)

    # The feed-forward part.

    def _inner(self, gate_up: torch.Tensor, pace: PassSpeed) -> Work[torch.Tensor]:
        width = gate_up.shape[1] // 2
        inner = gate_up.new_empty(len(gate_up), width)
        for first, end, seconds in pace.rows(gate_up):
            yield seconds
            gate, up = gate_up[first:end].chunk(2, -1)
            torch.mul(activated(self._activation, gate), up, out=inner[first:end])
        return inner

    def _inner_reverse(
        self, gate_up: torch.Tensor, gradient: torch.Tensor, pace: PassSpeed
    ) -> Work[torch.Tensor]:
        found = torch.empty_like(gate_up)
        width = gradient.shape[1]
        for first, end, seconds in pace.rows(gate_up):
            yield seconds
            gate, up = gate_up[first:end].chunk(2, -1)
            some = gradient[first:end]
            by_gate = activation_reverse(self._activation, gate, some * up)
            found[first:end, :width] = by_gate
            torch.mul(some, activated(self._activation, gate), out=found[first:end, width:])
        return found

    @staticmethod
    def _normed(norm: FrozenNorm | None, x: torch.Tensor) -> torch.Tensor:
        return x if norm is None else norm(x)


@dataclass(frozen=True, slots=True)
class Sequences:
    """The batch of a pass as a layer sees it: `rows` sequences of `length` positions, and the
    rotary embedding of the layer."""

    rows: int
    length: int
    turn: HeadRotation
    pace: PassSpeed


def no_backward(family: str) -> EngineError:
    """Return the error of a model whose layers have no backward pass."""
    return EngineError("no-backward", f"layers of the family `{family}` have no backward pass")
