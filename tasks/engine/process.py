"""Daemon's part of the engine: runs one worker process and implements `Engine` with it.

One reader task passes each event from the socket directly to the session's callback. A submitted
span is written at once if the socket accepts it, and otherwise by one writer task. If a worker ends
for any reason, its sessions fail and another worker is started.
"""

import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio
from msgspec.structs import astuple

from ...transport.host.seam import Host
from ...transport.message import pack
from . import defaults
from .adapters import LoadAdapter
from .connection.requests import WorkerRequests
from .connection.starting import (
    Connect,
    EngineWorker,
    WorkerConnection,
    ended,
    environment,
    how,
    start_process,
)
from .errors import EngineError, EngineUnavailable
from .interface import (
    DEFAULT_TERMS,
    NO_RULES,
    EngineEvent,
    FailedEvent,
    KvForm,
    KvRange,
    KvSource,
    Loaded,
    LoadShard,
    NamedBlocks,
    SessionId,
    SessionTerms,
    Span,
)
from .messages import (
    adapter_payload,
    load_payload,
    parse_event,
    parse_loaded,
    parse_pass,
    span_frame,
)
from .passes import OpenTuning, PassDone, PassOrder
from .watchdog import Watchdog
from .wire import Buffer, Header, SharedPayload, WireClosed, WireError

_SILENT = "the engine's worker does not respond"
_CRASHED = "the engine's worker process ended"


@dataclass(slots=True)
class _Open:
    """An open session: its callback, its shard, and the highest epoch of its spans."""

    on_event: Callable[[EngineEvent], None]
    shard: int
    epoch: int = 0


