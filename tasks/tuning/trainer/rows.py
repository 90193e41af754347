"""Rows of token ids in a file: format, writer, and batches of them. Spec: docs/spec/trainer.md.

The file is the ids of all rows, then the number of ids of each row, then the number of rows. All
are uint32, little-endian. The highest bit of an id says that it is learned.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....transport.host.seam import Files, Host
from ..interface import NOT_COUNTED, Batch
from . import defaults
from .errors import Damaged, TuningError

LEARNED: Final = np.uint32(1 << 31)


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """Ids, of which those from `start` on, or those in the spans (start, stop), are learned."""

    ids: Sequence[int]
    start: int
    spans: tuple[tuple[int, int], ...] | None

    @property
    def learned(self) -> int:
        """Number of ids that are learned. The first one of a row is not."""
        return sum(max(0, stop - start) for start, stop in self._spans())

    def _spans(self) -> Iterator[tuple[int, int]]:
        every = ((self.start, len(self.ids)),) if self.spans is None else self.spans
        for start, stop in every:
            yield max(1, start), min(stop, len(self.ids))

    def packed(self) -> NDArray[np.uint32]:
        """Return the ids with the marks of those that are learned."""
        found = np.array(self.ids, "<u4")
        for start, stop in self._spans():
            found[start:stop] |= LEARNED
        return found


class RowsWriter:
    """Writes rows to a new file, which has its name only when `finish` returns."""

    def __init__(self, host: Host, path: Path, length: int) -> None:
        self.length = length
        self.rows = self.tokens = self.counted = 0
        self._host = host
        self._path = path
        self._staged = path.with_name(f".{path.name}.tmp")
        self._lengths = list[int]()

    async def add(self, rows: Sequence[TrainingRow]) -> None:
        """Append rows. Raises TuningError `data-too-large`, or `disk-full`."""
        if len(self._lengths) + len(rows) > defaults.ROWS_MOST:
            raise TuningError(
                "data-too-large",
                f"the data has over {defaults.ROWS_MOST} rows",
                hint="use a part of it: `head -n 1000000 FILE > PART`",
            )
        self._lengths += [len(row.ids) for row in rows]
        self.rows += len(rows)
        self.tokens += sum(len(row.ids) for row in rows)
        self.counted += sum(row.learned for row in rows)
        if rows:
            await self._host.offload(self._append, rows)

    def _append(self, rows: Sequence[TrainingRow]) -> None:
        data = np.concatenate([row.packed() for row in rows]).tobytes()
        self._write(data)

    def _write(self, data: bytes) -> None:
        files = self._host.files
        try:
            free = files.free_space(self._path.parent)
            if free < len(data) + defaults.DISK_SPARE:
                raise _full(self._path, free)
            files.append(self._staged, data)
        except OSError as error:
            raise _unwritable(self._path, error) from None

    async def finish(self) -> str:
        """Complete the file, and return its SHA-256 as hex digits."""
        return await self._host.offload(self._finish)

    def _finish(self) -> str:
        end = np.array([*self._lengths, len(self._lengths)], "<u4").tobytes()
        self._write(end)
        try:
            self._host.files.settle([(self._staged, self._path)])
        except OSError as error:
            raise _unwritable(self._path, error) from None
        return file_digest(self._host.files, self._path)

    def discard(self) -> None:
        """Remove what was written. Blocking."""
        for path in (self._staged, self._path):
            with suppress(OSError):
                self._host.files.remove(path)


def _full(path: Path, free: int) -> TuningError:
    return TuningError(
        "disk-full",
        f"the disk of `{path.parent.parent}` has {free >> 20} MiB free, and "
        f"{defaults.DISK_SPARE >> 20} MiB must stay free beside the data",
        hint="free some space on that disk, then start the fine-tuning again",
    )


def _unwritable(path: Path, error: OSError) -> TuningError:
    return TuningError(
        "disk",
        f"cannot write `{path}`: {(error.strerror or str(error)).lower()}",
        hint="free some space on that disk, then start the fine-tuning again",
    )


def file_digest(files: Files, path: Path) -> str:
    """Return the SHA-256 of a file. Blocking."""
    found, at = hashlib.sha256(), 0
    while piece := files.read_range(path, at, 1 << 20):
        found.update(piece)
        at += len(piece)
    return found.hexdigest()


class RowFile:
    """The rows of a complete file. All methods block."""

    def __init__(self, files: Files, path: Path, digest: str) -> None:
        """Open a file. Raises Damaged if its digest is another one, or its format is wrong."""
        self._files = files
        self._path = path
        try:
            size = files.size(path)
            if size is None or file_digest(files, path) != digest:
                raise Damaged(path, "it is not what was written")
            count = int(self._read(size - 4, 1)[0])
            self.lengths = self._read(size - 4 - 4 * count, count)
        except OSError as error:
            raise Damaged(path, (error.strerror or str(error)).lower()) from None
        ends = np.cumsum(self.lengths, dtype=np.int64)
        if not count or int(ends[-1]) != size // 4 - count - 1:
            raise Damaged(path, "its lengths do not fit")
        self._starts = ends - self.lengths

    def _read(self, offset: int, count: int) -> NDArray[np.uint32]:
        data = self._files.read_range(self._path, offset, 4 * count)
        if len(data) != 4 * count:
            raise Damaged(self._path, "it is too short")
        return np.frombuffer(data, "<u4")

    def batch(self, rows: Sequence[int] | NDArray[np.int64]) -> Batch:
        """Return some rows as a batch that is as long as the longest."""
        found = [self._row(int(row)) for row in rows]
        width = max(map(len, found)) - 1
        tokens = np.zeros((len(found), width), np.int32)
        targets = np.full((len(found), width), NOT_COUNTED, np.int32)
        for number, row in enumerate(found):
            ids = (row & ~LEARNED).astype(np.int32)
            tokens[number, : len(ids) - 1] = ids[:-1]
            targets[number, : len(ids) - 1] = np.where(row[1:] & LEARNED, ids[1:], NOT_COUNTED)
        return Batch(tokens, targets)

    def _row(self, row: int) -> NDArray[np.uint32]:
        try:
            return self._read(4 * int(self._starts[row]), int(self.lengths[row]))
        except OSError as error:
            raise Damaged(self._path, (error.strerror or str(error)).lower()) from None


def counted(batch: Batch) -> int:
    """Return the number of positions that a batch counts."""
    return int((batch.targets != NOT_COUNTED).sum())
