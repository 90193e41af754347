"""Keys and values of one session, in torch.

Memory for every position is reserved at `open`, so a session that was admitted never fails later
for lack of memory. The operating system commits pages when positions are written.
"""

import struct
from collections.abc import Sequence

import msgpack
import torch

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from .budget import KvBudget
from .errors import EngineError
from .families import Architecture, kv_token_bytes
from .interface import DType, Parts
from .weights import TORCH_DTYPES

_PREFIX = struct.Struct("!I")
_HEADER_LIMIT = 64 * 1024  # bytes; the layer kinds of 1024 layers fit


class KV:
    """Keys and values of one session over a shard's layers. Positions 0 to length-1 are valid.

    `keys[i]` and `values[i]` are views of shape (kv_heads, tokens, head_dim).
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
        self.bytes = tokens * kv_token_bytes(arch, parts.start, parts.stop, dtype)
        budget.reserve(self.bytes)
        self._budget = budget
        self.tokens = tokens
        self.length = 0
        layers = parts.stop - parts.start
        shape = (layers, 2, arch.kv_heads, tokens, arch.head_dim)
        self._slab = torch.empty(shape, dtype=TORCH_DTYPES[dtype])
        self.keys = [self._slab[layer, 0] for layer in range(layers)]
        self.values = [self._slab[layer, 1] for layer in range(layers)]
        self._dtype = dtype
        self._identity = [
            *("shoal-kv", 1, root, parts.start, parts.stop, dtype),
            *(["full"] * layers, arch.kv_heads, arch.head_dim),
        ]

    def free(self) -> None:
        """Free the memory. The object must not be used afterwards."""
        self._budget.free(self.bytes)
        self.bytes = 0
        self.keys, self.values = [], []
        self._slab = self._slab[:0]

    def truncate(self, length: int) -> None:
        """Drop the positions from `length` on."""
        self.length = min(self.length, length)

    def export(self) -> bytes:
        """Return an exact copy of the KV. Format: docs/spec/engine.md, session."""
        header = msgpack.packb([*self._identity[:6], self.length, *self._identity[6:]])
        valid = self._slab[:, :, :, : self.length].contiguous()
        return b"".join((_PREFIX.pack(len(header)), header, raw_bytes(valid)))

    def install(self, state: bytes | memoryview) -> int:
        """Replace the KV by an exported copy, and return its length in positions.

        Raises EngineError `bad-state` if the copy is malformed, too long or of another shard.
        """
        length, data = self._parse(memoryview(state))
        target = self._slab[:, :, :, :length]
        if length and target.numel():
            values = torch.frombuffer(bytearray(data), dtype=self._slab.dtype).view(target.shape)
            if not bool(torch.isfinite(values).all()):
                raise EngineError("bad-state", "the KV copy has values that are not finite")
            target.copy_(values)
        self.length = length
        return length

    def copy_from(self, other: "KV") -> None:
        """Replace the KV by that of `other`. Raises EngineError `bad-state` if it has too many
        positions."""
        if other.length > self.tokens:
            raise EngineError("bad-state", _too_many(other.length, self.tokens))
        self._slab[:, :, :, : other.length] = other._slab[:, :, :, : other.length]
        self.length = other.length

    def _parse(self, state: memoryview) -> tuple[int, memoryview]:
        """Return (length in positions, data) of an exported copy. Raises EngineError
        `bad-state`."""
        fields, data = _split(state)
        length = fields[6] if len(fields) == len(self._identity) + 1 else None
        if [*fields[:6], *fields[7:]] != self._identity or type(length) is not int:
            raise EngineError("bad-state", "the KV copy belongs to another shard")
        if not 0 <= length <= self.tokens:
            raise EngineError("bad-state", _too_many(length, self.tokens))
        if len(data) != self._slab[:, :, :, :length].numel() * self._slab.itemsize:
            raise EngineError("bad-state", "the KV copy has not the size its header says")
        return length, data


def _too_many(length: int, tokens: int) -> str:
    return f"the KV copy has {length} positions, {tokens} are reserved"


def _split(state: memoryview) -> tuple[Sequence[object], memoryview]:
    """Return (header fields, data) of an exported copy. Raises EngineError `bad-state` if
    malformed."""
    if len(state) < _PREFIX.size:
        raise EngineError("bad-state", "the KV copy is cut short")
    (size,) = _PREFIX.unpack_from(state)
    if size > _HEADER_LIMIT:
        raise EngineError("bad-state", f"the KV copy announces a header of {size} bytes")
    end = _PREFIX.size + size
    try:
        fields = decode(state[_PREFIX.size : end], limit=_HEADER_LIMIT)
    except Undecodable as error:
        raise EngineError("bad-state", "the KV copy's header cannot be read") from error
    if not isinstance(fields, list):
        raise EngineError("bad-state", "the KV copy's header cannot be read")
    return fields, state[end:]


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return a view of the memory of a contiguous tensor as bytes."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())
