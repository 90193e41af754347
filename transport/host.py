"""The one seam to the world: clocks, entropy, sockets, files, processes, blocking calls.

Every component takes a `Host`; the real one is in `realhost.py`. The simulator supplies its
own and replaces nothing else, so no other file of ours touches the clock, randomness,
sockets, threads, child processes or `open` (tests/test_layout.py says so; `cli/` and the
engine worker's own process are the exceptions).

Timers need no method here: trio's clock is already replaceable, so `trio.sleep` and
`trio.move_on_after` are virtual in the simulator. `Host.now` is that same clock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, TypeVarTuple

import trio

from .datagrams import Datagrams

if TYPE_CHECKING:  # SQLite is loaded by who needs it
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
    """What the operating system says of this machine; sizes in bytes."""

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

    `write` is the only way to make or replace a file: readers see the old content or the
    new one, also after `kill -9` at any instant.
    """

    def read(self, path: Path, *, limit: int) -> bytes:
        """The whole file; raises FileTooLarge beyond `limit` bytes, FileNotFoundError."""
        ...

    def read_range(self, path: Path, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer at the end of the file."""
        ...

    def write(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        """Atomically create or replace; on disk when it returns. Raises OSError (ENOSPC, …)."""
        ...

    def write_pieces(
        self, path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o600
    ) -> None:
        """`write` of more than is held in memory; what `pieces` raises leaves the old content."""
        ...

    def stage(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        """Make a new file that nobody takes for whole before `settle`: a crash may tear it.

        Raises OSError (ENOSPC, …; FileExistsError), and then nothing is left of it.
        """
        ...

    def settle(self, moves: Sequence[tuple[Path, Path]]) -> None:
        """Staged files get their names, each atomically; all on disk when it returns. One that
        is gone meanwhile is passed over. Cheaper by far than a `write` each."""
        ...

    def identity(self, path: Path) -> tuple[int, int, int] | None:
        """What changes when a file is written again: its number, bytes and time of the last
        write; None where there is no such file."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file if it is there."""
        ...

    def list(self, path: Path) -> list[Entry]:
        """The folder's entries by name; an absent folder is empty."""
        ...

    def size(self, path: Path) -> int | None:
        """The file's bytes, or None where there is no such file."""
        ...

    def real(self, path: Path) -> Path:
        """Where a path leads through symbolic links; what is not there counts as itself."""
        ...

    def mode(self, path: Path) -> int:
        """Permission bits, symbolic links followed."""
        ...

    def make_folder(self, path: Path, *, mode: int = 0o700) -> None:
        """Create it and its parents where absent; on disk when it returns."""
        ...

    def free_space(self, path: Path) -> int:
        """Bytes this user may still write on the file system of `path`."""
        ...

    def lock(self, path: Path) -> FileLock:
        """Take the exclusive lock; raises AlreadyLocked when another process holds it."""
        ...

    def database(self, path: Path) -> "Database":
        """Open a database, made where absent (its mode is 0600; its log lies beside it).

        Raises OSError, DatabaseDamaged, AlreadyLocked where another process has it open.
        """
        ...


class Child(Protocol):
    """A child process of ours that talks over one Unix stream socket."""

    @property
    def pid(self) -> int: ...

    @property
    def socket(self) -> trio.socket.SocketType:
        """Our end of the pair, connected, non-blocking through trio."""
        ...

    async def wait(self) -> int:
        """The exit status; negative is the signal that ended it."""
        ...

    async def stop(self, grace: float) -> None:
        """Close the socket, give it `grace` seconds, then kill; reaped on return, even when
        cancelled."""
        ...


class Host(Protocol):
    """The world as one node sees it."""

    @property
    def files(self) -> Files: ...

    def now(self) -> float:
        """Monotonic seconds (trio's clock)."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, UTC; may jump. Nothing's safety rests on it."""
        ...

    def entropy(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        ...

    def pid(self) -> int:
        """The number of this process."""
        ...

    def machine(self) -> Machine: ...

    def resident(self, pid: int) -> int | None:
        """Return the resident memory of a process in bytes; None after its end, or where memory is
        simulated."""
        ...

    def interfaces(self) -> list[Interface]:
        """Addresses of this machine that are up, loopback included."""
        ...

    async def resolve(self, name: str) -> list[str]:
        """IP addresses of a DNS name; raises HostError."""
        ...

    async def listen(self, address: str, port: int) -> trio.SocketListener:
        """A TCP listener; port 0 picks a free one. Raises AddressInUse.

        Bound without SO_REUSEPORT, to notice that the port is taken; then it is set, so that
        later dials can leave from the same port (hole punching needs that).
        """
        ...

    async def connect(self, address: str, port: int, *, source_port: int = 0) -> trio.SocketStream:
        """A TCP connection; raises OSError. The caller sets the deadline.

        `source_port` is the local port to leave from (0: any), which may be a listener's: then
        others see the port that they can dial back. Two ends that dial each other so at the
        same moment get one connection (RFC 9293, simultaneous open).
        """
        ...

    async def datagrams(
        self, address: str, port: int, *, group: Group | None = None, shared: bool = False
    ) -> Datagrams:
        """A UDP socket; port 0 picks a free one. Raises AddressInUse, HostError.

        With `group` it joins a multicast group (TTL 1 or 4 as the group's protocol does,
        loopback on) and sends to it by that interface; `shared` lets other programs bind the
        port too (mDNS).
        """
        ...

    def default_gateways(self) -> list[str]:
        """Addresses of the routers that lead out, IPv4 first; empty where none is known."""
        ...

    async def listen_local(self, path: Path) -> trio.SocketListener:
        """A Unix socket only this user can open (mode 0600); a stale one is replaced."""
        ...

    def watch_loop(self, instrument: trio.abc.Instrument) -> AbstractContextManager[None]:
        """Tell `instrument` of every step of every task in this trio run, where steps take time
        (in the simulator they take none)."""
        ...

    async def give_back_memory(self) -> None:
        """Freed memory goes back to the operating system, as far as that can be had."""
        ...

    def keep_memory(self) -> None:
        """What is in memory now stays there: it is not looked at again for garbage. For what was
        loaded at the start: among hundreds of thousands of objects that takes 0.2 s a time."""
        ...

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run blocking or heavy work in a thread; not interruptible once begun."""
        ...

    async def spawn(self, module: str, args: Sequence[str], env: Mapping[str, str]) -> Child:
        """Start `python -m module FD args…`, FD being its end of a Unix socket pair.

        The child inherits this process's environment with `env` over it, gets /dev/null as
        standard input and our standard error, and ends when this process ends (its socket
        closes).
        """
        ...
