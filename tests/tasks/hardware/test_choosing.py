"""The engines' devices are the wanted ones, or the CPU with a reason."""

from dataclasses import replace

import pytest

from shoal.tasks.hardware.choosing import choose, must_list
from shoal.tasks.hardware.facts import Device
from shoal.tasks.hardware.signs import Card, Signs
from shoal.transport.host.seam import MachineFigures

CPU = Device("cpu", "Ryzen 7", memory_bytes=2**35)
SMALL = Device("cuda:0", "RTX 4060", memory_bytes=2**33)
LARGE = Device("cuda:1", "RTX 4090", memory_bytes=3 * 2**33)
TINY = Device("cuda:2", "GT 710", unused="it has 900 MiB of memory, and 1024 MiB are needed")
APPLE = Device("mps:0", "Apple GPU", memory_bytes=2**34)
UNSEEN = Device("", "RTX 4070", unused="its driver is not loaded")
ALL = [CPU, SMALL, LARGE, TINY, APPLE]


@pytest.mark.parametrize(
    ("wanted", "devices", "names"),
    [
        ("auto", ALL, "cuda:0 cuda:1"),
        ("auto", [CPU, APPLE], "cpu"),
        ("auto", [CPU, TINY, UNSEEN], "cpu"),
        ("cpu", ALL, "cpu"),
        ("cuda", ALL, "cuda:0"),
        ("cuda:1", ALL, "cuda:1"),
        ("mps", ALL, "mps:0"),
        ("cuda:1 cpu", ALL, "cuda:1 cpu"),
        ("auto cpu", ALL, "cuda:0 cuda:1 cpu"),
        ("cpu cpu", ALL, "cpu cpu"),
    ],
)
def test_the_wanted_devices(wanted: str, devices: list[Device], names: str) -> None:
    found, why_not = choose(wanted.split(), devices)
    assert ([each.name for each in found], why_not) == (names.split(), "")


@pytest.mark.parametrize(
    ("wanted", "devices", "reason"),
    [
        ("cuda:2", ALL, "`cuda:2` cannot be used: it has 900 MiB of memory, and 1024 MiB"),
        ("cuda:7", ALL, "`cuda:7` is no device of torch"),
        ("cuda:0", [CPU, UNSEEN], "is no device of torch (RTX 4070: its driver is not loaded)"),
    ],
)
def test_the_cpu_instead_of_the_wanted_device(
    wanted: str, devices: list[Device], reason: str
) -> None:
    (device,), why_not = choose((wanted,), devices)
    assert device is CPU and reason in why_not
    assert why_not.startswith("the engine computes on the CPU, because ")
    devices, why_not = choose((wanted, "cpu", "mps"), ALL if devices is ALL else [*devices, APPLE])
    assert [each.name for each in devices] == ["cpu", "mps:0"]
    assert why_not.startswith("the engine computes on the CPU, `mps:0`, because ")


MACHINE = MachineFigures(4, 8 * 2**30, 6 * 2**30, "Linux", "x86_64")
SIGNS = Signs(MACHINE, "Ryzen 7", (Card("NVIDIA"),), "580.1", "2.13.0")


@pytest.mark.parametrize(
    ("wanted", "signs", "must"),
    [
        ("auto", SIGNS, True),
        ("cuda:0", replace(SIGNS, cards=()), True),
        ("cpu", SIGNS, False),
        ("auto", replace(SIGNS, cards=()), False),
        ("auto", replace(SIGNS, cards=(Card("Intel"),)), False),
        ("auto", replace(SIGNS, torch="2.13.0+cpu"), False),
        ("cuda:0", replace(SIGNS, torch=""), False),
    ],
)
def test_only_a_machine_with_a_card_waits_for_torch(wanted: str, signs: Signs, must: bool) -> None:
    assert must_list((wanted,), signs) is must
