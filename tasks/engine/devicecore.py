"""Core of a worker that computes with torch on one device."""

import importlib.util
import sys

from .compute.device import ComputeDevice
from .core import Core
from .families import Architecture
from .interface import LoadShard
from .shard import Compute, Stop
from .spans.answers import FrameOutput


class DeviceCore(Core):
    """Core whose weights and KV are in the memory of a device."""

    def __init__(
        self,
        device: ComputeDevice,
        output: FrameOutput,
        *,
        stop: Stop | None = None,
        memory_bytes: int,
    ) -> None:
        """The arguments after `device` are those of `Core`."""
        super().__init__(output, stop=stop, memory_bytes=memory_bytes)
        self._device = device

    def compute(self, arch: Architecture, shard: LoadShard) -> Compute:
        """Load a shard's weights, and return what computes it.

        A card of NVIDIA has own kernels if Triton, which compiles them, is installed and works.
        """
        from .compute.torchcompute import TorchCompute  # it imports torch

        device = self._device
        if device.torch.type == "cuda" and importlib.util.find_spec("triton") is not None:
            from .compute.gpu import card, trial  # imports Triton, which takes a second

            if card.fits(arch, shard.parts):
                fault = trial.fault(device)
                if not fault:
                    return card.CardCompute(arch, shard, device)
                print(f"engine: torch computes, not Triton: {fault}", file=sys.stderr, flush=True)
        return TorchCompute(arch, shard, device)

    def available_bytes(self) -> int:
        return self._device.available_bytes()

    def resident_bytes(self) -> int:
        return self._device.used_bytes()
