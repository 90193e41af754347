"""Core of a worker that computes with torch on one device."""

from collections.abc import Callable

from .compute.device import ComputeDevice
from .core import Core
from .families import Architecture
from .interface import LoadShard
from .shard import Compute
from .spans.answers import Emit


class DeviceCore(Core):
    """Core whose weights and KV are in the memory of a device."""

    def __init__(
        self,
        device: ComputeDevice,
        emit: Emit,
        emit_soon: Emit,
        settle: Callable[[bool], None],
        *,
        memory_bytes: int,
    ) -> None:
        """The arguments after `device` are those of `Core`."""
        super().__init__(emit, emit_soon, settle, memory_bytes=memory_bytes)
        self._device = device

    def compute(self, arch: Architecture, shard: LoadShard) -> Compute:
        from .compute.choosing import compute_for  # it imports torch

        return compute_for(arch, shard, self._device)

    def available_bytes(self) -> int:
        return self._device.available_bytes()

    def resident_bytes(self) -> int:
        return self._device.used_bytes()
