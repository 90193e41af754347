"""Reads chunk files into tensors, and verifies and converts them in the same pass.

Besides the tensors that are filled, only one chunk is in memory, so loading needs no second copy of
the weights. Chunks come from untrusted peers through the chunk store. Therefore digest, shape,
dtype and finiteness are checked here again.
"""

import hashlib
import itertools
import math
import os
import stat
from collections.abc import Mapping, Sequence

import torch

from ..defaults import CHUNK_BYTES
from ..errors import EngineError
from ..interface import DType, TensorSource
from ..layouts import FLOATS, Layout, Layouts
from .device import CPU, ComputeDevice
from .products import Quantised
from .quantised import Matrix

TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}
TORCH_STORED: Mapping[str, torch.dtype] = {  # of quantised weights, which are not converted
    "I8": torch.int8,
    "U8": torch.uint8,
    "F16": torch.float16,
}
TORCH_SOURCES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}


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
        layouts: Layouts = FLOATS,
    ) -> None:
        """Check the tensors without reading them. `shapes` maps each role to its shape in the
        architecture, and `layouts` says which of them are quantised. `device` is where they are
        read to.

        Raises EngineError `missing-tensor` if a role has no tensor, and `bad-tensor` if a tensor
        does not fit its role.
        """
        self._dtype = TORCH_DTYPES[dtype]
        self._device = device
        self._staged: dict[torch.dtype, torch.Tensor] = {}
        self._shapes = shapes
        self._layouts = layouts
        self._sources = {role: source for source in tensors for role in source.roles}
        self._files = ChunkFiles()
        for role, (stored, shape) in layouts.stored(shapes).items():
            self._check(role, stored, shape)

    def has(self, role: str) -> bool:
        """Return whether the shard has this role."""
        return role in self._shapes

    def read(self, *roles: str) -> torch.Tensor:
        """Read the tensors of all roles into one tensor, stacked by rows (for fused projections).

        Raises EngineError `digest-mismatch` or `bad-tensor` if a chunk is damaged or a tensor is
        invalid.
        """
        return self._read(roles, self._dtype)

    def read_optional(self, *roles: str) -> torch.Tensor | None:
        """Read tensors like `read`, or return None if the shard does not have the first role."""
        return self.read(*roles) if self.has(roles[0]) else None

    def matrices(self, *roles: str) -> list[Matrix]:
        """Read weights that may be quantised. Neighbours in the same layout become one matrix.

        Returns nothing if the shard does not have the first role. Raises EngineError as `read`
        does.
        """
        if not self.has(roles[0]):
            return []
        runs = itertools.groupby(roles, lambda role: self._layouts.of(role, self._shapes[role]))
        return [self._matrix(layout, tuple(run)) for layout, run in runs]

    def _matrix(self, layout: Layout | None, roles: Sequence[str]) -> Matrix:
        """Read weights of one layout, stacked by rows."""
        if layout is None:
            return self.read(*roles)

        def part(end: str, dtype: torch.dtype) -> torch.Tensor:
            return self._read([role + end for role in roles], dtype)

        int8 = layout.precision == "int8"
        return Quantised(
            layout.precision,
            part("", torch.int8 if int8 else torch.uint8),
            part(".scale", torch.float16),
            None if int8 else part(".minimum", torch.float16),
        )

    def _read(self, roles: Sequence[str], dtype: torch.dtype) -> torch.Tensor:
        """Read stored tensors into one tensor of a dtype, stacked by rows."""
        shapes = [self._sources[role].shape for role in roles]
        shape = (sum(each[0] for each in shapes), *shapes[0][1:])
        fused = torch.empty(shape, dtype=dtype, device=self._device.torch)
        first = 0
        for role, each in zip(roles, shapes, strict=True):
            self._fill(self._sources[role], fused[first : first + each[0]].view(-1))
            first += each[0]
        return fused

    def _check(self, role: str, stored: str | None, shape: tuple[int, ...]) -> None:
        """Raise EngineError unless the tensor of this role exists, has this shape and dtype, or any
        float one if `stored` is None."""
        source = self._sources.get(role)
        if source is None:
            raise EngineError("missing-tensor", f"the shard needs `{role}`, which was not given")
        if source.shape != shape:
            raise EngineError(
                "bad-tensor",
                f"`{role}` has shape {list(source.shape)}, config.json asks for {list(shape)}",
            )
        if source.dtype not in ((stored,) if stored else TORCH_SOURCES):
            wanted = stored or "a float one"
            raise EngineError("bad-tensor", f"`{role}` has dtype {source.dtype}, not {wanted}")
        if len(source.chunks) != len(source.digests):
            raise EngineError("bad-tensor", f"`{role}` has not one digest per chunk")

    def _fill(self, source: TensorSource, target: torch.Tensor) -> None:
        """Read and convert a tensor's chunks into `target`. Raises EngineError if they are
        invalid."""
        dtype = {**TORCH_SOURCES, **TORCH_STORED}[source.dtype]
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
            return _is_finite(piece)
        staged = self._staged.get(piece.dtype)
        if staged is None or len(staged) < len(values):
            staged = self._staged[piece.dtype] = self._device.staging(len(values), piece.dtype)
        staged = staged[: len(values)].copy_(values)
        piece.copy_(staged)
        return _is_finite(staged)


def _is_finite(values: torch.Tensor) -> bool:
    return not values.is_floating_point() or bool(torch.isfinite(values).all())
