"""The interface to the outside world: clocks, entropy, sockets, files, processes, blocking calls.

Every component takes a `Host`. The real one is in `realhost.py`, and the simulator supplies its
own. So no other file of ours uses the clock, randomness, sockets, threads, child processes or
`open`. tests/test_layout.py checks this; `cli/` and the engine worker's own process are exceptions.

Timers need no method here: trio's clock is replaceable, so `trio.sleep` and `trio.move_on_after`
are virtual in the simulator. `Host.now` is that same clock.
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
    """One address of this machine: the interface's name, an IP address, its prefix length."""

    name: str
    address: str
    prefix: int


@dataclass(frozen=True, slots=True)
class Group:
    """A multicast group, and the address of the interface on which it is joined and sent to."""

    address: str
    interface: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The operating system's figures for this machine. Sizes are in bytes."""

    cores: int
    memory_total: int
    memory_available: int
    system: str  # "Linux", "Darwin", "Windows"
    architecture: str  # "x86_64", "arm64", …


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a folder. `size` is in bytes, 0 for folders."""

    name: str
    is_folder: bool
    size: int


class FileLock(Protocol):
    """An exclusive lock on a file, held until `release` or the process's end."""

    def release(self) -> None: ...


class Files(Protocol):
    """Blocking file operations: call them inside `Host.offload`, never on the event loop.

    `write` is the only way to create or replace a file: readers see either the old content or
    the new one, even after `kill -9` at any instant.
    """

    def read(self, path: Path, *, limit: int) -> bytes:
        """Return the whole file. Raises FileTooLarge beyond `limit` bytes, FileNotFoundError."""
        ...

    def read_range(self, path: Path, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer at the end of the file."""
        ...

    def write(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        """Atomically create or replace a file; durable on return. Raises OSError (ENOSPC, …)."""
        ...

    def write_pieces(
        self, path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o600
    ) -> None:
        """Write more than fits in memory. If `pieces` raises, the old content stays."""
        ...

    def stage(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        """Create a temporary file, which `settle` later renames. A crash may leave it incomplete.

        Raises OSError (ENOSPC, …; FileExistsError) and then leaves nothing behind.
        """
        ...

    def settle(self, moves: Sequence[tuple[Path, Path]]) -> None:
        """Rename staged files, each atomically; all are durable on return. A file that no longer
        exists is skipped. Much cheaper than one `write` for each."""
        ...

    def identity(self, path: Path) -> tuple[int, int, int] | None:
        """Return a value that changes when a file is rewritten: its inode, size in bytes and time
        of the last write. None if there is no such file."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        ...

    def list(self, path: Path) -> list[Entry]:
        """Return the folder's entries by name. An absent folder is empty."""
        ...

    def size(self, path: Path) -> int | None:
        """Return the file's size in bytes, or None if there is no such file."""
        ...

    def real(self, path: Path) -> Path:
        """Return the path with symbolic links resolved; parts that do not exist are unchanged."""
        ...

    def mode(self, path: Path) -> int:
        """Return the permission bits; symbolic links are followed."""
        ...

    def make_folder(self, path: Path, *, mode: int = 0o700) -> None:
        """Create a folder and its parents if absent; durable on return."""
        ...

    def free_space(self, path: Path) -> int:
        """Return how many bytes this user may still write on the file system of `path`."""
        ...

    def lock(self, path: Path) -> FileLock:
        """Take the exclusive lock. Raises AlreadyLocked if another process holds it."""
        ...

    def database(self, path: Path) -> "Database":
        """Open a database; create it if absent, with mode 0600 and its log beside it.

        Raises OSError, DatabaseDamaged, and AlreadyLocked if another process has it open.
        """
        ...


class Child(Protocol):
    """A child process that talks over one Unix stream socket."""

    @property
    def pid(self) -> int: ...

    @property
    def socket(self) -> trio.socket.SocketType:
        """The parent's end of the socket pair, connected, non-blocking through trio."""
        ...

    async def wait(self) -> int:
        """Return the exit status; a negative one is the signal that ended the child."""
        ...

    async def stop(self, grace: float) -> None:
        """Close the socket, wait `grace` seconds, then kill. The child is reaped on return, even
        when cancelled."""
        ...


class Host(Protocol):
    """The outside world as one node sees it."""

    @property
    def files(self) -> Files: ...

    def now(self) -> float:
        """Return monotonic seconds (trio's clock)."""
        ...

    def wall(self) -> float:
        """Return seconds since 1970, UTC. It may jump, so nothing's safety may depend on it."""
        ...

    def entropy(self, size: int) -> bytes:
        """Return `size` unpredictable bytes."""
        ...

    def pid(self) -> int:
        """Return the id of this process."""
        ...

    def machine(self) -> Machine: ...

    def resident(self, pid: int) -> int | None:
        """Return the resident memory of a process in bytes; None after its end, or where memory is
        simulated."""
        ...

    def interfaces(self) -> list[Interface]:
        """Return the addresses of this machine that are up, loopback included."""
        ...

    async def resolve(self, name: str) -> list[str]:
        """Return the IP addresses of a DNS name. Raises HostError."""
        ...

    async def listen(self, address: str, port: int) -> trio.SocketListener:
        """Open a TCP listener; port 0 picks a free one. Raises AddressInUse.

        The port is bound without SO_REUSEPORT, to notice if it is taken. The option is set
        afterwards, so that later dials can use the same source port (hole punching needs that).
        """
        ...

    async def connect(self, address: str, port: int, *, source_port: int = 0) -> trio.SocketStream:
        """Open a TCP connection. Raises OSError. The caller sets the deadline.

        `source_port` is the local port (0: any). It may be a listener's, so that others see the
        port that they can dial back. Two ends that dial each other like this at the same moment
        get one connection (RFC 9293, simultaneous open).
        """
        ...

    async def datagrams(
        self, address: str, port: int, *, group: Group | None = None, shared: bool = False
    ) -> Datagrams:
        """Open a UDP socket; port 0 picks a free one. Raises AddressInUse, HostError.

        With `group` it joins a multicast group (TTL 1 or 4, as the group's protocol requires,
        loopback on) and sends to it through that interface. `shared` lets other programs bind
        the port too (mDNS).
        """
        ...

    def default_gateways(self) -> list[str]:
        """Return the addresses of the default routers, IPv4 first; empty if none is known."""
        ...

    async def listen_local(self, path: Path) -> trio.SocketListener:
        """Open a Unix socket that only this user can open (mode 0600), replacing a stale one."""
        ...

    def watch_loop(self, instrument: trio.abc.Instrument) -> AbstractContextManager[None]:
        """Tell `instrument` about every step of every task in this trio run. Does nothing in the
        simulator, where steps take no time."""
        ...

    async def give_back_memory(self) -> None:
        """Return freed memory to the operating system, as far as the C library supports it."""
        ...

    def keep_memory(self) -> None:
        """Exclude all current objects from garbage collection, for example what was loaded at the
        start. With hundreds of thousands of objects one collection takes 0.2 s."""
        ...

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run blocking or heavy work in a thread. It cannot be interrupted once begun."""
        ...

    async def spawn(self, module: str, args: Sequence[str], env: Mapping[str, str]) -> Child:
        """Start `python -m module FD args…`, FD being its end of a Unix socket pair.

        The child inherits this process's environment, overridden by `env`. Its standard input is
        /dev/null, its standard error is ours. It ends when this process ends, because its socket
        closes.
        """
        ...
