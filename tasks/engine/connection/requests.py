"""Requests to a worker process, whose replies arrive as frames, and frames without a reply."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import trio

from ....transport.host.seam import Host
from .. import defaults
from ..errors import EngineError
from ..wire import Buffer, Header, WireClosed, WireError
from .starting import WorkerConnection


@dataclass(slots=True)
class _Reply:
    """Reply to a request, pending until `done` is set."""

    name: str  # of the request
    done: trio.Event = field(default_factory=trio.Event)
    value: object = None
    payload: memoryview = field(default_factory=lambda: memoryview(b""))
    error: EngineError | None = None


class WorkerRequests:
    """Requests to the present worker, if there is one."""

    def __init__(self, host: Host, waits: Callable[[str, int], None], gone: EngineError) -> None:
        """`waits` is called with the name of each request that begins (1) or ends (-1). `gone` is
        the error of a request while there is no worker."""
        self._host = host
        self._waits = waits
        self._gone = gone
        self._replies: dict[int, _Reply] = {}
        self._numbers = count(1)
        self._blocked = trio.Event()  # set when the socket did not accept everything
        self.channel: WorkerConnection | None = None
        """The connection to the worker, or None while none is ready."""

    def begin(self, channel: WorkerConnection) -> None:
        """Send to a worker that is ready."""
        self.channel = channel
        self._blocked = trio.Event()

    def end(self, error: EngineError) -> None:
        """Fail all requests, and those that come before the next worker is ready."""
        self.channel, self._gone = None, error
        for reply in self._replies.values():
            reply.error = error
            reply.done.set()

    def refuse(self, which: Callable[[str], bool], error: EngineError) -> None:
        """Fail the requests with some names."""
        for reply in self._replies.values():
            if which(reply.name):
                reply.error = error
                reply.done.set()

    def next_number(self) -> int:
        """Return a number for a request whose reply is ignored."""
        return next(self._numbers)

    async def write(self, channel: WorkerConnection) -> None:
        """Send queued frames whenever the socket did not accept everything at once."""
        with suppress(WireClosed):  # the reader notices this too
            while True:
                await self._blocked.wait()
                self._blocked = trio.Event()
                while not channel.flush():
                    await channel.wait_writable()

    def replied(self, header: Header, payload: memoryview) -> None:
        """Complete the pending request that this frame answers. Raises WireError if it is
        malformed."""
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

    async def request(
        self, name: str, *fields: object, payload: Buffer = b""
    ) -> tuple[object, memoryview]:
        """Send a request and return (value, payload) of its reply. Raises EngineError if it is
        refused."""
        if self.channel is None:
            raise self._gone
        number = next(self._numbers)
        reply = self._replies[number] = _Reply(name)
        self._waits(name, 1)
        try:
            if len(payload) > defaults.THREAD_BYTES:
                await self._send_large((name, number, *fields), payload)
            else:
                self.send((name, number, *fields), payload)
            await reply.done.wait()
        finally:
            self._waits(name, -1)
            del self._replies[number]
        if reply.error is not None:
            raise reply.error
        return reply.value, reply.payload

    def send(self, header: Header, payload: Buffer = b"") -> None:
        """Send as much as the socket accepts now, and leave the rest to the writer task.

        Raises EngineError `too-large` if the frame exceeds a limit.
        """
        channel = self.channel
        if channel is None:  # the crash has failed the session already
            return
        try:
            channel.put(header, payload)
        except WireError as error:
            raise EngineError("too-large", str(error)) from None
        self._flush(channel)

    async def _send_large(self, header: Header, payload: Buffer) -> None:
        """Send as `send` does, but let a thread copy the payload, which takes 1 ms a megabyte."""
        channel = self.channel
        assert channel is not None  # the caller has looked
        try:
            await self._host.offload(channel.put, header, payload)
        except WireError as error:
            raise EngineError("too-large", str(error)) from None
        if self.channel is not channel:
            channel.close()  # again: the worker has ended meanwhile, and the copy is left
            return
        self._flush(channel)

    def _flush(self, channel: WorkerConnection) -> None:
        """Send as much as the socket accepts now."""
        try:
            if not channel.flush():
                self._blocked.set()
        except WireClosed:
            return  # the reader notices this too and ends the sessions
