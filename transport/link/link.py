"""One link: calls, posts and streams to one peer over changing paths.

Outgoing frames go through the lane to the path in use (`paths.py`). A frame is written by its
caller if nothing is being written, and otherwise by the path's writer task. Incoming bytes from any
path go through the lane, which turns them into a reply for a caller (`callers.py`), a call for a
handler, or bytes of a stream. A link without a path continues for a grace period (`grace.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, Final

import trio

from .. import defaults
from ..bytestream import PathKind
from ..errors import MISHAP, CallRefused, LinkClosed
from ..handshake.meeting import Identities
from ..handshake.secured import SecureStream
from ..host.datagrams import Place
from ..lane.events import Answered, Called, Cancelled, Ended, Event, Opened, StreamReady
from ..lane.frame import Bytes, Priority
from ..lane.lane import Lane
from ..lane.outbox import OutCall
from .callers import Callers
from .calls import Reply
from .grace import Grace
from .owner import LinkOwner
from .path import LinkPath
from .paths import LinkPaths
from .serving import CallServer, stable
from .shared import Shared
from .status import LinkStatus
from .stream import Stream
from .streams import LinkStreams
from .tending import Tending

_CALLS: Final = (Called, Answered)  # events that queue nothing but replies
_EMPTY: Mapping[str, object] = MappingProxyType({})


class Link:
    """A live connection to one peer, independent of the paths that carry it.

    `code` is the reason why the link has ended, or None. Methods that send raise LinkClosed then.
    """

    def __init__(
        self,
        shared: Shared,
        lane: Lane,
        identities: Identities,
        owner: LinkOwner["Link"],
        *,
        brief: bool = False,
    ) -> None:
        self.identities = identities
        self.brief = brief
        """Whether this side dialled the peer for a few questions only, and may end the link after
        them."""
        self.peer = identities.peer
        self.code: str | None = None  # the reason why the link has ended
        self._host = shared.host
        self._guard = shared.guard
        self._lane = lane
        self._limits = shared.limits
        self._budget = shared.budget
        self._owner = owner
        self._kept = False
        self._needed = False
        self._since = self._host.now()
        self._counted = self._since, 0  # (time, bytes carried until then), see `_count`
        self._nursery: trio.Nursery | None = None
        handlers = shared.handlers
        self._server = CallServer(self.peer, lane, handlers, self._limits, self._answers_wait)
        self._streams = LinkStreams(self.peer, lane, handlers, flush=self._flush, ended=self._ended)
        self.paths = LinkPaths(shared, lane, self)
        """The paths that carry the link."""
        self.callers = Callers(
            lane,
            self._limits.backlog_bytes,
            alarm=owner.expire_by,
            gave_up=self._gave_up,
            ended=self._ended,
        )
        self._grace = Grace(shared, self.paths, self)
        self._tending = Tending(shared, lane, self.paths, self._grace, self)

    # Used by other components.

    @property
    def alive(self) -> bool:
        """Whether the link has not ended, so that calls may be made."""
        return self.code is None

    @property
    def connected(self) -> bool:
        """Whether a path carries the link, or the first one is about to be added.

        If False, the link is in its grace period.
        """
        return self.paths.connected

    @property
    def quiet(self) -> bool:
        """Whether the link has no path and the peer has been silent for `Limits.quiet_s`
        seconds."""
        return self._grace.quiet

    @property
    def broken(self) -> bool:
        """Whether the last path was closed by the other end, and not dropped because of silence."""
        return self.paths.broken

    @property
    def address(self) -> Place:
        """The remote address of the path in use, or of the last one."""
        return self.paths.address

    @property
    def due(self) -> float:
        """The time at which `tick` must be called next, on the host's clock; infinity if it need
        not be."""
        return self.paths.due

    @property
    def prompt(self) -> bool:
        """Whether the next tick must be on time, because frames in flight await an
        acknowledgement."""
        path = self.paths.used
        return path is not None and path.connection.unacknowledged

    @property
    def path_kind(self) -> PathKind | None:
        """The kind of the path in use; None if no path carries the link."""
        path = self.paths.used
        return path.path_kind if path is not None else None

    @property
    def is_long(self) -> bool:
        """Whether the round trip is so long that UDP is faster than TCP."""
        return self.paths.is_long

    @property
    def backlog(self) -> int:
        """Bytes that wait to be sent, or have been sent and are not acknowledged."""
        return self._lane.outbox.backlog

    @property
    def rtt(self) -> float:
        """The round trip of the path in use in seconds, 0 before the first measurement."""
        path = self.paths.used
        return (path.connection.rtt or 0.0) if path is not None else 0.0

    @property
    def carried(self) -> int:
        """Bytes sent and received so far, a count."""
        return self.paths.bytes_in + self.paths.bytes_out

    @property
    def udp_place(self) -> Place | None:
        """The probable address of the peer's UDP port, or None (see `LinkPaths.udp_place`)."""
        return self.paths.udp_place

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """The addresses at which the peer was last seen on a path without a relay.

        Maps each IP address to the peer's TCP and UDP port there (see `LinkPaths.places`).
        """
        return self.paths.places

    @property
    def seen(self) -> dict[str, tuple[int, int]]:
        """The addresses at which this node sees the peer now (see `LinkPaths.seen`)."""
        return self.paths.seen()

    @property
    def round_trip(self) -> float | None:
        """The round trip in seconds on the path in use, None before the first measurement."""
        path = self.paths.used
        return path.connection.usual_rtt if path else None

    @property
    def rate(self) -> float:
        """Bytes per second that the path can carry; 0 if they are not measured."""
        path = self.paths.used
        return path.secured.path_rate if path is not None else 0.0

    @property
    def status(self) -> LinkStatus:
        """The status of the link, for display."""
        path = self.paths.used
        return LinkStatus(
            rtt=path.connection.usual_rtt if path else None,
            bytes_in=self.paths.bytes_in,
            bytes_out=self.paths.bytes_out,
            address=self.address,
            since=self._since,
            path=path.path_kind.value if path else "none",
            paths=self.paths.statuses(),
            dialled=self.identities.dialled,
            incarnation=self.identities.incarnation,
            peer_incarnation=self.identities.peer_incarnation,
            admitted=self.identities.admitted,
            posts_refused=self._server.posts_refused,
            rate=path.secured.path_rate if path else 0.0,
            loss=path.secured.loss if path else 0.0,
        )

    async def call(
        self,
        method: str,
        header: Mapping[str, object] = _EMPTY,
        payload: Bytes = b"",
        *,
        priority: Priority = Priority.CONTROL,
        timeout: float,
        within: float = 0.0,
    ) -> Reply:
        """Call the peer and wait for its reply, at most `timeout` seconds.

        The call may wait here for `within` seconds, so that it leaves with other frames.

        Raises CallRefused with the peer's code if the peer refuses the call, with code `timeout` if
        there is no reply in time, and with code `too-large` for a payload over
        `Limits.message_bytes` or a header over 32 KiB. Raises LinkClosed if the link ends. A call
        that is interrupted by a lost path continues on the next one. The peer executes it at most
        once.
        """
        payload = self._checked(payload)
        now = self._host.now()
        deadline = now + timeout
        answered = None
        full = self._lane.outbox.backlog > self._limits.backlog_bytes
        if not full or await self.callers.room(deadline):
            call = self._ask(method, header, payload, priority, None if full else now, within)
            answered = await self.callers.answer(call, deadline)
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
        """Send a call that needs no reply. Never blocks.

        If `later`, the frame may wait up to two seconds, so that it leaves with another one.
        Posts of one link and priority are delivered in order, each at most once. Raises CallRefused
        with code `too-large` as `call` does, and LinkClosed if the link has ended. If the peer
        accepts no data while twice `Limits.backlog_bytes` are queued, the link ends (`backlog`).
        """
        payload = self._checked(payload)
        with self._guard.around(self.peer, self._fail, instead=self._closed):
            try:
                self._lane.post(method, header, payload, priority)
            except ValueError as error:
                raise CallRefused("too-large", str(error)) from None
            if later:
                self.paths.flush_by(self._host.now() + defaults.LATER_S)
            else:
                self._wake_writer()  # not `flush`: more posts may follow, and leave with this one
            self._account()

    async def open_stream(
        self,
        method: str,
        header: Mapping[str, object] = _EMPTY,
        *,
        priority: Priority = Priority.BULK,
        first: bytes = b"",
    ) -> "Stream":
        """Open a stream to the peer's handler `method`. Its `first` bytes leave with the opening,
        which wakes the peer once.

        Raises CallRefused with code `busy` if the peer allows no further stream, and with code
        `too-large` if the header is over 32 KiB. Raises LinkClosed if the link has ended. A peer
        without that handler resets the stream (`unknown-method`).
        """
        await trio.lowlevel.checkpoint()
        self._check_alive()
        with self._guard.around(self.peer, self._fail, instead=self._closed):
            return self._streams.open(method, header, priority, first)

    def keep(self) -> None:
        """Mark the link as wanted for longer than a few questions, so that it is no longer
        `brief`."""
        self.brief = False
        if not self._kept:
            self._kept = True
            self._owner.lasting(self)

    @property
    def needed(self) -> bool:
        """Whether a component uses the link, or has used it, for more than the upkeep of the
        network."""
        return self._needed or self._owner.is_held(self.peer)

    def need(self) -> None:
        """Mark the link as used for more than the upkeep of the network."""
        self._needed = True

    @property
    def turns(self) -> int:
        """Number of calls, posts and streams that either side has begun.

        While the number does not change, the link is unused.
        """
        return self._lane.turns

    @property
    def busy(self) -> bool:
        """Whether calls or streams of either side are open."""
        return bool(self.callers.waiting) or self.at_stake

    def close(self, code: str = "closed", message: str = "") -> None:
        """End the link now. The peer is sent `code` and `message` if a path still works."""
        self._lane.go_away(code, message)
        self._end(code)

    def _fail(self) -> None:
        """End the link because of an unexpected error in this node."""
        self.close(MISHAP)

    # Life of the link.

    async def run(
        self,
        secured: SecureStream,
        path_kind: PathKind,
        early: bytes,
        up: Callable[[], None],
    ) -> None:
        """Add the first path, and run the link until it ends.

        `early` is plaintext that arrived after the peer's hello. `up` is called once calls may be
        made.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.attach(secured, path_kind, early)
                up()
                await self._tending.run()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self.close()

    def attach(self, secured: SecureStream, path_kind: PathKind, early: bytes) -> None:
        """Add an authenticated path. It carries the link if it is the best one.

        If the link has ended or is not running, the path is closed instead.
        """
        if self._nursery is None or not self.alive:
            secured.close()
            return
        path = self.paths.attach(secured, path_kind)
        if not secured.tls.server:  # a listener waits for bytes: the peer may still drop its dial
            self._grace.found()
        self._owner.found_path(self, path_kind, secured.medium)
        self._nursery.start_soon(self._serve, path, early)
        self.look_again()

    def look(self) -> None:
        """Send a ping on every path at once. Call this when the network may have changed."""
        self.paths.look()

    def rest(self, seconds: float) -> None:
        """Set how many seconds of silence pass before a ping, while no component waits for the
        peer.

        Set a long time for a peer that other nodes watch, because they would report its death. 0
        restores the usual time.
        """
        self.paths.rest(seconds)

    def tick(self, now: float) -> None:
        """Send pings on paths that have been silent for some time, and drop those without a reply.

        One task calls this for all links once `due` has passed. A timer for each link would wake
        its task several times a second.
        """
        self.paths.tick(now)
        if not self._grace.under_way and self.paths.is_suspect(now):
            self.look_again()
        self._count(now)

    def _count(self, now: float) -> None:
        """Report the link if its round trip is long and it has carried much since the last count.

        `tick` calls this often enough. A link with much traffic is ticked at least every few
        seconds, for acknowledgements of its frames or for pings from its peer.
        """
        (at, before), carried = self._counted, self.carried
        if now < at + defaults.LONG_LOOK_S:
            return
        self._counted = now, carried
        if carried - before >= defaults.LONG_RATE * (now - at) and self.is_long:
            self._owner.carries_much(self)

    # Used by its paths and its grace period.

    def look_again(self) -> None:
        """Check again whether the link needs a new path."""
        self._tending.look_again()

    def doubted(self, doubtful: bool) -> None:
        """Report that the search for a path has begun or ended."""
        self._owner.doubted(self, doubtful)

    @property
    def at_stake(self) -> bool:
        """Whether a component here, or a caller at the peer, needs the link to continue."""
        return self._server.busy or self._lane.at_stake or self._owner.is_held(self.peer)

    @property
    def attended(self) -> bool:
        """Whether a component is waiting for the peer. If so, the peer's silence must be noticed at
        once."""
        return self.busy or self._owner.is_watched(self.peer)

    def retime(self) -> None:
        """Ask the owner to call `tick` at another time, because `due` has changed."""
        self._owner.retime(self)

    def wrote(self) -> None:
        """Wake the tasks that wait to send on a stream, because bytes have left."""
        self._streams.sent()

    async def rescue(self) -> str | None:
        """Search for a new path until cancelled, or return the code with which the link must
        end."""
        return await self._owner.rescue(self)

    def fell_quiet(self) -> None:
        """Report that the peer has been silent for `Limits.quiet_s` seconds."""
        self._owner.fell_quiet(self)

    def came_back(self) -> None:
        """Report that the quiet peer has been heard again."""
        self._owner.came_back(self)

    async def _serve(self, path: LinkPath, early: bytes) -> None:
        """Read from and write to one path until it is lost or dropped."""
        stopping, secured = True, path.secured
        try:
            with secured.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(path.writer.run)
                    await path.read(self._host, early, self._take_in)
                    nursery.cancel_scope.cancel()
            stopping = False
        finally:
            if stopping:  # the node stops: the path still works, so the peer can be told
                self.close()
            if secured.finished:
                await secured.linger()
            secured.close()
            self.paths.lose(path)

    def _end(self, code: str) -> None:
        """End the link with a code: drop all paths, and wake all waiting tasks."""
        if not self.alive:
            return
        self.code = code
        self.paths.end()
        self._budget.drop(self)
        self.callers.end()
        self._streams.end()
        self.look_again()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    # Reading.

    def _take_in(self, path: LinkPath, data: Bytes, now: float) -> bool:
        """Process bytes that arrived on a path: deliver replies, calls and stream data.

        Returns whether the path still belongs to the link.
        """
        backlog = self._lane.outbox.backlog
        received = path.connection.received
        self._grace.found()
        self._server.within = inf
        events = self._lane.receive(path.connection, data, now)
        for event in events:
            if self.code is not None:
                return False
            _HANDLERS[type(event)](self, event)
        if self._lane.outbox.has_output(path.connection):
            self._send_replies(path, events)
        if path is not self.paths.used:
            self.paths.heard_beside(path, now, frames=received != path.connection.received)
        if path.connection.eased:
            self.paths.ease(path)
            self._count(now)
        if backlog > self._limits.backlog_bytes >= self._lane.outbox.backlog:
            self.callers.make_room()
        self._account()
        return self.paths.has(path)

    def _send_replies(self, path: LinkPath, events: Sequence[Event]) -> None:
        """Send what these events have queued on a path: at once, unless it is only replies that may
        wait, or nothing."""
        within, writer = self._server.within, path.writer
        if path.connection.urgent or not all(isinstance(each, _CALLS) for each in events):
            within = 0.0
        elif within == inf and not writer.waits:
            within = 0.0  # something waits for any occasion to leave
        if within:
            writer.flush_within(within)
        else:
            writer.flush(at_once=True)

    def _account(self) -> None:
        """Report the link's memory to the budget. End the link if too many bytes are queued."""
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
        path = self.paths.used
        if path is not None:
            path.writer.wake()

    def _gave_up(self, call: OutCall) -> None:
        """Send the peer word that a reply is not needed, at once if the reply may be large."""
        if call.priority is Priority.CONTROL:
            self.paths.flush_by(self._host.now() + defaults.LATER_S)
        else:
            self._wake_writer()

    def _flush(self) -> None:
        self.paths.flush()

    def _answers_wait(self, within: float) -> None:
        """Send the replies of handlers, which have just been queued, within so many seconds."""
        if within:
            self.paths.flush_within(within)
        else:
            self.paths.flush()
        self._account()

    # Calling.

    def _ask(
        self,
        method: str,
        header: Mapping[str, object],
        payload: Bytes,
        priority: Priority,
        now: float | None,
        within: float,
    ) -> OutCall:
        """Queue a call, and send it if possible. Return the call, for which a reply is awaited."""
        with self._guard.around(self.peer, self._fail, instead=self._closed):
            try:
                call = self._lane.call(method, header, payload, priority)
            except ValueError as error:
                raise CallRefused("too-large", str(error)) from None
            if within:
                self.paths.flush_within(within)
            else:
                self.paths.flush(at_once=not self.callers.waiting, now=now)
            self._account()
            self._check_alive()
        return call

    def expire(self, now: float) -> float:
        """End the calls whose deadline has passed. Return the time of the next deadline, infinity
        if there is none."""
        return self.callers.expire(now)

    def _checked(self, payload: Bytes) -> Bytes:
        """Return the payload in a form that cannot change. Raises CallRefused if it is too
        large."""
        self._check_alive()
        try:
            return stable(payload, self._limits.message_bytes)
        except ValueError as error:
            raise CallRefused("too-large", str(error)) from None

    def _check_alive(self) -> None:
        """Raise LinkClosed if the link has ended."""
        if self.code is not None:
            raise self._closed()

    def _ended(self) -> LinkClosed | None:
        """Return the error with which the link has ended, or None if it is alive."""
        return None if self.code is None else self._closed()

    def _closed(self) -> LinkClosed:
        """Return the error with which the link has ended."""
        return LinkClosed(self.code or "closed", f"the link to {self.peer} ended ({self.code})")


_HANDLERS: Final[Mapping[type, Callable[[Link, Any], None]]] = {
    Called: lambda link, event: link._on_called(event),
    Answered: lambda link, event: link.callers.answered(event),
    Cancelled: lambda link, event: link._on_cancelled(event),
    Opened: lambda link, event: link._on_opened(event),
    StreamReady: lambda link, event: link._streams.ready(event),
    Ended: lambda link, event: link._on_ended(event),
}


def _unwrap(answered: Answered, method: str) -> Reply:
    """Return the reply from an answer. Raises CallRefused if the peer refused the call."""
    if answered.code is not None:
        words = answered.message or answered.code
        raise CallRefused(answered.code, f"the peer refused `{method}`: {words}")
    return Reply(answered.header, answered.payload, answered.priority)
