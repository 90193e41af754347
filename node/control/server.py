"""The control socket, over which commands on this machine talk to their daemon.

A Unix socket that only this user can open. Each connection carries one request as a line of
JSON. Specified in docs/spec/control.md.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import trio
from trio import TaskStatus

from ...transport.errors import MISHAP, ShoalError
from ...transport.guard import Guard
from ...transport.host.seam import Host
from .. import defaults
from ..errors import ControlError
from ..folder import disk_errors
from ..settings.config import DataFolder
from .messages.encoding import Ask, Failure, Object, View, decode, encode, entries, plain
from .messages.models import Progress

Emit = Callable[[View], Awaitable[None]]
Operation = Callable[[Object, Emit], Awaitable[View]]
Asked = TypeVar("Asked", bound=Ask[object, object])

CLIENT_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


def operation(
    ask: type[Asked], answer: Callable[[Asked, Emit], Awaitable[View]]
) -> tuple[str, Operation]:
    """Return the name of an operation, and the operation: it decodes a request, then answers it."""

    async def run(request: Object, emit: Emit) -> View:
        return await answer(decode(ask, request), emit)

    return ask.op, run


class ControlServer:
    """Answers control requests by name. Each operation gets the request and emits events."""

    def __init__(
        self,
        host: Host,
        folder: DataFolder,
        operations: Mapping[str, Operation],
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard or Guard()
        self._host = host
        self._folder = folder
        self.operations = operations
        self.clients = 0  # current connections

    async def run(self, *, task_status: TaskStatus[Path] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled. Starts with the path of the socket, and removes it at the end.

        Raises NodeError `disk`.
        """
        path = self._folder.control_socket
        with disk_errors(self._folder):
            listener = await self._host.listen_local(path)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(trio.serve_listeners, self._serve, [listener])
                task_status.started(path)
        finally:
            with trio.CancelScope(shield=True):
                with suppress(OSError):  # the next start replaces a file that stays behind
                    await self._host.offload(self._host.files.remove, path)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.clients += 1
        try:
            with suppress(*CLIENT_GONE):
                await _Client(stream, self.operations, self._guard).answer(self.clients)
        finally:
            self.clients -= 1
            with trio.CancelScope(shield=True), suppress(*CLIENT_GONE):
                await stream.aclose()


class _Client:
    """One connection: reads the request, runs it while the client listens, and replies."""

    def __init__(
        self, stream: trio.SocketStream, operations: Mapping[str, Operation], guard: Guard
    ) -> None:
        self._guard = guard
        self._stream = stream
        self._operations = operations
        self._scope = trio.CancelScope()

    async def answer(self, clients: int) -> None:
        try:
            request = parse_request(await self._request_line())
            if clients > defaults.CONTROL_CONNECTIONS:
                raise ControlError("busy", f"more than {clients - 1} commands at once")
            name = str(request["op"])
            operation = self._operations.get(name)
            if operation is None:
                raise ControlError(
                    "unknown-op",
                    f"the daemon has no operation {name[:32]!a}",
                    hint="the daemon may be of another version: stop it and start it again",
                )
            await self._run(name, operation, request)
        except ShoalError as error:
            await self._send({"error": encode(describe(error))})

    async def _request_line(self) -> bytes:
        line = bytearray()
        with trio.move_on_after(defaults.CONTROL_REQUEST_TIMEOUT):
            while b"\n" not in line:
                piece = await self._stream.receive_some(65536)
                if not piece:
                    raise trio.ClosedResourceError
                line += piece
                if len(line) > defaults.CONTROL_REQUEST_LIMIT:
                    raise ControlError(
                        "too-large",
                        f"the request is longer than {defaults.CONTROL_REQUEST_LIMIT} bytes",
                        hint="make the prompt shorter",
                    )
            return bytes(line[: line.index(b"\n")])
        raise ControlError("timeout", "no request arrived")

    async def _run(self, name: str, operation: Operation, request: Object) -> None:
        """Run the operation. Cancel it if the client disconnects or sends anything else."""
        result: View | None = None
        failure: ShoalError | None = None
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            nursery.start_soon(self._cancel_when_gone)
            try:
                with self._guard.around(f"the request `{name}`", instead=_mishap):
                    result = await operation(request, self._emit)
            except ShoalError as error:
                failure = error
            except BaseExceptionGroup as group:
                failure = only_shoal_error(group)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if result is not None:
            await self._send_line(f'{{"ok": {await encoded(result)}}}')

    async def _cancel_when_gone(self) -> None:
        with suppress(*CLIENT_GONE):
            await self._stream.receive_some(1)
        self._scope.cancel()

    async def _emit(self, event: View) -> None:
        """Send an event. The operation sees a disconnected client only as a cancellation."""
        try:
            await self._send(encode(event))
        except CLIENT_GONE:
            self._scope.cancel()
            await trio.sleep_forever()

    async def _send(self, message: Object) -> None:
        await self._send_line(json.dumps(message))

    async def _send_line(self, line: str) -> None:
        with trio.move_on_after(defaults.CONTROL_WRITE_TIMEOUT):
            await self._stream.send_all(line.encode() + b"\n")
            return
        raise trio.BrokenResourceError("the client does not read the reply")


def _mishap() -> ControlError:
    """Return the error for a command that ran into a bug, usually in handling what peers send."""
    return ControlError(MISHAP, "the daemon ran into a bug", hint="`shoal status` shows it")


async def encoded(view: View) -> str:
    """Encode a reply as JSON, and let other tasks run between the items of its lists, of which a
    large swarm makes thousands."""
    texts = []
    for name, value in entries(view):
        if isinstance(value, (list, tuple)):
            items = []
            for number, each in enumerate(value, 1):
                items.append(json.dumps(plain(each)))
                if number % defaults.CONTROL_STEP == 0:
                    await trio.lowlevel.checkpoint()
            text = f"[{', '.join(items)}]"
        else:
            text = json.dumps(plain(value))
        texts.append(f"{json.dumps(name)}: {text}")
    return f"{{{', '.join(texts)}}}"


def parse_request(line: bytes) -> Object:
    """Return a request: a JSON object with a text `op`. Raises ControlError."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        raise ControlError("bad-request", "the request is not a JSON object with an `op`")
    return request


def describe(error: ShoalError) -> Failure:
    """Return an error in the form of the control protocol."""
    code = getattr(error, "code", None) or "failed"
    return Failure(str(code), error.message, error.hint)


def only_shoal_error(group: BaseExceptionGroup[BaseException]) -> ShoalError:
    """Return the first error of a group that holds only ShoalErrors. Reraise any other group."""
    ours, rest = group.split(ShoalError)
    if ours is None or rest is not None:
        raise group
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ShoalError)
    return error


@asynccontextmanager
async def progress_to(emit: Emit) -> AsyncIterator[Callable[[int, int], None]]:
    """Yield a callback for progress. A client that reads slowly gets only the latest values."""
    send, receive = trio.open_memory_channel[tuple[int, int]](1)

    def note(done: int, total: int) -> None:
        with suppress(trio.WouldBlock):
            send.send_nowait((done, total))

    async def pass_on() -> None:
        async for done, total in receive:
            await emit(Progress(done, total))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on)
            yield note
            send.close()
    except BaseExceptionGroup as group:  # so that the operation can catch a single ShoalError
        raise only_shoal_error(group) from None
