"""A machine is measured once, in a process of its own; and no failure of it hurts the node."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from shoal.state.membership.record import Capacity
from shoal.tasks.hardware import hardware as hardware_module
from shoal.tasks.hardware import probe as probe_module
from shoal.tasks.hardware.defaults import RECORD_FILE
from shoal.tasks.hardware.errors import ProbeFailed
from shoal.tasks.hardware.facts import Build, Device, Report, Speed
from shoal.tasks.hardware.hardware import Hardware
from shoal.tasks.hardware.probe import list_devices, run_probe
from shoal.tasks.hardware.signs import Card, Signs
from shoal.tasks.hardware.unseen import NO_TORCH
from shoal.transport.host.real import RealChild, RealHost
from shoal.transport.host.seam import Host
from shoal.transport.message import pack

from ...cost import cost

OFFERED = Capacity(2, 2**30, engine=True)
REPORT = Report(
    Build("2.13.0"), (Device("cpu", "", "AVX2", 2**33, speed=Speed(1e10, 1e11, 1e11, 8)),), 5e8
)
GPU = Device("cuda:0", "RTX 4070", "sm_89", 12 * 2**30)
CHILD = """
import os, socket, sys, time
connection = socket.socket(fileno=int(sys.argv[1]))
{body}
"""


class WithChild(RealHost):
    """Host whose child processes run the given code."""

    def __init__(self, folder: Path, body: str) -> None:
        super().__init__()
        (folder / "child_of_a_test.py").write_text(CHILD.format(body=body))
        self._folder = folder
        self.pids: list[int] = []

    async def spawn(self, module: str, args: Sequence[str], env: Mapping[str, str]) -> RealChild:
        assert module == "shoal.tasks.hardware.child"
        path = {**env, "PYTHONPATH": str(self._folder)}
        child = await super().spawn("child_of_a_test", args, path)
        self.pids.append(child.pid)
        return child


async def _loaded(host: Host, folder: Path) -> Hardware:
    found = await Hardware.load(host, folder)
    found.offer(OFFERED)
    return found


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the probe, and record each call."""
    calls: list[Path] = []

    async def fake(host: Host, folder: Path, threads: int) -> Report:
        calls.append(folder)
        return REPORT

    monkeypatch.setattr(hardware_module, "run_probe", fake)
    return calls


@pytest.mark.trio
async def test_the_machine_is_measured_once(tmp_path: Path, probes: list[Path]) -> None:
    host = RealHost()
    first = await _loaded(host, tmp_path)
    assert first.measurable and first.capacity == OFFERED
    await first.measure(2)
    assert first.progress == "measured" and not first.measurable
    (cpu,) = first.capacity.devices
    assert (cpu.name, cpu.float32, first.capacity.load_rate) == ("cpu", 1e11, 5e8)
    second = await _loaded(host, tmp_path)
    assert not second.measurable and second.capacity == first.capacity
    assert len(probes) == 1


@pytest.mark.trio
async def test_other_hardware_is_measured_again(
    tmp_path: Path, probes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = RealHost()
    await (await _loaded(host, tmp_path)).measure(2)
    more = replace(host.machine(), cores=99)
    monkeypatch.setattr(host, "machine", lambda: more)
    assert (await _loaded(host, tmp_path)).measurable


@pytest.mark.trio
async def test_an_incomplete_result_counts_and_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fake(host: Host, folder: Path, threads: int) -> Report:
        return Report(REPORT.build, REPORT.devices, failed="the disk could not be measured: full")

    monkeypatch.setattr(hardware_module, "run_probe", fake)
    found = await _loaded(RealHost(), tmp_path)
    with pytest.raises(ProbeFailed, match="the disk could not be measured: full"):
        await found.measure(2)
    assert found.progress == "failed" and found.failure and found.capacity.devices
    assert not (tmp_path / RECORD_FILE).exists()


@pytest.mark.trio
async def test_a_result_that_cannot_be_stored(tmp_path: Path, probes: list[Path]) -> None:
    (tmp_path / RECORD_FILE).mkdir()
    found = await _loaded(RealHost(), tmp_path)
    with pytest.raises(ProbeFailed, match="the result could not be stored"):
        await found.measure(2)
    assert found.capacity.devices


@pytest.mark.trio
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("os.kill(os.getpid(), 9)", "signal 9 killed its process"),
        ("sys.exit(3)", "status 3 ended its process"),
        ("connection.sendall(b'rubbish')", "its report is malformed"),
        ("connection.sendall(bytes(200_000))", "its report is malformed"),
    ],
)
async def test_failures_of_the_process(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(ProbeFailed, match=message):
        await run_probe(WithChild(tmp_path, body), tmp_path, 1)


@pytest.mark.trio
async def test_a_process_that_hangs_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_module, "PROBE_TIMEOUT", 0.5)
    host = WithChild(tmp_path, "time.sleep(60)")
    with pytest.raises(ProbeFailed, match="it took longer than"):
        await run_probe(host, tmp_path, 1)
    with pytest.raises(ProcessLookupError):
        os.kill(host.pids[0], 0)


