"""The machine is measured once, and again if it has changed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.tasks.defaults import PROBE_FILE, SPEED_STEPS
from shoal.tasks.placement import probe as probe_module
from shoal.tasks.placement.probe import DecodeSpeed, Speed, measure, probe
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import Host, Machine

MACHINE = Machine(4, 8 * 2**30, 6 * 2**30, "Linux", "x86_64")


class OtherHost(RealHost):
    def __init__(self, machine: Machine = MACHINE) -> None:
        super().__init__()
        self._machine = machine

    def machine(self) -> Machine:
        return self._machine


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Host]:
    """Record each measurement."""
    calls: list[Host] = []

    async def fake(host: Host) -> Speed:
        calls.append(host)
        return Speed(1e9, 2e9)

    monkeypatch.setattr(probe_module, "measure", fake)
    return calls


@pytest.mark.trio
async def test_the_machine_is_measured_once(tmp_path: Path, measured: list[Host]) -> None:
    first = await probe(OtherHost(), tmp_path)
    assert await probe(OtherHost(), tmp_path) == first
    assert (first.cores, first.flops, first.bandwidth) == (4, 1e9, 2e9)
    assert len(measured) == 1


@pytest.mark.trio
async def test_another_machine_is_measured_again(tmp_path: Path, measured: list[Host]) -> None:
    await probe(OtherHost(), tmp_path)
    await probe(OtherHost(replace(MACHINE, cores=8)), tmp_path)
    assert len(measured) == 2


@pytest.mark.trio
@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"\xff", b"x" * 5000, b'{"machine": 1}', "nan", "zero"]
)
async def test_a_damaged_file_is_measured_again(
    tmp_path: Path, measured: list[Host], damage: bytes | str
) -> None:
    await probe(OtherHost(), tmp_path)
    kept = tmp_path / PROBE_FILE
    if isinstance(damage, str):
        wrong = {"nan": float("nan"), "zero": 0}[damage]
        damage = json.dumps({**json.loads(kept.read_bytes()), "flops": wrong}).encode()
    kept.write_bytes(damage)
    assert (await probe(OtherHost(), tmp_path)).flops == 1e9
    assert len(measured) == 2


@pytest.mark.trio
async def test_half_of_the_memory_is_offered_by_default(
    tmp_path: Path, measured: list[Host]
) -> None:
    host = OtherHost()
    assert (await probe(host, tmp_path)).memory_bytes == 3 * 2**30
    assert (await probe(host, tmp_path, memory=2**30)).memory_bytes == 2**30
    assert (await probe(host, tmp_path, memory=2**40)).memory_bytes == 8 * 2**30


@pytest.mark.trio
async def test_a_real_measurement_is_plausible() -> None:
    speed = await measure(RealHost())
    assert 1e7 < speed.flops < 1e15
    assert 1e7 < speed.bandwidth < 1e14


def test_no_speed_is_reported_before_enough_measurements() -> None:
    speed = DecodeSpeed()
    for _ in range(SPEED_STEPS - 1):
        speed.note(0.01)
    assert speed.tokens_per_s == 0.0
    speed.note(0.01)
    assert speed.tokens_per_s == pytest.approx(100)


def test_times_that_are_not_positive_are_ignored() -> None:
    speed = DecodeSpeed()
    for seconds in [0.0, -1.0, *[0.1] * SPEED_STEPS]:
        speed.note(seconds)
    assert speed.tokens_per_s == pytest.approx(10)


def test_it_follows_changes_but_not_a_single_step() -> None:
    speed = DecodeSpeed()
    for _ in range(200):
        speed.note(0.01)
    speed.note(0.1)
    assert 80 < speed.tokens_per_s < 100
    for _ in range(400):
        speed.note(0.02)
    assert speed.tokens_per_s == pytest.approx(50, rel=0.02)
