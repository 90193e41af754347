"""Runs the probe's process and returns its report."""

from pathlib import Path

import trio

from ...transport.decoding import read
from ...transport.errors import HostError, Undecodable
from ...transport.host.seam import Child, Host
from ..engine.connection.starting import environment
from .defaults import PROBE_TIMEOUT, RECORD_BYTES
from .errors import ProbeFailed
from .facts import Report

CHILD = f"{__package__}.child"
_PIECE = 16 * 2**10


async def run_probe(host: Host, folder: Path, threads: int) -> Report:
    """Measure this machine and the disk of `folder` in a process of its own, within
    PROBE_TIMEOUT seconds.

    `threads` is the number of threads that the engine computes with. Raises ProbeFailed if there is
    no report.
    """
    return await _run(host, folder, threads, "--threads", str(threads))


async def list_devices(host: Host) -> Report:
    """Return a report of the devices that torch sees, without their speeds. Takes as long as
    loading torch.

    Raises ProbeFailed if there is no report.
    """
    return await _run(host, Path("/"), 1, "--list")


async def _run(host: Host, folder: Path, threads: int, *options: str) -> Report:
    machine = host.machine()
    numbers = (machine.memory_available, machine.memory_total)
    arguments = [str(folder), *map(str, numbers), *options]
    try:
        child = await host.spawn(CHILD, arguments, environment(threads))
    except (OSError, HostError) as error:
        raise ProbeFailed(f"its process could not be started: {error}") from None
    try:
        with trio.move_on_after(PROBE_TIMEOUT):
            return await _report(child)
        raise ProbeFailed(f"it took longer than {PROBE_TIMEOUT:.0f} s")
    finally:
        await child.stop(0)


async def _report(child: Child) -> Report:
    data = await _received(child)
    if not data:
        status = await child.wait()
        how = f"signal {-status} killed" if status < 0 else f"status {status} ended"
        raise ProbeFailed(f"{how} its process")
    try:
        return read(Report, data, limit=RECORD_BYTES)
    except Undecodable as error:
        raise ProbeFailed(f"its report is malformed: {error}") from None


async def _received(child: Child) -> bytes:
    """Return all bytes that the child sends, at most one more than RECORD_BYTES."""
    data = b""
    try:
        while len(data) <= RECORD_BYTES and (piece := await child.socket.recv(_PIECE)):
            data += piece
    except OSError:
        return b""
    return data[: RECORD_BYTES + 1]