@pytest.mark.trio
async def test_cancelling_ends_the_process(tmp_path: Path) -> None:
    host = WithChild(tmp_path, "time.sleep(60)")
    with trio.move_on_after(0.5):
        await run_probe(host, tmp_path, 1)
    with pytest.raises(ProcessLookupError):
        os.kill(host.pids[0], signal.SIG_DFL)


@pytest.mark.trio
async def test_a_report_from_a_process(tmp_path: Path) -> None:
    host = WithChild(tmp_path, f"connection.sendall({pack(REPORT)!r})")
    assert await run_probe(host, tmp_path, 1) == REPORT


@pytest.mark.ci
@pytest.mark.trio
async def test_the_real_probe_takes_less_than_ten_seconds(tmp_path: Path) -> None:
    """The limit of 30 s is for machines that run other tests at the same time."""
    with cost(time.monotonic) as spent:
        report = await run_probe(RealHost(), tmp_path, 2)
    assert spent.reference_ms < 30_000
    assert report.build is not None
    assert report.devices[0].name == "cpu"
    assert not os.listdir(tmp_path)


def _hardware(torch: str, report: Report | None = None) -> Hardware:
    machine = RealHost().machine()
    signs = Signs(machine, "Ryzen 7", (Card("NVIDIA", "RTX 4070"),), "580.1", torch)
    return Hardware(RealHost(), Path("/"), signs, report)


def test_devices_of_a_node_without_torch() -> None:
    found = _hardware("")
    assert not found.measurable
    cpu, card = found.devices()
    assert (cpu.label, cpu.unused, card.unused) == ("Ryzen 7", NO_TORCH, NO_TORCH)


def test_devices_with_and_without_a_report() -> None:
    (cpu,) = _hardware("2.13.0").devices()
    assert not cpu.unused and not cpu.speed.batch
    cpu, card = _hardware("2.13.0", REPORT).devices()
    assert cpu.label == "Ryzen 7" and cpu.speed.batch == 8
    assert card.unused == "torch 2.13.0 was built without CUDA"


def test_only_devices_that_are_used_are_published() -> None:
    old = Device("cuda:0", "an old card", "sm_37", 2**32, unused="it is old")
    found = _hardware("2.13.0", Report(REPORT.build, (*REPORT.devices, old), 5e8))
    assert [each.name for each in found.capacity.devices] == ["cpu"]


@pytest.mark.trio
async def test_the_devices_are_listed_before_a_choice_that_depends_on_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Host] = []

    async def fake(host: Host) -> Report:
        calls.append(host)
        return Report(Build("2.13.0", cuda="13.0"), (Device("cpu", ""), GPU))

    monkeypatch.setattr(hardware_module, "list_devices", fake)
    found = _hardware("2.13.0")
    assert (await found.choose(("cpu",)))[0][0].name == "cpu" and not calls
    (device,), why_not = await found.choose(("auto",))
    assert (device, why_not, found.chosen, len(calls)) == (GPU, "", ("cuda:0",), 1)
    assert not found.capacity.devices, "its speed is not known yet"
    measured = _hardware("2.13.0", Report(Build("2.13.0"), (*REPORT.devices, GPU), 5e8))
    assert (await measured.choose(("auto",)))[0] == [GPU] and len(calls) == 1
    assert [each.name for each in measured.capacity.devices] == ["cuda:0"]


@pytest.mark.trio
async def test_without_a_list_the_engine_computes_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fake(host: Host) -> Report:
        raise ProbeFailed("signal 9 killed its process")

    monkeypatch.setattr(hardware_module, "list_devices", fake)
    found = _hardware("2.13.0")
    assert (await found.choose(("auto",)))[0][0].name == "cpu"
    (device,), why_not = await found.choose(("cuda:0",))
    assert device.name == "cpu" and "`cuda:0` is no device of torch" in why_not


@pytest.mark.trio
async def test_the_real_list() -> None:
    report = await list_devices(RealHost())
    assert report.devices[0].name == "cpu" and report.build is not None
    assert not any(each.speed.batch for each in report.devices) and not report.load_rate
