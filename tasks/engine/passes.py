"""Orders and interfaces of training passes. No I/O, no torch. Spec: docs/spec/tuning.md.

A trainer opens a *tuning* of a shard, sets the tensors of its adapter, and has *passes* computed: a
batch forward through the shard, or backward. One batch of a trainer is cut into *parts*, each with
a number, so that several stages are busy at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

from msgspec import Meta

from ...transport.message import Natural, Row
from .adapters import AdapterTerms, module_shapes
from .defaults import PASS_POSITIONS
from .families import DTYPE_BYTES, Architecture
from .interface import DType, Parts, SessionId
from .wire import Buffer

Wanted = tuple[bool, bool]
"""Whether the derivatives by A and by B of a module are wanted."""


class OpenTuning(Row, frozen=True):
    """Command to open a tuning of the shard with a number, for the trainer `owner`.

    `own` says that it is of this machine. `terms` has the dtype F32.
    """

    shard: Natural
    owner: Annotated[str, Meta(max_length=128)]
    own: bool
    terms: AdapterTerms

    def check(self) -> None:
        """Raise ValueError if the terms are inconsistent."""
        self.terms.check()
        if self.terms.dtype != "F32":
            raise ValueError("an adapter is trained in F32")


class PassOrder(Row, frozen=True):
    """One pass over a part of a batch: `rows` sequences of `length` positions.

    A forward pass has the input (`given`), and keeps what a backward pass needs, if `keep`. A
    backward pass may have the input again. At the head, both have targets and compute the loss, and
    the backward pass needs no gradient. `down`: the derivative by the input is wanted. `wanted` has
    one byte for each tensor of the shard's layers, in the order of an adapter's file: 1 if its
    derivative is wanted. Hidden states and their derivatives are in `wire`.
    """

    part: Natural
    rows: Annotated[int, Meta(ge=1, le=PASS_POSITIONS)]
    length: Annotated[int, Meta(ge=1, le=PASS_POSITIONS)]
    back: bool
    given: bool
    keep: bool
    down: bool
    wire: DType
    wanted: Annotated[bytes, Meta(max_length=1 << 14)]

    def check(self) -> None:
        """Raise ValueError if the values contradict each other."""
        if self.positions > PASS_POSITIONS:
            raise ValueError(f"a pass has at most {PASS_POSITIONS} positions")
        if not (self.back or self.given):
            raise ValueError("a forward pass needs its input")
        if self.wanted.translate(None, b"\0\1"):
            raise ValueError("`wanted` has other bytes than 0 and 1")

    @property
    def positions(self) -> int:
        """Number of positions of all sequences."""
        return self.rows * self.length


class PassSizes(NamedTuple):
    """Bytes of the parts of a pass's payload, in this order, and of its answer."""

    input: int
    targets: int
    gradient: int
    answer: int

    @property
    def payload(self) -> int:
        """Bytes of the payload."""
        return self.input + self.targets + self.gradient


def pass_sizes(order: PassOrder, parts: Parts, hidden: int, tensors: Sequence[int]) -> PassSizes:
    """Return the sizes of a pass on a shard. `tensors` are the values of each tensor of its layers.

    Raises ValueError if `wanted` does not fit the tensors.
    """
    if len(order.wanted) != len(tensors):
        raise ValueError(
            f"`wanted` is for {len(order.wanted)} tensors, the shard has {len(tensors)}"
        )
    states = order.positions * hidden * DTYPE_BYTES[order.wire]
    ids = 4 * order.positions
    wanted = sum(size for size, want in zip(tensors, order.wanted, strict=True) if want)
    down = states if order.down and not parts.embedding else 0
    return PassSizes(
        (ids if parts.embedding else states) if order.given else 0,
        ids if parts.head else 0,
        states if order.back and not parts.head else 0,
        4 * wanted + down if order.back else 0 if parts.head else states,
    )


@dataclass(frozen=True, slots=True)
class PassDone:
    """Answer to a pass. `data` is the output; or the derivative by the input, if it is wanted, and
    those by the tensors, in float32. `loss` and `counted` are those of the head."""

    loss: float
    counted: int
    seconds: float
    predicted: float
    data: Buffer


def tensor_sizes(terms: AdapterTerms, arch: Architecture, parts: Parts) -> list[int]:
    """Return the number of values of each tensor of a shard's layers, in the order of an adapter's
    file. Raises EngineError `bad-adapter` if the model lacks a module."""
    terms.values(arch)
    shapes, (_, layers) = module_shapes(arch), terms.place(parts.start, parts.stop)
    one = [terms.rank * size for module in terms.modules for size in reversed(shapes[module])]
    return one * layers


@runtime_checkable
class TuningEngine(Protocol):
    """The part of an engine that computes training passes. Any method raises EngineError if the
    engine refuses."""

    async def open_tuning(self, tuning: SessionId, order: OpenTuning) -> None:
        """Open a tuning of a shard. It has no tensors yet.

        Raises EngineError `no-backward`, `bad-adapter`, `no-memory` and `too-many`.
        """
        ...

    async def set_tensors(self, tuning: SessionId, data: Buffer) -> None:
        """Replace the tensors of a tuning: float32 values of the shard's layers, in the order of an
        adapter's file. Raises EngineError `busy` while passes wait."""
        ...

    async def tune(self, tuning: SessionId, order: PassOrder, data: Buffer) -> PassDone:
        """Compute a pass over a payload as `pass_sizes` describes it.

        If this is cancelled, the pass is dropped.

        Raises EngineError `no-input` if the input was not given and is no longer there.
        """
        ...

    async def close_tuning(self, tuning: SessionId) -> None:
        """Close a tuning. Unknown ones are ignored."""
        ...


class ShardPass(Protocol):
    """A pass that is being computed."""

    predicted: float
    """Seconds that are predicted for the units so far."""

    @property
    def next_s(self) -> float | None:
        """Predicted seconds of the next unit, or None if the pass is done."""
        ...

    def advance(self, unit_s: float) -> None:
        """Compute the next unit. Cut those after it so that they take about `unit_s` seconds.

        Raises EngineError `not-finite` if a value is not finite.
        """
        ...

    def answer(self) -> tuple[float, int, Buffer]:
        """Return the loss, the number of counted positions, and the data of the answer."""
        ...

    def kept(self) -> Any:
        """Return what a backward pass over the same part needs."""
        ...


class Tuner(Protocol):
    """Computes the passes of one shard."""

    def check(self, terms: AdapterTerms) -> None:
        """Raise EngineError `bad-adapter` if an adapter does not fit, or `no-backward`."""
        ...

    def adapter(self, terms: AdapterTerms, data: memoryview) -> Any:
        """Return the tensors of the shard's layers as `begin` takes them.

        Raises EngineError `bad-adapter` if there is another number of bytes or a value is not
        finite.
        """
        ...

    def kept_bytes(self, order: PassOrder, *, results: bool) -> int:
        """Return the bytes that a pass keeps: each layer's input, and with `results` also the
        results of the layer's products."""
        ...

    def work_bytes(self, order: PassOrder) -> int:
        """Return the memory that a pass needs while it is computed, without what is kept."""
        ...

    def begin(
        self, order: PassOrder, adapter: Any, payload: memoryview, kept: Any, *, results: bool
    ) -> ShardPass:
        """Begin a pass.

        `kept` is what the forward pass has kept, or None. With `results`, this pass keeps the
        results of products.

        Raises EngineError `bad-hidden` or `bad-token` if the payload is not that of the order, and
        `not-finite`.
        """
        ...
