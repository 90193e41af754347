"""A chain of stages for one trainer. The trainer's node passes states on from stage to stage.

A batch is cut into parts, several of which are in progress at once. While a later stage computes
one part, an earlier one computes the next. The results of a part's stages are kept here until the
part is done, so that any stage can be replaced.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import trio

from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...engine.adapters import AdapterTerms
from ...engine.families import DTYPE_BYTES, Architecture
from ...engine.interface import DType
from ...engine.passes import PassDone, PassOrder, pass_sizes
from ...engine.wire import Buffer
from ...errors import SessionError, TaskError
from ...inference.messages import parse_dtype
from ...routing.paths import Hop
from ..defaults import AVOIDED_S, LEAST_POSITIONS, LYING_S, PART_POSITIONS, REPLACED
from ..interface import AdapterTensors, Batch, Gradients, TensorName
from ..messages import RunPass, SetTensors, TuneOpen
from .checks import UsualNorms, norm_of, values_of
from .parts import (
    BatchPart,
    check_adapter,
    check_batch,
    divide,
    names_of,
    shape_of,
    tensor_data,
)
from .stages import StageCalls, StageFailed

_SMALLER = ("no-memory", "busy", "too-large")
"""Codes of stages that may compute smaller parts."""


class ChainFinder(Protocol):
    """Finds chains of stages."""

    async def find(self, root: str, layers: int, avoid: Collection[PeerId]) -> Sequence[Hop]:
        """Return a chain, if possible without the peers in `avoid`. Raises NoRoute."""
        ...


@dataclass(slots=True, eq=False)
class _Stage:
    """A stage of the chain. `tuning` is its name there, and `digest` the hash of the tensors that
    it has."""

    hop: Hop
    tuning: bytes
    names: list[TensorName]
    shapes: list[tuple[int, int]]  # of each tensor
    sizes: list[int]  # values of each
    digest: bytes = b""
    usual: UsualNorms = field(default_factory=UsualNorms)


@dataclass(slots=True)
class _TrainerCall:
    """One call of a trainer. `done` has the results of parts by their numbers."""

    adapter: AdapterTensors
    derived: frozenset[TensorName] | None  # None: only the loss
    done: dict[int, "_PartDone"] = field(default_factory=dict)

    def wants(self, name: TensorName) -> bool:
        return self.derived is not None and name in self.derived


@dataclass(slots=True)
class _PartDone:
    loss: float
    counted: int
    tensors: dict[TensorName, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]


class _Wish(NamedTuple):
    """Purpose of a pass. `PassOrder` explains the fields."""

    back: bool = False
    down: bool = False
    given: bool = True
    keep: bool = False


class NetworkChain:
    """Implementation of `TuningChain`. One call at a time."""

    def __init__(
        self,
        host: Host,
        calls: StageCalls,
        routes: ChainFinder,
        root: str,
        arch: Architecture,
        job: str = "",
        *,
        reads: bool = False,
    ) -> None:
        """`root` and `arch` are those of the model. `job` is the job that the passes are for, or
        "". `reads` says that only losses are asked for."""
        self.root, self.arch, self._job, self._reads = root, arch, job, reads
        self._host, self._calls, self._routes = host, calls, routes
        self._stages: list[_Stage] = []
        self._avoided: dict[PeerId, float] = {}  # until when
        self._terms: AdapterTerms | None = None  # of the open stages
        self._positions = PART_POSITIONS  # of a part
        self._using = trio.Lock()
        self._numbers = 0  # parts so far
        self.replaced = 0
        """Number of stages that were replaced so far."""

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """The peers of the chain's stages, in the order of layers."""
        return tuple(stage.hop.peer for stage in self._stages)

    async def gradients(
        self, batch: Batch, adapter: AdapterTensors, names: Collection[TensorName] | None = None
    ) -> Gradients:
        """Implements `TuningChain`."""
        check_adapter(adapter, self.root, self.arch, names)
        wanted = frozenset(adapter.tensors if names is None else names)
        step = _TrainerCall(adapter, wanted)
        await self._compute(batch, step)
        return await self._host.offload(self._added, step, wanted)

    def _added(self, step: _TrainerCall, wanted: Collection[TensorName]) -> Gradients:
        """Return the sums over all parts. Blocking: those of a large model take 0.1 s."""
        terms = step.adapter.terms
        tensors = {
            name: np.zeros(shape_of(name, terms, self.arch), np.float32) for name in sorted(wanted)
        }
        for number in sorted(step.done):  # in this order, so that sums are always the same
            for name, found in step.done[number].tensors.items():
                tensors[name] += found
        return Gradients(*_sum(step), dict(tensors.items()))

    async def loss(self, batch: Batch, adapter: AdapterTensors) -> tuple[float, int]:
        """Implements `TuningChain`."""
        check_adapter(adapter, self.root, self.arch, None)
        step = _TrainerCall(adapter, None)
        await self._compute(batch, step)
        return _sum(step)

    async def aclose(self) -> None:
        """Implements `TuningChain`."""
        stages, self._stages = self._stages, []
        for stage in stages:
            self._calls.close(stage.hop.peer, stage.tuning)
        await trio.lowlevel.checkpoint()

    # The chain.

    async def _compute(self, batch: Batch, step: _TrainerCall) -> None:
        """Compute all parts of a batch, with other stages in place of those that fail."""
        check_batch(batch, self.arch)
        async with self._using:
            parts = divide(batch, self._positions)
            for _ in range(REPLACED):
                try:
                    await self._prepare(step)
                    await self._all_parts(parts, step)
                except StageFailed as failure:
                    if failure.error.code in _SMALLER and self._halve(parts):
                        step.done.clear()
                        parts = divide(batch, self._positions)
                    else:
                        self._failed(failure)
                        if self._positions < PART_POSITIONS:  # other stages may have more memory
                            self._positions = PART_POSITIONS
                            step.done.clear()
                            parts = divide(batch, self._positions)
                    last = failure
                else:
                    return
        raise SessionError(
            last.error.code, f"{last.peer} and the stages before it failed: {last.error.message}",
            hint="`shoal peers` shows which nodes serve the model; try again later",
        )  # fmt: skip

    def _halve(self, parts: Sequence[BatchPart]) -> bool:
        """Make later parts smaller. Return whether they can be."""
        largest = max(part.rows * part.length for part in parts)
        smaller = min(self._positions, largest) // 2
        if smaller < LEAST_POSITIONS or all(part.rows == 1 for part in parts):
            return False
        self._positions = smaller
        return True

    def _failed(self, failure: StageFailed) -> None:
        """Forget a stage that has failed, and avoid it for some time."""
        lying = failure.error.code == "bad-result"
        self._avoided[failure.peer] = self._host.now() + (LYING_S if lying else AVOIDED_S)
        for stage in [each for each in self._stages if each.hop.peer == failure.peer]:
            self._calls.close(failure.peer, stage.tuning)
        self.replaced += 1
        self._stages = [each for each in self._stages if each.hop.peer != failure.peer]

    async def _prepare(self, step: _TrainerCall) -> None:
        """Open the stages of a chain, keep those that are open, and give all their tensors."""
        now = self._host.now()
        self._avoided = {peer: until for peer, until in self._avoided.items() if until > now}
        if not self._is_whole(step):
            await self._route(step)
        async with _Together() as together:
            for stage in self._stages:
                together.start(self._set, stage, step)

    def _is_whole(self, step: _TrainerCall) -> bool:
        """Return whether the stages have all layers, and were opened for the terms of a step."""
        if not self._stages or self._terms != step.adapter.terms:
            return False
        first, last = self._stages[0].hop.parts, self._stages[-1].hop.parts
        pairs = zip(self._stages, self._stages[1:], strict=False)
        joined = all(one.hop.parts.stop == other.hop.parts.start for one, other in pairs)
        return joined and first.embedding and last.head

    async def _route(self, step: _TrainerCall) -> None:
        """Choose a chain, and open the stages that are not open yet."""
        hops = await self._routes.find(self.root, self.arch.layers, self._avoided)
        terms = step.adapter.terms
        same = bool(self._stages) and self._terms == terms
        open_ = {stage.hop: stage for stage in self._stages if same}
        for hop, stage in [(each.hop, each) for each in self._stages]:
            if hop not in hops or not same:
                self._calls.close(hop.peer, stage.tuning)
        self._terms = terms
        stages = []
        for hop in hops:
            names = names_of(terms, hop.parts)
            shapes = [shape_of(name, terms, self.arch) for name in names]
            sizes = [rows * columns for rows, columns in shapes]
            made = _Stage(hop, self._host.entropy(16), names, shapes, sizes)
            stages.append(open_.get(hop) or made)
        self._stages = [stage for stage in stages if stage.hop in open_]
        async with _Together() as together:
            for stage in stages:
                if stage.hop not in open_:
                    together.start(self._open, stage)
        self._stages = stages

    async def _open(self, stage: _Stage) -> None:
        hop = stage.hop
        assert self._terms is not None  # set before stages are opened
        what = self.root, hop.parts, parse_dtype(hop.dtype), self._terms
        message = TuneOpen(stage.tuning, *what, self._job, self._reads)
        await self._calls.open(hop.peer, message)

    async def _set(self, stage: _Stage, step: _TrainerCall) -> None:
        """Give a stage the tensors of a step."""
        data = await self._host.offload(tensor_data, step.adapter, stage.names)
        digest = (await self._host.offload(hashlib.sha256, data)).digest()
        if digest != stage.digest:
            stage.digest = b""
            await self._calls.set(stage.hop.peer, SetTensors(stage.tuning, digest), data)
            stage.digest = digest

    # Parts.

    async def _all_parts(self, parts: Sequence[BatchPart], step: _TrainerCall) -> None:
        """Compute the parts that are not done, enough of them at once that every stage has work."""
        places = trio.Semaphore(len(self._stages) + 1)
        async with _Together() as together:
            for part in parts:
                if part.number not in step.done:
                    await places.acquire()
                    together.start(self._part, part, step, places)

    async def _part(self, part: BatchPart, step: _TrainerCall, places: trio.Semaphore) -> None:
        """Compute one part forward, and backward if derivatives are wanted."""
        try:
            self._numbers += 1
            number = self._numbers
            inputs: list[Buffer] = [part.tokens.tobytes()]
            back = step.derived is not None
            lowest = self._lowest(step)
            for stage in self._stages[:-1]:
                order = self._order(stage, part, step, number, _Wish(keep=back))
                inputs.append((await self._run(stage, order, inputs[-1], part)).data)
            done = await self._head(part, step, number, inputs[-1], lowest)
            found = _PartDone(done.loss, done.counted, {})
            gradient = self._take(self._stages[-1], done.data, found, step, part, lowest)
            for index in reversed(range(lowest, len(self._stages) - 1)):
                stage = self._stages[index]
                data = inputs[index], gradient
                done = await self._back(stage, part, step, number, data, down=index > lowest)
                gradient = self._take(stage, done.data, found, step, part, lowest)
            step.done[part.number] = found
        finally:
            places.release()

    def _lowest(self, step: _TrainerCall) -> int:
        """Return the index of the first stage whose derivatives are wanted."""
        for index, stage in enumerate(self._stages):
            if any(map(step.wants, stage.names)):
                return index
        return len(self._stages)

    async def _head(
        self, part: BatchPart, step: _TrainerCall, number: int, states: Buffer, lowest: int
    ) -> PassDone:
        """Compute the last stage, with its loss."""
        stage = self._stages[-1]
        back = lowest < len(self._stages)
        down = lowest < len(self._stages) - 1
        order = self._order(stage, part, step, number, _Wish(back, down))
        data = b"".join((states, part.targets.tobytes()))
        done = await self._run(stage, order, data, part)
        if done.counted != part.counted or not 0.0 <= done.loss <= 1e3 * max(1, part.counted):
            raise StageFailed(stage.hop.peer, SessionError("bad-result", "a loss that cannot be"))
        return done

    async def _back(
        self,
        stage: _Stage,
        part: BatchPart,
        step: _TrainerCall,
        number: int,
        data: tuple[Buffer, Buffer],
        *,
        down: bool,
    ) -> PassDone:
        """Compute a stage backward. `data` are its input and the derivative by its output. The
        input is sent again if the stage no longer has it."""
        states, gradient = data
        order = self._order(stage, part, step, number, _Wish(True, down, given=False))
        try:
            return await self._run(stage, order, gradient, part)
        except StageFailed as failure:
            if failure.error.code != "no-input":
                raise
        order = self._order(stage, part, step, number, _Wish(True, down))
        return await self._run(stage, order, b"".join((states, gradient)), part)

    def _order(
        self, stage: _Stage, part: BatchPart, step: _TrainerCall, number: int, wish: _Wish
    ) -> PassOrder:
        wanted = bytes(wish.back and step.wants(name) for name in stage.names)
        wire = parse_dtype(stage.hop.dtype)
        rest = wish.back, wish.given, wish.keep, wish.down, wire, wanted
        return PassOrder(number, part.rows, part.length, *rest)

    async def _run(
        self, stage: _Stage, order: PassOrder, data: Buffer, part: BatchPart
    ) -> PassDone:
        """Have a stage compute a pass, and check the result."""
        size = self._answer_size(stage, order)
        message = RunPass(stage.tuning, stage.digest, order)
        done = await self._calls.run(stage.hop.peer, message, data, size)
        try:
            states = size - 4 * sum(
                many for many, want in zip(stage.sizes, order.wanted, strict=True) if want
            )
            view = memoryview(done.data)
            norms = await self._host.offload(_checked, view[:states], view[states:], order.wire)
            if order.back:
                stage.usual.check(max(norms), part.counted)
        except SessionError as error:
            raise StageFailed(stage.hop.peer, error) from None
        return done

    def _answer_size(self, stage: _Stage, order: PassOrder) -> int:
        """Return the bytes of the answer of a pass."""
        return pass_sizes(order, stage.hop.parts, self.arch.hidden, stage.sizes).answer

    def _take(
        self,
        stage: _Stage,
        data: Buffer,
        found: _PartDone,
        step: _TrainerCall,
        part: BatchPart,
        lowest: int,
    ) -> Buffer:
        """Store the derivatives by tensors of an answer, and return the derivative by the input."""
        view, end = memoryview(data), len(data)
        names = zip(stage.names, stage.shapes, stage.sizes, strict=True)
        for name, shape, size in reversed(list(names)):
            if step.wants(name):
                values = np.frombuffer(view[end - 4 * size : end], np.float32)
                found.tensors[name] = values.reshape(shape)
                end -= 4 * size
        return view[:end]


