"""Computation of a simulated engine: one number per position instead of hidden states, and a model
of the time needed.

The number of a position starts as that of its token, and passes through all layers in order. Each
layer mixes it with a number that the layer stores for the previous position, in place of keys and
values. The constants of the mixture depend on the model and the layer. The token that the head
chooses therefore depends on every token so far and on every layer. If a layer is wrong, missing or
applied twice, the result is another token. The result does not depend on how the layers are split
into shards.
"""

import hashlib
import struct
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...tasks.costs.seconds import product_seconds, step_seconds
from ...tasks.costs.steps import alone_seconds, chosen_seconds, shard_costs
from ...tasks.costs.work import EqualRows, ModelWork
from ...tasks.engine.activations.layout import packed_bytes
from ...tasks.engine.adapters import LoadAdapter
from ...tasks.engine.errors import EngineError
from ...tasks.engine.families import (
    DTYPE_BYTES,
    Architecture,
    check_parts,
    kv_token_bytes,
    tensor_shapes,
)
from ...tasks.engine.interface import DType, KvForm, LoadShard, Parts, Span
from ...tasks.engine.kv.blocks import BLOCK, BlockCopy, BlockTable
from ...tasks.engine.kv.parts import KvShape
from ...tasks.engine.passes import Tuner
from ...tasks.engine.sampling import Change
from ...tasks.engine.scheduling.costs import AdapterCosts, StepCosts
from ...tasks.engine.shard import ChosenToken, Compute, Pick, Piece, Slots, Stop
from ...tasks.engine.wire import Buffer
from ...transport.host.seam import Files
from .profile import Profile
from .tuning import NumberTuner, TimedTuner

_PRIME = (1 << 61) - 1  # all numbers are computed modulo this prime
_PIECES = 8  # bytes of a number; each replaces the low byte of a hidden value
# The value 1.0. It stays finite whatever its low byte is.
_ONE: Mapping[DType, bytes] = {"float32": b"\0\0\x80\x3f", "bfloat16": b"\x80\x3f"}
_CHUNK_LIMIT = 16 << 20  # maximum size of a chunk file, in bytes

Constants = tuple[int, int, int, int]


def _constants(root: str, layer: int) -> Constants:
    """Return the four constants of a layer (-1: the embedding), each less than `_PRIME`."""
    digest = hashlib.blake2b(f"{root}/{layer}".encode(), digest_size=32).digest()
    one, two, three, four = struct.unpack("<4Q", digest)
    return one % _PRIME, two % _PRIME, three % _PRIME, four % _PRIME


_BLANK = array("Q", bytes(8 * BLOCK))


