"""The hardware of one node: what is known of it, and the task that measures what is not known."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace as changed
from pathlib import Path
from typing import Literal

import trio
from msgspec.structs import replace

from ...state.membership.record import NOTHING, Capacity
from ...transport.host.seam import Host
from .choosing import choose, must_list
from .errors import ProbeFailed
from .facts import Device, KernelSet, Report, usable
from .probe import list_devices, run_probe
from .record import load_report, store_report
from .signs import Signs, look
from .unseen import NO_TORCH, TORCH_HINT, unseen

Progress = Literal["measured", "measuring", "failed", "off"]


class Hardware:
    """The devices of this machine, and their speed as far as it is known."""

    def __init__(self, host: Host, folder: Path, signs: Signs, stored: Report | None) -> None:
        """`stored` is the report of an earlier probe of the same hardware."""
        self._host = host
        self._folder = folder
        self._signs = signs
        self._offered = NOTHING
        self.chosen: tuple[str, ...] = ("cpu",)
        """Names of the devices that the engines compute on."""
        self._report = stored
        self._listed: Report | None = None  # devices without speeds, until they are measured
        self.progress: Progress = "measured" if stored else "off"
        self.failure = ""
        """Why the machine, or a part of it, was not measured; or ""."""
        self.settled = trio.Event()
        """Set when no measurement is running or about to start."""

    @classmethod
    async def load(cls, host: Host, folder: Path) -> "Hardware":
        """Look at the hardware, and load its stored report if there is one."""
        signs = await host.offload(look, host)
        stored = await host.offload(load_report, host, folder, signs.fingerprint)
        return cls(host, folder, signs, stored)

    async def choose(self, wanted: Sequence[str]) -> tuple[list[Device], str]:
        """Choose the devices that the engines compute on. Return them, and why a wanted one is not
        among them, or "".

        If the choice depends on the devices that torch sees, and no report has them, a process
        lists them, which takes a few seconds.
        """
        if self._report is None and must_list(wanted, self._signs):
            with suppress(ProbeFailed):  # then there is only the CPU
                self._listed = await list_devices(self._host)
        found, why_not = choose(wanted, self.devices())
        self.chosen = tuple(device.name for device in found)
        return found, why_not

    def offer(self, capacity: Capacity) -> None:
        """Set what the owner of the machine offers. Its speed is added from the report."""
        self._offered = capacity

    @property
    def capacity(self) -> Capacity:
        """The capacity to publish, with the speed of the devices that the engines compute on."""
        report = self._report
        if report is None:
            return self._offered
        mine = (device for device in usable(report.devices) if device.name in self.chosen)
        devices = tuple(device.published() for device in mine)
        return changed(self._offered, load_rate=report.load_rate, devices=devices)

    @property
    def load_rate(self) -> float:
        """The rate in byte/s at which the disk of the data folder reads; 0: unknown."""
        return self._report.load_rate if self._report else 0.0

    @property
    def kernels(self) -> tuple[KernelSet, ...]:
        """The native kernels of the CPU, those in use first; () if they are not known yet."""
        return self._report.kernels if self._report else ()

    def devices(self) -> list[Device]:
        """Return all devices of this machine, also those that the engine cannot use."""
        report = self._report or self._listed or Report()
        seen = list(map(self._labelled, report.devices)) or [self._bare()]
        if not report.build and self._signs.torch and not self.failure:
            return seen  # torch has not been asked yet what it sees
        return seen + unseen(self._signs, report.build, seen)

    def _labelled(self, device: Device) -> Device:
        return device if device.name != "cpu" else replace(device, label=self._signs.processor)

    def _bare(self) -> Device:
        """Return the CPU as far as it is known without torch."""
        signs = self._signs
        cpu = Device("cpu", signs.processor, memory_bytes=signs.machine.memory_total)
        return cpu if signs.torch else replace(cpu, unused=NO_TORCH, hint=TORCH_HINT)

    @property
    def measurable(self) -> bool:
        """Whether this hardware has not been measured, and can be."""
        return self._report is None and bool(self._signs.torch)

    async def measure(self, threads: int) -> None:
        """Measure the machine with `threads` threads, and store the result.

        Raises ProbeFailed if that fails, also in part. The values that were measured count in any
        case, and the next start measures again.
        """
        self.progress = "measuring"
        try:
            self._report = await run_probe(self._host, self._folder, threads)
            await self._store(self._report)
        except ProbeFailed as error:
            self.progress, self.failure = "failed", error.message
            raise
        self.progress = "measured"

    async def _store(self, report: Report) -> None:
        if report.failed:
            raise ProbeFailed(report.failed)
        fingerprint = self._signs.fingerprint
        try:
            await self._host.offload(store_report, self._host, self._folder, fingerprint, report)
        except OSError as error:
            raise ProbeFailed(f"the result could not be stored: {error.strerror}") from None
