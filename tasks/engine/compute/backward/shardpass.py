"""Training passes of one loaded shard. Implements `Tuner` and `ShardPass` of `../../passes.py`.

All activations are float32, whatever the precision of the weights. Sequences attend within
themselves only, so a batch needs no memory of keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from ...adapters import AdapterTerms, Module, lacking
from ...errors import EngineError
from ...families import Architecture, Rope
from ...passes import PassOrder, pass_sizes, tensor_sizes
from ...scheduling.costs import StepCosts
from ...wire import Buffer
from ..kv import raw_bytes
from ..lora import Matrix
from ..model import ShardModel
from ..rotary import frequencies
from ..weights import TORCH_DTYPES
from .attention import Heads, warm_up
from .fitting import fitted
from .head import FrozenHead
from .layer import FrozenLayer, SavedValues, Sequences, no_backward
from .low_rank import Pair, Trained, changes_of, layer_pairs, sums_of
from .pacing import PassSpeed, ProductRate, Work
from .pointwise import HeadRotation

_WEIGHT_S: Final = 3e-11  # seconds for a row and a weight where no row was measured
_PAIR: Final = 6.0  # time of a pair in a pass, as a multiple of that in a step of a prompt
_FLOAT: Final = 4  # bytes


@dataclass(frozen=True, slots=True)
class TunedAdapter:
    """The tensors of the layers of a shard, by layer (counted from the shard's first one)."""

    terms: AdapterTerms
    layers: dict[int, dict[Module, Pair]]


@dataclass(slots=True)
class SavedPass:
    """Values that a forward pass saves: of each layer its input and perhaps more."""

    layers: list[SavedValues] = field(default_factory=list)


class ShardTuner:
    """A loaded shard as training passes need it. The weights are those of the model."""

    def __init__(self, model: ShardModel, costs: StepCosts, *, measure: bool = False) -> None:
        """`measure`: find out what products take on this machine.

        Raises EngineError `no-backward` if the model has parts without a backward pass.
        """
        arch, parts = model.arch, model.parts
        if arch.recurrent or any(kind.experts for kind in arch.kinds):
            raise no_backward(arch.family)
        self.model, self.arch, self.parts = model, arch, parts
        heads = Heads(arch.heads, arch.kv_heads, arch.head_dim, arch.gated_attention)
        self.layers = [FrozenLayer(each, heads, arch.family) for each in model.layers]
        self.head = FrozenHead(model) if parts.head else None
        self._costs = costs
        warm_up()
        with _computing():
            self._rates = fitted(self.layers, model.device.name) if measure else None

    def pace(self) -> PassSpeed:
        """Return the predicted times of units: measured ones, or from the costs of a step."""
        if self._rates is None:
            weights = sum(layer.weights for layer in self.layers)
            row_s = self._costs.row / weights if weights and self._costs.row else _WEIGHT_S
            self._rates = ProductRate(0.0, row_s), ProductRate(0.0, row_s)
        each = len(self.layers) * self.arch.kv_heads
        return PassSpeed(*self._rates, _PAIR * self._costs.attended / each if each else 0.0)

    def turns(self, length: int) -> list[HeadRotation]:
        """Return the rotary embedding of each layer for the first positions of a sequence."""
        rotated = self.arch.rotated or self.arch.head_dim
        kinds = self.arch.kinds[self.parts.start : self.parts.stop]
        each = {
            rope: self._turn(rope, rotated, length)
            for rope in dict.fromkeys(kind.rope for kind in kinds)
        }
        return [each[kind.rope] for kind in kinds]

    def _turn(self, rope: Rope, rotated: int, length: int) -> HeadRotation:
        angles = torch.arange(length).float()[:, None] * frequencies(rope, rotated)
        cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
        upload = self.model.device.upload
        pair = torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]
        return HeadRotation(upload(pair[0]), upload(pair[1]))

    # Implementation of `Tuner`.

    def check(self, terms: AdapterTerms) -> None:
        """Raise EngineError `bad-adapter` if an adapter does not fit."""
        if module := lacking(terms.modules, self.arch):
            raise EngineError("bad-adapter", f"the model has no `{module}`")
        if terms.layers[-1] >= self.arch.layers:
            raise EngineError("bad-adapter", "the adapter has more layers than the model")

    def adapter(self, terms: AdapterTerms, data: memoryview) -> TunedAdapter:
        sizes = tensor_sizes(terms, self.arch, self.parts)
        if len(data) != _FLOAT * sum(sizes):
            raise EngineError("bad-adapter", f"{len(data)} bytes are not the adapter's tensors")
        values = torch.frombuffer(data, dtype=torch.float32) if data else torch.empty(0)
        if not finite(values):
            raise EngineError("bad-adapter", "the adapter has values that are not finite")
        values = self.model.device.upload(values)
        first, count = self.parts.start, terms.values(self.arch)
        mine = [layer for layer in terms.layers if first <= layer < self.parts.stop]
        return TunedAdapter(
            terms,
            {
                layer - first: layer_pairs(values[at * count : (at + 1) * count], terms, self.arch)
                for at, layer in enumerate(mine)
            },
        )

    def kept_bytes(self, order: PassOrder, *, results: bool) -> int:
        arch = self.arch
        each = arch.hidden
        if results:
            each += _heads(arch) + arch.heads * arch.head_dim
            each += arch.hidden * (1 + bool(arch.names.output_norm))
            each += 2 * arch.intermediate
        return _FLOAT * order.positions * each * len(self.layers)

    def work_bytes(self, order: PassOrder) -> int:
        arch, positions = self.arch, order.positions
        each = 9 * arch.hidden + 5 * _heads(arch) + 8 * arch.intermediate
        values = positions * each
        if arch.attention_cap or any(0 < window < order.length for window in arch.windows):
            values += 6 * order.length**2 * arch.heads // arch.kv_heads
        if self.head is not None:
            values += (
                2 * min(positions, self.head.positions) * arch.vocab + 4 * positions * arch.hidden
            )
        values += arch.hidden * max(3 * arch.intermediate, _heads(arch))  # a matrix, as scratch
        return _FLOAT * values

    def begin(
        self,
        order: PassOrder,
        adapter: TunedAdapter,
        payload: memoryview,
        kept: SavedPass | None,
        *,
        results: bool,
    ) -> "TorchPass":
        tensors = tensor_sizes(adapter.terms, self.arch, self.parts)
        try:
            sizes = pass_sizes(order, self.parts, self.arch.hidden, tensors)
        except ValueError as error:
            raise EngineError("bad-span", str(error)) from None
        if len(payload) != sizes.payload:
            raise EngineError("bad-hidden", f"{len(payload)} bytes are not that pass")
        if order.length > self.arch.context:
            raise EngineError("too-long", f"the context is {self.arch.context}")
        with _computing():
            return TorchPass(self, order, adapter, (payload, sizes[:3]), kept, results)


