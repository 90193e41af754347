"""Measures devices and the disk. Runs in the probe's process, which may load torch and block.

Rates are those of the fastest of several short rounds, because other programs make rounds slower
and never faster. All measurements of one run share a budget of seconds.
"""

import errno
import fcntl
import math
import os
import select
import tempfile
import time
from collections.abc import Callable

import torch
from msgspec.structs import replace

from ..engine.clock import clock
from ..engine.compute.products import Linear, linear_of
from ..engine.defaults import LEAST_ROWS
from .defaults import (
    BATCH_FACTOR,
    BATCH_MOST,
    BATCH_STOP,
    CPU_SIZES,
    GPU_SIZES,
    PROBE_DISK_BYTES,
    PROBE_DISK_SHARE,
    PROBE_MEMORY_SHARE,
    PROBE_PIECE,
    RATE_SECONDS,
    READ_SECONDS,
    STEP_SECONDS,
    WRITE_SECONDS,
)
from .devices import build, devices, kernels
from .facts import Device, Report, Speed, clean, usable

Work = Callable[[], object]


class Abandoned(Exception):
    """The daemon has closed the connection, so it does not need the result."""


class Budget:
    """The seconds that remain for all measurements together."""

    def __init__(self, seconds: float, descriptor: int) -> None:
        """`descriptor` is the connection to the daemon."""
        self._end = time.perf_counter() + seconds
        self._hung_up = select.poll()
        self._hung_up.register(descriptor, select.POLLHUP)

    def share(self, seconds: float) -> float:
        """Return up to `seconds` of the budget. Raises Abandoned if the daemon has hung up."""
        if self._hung_up.poll(0):
            raise Abandoned
        return min(seconds, self._end - time.perf_counter())


