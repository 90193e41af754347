"""Measurements are plausible, keep to their budgets, and leave nothing behind."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from msgspec.structs import replace

from shoal.tasks.engine.compute.native.choice import KernelsInUse
from shoal.tasks.engine.compute.native.library import Kernels
from shoal.tasks.hardware import devices as devices_module
from shoal.tasks.hardware import measure
from shoal.tasks.hardware.defaults import PROBE_DISK_BYTES, READ_SECONDS, WRITE_SECONDS
from shoal.tasks.hardware.devices import build, devices, judged, kernels
from shoal.tasks.hardware.facts import Device, KernelSet, Speed
from shoal.tasks.hardware.measure import Abandoned, Bench, Budget, load_rate, measured


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def descriptor(connection: tuple[socket.socket, socket.socket]) -> int:
    return connection[1].fileno()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure one round of each kind on small data."""
    for name in ("RATE_SECONDS", "STEP_SECONDS"):
        monkeypatch.setattr(measure, name, 0.001)
    monkeypatch.setattr(measure, "PROBE_DISK_BYTES", 2**23)


@pytest.mark.usefixtures("quick")
def test_a_real_measurement_is_plausible(tmp_path: Path, descriptor: int) -> None:
    report = measured(str(tmp_path), 2**28, 2**33, Budget(20.0, descriptor))
    (cpu,) = [device for device in report.devices if device.name == "cpu"]
    assert not report.failed and report.build == build() and cpu.memory_bytes == 2**33
    assert 1e8 < cpu.speed.float32 < 1e15 and 1e7 < cpu.speed.bfloat16 < 1e16
    assert 1e8 < cpu.speed.bandwidth < 1e14 and 1 <= cpu.speed.batch <= 1024
    assert 1e6 < report.load_rate < 1e12
    assert report.kernels == kernels()
    report.check()
    assert not list(tmp_path.iterdir())


def test_without_time_nothing_is_measured(
    tmp_path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[str] = []
    monkeypatch.setattr(Bench, "_timed", lambda bench, work: rounds.append("a product"))
    for name in ("write", "pread"):
        monkeypatch.setattr(os, name, lambda *_, name=name: rounds.append(name))
    report = measured(str(tmp_path), 2**28, 2**33, Budget(0.0, descriptor))
    assert rounds == []
    assert report.failed == "this machine was too busy or slow to measure everything"
    assert report.load_rate == 0.0 and not any(each.speed.batch for each in report.devices)


@pytest.mark.usefixtures("quick")
def test_the_useful_batch_is_the_last_that_is_nearly_free(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row takes 1 s in this world, and reading the weights 20 s."""
    bench = Bench(devices(2**33)[0], 2**28, Budget(20.0, descriptor))
    monkeypatch.setattr(bench, "_step", lambda weights, dtype, rows: max(20.0, rows))
    assert bench.speed().batch == 16
    monkeypatch.setattr(bench, "_step", lambda weights, dtype, rows: 1.0)
    assert bench.speed().batch == 1024
    monkeypatch.setattr(bench, "_step", lambda weights, dtype, rows: 0.0)
    assert bench.speed().batch == 0
    slow = {8: 2.0, 16: 1.2, 32: 9.0, 64: 1.0}
    monkeypatch.setattr(bench, "_step", lambda weights, dtype, rows: slow.get(rows, 1.0))
    assert bench.speed().batch == 16, "one slow round does not end it, a very slow one does"


def test_the_memory_is_bounded(descriptor: int) -> None:
    """With 1 MB of free memory, an eighth holds no weights, and only a small product is tried."""
    speed = Bench(devices(2**33)[0], 2**20, Budget(20.0, descriptor)).speed()
    assert speed.batch == 0 and speed.bandwidth == 0.0


def test_a_daemon_that_hangs_up_ends_the_measurement(
    connection: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = connection
    budget = Budget(20.0, theirs.fileno())
    assert budget.share(1.0) == 1.0
    ours.close()
    with pytest.raises(Abandoned):
        budget.share(1.0)


def test_a_full_disk(tmp_path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 10, 10, 100, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    monkeypatch.setattr(measure.Bench, "speed", lambda bench: Speed(1.0, 1.0, 1.0, 1))
    report = measured(str(tmp_path), 2**30, 2**33, Budget(20.0, descriptor))
    assert report.failed == "the disk could not be measured: No space left on device"
    assert report.devices and report.load_rate == 0.0


def test_the_disk_is_read_in_bounded_time_and_space(
    tmp_path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write, read, now = os.write, os.pread, 0.0

    def slow_write(descriptor: int, data: bytes) -> int:
        nonlocal now
        now += slow
        written.append(len(data))
        return write(descriptor, data)

    def slow_read(descriptor: int, count: int, offset: int) -> bytes:
        nonlocal now
        now += slow
        return read(descriptor, count, offset)

    monkeypatch.setattr(os, "write", slow_write)
    monkeypatch.setattr(os, "pread", slow_read)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    for slow in (0.1, 0.0001):
        began = now
        written.clear()
        assert load_rate(str(tmp_path), Budget(20.0, descriptor)) > 0
        assert sum(written) <= PROBE_DISK_BYTES
        assert now - began < WRITE_SECONDS + READ_SECONDS + 3 * slow


def test_equal_cards_are_measured_once(
    tmp_path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Device("cuda:0", "a card", "sm_90", 2**36)
    other, old = replace(one, name="cuda:1"), replace(one, name="cuda:2", unused="it is old")
    found = [devices(2**33)[0], one, other, old]
    benches: list[str] = []

    def speed(bench: Bench) -> Speed:
        benches.append(bench._name)
        return Speed(1.0, 1.0, 1.0, len(benches))

    monkeypatch.setattr(measure, "devices", lambda total: found)
    monkeypatch.setattr(measure, "free_memory", lambda device, free: free)
    monkeypatch.setattr(Bench, "speed", speed)
    report = measured(str(tmp_path), 2**30, 2**33, Budget(20.0, descriptor))
    assert benches == ["cpu", "cuda:0"]
    assert [each.speed.batch for each in report.devices] == [1, 2, 2, 0]


def test_kernels_in_use_come_first_with_what_torch_computes_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused, slow = {"avx512": "it lacks them"}, {torch.bfloat16: "it is faster"}
    for used, first in (
        (SimpleNamespace(name="avx2"), [KernelSet("avx2", "", "bfloat16: it is faster")]),
        (None, []),
    ):
        chosen = KernelsInUse(cast(Kernels, used), refused, slow)
        monkeypatch.setattr(devices_module, "choice", lambda chosen=chosen: chosen)
        assert kernels() == (*first, KernelSet("avx512", "it lacks them"))


def test_a_small_card_is_not_used() -> None:
    small = judged(Device("cpu", "GT 710", memory_bytes=900 * 2**20))
    assert small.unused == "it has 900 MiB of memory, and 1024 MiB are needed"
    assert not judged(Device("cpu", "large", memory_bytes=2**33)).unused
    absent = judged(Device("cuda:7", "absent", memory_bytes=2**33))
    assert absent.unused.startswith("torch cannot compute on it: ")