class TorchPass:
    """One pass that is being computed."""

    def __init__(
        self,
        tuner: ShardTuner,
        order: PassOrder,
        adapter: TunedAdapter,
        payload: tuple[memoryview, tuple[int, ...]],
        kept: SavedPass | None,
        results: bool,
    ) -> None:
        self.predicted = 0.0
        self._tuner, self._order, self._results = tuner, order, results
        self._pace = tuner.pace()
        self._inputs = _Inputs.read(tuner, order, *payload)
        self._changes = _changes(tuner, order, adapter)
        self._kept = kept
        self._loss, self._counted = 0.0, 0
        self._data: Buffer = b""
        self._work = self._run()
        self._next: float | None = 0.0

    @property
    def next_s(self) -> float | None:
        return self._next

    def advance(self, unit_s: float) -> None:
        self._pace.unit_s = unit_s
        with _computing():
            self.predicted += self._next or 0.0
            self._next = next(self._work, None)

    def answer(self) -> tuple[float, int, Buffer]:
        return self._loss, self._counted, self._data

    def kept(self) -> SavedPass | None:
        return self._kept

    def _run(self) -> Work[None]:
        """Compute the pass."""
        order, tuner = self._order, self._tuner
        turns = tuner.turns(order.length)
        steps = [Sequences(order.rows, order.length, turn, self._pace) for turn in turns]
        x = None
        if self._kept is None or (tuner.head is not None and order.back):
            x = yield from self._forward(steps)
        gradient = self._inputs.gradient
        if tuner.head is not None:
            assert x is not None and self._inputs.targets is not None
            targets = self._inputs.targets
            self._counted = int((targets >= 0).sum())
            self._loss, gradient = yield from tuner.head.loss(
                x, targets, self._pace, back=order.back
            )
            if not np.isfinite(self._loss):
                raise EngineError("not-finite", "the loss is not finite")
        if not order.back:
            self._answer([] if tuner.head is not None else [self._sent(x)])
            return
        assert gradient is not None
        x = None
        found = yield from self._backward(gradient, steps)
        self._answer(found)

    def _forward(self, steps: Sequence[Sequences]) -> Work[torch.Tensor]:
        """Compute all layers, and return the residual stream."""
        order, x = self._order, self._inputs.x
        assert x is not None
        self._inputs.x = None
        kept = SavedPass()
        for layer, changes, step in zip(self._tuner.layers, self._changes, steps, strict=True):
            each = SavedValues(x)
            x = yield from layer.forward(each, changes, step, keep=self._results)
            if order.keep or order.back:
                kept.layers.append(each)
        self._kept = kept
        return x

    def _backward(
        self, gradient: torch.Tensor, steps: Sequence[Sequences]
    ) -> Work[list[torch.Tensor]]:
        """Compute the derivatives, and return those of the answer."""
        tuner, kept = self._tuner, self._kept
        assert kept is not None
        lowest = self._lowest()
        down = self._order.down and not tuner.parts.embedding
        for index in reversed(range(len(tuner.layers))):
            if index < lowest:
                break
            state = kept.layers.pop()
            gradient = yield from tuner.layers[index].backward(
                state, gradient, self._changes[index], steps[index], down=index > lowest or down
            )
        self._kept = None
        found = [self._sent(gradient)] if down else []
        for changes in self._changes:
            found += [each for some in changes.values() for each in sums_of(some)]
        return found

    def _lowest(self) -> int:
        """Return the first layer whose derivatives are needed."""
        if self._order.down and not self._tuner.parts.embedding:
            return 0
        wanted = [
            index
            for index, changes in enumerate(self._changes)
            if any(True for some in changes.values() for _ in sums_of(some))
        ]
        return wanted[0] if wanted else len(self._changes)

    def _sent(self, values: torch.Tensor | None) -> torch.Tensor:
        assert values is not None
        return values.to(TORCH_DTYPES[self._order.wire])

    def _answer(self, found: Sequence[torch.Tensor]) -> None:
        """Set the data of the answer."""
        download = self._tuner.model.device.download
        parts = []
        for each in found:
            if not finite(each):
                raise EngineError("not-finite", "a result of the pass is not finite")
            parts.append(raw_bytes(download(each.contiguous())))
        self._data = parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(slots=True)
