"""Daemon's part of the converting process: starts it, passes its progress on, and bounds what it
says."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from ...dht.errors import ModelError
from ...transport.decoding import read
from ...transport.errors import HostError, Undecodable
from ...transport.host.seam import Child, Host
from .frames import FRAME_BYTES, IMPORTED, TOKEN, ConversionProgress

CHILD: Final = f"{__package__}.child"
GRACE: Final = 30.0  # seconds in which the process may remove what it wrote
_ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted model: the folder to import, and sentences about what was converted."""

    folder: Path
    notes: tuple[str, ...]


@asynccontextmanager
async def converted(
    host: Host,
    folder: Path,
    arguments: Sequence[str],
    progress: Callable[[int, int], None],
    *,
    token: str = "",
) -> AsyncIterator[Conversion]:
    """Convert a model below `folder`. The result is removed when the block ends.

    `arguments` are the kind, the source and the options for `child.py`, and `token` is one for a
    hub. Raises ModelError if the
    source is invalid or the process fails.
    """
    try:
        child = await host.spawn(CHILD, [str(folder), *arguments], {**_ENVIRONMENT, TOKEN: token})
    except (OSError, HostError) as error:
        raise ModelError(
            "no-process",
            f"the converting process did not start: {error}",
            hint="end other programs, then repeat the command",
        ) from None
    try:
        found = await _outcome(child, progress)
        if found.kind == "failed":
            raise ModelError(found.code, found.message, hint=found.hint or None)
        yield Conversion(Path(found.name), found.notes)
        with suppress(OSError):
            await child.socket.send(IMPORTED)
    finally:
        with trio.CancelScope(shield=True):
            await child.stop(GRACE)


async def _outcome(child: Child, progress: Callable[[int, int], None]) -> ConversionProgress:
    """Return the last report of the process."""
    while True:
        size = int.from_bytes(await _received(child, 4))
        if size > FRAME_BYTES:
            raise _broken("its report is too large")
        try:
            report = read(ConversionProgress, await _received(child, size), limit=FRAME_BYTES)
        except Undecodable as error:
            raise _broken(f"its report is malformed: {error}") from None
        if report.kind != "progress":
            return report
        progress(report.done, report.total)


async def _received(child: Child, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await _piece(child, size - len(data))
        if not piece:
            status = await child.wait()
            raise _broken(f"signal {-status} killed it" if status < 0 else f"status {status}")
        data += piece
    return data


async def _piece(child: Child, size: int) -> bytes:
    try:
        return await child.socket.recv(size)
    except OSError:
        return b""


def _broken(why: str) -> ModelError:
    return ModelError(
        "bad-model",
        f"the process that converts the model has ended: {why}",
        hint="the memory of this machine may not suffice; otherwise the model's file is damaged",
    )
