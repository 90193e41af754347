"""Lists the devices that torch sees. Runs in the probe's process, which may load torch."""

import torch
from msgspec.structs import replace

from ..engine.compute.native.choice import choice
from .defaults import DEVICE_LEAST
from .facts import Build, Device, KernelSet, clean


def build() -> Build:
    """Return what this torch was built for, after trying to start CUDA."""
    error = ""
    if torch.version.cuda and not torch.cuda.is_available():
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as raised:
            error = clean(str(raised).split(".")[0])
    return Build(
        clean(torch.__version__),
        torch.version.cuda or "",
        torch.version.hip or "",
        torch.xpu._is_compiled(),
        error,
    )


def devices(memory: int) -> list[Device]:
    """Return the devices that torch sees, the CPU first. `memory` is that of the machine in
    bytes."""
    return [processor(memory), *accelerators()]


def processor(memory: int) -> Device:
    """Return the CPU, with `memory` bytes. The daemon knows its label."""
    capability = torch.backends.cpu.get_cpu_capability()
    return Device("cpu", "", "" if capability == "DEFAULT" else capability, memory)


def kernels() -> tuple[KernelSet, ...]:
    """Return the native kernels of the CPU, those in use first."""
    chosen = choice()
    unused = [KernelSet(name, clean(reason)) for name, reason in chosen.refused.items()]
    if chosen.kernels is None:
        return tuple(unused)
    slow = [f"{str(dtype).split('.')[1]}: {why}" for dtype, why in chosen.slow.items()]
    return KernelSet(chosen.kernels.name, "", clean("; ".join(slow))), *unused


def accelerators() -> list[Device]:
    """Return the accelerators (GPUs) that torch sees."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return []
    return [_accelerator(kind.type, index) for index in range(torch.accelerator.device_count())]


def _accelerator(kind: str, index: int) -> Device:
    name = f"{kind}:{index}"
    if kind == "mps":
        device = Device(name, "Apple GPU", "", int(torch.mps.recommended_max_memory()))
    else:
        device = _described(name, torch.get_device_module(kind).get_device_properties(index))
    return judged(device)


def _described(name: str, properties: object) -> Device:
    """Return a device from the properties that torch gives it."""
    major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
    arch = getattr(properties, "gcnArchName", "")  # of AMD; NVIDIA's own has a number
    if not arch and major is not None:
        arch = f"sm_{major}{minor}"
    label, memory = getattr(properties, "name", ""), getattr(properties, "total_memory", 0)
    return Device(name, clean(str(label)) or name, clean(str(arch)), int(memory))


def judged(device: Device) -> Device:
    """Return the device with the reason why it cannot be used, if there is one."""
    if device.memory_bytes < DEVICE_LEAST:
        least, most = DEVICE_LEAST >> 20, device.memory_bytes >> 20
        reason = f"it has {most} MiB of memory, and {least} MiB are needed"
        return replace(device, unused=reason)
    try:
        torch.ones(2, device=device.name).sum().item()
    except (RuntimeError, AssertionError) as error:  # such as a card this torch has no code for
        reason = clean(f"torch cannot compute on it: {str(error).splitlines()[0]}")
        return replace(device, unused=reason)
    return device
