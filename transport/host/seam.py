"""The interface to the outside world: clocks, entropy, sockets, files, processes, blocking calls.

Every component receives a `Host`. The real one is in `real.py`, and the simulator supplies its own.
No other module of this project uses the clock, randomness, sockets, threads, child processes or
`open`. tests/test_layout.py enforces this, with exceptions for `cli/` and for the process of the
engine worker.

There are no methods for timers, because trio's clock can be replaced: in the simulator,
`trio.sleep` and `trio.move_on_after` use virtual time. `Host.now` returns the time of the same
clock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, TypeVarTuple

import trio

from .datagrams import Datagrams

if TYPE_CHECKING:  # only callers that use a database load SQLite
    from .database import Database

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of this machine: the name of the network interface, its IP address, and its
    prefix length in bits."""

    name: str
    address: str
    prefix: int


@dataclass(frozen=True, slots=True)
class MulticastGroup:
    """A multicast group, and the address of the interface on which the group is joined and sent
    to."""

    address: str
    interface: str


@dataclass(frozen=True, slots=True)
class MachineFigures:
    """Figures about this machine from its operating system. Sizes are in bytes."""

    cores: int
    memory_total: int
    memory_available: int
    system: str  # "Linux", "Darwin", "Windows"
    architecture: str  # "x86_64", "arm64", …


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry of a folder. `size` is in bytes, and 0 for folders."""

    name: str
    is_folder: bool
    size: int


class FileLock(Protocol):
    """An exclusive lock on a file. It lasts until `release` is called or the process ends."""

    def release(self) -> None: ...


class Files(Protocol):
    """Blocking file operations. Call them inside `Host.offload`, never on the event loop.

    `write` and `write_pieces` create or replace a file atomically. A reader sees either the old
    content or the new content, even after `kill -9` at any time.
    """

    def read(self, path: Path, *, limit: int) -> bytes:
        """Return the whole content of a file. Raises FileTooLarge if it has more than `limit`
        bytes, and FileNotFoundError if there is no such file."""
        ...

    def read_range(self, path: Path, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of a file, starting at `offset`. Fewer are returned only at the
        end of the file."""
        ...

    def write(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        """Atomically create or replace a file. The file is durable on return. Raises OSError
        (ENOSPC, …) if the disk fails."""
        ...

    def write_pieces(
        self, path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o600
    ) -> None:
        """Atomically create or replace a file from pieces, which together may exceed the memory. If
        `pieces` raises, the old content stays."""
        ...

    def append(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        """Append to a file, and create it if it does not exist. For logs: it is not durable, and
        after a crash or an OSError (ENOSPC, …) only a part of `data` may be there."""
        ...

    def sync(self, path: Path) -> None:
        """Make durable what was appended to a file. Raises OSError if the disk fails."""
        ...

    def stage(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        """Create a temporary file, which `settle` renames later. After a crash it may be
        incomplete.

        Raises OSError (ENOSPC, …; FileExistsError if the file exists). In that case no new file is
        left behind.
        """
        ...

    def settle(self, moves: Sequence[tuple[Path, Path]]) -> None:
        """Rename staged files, given as (old path, new path), each one atomically. All are durable
        on return. Folders are synced in the order of `moves`. Files that no longer exist are
        skipped. This is much cheaper than one `write` for each file."""
        ...

    def identity(self, path: Path) -> tuple[int, int, int] | None:
        """Return a value that changes whenever the file is rewritten: (inode, size in bytes, time
        of the last write in nanoseconds). Return None if there is no such file."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file. Do nothing if there is no such file."""
        ...

    def list(self, path: Path) -> list[FolderEntry]:
        """Return the entries of a folder, sorted by name. If there is no such folder, return an
        empty list."""
        ...

    def size(self, path: Path) -> int | None:
        """Return the size of a file in bytes, or None if there is no such file."""
        ...

    def real(self, path: Path) -> Path:
        """Return a path with all symbolic links resolved. Parts that do not exist are left
        unchanged."""
        ...

    def mode(self, path: Path) -> int:
        """Return the permission bits of a file. Symbolic links are followed."""
        ...

    def make_folder(self, path: Path, *, mode: int = 0o700) -> None:
        """Create a folder and its missing parents, if the folder does not exist. It is durable on
        return. `mode` applies to the folder itself; created parents get the default mode.
        """
        ...

    def free_space(self, path: Path) -> int:
        """Return the number of bytes that are free on the file system of `path` for this user."""
        ...

    def lock(self, path: Path) -> FileLock:
        """Acquire the exclusive lock of a file. Raises AlreadyLocked if another process holds
        it."""
        ...

    def database(self, path: Path) -> "Database":
        """Open a database. If there is none, create it with mode 0600. Its log is a file in the
        same folder.

        Raises OSError if the disk fails, DatabaseDamaged if the file is not a valid database, and
        AlreadyLocked if another process uses it.
        """
        ...


class Child(Protocol):
    """A child process, with which this process communicates over a Unix stream socket."""

    @property
    def pid(self) -> int: ...

    @property
    def socket(self) -> trio.socket.SocketType:
        """This process's end of the socket pair. It is connected, and trio waits on it without
        blocking."""
        ...

    def is_stopped(self) -> bool:
        """Return whether a signal such as SIGSTOP has stopped the child, so that it neither runs
        nor ends by itself."""
        ...

    async def wait(self) -> int:
        """Wait for the child to end and return its exit status. A negative status is the number of
        the signal that ended the child."""
        ...

    async def stop(self, grace: float) -> None:
        """Close the socket, give the child `grace` seconds to end, then kill it. On return the
        child has ended and is reaped, even if this call is cancelled."""
        ...


class Host(Protocol):
    """The outside world as one node sees it."""

    @property
    def files(self) -> Files: ...

    def now(self) -> float:
        """Return the time in seconds on a monotonic clock, which is trio's."""
        ...

    def wall(self) -> float:
        """Return the time in seconds since 1970 (UTC). This clock may jump, so no safety property
        may depend on it."""
        ...

    def entropy(self, size: int) -> bytes:
        """Return `size` unpredictable bytes."""
        ...

    def pid(self) -> int:
        """Return the id of this process."""
        ...

    def machine(self) -> MachineFigures: ...

    def resident(self, pid: int) -> int | None:
        """Return the resident memory of a process in bytes. Return None if the process has ended,
        or if memory is simulated."""
        ...

    def interfaces(self) -> list[Interface]:
        """Return the addresses of all network interfaces of this machine that are up, including
        loopback."""
        ...

    async def resolve(self, name: str) -> list[str]:
        """Return the IP addresses of a DNS name. Raises HostError if the name cannot be
        resolved."""
        ...

    async def listen(self, address: str, port: int) -> trio.SocketListener:
        """Open a TCP listener. `port` 0 means any free port. Raises AddressInUse if the port is in
        use, and HostError if it cannot be bound for another reason.

        The port is bound without SO_REUSEPORT, so that a conflict is noticed. The option is set
        afterwards, so that later dials can use the same source port, as hole punching requires.
        """
        ...

    async def connect(self, address: str, port: int, *, source_port: int = 0) -> trio.SocketStream:
        """Open a TCP connection. Raises OSError if this fails. The caller must set a timeout.

        `source_port` is the local port; 0 means any. It may be the port of a listener of this node,
        so that peers see a port at which they can dial this node. Two nodes that dial each other in
        this way at the same time get a single connection (RFC 9293, section 3.5, simultaneous
        open).
        """
        ...

    async def datagrams(
        self, address: str, port: int, *, group: MulticastGroup | None = None, shared: bool = False
    ) -> Datagrams:
        """Open a UDP socket. `port` 0 means any free port. Raises AddressInUse if the port is in
        use, and HostError if the socket cannot be opened for another reason.

        If `group` is given, the socket joins that IPv4 multicast group and sends to it through the
        given interface. Datagrams to the group are also looped back to this machine. If `shared` is
        True, other programs can bind the same port too, as mDNS requires.
        """
        ...

    def default_gateways(self) -> list[str]:
        """Return the addresses of the default routers, IPv4 first. The list is empty if none is
        known."""
        ...

    async def listen_local(self, path: Path) -> trio.SocketListener:
        """Open a listening Unix socket that only this user can connect to (mode 0600). A socket
        file left over at `path` is replaced."""
        ...

    def watch_loop(self, instrument: trio.abc.Instrument) -> AbstractContextManager[None]:
        """Return a context manager. While it is open, `instrument` is informed of every step of
        every task in this trio run. In the simulator it does nothing, because steps take no
        simulated time."""
        ...

    async def give_back_memory(self) -> None:
        """Return freed memory to the operating system, as far as the C library supports this."""
        ...

    def keep_memory(self) -> None:
        """Exclude all objects that exist now from garbage collection, for example those loaded at
        the start. With hundreds of thousands of objects, one collection takes 0.2 s."""
        ...

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call `work` in a thread and return its result, so that blocking or heavy work does not
        block the event loop. Once begun, the work cannot be interrupted."""
        ...

    async def spawn(self, module: str, args: Sequence[str], env: Mapping[str, str]) -> Child:
        """Start a child process `python -m module FD args…`. FD is the file descriptor of the
        child's end of a Unix socket pair.

        The child inherits the environment of this process, with the variables in `env` added or
        replaced. Its standard input is /dev/null, and its standard error is that of this process.
        The child must end when its socket closes, which also happens when this process ends.
        """
        ...