def _sum(step: _TrainerCall) -> tuple[float, int]:
    """Return the loss of all parts, and the number of counted positions."""
    parts = [step.done[number] for number in sorted(step.done)]
    return sum(part.loss for part in parts), sum(part.counted for part in parts)


def _checked(states: memoryview, tensors: memoryview, wire: DType) -> tuple[float, float]:
    """Return the norms of the states or their derivative, and of the tensors' derivatives."""
    assert len(states) % DTYPE_BYTES[wire] == 0
    return norm_of(values_of(states, wire)), norm_of(values_of(tensors, "float32"))


class _Together:
    """Tasks that belong together: the first that fails ends the others, and its error is raised
    alone. Of several errors, a stage's failure comes first."""

    def __init__(self) -> None:
        self._errors: list[StageFailed | TaskError] = []

    async def __aenter__(self) -> "_Together":
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> bool:
        done = await self._manager.__aexit__(*error)  # type: ignore[arg-type]
        if self._errors:
            raise self._errors[0]
        return bool(done)

    def start(self, work: Callable[..., object], *arguments: object) -> None:
        """Start a task."""
        self._nursery.start_soon(self._run, work, arguments)

    async def _run(self, work: Callable[..., object], arguments: Sequence[object]) -> None:
        try:
            await work(*arguments)  # type: ignore[misc]
        except (StageFailed, TaskError) as error:
            self._errors.append(error)
            self._nursery.cancel_scope.cancel()
