"""The hardware is recognised from files of the system, and a change changes the fingerprint."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.tasks.engine.kernels import VARIABLE
from shoal.tasks.hardware import signs as signs_module
from shoal.tasks.hardware.defaults import DEVICE_TEXT_BYTES
from shoal.tasks.hardware.signs import Card, Signs, look
from shoal.transport.host.real import RealHost
from shoal.transport.host.realfiles import RealFiles
from shoal.transport.host.seam import FolderEntry, MachineFigures

MACHINE = MachineFigures(4, 8 * 2**30, 6 * 2**30, "Linux", "x86_64")
CPUINFO = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD Ryzen 7  5700X\n"
DRIVER = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 12.2.0\n"
)


class OtherFiles(RealFiles):
    """Files of the system below another root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read_range(self, path: Path, offset: int, size: int) -> bytes:
        return super().read_range(self._root / path.relative_to("/"), offset, size)

    def list(self, path: Path) -> list[FolderEntry]:
        return super().list(self._root / path.relative_to("/"))


class OtherHost(RealHost):
    def __init__(self, root: Path) -> None:
        super().__init__()
        self._other = OtherFiles(root)

    @property
    def files(self) -> RealFiles:
        return self._other

    def machine(self) -> MachineFigures:
        return MACHINE


def _write(root: Path, files: dict[str, str]) -> RealHost:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return OtherHost(root)


def _card(number: int, vendor: str, kind: str) -> dict[str, str]:
    folder = f"sys/bus/pci/devices/0000:0{number}:00.0"
    return {f"{folder}/vendor": f"{vendor}\n", f"{folder}/class": f"{kind}\n"}


def test_the_files_of_a_machine_with_cards(tmp_path: Path) -> None:
    host = _write(
        tmp_path,
        {
            "proc/cpuinfo": CPUINFO,
            "proc/driver/nvidia/version": DRIVER,
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA RTX 4070\n",
            **_card(1, "0x10de", "0x030000"),
            **_card(2, "0x1002", "0x038000"),
            **_card(3, "0x10de", "0x040300"),  # its sound
            **_card(4, "0x1234", "0x030000"),  # of a virtual machine
        },
    )
    found = look(host)
    assert found.processor == "AMD Ryzen 7 5700X" and found.driver == "535.104.05"
    assert found.cards == (Card("NVIDIA", "NVIDIA RTX 4070"), Card("AMD"))
    assert found.cards[1].label == "a graphics card of AMD"


def test_a_card_without_a_driver_is_found_on_the_bus(tmp_path: Path) -> None:
    found = look(_write(tmp_path, _card(1, "0x10de", "0x030200")))
    assert found.cards == (Card("NVIDIA"),) and found.driver == ""
    assert found.processor == "x86_64"


def test_texts_of_the_system_are_bounded_and_printable(tmp_path: Path) -> None:
    host = _write(tmp_path, {"proc/cpuinfo": f"model name : \x1b[2J{'é' * 3000}\n"})
    processor = look(host).processor
    assert processor.isprintable() and len(processor.encode()) <= DEVICE_TEXT_BYTES


def test_a_machine_without_such_files(tmp_path: Path) -> None:
    assert look(OtherHost(tmp_path)).cards == ()


@pytest.mark.parametrize(
    "change",
    [
        {"machine": replace(MACHINE, cores=8)},
        {"machine": replace(MACHINE, memory_total=16 * 2**30)},
        {"processor": "another"},
        {"cards": (Card("NVIDIA"),)},
        {"driver": "535.1"},
        {"torch": "2.14.0"},
        {"kernels": "True off"},
    ],
)
def test_a_change_of_the_hardware_changes_the_fingerprint(change: dict[str, object]) -> None:
    before = Signs(MACHINE, "a processor", (), "", "2.13.0")
    assert replace(before, **change).fingerprint != before.fingerprint  # type: ignore[arg-type]


def test_free_memory_does_not_change_the_fingerprint() -> None:
    before = Signs(MACHINE, "a processor")
    machine = replace(MACHINE, memory_available=1, memory_total=MACHINE.memory_total + 2**20)
    assert replace(before, machine=machine).fingerprint == before.fingerprint


def test_the_choice_of_the_kernels_is_a_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = look(OtherHost(tmp_path)).kernels
    monkeypatch.setenv(VARIABLE, "off")
    assert look(OtherHost(tmp_path)).kernels == f"{before}off"


def test_torch_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs_module, "find_spec", lambda name: None)
    assert look(OtherHost(tmp_path)).torch == ""
