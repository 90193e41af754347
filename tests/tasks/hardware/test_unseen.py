"""Each card that torch does not see has a plain reason."""

from dataclasses import replace

import pytest

from shoal.tasks.hardware.facts import Build, Device
from shoal.tasks.hardware.signs import Card, Signs
from shoal.tasks.hardware.unseen import NO_TORCH, unseen
from shoal.transport.host.seam import MachineFigures

MACHINE = MachineFigures(4, 8 * 2**30, 6 * 2**30, "Linux", "x86_64")
CPU = Device("cpu", "a processor")
CUDA = Build("2.13.0+cu130", cuda="13.0")
ON_CPU = Build("2.13.0+cpu")


def _signs(vendor: str, driver: str = "") -> Signs:
    return Signs(MACHINE, "a processor", (Card(vendor, "the card"),), driver, "2.13.0")


@pytest.mark.parametrize(
    ("signs", "build", "reason"),
    [
        (_signs("NVIDIA", "535.1"), ON_CPU, "torch 2.13.0+cpu was built without CUDA"),
        (_signs("NVIDIA"), CUDA, "its driver is not loaded"),
        (
            _signs("NVIDIA", "470.1"),
            Build("2.13.0", cuda="13.0", error="The NVIDIA driver on your system is too old"),
            "its driver 470.1 is too old for CUDA 13.0, which torch 2.13.0 uses",
        ),
        (
            _signs("NVIDIA", "580.1"),
            Build("2.13.0", cuda="13.0", error="CUDA unknown error"),
            "CUDA does not start: CUDA unknown error",
        ),
        (_signs("NVIDIA", "580.1"), CUDA, "CUDA finds no device"),
        (_signs("AMD"), CUDA, "torch 2.13.0+cu130 was built without ROCm"),
        (_signs("AMD"), Build("2.13.0", rocm="7.0"), "torch 2.13.0 does not see it"),
        (_signs("Intel"), ON_CPU, "torch 2.13.0+cpu was built without Intel GPUs (XPU)"),
        (_signs("Intel"), None, "torch could not be loaded"),
        (replace(_signs("Intel"), torch=""), None, NO_TORCH),
    ],
)
def test_reasons(signs: Signs, build: Build | None, reason: str) -> None:
    (card,) = unseen(signs, build, [CPU])
    assert (card.name, card.label, card.unused) == ("", "the card", reason)
    card.check()


def test_a_card_that_torch_sees_is_not_listed_twice() -> None:
    assert not unseen(_signs("NVIDIA", "580.1"), CUDA, [CPU, Device("cuda:0", "the card")])


def test_many_cards_are_bounded() -> None:
    signs = replace(_signs("NVIDIA"), cards=(Card("NVIDIA"),) * 100)
    assert len(unseen(signs, ON_CPU, [CPU])) < 16
