"""Loss curves: lines, event files that TensorBoard reads, and what a resumed run makes of them."""

import errno
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tasks.tuning.trainer import events
from shoal.tasks.tuning.trainer.curve import Curve, Point, read, thinned
from shoal.transport.host.real import RealHost
from tests.dht.models import FakeFiles, FakeHost

HOST = RealHost()


@given(st.binary(max_size=300))
def test_crc(data: bytes) -> None:
    assert events.crc32c(data) == google_crc32c.value(data)


def frames(data: bytes) -> Iterator[bytes]:
    """Read frames as a reader of TFRecord does."""
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        message = data[12 : 12 + length]
        for part, at in ((data[:8], 8), (message, 12 + length)):
            crc = google_crc32c.value(part)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            assert struct.unpack("<I", data[at : at + 4])[0] == masked
        yield message
        data = data[16 + length :]


def fields(message: bytes) -> dict[int, list[Any]]:
    """Decode a protobuf message, one level deep."""
    found: dict[int, list[Any]] = {}
    while message:
        tag, message = varint(message)
        kind: Any = tag & 7
        if kind == 0:
            value, message = varint(message)
        else:
            size, message = varint(message) if kind == 2 else ({1: 8, 5: 4}[kind], message)
            value, message = message[:size], message[size:]
        found.setdefault(tag >> 3, []).append(value)
    return found


def varint(data: bytes) -> tuple[Any, bytes]:
    value = 0
    for at, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return value, data[at + 1 :]
    raise AssertionError


def test_events_are_what_the_formats_say() -> None:
    data = events.beginning(12.5, 300) + events.scalars(13.5, 300, {"loss/train": 2.25, "x": 1.0})
    version, start, values = map(fields, frames(data))
    assert version[3] == [b"brain.Event:2"] and struct.unpack("<d", version[1][0]) == (12.5,)
    assert start[2] == [300] and fields(start[7][0]) == {1: [1]}
    one, two = map(fields, fields(values[5][0])[1])
    assert values[2] == [300] and one[1] == [b"loss/train"] and two[1] == [b"x"]
    assert struct.unpack("<f", one[2][0]) == (2.25,)


async def curve_in(folder: Path, step: int, steps: range) -> Curve:
    curve = Curve(HOST, folder)
    await curve.open(step)
    for number in steps:
        held = number / 10 if number % 5 == 0 else None
        curve.add(Point(number, 1 / number, held, 0.1, 0.2, 9, 1.7e9 + number))
    await curve.flush()
    return curve


@pytest.mark.trio
async def test_a_resumed_run_forgets_what_it_repeats(tmp_path: Path) -> None:
    await curve_in(tmp_path, 0, range(1, 13))
    HOST.files.append(tmp_path / "loss.jsonl", b'{"step": 13, "lo')  # torn by a crash
    curve = await curve_in(tmp_path, 10, range(11, 16))
    assert [point.step for point in curve.points] == [*range(1, 16)]
    assert read(HOST.files, tmp_path) == curve.points
    data = HOST.files.read(tmp_path / "loss.jsonl", limit=1 << 20)
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 16)]
    assert lines[4]["held_out"] == 0.5 and "held_out" not in lines[5]
    assert sum("tfevents" in entry.name for entry in HOST.files.list(tmp_path)) == 2


class FullFiles(FakeFiles):
    """Files whose disk is `full` from time to time, and then takes half of what is appended to the
    events."""

    full = False

    def append(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        torn = self.full and "tfevents" in path.name
        super().append(path, data[: len(data) // 2] if torn else data, mode=mode)
        if torn:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.trio
async def test_a_full_disk_leaves_no_torn_event(tmp_path: Path) -> None:
    host, files = FakeHost(inline=True), FullFiles()
    host.fake_files = files
    curve = Curve(host, tmp_path)
    await curve.open(0)
    for number in range(1, 13):
        files.full = number in (5, 9, 10)
        curve.add(Point(number, 1 / number))
        await curve.flush()
    (entry,) = (entry for entry in files.list(tmp_path) if "tfevents" in entry.name)
    _, start, *steps = map(fields, frames(files.read(tmp_path / entry.name, limit=1 << 20)))
    assert start[2] == [1] and [each[2] for each in steps] == [[n] for n in range(1, 13)]
    assert read(files, tmp_path) == curve.points


@pytest.mark.trio
async def test_tensorboard_reads_it(tmp_path: Path) -> None:
    """Where it is installed. The points of the first run after the checkpoint are purged."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    await curve_in(tmp_path, 0, range(1, 13))
    await curve_in(tmp_path, 10, range(11, 16))
    found = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert {"loss/train", "loss/held-out", "rate", "norm"} <= set(found.Tags()["scalars"])
    scalars = found.Scalars("loss/train")
    assert [each.step for each in scalars] == [*range(1, 16)]
    assert scalars[3].value == pytest.approx(0.25)
    assert [each.step for each in found.Scalars("loss/held-out")] == [5, 10, 15]


def test_a_curve_that_is_nested_deeply_is_cut_there(tmp_path: Path) -> None:
    HOST.files.write(tmp_path / "loss.jsonl", b'{"step": 1, "loss": 2}\n' + b"[" * 100_000)
    assert read(HOST.files, tmp_path) == [Point(1, 2.0)]


def test_a_thin_curve_keeps_means_and_held_out_losses() -> None:
    points = [Point(n, float(n), n / 2 if n % 10 == 0 else None) for n in range(1, 101)]
    thin = thinned(points, 20)
    assert [point.step for point in thin] == [*range(5, 101, 5)]
    assert thin[0].loss == 3.0 and [p.held_out for p in thin if p.held_out] == [*range(5, 51, 5)]
    assert thinned(points[:20], 20) == points[:20]
