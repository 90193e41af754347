"""The trio shell of a link: calls, posts and streams to one peer over changing paths.

Outgoing frames go through the lane to the path in use (`paths.py`). A frame is written in its
caller's context if nothing is being written, otherwise by the writer task. Incoming bytes of any
path go through the lane and become a reply for a caller (`callers.py`), a call for a handler, or
bytes of a stream. The link outlives its last path for a grace period (`grace.py`).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import trio

from .. import defaults
from ..bytestream import PathKind
from ..errors import MISHAP, CallRefused, LinkClosed
from ..handshake.meeting import Identities
from ..handshake.secured import PathLost, SecureStream
from ..host.datagrams import Place
from ..identity import PeerId
from ..lane.events import Answered, Called, Cancelled, Ended, Opened, StreamReady
from ..lane.frame import Bytes, Priority
from ..lane.lane import Lane
from ..lane.outbox import OutCall
from .callers import Callers
from .calls import Reply
from .grace import Grace
from .path import LinkPath
from .paths import LinkPaths
from .serving import CallServer, stable
from .shared import Shared
from .status import LinkStatus
from .stream import Stream
from .streams import Streams

_EMPTY: Mapping[str, object] = MappingProxyType({})


class LinkOwner(Protocol):
    """The owner of a node's links, as one of them needs it (`Links`)."""

    async def rescue(self, link: "Link") -> str | None:
        """Try to get a new path for a link that has lost all (by `Link.attach`, perhaps called
        elsewhere) until cancelled. Return a code if the link must end at once."""
        ...

    def is_held(self, peer: PeerId) -> bool:
        """Return whether a component needs the link to this peer although nothing is open."""
        ...

    def is_watched(self, peer: PeerId) -> bool:
        """Return whether a component waits for the peer, so that its link must not `rest`."""
        ...

    def expire_by(self, at: float) -> None:
        """Call `Link.expire` at this time, on the host's clock, or earlier."""
        ...

    def tick_soon(self, link: "Link") -> None:
        """Call `Link.tick` earlier than planned, because `Link.due` is earlier now."""
        ...

    def fell_quiet(self, link: "Link") -> None:
        """Hear that the peer has been silent for so long that nothing new should be sent to it."""
        ...

    def came_back(self, link: "Link") -> None:
        """Hear that the peer of a quiet link has been heard again."""
        ...

    def doubted(self, link: "Link", doubtful: bool) -> None:
        """Hear that the search for a path has begun (true) or ended (false)."""
        ...

    def found_path(self, link: "Link", path_kind: PathKind, medium: str) -> None:
        """Hear of a new path."""
        ...

    def kept(self, link: "Link") -> None:
        """Hear, once for each link, that a component wants to keep it."""
        ...


