"""Format of a part of KV: some positions of some layers. No I/O. Spec: docs/spec/engine.md.

A part says for which model, adapter, layers and positions it is, so that a part of something else
is refused wherever it comes from.
"""

import struct
from typing import Annotated, Final, Literal, NamedTuple

import msgpack
from msgspec import Meta

from ....transport.decoding import decode, typed
from ....transport.errors import Undecodable
from ....transport.message import Row
from ..defaults import KV_PART_BYTES
from ..errors import EngineError
from ..families import DTYPE_BYTES, Architecture
from ..interface import EXACTNESS_BYTES, DType, KvForm, KvRange, Parts
from ..wire import Buffer

_PREFIX = struct.Struct("!H")
_HEADER_LIMIT: Final = 1024  # bytes
_MAGIC: Final = "shoal-kv-part"
_SCALE_BYTES: Final = 2  # a scale in float16

_Text = Annotated[str, Meta(max_length=64)]
_Count = Annotated[int, Meta(ge=1, le=1 << 16)]


class _PartHeader(Row, frozen=True):
    """Header of a part, in the order of the specification."""

    magic: Literal["shoal-kv-part"]
    version: Literal[1]
    root: _Text
    adapter: _Text
    dtype: DType
    exactness: Annotated[str, Meta(max_length=EXACTNESS_BYTES)]
    form: KvForm
    range: KvRange
    heads: _Count
    head_dim: _Count

    def check(self) -> None:
        """Raise ValueError if the range is empty."""
        self.range.check()


class KvShape(NamedTuple):
    """Shape of the KV of one layer and position: a key and a value of `head_dim` values for each of
    `heads`."""

    heads: int
    head_dim: int
    dtype: DType

    def layer_bytes(self, positions: int, form: KvForm) -> int:
        """Return the bytes of a part with these positions of one layer, without its header."""
        if form == "int8":
            return 2 * self.heads * positions * (self.head_dim + _SCALE_BYTES)
        return 2 * self.heads * positions * self.head_dim * DTYPE_BYTES[self.dtype]

    def part_bytes(self, part: KvRange, form: KvForm) -> int:
        """Return the bytes of a part without its header."""
        return (part.last - part.first) * self.layer_bytes(part.stop - part.start, form)

    def positions(self, form: KvForm, most: int, block: int) -> int:
        """Return how many positions of one layer, at most `most`, fit into a part.

        The result is a multiple of `block`, and at least that.
        """
        fit = KV_PART_BYTES // self.layer_bytes(1, form) // block * block
        return max(block, min(fit, most // block * block))


class KvPart(NamedTuple):
    """A decoded part whose values are not checked yet."""

    range: KvRange
    form: KvForm
    data: memoryview


class KvPartCodec:
    """Encoder and decoder for parts of the KV of one shard."""

    def __init__(
        self, root: str, arch: Architecture, parts: Parts, dtype: DType, exactness: str
    ) -> None:
        self.shape = KvShape(arch.kv_heads, arch.head_dim, dtype)
        self._root = root
        self._parts = parts
        self._exactness = exactness

    def check(self, part: KvRange, form: KvForm) -> None:
        """Raise EngineError `bad-state` if the shard does not have these layers, or the part is too
        large."""
        if part.first < self._parts.start or part.last > self._parts.stop:
            raise EngineError(
                "bad-state",
                f"layers {part.first}:{part.last} of KV are not in a shard with layers "
                f"{self._parts.start}:{self._parts.stop}",
            )
        size = self.shape.part_bytes(part, form)
        block = 16 * self.shape.layer_bytes(1, form)  # of the widest models, always accepted
        if size > max(KV_PART_BYTES, block):
            raise EngineError("bad-state", f"a part of {size} bytes of KV is too large")

    def encode(self, part: KvRange, form: KvForm, data: Buffer, adapter: str) -> bytes:
        """Return a part with its data."""
        fields = _MAGIC, 1, self._root, adapter, self.shape.dtype, self._exactness, form
        numbers = part.start, part.stop, part.first, part.last
        header = msgpack.packb([*fields, numbers, self.shape.heads, self.shape.head_dim])
        return b"".join((_PREFIX.pack(len(header)), header, data))

    def parse(self, state: memoryview, adapter: str) -> KvPart:
        """Decode a part for a session with this adapter.

        Raises EngineError `bad-state` if it is malformed, or of another model, adapter, shape or
        dtype, or of layers that the shard lacks. Raises `other-class` if an exact part is of
        another class of exactness.
        """
        header, data = _split(state)
        mine = self._root, adapter, *self.shape
        theirs = header.root, header.adapter, header.heads, header.head_dim, header.dtype
        if mine != theirs:
            raise EngineError("bad-state", "the part of KV is of another model or adapter")
        if header.form == "exact" and header.exactness != self._exactness:
            raise EngineError("other-class", "the part of KV is of another class of exactness")
        self.check(header.range, header.form)
        if len(data) != self.shape.part_bytes(header.range, header.form):
            raise EngineError("bad-state", "the part of KV has not the size its header says")
        return KvPart(header.range, header.form, data)


def range_of(state: memoryview) -> tuple[KvRange, KvForm]:
    """Return which part of KV this is, as its header says.

    Raises EngineError `bad-state` if it is malformed.
    """
    header, _ = _split(state)
    return header.range, header.form


def _split(state: memoryview) -> tuple[_PartHeader, memoryview]:
    """Return (header, data) of a part. Raises EngineError `bad-state` if it is malformed."""
    try:
        (size,) = _PREFIX.unpack_from(state)
        if size > _HEADER_LIMIT:
            raise ValueError("the header is too large")
        end = _PREFIX.size + size
        fields = decode(state[_PREFIX.size : end], limit=_HEADER_LIMIT)
        return typed(_PartHeader, fields), state[end:]
    except (Undecodable, ValueError, struct.error):
        raise EngineError("bad-state", "the part of KV has no valid header") from None
