"""Implementation of the core's computing in torch.

Tensors between the layers have the shape (rows, hidden).
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from ...defaults import MAX_TOP
from ..activations.packing import pack, unpack
from ..adapters import LoadAdapter
from ..clock import clock
from ..defaults import (
    CALIBRATION_ROWS,
    CALIBRATION_S,
    CHANGED,
    LEAST_ROWS,
    MEASURE_S,
    PICKS,
    PROMPT_PART,
    TEXT_BLOCKS,
    TEXTS,
)
from ..errors import EngineError
from ..families import Architecture
from ..interface import EXACTNESS_BYTES, KvForm, LoadShard, Sampling, Span
from ..kv.blocks import BLOCK, BlockCopy, BlockPool, BlockTable
from ..kv.states import StateUse
from ..passes import Tuner
from ..sampling import Change, choose, most_likely, row_peaks
from ..scheduling.costs import NO_PICK_COSTS, AdapterCosts, PickCosts, StepCosts
from ..shard import ChosenToken, Pick, Piece, Slots, Stop
from ..wire import Buffer
from .attention import Attention
from .backward.shardpass import ShardTuner
from .device import CPU, ComputeDevice
from .devicesampling import choose_all, peaks
from .kv import KvMemory, raw_bytes
from .lora import WITHOUT_ADAPTERS, AdaptedRows, Lora, StepAdapters, matrix_shapes
from .model import ShardModel
from .native import choice
from .native.library import Kernels
from .native.pages import give_back
from .native.reference import in_torch, reference_layer
from .native.steps import NativeSteps, computes
from .products import native_kernels
from .recurrent import StateMemory
from .weights import TORCH_DTYPES


def computing() -> AbstractContextManager[None]:
    """Return the context manager inside which all computing must run."""
    context: AbstractContextManager[None] = torch.inference_mode()
    return context


class TorchCompute(ShardModel):
    """Implementation of the interface `Compute` (`shard.py`) with a shard's weights in torch."""

    peaks = staticmethod(peaks)
    calibration_rows = CALIBRATION_ROWS
    """Rows of the larger step that is measured after loading."""

    def __init__(self, arch: Architecture, shard: LoadShard, device: ComputeDevice = CPU) -> None:
        super().__init__(arch, shard, device)
        give_back()
        self._memory = KvMemory(arch, shard.parts, shard.dtype, 0, device)
        self._states = StateMemory(arch, shard.parts, shard.dtype, 0, device)
        self._kernels = native_kernels(TORCH_DTYPES[shard.dtype], device.torch.type)
        self.steps = None if self._kernels is None else native_steps(self, self._kernels)
        """The layers as the native kernels compute them in one call, or None."""
        if self.steps is not None:
            self.least_rows = 1  # a row is the same from 1 row on
        self._measured: StepCosts | None = None

    @property
    def exactness(self) -> str:
        """Instruction set or device, kernel, dtype, precision of the weights and version of torch.

        How far products are padded is not part of it, because a row is the same for any number of
        rows from the least on.
        """
        machine = torch.backends.cpu.get_cpu_capability()
        if not self.device.is_cpu:
            on_cuda = self.device.torch.type == "cuda"
            machine = torch.cuda.get_device_name(self.device.torch) if on_cuda else "device"
        kernel = "onednn" if self.packed else "plain"
        if self._kernels is not None:
            kernel = self._kernels.exactness
        elif self.device.is_cpu and self.arch.layouts.precision:
            quantised = choice.kernels()  # torch multiplies only the other matrices
            kernel = kernel if quantised is None else f"{quantised.exactness}-{kernel}"
        version = torch.__version__.split("+")[0]
        precision = "-".join((self.dtype, self.arch.layouts.precision)).rstrip("-")
        return f"{machine[:24]} {kernel} {precision} torch-{version[:7]}"[:EXACTNESS_BYTES]

    def allocate(self, blocks: int, states: int) -> None:
        rest = self.arch, self.parts, self.dtype
        self._memory = KvMemory(*rest, blocks, self.device)
        self._states = StateMemory(*rest, states, self.device)
        if self.steps is not None:
            self.steps.bind(self._memory)

    def costs(self) -> StepCosts:
        """Return the costs of a step, measured on this machine with the loaded weights.

        Decides first to how many rows smaller products are padded.
        """
        blocks = self._memory.keys.shape[2] // BLOCK
        if self._states.lacks:  # no session can be opened
            return StepCosts(0.0, 0.0, 0.0)
        if blocks and self.packed and self._kernels is None:
            self.least_rows = min(LEAST_ROWS, key=lambda rows: _padded_seconds(self, rows))
        self._measured = measured_costs(self, blocks)
        give_back()
        return self._measured

    def attended_seconds(self) -> float:
        """Return the seconds in which a row of a prompt attends to one position in all layers."""
        return _attended(self, BLOCK)

    def alone_seconds(self) -> float:
        """Return the seconds in which a row of a text attends to one position in all layers. Keys
        and values are read for this row alone."""
        return _attended(self, 1)

    def adapt(self, adapter: LoadAdapter) -> Lora:
        return Lora(adapter, self.arch, self.parts, self.dtype, self.device)

    def adapter_costs(self, adapter: Lora) -> AdapterCosts:
        """Return the time that an adapter adds to a step, measured on this machine."""
        few, many = 1, CALIBRATION_ROWS
        least = _adapted_seconds(self, adapter, few)
        row = max(0.0, _adapted_seconds(self, adapter, many) - least) / (many - few)
        return AdapterCosts(max(0.0, least - row), row)

    def tuner(self, costs: StepCosts) -> Tuner:
        return ShardTuner(self, costs, measure=costs is self._measured and self.device.is_cpu)

    def source(self, span: Span) -> Any:
        # Token ids stay here until a step takes them, with those of all other sessions.
        if span.hidden is None:
            return np.asarray(span.tokens)
        hidden = torch.frombuffer(span.hidden, dtype=TORCH_DTYPES[self.dtype])
        hidden = hidden.view(span.count, self.arch.hidden)
        _check_finite(hidden, span.start)
        return self.device.upload(hidden)

    def unpacked(self, data: Buffer, count: int) -> torch.Tensor:
        rows = unpack(data, count, self.arch.hidden, TORCH_DTYPES[self.dtype])
        return self.device.upload(rows)

    def fed_back(self, *tokens: int) -> Any:
        return np.asarray(tokens)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        self._memory.copy(copies)

    @property
    def has_own_memory(self) -> bool:
        return self.device.has_own_memory

    @property
    def has_reference(self) -> bool:
        return self._kernels is not None or (choice.kernels() is not None and self.device.is_cpu)

    def forward(self, pieces: Sequence[Piece], stop: Stop | None = None) -> Sequence[torch.Tensor]:
        again = [index for index, piece in enumerate(pieces) if piece.reference]
        if not again:
            return self._computed(pieces, stop)
        rest = [index for index in range(len(pieces)) if index not in again]
        rows = [*self._computed([pieces[index] for index in rest], stop)] if rest else []
        plain = self._reference()
        rows += plain._computed([pieces[index] for index in again], stop)
        return [rows[(rest + again).index(index)] for index in range(len(pieces))]

    def _reference(self) -> "TorchCompute":
        """Return the shard with the same weights and memory, of which torch computes all but the
        embedding."""
        found = copy.copy(self)
        found.steps = None
        found.layers = [reference_layer(layer) for layer in self.layers]
        return found

    def _computed(
        self, pieces: Sequence[Piece], stop: Stop | None = None
    ) -> Sequence[torch.Tensor]:
        """Compute pieces that are not computed again."""
        if not any(piece.adapter is not None for piece in pieces):
            return self._plain(pieces, stop)
        # Rows without an adapter are computed as they are in other steps. The rows of each adapter
        # must be consecutive.
        order = sorted(range(len(pieces)), key=lambda index: id(pieces[index].adapter))
        plain = [index for index in order if pieces[index].adapter is None]
        rest = [index for index in order if pieces[index].adapter is not None]
        rows = self._plain([pieces[index] for index in plain], stop) if plain else []
        rows = [*rows, *self._forward([pieces[index] for index in rest], stop)]
        return [rows[(plain + rest).index(index)] for index in range(len(pieces))]

    def _plain(self, pieces: Sequence[Piece], stop: Stop | None = None) -> Sequence[torch.Tensor]:
        """Compute pieces without adapters."""
        if self.steps is None:
            return self._forward(pieces, stop)
        rows = self.steps.forward(self._inputs(pieces), pieces, stop)
        parts: Sequence[torch.Tensor] = torch.split(rows, [piece.count for piece in pieces])
        return parts

    def _forward(self, pieces: Sequence[Piece], stop: Stop | None = None) -> Sequence[torch.Tensor]:
        """Compute pieces of which those with the same adapter are consecutive."""
        x = self._inputs(pieces)
        batch = Attention(pieces, self.arch.kv_heads, self.device)
        self._states.prepare([piece.state for piece in pieces if piece.state is not None])
        adapters = self._adapters(pieces)
        rows = self.forward_rows(x, batch, self._memory, self._states, adapters, stop)
        parts: Sequence[torch.Tensor] = torch.split(rows, [piece.count for piece in pieces])
        return parts

    def _adapters(self, pieces: Sequence[Piece]) -> StepAdapters:
        """Return which rows of a step have which adapter."""
        found, first = list[AdaptedRows](), 0
        for adapter, group in itertools.groupby(pieces, lambda piece: piece.adapter):
            end = first + sum(piece.count for piece in group)
            if adapter is not None:
                found.append(AdaptedRows(adapter, first, end))
            first = end
        return StepAdapters(found, self.least_rows) if found else WITHOUT_ADAPTERS

    def _inputs(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Return the input rows of pieces (rows x hidden), as a copy.

        The steps overwrite them, and one that is stopped is computed again from the same sources.
        """
        sources = [piece.source[piece.first : piece.first + piece.count] for piece in pieces]
        if isinstance(sources[0], np.ndarray):  # then all are token ids
            ids = torch.from_numpy(np.concatenate(sources))
            return self.embed(self.device.upload(ids))
        return torch.cat(sources)

    def values(self, rows: torch.Tensor, logits: bool, position: int) -> torch.Tensor:
        out = self.logits(rows) if logits else rows
        _check_finite(out, position)
        return out

    def pooled(self, rows: torch.Tensor, total: torch.Tensor | None, position: int) -> torch.Tensor:
        added = self.final_states(rows).sum(0, dtype=torch.float64)
        added = (added if total is None else added + total).float()
        _check_finite(added, position)
        return added

    def joined(self, outputs: Sequence[torch.Tensor]) -> Buffer:
        out = outputs[0] if len(outputs) == 1 else torch.cat(list(outputs))
        return raw_bytes(self.device.download(out.contiguous()))

    def packed_rows(self, outputs: Sequence[torch.Tensor]) -> Buffer:
        out = outputs[0] if len(outputs) == 1 else torch.cat(list(outputs))
        return raw_bytes(self.device.download(pack(out)))

    def choose(self, picks: Sequence[Pick]) -> Sequence[ChosenToken | EngineError]:
        # Most picks have one row, and a slice of each would take as long as its product.
        lasts = [each.rows if each.rows.shape[0] == 1 else each.rows[-1:] for each in picks]
        logits = self.logits(torch.cat(lasts))
        again = [row for row, pick in enumerate(picks) if pick.reference]
        if again:
            plain = copy.copy(self)
            plain._head = in_torch(self._head)
            logits[again] = plain.logits(torch.cat([picks[row].rows[-1:] for row in again]))
        return self.chosen(logits, picks)

    def chosen(
        self, logits: torch.Tensor, picks: Sequence[Pick]
    ) -> Sequence[ChosenToken | EngineError]:
        """Return the result of `choose` for picks with these logits (picks x vocabulary)."""
        if not self.device.samples or self.device.is_cpu:
            return self._chosen_here(logits, picks)
        # Rows that ask for the most likely tokens must not bring those of others to the CPU.
        told = [at for at, pick in enumerate(picks) if pick.top]
        rest = [at for at, pick in enumerate(picks) if not pick.top]
        results: dict[int, ChosenToken | EngineError] = {}
        if rest:
            asked = [(picks[at].sampling, picks[at].position) for at in rest]
            ruled = ((row, picks[at].change) for row, at in enumerate(rest))
            changes = {row: change for row, change in ruled if change is not None}
            rows = logits[rest] if told else logits
            found = choose_all(rows, asked, self.peaks, changes)
            for at, each in zip(rest, found, strict=True):
                results[at] = each if isinstance(each, EngineError) else ChosenToken(*each)
        if told:
            here = self._chosen_here(logits[told], [picks[at] for at in told])
            results.update(zip(told, here, strict=True))
        return [results[at] for at in range(len(picks))]

    def _chosen_here(
        self, logits: torch.Tensor, picks: Sequence[Pick]
    ) -> Sequence[ChosenToken | EngineError]:
        """Return the same, chosen on the CPU."""
        rows = self.device.download(logits).numpy()  # numpy is faster than torch on the CPU
        chosen: list[ChosenToken | EngineError] = []
        for row, pick, peak in zip(rows, picks, row_peaks(rows), strict=True):
            try:
                token, logprob = choose(row, pick.sampling, pick.position, pick.change, peak)
                top = most_likely(row, pick.top) if pick.top else ()
                chosen.append(ChosenToken(token, logprob, top))
            except EngineError as error:
                chosen.append(error)
        return chosen

    def export(self, table: BlockTable) -> Buffer:
        return self._memory.export(table)

    def imported(self, length: int, data: memoryview) -> torch.Tensor:
        return self._memory.imported(length, data)

    def install(self, table: BlockTable, length: int, values: torch.Tensor) -> None:
        self._memory.install(table, length, values)

    def read_kv(self, slots: Slots, layers: range, form: KvForm) -> Buffer:
        return self._memory.read(slots, layers, form)

    def parsed_kv(self, count: int, layers: range, form: KvForm, data: memoryview) -> torch.Tensor:
        return self._memory.parsed(count, layers, form, data)

    def write_kv(self, slots: Slots, layers: range, values: torch.Tensor) -> None:
        self._memory.write(slots, layers, values)

    def copied_kv(self, slots: Slots) -> torch.Tensor:
        return self._memory.copied(slots)

    def restore_kv(self, slots: Slots, values: torch.Tensor) -> None:
        self._memory.restore(slots, values)

    def kept_kv(self, slots: Slots) -> torch.Tensor:
        return self._memory.kept(slots)

    def kv_distance(self, slots: Slots, values: torch.Tensor) -> float:
        return self._memory.distance(slots, values)


def native_steps(model: ShardModel, kernels: Kernels) -> NativeSteps | None:
    """Return the layers of a model for the kernels, or None if these do not compute whole steps."""
    if not computes(model.arch, model.layers) or len(model.rotaries) != 1:
        return None
    return NativeSteps(kernels, model.arch, model.layers, model.rotaries[0])


def _check_finite(values: torch.Tensor, position: int) -> None:
    """Raise EngineError `not-finite` if any value is infinite or NaN."""
    if not bool(torch.isfinite(values).all()):
        raise EngineError("not-finite", f"values from position {position} on are not finite")


def measured_costs(model: TorchCompute, blocks: int) -> StepCosts:
    """Measure steps of a few and of many rows, and an attention over one tile."""
    few, many = 1, min(model.calibration_rows, blocks * BLOCK, model.arch.context)
    if many <= few:
        return StepCosts(0.0, 0.0, 0.0)
    picks = _pick_costs(model) if model.parts.head else NO_PICK_COSTS
    least = _seconds(model, few)
    if least > CALIBRATION_S:  # a long measurement would delay the start
        return StepCosts(least, least / 16, 0.0, picks=picks)
    row = max(0.0, _seconds(model, many) - least) / (many - few)
    attended = model.attended_seconds()
    alone = max(0.0, model.alone_seconds() - attended)
    chosen = _chosen_seconds(model, many)
    if model.device.is_cpu and not len(model._states.inputs) and blocks >= TEXTS * TEXT_BLOCKS:
        more = (_texts_seconds(model, TEXTS) - _texts_seconds(model, 1)) / (TEXTS - 1)
        chosen = max(-row, more - row - TEXT_BLOCKS * BLOCK * (attended + alone))
    fixed = max(0.0, least - row)
    part = BLOCK if model.steps is None else PROMPT_PART
    return StepCosts(fixed, row, attended, chosen=chosen, alone=alone, picks=picks, part=part)


def _least(model: TorchCompute, work: Callable[[], object]) -> float:
    """Return the least seconds of two runs, or of as many as MEASURE_S allows, after a first one.

    The first one may wait for the disk. Those after it may be slow, because the processor's caches
    are empty and it has not reached its clock.
    """
    where, times = model.device.name, list[float]()
    work()
    first = clock(where)
    while len(times) < 2 or clock(where) - first < MEASURE_S:
        began = clock(where)
        work()
        times.append(clock(where) - began)
    return min(times)


def _pick_costs(model: TorchCompute) -> PickCosts:
    """Measure the choice of tokens with costly parameters beside that of the likeliest ones."""
    size = model.arch.vocab
    logits = torch.randn(PICKS, size, generator=torch.Generator().manual_seed(0)) * 3.0
    logits = model.device.upload(logits)
    hot = Sampling(100.0, top_p=0.999999)

    def seconds(sampling: Sampling, top: int = 0, change: Change | None = None) -> float:
        picks = [Pick(logits[:1], sampling, at, top, change) for at in range(PICKS)]
        return _least(model, lambda: model.chosen(logits, picks)) / PICKS

    likeliest = seconds(Sampling())
    one, most = seconds(hot._replace(top_k=1)), seconds(hot._replace(top_k=max(1, size - 1)))
    told = seconds(Sampling(), MAX_TOP)
    ids = np.arange(min(size, CHANGED))
    changed = seconds(Sampling(), 0, Change(ids, *(np.ones(len(ids)) for _ in range(3))))
    one, most, told, changed = (max(0.0, each - likeliest) for each in (one, most, told, changed))
    return PickCosts(one, max(one, most), told, size, changed)


def _texts_seconds(model: TorchCompute, rows: int) -> float:
    """Return the seconds of a step with one row of each of some texts, whose tokens are chosen if
    the head is here."""
    pool, end = BlockPool(rows * TEXT_BLOCKS), TEXT_BLOCKS * BLOCK
    dtype = TORCH_DTYPES[model.dtype]
    source = torch.randn(rows, model.arch.hidden, generator=torch.Generator().manual_seed(0))
    source, pieces = source.to(dtype), list[Piece]()
    for row in range(rows):
        table = BlockTable(pool, end)
        table.prepare(0, end)
        pieces.append(Piece(table, source, row, 1, end - 1, True))

    def step() -> None:
        found = model.forward(pieces)
        if model.parts.head:
            model.choose([Pick(each, Sampling(), end) for each in found])

    return _least(model, step)


def _chosen_seconds(model: TorchCompute, rows: int) -> float:
    """Return the seconds by which each further row, up to `rows`, makes the head's product
    longer."""
    if not model.parts.head or rows < 2:
        return 0.0
    dtype, where = TORCH_DTYPES[model.dtype], model.device.torch
    values = torch.ones(rows, model.arch.hidden, dtype=dtype, device=where)
    one = _least(model, lambda: model.logits(values[:1]))
    return max(0.0, _least(model, lambda: model.logits(values)) - one) / (rows - 1)


def _padded_seconds(model: TorchCompute, rows: int) -> float:
    """Return the seconds of a step with one position if products are padded to `rows` rows."""
    model.least_rows = rows
    return _seconds(model, 1)


def _seconds(model: TorchCompute, rows: int) -> float:
    """Return the seconds of a step with `rows` positions of one session."""
    table = BlockTable(BlockPool(-(-rows // BLOCK)), rows)
    table.prepare(0, rows)
    width = model.arch.hidden
    # Equal rows would choose the same experts.
    random = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    source = model.device.upload(random.to(TORCH_DTYPES[model.dtype]))
    state = StateUse(0, fresh=True) if len(model._states.inputs) else None
    piece = Piece(table, source, 0, rows, 0, rows == 1, None, state)

    def step() -> None:
        (out,) = model.forward([piece])
        if model.parts.head:
            model.logits(out[-1:])

    return _least(model, step)


def _adapted_seconds(model: TorchCompute, adapter: Lora, rows: int) -> float:
    """Return the seconds in which an adapter changes `rows` rows in all layers."""
    arch, dtype, where = model.arch, TORCH_DTYPES[model.dtype], model.device.torch
    step = StepAdapters([AdaptedRows(adapter, 0, rows)], model.least_rows)
    work = [
        (matrix, torch.zeros(rows, wide, dtype=dtype, device=where), inputs)
        for matrix, wide, inputs in matrix_shapes(arch)
    ]
    values = torch.zeros(rows, max(inputs for _, _, inputs in work), dtype=dtype, device=where)

    def change() -> None:
        for layer in range(len(model.layers)):
            for matrix, out, inputs in work:
                step.change(out, values[:, :inputs], layer, matrix)

    return _least(model, change)


def _attended(model: TorchCompute, rows: int) -> float:
    """Return the seconds in which each of `rows` rows attends to one position in all layers."""
    size = 64 * BLOCK
    arch, dtype = model.arch, TORCH_DTYPES[model.dtype]
    table = BlockTable(BlockPool(64), size)
    table.prepare(0, size)
    piece = Piece(table, None, 0, rows, size - rows, decode=rows == 1)
    if model.steps is not None:
        return model.steps.attended_seconds(rows)
    batch, where = Attention([piece], arch.kv_heads, model.device), model.device.torch
    queries = torch.zeros(rows, arch.heads, arch.head_dim, dtype=dtype, device=where)
    keys = torch.zeros(arch.kv_heads, size, arch.head_dim, dtype=dtype, device=where)
    seconds = _least(model, lambda: batch.attend(queries, keys, keys, 0))
    return seconds * len(model._memory.keys) / (rows * size)