class NumberCompute:
    """Implementation of the engine's `Compute` that works on numbers instead of tensors."""

    def __init__(self, arch: Architecture, shard: LoadShard, files: Files) -> None:
        """Check the shard and read its weights.

        Raises EngineError if the shard or the model is not supported, or a weight file is missing
        or damaged.
        """
        check_parts(arch, shard.parts)
        if arch.hidden < _PIECES:
            raise EngineError("unsupported-architecture", f"fewer than {_PIECES} hidden values")
        read_chunks(arch, shard, files)
        self._files = files
        self.arch = arch
        self.parts = shard.parts
        self.dtype: DType = shard.dtype
        layers = range(shard.parts.start, shard.parts.stop)
        self._layers = [_constants(shard.root, layer) for layer in layers]
        self.embedding = _constants(shard.root, -1)
        self._blocks: dict[int, list[array[int]]] = {}  # by number
        self._token_bytes = kv_token_bytes(arch, shard.parts.start, shard.parts.stop, shard.dtype)
        self._step = DTYPE_BYTES[shard.dtype]
        self._width = arch.hidden * self._step
        self._row = _ONE[shard.dtype] * _PIECES + bytes(self._width - _PIECES * self._step)

    exactness = "simulated"
    has_own_memory = False

    def allocate(self, blocks: int, states: int) -> None:
        """Discard all numbers. Memory is used only for blocks that are written."""
        self._blocks.clear()

    def adapt(self, adapter: LoadAdapter) -> Sequence[int]:
        """Read an adapter's chunks, and return the number that it adds at each layer."""
        for path, digest in zip(adapter.chunks, adapter.digests, strict=True):
            read_chunk(path, digest, self._files)
        layers = range(self.parts.start, self.parts.stop)
        changed = set(adapter.terms.layers)
        return [_constants(adapter.root, layer)[0] if layer in changed else 0 for layer in layers]

    def adapter_costs(self, adapter: Sequence[int]) -> AdapterCosts:
        """Return no costs: an adapter takes no simulated time."""
        return AdapterCosts(0.0, 0.0)

    def costs(self) -> StepCosts:
        """Return no costs, because `Timed` predicts the time."""
        return StepCosts(0.0, 0.0, 0.0)

    def tuner(self, costs: StepCosts) -> Tuner:
        """Return what computes training passes on made-up numbers."""
        return NumberTuner(self.arch, self.parts, costs)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        for source, target in copies:
            self._blocks[target] = [row[:] for row in self._block(source)]

    def source(self, span: Span) -> list[int]:
        if span.hidden is None:
            return [self._embedded(token) for token in span.tokens or ()]
        data = bytes(span.hidden)
        width = self._width
        return [
            self._number(data[at : at + width], span.start) for at in range(0, len(data), width)
        ]

    def unpacked(self, data: Buffer, count: int) -> list[int]:
        width = packed_bytes(self.arch.hidden)
        rows = [bytes(data[at : at + width]) for at in range(0, len(data), width)]
        if len(rows) != count or any(len(row) != width for row in rows):
            raise EngineError("bad-hidden", f"the input is not {count} packed rows")
        return [int.from_bytes(row[:_PIECES], "little") % _PRIME for row in rows]

    def fed_back(self, *tokens: int) -> list[int]:
        return [self._embedded(token) for token in tokens]

    @property
    def has_reference(self) -> bool:
        """There are no kernels that could be wrong."""
        return False

    def forward(self, pieces: Sequence[Piece], stop: Stop | None = None) -> Sequence[list[int]]:
        return [self._advance(piece) for piece in pieces]

    def _advance(self, piece: Piece) -> list[int]:
        """Compute the numbers of consecutive positions of one sequence (`piece`). Store each
        layer's numbers in the blocks of the sequence.
        """
        values: list[int] = piece.source[piece.first : piece.first + piece.count]
        start, blocks = piece.position, piece.table.blocks
        places = [
            (self._block(blocks[at // BLOCK]), at % BLOCK)
            for at in range(start, start + piece.count)
        ]
        before = self._block(blocks[(start - 1) // BLOCK]) if start else None
        adapted: Sequence[int] = piece.adapter or (0,) * len(self._layers)
        for layer, (own_key, factor, decay, share) in enumerate(self._layers):
            key = own_key ^ adapted[layer]
            kept = before[layer][(start - 1) % BLOCK] if before is not None else 0
            for index, (block, place) in enumerate(places):
                value = values[index]
                kept = (kept * decay + value) % _PRIME
                block[layer][place] = kept
                values[index] = ((value ^ key) * factor + kept * share) % _PRIME
        return values

    def _block(self, number: int) -> "list[array[int]]":
        """Return the numbers of a block: for each layer, one for every position."""
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = [_BLANK[:] for _ in self._layers]
        return block

    def export(self, table: BlockTable) -> Buffer:
        """Return the stored numbers of a sequence, padded to the size that real keys and values
        would have.
        """
        size = table.length * self._token_bytes // max(len(self._layers), 1)
        blocks = [self._block(number) for number in table.blocks]
        rows = (
            b"".join(block[layer].tobytes() for block in blocks)[: 8 * table.length]
            for layer in range(len(self._layers))
        )
        return b"".join(row.ljust(size, b"\0") for row in rows)

    def imported(self, length: int, data: memoryview) -> memoryview:
        return data

    def install(self, table: BlockTable, length: int, data: memoryview) -> None:
        size = len(data) // max(len(self._layers), 1)
        for layer in range(len(self._layers)):
            row = array("Q", bytes(data[layer * size : layer * size + 8 * length]))
            for index, number in enumerate(row):
                self._block(table.blocks[index // BLOCK])[layer][index % BLOCK] = number

    def read_kv(self, slots: Slots, layers: range, form: KvForm) -> bytes:
        """Return the stored numbers in some slots, padded to the size of real keys and values.

        The numbers are not rounded, whatever the form of the KV, so that a simulated text does not
        depend on the form.
        """
        places = _positions(slots)
        shape = KvShape(self.arch.kv_heads, self.arch.head_dim, self.dtype)
        size = shape.layer_bytes(len(places), form)
        rows = (
            array("Q", [self._block(at // BLOCK)[layer][at % BLOCK] for at in places]).tobytes()
            for layer in layers
        )
        return b"".join(row.ljust(size, b"\0") for row in rows)

    def parsed_kv(
        self, count: int, layers: range, form: KvForm, data: memoryview
    ) -> list["array[int]"]:
        size = len(data) // len(layers)
        return [array("Q", bytes(data[at : at + 8 * count])) for at in range(0, len(data), size)]

    def write_kv(self, slots: Slots, layers: range, values: list["array[int]"]) -> None:
        for layer, row in zip(layers, values, strict=True):
            for at, number in zip(_positions(slots), row, strict=True):
                self._block(at // BLOCK)[layer][at % BLOCK] = number

    def kept_kv(self, slots: Slots) -> list[list[int]]:
        places = _positions(slots)
        return [
            [self._block(at // BLOCK)[layer][at % BLOCK] for at in places]
            for layer in range(len(self._layers))
        ]

    def copied_kv(self, slots: Slots) -> list[list[int]]:
        return self.kept_kv(slots)

    def restore_kv(self, slots: Slots, values: list[list[int]]) -> None:
        self.write_kv(slots, range(len(values)), [array("Q", row) for row in values])

    def kv_distance(self, slots: Slots, values: list[list[int]]) -> float:
        """Return 1 if any number differs, because similar numbers mean nothing."""
        return float(self.kept_kv(slots) != values)

    def values(self, rows: list[int], logits: bool, position: int) -> bytes:
        return b"".join(map(self._logits if logits else self._hidden, rows))

    def pooled(
        self, rows: list[int], total: NDArray[np.float32] | None, position: int
    ) -> NDArray[np.float32]:
        states = [self._state(number) for number in rows]
        added: NDArray[np.float32] = np.sum(states, axis=0, dtype=np.float32)
        return added if total is None else added + total

    def _state(self, number: int) -> NDArray[np.float32]:
        """Return made-up final states of a position, which depend on its number.

        They are multiples of 1/1024 within 2, so that sums of up to 8,192 of them are exact in any
        order.
        """
        places = np.arange(1, self.arch.hidden + 1, dtype=np.uint64)
        mixed = (places * np.uint64(number | 1)) >> np.uint64(40)
        steps = (mixed % np.uint64(4096)).astype(np.float32) - np.float32(2048)
        return steps / np.float32(1024)

    def joined(self, outputs: Sequence[Buffer | NDArray[np.float32]]) -> Buffer:
        return b"".join(map(bytes, outputs))

    def packed_rows(self, outputs: Sequence[bytes]) -> Buffer:
        """Encode the numbers of rows exactly, with as many bytes as packed rows would have."""
        data, width = b"".join(outputs), packed_bytes(self.arch.hidden)
        rows = (data[at : at + self._width] for at in range(0, len(data), self._width))
        pieces = (row[: _PIECES * self._step : self._step] for row in rows)
        return b"".join(piece.ljust(width, b"\0") for piece in pieces)

    def choose(self, picks: Sequence[Pick]) -> Sequence[ChosenToken]:
        return [self._choose(pick.rows[-1], pick) for pick in picks]

    def _choose(self, number: int, pick: Pick) -> ChosenToken:
        """Return the choice for the number of the last position. All probabilities are made up."""
        sampling, position, vocabulary = pick.sampling, pick.position, self.arch.vocab
        likeliest, most = number % vocabulary, -(number % 1000) / 1000
        top = tuple(
            ((likeliest + place) % vocabulary, most - place)
            for place in range(min(pick.top, vocabulary))
        )
        if pick.change is not None:  # a lost token of the answer must change the text
            ruled = b"".join(each.tobytes() for each in _in_order(pick.change))
            digest = hashlib.blake2b(struct.pack("<Q", number) + ruled, digest_size=8).digest()
            number = int.from_bytes(digest)
        if sampling.temperature > 0 and sampling.top_k != 1:
            packed = struct.pack("<3Q", number, sampling.seed, position)
            number = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest())
        return ChosenToken(number % vocabulary, -(number % 1000) / 1000, top)

    def _embedded(self, token: int) -> int:
        """Return the number of a token, as it enters the first layer."""
        key, factor, _, share = self.embedding
        return ((token ^ key) * factor + share) % _PRIME

    def _hidden(self, number: int) -> bytes:
        """Encode a number as the hidden state of one position."""
        row = bytearray(self._row)
        row[: _PIECES * self._step : self._step] = number.to_bytes(_PIECES, "little")
        return bytes(row)

    def _number(self, row: bytes, position: int) -> int:
        """Return the number that a hidden state of one position contains.

        If the state comes from a real engine, returns an arbitrary number derived from it. Raises
        EngineError with code `not-finite` if such a state has values that are not finite.
        """
        pieces = row[: _PIECES * self._step : self._step]
        number = int.from_bytes(pieces, "little")
        if self._hidden(number) == row:
            return number % _PRIME
        if not _finite(row, self.dtype):
            raise EngineError("not-finite", f"values from position {position} on are not finite")
        return int.from_bytes(hashlib.blake2b(row, digest_size=8).digest()) % _PRIME

    def _logits(self, number: int) -> bytes:
        """Return float32 logits: 1 for the token that the number means, and 0 for all others."""
        logits = np.zeros(self.arch.vocab, np.float32)
        logits[number % self.arch.vocab] = 1.0
        return logits.tobytes()


def _positions(slots: Slots) -> list[int]:
    """Return each slot of some runs."""
    return [at for first, end in slots for at in range(first, end)]


def _in_order(change: Change) -> tuple[NDArray[Any], ...]:
    """Return the values of a change by ascending ids, without ids that it leaves as they are."""
    kept = (change.bias != 0) | (change.repetition != 1) | (change.penalty != 0)
    order = np.argsort(change.ids[kept])
    return tuple(each[kept][order] for each in change)


def _finite(row: bytes, dtype: DType) -> bool:
    """Return whether all values of a hidden state are finite."""
    if dtype == "bfloat16":
        wide = np.frombuffer(row, np.uint16).astype(np.uint32) << 16
        return bool(np.isfinite(wide.view(np.float32)).all())
    return bool(np.isfinite(np.frombuffer(row, np.float32)).all())


def read_chunks(arch: Architecture, shard: LoadShard, files: Files) -> dict[str, bytes]:
    """Read the chunk files of a shard. Return their contents by path.

    Makes the same checks as a real worker. Raises EngineError if a tensor or file is missing, or a
    file has the wrong digest.
    """
    given = {role for tensor in shard.tensors for role in tensor.roles}
    for role in tensor_shapes(arch, shard.parts):
        if role not in given:
            raise EngineError("missing-tensor", f"the shard needs `{role}`, which was not given")
    found = {}
    for tensor in shard.tensors:
        for path, digest in zip(tensor.chunks, tensor.digests, strict=True):
            found[path] = read_chunk(path, digest, files)
    return found


def read_chunk(path: str, digest: bytes, files: Files) -> bytes:
    """Return the content of a chunk file. Raises EngineError if it is missing or has another
    digest."""
    try:
        data = files.read(Path(path), limit=_CHUNK_LIMIT)
    except OSError as error:
        raise EngineError("bad-tensor", f"cannot read `{path}`: {error.strerror}") from None
    if _sha256(data) != digest:
        raise EngineError("digest-mismatch", f"the chunk `{path}` does not have its digest")
    return data


@lru_cache(maxsize=256)  # the hosts of a world have the same chunks
def _sha256(data: bytes) -> bytes:
    """Return the SHA-256 digest. The latest results are cached."""
    return hashlib.sha256(data).digest()


class Stopwatch:
    """Counter of seconds of simulated computing for which virtual time has not passed yet."""

    def __init__(self) -> None:
        self.spent = 0.0

    def take(self) -> float:
        """Return the counted seconds, and reset the counter."""
        spent, self.spent = self.spent, 0.0
        return spent


class Timed:
    """`Compute` wrapper that counts the time that the computation would take on a machine, as the
    cost model predicts it (docs/spec/costs.md)."""

    def __init__(self, inner: Compute, profile: Profile, watch: Stopwatch) -> None:
        self.arch, self.parts, self.dtype = inner.arch, inner.parts, inner.dtype
        self._inner = inner
        self._rates = profile.rates
        self._watch = watch
        work = ModelWork(inner.arch, inner.dtype)
        self._layers = work.of(Parts(False, inner.parts.start, inner.parts.stop, False))
        self._head = work.of(Parts(False, 0, 0, True))
        self._whole = work.of(inner.parts)

        self.source, self.fed_back, self.joined = inner.source, inner.fed_back, inner.joined
        self.pooled = inner.pooled
        self.unpacked, self.packed_rows = inner.unpacked, inner.packed_rows
        self.allocate, self.copy, self.adapt = inner.allocate, inner.copy, inner.adapt
        self.export, self.imported, self.install = inner.export, inner.imported, inner.install
        self.parsed_kv, self.write_kv = inner.parsed_kv, inner.write_kv
        self.kept_kv, self.kv_distance = inner.kept_kv, inner.kv_distance
        self.copied_kv, self.restore_kv = inner.copied_kv, inner.restore_kv

    @property
    def exactness(self) -> str:
        return self._inner.exactness

    @property
    def has_own_memory(self) -> bool:
        return self._inner.has_own_memory

    @property
    def has_reference(self) -> bool:
        """Nothing is computed again, because that takes real time."""
        return False

    def read_kv(self, slots: Slots, layers: range, form: KvForm) -> Buffer:
        data = self._inner.read_kv(slots, layers, form)
        self._watch.spent += len(data) / self._rates.bandwidth
        return data

    def costs(self) -> StepCosts:
        """Return the costs of a step on the machine, as its profile predicts them."""
        of = self._rates, self._whole
        chosen, alone = chosen_seconds(*of), alone_seconds(*of)
        return StepCosts(*shard_costs(*of), chosen=chosen, alone=alone)

    def adapter_costs(self, adapter: Any) -> AdapterCosts:
        """Return no costs: an adapter takes no simulated time."""
        return AdapterCosts(0.0, 0.0)

    def tuner(self, costs: StepCosts) -> Tuner:
        """Return what computes training passes in the time that the profile implies."""
        return TimedTuner(self._inner.tuner(costs), self._passed)

    def _passed(self, seconds: float) -> None:
        self._watch.spent += seconds

    def forward(self, pieces: Sequence[Piece], stop: Stop | None = None) -> Sequence[Any]:
        rows = [EqualRows(piece.count, piece.position) for piece in pieces]
        self._watch.spent += step_seconds(self._rates, self._layers, rows)
        return self._inner.forward(pieces)

    def values(self, rows: Any, logits: bool, position: int) -> Any:
        if logits:
            self._chosen(len(rows))
        return self._inner.values(rows, logits, position)

    def choose(self, picks: Sequence[Pick]) -> Sequence[ChosenToken | EngineError]:
        self._chosen(len(picks))
        return self._inner.choose(picks)

    def _chosen(self, count: int) -> None:
        """Add the time in which the head computes the logits of `count` rows."""
        self._watch.spent += product_seconds(self._rates, self._head, count, count)