class EngineProcess:
    """Implementation of `Engine` with a worker process. `run` must be running.

    Methods raise EngineUnavailable if torch is not installed.
    """

    def __init__(
        self,
        host: Host,
        *,
        threads: int,
        memory_bytes: int = 0,
        device: str = "cpu",
        connect: Connect = start_process,
    ) -> None:
        """Create an engine without starting a worker.

        `threads` is the number of threads with which torch computes. `memory_bytes` limits weights
        and KV together (0: the available memory). `device` is the one that torch computes on.
        `connect` is called to start each worker.
        """
        self._host = host
        self._connect = connect
        self._device = device
        self._arguments = ["--threads", str(threads), "--memory", str(memory_bytes)]
        self._arguments += ["--device", device]
        self._environment = environment(threads)
        # Set and replaced when a worker becomes ready, or when torch turns out to be absent.
        self._change = trio.Event()
        self._unavailable: EngineUnavailable | None = None
        self._sessions: dict[SessionId, _Open] = {}
        self._requests = WorkerRequests(
            host,
            lambda name, by: self._watchdog.wait(name, by, host.now()),
            EngineError("worker-crashed", _CRASHED),
        )
        self._on_restart: list[Callable[[], None]] = []
        # The worker reads and writes parts between two steps, so their number is limited.
        self._parts = trio.Semaphore(defaults.KV_PARTS)
        self._starts = 0
        self._loaded = False  # whether the present worker has loaded a shard
        self._watchdog = Watchdog(host.now())
        self._watched = trio.Event()  # set when a span is submitted
        self._silent = False  # whether the worker has missed its deadline
        self.pid: int | None = None  # pid of the worker, or None if there is none

    def on_restart(self, callback: Callable[[], None]) -> None:
        """Register `callback` to be called when a worker without a shard is ready after a crash."""
        self._on_restart.append(callback)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start a worker, and start another one whenever it ends, until cancelled.

        Reports `started` when the first worker is ready. Workers that end before they have loaded a
        shard are restarted less and less often. Raises EngineUnavailable if torch is not installed.
        """
        pause = defaults.RESTART_PAUSE
        while True:
            born, self._loaded = self._host.now(), False
            await self._one_life(task_status)
            if self._unavailable is not None:
                raise self._unavailable
            # A worker that had loaded a shard did its work, and sessions wait for the next one.
            if self._loaded or self._host.now() - born > defaults.RESTART_FORGET:
                pause = defaults.RESTART_PAUSE
            await trio.sleep(pause)
            pause = min(2 * pause, defaults.RESTART_PAUSE_MOST)

    async def _one_life(self, task_status: trio.TaskStatus[None]) -> None:
        """Start one worker, serve it until it ends, and end its sessions."""
        child, channel = await self._connect(self._host, self._arguments, self._environment)
        self.pid = child.pid
        status: int | None = None
        try:
            with suppress(WireClosed, WireError):
                await self._converse(child, channel, task_status)
            channel.close()
            # A worker that does not respond does not end by itself either.
            status = None if self._silent else await ended(child)
        finally:
            channel.close()
            self._lost(status)
            await child.stop(0)
            self.pid = None

    async def _converse(
        self, child: EngineWorker, channel: WorkerConnection, task_status: trio.TaskStatus[None]
    ) -> None:
        """Wait until a worker is ready, and then exchange frames until its connection closes."""
        await self._greeted(channel)
        self._requests.begin(channel)
        self._watchdog, self._silent = Watchdog(self._host.now()), False
        self._starts += 1
        self._changed()
        if self._starts == 1:
            task_status.started()
        else:
            for callback in self._on_restart:
                callback()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._requests.write, channel)
            nursery.start_soon(self._watch, child, nursery.cancel_scope)
            with suppress(WireClosed, WireError):
                await self._read(channel)
            nursery.cancel_scope.cancel()

    @staticmethod
    async def _greeted(channel: WorkerConnection) -> None:
        """Wait for the worker's `ready` frame. Raises WireError if another frame is the first."""
        while True:
            await channel.wait_readable()
            frames = channel.receive()
            if frames and frames[0][0][0] == "ready" and len(frames) == 1:
                return
            if frames:
                raise WireError("the worker did not begin with `ready`")

    async def _read(self, channel: WorkerConnection) -> None:
        while True:
            await channel.wait_readable()
            frames = deque(channel.arrived(defaults.THREAD_BYTES))
            try:
                while frames:
                    header, payload = frames[0]
                    if isinstance(payload, SharedPayload):
                        payload = await self._host.offload(payload.read)
                    frames.popleft()
                    self._arrived(header, payload)
            finally:
                for _, payload in frames:
                    if isinstance(payload, SharedPayload):
                        payload.close()

    async def _watch(self, child: EngineWorker, conversation: trio.CancelScope) -> None:
        """Fail the sessions of a worker that does not respond. End its conversation if that lasts,
        or at once if the process is stopped.

        A worker that was only slowed down continues, because loading takes longer than waiting.
        """
        while True:
            await self._watched.wait()
            wakes = self._host.now() + defaults.WATCH_PAUSE
            await trio.sleep(defaults.WATCH_PAUSE)
            now, dog = self._host.now(), self._watchdog
            if now > wakes + defaults.WATCH_LATE:
                dog.restart(now)
            if not dog.active(now):
                self._watched = trio.Event()
            elif dog.is_silent(now):
                self._silent = True
                self._end_sessions("worker-crashed", _SILENT)
                self._refuse_to_open()
                if dog.is_hung(now) or child.is_stopped():
                    conversation.cancel()
            elif dog.is_due(now):
                dog.pinged = True
                self._requests.send(("usage", self._requests.next_number()))

    def _refuse_to_open(self) -> None:
        """Refuse the sessions that a silent worker has not opened yet."""
        self._requests.refuse(
            lambda name: name == "open" or name.startswith("tune"),
            EngineError("worker-crashed", _SILENT),
        )

    def _arrived(self, header: Header, payload: memoryview) -> None:
        """Pass a frame to the request or session that it belongs to."""
        self._watchdog.heard(self._host.now())
        self._silent = False
        if header[0] in ("ok", "refused"):
            self._requests.replied(header, payload)
            return
        event = parse_event(header, payload)
        self._watchdog.answered(event.session, self._host.now())
        opened = self._sessions.get(event.session)
        if opened is not None:  # events of a closed session may still arrive
            opened.on_event(event)

    def _lost(self, status: int | None) -> None:
        """Fail all requests and sessions of a worker that has ended. `status` is its exit
        status."""
        if status == defaults.EXIT_NO_TORCH:
            self._unavailable = EngineUnavailable()
            self._changed()
        elif status == defaults.EXIT_NO_DEVICE:
            self._unavailable = _no_device(self._device)
            self._changed()
        error = EngineError("worker-crashed", _CRASHED + how(status))
        self._requests.end(self._unavailable or error)
        self._end_sessions(error.code, error.message)

    def _end_sessions(self, code: str, message: str, shard: int | None = None) -> None:
        """Remove the sessions of a shard (None: all) and emit a failure for each."""
        ended = [
            (name, opened)
            for name, opened in self._sessions.items()
            if shard is None or opened.shard == shard
        ]
        for name, _ in ended:
            del self._sessions[name]
            self._watchdog.ended(name)
        for name, opened in ended:
            opened.on_event(FailedEvent(name, opened.epoch, code, message))

    def _changed(self) -> None:
        self._change.set()
        self._change = trio.Event()

    # Implementation of `Engine`.

    async def load(self, shard: LoadShard, number: int = 0) -> Loaded:
        """Load a shard. If a worker is starting, wait for it first.

        The sessions of an earlier shard with the same number end.
        """
        while self._requests.channel is None:
            if self._unavailable is not None:
                raise self._unavailable
            await self._change.wait()
        self._end_sessions("shard-replaced", "the engine was given another shard", number)
        payload = await self._host.offload(load_payload, shard)
        value, _ = await self._requests.request("load", number, payload=payload)
        self._loaded = True
        report = parse_loaded(value)
        self._watchdog.loaded(number, report)
        return report

    async def unload(self, number: int) -> None:
        self._end_sessions("shard-replaced", "the engine has dropped the shard", number)
        self._watchdog.unloaded(number)
        with suppress(EngineError):  # the end of a worker frees its shards
            await self._requests.request("unload", number)

    async def adapt(self, adapter: LoadAdapter, shard: int = 0) -> None:
        payload = await self._host.offload(adapter_payload, adapter)
        await self._requests.request("adapt", shard, payload=payload)

    async def open(
        self,
        session: SessionId,
        tokens: int,
        on_event: Callable[[EngineEvent], None],
        terms: SessionTerms = DEFAULT_TERMS,
    ) -> int:
        if session in self._sessions:
            raise EngineError("session-exists", "the session is open already")
        if self._silent:
            raise EngineError("worker-crashed", _SILENT)
        self._sessions[session] = _Open(on_event, terms.shard)
        self._watchdog.expect(self._host.now())
        self._watched.set()
        try:
            fields = session, tokens, terms.owner, terms.background, terms.user
            rules = None if terms.rules == NO_RULES else astuple(terms.rules)
            more = terms.shard, terms.soon, terms.adapter, terms.own, terms.packed, terms.exact
            value, _ = await self._requests.request(
                "open", *fields, *more, rules, terms.network, payload=terms.names
            )
        except BaseException as error:
            self._sessions.pop(session, None)
            if not isinstance(error, EngineError):  # cancelled; the worker may still open it
                self._requests.send(("close", 0, session))
            raise
        return value if isinstance(value, int) else 0

    async def recall(
        self, session: SessionId, position: int, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        try:
            tokens = array.array("i", (*prompt, *answer)).tobytes()
        except (OverflowError, TypeError):
            raise EngineError("bad-token", "a token id is not a 32-bit integer") from None
        await self._requests.request("recall", session, position, len(prompt), payload=tokens)

    def submit(self, span: Span) -> None:
        opened = self._sessions.get(span.session)
        if opened is None:
            raise EngineError("unknown-session", "the session is not open")
        opened.epoch = max(opened.epoch, span.epoch)
        self._watchdog.submitted(span, self._host.now())
        self._watched.set()
        self._requests.send(*span_frame(span))

    def hold(self) -> None:
        self._requests.send(("hold",))

    def cancel(self, session: SessionId) -> None:
        self._requests.send(("cancel", session))

    async def close(self, session: SessionId, names: bytes = b"") -> None:
        self._sessions.pop(session, None)
        self._watchdog.ended(session)
        with suppress(EngineError):  # the end of a worker frees its sessions
            await self._requests.request("close", session, payload=names)

    async def export_kv(self, session: SessionId) -> bytes:
        _, payload = await self._requests.request("export", session)
        return bytes(payload)

    async def import_kv(self, session: SessionId, state: bytes) -> int:
        value, _ = await self._requests.request("import", session, payload=state)
        return value if isinstance(value, int) else 0

    async def read_kv(self, source: KvSource, part: KvRange, form: KvForm = "exact") -> bytes:
        if isinstance(source, NamedBlocks):
            fields = b"", source.shard, source.owner, source.adapter
            names = source.names
        else:
            fields, names = (source, 0, "", ""), b""
        async with self._parts:
            _, payload = await self._requests.request(
                "read", *fields, astuple(part), form, payload=names
            )
        return bytes(payload)

    async def write_kv(self, session: SessionId, part: bytes, *, doubted: bool = False) -> int:
        async with self._parts:
            value, _ = await self._requests.request("write", session, doubted, payload=part)
        return value if isinstance(value, int) else 0

    def expect_kv(self, session: SessionId, expected: bool) -> None:
        self._requests.send(("expect", session, expected))

    async def bring_kv(
        self, session: SessionId, part: bytes, start: int, stop: int, *, doubted: bool = False
    ) -> int:
        value, _ = await self._requests.request(
            "bring", session, doubted, start, stop, payload=part
        )
        return value if isinstance(value, int) else 0

    async def fork(self, session: SessionId, into: SessionId) -> None:
        await self._requests.request("fork", session, into)

    # Implementation of `TuningEngine`.

    async def open_tuning(self, tuning: SessionId, order: OpenTuning) -> None:
        self._expect()
        await self._requests.request("tune-open", tuning, payload=pack(order))

    async def set_tensors(self, tuning: SessionId, data: Buffer) -> None:
        self._expect()
        await self._requests.request("tune-set", tuning, payload=data)

    async def tune(self, tuning: SessionId, order: PassOrder, data: Buffer) -> PassDone:
        self._expect()
        try:
            value, payload = await self._requests.request(
                "tune", tuning, astuple(order), payload=data
            )
        except trio.Cancelled:
            self._requests.send(("tune-stop", tuning, order.part))
            raise
        return parse_pass(value, payload)

    async def close_tuning(self, tuning: SessionId) -> None:
        with suppress(EngineError):  # the end of a worker frees its tunings
            await self._requests.request("tune-close", tuning)

    def _expect(self) -> None:
        """Watch the worker. Raises EngineError `worker-crashed` if it is silent."""
        if self._silent:
            raise EngineError("worker-crashed", _SILENT)
        self._watchdog.expect(self._host.now())
        self._watched.set()

    async def usage(self) -> Mapping[str, int]:
        value, _ = await self._requests.request("usage")
        if not isinstance(value, dict):
            raise EngineError("worker-crashed", "the worker answered `usage` with something else")
        return {str(key): int(number) for key, number in value.items()}


def _no_device(device: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"torch cannot use the device `{device}`, so this node holds no layers",
        "`shoal doctor` says why; `shoal config set device cpu` computes on the CPU",
    )
