"""The daemon's side of the engine: keeps one worker process alive and implements `Engine` with it.

One reader task; an event goes from the socket to the session's callback without another task.
Submits are written at once where the socket allows, by one writer task where it does not. A
worker that ends, for whatever reason, fails its sessions and is started again.
"""

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import trio

from ...transport.host.seam import Host
from . import defaults
from .errors import EngineError, EngineUnavailable
from .interface import EngineEvent, FailedEvent, Loaded, LoadShard, SessionId, Span
from .messages import load_payload, parse_event, parse_loaded, span_frame
from .wire import Buffer, Channel, Header, WireClosed, WireError

_MODULE = f"{__package__}.worker"
_CRASHED = "the engine's worker process ended"


class Worker(Protocol):
    """A worker process."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Wait for the exit status; a negative one is the signal that ended the process."""
        ...

    async def stop(self, grace: float) -> None:
        """Let the process end within `grace` seconds, else kill it. Return once it has ended."""
        ...


class Connection(Protocol):
    """The daemon's end of the connection to a worker: a `Channel` that can be waited for."""

    def put(self, header: Header, payload: Buffer = b"") -> None: ...

    def flush(self) -> bool: ...

    def receive(self) -> list[tuple[Header, memoryview]]: ...

    def close(self) -> None: ...

    async def wait_readable(self) -> None: ...

    async def wait_writable(self) -> None: ...


Connect = Callable[
    [Host, Sequence[str], Mapping[str, str]], Awaitable[tuple[Worker, Connection]]
]  # host, arguments, environment


class _WaitingChannel(Channel):
    """A channel in a trio program."""

    async def wait_readable(self) -> None:
        await trio.lowlevel.wait_readable(self.fileno())

    async def wait_writable(self) -> None:
        await trio.lowlevel.wait_writable(self.fileno())


