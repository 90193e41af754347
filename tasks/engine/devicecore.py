"""Core of a worker that computes with torch on one device."""

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
        from .compute.choosing import compute_for  # it imports torch

        return compute_for(arch, shard, self._device)

    def available_bytes(self) -> int:
        return self._device.available_bytes()

    def resident_bytes(self) -> int:
        return self._device.used_bytes()
