"""Choice of the code that computes a shard on a device."""

import importlib.util
import sys

from ..families import Architecture
from ..interface import LoadShard
from .device import ComputeDevice
from .torchcompute import TorchCompute


def compute_for(arch: Architecture, shard: LoadShard, device: ComputeDevice) -> TorchCompute:
    """Load a shard's weights, and return what computes it.

    A card of NVIDIA has own kernels if Triton, which compiles them, is installed and works.
    """
    if device.torch.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from .gpu import card, trial  # imports Triton, which takes a second

        if card.fits(arch, shard.parts):
            fault = trial.fault(device)
            if not fault:
                return card.CardCompute(arch, shard, device)
            print(f"engine: torch computes, not Triton: {fault}", file=sys.stderr, flush=True)
    return TorchCompute(arch, shard, device)
