"""The weights of a model of this node's library, in float32."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....dht.content.library import Library
from ....dht.content.manifest import Manifest, Tensor
from ....dht.errors import ModelError
from ....transport.host.seam import Host
from ...engine.families import Architecture, tensor_shapes
from ...engine.interface import Parts
from ..interface import LearnedName, WeightName

Array = NDArray[np.float32]
FLOATS: Final = ("BF16", "F16", "F32")


class StoredWeights:
    """The weights of a model whose chunks are on this disk."""

    def __init__(
        self, host: Host, library: Library, manifest: Manifest, arch: Architecture
    ) -> None:
        self.arch = arch
        self._host = host
        self._library = library
        self._manifest = manifest

    async def read(self) -> dict[LearnedName, Array]:
        """Return all weights. Raises ModelError if a chunk is missing or damaged, or a tensor has
        another shape than config.json says, or values that are not finite."""
        return await self._host.offload(self._read)

    def _read(self) -> dict[LearnedName, Array]:
        shapes = tensor_shapes(self.arch, Parts(True, 0, self.arch.layers, True))
        tensors: Mapping[str, Tensor] = {
            role: tensor for tensor in self._manifest.tensors for role in tensor.roles
        }
        found: dict[LearnedName, Array] = {}
        for role, shape in shapes.items():
            tensor = tensors.get(role)
            if tensor is None or tensor.shape != shape or tensor.dtype not in FLOATS:
                raise ModelError("bad-tensor", f"the model has no `{role}` of the shape {shape}")
            data = b"".join(map(self._library.store.get, tensor.chunks))
            values = floats(data, tensor.dtype)
            if values.size != np.prod(shape) or not np.isfinite(values).all():
                raise ModelError("bad-tensor", f"`{role}` is damaged")
            found[WeightName(role)] = values.reshape(shape)
        return found


def floats(data: bytes, dtype: str) -> Array:
    """Return the values of a tensor as a new array."""
    if dtype == "BF16":
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32)
    return np.frombuffer(data, "<f2" if dtype == "F16" else "<f4").astype(np.float32)
