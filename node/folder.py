"""Creates and locks the data folder, and reads and writes its small files."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..transport.address import Address
from ..transport.errors import AlreadyLocked, TransportError
from ..transport.host.seam import FileLock, Host
from ..transport.identity import PeerId, parse_peer_id
from . import defaults
from .errors import DataFolderInUse, NodeError
from .settings.config import DataFolder

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def disk_errors(folder: DataFolder) -> Iterator[None]:
    """Convert an OSError that the block raises into a NodeError `disk`."""
    try:
        yield
    except OSError as error:
        raise disk_error(folder, error) from error


def disk_error(folder: DataFolder, error: OSError) -> NodeError:
    """Return a NodeError `disk` that explains an OSError to the owner of the node."""
    if error.errno in _FULL:
        message = f"the disk of {_named(folder)} is full"
        hint = "free some space there, or choose another folder with `--data DIR`"
    elif error.errno == errno.EROFS:
        message = f"the disk of {_named(folder)} is read-only"
        hint = "make it writable again, or choose another folder with `--data DIR`"
    elif error.errno == errno.ENAMETOOLONG:
        message = "the path of the data folder is too long for this system"
        hint = "choose a shorter one with `--data DIR`"
    else:
        inside = error.filename and str(error.filename) != str(folder.path)
        what = f"`{error.filename}` in the data folder" if inside else _named(folder)
        message = f"cannot use {what}: {error.strerror or error}"
        hint = f"check its owner, its mode and its disk: ls -la '{folder.path}'"
    return NodeError("disk", message, hint=hint)


def _named(folder: DataFolder) -> str:
    return f"the data folder `{folder.path}`"


async def open_folder(host: Host, folder: DataFolder) -> FileLock:
    """Create the data folder if it does not exist, lock it, and return the lock.

    Raises DataFolderInUse if another daemon holds the lock; the message names its process. Raises
    NodeError if other users can write to the folder, or if the disk fails.
    """
    with disk_errors(folder):
        return await host.offload(_open_folder, host, folder)


def _open_folder(host: Host, folder: DataFolder) -> FileLock:
    host.files.make_folder(folder.path, mode=0o700)
    if host.files.mode(folder.path) & 0o022:
        raise NodeError(
            "data-folder",
            f"other users may write in the data folder `{folder.path}`",
            hint=f"`chmod 700 {folder.path}`",
        )
    try:
        lock = host.files.lock(folder.lock)
    except AlreadyLocked:
        raise _in_use(host, folder) from None
    try:
        host.files.write(folder.pid, str(host.pid()).encode())
    except BaseException:
        lock.release()
        raise
    return lock


def _in_use(host: Host, folder: DataFolder) -> DataFolderInUse:
    pid = read_small(host, folder.pid)
    who = f" (process {pid})" if pid and pid.isdigit() else ""
    return DataFolderInUse(
        f"another daemon{who} runs on `{folder.path}`",
        hint=f"`shoal status --data {folder.path}` shows it; use another `--data DIR` for a second",
    )


def read_small(host: Host, path: Path) -> str | None:
    """Return the text of a file of at most SMALL_FILE_LIMIT bytes, without surrounding spaces.
    Returns None if there is no such file. Blocks."""
    try:
        data = host.files.read(path, limit=defaults.SMALL_FILE_LIMIT)
    except FileNotFoundError:
        return None
    return data.decode("ascii", "replace").strip()


async def remembered_port(host: Host, folder: DataFolder) -> int:
    """Return the port on which this node listened last time. Returns 0 if it is unknown."""
    text = await host.offload(read_small, host, folder.port)
    return int(text) if text and text.isdigit() and int(text) < 65536 else 0


async def remember_port(host: Host, folder: DataFolder, port: int) -> None:
    """Store the port, so that the node listens on it again after the next start and published
    addresses stay valid."""
    await host.offload(host.files.write, folder.port, str(port).encode())


async def remembered_peers(host: Host, folder: DataFolder) -> list[Address]:
    """Return the addresses of other nodes that the last run stored. Lines that cannot be parsed are
    skipped."""
    data = await host.offload(read_small, host, folder.peers)
    found = []
    for line in (data or "").splitlines()[: defaults.REMEMBERED_PEERS]:
        with suppress(TransportError):  # skip a damaged line
            found.append(Address.parse(line))
    return found


async def remember_peers(host: Host, folder: DataFolder, addresses: Sequence[str]) -> None:
    """Store the first REMEMBERED_PEERS addresses of other nodes in the data folder, one on each
    line."""
    text = "\n".join(addresses[: defaults.REMEMBERED_PEERS])
    await host.offload(host.files.write, folder.peers, text.encode())


async def remembered_inviter(host: Host, folder: DataFolder) -> PeerId | None:
    """Return the peer whose invitation this node used last. Returns None if there is none or the
    file is damaged."""
    text = await host.offload(read_small, host, folder.inviter)
    with suppress(TransportError):  # the file may be damaged
        return parse_peer_id(text or "")
    return None


async def remember_inviter(host: Host, folder: DataFolder, peer: PeerId) -> None:
    """Store the peer whose invitation this node used, for later starts."""
    await host.offload(host.files.write, folder.inviter, peer.encode())
