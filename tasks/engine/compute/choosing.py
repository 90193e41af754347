"""Choice of the code that computes a shard on a device."""

import importlib.util

from ..families import Architecture
from ..interface import LoadShard
from .device import ComputeDevice
from .torchcompute import TorchCompute


def compute_for(arch: Architecture, shard: LoadShard, device: ComputeDevice) -> TorchCompute:
    """Load a shard's weights, and return what computes it.

    A card of NVIDIA has own kernels if Triton, which compiles them, is installed.
    """
    if device.torch.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from .gpu.card import CardCompute, fits  # imports Triton, which takes a second

        if fits(arch, shard.parts):
            return CardCompute(arch, shard, device)
    return TorchCompute(arch, shard, device)
