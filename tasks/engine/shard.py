"""A shard in the worker: the interface that computes it, and the KV of its sessions."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from .adapters import LoadAdapter, LoadedAdapter, LoadedAdapters
from .errors import EngineError
from .families import DTYPE_BYTES, Architecture, kv_room, kv_token_bytes, state_bytes
from .interface import DType, KvForm, KvRange, Likely, LoadShard, Parts, Sampling, Span
from .kv.blocks import BLOCK, BlockCopy, BlockPool, BlockTable
from .kv.copy import KvCopies
from .kv.parts import KvPartCodec
from .kv.states import SessionStates, StatePool, StateUse
from .passes import Tuner
from .sampling import Change
from .scheduling.costs import AdapterCosts, StepCosts
from .wire import Buffer


class Piece(Struct, frozen=True, eq=False):
    """Rows of one session in a step: `count` rows of `source`, beginning with row `first`.

    Row `first` belongs to `position`. The KV of these positions is written to the blocks of
    `table`. `decode` says that the row continues a text; otherwise it is part of a prompt. The
    results of a row depend on this, but not on the other pieces. `adapter` is what `Compute.adapt`
    returned for the session's adapter, or None. `state` is what the step does with the states of
    recurrent layers, if there are some. `reference` rows are computed without the native kernels.
    """

    table: BlockTable
    source: Any
    first: int
    count: int
    position: int
    decode: bool
    adapter: Any = None
    state: StateUse | None = None
    reference: bool = False


class Pick(Struct, frozen=True, eq=False):
    """Order to choose a token after the last of `rows`, for `position`."""

    rows: Any
    sampling: Sampling
    position: int
    top: int = 0  # most likely tokens to report with it
    change: Change | None = None  # by the rules of the session
    reference: bool = False  # without the native kernels


class ChosenToken(NamedTuple):
    """A chosen token, its log-probability, and the most likely tokens, if they were asked for."""

    token: int
    logprob: float
    top: tuple[Likely, ...] = ()


Stop = Callable[[], bool]
"""Returns whether the step in progress must end, because an interactive request has come."""


class StepStopped(Exception):
    """A step has ended before its last layer."""


Slots = Sequence[tuple[int, int]]
"""Places of consecutive positions in a shard's memory of KV, as runs (first, after last)."""


class Compute(Protocol):
    """Interface that computes the layers of one shard.

    Rows are tensors whose type the implementation chooses, and the core does not look inside. Any
    method may raise EngineError.
    """

    arch: Architecture
    parts: Parts
    dtype: DType

    @property
    def has_reference(self) -> bool:
        """Whether pieces and picks with `reference` are computed otherwise than those without."""
        ...

    @property
    def has_own_memory(self) -> bool:
        """Whether the KV is not in host memory, so that a copy in host memory can take its
        place."""
        ...

    @property
    def exactness(self) -> str:
        """The class of machines and kernels that compute the same bits from the same input, in at
        most EXACTNESS_BYTES characters."""
        ...

    def allocate(self, blocks: int, states: int) -> None:
        """Reserve the KV memory of the shard, and slots for the states of recurrent layers, before
        anything is computed."""
        ...

    def costs(self) -> StepCosts:
        """Return the predicted costs of a step."""
        ...

    def adapt(self, adapter: LoadAdapter) -> Any:
        """Load the adapter's layers of this shard, and return them as pieces name them.

        Raises EngineError `bad-adapter` if they do not fit.
        """
        ...

    def adapter_costs(self, adapter: Any) -> AdapterCosts:
        """Return the predicted time that an adapter, as `adapt` returned it, adds to a step."""
        ...

    def tuner(self, costs: StepCosts) -> Tuner:
        """Return what computes training passes of the shard, whose steps have these costs.

        Raises EngineError `no-backward` if its layers have no backward pass.
        """
        ...

    def source(self, span: Span) -> Any:
        """Return a span's input, either token ids or rows. Raises EngineError `not-finite` if rows
        are not finite."""
        ...

    def unpacked(self, data: Buffer, count: int) -> Any:
        """Return `count` packed rows as `source` returns rows (activations/layout.py).

        Raises EngineError `bad-hidden` if there is another number of bytes, and `not-finite` if a
        scale is not finite.
        """
        ...

    def fed_back(self, *tokens: int) -> Any:
        """Return a sampled token, and the drafts that follow it, as the next input."""
        ...

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the content of KV blocks."""
        ...

    def forward(self, pieces: Sequence[Piece], stop: Stop | None = None) -> Sequence[Any]:
        """Compute one step, and return the output rows of each piece.

        Raises StepStopped if `stop`, which may be called between two layers, returns True. Then the
        KV of the step's positions is undefined.
        """
        ...

    def values(self, rows: Any, logits: bool, position: int) -> Any:
        """Return the shard's output: the rows themselves or, if `logits`, their logits.

        Raises EngineError `not-finite` if the output is not finite.
        """
        ...

    def pooled(self, rows: Any, total: Any | None, position: int) -> Any:
        """Return the sum of the final normalised states of `rows`, added to an earlier `total`.

        It has one float32 for each hidden value. Raises EngineError `not-finite` if one is not
        finite.
        """
        ...

    def joined(self, outputs: list[Any]) -> Buffer:
        """Concatenate several outputs of `values` or `pooled` and return them as bytes."""
        ...

    def packed_rows(self, outputs: list[Any]) -> Buffer:
        """Concatenate several outputs of `values` as packed rows (activations/layout.py)."""
        ...

    def choose(self, picks: Sequence[Pick]) -> Sequence[ChosenToken | EngineError]:
        """Return, for each pick, the token and its log-probability, and the most likely tokens.

        If the logits of one are not finite, its result is an EngineError `not-finite`.
        """
        ...

    def export(self, table: BlockTable) -> Buffer:
        """Return the keys and values of a session."""
        ...

    def imported(self, length: int, data: memoryview) -> Any:
        """Return the exported keys and values of `length` positions, as `install` takes them.

        Raises EngineError `bad-state` if a value is not finite.
        """
        ...

    def install(self, table: BlockTable, length: int, values: Any) -> None:
        """Write imported keys and values into the first positions of a session."""
        ...

    def read_kv(self, slots: Slots, layers: range, form: KvForm) -> Buffer:
        """Return the KV in `slots` of some of the shard's layers, counted from 0."""
        ...

    def parsed_kv(self, count: int, layers: range, form: KvForm, data: memoryview) -> Any:
        """Return the KV of `count` positions from what `read_kv` returned, as `write_kv` takes it.

        Raises EngineError `bad-state` if a value is not finite.
        """
        ...

    def write_kv(self, slots: Slots, layers: range, values: Any) -> None:
        """Write KV into `slots` of some of the shard's layers, counted from 0."""
        ...

    def copied_kv(self, slots: Slots) -> Any:
        """Return a copy in host memory of the KV of all layers, which `restore_kv` takes."""
        ...

    def restore_kv(self, slots: Slots, values: Any) -> None:
        """Write the same bits as were copied into as many slots."""
        ...

    def kept_kv(self, slots: Slots) -> Any:
        """Return a copy of the KV of all layers, with which `kv_distance` compares."""
        ...

    def kv_distance(self, slots: Slots, values: Any) -> float:
        """Return how far the KV in `slots` is from `values`: the largest relative distance (L2) of
        the keys or the values of a layer."""
        ...