async def start_process(
    host: Host, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[Worker, Connection]:
    """Start a worker process of this daemon."""
    child = await host.spawn(_MODULE, arguments, environment)
    return child, _WaitingChannel(child.socket.fileno())


@dataclass(slots=True)
class _Reply:
    """The pending reply to a request."""

    done: trio.Event = field(default_factory=trio.Event)
    value: object = None
    payload: memoryview = field(default_factory=lambda: memoryview(b""))
    error: EngineError | None = None


@dataclass(slots=True)
class _Open:
    """An open session: its callback, and the epoch of its last span."""

    on_event: Callable[[EngineEvent], None]
    epoch: int = 0


class EngineProcess:
    """`Engine` over a worker process; `run` must be running.

    Raises EngineUnavailable where torch is not installed.
    """

    def __init__(
        self,
        host: Host,
        *,
        threads: int,
        memory_bytes: int = 0,
        connect: Connect = start_process,
    ) -> None:
        """`threads` torch computes with; `memory_bytes` limits weights and KV (0: all memory).

        `connect` starts a worker, each time there is none.
        """
        self._host = host
        self._connect = connect
        self._arguments = ["--threads", str(threads), "--memory", str(memory_bytes)]
        self._environment = _environment(threads)
        self._channel: Connection | None = None  # set while a worker is ready
        self._change = (
            trio.Event()
        )  # set, and replaced, when a worker becomes ready or none can start
        self._blocked = trio.Event()  # set when the socket did not take everything
        self._unavailable: EngineUnavailable | None = None
        self._sessions: dict[SessionId, _Open] = {}
        self._replies: dict[int, _Reply] = {}
        self._numbers = itertools.count(1)
        self._on_restart: list[Callable[[], None]] = []
        self._starts = 0
        self.pid: int | None = None  # of the worker, while it lives

    def on_restart(self, callback: Callable[[], None]) -> None:
        """`callback` is called when a worker is ready again after a crash: it holds no shard."""
        self._on_restart.append(callback)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a worker alive; started when the first one is ready.

        Raises EngineUnavailable, before it started, where torch is not installed.
        """
        pause = defaults.RESTART_PAUSE
        while True:
            born = self._host.now()
            await self._one_life(task_status)
            if self._unavailable is not None:
                raise self._unavailable
            if self._host.now() - born > defaults.RESTART_FORGET:
                pause = defaults.RESTART_PAUSE
            await trio.sleep(pause)
            pause = min(2 * pause, defaults.RESTART_PAUSE_MOST)

    async def _one_life(self, task_status: trio.TaskStatus[None]) -> None:
        child, channel = await self._connect(self._host, self._arguments, self._environment)
        self.pid = child.pid
        status: int | None = None
        try:
            with suppress(WireClosed, WireError):
                await self._converse(channel, task_status)
            channel.close()
            status = await _ended(child)
        finally:
            channel.close()
            self._lost(status)
            await child.stop(0)
            self.pid = None

    async def _converse(self, channel: Connection, task_status: trio.TaskStatus[None]) -> None:
        await self._greeted(channel)
        self._channel = channel
        self._blocked = trio.Event()
        self._starts += 1
        self._changed()
        if self._starts == 1:
            task_status.started()
        else:
            for callback in self._on_restart:
                callback()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, channel)
            with suppress(WireClosed, WireError):
                await self._read(channel)
            nursery.cancel_scope.cancel()

    @staticmethod
    async def _greeted(channel: Connection) -> None:
        while True:
            await channel.wait_readable()
            frames = channel.receive()
            if frames and frames[0][0][0] == "ready" and len(frames) == 1:
                return
            if frames:
                raise WireError("the worker did not begin with `ready`")

    async def _read(self, channel: Connection) -> None:
        while True:
            await channel.wait_readable()
            for header, payload in channel.receive():
                self._arrived(header, payload)

    async def _write(self, channel: Connection) -> None:
        with suppress(WireClosed):  # the reader sees the same
            while True:
                await self._blocked.wait()
                self._blocked = trio.Event()
                while not channel.flush():
                    await channel.wait_writable()

    def _arrived(self, header: Header, payload: memoryview) -> None:
        if header[0] in ("ok", "refused"):
            self._replied(header, payload)
            return
        event = parse_event(header, payload)
        opened = self._sessions.get(event.session)
        if opened is not None:  # closed ones may still have events under way
            opened.on_event(event)

    def _replied(self, header: Header, payload: memoryview) -> None:
        reply = self._replies.get(header[1]) if isinstance(header[1], int) else None
        if reply is None:  # the request was cancelled
            return
        match header:
            case ("ok", _, value):
                reply.value, reply.payload = value, payload
            case ("refused", _, str(code), str(message)):
                reply.error = EngineError(code, message)
            case _:
                raise WireError("the worker sent a malformed reply")
        reply.done.set()

    def _lost(self, status: int | None) -> None:
        """End all requests and sessions of a worker that has ended."""
        self._channel = None
        if status == defaults.EXIT_NO_TORCH:
            self._unavailable = EngineUnavailable()
            self._changed()
        message = _CRASHED + _how(status)
        self._end_sessions("worker-crashed", message)
        for reply in self._replies.values():
            reply.error = self._unavailable or EngineError("worker-crashed", message)
            reply.done.set()

    def _end_sessions(self, code: str, message: str) -> None:
        sessions, self._sessions = self._sessions, {}
        for name, opened in sessions.items():
            opened.on_event(FailedEvent(name, opened.epoch, code, message))

    def _changed(self) -> None:
        self._change.set()
        self._change = trio.Event()

    # Engine.

    async def load(self, shard: LoadShard) -> Loaded:
        """Load a shard, after waiting for a worker that is starting."""
        while self._channel is None:
            if self._unavailable is not None:
                raise self._unavailable
            await self._change.wait()
        self._end_sessions("shard-replaced", "the engine was given another shard")
        payload = await self._host.offload(load_payload, shard)
        value, _ = await self._request("load", payload=payload)
        return parse_loaded(value)

    async def open(
        self, session: SessionId, tokens: int, on_event: Callable[[EngineEvent], None]
    ) -> int:
        if session in self._sessions:
            raise EngineError("session-exists", "the session is open already")
        self._sessions[session] = _Open(on_event)
        try:
            value, _ = await self._request("open", session, tokens)
        except BaseException as error:
            self._sessions.pop(session, None)
            if not isinstance(error, EngineError):  # cancelled: the worker may open it yet
                self._send(("close", 0, session))
            raise
        return value if isinstance(value, int) else 0

    def submit(self, span: Span) -> None:
        opened = self._sessions.get(span.session)
        if opened is None:
            raise EngineError("unknown-session", "the session is not open")
        opened.epoch = max(opened.epoch, span.epoch)
        self._send(*span_frame(span))

    def cancel(self, session: SessionId) -> None:
        self._send(("cancel", session))

    async def close(self, session: SessionId) -> None:
        self._sessions.pop(session, None)
        with suppress(EngineError):  # a worker that has ended freed it
            await self._request("close", session)

    async def export_kv(self, session: SessionId) -> bytes:
        _, payload = await self._request("export", session)
        return bytes(payload)

    async def import_kv(self, session: SessionId, state: bytes) -> int:
        value, _ = await self._request("import", session, payload=state)
        return value if isinstance(value, int) else 0

    async def fork(self, session: SessionId, into: SessionId) -> None:
        await self._request("fork", session, into)

    async def usage(self) -> Mapping[str, int]:
        value, _ = await self._request("usage")
        if not isinstance(value, dict):
            raise EngineError("worker-crashed", "the worker answered `usage` with something else")
        return {str(key): int(number) for key, number in value.items()}

    async def _request(
        self, name: str, *fields: object, payload: Buffer = b""
    ) -> tuple[object, memoryview]:
        if self._channel is None:
            raise self._unavailable or EngineError("worker-crashed", _CRASHED)
        number = next(self._numbers)
        reply = self._replies[number] = _Reply()
        try:
            self._send((name, number, *fields), payload)
            await reply.done.wait()
        finally:
            del self._replies[number]
        if reply.error is not None:
            raise reply.error
        return reply.value, reply.payload

    def _send(self, header: Header, payload: Buffer = b"") -> None:
        """Write as much as the socket accepts now, and leave the rest to the writer task."""
        channel = self._channel
        if channel is None:  # the crash has failed the session already
            return
        try:
            channel.put(header, payload)
            if not channel.flush():
                self._blocked.set()
        except WireError as error:
            raise EngineError("too-large", str(error)) from None
        except WireClosed:
            return  # the reader sees the same, and ends the sessions


async def _ended(child: Worker) -> int | None:
    """Return the status of a worker whose socket has closed, or None if it had to be killed."""
    with trio.move_on_after(defaults.STOP_GRACE):
        return await child.wait()
    return None


def _how(status: int | None) -> str:
    if status is None:
        return ""
    return f", killed by signal {-status}" if status < 0 else f" with status {status}"


def _environment(threads: int) -> dict[str, str]:
    """Return an environment whose idle threads do not spin, as processes share the cores."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
