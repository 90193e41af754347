"""Measures this machine: cores, memory, flop/s and bytes/s, and the decode speed of its shard.

The hardware figures serve only to compare machines. They are measured in about 0.3 s with a float32
matrix product and with a copy that is larger than most caches; the fastest of a few rounds counts.
The results are stored in the data folder and measured again only if the machine has changed.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...state.membership.record import Capacity
from ...transport.errors import HostError
from ...transport.host.seam import Host, Machine
from ..defaults import (
    MEMORY_SHARE,
    PROBE_COPY_BYTES,
    PROBE_FILE,
    PROBE_FILE_BYTES,
    PROBE_MATRIX,
    PROBE_ROUNDS,
    SPEED_MEMORY,
    SPEED_STEPS,
)


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured speed of all cores together: flop/s (float32), and bytes/s (read plus written)."""

    flops: float
    bandwidth: float


async def probe(host: Host, folder: Path, *, memory: int | None = None) -> Capacity:
    """Return this machine's capacity, measuring its speed unless `folder` has a stored result.

    `memory` is the number of bytes that the owner offers (None: half of the available memory).
    """
    machine = host.machine()
    offered = int(machine.memory_available * MEMORY_SHARE) if memory is None else memory
    speed = await _speed(host, folder / PROBE_FILE, machine)
    return Capacity(
        cores=machine.cores,
        memory_bytes=min(offered, machine.memory_total),
        engine=find_spec("torch") is not None,
        flops=speed.flops,
        bandwidth=speed.bandwidth,
    )


async def _speed(host: Host, path: Path, machine: Machine) -> Speed:
    """Return the stored speed of this machine. If there is none, measure and store it."""
    known = await host.offload(_read, host, path, _fingerprint(machine))
    if known is not None:
        return known
    speed = await measure(host)
    await host.offload(keep_speed, host, path.parent, speed)
    return speed


def keep_speed(host: Host, folder: Path, speed: Speed) -> None:
    """Store a measured speed in `folder`, from where `probe` loads it. Blocking."""
    found = {
        "machine": _fingerprint(host.machine()),
        "flops": speed.flops,
        "bandwidth": speed.bandwidth,
    }
    host.files.write(folder / PROBE_FILE, json.dumps(found).encode())


def _fingerprint(machine: Machine) -> str:
    """Return a text that changes when the hardware of this machine changes."""
    return f"{machine.system} {machine.architecture} {machine.cores} {machine.memory_total}"


def _read(host: Host, path: Path, fingerprint: str) -> Speed | None:
    """Return the stored speed, or None if it is absent, damaged or belongs to another machine."""
    try:
        found = json.loads(host.files.read(path, limit=PROBE_FILE_BYTES))
        if found["machine"] != fingerprint:
            return None
        speed = Speed(float(found["flops"]), float(found["bandwidth"]))
    except (OSError, HostError, ValueError, TypeError, KeyError):
        return None
    good = all(math.isfinite(value) and value > 0 for value in (speed.flops, speed.bandwidth))
    return speed if good else None


async def measure(host: Host) -> Speed:
    """Measure this machine's speed. Takes less than 0.5 s."""
    multiply, copy = await host.offload(_workloads)
    return Speed(
        flops=2 * PROBE_MATRIX**3 / await _fastest(host, multiply),
        bandwidth=2 * PROBE_COPY_BYTES / await _fastest(host, copy),
    )


async def _fastest(host: Host, work: Callable[[], None]) -> float:
    """Return the duration in seconds of the fastest round.

    The first round is ignored, because it accesses the memory for the first time.
    """
    seconds = []
    for _ in range(PROBE_ROUNDS + 1):
        before = host.now()
        await host.offload(work)
        seconds.append(host.now() - before)
    return max(min(seconds[1:]), 1e-9)


def _workloads() -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the two functions to measure: the matrix product and the memory copy."""
    import numpy  # imported late, so that a start with a stored speed does not wait for it

    matrix = numpy.ones((PROBE_MATRIX, PROBE_MATRIX), numpy.float32)
    product = numpy.empty_like(matrix)
    source = numpy.ones(PROBE_COPY_BYTES // 4, numpy.float32)
    target = numpy.empty_like(source)

    def multiply() -> None:
        numpy.matmul(matrix, matrix, out=product)

    def copy() -> None:
        numpy.copyto(target, source)

    return multiply, copy


class DecodeSpeed:
    """Moving mean of the tokens per second that the shard computes for one session.

    Waiting times are not included.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._steps = 0

    def note(self, seconds: float) -> None:
        """Record the computing time of one token. Times that are not positive are ignored."""
        if seconds <= 0.0:
            return
        self._steps += 1
        weight = max(1.0 / self._steps, 1.0 - SPEED_MEMORY)
        self._seconds += weight * (seconds - self._seconds)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, or 0 until SPEED_STEPS tokens were measured."""
        return 1.0 / self._seconds if self._steps >= SPEED_STEPS else 0.0
