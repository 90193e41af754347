"""Outputs of the rows of pieces in progress: in memory, and in a file for each piece.

A piece goes on from its finished rows when a try has failed, and when this node was restarted or
killed. A line of a file is the CRC-32 of an output in hex, a space, and the output, so a torn line
is noticed. The outputs of sealed jobs are sealed for the group, and in Base64. Spec:
docs/spec/jobs.md.
"""

import binascii
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from zlib import crc32

from ...state import defaults as state_defaults
from ...state.views.jobs import Job
from ...transport.errors import FileTooLarge
from ...transport.host.seam import Files, Host
from . import defaults
from .errors import BadOutcome, Unsealable
from .kinds.rows import OutputHead, read_output
from .sealing.states import StateSeal
from .spec import seal_of

SealOf = Callable[[Job], StateSeal]
"""Returns the seal of what a sealed job leaves on this disk."""


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """A folder with a file for each piece. All methods block. If the disk fails, they do
    nothing."""

    files: Files
    path: Path

    def sizes(self) -> Mapping[str, int]:
        """Return the sizes of all files in bytes, by name."""
        with suppress(OSError):
            self.files.make_folder(self.path)
            return {entry.name: entry.size for entry in self.files.list(self.path)}
        return {}

    def append(self, name: str, output: bytes, seal: StateSeal | None) -> int:
        """Add the output of a row to a file, sealed if there is a seal. Return the bytes that it
        takes at most: on the disk, or else in memory."""
        size = len(output)
        with suppress(OSError, Unsealable):  # without the key, it is only in memory
            if seal is not None:
                output = b64encode(seal.seal(output)) + b"\n"
            line = b"%08x %s" % (crc32(output), output)
            size = len(line)  # a part of it may be there, if the disk is full
            self.files.append(self.path / name, line)
        return size

    def read(self, name: str, seal: StateSeal | None) -> dict[int, bytes]:
        """Return the intact outputs of a file, by the numbers of their lines."""
        found, data = dict[int, bytes](), b""
        with suppress(OSError, FileTooLarge):
            data = self.files.read(self.path / name, limit=2 * defaults.RESULT_BYTES)
        for line in data.split(b"\n"):
            mark, _, output = line.partition(b" ")
            output += b"\n"
            if mark == b"%08x" % crc32(output):
                with suppress(BadOutcome, Unsealable, binascii.Error):
                    if seal is not None:
                        output = seal.open(b64decode(output))
                    found[read_output(OutputHead, output).line] = output
        return found

    def remove(self, name: str) -> None:
        """Delete a file."""
        with suppress(OSError):
            self.files.remove(self.path / name)


@dataclass(slots=True)
class _Piece:
    """The outputs of a piece by line number, or None if they are only in its file. `size` is in
    bytes: those of its file, or of the outputs if they have none."""

    lines: dict[int, bytes] | None
    size: int = 0


class PieceOutputs:
    """The outputs of one node. Without a host and a folder they are only in memory, and so are
    those of sealed jobs without `seal_of`."""

    def __init__(
        self,
        host: Host | None = None,
        folder: Path | None = None,
        seal_of: SealOf | None = None,
    ) -> None:
        self._host = host
        self._seal_of = seal_of
        self._folder = None
        if host is not None and folder is not None:
            self._folder = OutputFolder(host.files, folder)
        self.pieces: OrderedDict[str, _Piece] | None = None  # by name, the latest last

    async def open(self, job: Job) -> dict[int, bytes]:
        """Return the outputs of a piece by line number. The caller adds to them, and calls `added`
        for each."""
        pieces, name = await self._known(), _name(job)
        piece = pieces.get(name, _Piece(None))
        lines = piece.lines
        if lines is None:
            lines = await self._read(job, name)
            pieces[name] = _Piece(lines, max(piece.size, sum(map(len, lines.values()))))
        pieces.move_to_end(name)
        await self._trim(pieces)
        return lines

    async def added(self, job: Job, output: bytes) -> None:
        """Store the output of a row that is new in an open piece."""
        pieces, name = await self._known(), _name(job)
        if (piece := pieces.get(name)) is not None:  # otherwise others needed its space
            size = len(output)
            if self._host is not None and self._folder is not None and self._is_stored(job):
                size = await self._host.offload(self._folder.append, name, output, self._seal(job))
            piece.size += size
            if name not in pieces:  # removed meanwhile, perhaps before its file was written
                await self._remove(pieces, name)
            await self._trim(pieces)

    async def close(self, job: Job) -> None:
        """Forget the outputs of a piece that is done. Their file stays until `tidy`, because the
        outcome may be lost before it is in the claim."""
        pieces, name = await self._known(), _name(job)
        if (piece := pieces.get(name)) is not None:
            piece.lines = None
            if self._folder is None or not self._is_stored(job):
                del pieces[name]

    async def tidy(self, is_wanted: Callable[[str], bool]) -> None:
        """Delete the outputs of pieces that are no longer wanted. `is_wanted` takes the id of a
        piece."""
        pieces = await self._known()
        for name in [name for name in pieces if not is_wanted(name.partition("-")[0])]:
            await self._remove(pieces, name)

    async def _known(self) -> OrderedDict[str, _Piece]:
        """Return the pieces, with those of earlier runs."""
        if self.pieces is None:
            sizes: Mapping[str, int] = {}
            if self._host is not None and self._folder is not None:
                sizes = await self._host.offload(self._folder.sizes)
            if self.pieces is None:  # meanwhile
                self.pieces = OrderedDict((name, _Piece(None, sizes[name])) for name in sizes)
        return self.pieces

    async def _read(self, job: Job, name: str) -> dict[int, bytes]:
        if self._host is None or self._folder is None or not self._is_stored(job):
            return {}
        return await self._host.offload(self._folder.read, name, self._seal(job))

    def _is_stored(self, job: Job) -> bool:
        """Return whether outputs of a job may be on the disk."""
        return seal_of(job.spec) is None or self._seal_of is not None

    def _seal(self, job: Job) -> StateSeal | None:
        """Return the seal of what a job leaves on the disk, or None if that is not sealed."""
        if seal_of(job.spec) is None or self._seal_of is None:
            return None
        return self._seal_of(job)

    async def _trim(self, pieces: OrderedDict[str, _Piece]) -> None:
        """Remove the oldest outputs if there are too many: their job may have been cancelled."""
        size = sum(piece.size for piece in pieces.values())
        while len(pieces) > 1 and (
            len(pieces) > state_defaults.JOB_PARTS or size > defaults.OUTPUTS_KEPT
        ):
            name = next(iter(pieces))
            size -= pieces[name].size
            await self._remove(pieces, name)

    async def _remove(self, pieces: OrderedDict[str, _Piece], name: str) -> None:
        pieces.pop(name, None)
        if self._host is not None and self._folder is not None:
            await self._host.offload(self._folder.remove, name)


def _name(job: Job) -> str:
    """Return the name of a piece's file. An author may write another spec under the same id."""
    return f"{job.id}-{sha256(job.spec).hexdigest()[:16]}"
