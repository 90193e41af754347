"""The control socket, over which commands on this machine send requests to their daemon.

The control socket is a Unix socket that only this user can open. Each connection carries
one request, which is a line of JSON. Specified in docs/spec/control.md.
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
from .messages.models import BytesDone

Emit = Callable[[View], Awaitable[None]]
Operation = Callable[[Object, Emit], Awaitable[View]]
Asked = TypeVar("Asked", bound=Ask[object, object])

# Exceptions that a stream raises once the client has disconnected.
CLIENT_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


def operation(
    ask: type[Asked], answer: Callable[[Asked, Emit], Awaitable[View]]
) -> tuple[str, Operation]:
    """Return (name of an operation, function that runs it). The function decodes the request as an
    `ask`, and passes it to `answer`."""

    async def run(request: Object, emit: Emit) -> View:
        return await answer(decode(ask, request), emit)

    return ask.op, run


class ControlServer:
    """Server of the control socket.

    Passes each request to the operation of that name, together with a function that sends events.
    Replies to at most CONTROL_CONNECTIONS clients at once, and refuses the others.
    """

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
        """Listen until cancelled.

        `nursery.start` returns the path of the socket, which is removed at the end. Raises
        NodeError `disk` if the socket cannot be created.
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
    """One connection of a client. Reads the request, runs the operation as long as the client is
    connected, and replies."""

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
        """Run the operation and send its result. If the client disconnects or sends anything more,
        the operation is cancelled."""
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
        """Send an event. If the client has disconnected, cancel the operation instead of raising an
        error in it."""
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
    """Return the error for a request whose operation ran into a bug of this program. Such a bug is
    usually triggered by what a peer has sent."""
    return ControlError(MISHAP, "the daemon ran into a bug", hint="`shoal status` shows it")


async def encoded(view: View) -> str:
    """Return a reply as JSON.

    The items of its lists are encoded in small steps, between which other tasks run, because a
    reply about a large swarm has thousands of items.
    """
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
    """Return the JSON object on a line, which has a text `op`. Raises ControlError if the line is
    anything else."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        raise ControlError("bad-request", "the request is not a JSON object with an `op`")
    return request


def describe(error: ShoalError) -> Failure:
    """Convert an error to its form in the control protocol."""
    code = getattr(error, "code", None) or "failed"
    return Failure(str(code), error.message, error.hint)


def only_shoal_error(group: BaseExceptionGroup[BaseException]) -> ShoalError:
    """Return the first error of a group in which all errors are ShoalErrors. Reraise any other
    group."""
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
    """Yield a callback that emits progress: it takes the bytes done and in total.

    If the client reads slowly, intermediate values are dropped.
    """
    send, receive = trio.open_memory_channel[tuple[int, int]](1)

    def note(done: int, total: int) -> None:
        with suppress(trio.WouldBlock):
            send.send_nowait((done, total))

    async def pass_on() -> None:
        async for done, total in receive:
            await emit(BytesDone(done, total))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on)
            yield note
            send.close()
    except BaseExceptionGroup as group:  # so that the operation can catch a single ShoalError
        raise only_shoal_error(group) from None
