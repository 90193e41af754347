"""A result is stored for the hardware that it was measured on, and a damaged one does not count."""

from pathlib import Path

import pytest

from shoal.tasks.hardware.defaults import RECORD_BYTES, RECORD_FILE
from shoal.tasks.hardware.facts import Build, Device, KernelSet, Report, Speed
from shoal.tasks.hardware.record import load_report, store_report
from shoal.transport.host.real import RealHost

SPEED = Speed(1.5e10, 1e11, 2e11, 8)
REPORT = Report(
    Build("2.13.0", cuda="13.0"),
    (Device("cpu", "", "AVX2", 2**33, speed=SPEED), Device("cuda:0", "é", "sm_37", unused="old")),
    5e8,
    kernels=(KernelSet("avx2"), KernelSet("avx512", "it lacks them")),
)
HOST = RealHost()


def test_a_stored_report_is_read_again(tmp_path: Path) -> None:
    assert load_report(HOST, tmp_path, "f" * 32) is None
    store_report(HOST, tmp_path, "f" * 32, REPORT)
    assert load_report(HOST, tmp_path, "f" * 32) == REPORT
    assert load_report(HOST, tmp_path, "e" * 32) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"float32": 100000000000.0', b'"float32": NaN'),
        (b'"float32": 100000000000.0', b'"float32": 1e999'),
        (b'"float32": 100000000000.0', b'"float32": -1'),
        (b'"batch": 8', b'"batch": "8"'),
        (b'"label": ""', b'"label": "\\u001b[2J"'),
        (b'"unused": "old"', b'"unused": "' + b"x" * 300 + b'"'),
        (b'"unused": "it lacks them"', b'"unused": "\\u001b[2J"'),
        (b"{", b"["),
        (b'"name": "cpu",', b""),
    ],
)
def test_a_damaged_file_does_not_count(tmp_path: Path, old: bytes, new: bytes) -> None:
    store_report(HOST, tmp_path, "f" * 32, REPORT)
    file = tmp_path / RECORD_FILE
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new, 1))
    assert load_report(HOST, tmp_path, "f" * 32) is None


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 3000, b" " * (RECORD_BYTES + 1)])
def test_something_else_does_not_count(tmp_path: Path, data: bytes) -> None:
    (tmp_path / RECORD_FILE).write_bytes(data)
    assert load_report(HOST, tmp_path, "f" * 32) is None


def test_too_many_devices_do_not_count(tmp_path: Path) -> None:
    for many in (
        Report(REPORT.build, REPORT.devices * 9),
        Report(REPORT.build, kernels=REPORT.kernels * 9),
    ):
        store_report(HOST, tmp_path, "f" * 32, many)
        assert load_report(HOST, tmp_path, "f" * 32) is None
