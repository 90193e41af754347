"""Format of an exported copy of a session's KV. No I/O. Spec: docs/spec/engine.md, session."""

import struct
from collections.abc import Sequence

import msgpack

from ....transport.decoding import decode
from ....transport.errors import Undecodable
from ..errors import EngineError
from ..families import Architecture, kv_token_bytes
from ..interface import DType, Parts
from ..wire import Buffer

_PREFIX = struct.Struct("!I")
_HEADER_LIMIT = 64 * 1024  # bytes; the layer kinds of 1024 layers fit


class KvCopies:
    """Encoder and decoder for copies of the KV of one shard's sessions."""

    def __init__(
        self, root: str, arch: Architecture, parts: Parts, dtype: DType, exactness: str
    ) -> None:
        self.token_bytes = kv_token_bytes(arch, parts.start, parts.stop, dtype)
        layers = parts.stop - parts.start  # copies of recurrent layers are not made (core.py)
        self._before = ["shoal-kv", 1, root, parts.start, parts.stop, dtype, exactness]
        self._after = [["full"] * layers, arch.kv_heads, arch.head_dim]

    def encode(self, length: int, data: Buffer, adapter: str = "") -> bytes:
        """Return the copy of `length` positions with their keys and values, which were computed
        with the adapter of this root."""
        header = msgpack.packb([*self._before, length, *self._after, adapter])
        return b"".join((_PREFIX.pack(len(header)), header, data))

    def parse(self, state: memoryview, most: int, adapter: str = "") -> tuple[int, memoryview]:
        """Return (length in positions, keys and values) of a copy.

        Raises EngineError `bad-state` if it is malformed, of another shard or adapter, or longer
        than `most` positions.
        """
        fields, data = _split(state)
        length = fields[7] if len(fields) == 12 else None
        mine = [*self._before, *self._after, adapter]
        if [*fields[:7], *fields[8:]] != mine or type(length) is not int:
            raise EngineError("bad-state", "the KV copy is of another shard, machine or adapter")
        if not 0 <= length <= most:
            raise EngineError(
                "bad-state", f"the KV copy has {length} positions, {most} are reserved"
            )
        if len(data) != length * self.token_bytes:
            raise EngineError("bad-state", "the KV copy has not the size its header says")
        return length, data


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
