"""Hardware profiles: the machines that volunteers have.

The table has peak rates from the makers' data sheets. A float32 matrix product is assumed to reach
0.7 of the peak flop/s, and a large copy 0.75 of the peak bytes/s. The rates of a disk are those
that manufacturers state for its class.

| profile | machine | peak flop/s | peak bytes/s |
|---|---|---|---|
| raspberry | Raspberry Pi 5, 8 GB: 4 Cortex-A76 at 2.4 GHz, 2 x 128-bit FMA | 154e9 | 17.1e9 (LPDDR4X-4267, 32 bit) |
| old-laptop | Core i5-7200U: 2 cores at 2.5 GHz, AVX2 | 160e9 | 34.1e9 (DDR4-2133, 2 channels) |
| laptop | Ryzen 7 7840U: 8 cores at 3.3 GHz, AVX2 | 845e9 | 89.6e9 (DDR5-5600, 2 channels) |
| macbook | Apple M2 Pro: 19 GPU cores | 6.8e12 | 200e9 (Apple) |
| desktop | Ryzen 7 5700X: 8 cores at 3.4 GHz, AVX2 | 870e9 | 51.2e9 (DDR4-3200, 2 channels) |
| gaming | GeForce RTX 4070, 12 GB | 29.1e12 | 504e9 (NVIDIA) |
| workstation | GeForce RTX 4090, 24 GB | 82.6e12 | 1008e9 (NVIDIA) |
"""  # noqa: E501

import math
from dataclasses import dataclass, replace
from typing import Final

from ...tasks.costs.rates import BATCH_FACTOR, PROCESSOR, DeviceRates
from ...tasks.hardware.facts import Build, Device, Report, Speed
from ...transport.host.seam import MachineFigures
from ..disk.disk import DiskSpec
from ..errors import BadScenario

_GIB = 1 << 30
_PRODUCT, _COPY = 0.7, 0.75  # shares of the peak rates that programs reach

_SD_CARD = DiskSpec(64 * 10**9, 90e6, 30e6, seek_s=400e-6, sync_s=15e-3)
_SATA = DiskSpec(256 * 10**9, 500e6, 450e6, seek_s=80e-6, sync_s=2e-3)
_NVME = DiskSpec(10**12, 3.0e9, 2.0e9, seek_s=40e-6, sync_s=1e-3)


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of machine.

    `offered` is the memory, in bytes, that its owner lets shoal use. `step_s` is the time, in
    seconds, that a step of the engine takes in addition to the computation.
    """

    name: str
    machine: MachineFigures
    speed: DeviceRates
    offered: int
    disk: DiskSpec = _SATA
    step_s: float = 200e-6

    @property
    def report(self) -> Report:
        """The report of a probe of this machine.

        A product takes the times for reading its weights (4 bytes each) and for its operations (2
        a weight and row). So the useful batch follows from their ratio.
        """
        flops, bandwidth = self.speed.float32, self.speed.bandwidth
        ratio = 2 * flops / bandwidth
        batch = 1 << max(0, int(math.log2(BATCH_FACTOR + (BATCH_FACTOR - 1) * ratio)))
        speed = Speed(bandwidth, flops, flops, batch)
        device = Device("cpu", self.name, memory_bytes=self.machine.memory_total, speed=speed)
        return Report(Build("simulated"), (device,), self.disk.read_rate)

    @property
    def rates(self) -> DeviceRates:
        """The rates by which the simulated engine predicts its steps."""
        known = replace(self.speed.efficiency, step_s=self.step_s)
        return replace(self.speed, efficiency=known, load=self.disk.read_rate)


def _machine(
    cores: int, memory: int, *, system: str = "Linux", architecture: str = "x86_64"
) -> MachineFigures:
    """Return a machine with `memory` GiB, of which a quarter is used by other programs."""
    return MachineFigures(cores, memory * _GIB, memory * _GIB * 3 // 4, system, architecture)


def _speed(flops: float, bandwidth: float) -> DeviceRates:
    """Return the rates that programs reach in any precision, given the peak rates of the table
    above."""
    reached = flops * _PRODUCT
    return DeviceRates(bandwidth * _COPY, reached, reached, efficiency=PROCESSOR)


PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile(
            "raspberry", _machine(4, 8, architecture="aarch64"), _speed(154e9, 17.1e9),
            offered=4 * _GIB, disk=_SD_CARD, step_s=1e-3,
        ),
        Profile(
            "old-laptop", _machine(2, 8), _speed(160e9, 34.1e9), offered=3 * _GIB, step_s=500e-6
        ),
        Profile(
            "laptop", _machine(8, 16), _speed(845e9, 89.6e9), offered=8 * _GIB, disk=_NVME
        ),
        Profile(
            "macbook", _machine(10, 16, system="Darwin", architecture="arm64"),
            _speed(6.8e12, 200e9), offered=10 * _GIB, disk=_NVME,
        ),
        Profile("desktop", _machine(8, 32), _speed(870e9, 51.2e9), offered=16 * _GIB),
        Profile(
            "gaming", _machine(8, 32), _speed(29.1e12, 504e9),
            offered=12 * _GIB, disk=_NVME, step_s=300e-6,
        ),
        Profile(
            "workstation", _machine(16, 64), _speed(82.6e12, 1008e9),
            offered=24 * _GIB, disk=_NVME, step_s=300e-6,
        ),
    )
}  # fmt: skip


def profile_of(name: str) -> Profile:
    """Return a profile by its name. Raises BadScenario if there is none."""
    found = PROFILES.get(name)
    if found is None:
        raise BadScenario(
            f"there is no hardware profile `{name}`", hint=f"known are {', '.join(PROFILES)}"
        )
    return found