class Link:
    """A live connection to one peer, over whichever path carries it.

    All methods raise LinkClosed once the link has ended; `code` then says why.
    """

    def __init__(
        self,
        shared: Shared,
        lane: Lane,
        identities: Identities,
        owner: LinkOwner,
        *,
        brief: bool = False,
    ) -> None:
        self.identities = identities
        self.brief = brief
        """Whether this side dialled it for a few questions only, and may end it after them."""
        self.peer = identities.peer
        self.code: str | None = None  # why the link ended
        self._host = shared.host
        self._guard = shared.guard
        self._lane = lane
        self._limits = shared.limits
        self._budget = shared.budget
        self._owner = owner
        self._kept = False
        self._needed = False
        self._doubted = False  # whether the owner knows of a doubt that still lasts
        self._since = self._host.now()
        self._nursery: trio.Nursery | None = None
        self._changed = trio.lowlevel.ParkingLot()  # wakes `_tend`
        handlers = shared.handlers
        self._server = CallServer(self.peer, lane, handlers, self._limits, self._answers_wait)
        self._streams = Streams(self.peer, lane, handlers, flush=self._flush, ended=self._ended)
        self._paths = LinkPaths(shared, lane, self)
        self._callers = Callers(
            lane,
            self._limits.backlog_bytes,
            alarm=owner.expire_by,
            gave_up=self._wake_writer,
            ended=self._ended,
        )
        self._grace = Grace(shared, self._paths, self)

    # Used by other components.

    @property
    def alive(self) -> bool:
        """Whether calls may still be made."""
        return self.code is None

    @property
    def connected(self) -> bool:
        """Whether a path carries the link, or is about to. Without one it is in its grace
        period."""
        return self._paths.connected

    @property
    def quiet(self) -> bool:
        """Whether the peer has been silent for `Limits.quiet_s`, without a connection."""
        return self._grace.quiet

    @property
    def broken(self) -> bool:
        """Whether the last path was closed by the other end, not lost in silence."""
        return self._paths.broken

    @property
    def address(self) -> Place:
        """The far end of the path in use, or of the last one."""
        return self._paths.address

    @property
    def due(self) -> float:
        """When a path wants the next tick."""
        return self._paths.due

    @property
    def prompt(self) -> bool:
        """Whether the next tick must not be late, because frames are in flight."""
        path = self._paths.used
        return path is not None and path.connection.unacknowledged

    @property
    def path_kind(self) -> PathKind | None:
        """The kind of the path in use; None if no path carries the link."""
        path = self._paths.used
        return path.path_kind if path is not None else None

    @property
    def is_long(self) -> bool:
        """Whether the round trip is so long that UDP serves better than TCP."""
        return self._paths.is_long

    @property
    def carried(self) -> int:
        """Bytes sent and received so far."""
        return self._paths.bytes_in + self._paths.bytes_out

    @property
    def udp_place(self) -> Place | None:
        """Where the peer's UDP port should be (`LinkPaths.udp_place`)."""
        return self._paths.udp_place

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """Where the peer was last seen without a relay (`LinkPaths.places`)."""
        return self._paths.places

    @property
    def status(self) -> LinkStatus:
        """The link's status, to be shown to a person."""
        path = self._paths.used
        return LinkStatus(
            rtt=path.connection.rtt if path else None,
            bytes_in=self._paths.bytes_in,
            bytes_out=self._paths.bytes_out,
            address=self.address,
            since=self._since,
            path=path.path_kind.value if path else "none",
            paths=self._paths.statuses(),
            dialled=self.identities.dialled,
            incarnation=self.identities.incarnation,
            peer_incarnation=self.identities.peer_incarnation,
            admitted=self.identities.admitted,
            posts_refused=self._server.posts_refused,
        )

    async def call(
        self,
        method: str,
        header: Mapping[str, object] = _EMPTY,
        payload: Bytes = b"",
        *,
        priority: Priority = Priority.CONTROL,
        timeout: float,
    ) -> Reply:
        """Call the peer and wait for its reply, at most `timeout` seconds.

        Raises CallRefused (the peer's code; `timeout`; `too-large` for a payload over
        `Limits.message_bytes` or a header over 32 KiB) and LinkClosed. A call that is interrupted
        by a lost connection continues over the next one. The peer executes it at most once.
        """
        payload = self._checked(payload)
        now = self._host.now()
        deadline = now + timeout
        answered = None
        full = self._lane.outbox.backlog > self._limits.backlog_bytes
        if not full or await self._callers.room(deadline):
            call = self._ask(method, header, payload, priority, None if full else now)
            answered = await self._callers.answer(call, deadline)
        if answered is None:
            raise CallRefused("timeout", f"`{method}` had no reply within {timeout:g} s")
        return _unwrap(answered, method)

    def post(
        self,
        method: str,
        header: Mapping[str, object] = _EMPTY,
        payload: Bytes = b"",
        *,
        priority: Priority,
        later: bool = False,
    ) -> None:
        """Send a call that needs no reply; never blocks. With `later` it may wait up to a second
        for another frame to leave with.

        Posts of one link and priority are delivered in order, each at most once. Raises
        CallRefused (`too-large`) and LinkClosed. If the peer takes nothing while twice
        `Limits.backlog_bytes` wait, the link ends (`backlog`).
        """
        payload = self._checked(payload)
        with self._guard.around(self.peer, self._fail, instead=self._closed):
            try:
                self._lane.post(method, header, payload, priority)
            except ValueError as error:
                raise CallRefused("too-large", str(error)) from None
            if later:
                self._paths.flush_by(self._host.now() + defaults.LATER_S)
            else:
                self._wake_writer()  # not `flush`: more posts may follow, and leave with this one
            self._account()

    async def open_stream(
        self,
        method: str,
        header: Mapping[str, object] = _EMPTY,
        *,
        priority: Priority = Priority.BULK,
    ) -> "Stream":
        """Open a stream to the peer's handler. Raises CallRefused (`busy`, `too-large`),
        LinkClosed. A peer without that handler resets the stream (`unknown-method`)."""
        await trio.lowlevel.checkpoint()
        self._check_alive()
        with self._guard.around(self.peer, self._fail, instead=self._closed):
            return self._streams.open(method, header, priority)

    def keep(self) -> None:
        """Mark the link as wanted for longer than a few questions."""
        self.brief = False
        if not self._kept:
            self._kept = True
            self._owner.kept(self)

    @property
    def needed(self) -> bool:
        """Whether a component uses it, or has used it, for more than the upkeep of the network."""
        return self._needed or self._owner.is_held(self.peer)

    def need(self) -> None:
        """Mark it as used for more than the upkeep of the network."""
        self._needed = True

    @property
    def turns(self) -> int:
        """Calls, posts and streams that either side has begun. If the number does not change, the
        link is unused."""
        return self._lane.turns

    @property
    def busy(self) -> bool:
        """Whether calls or streams of either side are open."""
        return bool(self._callers.waiting) or self.at_stake

    def close(self, code: str = "closed", message: str = "") -> None:
        """End the link now. The peer is told the code if a connection still works."""
        self._lane.go_away(code, message)
        self._end(code)

    def _fail(self) -> None:
        self.close(MISHAP)

    # The link's life.

    async def run(
        self,
        secured: SecureStream,
        path_kind: PathKind,
        early: bytes,
        up: Callable[[], None],
    ) -> None:
        """Carry the link until it ends. `early` is plaintext that was received after the hello.
        `up` is called once calls may be made."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.attach(secured, path_kind, early)
                up()
                await self._tend()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self.close()

    def attach(self, secured: SecureStream, path_kind: PathKind, early: bytes) -> None:
        """Add an authenticated path. It carries the link if no other path is better."""
        if self._nursery is None or not self.alive:
            secured.close()
            return
        path = self._paths.attach(secured, path_kind)
        if not secured.tls.server:  # as a listener wait for bytes: the peer may still drop its dial
            self._grace.found()
        self._owner.found_path(self, path_kind, secured.medium)
        self._nursery.start_soon(self._serve, path, early)
        self.look_again()

    def look(self) -> None:
        """Ping over every path, because the network may have changed."""
        self._paths.look()

    def rest(self, seconds: float) -> None:
        """Set the seconds of silence until a ping, while no component here waits for the peer.

        That is for peers that other peers watch and whose end they report. 0 restores the usual
        time.
        """
        self._paths.rest(seconds)

    def tick(self, now: float) -> None:
        """Ping a quiet peer, and drop silent paths. Called once `due` has passed, by one task for
        all links: a timer for each would wake it a few times a second."""
        self._paths.tick(now)
        if not self._grace.under_way and self._paths.is_suspect(now):
            self.look_again()

    async def _tend(self) -> None:
        """Run the grace period each time that the last path is lost or in doubt."""
        while self.alive:
            if self._paths.missing or self._paths.is_suspect(self._host.now()):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._doubt)
                    await self._grace.run()
                    nursery.cancel_scope.cancel()
                if self.alive and self._doubted:
                    self._doubted = False
                    self._owner.doubted(self, False)
            else:
                self._paths.flush()
                await self._changed.park()

    async def _doubt(self) -> None:
        """Report that the peer is in doubt, at once if the last path is lost.

        If there is a path but the peer is silent, wait as long as for other paths to count as
        silent, because relays are slow at times. If a relay has ended an exhausted circuit, the
        peer is most likely alive, and a new circuit is open within a second.
        """
        if not self._paths.missing:
            silence = self._host.now() - self._lane.heard
            await trio.sleep(max(0.0, self._limits.silent_s - silence))
        elif self._paths.lapsed:
            await trio.sleep(defaults.LAPSED_S)
        self._doubted = True
        self._owner.doubted(self, True)

    # Used by its paths and its grace period.

    def look_again(self) -> None:
        """Check whether the link needs a new path."""
        self._changed.unpark_all()

    @property
    def at_stake(self) -> bool:
        """Whether a caller here or at the peer would miss the link."""
        return self._server.busy or self._lane.at_stake or self._owner.is_held(self.peer)

    @property
    def attended(self) -> bool:
        """Whether a component waits for the peer, so that its silence must be noticed at once."""
        return self.busy or self._owner.is_watched(self.peer)

    def tick_soon(self) -> None:
        """Have `tick` called earlier than planned."""
        self._owner.tick_soon(self)

    def wrote(self) -> None:
        """Wake the senders of streams, because bytes have left."""
        self._streams.sent()

    async def rescue(self) -> str | None:
        """Search for a new path until cancelled, or return the code to end the link with."""
        return await self._owner.rescue(self)

    def fell_quiet(self) -> None:
        """Report that the peer has been silent for `Limits.quiet_s`."""
        self._owner.fell_quiet(self)

    def came_back(self) -> None:
        """Report that the quiet peer has been heard again."""
        self._owner.came_back(self)

    async def _serve(self, path: LinkPath, early: bytes) -> None:
        """Read and write one connection until it is lost or replaced."""
        stopping, secured = True, path.secured
        try:
            with secured.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(path.writer.run)
                    await self._read(path, early)
                    nursery.cancel_scope.cancel()
            stopping = False
        finally:
            if stopping:  # cancelled from above: a connection is left on which to tell the peer
                self.close()
            if secured.finished:
                await secured.linger()
            secured.close()
            self._paths.lose(path)

    def _end(self, code: str) -> None:
        """End the link: wake all waiting tasks with the code, and tell the peer."""
        if not self.alive:
            return
        self.code = code
        self._paths.end()
        self._budget.drop(self)
        self._callers.end()
        self._streams.end()
        self.look_again()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    # Reading.

    async def _read(self, path: LinkPath, early: bytes) -> None:
        data: Bytes = early
        secured = path.secured
        try:
            while True:
                if data:
                    began = self._host.now()
                    self._take_in(path, data, began)
                    if secured.reads_much and self._host.now() - began > defaults.TURN_S:
                        secured.read_less()
                if not self._paths.has(path):
                    return
                if path.meter is not None:
                    await path.keep_to_caps(self._host, path.meter)
                data = await secured.receive()
                if not data:
                    return
        except PathLost:
            return

    def _take_in(self, path: LinkPath, data: Bytes, now: float) -> None:
        backlog = self._lane.outbox.backlog
        received = path.connection.received
        self._grace.found()
        for event in self._lane.receive(path.connection, data, now):
            if self.code is not None:
                return
            _HANDLERS[type(event)](self, event)
        if self._lane.outbox.has_output(path.connection):
            path.writer.flush(at_once=True)
        if path is not self._paths.used:
            self._paths.heard_beside(path, now, frames=received != path.connection.received)
        if backlog > self._limits.backlog_bytes >= self._lane.outbox.backlog:
            self._callers.make_room()
        self._account()

    def _account(self) -> None:
        if self.code is None:
            if self._lane.outbox.backlog > 2 * self._limits.backlog_bytes:
                self.close("backlog")
                return
            self._budget.set(self, self._lane.held + self._server.bytes)

    def _on_called(self, event: Called) -> None:
        if self._nursery is not None:
            self._server.serve(event, self._nursery)

    def _on_cancelled(self, event: Cancelled) -> None:
        self._server.cancel(event.ident)

    def _on_opened(self, event: Opened) -> None:
        self._streams.serve(event, self._nursery)

    def _on_ended(self, event: Ended) -> None:
        self._end(event.code)

    # Writing.

    def _wake_writer(self) -> None:
        path = self._paths.used
        if path is not None:
            path.writer.wake()

    def _flush(self) -> None:
        self._paths.flush()

    def _answers_wait(self) -> None:
        self._paths.flush()
        self._account()

    # Asking.

    def _ask(
        self,
        method: str,
        header: Mapping[str, object],
        payload: Bytes,
        priority: Priority,
        now: float | None,
    ) -> OutCall:
        with self._guard.around(self.peer, self._fail, instead=self._closed):
            try:
                call = self._lane.call(method, header, payload, priority)
            except ValueError as error:
                raise CallRefused("too-large", str(error)) from None
            self._paths.flush(at_once=not self._callers.waiting, now=now)
            self._account()
            self._check_alive()
        return call

    def expire(self, now: float) -> float:
        """End the calls whose deadline has passed. Return the earliest deadline that is left."""
        return self._callers.expire(now)

    def _checked(self, payload: Bytes) -> Bytes:
        self._check_alive()
        try:
            return stable(payload, self._limits.message_bytes)
        except ValueError as error:
            raise CallRefused("too-large", str(error)) from None

    def _check_alive(self) -> None:
        if self.code is not None:
            raise self._closed()

    def _ended(self) -> LinkClosed | None:
        return None if self.code is None else self._closed()

    def _closed(self) -> LinkClosed:
        return LinkClosed(self.code or "closed", f"the link to {self.peer} ended ({self.code})")


_HANDLERS: Final[Mapping[type, Callable[[Link, Any], None]]] = {
    Called: lambda link, event: link._on_called(event),
    Answered: lambda link, event: link._callers.answered(event),
    Cancelled: lambda link, event: link._on_cancelled(event),
    Opened: lambda link, event: link._on_opened(event),
    StreamReady: lambda link, event: link._streams.ready(event),
    Ended: lambda link, event: link._on_ended(event),
}


def _unwrap(answered: Answered, method: str) -> Reply:
    if answered.code is not None:
        words = answered.message or answered.code
        raise CallRefused(answered.code, f"the peer refused `{method}`: {words}")
    return Reply(answered.header, answered.payload, answered.priority)
