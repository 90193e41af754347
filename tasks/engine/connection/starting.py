"""The daemon's view of a worker process: how it is started, and the connection to it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import trio

from ....transport.host.seam import Host
from .. import defaults
from ..wire import Buffer, Header, Payload, WorkerChannel

_MODULE = f"{__package__.rpartition('.')[0]}.worker"


class EngineWorker(Protocol):
    """A worker process."""

    @property
    def pid(self) -> int: ...

    def is_stopped(self) -> bool:
        """Return whether a signal such as SIGSTOP has stopped the process."""
        ...

    async def wait(self) -> int:
        """Wait for the exit status. A negative status is the signal that ended the process."""
        ...

    async def stop(self, grace: float) -> None:
        """Wait up to `grace` seconds until the process ends, then kill it. Return when it has
        ended."""
        ...


class WorkerConnection(Protocol):
    """Daemon's end of the connection to a worker: a `WorkerChannel` with methods that wait for the
    socket."""

    def put(self, header: Header, payload: Buffer = b"") -> None: ...

    def flush(self) -> bool: ...

    def receive(self) -> list[tuple[Header, memoryview]]: ...

    def arrived(self, most: int) -> list[tuple[Header, Payload]]: ...

    def close(self) -> None: ...

    async def wait_readable(self) -> None: ...

    async def wait_writable(self) -> None: ...


Connect = Callable[
    [Host, Sequence[str], Mapping[str, str]], Awaitable[tuple[EngineWorker, WorkerConnection]]
]  # (host, arguments, environment): starts a worker


class WaitingChannel(WorkerChannel):
    """Channel whose socket can be awaited in trio."""

    async def wait_readable(self) -> None:
        await trio.lowlevel.wait_readable(self.fileno())

    async def wait_writable(self) -> None:
        await trio.lowlevel.wait_writable(self.fileno())


async def start_process(
    host: Host, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[EngineWorker, WorkerConnection]:
    """Start a worker process, and return it with the connection to it."""
    child = await host.spawn(_MODULE, arguments, environment)
    return child, WaitingChannel(child.socket.fileno())


async def ended(child: EngineWorker) -> int | None:
    """Return the exit status of a worker whose socket has closed, or None if it does not end
    soon."""
    with trio.move_on_after(defaults.STOP_GRACE):
        return await child.wait()
    return None


def how(status: int | None) -> str:
    """Return a phrase about the exit status for an error message."""
    if status is None:
        return ""
    return f", killed by signal {-status}" if status < 0 else f" with status {status}"


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a worker.

    Its idle threads must not spin, because several processes share the cores.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