class LoadedShard:
    """A shard in the worker: the object that computes it, and the KV of its sessions."""

    def __init__(self, shard: LoadShard, compute: Compute, weight_bytes: int) -> None:
        arch, parts = compute.arch, shard.parts
        self.token_bytes = kv_token_bytes(arch, parts.start, parts.stop, shard.dtype)
        self.block_bytes = self.token_bytes * BLOCK
        room = kv_room(arch, parts, shard.dtype, shard.kv_bytes)
        blocks = room.positions // BLOCK
        compute.allocate(blocks, room.states)
        state = state_bytes(arch, parts.start, parts.stop, shard.dtype)
        self.state_bytes = room.states * state
        self._states = StatePool(room.states) if state else None
        self.compute = compute
        self.weight_bytes = weight_bytes
        self.pool = BlockPool(blocks)
        self.root = shard.root
        self.adapters = LoadedAdapters(self.pool, self.block_bytes)
        self.copies = KvCopies(shard.root, arch, parts, shard.dtype, compute.exactness)
        self.kv_parts = KvPartCodec(shard.root, arch, parts, shard.dtype, compute.exactness)
        self.layer_range = range(parts.start, parts.stop)
        self.costs = compute.costs()
        self._tuner: Tuner | None = None

    def tuner(self) -> Tuner:
        """Return what computes training passes. Raises EngineError `no-backward`."""
        if self._tuner is None:
            self._tuner = self.compute.tuner(self.costs)
        return self._tuner

    def adapt(self, adapter: LoadAdapter, load: Callable[[Compute, LoadAdapter], Any]) -> None:
        """Load an adapter with `load`, unless it is loaded.

        Raises EngineError `bad-adapter` if it does not fit, and `no-memory`.
        """
        if adapter.root in self.adapters:
            return
        compute, terms = self.compute, adapter.terms
        if terms.base != self.root or terms.layers[-1] >= compute.arch.layers:
            raise EngineError("bad-adapter", "the adapter belongs to another model")
        _, layers = terms.place(compute.parts.start, compute.parts.stop)
        size = layers * terms.values(compute.arch) * DTYPE_BYTES[compute.dtype]
        blocks = self.adapters.reserve(size)
        try:
            tensors = load(compute, adapter)
            costs = compute.adapter_costs(tensors)
        except BaseException:
            self.pool.give_back(blocks)
            raise
        self.adapters.add(LoadedAdapter(adapter.root, tensors, size, blocks, costs))

    @property
    def bytes(self) -> int:
        """Memory of weights, KV and states, in bytes."""
        return self.weight_bytes + self.pool.total * self.block_bytes + self.state_bytes

    @property
    def reuses(self) -> bool:
        """Whether sessions can use blocks of other sessions.

        With recurrent layers they cannot, on any stage: a block has no state of such a layer.
        """
        return not self.compute.arch.recurrent

    def layers(self, part: KvRange) -> range:
        """Return the layers of a part of KV, counted from the shard's first one."""
        return range(part.first - self.layer_range.start, part.last - self.layer_range.start)

    def new_states(self) -> SessionStates | None:
        """Return the states of a new session, if layers of the shard are recurrent.

        Raises EngineError `no-memory`.
        """
        return None if self._states is None else SessionStates(self._states)
