"""Signs of this machine's hardware in the operating system: processor, graphics cards, and their
driver. Read without torch, so that a card is also found if torch cannot use it."""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ...transport.errors import HostError
from ...transport.host.seam import Host, MachineFigures
from ..engine.kernels import VARIABLE, library_path
from .defaults import PCI_DEVICES, SIGN_BYTES
from .facts import clean

_PROC, _PCI = Path("/proc"), Path("/sys/bus/pci/devices")
_NVIDIA = _PROC / "driver/nvidia"
_VENDORS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_DISPLAY: Final = ("0x03", "0x12")  # PCI classes: display controllers, processing accelerators
_PROCESSOR: Final = ("model name", "Model", "cpu model")  # x86, Arm, others


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card or accelerator on the PCI bus. `name` is "" if only its vendor is known."""

    vendor: str
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or f"a graphics card of {self.vendor}"


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of the hardware. `driver` is the version of the loaded NVIDIA driver, and `torch` that
    of the installed torch. Each is "" if there is none. `kernels` changes with the native kernels
    and their choice."""

    machine: MachineFigures
    processor: str
    cards: tuple[Card, ...] = ()
    driver: str = ""
    torch: str = ""
    kernels: str = ""

    @property
    def fingerprint(self) -> str:
        """A hash that changes if the hardware, a driver, torch or the kernels change."""
        machine = self.machine
        memory = round(machine.memory_total / 2**28)  # a new kernel reserves a little more or less
        parts = (
            machine.system, machine.architecture, machine.cores, memory, self.processor,
            self.cards, self.driver, self.torch, self.kernels,
        )  # fmt: skip
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def look(host: Host) -> Signs:
    """Read the signs of this machine's hardware. Blocks."""
    machine = host.machine()
    return Signs(
        machine,
        _processor(host) or machine.architecture,
        _cards(host),
        _driver(host),
        torch_version(),
        _kernels(),
    )


def _kernels() -> str:
    """Return whether there are native kernels, and their choice by the environment."""
    return f"{library_path() is not None} {os.environ.get(VARIABLE, '')}"


def torch_version() -> str:
    """Return the version of the installed torch without loading it, or "" if there is none."""
    if find_spec("torch") is None:
        return ""
    try:
        return clean(version("torch"))
    except PackageNotFoundError:
        return "unknown"


def _text(host: Host, path: Path) -> str:
    """Return the first SIGN_BYTES bytes of a file of the system, or "" if it cannot be read."""
    with suppress(OSError, HostError):
        return host.files.read_range(path, 0, SIGN_BYTES).decode(errors="replace")
    return ""


def _names(host: Host, path: Path) -> list[str]:
    """Return the names in a folder of the system, at most PCI_DEVICES."""
    with suppress(OSError, HostError):
        return [entry.name for entry in host.files.list(path)[:PCI_DEVICES]]
    return []


def _field(text: str, *names: str) -> str:
    """Return the value of the first line `NAME: VALUE` with one of these names, or ""."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() in names:
            return clean(value)
    return ""


def _processor(host: Host) -> str:
    found = _field(_text(host, _PROC / "cpuinfo"), *_PROCESSOR)
    return found or clean(_text(host, _PROC / "device-tree/model").strip("\0"))


def _cards(host: Host) -> tuple[Card, ...]:
    """Return the graphics cards of the known vendors, by name where the driver tells it."""
    gpus = _NVIDIA / "gpus"
    named = [
        _field(_text(host, gpus / each / "information"), "Model") for each in _names(host, gpus)
    ]
    found = [Card("NVIDIA", name) for name in named]
    for each in _names(host, _PCI):
        vendor = _VENDORS.get(_text(host, _PCI / each / "vendor").strip())
        display = _text(host, _PCI / each / "class").strip().startswith(_DISPLAY)
        if vendor and display and not (named and vendor == "NVIDIA"):
            found.append(Card(vendor))
    return tuple(found)


def _driver(host: Host) -> str:
    """Return the version of the NVIDIA driver, from a line such as `NVRM version: NVIDIA UNIX
    x86_64 Kernel Module  535.104.05  …`."""
    words = _field(_text(host, _NVIDIA / "version"), "NVRM version").split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "")
