"""Facts about the devices of a machine, as the probe reports and `machine.json` stores them."""

import math
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from ...state.defaults import MAX_BATCH, MAX_BYTES, MAX_RATE
from ...state.membership.record import DeviceSpeed
from ...transport.message import Message, check_text
from .defaults import DEVICE_TEXT_BYTES, DEVICES, KERNEL_SETS

_Rate = Annotated[float, Meta(ge=0, le=MAX_RATE)]
_Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
_Text = Annotated[str, Meta(max_length=DEVICE_TEXT_BYTES)]


class Speed(Message, frozen=True):
    """Measured speed of a device; 0 is unknown. Rates are in byte/s and flop/s.

    `batch` is the number of rows up to which a step takes hardly longer than with one row.
    """

    bandwidth: _Rate = 0.0
    float32: _Rate = 0.0
    bfloat16: _Rate = 0.0
    batch: Annotated[int, Meta(ge=0, le=MAX_BATCH)] = 0

    def check(self) -> None:
        if not all(map(math.isfinite, (self.bandwidth, self.float32, self.bfloat16))):
            raise ValueError("a measured speed is not finite")


class Device(Message, frozen=True):
    """A device of this machine.

    `unused` is a plain reason why the engine cannot compute on it, or "", and `hint` says what its
    owner can do about that, or "".
    """

    name: _Text  # `cpu`, `cuda:0`, …; "" for a graphics card that torch does not see
    label: _Text  # the maker's name
    instructions: _Text = ""
    memory_bytes: _Bytes = 0
    unused: _Text = ""
    hint: _Text = ""
    speed: Speed = Speed()

    def check(self) -> None:
        for text in (self.name, self.label, self.instructions, self.unused, self.hint):
            check_text(text, DEVICE_TEXT_BYTES)
        self.speed.check()

    @property
    def kind(self) -> str:
        """Torch's name for this kind of device: `cpu`, `cuda`, …"""
        return self.name.partition(":")[0]

    def published(self) -> DeviceSpeed:
        """Return the part that other nodes learn. It does not name the product."""
        speed = self.speed
        return DeviceSpeed(
            self.name,
            self.instructions,
            self.memory_bytes,
            speed.bandwidth,
            speed.float32,
            speed.bfloat16,
            speed.batch,
        )


class Build(Message, frozen=True):
    """Backends that the installed torch was built for. `cuda` and `rocm` are versions, or "".
    `error` is the reason why CUDA could not start, or ""."""

    version: _Text
    cuda: _Text = ""
    rocm: _Text = ""
    xpu: bool = False
    error: _Text = ""

    def check(self) -> None:
        for text in (self.version, self.cuda, self.rocm, self.error):
            check_text(text, DEVICE_TEXT_BYTES)


class KernelSet(Message, frozen=True):
    """Native kernels of the CPU for one set of instructions.

    `unused` says why they are not in use, or is "". `beside` says which products torch computes
    beside them, and why, or is "".
    """

    name: _Text
    unused: _Text = ""
    beside: _Text = ""

    def check(self) -> None:
        for text in (self.name, self.unused, self.beside):
            check_text(text, DEVICE_TEXT_BYTES)


_Devices = Annotated[tuple[Device, ...], Meta(max_length=DEVICES)]


class Report(Message, frozen=True):
    """Findings of the probe's process. `build` is None if torch could not be loaded. `kernels` are
    those that exist for the processor's architecture.

    `load_rate` is the rate in byte/s at which the disk of the data folder reads, and 0 if it could
    not be measured. `failed` says in words what could not be measured and why, or is "".
    """

    build: Build | None = None
    devices: _Devices = ()
    load_rate: _Rate = 0.0
    failed: _Text = ""
    kernels: Annotated[tuple[KernelSet, ...], Meta(max_length=KERNEL_SETS)] = ()

    def check(self) -> None:
        check_text(self.failed, DEVICE_TEXT_BYTES)
        for part in (*self.devices, *self.kernels, *([self.build] if self.build else ())):
            part.check()
        if not math.isfinite(self.load_rate):
            raise ValueError("a measured speed is not finite")


def usable(devices: Iterable[Device]) -> list[Device]:
    """Return the devices on which the engine can compute."""
    return [device for device in devices if not device.unused]


def clean(text: str) -> str:
    """Return a text of the system as one printable line of at most DEVICE_TEXT_BYTES bytes."""
    line = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in line)
    return shown.encode()[:DEVICE_TEXT_BYTES].decode(errors="ignore")
