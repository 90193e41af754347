"""A node measures its machine beside its start, and a failure of that does not stop it."""

from pathlib import Path

import pytest
import trio
from trio import TaskStatus

from shoal.tasks.hardware import hardware as hardware_module
from shoal.tasks.hardware.errors import ProbeFailed
from shoal.tasks.hardware.facts import Build, Device, Report, Speed
from shoal.transport.host.seam import Host

from .test_daemon import FakeEngine, config, running

SPEED = Speed(6.2e10, 1.8e11, 4.1e11, 8)
REPORT = Report(Build("2.13.0"), (Device("cpu", "", "AVX512", 2**33, speed=SPEED),), 2.3e9)


class Probe:
    """A probe that ends when the test says so."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: ProbeFailed | None = None
        self.threads = 0

    async def run(self, host: Host, folder: Path, threads: int) -> Report:
        self.threads = threads
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return REPORT


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    probe = Probe()
    monkeypatch.setattr(hardware_module, "run_probe", probe.run)
    return probe


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """Record each start of an engine."""
    started: list[FakeEngine] = []

    async def run(
        engine: FakeEngine, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        started.append(engine)
        await trio.sleep_forever()

    monkeypatch.setattr(FakeEngine, "run", run)
    return started


@pytest.mark.trio
async def test_a_node_joins_while_it_measures_and_starts_its_engine_afterwards(
    tmp_path: Path, probe: Probe, engines: list[FakeEngine]
) -> None:
    async with running(config(tmp_path, measure=True, threads=3)) as node:
        status = await node.until(lambda status: status["machine"]["progress"] == "measuring")
        assert status["addresses"] and status["capacity"]["devices"] == []
        assert not engines and probe.threads == 3
        probe.done.set()
        status = await node.until(lambda status: status["machine"]["progress"] == "measured")
        (device,) = status["capacity"]["devices"]
        assert device["speed"]["batch"] == 8 and status["capacity"]["load_rate"] == 2.3e9
        own = node.node.directory.own().capacity
        assert own.devices[0].bandwidth == 6.2e10 and own.engine
        assert (await node.ask("doctor"))["ok"]["machine"] == status["machine"]
        await node.until(lambda status: engines)
    assert any(line.startswith("measuring this machine") for line in node.said)
    assert any("180 Gflop/s in float32, 410 in bfloat16" in line for line in node.said)
    async with running(config(tmp_path, measure=True)) as node:
        status = (await node.ask("status"))["ok"]
        assert status["machine"]["progress"] == "measured" and status["capacity"]["devices"]
    assert not any(line.startswith("measur") for line in node.said)


@pytest.mark.trio
async def test_a_node_works_if_its_probe_fails(
    tmp_path: Path, probe: Probe, engines: list[FakeEngine]
) -> None:
    probe.error = ProbeFailed("signal 9 killed its process")
    probe.done.set()
    async with running(config(tmp_path, measure=True)) as node:
        status = await node.until(lambda status: status["health"])
        await node.until(lambda status: engines)
    (condition,) = status["health"]
    assert condition["sentence"] == (
        "the speed of this machine was not measured: signal 9 killed its process"
    )
    assert condition["hint"] and status["machine"]["progress"] == "failed"


@pytest.mark.trio
async def test_a_node_is_not_measured_if_its_owner_says_so(
    tmp_path: Path, probe: Probe, engines: list[FakeEngine]
) -> None:
    async with running(config(tmp_path)) as node:
        await node.until(lambda status: engines)
        assert (await node.ask("status"))["ok"]["machine"]["progress"] == "off"
    assert probe.threads == 0


@pytest.mark.trio
async def test_a_node_that_stops_while_it_measures_ends_at_once(
    tmp_path: Path, probe: Probe
) -> None:
    with trio.fail_after(10):
        async with running(config(tmp_path, measure=True)) as node:
            await node.until(lambda status: status["machine"]["progress"] == "measuring")