class Bench:
    """Measurements on one device."""

    def __init__(self, device: Device, free: int, budget: Budget) -> None:
        """`free` is the number of bytes of free memory on the device."""
        self._name = device.name
        self._kind = device.kind
        self._sizes = CPU_SIZES if self._kind == "cpu" else GPU_SIZES
        self._most = free // PROBE_MEMORY_SHARE
        self._budget = budget

    def speed(self) -> Speed:
        """Return the speed of the device. Values for which no time or memory is left are 0."""
        float32, bfloat16 = self._product(torch.float32), self._product(torch.bfloat16)
        faster = torch.bfloat16 if bfloat16 > float32 else torch.float32
        return Speed(self._bandwidth(), float32, bfloat16, self._batch(faster))

    def _bandwidth(self) -> float:
        """Return the rate in byte/s at which memory is copied, counting bytes read and written."""
        size = min(self._sizes.copied, self._most // 2)
        if size < PROBE_PIECE:
            return 0.0
        source = torch.ones(size // 4, device=self._name)
        target = torch.empty_like(source)
        return self._rate(2.0 * size, lambda: target.copy_(source))

    def _product(self, dtype: torch.dtype) -> float:
        """Return the rate in flop/s of a product of large square matrices."""
        size = min(self._sizes.matrix, math.isqrt(self._most // 12))
        a = torch.ones(size, size, dtype=dtype, device=self._name)
        b, out = a.clone(), torch.empty_like(a)
        return self._rate(2.0 * size**3, lambda: torch.mm(a, b, out=out))

    def _batch(self, dtype: torch.dtype) -> int:
        """Return the largest power of two of rows whose product with weights takes at most
        BATCH_FACTOR times as long as that of one row.

        As in a step of a model, the weights come from memory and not from a cache.
        """
        sizes = self._sizes
        count = min(sizes.copied, self._most) // (sizes.weight**2 * dtype.itemsize)
        if not count:
            return 0
        weights = [self._weight(dtype) for _ in range(count)]
        # The engine pads small products where that is faster, so these rows are always free.
        one = min(self._step(weights, dtype, rows) for rows in (1, *LEAST_ROWS))
        free = rows = max(LEAST_ROWS) if one else 0
        while one and rows < BATCH_MOST:
            rows *= 2
            many = self._step(weights, dtype, rows)
            if many and many <= BATCH_FACTOR * one:
                free = rows
            elif not many or many > BATCH_STOP * one:  # a single slow round must not end this
                break
        return free

    def _weight(self, dtype: torch.dtype) -> Linear:
        """Return the product with a matrix, in the layout that the engine uses."""
        width = self._sizes.weight
        matrix = torch.full((width, width), 1 / width, dtype=dtype, device=self._name)
        return linear_of(matrix, None)

    def _step(self, weights: list[Linear], dtype: torch.dtype, rows: int) -> float:
        """Return the seconds in which `rows` rows are multiplied with all weights."""
        x = torch.ones(rows, self._sizes.weight, dtype=dtype, device=self._name)

        def work() -> None:
            for product in weights:
                product(x)

        return self._fastest(STEP_SECONDS, work)

    def _rate(self, amount: float, work: Work) -> float:
        seconds = self._fastest(RATE_SECONDS, work)
        return amount / seconds if seconds else 0.0

    def _fastest(self, seconds: float, work: Work) -> float:
        """Return the seconds of the fastest of some rounds, which take `seconds` together.

        Returns 0 if no time is left.
        """
        if self._budget.share(seconds) <= 0:
            return 0.0
        self._timed(work)  # accesses the memory for the first time
        end = time.perf_counter() + self._budget.share(seconds)
        best = self._timed(work)
        while time.perf_counter() < end:
            best = min(best, self._timed(work))
        return best

    def _timed(self, work: Work) -> float:
        began = clock(self._name)
        work()
        return max(clock(self._name) - began, 1e-9)


def free_memory(device: Device, machine_free: int) -> int:
    """Return the free bytes of a device. `machine_free` is the free memory of the machine."""
    kind = device.kind
    if kind == "cpu":
        return machine_free
    module = torch.get_device_module(kind)
    if hasattr(module, "mem_get_info"):
        free, _ = module.mem_get_info(device.name)
        return int(free)
    return device.memory_bytes // 2


def load_rate(folder: str, budget: Budget) -> float:
    """Return the rate in byte/s at which the disk of a folder reads, or 0 if no time is left.

    Writes a temporary file of up to PROBE_DISK_BYTES, which has no name and so disappears with this
    process, and reads it again after its pages have left the cache. Raises OSError if the disk
    fails or is full.
    """
    room = os.statvfs(folder)
    size = min(PROBE_DISK_BYTES, room.f_bavail * room.f_frsize // PROBE_DISK_SHARE)
    if size < PROBE_PIECE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        size = _write(file.fileno(), size, budget)
        _drop_cache(file.fileno())
        return _read(file.fileno(), size, budget)


def _write(descriptor: int, size: int, budget: Budget) -> int:
    """Write up to `size` bytes in the time that there is, and return how many are on the disk."""
    piece, end = os.urandom(PROBE_PIECE), time.perf_counter() + budget.share(WRITE_SECONDS)
    written = 0
    while written < size and time.perf_counter() < end:
        written += os.write(descriptor, piece)
        os.fsync(descriptor)
    return written


def _drop_cache(descriptor: int) -> None:
    """Remove the pages of a file from the cache of the system, as far as it supports that."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    elif hasattr(fcntl, "F_NOCACHE"):
        fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)


def _read(descriptor: int, size: int, budget: Budget) -> float:
    """Return the rate in byte/s at which up to `size` bytes are read, in the time that there is."""
    began = time.perf_counter()
    end, done = began + budget.share(READ_SECONDS), 0
    while done < size and time.perf_counter() < end:
        done += len(os.pread(descriptor, PROBE_PIECE, done))
    return done / max(time.perf_counter() - began, 1e-9)


def measured(folder: str, free: int, total: int, budget: Budget) -> Report:
    """Measure every device that the engine can use, and the disk of a folder.

    `free` and `total` are the free and all bytes of the machine's memory. Raises Abandoned if the
    daemon has hung up.
    """
    found = _timed(devices(total), free, budget)
    try:
        rate, failed = load_rate(folder, budget), ""
    except OSError as error:
        rate, failed = 0.0, clean(f"the disk could not be measured: {error.strerror}")
    if not failed and not all(map(_complete, usable(found))):
        failed = "this machine was too busy or slow to measure everything"
    return Report(build(), tuple(found), rate, failed, kernels())


def _timed(found: list[Device], free: int, budget: Budget) -> list[Device]:
    """Return the devices with their speeds. Equal cards are measured once."""
    speeds: dict[tuple[str, int], Speed] = {}
    timed = []
    for device in found:
        product = device.label or device.name, device.memory_bytes
        if not device.unused and product not in speeds:
            speeds[product] = Bench(device, free_memory(device, free), budget).speed()
        speed = device.speed if device.unused else speeds[product]
        timed.append(replace(device, speed=speed))
    return timed


def _complete(device: Device) -> bool:
    speed = device.speed
    return all((speed.bandwidth, speed.float32, speed.bfloat16, speed.batch))
