"""The loss curve of a fine-tuning: in memory, as JSONL, and as events for TensorBoard.

Each run of a fine-tuning writes an event file of its own. The lines and events after the last
checkpoint are written again when a run is resumed.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ....transport.decoding import typed
from ....transport.errors import Undecodable
from ....transport.host.seam import Files, Host
from ....transport.message import Message
from . import defaults, events


class Point(Message, frozen=True):
    """One step of a loss curve.

    `step` counts from 1. Losses are means in nats per counted token. `held_out` is None if it was
    not measured after this step. `norm` is that of the mean gradient before it was clipped, `wall`
    the time in seconds since 1970.
    """

    step: int
    loss: float
    held_out: float | None = None
    rate: float = 0.0
    norm: float = 0.0
    tokens: int = 0
    wall: float = 0.0


class Curve:
    """Loss curve in a folder. Lines and events are written at `flush`, and durable after `settle`,
    so that no checkpoint is ahead of its curve after a power cut."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.points = list[Point]()
        self._host = host
        self.folder = folder
        self._events: Path | None = None
        self._first = 1  # step with which the file of events begins
        self._files = 0  # number of files of events so far
        self._lines = bytearray()
        self._records = bytearray()
        self._torn = False  # whether an append failed, which may have written a part of a line

    async def open(self, step: int) -> None:
        """Begin a run after `step` steps. Points after that are forgotten. Raises OSError if the
        disk fails."""
        self.points = await self._host.offload(read, self._host.files, self.folder)
        self.points = [point for point in self.points if point.step <= step]
        await self._host.offload(self._open, step)

    def _open(self, step: int) -> None:
        files = self._host.files
        write_points(files, self.folder, self.points)
        self._files = sum("tfevents" in entry.name for entry in files.list(self.folder))
        self._first = step + 1
        self._begin(b"")

    def _begin(self, records: bytes) -> None:
        """Begin a file of events with the records of this run so far."""
        wall = self._host.wall()
        number = min(self._files, defaults.STARTS)
        path = self.folder / f"events.out.tfevents.{int(wall)}.{number:04}.shoal"
        self._host.files.write(path, events.beginning(wall, self._first) + records)
        self._events, self._files = path, self._files + 1

    def add(self, point: Point) -> None:
        """Append a point. It is written at the next `flush`."""
        self.points.append(point)
        self._lines += encode_point(point)
        self._records += _record(point)

    async def flush(self) -> None:
        """Write the new points. If the disk is full, they are only in memory until it has space."""
        with suppress(OSError):
            await self._write()

    async def settle(self) -> None:
        """Make all points durable. Raises OSError if the disk fails."""
        await self._write()
        await self._host.offload(self._sync)

    async def _write(self) -> None:
        if self._events is None or not self._lines:
            return
        lines, records = bytes(self._lines), bytes(self._records)
        if self._torn:
            await self._host.offload(self._replace, self._events)
        else:
            await self._host.offload(self._append, self._events, lines, records)
        del self._lines[: len(lines)], self._records[: len(records)]

    def _sync(self) -> None:
        for path in (self.folder / "loss.jsonl", self._events):
            if path is not None and self._host.files.size(path) is not None:
                self._host.files.sync(path)

    def _append(self, path: Path, lines: bytes, records: bytes) -> None:
        self._torn = True
        self._host.files.append(self.folder / "loss.jsonl", lines)
        self._host.files.append(path, records)
        self._torn = False

    def _replace(self, torn: Path) -> None:
        """Write both files again after a failed append. The events get another name, because a
        reader may have the torn file open, and would wait for the rest of it."""
        write_points(self._host.files, self.folder, self.points)
        own = [point for point in self.points if point.step >= self._first]
        self._begin(b"".join(map(_record, own)))
        if self._events != torn:
            self._host.files.remove(torn)
        self._torn = False


def encode_point(point: Point) -> bytes:
    """Return the line of a point in the file of a curve."""
    return json.dumps(point.fields()).encode() + b"\n"


def _record(point: Point) -> bytes:
    """Return the event of a point."""
    return events.scalars(point.wall, point.step, _values(point))


def _values(point: Point) -> dict[str, float]:
    held = {} if point.held_out is None else {"loss/held-out": point.held_out}
    return {"loss/train": point.loss, **held, "rate": point.rate, "norm": point.norm}


def read(files: Files, folder: Path) -> list[Point]:
    """Return the points of a curve's file. Blocking. A torn line, and what follows it, is left
    out."""
    found = list[Point]()
    try:
        data = files.read(folder / "loss.jsonl", limit=defaults.CURVE_BYTES)
    except OSError:
        return found
    for line in data.splitlines():
        try:
            found.append(typed(Point, json.loads(line)))
        except (ValueError, RecursionError, Undecodable):
            break
    return found


def write_points(files: Files, folder: Path, points: Sequence[Point]) -> None:
    """Write the file of a curve. Blocking. Raises OSError if the disk fails."""
    files.make_folder(folder)
    files.write(folder / "loss.jsonl", b"".join(map(encode_point, points)))


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points of a curve, and besides all that have a held-out loss.

    The training loss of each is the mean over the points that it stands for.
    """
    each = max(1, -(-len(points) // most))
    if each == 1:
        return list(points)
    found = list[Point]()
    for at in range(0, len(points), each):
        group = points[at : at + each]
        held = [point.held_out for point in group if point.held_out is not None]
        last, loss = group[-1], sum(point.loss for point in group) / len(group)
        found.append(Point(last.step, loss, held[-1] if held else None, last.rate, last.norm,
                           last.tokens, last.wall))  # fmt: skip
    return found
