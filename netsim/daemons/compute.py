"""Computation of a simulated engine: it uses numbers instead of weights, and models the time
needed.

The number of a token passes up through the layers. Each layer mixes it with the numbers that
earlier positions have left in that layer, using constants that depend on the model and on the
layer's index. The token that the head chooses therefore depends on every token so far, and on every
layer in order. If a layer is wrong, missing or applied twice, the result is another token. The
result does not depend on how the layers are split into shards.
"""

import hashlib
import struct
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from ...tasks.engine.budget import KvBudget
from ...tasks.engine.core import Compute
from ...tasks.engine.defaults import HEADER_BYTES
from ...tasks.engine.errors import EngineError
from ...tasks.engine.families import (
    DTYPE_BYTES,
    Architecture,
    check_parts,
    kv_token_bytes,
    tensor_shapes,
)
from ...tasks.engine.interface import DType, LoadShard, Parts, Sampling, Span
from ...tasks.engine.session import KvState
from ...tasks.engine.wire import Buffer
from ...transport.decoding import decode
from ...transport.errors import Undecodable
from ...transport.host.seam import Files
from .profile import Profile

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


class NumberState:
    """KV state of a session: for each layer (`rows`), one number for every position.

    `tokens` is the number of positions for which memory is reserved, and `length` of those in use.
    """

    def __init__(
        self,
        root: str,
        arch: Architecture,
        parts: Parts,
        dtype: DType,
        tokens: int,
        budget: KvBudget,
    ) -> None:
        self._token_bytes = kv_token_bytes(arch, parts.start, parts.stop, dtype)
        self._bytes = tokens * self._token_bytes
        budget.reserve(self._bytes)
        self._budget = budget
        layers = parts.stop - parts.start
        self.tokens = tokens
        self.length = 0
        self.rows = [array("Q") for _ in range(layers)]
        self._identity = [
            *("shoal-kv", 1, root, parts.start, parts.stop, dtype),
            *(["full"] * layers, arch.kv_heads, arch.head_dim),
        ]

    def free(self) -> None:
        """Return the reserved memory to the budget, and discard the numbers."""
        self._budget.free(self._bytes)
        self._bytes = 0
        self.rows = []

    def truncate(self, length: int) -> None:
        """Discard the positions from `length` on."""
        self.length = min(self.length, length)

    def export(self) -> bytes:
        """Encode the state, padded to the size that real keys and values would have."""
        header = msgpack.packb([*self._identity[:6], self.length, *self._identity[6:]])
        size = self.length * self._token_bytes // max(len(self.rows), 1)
        data = [row[: self.length].tobytes().ljust(size, b"\0") for row in self.rows]
        return b"".join((struct.pack("!I", len(header)), header, *data))

    def install(self, state: bytes | memoryview) -> int:
        """Replace the state by an exported one, and return its number of positions.

        Raises EngineError with code `bad-state` if it is malformed, belongs to another shard, or is
        too long.
        """
        fields, data = _split(bytes(state))
        length = fields[6] if len(fields) == len(self._identity) + 1 else None
        if [*fields[:6], *fields[7:]] != self._identity or type(length) is not int:
            raise EngineError("bad-state", "the KV copy belongs to another shard")
        if not 0 <= length <= self.tokens:
            raise EngineError("bad-state", _too_many(length, self.tokens))
        if len(data) != length * self._token_bytes:
            raise EngineError("bad-state", "the size of the KV copy does not match its header")
        size = len(data) // max(len(self.rows), 1)
        self.rows = [
            array("Q", data[at * size : at * size + 8 * length]) for at in range(len(self.rows))
        ]
        self.length = length
        return length

    def copy_from(self, other: "NumberState") -> None:
        """Replace the state by a copy of another. Raises EngineError if it is too long."""
        if other.length > self.tokens:
            raise EngineError("bad-state", _too_many(other.length, self.tokens))
        self.rows = [row[: other.length] for row in other.rows]
        self.length = other.length


def _too_many(length: int, tokens: int) -> str:
    """Return the message for a state that is longer than the reserved memory."""
    return f"the KV copy has {length} positions, {tokens} are reserved"


def _split(state: bytes) -> tuple[Sequence[Any], bytes]:
    """Split an exported state into the fields of its header and the numbers.

    Raises EngineError with code `bad-state` if the header is malformed.
    """
    end = 4 + int.from_bytes(state[:4])
    try:
        fields = decode(state[4:end], limit=HEADER_BYTES)
    except Undecodable as error:
        raise EngineError("bad-state", "the KV copy's header cannot be read") from error
    if not isinstance(fields, list):
        raise EngineError("bad-state", "the KV copy's header cannot be read")
    return fields, state[end:]


