"""The device on which a worker computes, and the ways to it and back.

All devices run the same code. On the CPU, nothing is copied. An accelerator
gets tensors from pinned (page-locked) memory, which its driver reads without a further copy.
"""

import numpy as np
import psutil
import torch

from ..defaults import DEVICE_SPARE_BYTES
from ..errors import EngineError

_PINS = ("cuda", "xpu")  # kinds of devices that copy from pinned memory
_DOUBLE = ("cpu", "cuda", "xpu")  # kinds with float64, which sampling needs


class ComputeDevice:
    """A device of torch, such as `cpu` or `cuda:0`."""

    def __init__(self, name: str = "cpu") -> None:
        """Raises EngineError `no-device` if torch cannot use the device."""
        self.name = name
        try:
            self.torch = torch.device(name)
            torch.empty(1, device=self.torch)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).split("\n", 1)[0]
            raise EngineError("no-device", f"`{name}` cannot be used: {reason}") from None
        self.is_cpu = self.torch.type == "cpu"
        self.samples = self.torch.type in _DOUBLE
        """Whether tokens can be chosen on this device."""
        self._pins = self.torch.type in _PINS
        self.has_own_memory = self.torch.type in _PINS
        """Whether its memory is not the host's. Apple's GPU shares the machine's memory."""

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the CPU on this device. On the CPU it is the same one."""
        if self.is_cpu:
            return tensor
        # torch keeps the pinned memory until the copy is done.
        source = tensor.pin_memory() if self._pins else tensor
        return source.to(self.torch, non_blocking=self._pins)

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of this device on the CPU, when its values are there."""
        if self.is_cpu:
            return tensor
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pins)
        target.copy_(tensor, non_blocking=self._pins)
        self.synchronize()
        return target

    def staging(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return memory of the CPU from which `upload_into` copies fast."""
        return torch.empty(count, dtype=dtype, pin_memory=self._pins)

    def synchronize(self) -> None:
        """Wait until the device has done all work."""
        if not self.is_cpu:
            torch.accelerator.synchronize(self.torch)

    def available_bytes(self) -> int:
        """Return the free memory for weights and KV, in bytes."""
        if self.is_cpu:
            return int(psutil.virtual_memory().available)
        module = torch.get_device_module(self.torch)
        if not hasattr(module, "mem_get_info"):  # Apple's GPU shares the machine's memory
            return int(psutil.virtual_memory().available)
        free, _ = module.mem_get_info(self.torch)
        return max(0, int(free) - DEVICE_SPARE_BYTES)

    def used_bytes(self) -> int:
        """Return the memory of the device that this process occupies, in bytes."""
        if self.is_cpu:
            return int(psutil.Process().memory_info().rss)
        module = torch.get_device_module(self.torch)
        if not hasattr(module, "memory_reserved"):
            return int(torch.mps.driver_allocated_memory())
        return int(module.memory_reserved(self.torch))


CPU = ComputeDevice()


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: ComputeDevice) -> torch.Tensor:
    """Return zeros. On the CPU, they occupy no memory until they are written: `torch.zeros` writes
    them."""
    if not device.is_cpu:
        return torch.zeros(shape, dtype=dtype, device=device.torch)
    kind = np.float32 if dtype == torch.float32 else np.uint16
    return torch.from_numpy(np.zeros(shape, kind)).view(dtype)