class _Inputs:
    """The payload of a pass: positions x hidden, target ids, positions x hidden."""

    x: torch.Tensor | None
    targets: torch.Tensor | None
    gradient: torch.Tensor | None

    @classmethod
    def read(
        cls, tuner: ShardTuner, order: PassOrder, payload: memoryview, sizes: tuple[int, ...]
    ) -> "_Inputs":
        """Read a payload whose parts have these sizes in bytes, and check its values."""
        first, second = sizes[0], sizes[0] + sizes[1]
        raw = payload[:first], payload[first:second], payload[second:]
        x = None
        if order.given and tuner.parts.embedding:
            x = tuner.model.embed(_ids(raw[0], tuner, 0)).float()
        elif order.given:
            x = _states(raw[0], tuner, order)
        targets = _ids(raw[1], tuner, -(1 << 31)) if raw[1] else None
        return cls(x, targets, _states(raw[2], tuner, order) if raw[2] else None)


def _ids(raw: memoryview, tuner: ShardTuner, least: int) -> torch.Tensor:
    """Return token ids of at least `least`. Raises EngineError `bad-token`."""
    ids = torch.frombuffer(raw, dtype=torch.int32).long()
    low, high = torch.aminmax(ids)
    if int(low) < least or int(high) >= tuner.arch.vocab:
        raise EngineError("bad-token", f"a token is not among the {tuner.arch.vocab} known")
    return tuner.model.device.upload(ids)


def _states(raw: memoryview, tuner: ShardTuner, order: PassOrder) -> torch.Tensor:
    """Return positions x hidden in float32. Raises EngineError `not-finite`."""
    values = torch.frombuffer(raw, dtype=TORCH_DTYPES[order.wire]).view(-1, tuner.arch.hidden)
    if not finite(values):
        raise EngineError("not-finite", "the input has values that are not finite")
    return tuner.model.device.upload(values.float())


def _changes(
    tuner: ShardTuner, order: PassOrder, adapter: TunedAdapter
) -> list[dict[Matrix, list[Trained]]]:
    """Return the changes of each layer, with sums for the derivatives that the order wants."""
    terms, found, at = adapter.terms, list[dict[Matrix, list[Trained]]](), 0
    for index in range(len(tuner.layers)):
        pairs = adapter.layers.get(index)
        if pairs is None:
            found.append({})
            continue
        wanted = {}
        for module in terms.modules:
            one, other = order.wanted[at : at + 2]
            wanted[module] = order.back and bool(one), order.back and bool(other)
            at += 2
        found.append(changes_of(pairs, wanted, terms.scale, tuner.arch))
    return found


def _heads(arch: Architecture) -> int:
    """Return the number of values of queries, keys and values of a position."""
    return (arch.heads + 2 * arch.kv_heads) * arch.head_dim


def finite(values: torch.Tensor) -> bool:
    """Return whether all values are finite. Their sum says so ten times as fast, but may
    overflow."""
    total = values.sum(dtype=torch.float32)
    return bool(torch.isfinite(total)) or bool(torch.isfinite(values).all())


class _computing:
    """Computes without recording derivatives, but such that attention may record its own: not in
    inference mode, in which the worker is otherwise."""

    def __enter__(self) -> None:
        self._modes = torch.inference_mode(False), torch.no_grad()
        for mode in self._modes:
            mode.__enter__()

    def __exit__(self, *error: object) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
