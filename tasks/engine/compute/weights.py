"""Reads chunk files into tensors, and verifies and converts them in the same pass.

Besides the tensors that are filled, only one chunk is in memory, so loading needs no second copy of
the weights. Chunks come from untrusted peers through the chunk store. Therefore digest, shape,
dtype and finiteness are checked here again.
"""

import hashlib
import math
import os
import stat
from collections.abc import Mapping, Sequence

import torch

from ..defaults import CHUNK_BYTES
from ..errors import EngineError
from ..interface import DType, TensorSource
from .device import CPU, ComputeDevice

TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}
TORCH_SOURCES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
BYTES = ("_blocks", "_scales")  # ends of the names of tensors in MXFP4


class ChunkFiles:
    """Reader of chunk files, with one buffer."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def read(self, path: str, digest: bytes) -> memoryview:
        """Return the verified bytes of a chunk, in a buffer that the next call reuses.

        Raises EngineError `digest-mismatch` or `bad-tensor` if the chunk is damaged or no chunk.
        """
        size = self._read_file(path)
        data = memoryview(self._buffer)[:size]
        if hashlib.sha256(data).digest() != digest:
            raise EngineError("digest-mismatch", f"the chunk `{path}` does not have its digest")
        return data

    def _read_file(self, path: str) -> int:
        """Read a chunk file into the buffer and return its size in bytes."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise EngineError("bad-tensor", f"cannot read `{path}`: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > CHUNK_BYTES:
                raise EngineError("bad-tensor", f"`{path}` is not a chunk file")
            if len(self._buffer) < status.st_size:
                self._buffer = bytearray(status.st_size)
            return os.readv(descriptor, [memoryview(self._buffer)[: status.st_size]])
        finally:
            os.close(descriptor)


class Weights:
    """Tensors of one shard, read on demand by role (Hugging Face parameter name)."""

    def __init__(
        self,
        tensors: Sequence[TensorSource],
        shapes: Mapping[str, tuple[int, ...]],
        dtype: DType,
        device: ComputeDevice = CPU,
    ) -> None:
        """Check the tensors without reading them. `shapes` maps each role to its shape in the
        architecture. `device` is where they are read to.

        Raises EngineError `missing-tensor` if a role has no tensor, and `bad-tensor` if a tensor
        does not fit its role.
        """
        self._dtype = TORCH_DTYPES[dtype]
        self._device = device
        self._staged = torch.empty(0)
        self._shapes = shapes
        self._sources = {role: source for source in tensors for role in source.roles}
        self._files = ChunkFiles()
        for role, shape in shapes.items():
            self._check(role, shape)

    def has(self, role: str) -> bool:
        """Return whether the shard has this role."""
        return role in self._shapes

    def read(self, *roles: str) -> torch.Tensor:
        """Read the tensors of all roles into one tensor, stacked by rows (for fused projections).

        Raises EngineError `digest-mismatch` or `bad-tensor` if a chunk is damaged or a tensor is
        invalid.
        """
        rows = sum(self._shapes[role][0] for role in roles)
        shape = (rows, *self._shapes[roles[0]][1:])
        fused = torch.empty(shape, dtype=self._dtype, device=self._device.torch)
        first = 0
        for role in roles:
            last = first + self._shapes[role][0]
            self._fill(self._sources[role], fused[first:last].view(-1))
            first = last
        return fused

    def read_optional(self, *roles: str) -> torch.Tensor | None:
        """Read tensors like `read`, or return None if the shard does not have the first role."""
        return self.read(*roles) if self.has(roles[0]) else None

    def read_bytes(self, role: str) -> torch.Tensor:
        """Read a tensor of bytes to the CPU, without converting it.

        Raises EngineError `digest-mismatch` or `bad-tensor` if a chunk is damaged.
        """
        source, data = self._sources[role], bytearray()
        size = math.prod(self._shapes[role])
        for path, digest in zip(source.chunks, source.digests, strict=True):
            data += self._files.read(path, digest)
            if len(data) > size:
                break
        if len(data) != size:
            raise EngineError("bad-tensor", f"the chunks of `{role}` do not fit it")
        return torch.frombuffer(data, dtype=torch.uint8).view(self._shapes[role])

    def _check(self, role: str, shape: tuple[int, ...]) -> None:
        """Raise EngineError unless the tensor of this role exists, has this shape and can be
        converted."""
        source = self._sources.get(role)
        if source is None:
            raise EngineError("missing-tensor", f"the shard needs `{role}`, which was not given")
        if source.shape != shape:
            raise EngineError(
                "bad-tensor",
                f"`{role}` has shape {list(source.shape)}, config.json asks for {list(shape)}",
            )
        wanted = ("U8",) if role.endswith(BYTES) else tuple(TORCH_SOURCES)
        if source.dtype not in wanted:
            kinds = ", ".join(wanted)
            raise EngineError("bad-tensor", f"`{role}` has dtype {source.dtype}, not {kinds}")
        if len(source.chunks) != len(source.digests):
            raise EngineError("bad-tensor", f"`{role}` has not one digest per chunk")

    def _fill(self, source: TensorSource, target: torch.Tensor) -> None:
        """Read and convert a tensor's chunks into `target`. Raises EngineError if they are
        invalid."""
        dtype = TORCH_SOURCES[source.dtype]
        filled = 0
        for path, digest in zip(source.chunks, source.digests, strict=True):
            raw = self._files.read(path, digest)
            count, rest = divmod(len(raw), dtype.itemsize)
            piece = target[filled : filled + count]
            if rest or count == 0 or len(piece) != count:
                raise EngineError("bad-tensor", f"the chunks of `{source.roles[0]}` do not fit it")
            if not self._copy(torch.frombuffer(raw, dtype=dtype), piece):
                raise EngineError(
                    "bad-tensor", f"`{source.roles[0]}` has values that are not finite"
                )
            filled += count
        if filled != math.prod(source.shape):
            raise EngineError("bad-tensor", f"the chunks of `{source.roles[0]}` do not fit it")

    def _copy(self, values: torch.Tensor, piece: torch.Tensor) -> bool:
        """Convert values and copy them to the device. Return whether all are finite after that.

        Waits until the staging memory has been read: that takes a fraction of the chunk's hash.
        """
        if self._device.is_cpu:
            piece.copy_(values)
            return bool(torch.isfinite(piece).all())
        if len(self._staged) < len(values):
            self._staged = self._device.staging(len(values), self._dtype)
        staged = self._staged[: len(values)].copy_(values)
        piece.copy_(staged)
        return bool(torch.isfinite(staged).all())