class NumberCompute:
    """`Compute` of the engine's core that works on numbers instead of tensors."""

    def __init__(self, arch: Architecture, shard: LoadShard, files: Files) -> None:
        """Check the shard and read its weights.

        Raises EngineError if the shard or the model is not supported, or a weight file is missing
        or damaged.
        """
        check_parts(arch, shard.parts)
        if arch.hidden < _PIECES:
            raise EngineError("unsupported-architecture", f"fewer than {_PIECES} hidden values")
        read_chunks(arch, shard, files)
        self.arch = arch
        self.parts = shard.parts
        self.dtype: DType = shard.dtype
        layers = range(shard.parts.start, shard.parts.stop)
        self._layers = [_constants(shard.root, layer) for layer in layers]
        self._embedding = _constants(shard.root, -1)
        self._step = DTYPE_BYTES[shard.dtype]
        self._width = arch.hidden * self._step
        self._row = _ONE[shard.dtype] * _PIECES + bytes(self._width - _PIECES * self._step)

    def state(self, root: str, tokens: int, budget: KvBudget) -> NumberState:
        return NumberState(root, self.arch, self.parts, self.dtype, tokens, budget)

    def source(self, span: Span) -> list[int]:
        if span.tokens is not None:
            return [self._embedded(token) for token in span.tokens]
        data = bytes(span.hidden or b"")
        width = self._width
        return [
            self._number(data[at : at + width], span.start) for at in range(0, len(data), width)
        ]

    def fed_back(self, token: int) -> list[int]:
        return [self._embedded(token)]

    def advance(
        self, source: list[int], first: int, count: int, state: KvState, position: int
    ) -> list[int]:
        assert isinstance(state, NumberState)  # made by `state` above
        values = source[first : first + count]
        for (key, factor, decay, share), row in zip(self._layers, state.rows, strict=True):
            del row[position:]
            kept = row[-1] if row else 0
            for index, value in enumerate(values):
                kept = (kept * decay + value) % _PRIME
                row.append(kept)
                values[index] = ((value ^ key) * factor + kept * share) % _PRIME
        return values

    def values(self, rows: list[int], logits: bool, position: int) -> bytes:
        return b"".join(map(self._logits if logits else self._hidden, rows))

    def joined(self, outputs: Sequence[bytes]) -> Buffer:
        return b"".join(outputs)

    def choose(self, rows: list[int], sampling: Sampling, position: int) -> tuple[int, float]:
        number = rows[-1]
        if sampling.temperature > 0 and sampling.top_k != 1:
            packed = struct.pack("<3Q", number, sampling.seed, position)
            number = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest())
        return number % self.arch.vocab, -(number % 1000) / 1000

    def _embedded(self, token: int) -> int:
        """Return the number of a token, as it enters the first layer."""
        key, factor, _, share = self._embedding
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
        """Return logits of which the highest is that of the token that the number stands for."""
        logits = np.zeros(self.arch.vocab, np.float32)
        logits[number % self.arch.vocab] = 1.0
        return logits.tobytes()


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
            try:
                data = found[path] = files.read(Path(path), limit=_CHUNK_LIMIT)
            except OSError as error:
                raise EngineError("bad-tensor", f"cannot read `{path}`: {error.strerror}") from None
            if _sha256(data) != digest:
                raise EngineError("digest-mismatch", f"the chunk `{path}` does not have its digest")
    return found


@lru_cache(maxsize=256)  # the hosts of a world have the same chunks
def _sha256(data: bytes) -> bytes:
    """Return the SHA-256 digest. The latest results are cached."""
    return hashlib.sha256(data).digest()


class Stopwatch:
    """Counter of the seconds of computing that have been counted but not passed in virtual time."""

    def __init__(self) -> None:
        self.spent = 0.0

    def take(self) -> float:
        """Return the counted seconds, and reset the counter."""
        spent, self.spent = self.spent, 0.0
        return spent


class Timed:
    """`Compute` wrapper that counts the time that the computation would take on a machine.

    Follows the roofline model: a step reads the weights and the KV once, and computes a number of
    products. The slower of the two decides how long the step takes.
    """

    def __init__(self, inner: Compute, profile: Profile, watch: Stopwatch) -> None:
        self.arch, self.parts, self.dtype = inner.arch, inner.parts, inner.dtype
        self._inner = inner
        self._speed = profile.speed
        self._step_s = profile.step_s
        self._watch = watch
        arch, parts = inner.arch, inner.parts
        self._layers = _parameters(arch, Parts(False, parts.start, parts.stop, False))
        self._head = arch.vocab * arch.hidden
        self._token_bytes = kv_token_bytes(arch, parts.start, parts.stop, inner.dtype)
        # Floating point operations of one position's attention to one other position.
        self._attended = 4 * (parts.stop - parts.start) * arch.heads * arch.head_dim

        self.state, self.source = inner.state, inner.source
        self.fed_back, self.joined = inner.fed_back, inner.joined

    def advance(self, source: Any, first: int, count: int, state: KvState, position: int) -> Any:
        end = position + count
        flops = count * (2.0 * self._layers + self._attended * end)
        size = self._layers * DTYPE_BYTES[self.dtype] + end * self._token_bytes
        self._watch.spent += self._step_s
        self._pass(flops, size)
        return self._inner.advance(source, first, count, state, position)

    def values(self, rows: Any, logits: bool, position: int) -> Any:
        if logits:
            self._pass(2.0 * len(rows) * self._head, self._head * DTYPE_BYTES[self.dtype])
        return self._inner.values(rows, logits, position)

    def choose(self, rows: Any, sampling: Sampling, position: int) -> tuple[int, float]:
        self._pass(2.0 * self._head, self._head * DTYPE_BYTES[self.dtype])
        return self._inner.choose(rows, sampling, position)

    def _pass(self, flops: float, size: float) -> None:
        """Add the time that `flops` floating point operations and reading `size` bytes take to the
        simulated computing time."""
        self._watch.spent += max(flops / self._speed.flops, size / self._speed.bandwidth)


def _parameters(arch: Architecture, parts: Parts) -> int:
    """Return the number of parameters in the parts of a model."""
    return sum(int(np.prod(shape)) for shape in tensor_shapes(arch, parts).values())
