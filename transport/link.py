"""The trio shell of a link: calls, posts and streams to one peer, whatever carries them.

A connection (`Path`) has one reader and one writer task. A reply wakes its caller directly; a
frame leaves from its caller's context when nothing is being written, and by the writer task
when something is. The link outlives a lost connection for a grace, in which the side that
dialled dials again (docs/spec/lane.md, section 5).
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import outcome
import trio

from . import defaults
from .budget import Budget
from .calls import Reply
from .errors import CallRefused, LinkClosed
from .events import Answered, Called, Cancelled, Ended, Opened, StreamReady
from .frame import Bytes, Priority
from .host import Host
from .lane import Lane
from .lanestream import LaneStream
from .limits import Limits
from .linkstatus import Identities, LinkStatus
from .outbox import OutCall
from .path import Path, PathLost
from .serving import (
    HANDLER_ERRORS,
    CallServer,
    Handlers,
    IncomingStream,
    StreamHandler,
    refusal_of,
    stable,
)
from .stream import Stream
from .writer import Writer

_EMPTY: Mapping[str, Any] = MappingProxyType({})


Rescue = Callable[["Link"], Awaitable[str | None]]
"""Tries once to get a lost link its connection back (by `Link.attach`, perhaps from elsewhere);
returns a code where the link must end at once."""


class Link:
    """A live connection to one peer, over whatever carries it.

    Everything here raises LinkClosed once the link has ended; `code` then says why.
    """

    def __init__(
        self,
        host: Host,
        lane: Lane,
        identities: Identities,
        *,
        limits: Limits,
        handlers: Handlers,
        budget: Budget,
        rescue: Rescue,
    ) -> None:
        self.identities = identities
        self.peer = identities.peer
        self.code: str | None = None  # why the link ended
        self.address = ("", 0)
        self._host = host
        self._lane = lane
        self._limits = limits
        self._handlers = handlers
        self._budget = budget
        self._rescue = rescue
        self._since = host.now()
        self._path: Path | None = None
        self._new = True  # not attached yet
        self._silent = False
        self.due = 0.0  # when the lane wants the next tick
        self._nursery: trio.Nursery | None = None
        self._rescue_scope: trio.CancelScope | None = None
        self._bytes_in = 0  # over connections that are gone
        self._bytes_out = 0
        self._server = CallServer(identities.peer, lane, handlers, limits, self._answers_wait)
        self._calls: set[OutCall] = set()
        self._changed = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._writer = Writer(host, lane, self._wake_senders)
        self._on: dict[type, Callable[[Any], None]] = {
            Called: self._on_called,
            Answered: self._on_answered,
            Cancelled: self._on_cancelled,
            Opened: self._on_opened,
            StreamReady: self._on_stream_ready,
            Ended: self._on_ended,
        }

    # What everybody uses.

    @property
    def alive(self) -> bool:
        """Whether calls may still be made."""
        return self.code is None

    @property
    def connected(self) -> bool:
        """Whether a connection carries it, or is just about to; without one it is in its grace."""
        return self._path is not None or self._new

    @property
    def status(self) -> LinkStatus:
        """Figures for a person."""
        path = self._path
        return LinkStatus(
            rtt=self._lane.rtt,
            bytes_in=self._bytes_in + (path.bytes_in if path else 0),
            bytes_out=self._bytes_out + (path.bytes_out if path else 0),
            address=self.address,
            since=self._since,
            path="direct",
            dialled=self.identities.dialled,
            incarnation=self.identities.incarnation,
            peer_incarnation=self.identities.peer_incarnation,
            admitted=self.identities.admitted,
            posts_refused=self._server.posts_refused,
        )

    async def call(
        self,
        method: str,
        header: Mapping[str, Any] = _EMPTY,
        payload: Bytes = b"",
        *,
        priority: Priority = Priority.CONTROL,
        timeout: float,
    ) -> Reply:
        """Ask the peer and wait for its reply, at most `timeout` seconds.

        Raises CallRefused (the peer's code; `timeout`; `too-large` for a payload over
        `Limits.message_bytes` or a header over 32 KiB) and LinkClosed. A call that was cut by
        a lost connection goes on over the next; the peer executes it once at most.
        """
        payload = self._checked(payload)
        with trio.move_on_after(timeout):
            while self._lane.outbox.backlog > self._limits.backlog_bytes:
                await self._room.park()
                self._check_alive()
            return _unwrap(await self._answer_to(method, header, payload, priority), method)
        raise CallRefused("timeout", f"`{method}` had no answer within {timeout:g} s")

    def post(
        self,
        method: str,
        header: Mapping[str, Any] = _EMPTY,
        payload: Bytes = b"",
        *,
        priority: Priority,
    ) -> None:
        """A call whose answer nobody awaits; never blocks.

        Posts of one link and priority are delivered in order, each once at most. Raises
        CallRefused (`too-large`) and LinkClosed. A peer that takes nothing while twice
        `Limits.backlog_bytes` wait loses the link (`backlog`).
        """
        payload = self._checked(payload)
        try:
            self._lane.post(method, header, payload, priority)
        except ValueError as error:
            raise CallRefused("too-large", str(error)) from None
        self._writer.wake()  # not from here: more posts may follow, and leave with this one
        self._account()

    async def open_stream(
        self, method: str, header: Mapping[str, Any] = _EMPTY, *, priority: Priority = Priority.BULK
    ) -> "Stream":
        """Open a stream to the peer's handler. Raises CallRefused (`busy`, `too-large`),
        LinkClosed. A peer without that handler resets the stream (`unknown-method`)."""
        await trio.lowlevel.checkpoint()
        self._check_alive()
        try:
            core = self._lane.open(method, header, priority)
        except ValueError as error:
            raise CallRefused("too-large", str(error)) from None
        if core is None:
            raise CallRefused("busy", "the peer allows no more streams")
        self._flush()
        return self._adopt(core)

    def close(self, code: str = "closed", message: str = "") -> None:
        """End the link now; the peer is told the code if its connection takes it."""
        self._lane.go_away(code, message)
        self._end(code)

    # The life of the link.

    async def run(
        self,
        path: Path,
        early: bytes,
        up: Callable[[], None],
    ) -> None:
        """Carry the link until it ends. `early` is plaintext that came behind the hello; `up`
        is called once calls may be made."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.attach(path, early)
                up()
                await self._tend()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self.close()

    def attach(self, path: Path, early: bytes) -> None:
        """A connection, proven to be the peer's, carries the link from now on."""
        if self._nursery is None or not self.alive:
            path.close()
            return
        self._drop_path()
        self._path = path
        self._new = self._silent = False
        self.address = path.address
        self.due = self._host.now()
        self._lane.attach(self.due)
        if self._rescue_scope is not None:
            self._rescue_scope.cancel()
        self._nursery.start_soon(self._serve, path, early)
        self._changed.unpark_all()

    def tick(self, now: float) -> None:
        """Ping a peer that is quiet, or find it silent. Called once `due` is over, by one
        task for all links: a timer of its own would wake each of them a few times a second."""
        if self._path is None:
            return
        self.due = self._lane.tick(now)
        if self._lane.is_silent(now):
            self._silent = True
            self._drop_path()
        elif self._lane.outbox.has_output:
            self._flush()

    async def _tend(self) -> None:
        """See to the grace after a lost connection, each time one is lost."""
        while self.alive:
            if self._path is None:
                await self._restore()
            else:
                self._flush()
                await self._changed.park()

    async def _restore(self) -> None:
        end = max(self._lane.heard + self._limits.grace_s, self._host.now() + defaults.RESTORE_S)
        with trio.move_on_at(end) as scope:
            self._rescue_scope = scope
            while self._path is None and self.alive:
                code = await self._rescue(self)
                if code is not None:
                    self.close(code)
                    break
                if self._path is None:
                    with trio.move_on_after(defaults.REDIAL_S):
                        await self._changed.park()
        self._rescue_scope = None
        if self._path is None and self.alive:
            self.close("silent" if self._silent else "unreachable")

    async def _serve(self, path: Path, early: bytes) -> None:
        """Read and write one connection until it is lost or replaced."""
        stopping = True
        try:
            with path.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._writer.run, path)
                    await self._read(path, early)
                    nursery.cancel_scope.cancel()
            stopping = False
        finally:
            if stopping:  # cancelled from above: there is still a connection to say so on
                self.close()
            if path.finished:
                await path.linger()
            path.close()
            if self._path is path:
                self._drop_path()

    def _drop_path(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            self._bytes_in += path.bytes_in
            self._bytes_out += path.bytes_out
            path.close()
            self._lane.detach()
            self._writer.reset()
            self._changed.unpark_all()

    def _end(self, code: str) -> None:
        """The link is over: say so to everybody who waits, here and at the other end."""
        if not self.alive:
            return
        self.code = code
        self._say_goodbye()
        self._drop_path()
        self._budget.drop(self)
        for call in list(self._calls):
            self._wake(call, outcome.Error(self._closed()))
        for core in self._lane.streams.values():
            if core.context is not None:
                core.context.wake()
        self._room.unpark_all()
        self._changed.unpark_all()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def _say_goodbye(self) -> None:
        path = self._path
        if path is None or path.blocked or not (last_words := self._lane.take(1 << 16)):
            return
        with suppress(PathLost):
            path.send(last_words)
            path.finish()
            self._path = None  # `_serve` closes it
            self._lane.detach()

    # Reading.

    async def _read(self, path: Path, early: bytes) -> None:
        data = early
        try:
            while True:
                if data:
                    began = self._host.now()
                    self._take_in(data, began)
                    if self._host.now() - began > defaults.TURN_S:
                        path.read_less()
                if self._path is not path:
                    return
                data = await path.receive()
                if not data:
                    return
        except PathLost:
            return

    def _take_in(self, data: bytes, now: float) -> None:
        backlog = self._lane.outbox.backlog
        for event in self._lane.receive(data, now):
            if self.code is not None:
                return
            self._on[type(event)](event)
        if self._lane.outbox.has_output:
            self._writer.flush(self._path, at_once=True)
        if backlog > self._limits.backlog_bytes >= self._lane.outbox.backlog:
            self._room.unpark_all()
        self._account()

    def _account(self) -> None:
        if self.alive:
            if self._lane.outbox.backlog > 2 * self._limits.backlog_bytes:
                self.close("backlog")
                return
            self._budget.set(self, self._lane.held + self._server.bytes)

    def _on_called(self, event: Called) -> None:
        if self._nursery is not None:
            self._server.serve(event, self._nursery)

    def _on_answered(self, event: Answered) -> None:
        self._wake(event.call, outcome.Value(event))

    def _on_cancelled(self, event: Cancelled) -> None:
        self._server.cancel(event.ident)

    def _on_opened(self, event: Opened) -> None:
        stream = self._adopt(event.stream)
        handler = self._handlers.streams.get(event.method)
        if handler is None or self._nursery is None:
            stream.reset("unknown-method")
            return
        incoming = IncomingStream(self.peer, event.header, stream)
        self._nursery.start_soon(self._serve_stream, handler, incoming)

    async def _serve_stream(self, handler: StreamHandler, incoming: IncomingStream) -> None:
        code = "closed"
        try:
            await handler(incoming)
        except* HANDLER_ERRORS as errors:
            code = refusal_of(errors).code
        incoming.stream.reset(code)

    def _on_stream_ready(self, event: StreamReady) -> None:
        if event.stream.context is not None:
            event.stream.context.wake()

    def _on_ended(self, event: Ended) -> None:
        self._end(event.code)

    # Writing.

    def _flush(self) -> None:
        self._writer.flush(self._path)

    def _wake_senders(self) -> None:
        for core in self._lane.streams.values():
            if core.context is not None:
                core.context.wake_sender()

    def _answers_wait(self) -> None:
        self._flush()
        self._account()

    # Calls in flight.

    async def _answer_to(
        self, method: str, header: Mapping[str, Any], payload: Bytes, priority: Priority
    ) -> Answered:
        try:
            call = self._lane.call(method, header, payload, priority)
        except ValueError as error:
            raise CallRefused("too-large", str(error)) from None
        self._flush()
        self._account()
        self._check_alive()
        call.context = trio.lowlevel.current_task()
        self._calls.add(call)

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._calls.discard(call)
            if self.alive:
                self._lane.give_up(call)
                self._writer.wake()
            return trio.lowlevel.Abort.SUCCEEDED

        answered: Answered = await trio.lowlevel.wait_task_rescheduled(abort)
        return answered

    def _wake(self, call: OutCall, result: outcome.Outcome[Any]) -> None:
        if call in self._calls:
            self._calls.discard(call)
            trio.lowlevel.reschedule(call.context, result)

    def _adopt(self, core: LaneStream) -> "Stream":
        stream = core.context = Stream(
            self._lane,
            core,
            flush=self._flush,
            ended=lambda: None if self.alive else self._closed(),
        )
        return stream

    def _checked(self, payload: Bytes) -> Bytes:
        self._check_alive()
        try:
            return stable(payload, self._limits.message_bytes)
        except ValueError as error:
            raise CallRefused("too-large", str(error)) from None

    def _check_alive(self) -> None:
        if self.code is not None:
            raise self._closed()

    def _closed(self) -> LinkClosed:
        return LinkClosed(self.code or "closed", f"the link to {self.peer} ended ({self.code})")


def _unwrap(answered: Answered, method: str) -> Reply:
    if answered.code is not None:
        words = answered.message or answered.code
        raise CallRefused(answered.code, f"the peer refused `{method}`: {words}")
    return Reply(answered.header, answered.payload, answered.priority)
