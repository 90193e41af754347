"""The daemon's interface to a simulated computer. It implements `Host` of
`transport/host/seam.py`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Final

import trio

from ...transport.host.real import TrioHost
from ...transport.host.seam import Interface, MachineFigures, T, Ts
from ..disk.disk import Disk, Folder, installed
from ..disk.mount import Mount
from ..errors import NotSimulated
from ..host import Host
from ..sockets.local import LocalSocket, pair
from .files import DiskFiles
from .profile import Profile
from .realfiles import packaged
from .text import serve_text

OFFLOAD_S: Final = 50e-6  # time to reach a thread and return
FIRST_PID: Final = 1000  # process id of a daemon's first run

Program = Callable[[LocalSocket], Awaitable[None]]
PROGRAMS: Final[Mapping[str, Program]] = {"shoal.tasks.text.child": serve_text}
"""Child programs that `spawn` can start, by the name of their module."""


class SimulatedChild:
    """Child process, simulated by a task of the same host. `socket` is the parent's end of the
    socket pair between parent and child.
    """

    def __init__(self, pid: int, socket: LocalSocket) -> None:
        self._pid = pid
        self._socket = socket
        self._scope = trio.CancelScope()
        self._status = -9
        self._ended = trio.Event()

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def socket(self) -> LocalSocket:
        return self._socket

    async def run(self, program: Program, socket: LocalSocket) -> None:
        """Run the program with `socket`, its end of the socket pair, until it returns or is
        stopped.
        """
        try:
            with self._scope, socket:
                await program(socket)
                self._status = 0
        finally:
            self._ended.set()

    def is_stopped(self) -> bool:
        return False

    async def wait(self) -> int:
        await self._ended.wait()
        return self._status

    async def stop(self, grace: float) -> None:
        self._socket.close()
        try:
            with trio.move_on_after(grace):
                await self._ended.wait()
        finally:
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await self._ended.wait()


class SimulatedHost(TrioHost):
    """Environment of one run of a daemon: a simulated computer with its disk and hardware."""

    def __init__(self, host: Host, profile: Profile, nursery: trio.Nursery, life: int = 0) -> None:
        """Create the environment. `nursery` runs tasks besides the daemon's own.

        `life` is the number of earlier runs of the daemon on this computer.
        """
        if host.disk is None:
            host.disk = new_disk(host, profile)
        self.host = host
        self.profile = profile
        self._disk = host.disk
        self._at_work: dict[trio.CancelScope, None] = {}  # `offload` calls under way
        self._files = DiskFiles(Mount(host.disk, self._let_go), host.local.names)
        self._nursery = nursery
        self._entropy = host.streams.get(host.name, "entropy")
        self._pid = self._last_pid = FIRST_PID * (life + 1)

    @property
    def files(self) -> DiskFiles:
        return self._files

    def wall(self) -> float:
        return self.host.wall()

    def entropy(self, size: int) -> bytes:
        return self._entropy.randbytes(size)

    def pid(self) -> int:
        return self._pid

    def next_pid(self) -> int:
        """Return the process id for a new process on this computer."""
        self._last_pid += 1
        return self._last_pid

    def resident(self, pid: int) -> int | None:
        return None

    def machine(self) -> MachineFigures:
        return self.profile.machine

    def interfaces(self) -> list[Interface]:
        return [Interface(*item) for item in self.host.interfaces()]

    def default_gateways(self) -> list[str]:
        found = self.host.default_gateway(), self.host.default_gateway(six=True)
        return [address for address in found if address is not None]

    async def listen_local(self, path: Path) -> trio.SocketListener:
        self.host.local.names.pop(str(path), None)
        socket = LocalSocket(self.host)
        try:
            await socket.bind(str(path))
            socket.listen(32)
        except BaseException:
            socket.close()
            raise
        return trio.SocketListener(socket)

    def watch_loop(self, instrument: trio.abc.Instrument) -> AbstractContextManager[None]:
        return nullcontext()

    def keep_memory(self) -> None:
        """Do nothing: memory that the run allocates is freed when the run ends."""

    async def give_back_memory(self) -> None:
        """Do nothing: the memory of the simulator is not that of this computer."""
        await trio.lowlevel.checkpoint()

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run `work` at once. Return after the time that a thread and the disk would need.

        Like a real thread, the work cannot be cancelled, unless the computer is switched off.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        result = work(*args)
        if not self.host.up:
            return result  # the computer is off, so nothing on it can wait
        done = max(self.now() + OFFLOAD_S, self._disk.busy_until)
        with trio.CancelScope(shield=self.host.up) as scope:
            self._at_work[scope] = None
            try:
                await trio.sleep_until(done)
            finally:
                del self._at_work[scope]
        return result

    async def spawn(
        self, module: str, args: Sequence[str], env: Mapping[str, str]
    ) -> SimulatedChild:
        program = PROGRAMS.get(module)
        if program is None:
            raise NotSimulated(f"{self.host.name}: the program `{module}` is not simulated")
        ours, theirs = pair(self.host)
        child = SimulatedChild(self.next_pid(), ours)
        self.start_soon(child.run, program, theirs)
        await trio.lowlevel.checkpoint()
        return child

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Start a task on this computer besides the daemon's own tasks."""
        self.host.start_soon(self._nursery, function, *args)

    def disk_seconds(self) -> float:
        """Return the seconds until the disk has finished the operations in its queue."""
        return max(self._disk.busy_until - self.now(), 0.0)

    def _let_go(self) -> None:
        """Make the waiting `offload` calls cancellable, because the power is off."""
        for scope in self._at_work:
            scope.shield = False


async def connect_local(host: Host, path: Path) -> trio.SocketStream:
    """Connect to a Unix socket of a host, as a command on that host does.

    Raises OSError if nothing listens at `path`.
    """
    socket = LocalSocket(host)
    try:
        await socket.connect(str(path))
    except BaseException:
        socket.close()
        raise
    return trio.SocketStream(socket)


def new_disk(host: Host, profile: Profile) -> Disk:
    """Create a disk on which shoal is installed. It has no other files."""
    stream = host.streams.get(host.name, "disk")
    disk = Disk(host.events, stream, profile.disk, contents=host.network.contents)
    where = resources.files("shoal") / "models"
    disk.install(str(where), _models(Path(str(where))))
    return disk


@lru_cache(maxsize=1)
def _models(folder: Path) -> Folder:
    """Return a folder with the models of the package. All hosts share its files."""
    models = Folder(fixed=True)
    for name, files in packaged(folder).items():
        models.names[name] = installed(files)
    return models
