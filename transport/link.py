"""The trio shell of a link: calls, posts and streams to one peer, whatever carries them.

What is asked goes into the lane, and from there by the leg in use (`legs.py`) to the peer; a frame
leaves from its caller's context when nothing is being written, and by the writer task when
something is. What comes, by whichever leg, goes through the lane and becomes an answer for a
caller (`callers.py`), a call for a handler, bytes for a stream. The link outlives its last leg for
a grace (`grace.py`).
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import trio

from . import defaults
from .budget import Budget
from .callers import Callers
from .calls import Reply
from .datagrams import Place
from .errors import MISHAP, CallRefused, LinkClosed
from .events import Answered, Called, Cancelled, Ended, Opened, StreamReady
from .frame import Bytes, Priority
from .grace import Grace
from .guard import Guard
from .host import Host
from .identity import PeerId
from .lane import Lane
from .leg import Leg
from .legs import Legs
from .limits import Limits
from .linkstatus import Identities, LinkStatus
from .outbox import OutCall
from .path import Path, PathLost
from .pipe import Way
from .serving import CallServer, Handlers, stable
from .shaper import Shaper
from .stream import Stream
from .streams import Streams

_EMPTY: Mapping[str, Any] = MappingProxyType({})


Rescue = Callable[["Link"], Awaitable[str | None]]
"""Tries to get a link that has lost its legs a new one (by `Link.attach`, perhaps from elsewhere)
until it is cancelled; returns a code where the link must end at once."""
Told = Callable[["Link"], None]


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
        quiet: Told,
        back: Told,
        doubt: Callable[["Link", bool], None],
        path: Callable[["Link", Way, str], None],
        held: Callable[[PeerId], bool],
        watched: Callable[[PeerId], bool] = lambda peer: False,
        alarm: Callable[[float], None],
        due: Told,
        shaper: Shaper | None = None,
        brief: bool = False,
        kept: Told = lambda link: None,
        guard: Guard | None = None,
    ) -> None:
        """`quiet` is told when the peer has not been heard of for so long that nothing new
        should be sent to it, `back` when it is there again, `doubt` when a path begins to be
        looked for and when that is over, `path` of every path that comes.
        `held` returns whether a component needs the link to this peer though nothing is open,
        `watched` whether one waits for the peer, so that its link must not `rest`.
        `alarm` is told when `expire` should be called, `due` when `tick` should be sooner than it
        was; `shaper` holds the node's caps, `kept` is told once when somebody wants to keep it."""
        self.identities = identities
        self.brief = brief
        """Whether this side dialled it for a few questions only, and may end it after them."""
        self.peer = identities.peer
        self.code: str | None = None  # why the link ended
        self._host = host
        self._guard = guard or Guard()
        self._lane = lane
        self._limits = limits
        self._budget = budget
        self._tell_doubt = doubt
        self._tell_path = path
        self._tell_kept = kept
        self._kept = False
        self._needed = False
        self._doubted = False  # whether `doubt` has heard of a doubt that is not over
        self._held = held
        self._since = host.now()
        self._nursery: trio.Nursery | None = None
        self._changed = trio.lowlevel.ParkingLot()  # what `_tend` looks at
        self._server = CallServer(identities.peer, lane, handlers, limits, self._answers_wait)
        self._streams = Streams(
            self.peer, lane, handlers, flush=lambda: self._legs.flush(), ended=self._ended
        )
        self._legs = Legs(
            host,
            lane,
            identities,
            due=lambda: due(self),
            lost=self._look_again,
            sent=self._streams.sent,
            attended=lambda: self.busy or watched(self.peer),
            shaper=shaper,
        )
        self._callers = Callers(
            lane, limits.backlog_bytes, alarm=alarm, gave_up=self._wake_writer, ended=self._ended
        )
        self._grace = Grace(
            host,
            limits,
            self._legs,
            rescue=lambda: rescue(self),
            at_stake=lambda: self._at_stake,
            quiet=lambda: quiet(self),
            back=lambda: back(self),
            end=self.close,
        )

    # What everybody uses.

    @property
    def alive(self) -> bool:
        """Whether calls may still be made."""
        return self.code is None

    @property
    def connected(self) -> bool:
        """Whether something carries it, or is just about to; without it, it is in its grace."""
        return self._legs.connected

    @property
    def quiet(self) -> bool:
        """Whether nothing has been heard of the peer for `Limits.quiet_s`."""
        return self._grace.quiet

    @property
    def broken(self) -> bool:
        """Whether its last leg was closed by the other end, not lost in silence."""
        return self._legs.broken

    @property
    def address(self) -> Place:
        """Where the path that carries it leads, or the last one led."""
        return self._legs.address

    @property
    def due(self) -> float:
        """When a leg wants the next tick."""
        return self._legs.due

    @property
    def prompt(self) -> bool:
        """Whether the next tick is not to be late: frames are under way."""
        leg = self._legs.used
        return leg is not None and leg.connection.unacknowledged

    @property
    def way(self) -> Way | None:
        """How it reaches the peer now; None where nothing carries it."""
        leg = self._legs.used
        return leg.way if leg is not None else None

    @property
    def is_long(self) -> bool:
        """Whether its round trip is one at which UDP serves better than TCP."""
        return self._legs.is_long

    @property
    def carried(self) -> int:
        """Bytes that have passed, both ways."""
        return self._legs.bytes_in + self._legs.bytes_out

    @property
    def udp_place(self) -> Place | None:
        """Where the peer's UDP port should be (`Legs.udp_place`)."""
        return self._legs.udp_place

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """Where the peer was last seen without a relay (`Legs.places`)."""
        return self._legs.places

    @property
    def status(self) -> LinkStatus:
        """Figures for a person."""
        leg = self._legs.used
        return LinkStatus(
            rtt=leg.connection.rtt if leg else None,
            bytes_in=self._legs.bytes_in,
            bytes_out=self._legs.bytes_out,
            address=self.address,
            since=self._since,
            path=leg.way.value if leg else "none",
            legs=self._legs.statuses(),
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
        now = self._host.now()
        deadline = now + timeout
        answered = None
        full = self._lane.outbox.backlog > self._limits.backlog_bytes
        if not full or await self._callers.room(deadline):
            call = self._ask(method, header, payload, priority, None if full else now)
            answered = await self._callers.answer(call, deadline)
        if answered is None:
            raise CallRefused("timeout", f"`{method}` had no answer within {timeout:g} s")
        return _unwrap(answered, method)

    def post(
        self,
        method: str,
        header: Mapping[str, Any] = _EMPTY,
        payload: Bytes = b"",
        *,
        priority: Priority,
        later: bool = False,
    ) -> None:
        """A call whose answer nobody awaits; never blocks. One that may leave `later` waits for
        something to leave with, a second at most.

        Posts of one link and priority are delivered in order, each once at most. Raises
        CallRefused (`too-large`) and LinkClosed. A peer that takes nothing while twice
        `Limits.backlog_bytes` wait loses the link (`backlog`).
        """
        payload = self._checked(payload)
        with self._guard.around(self.peer, self._fail, instead=self._closed):
            try:
                self._lane.post(method, header, payload, priority)
            except ValueError as error:
                raise CallRefused("too-large", str(error)) from None
            if later:
                self._legs.flush_by(self._host.now() + defaults.LATER_S)
            else:
                self._wake_writer()  # not from here: more posts may follow, and leave with this one
            self._account()

    async def open_stream(
        self, method: str, header: Mapping[str, Any] = _EMPTY, *, priority: Priority = Priority.BULK
    ) -> "Stream":
        """Open a stream to the peer's handler. Raises CallRefused (`busy`, `too-large`),
        LinkClosed. A peer without that handler resets the stream (`unknown-method`)."""
        await trio.lowlevel.checkpoint()
        self._check_alive()
        with self._guard.around(self.peer, self._fail, instead=self._closed):
            return self._streams.open(method, header, priority)

    def keep(self) -> None:
        """Somebody wants it for longer than a few questions."""
        self.brief = False
        if not self._kept:
            self._kept = True
            self._tell_kept(self)

    @property
    def needed(self) -> bool:
        """Whether a component uses it, or has used it, for more than the network's own upkeep."""
        return self._needed or self._held(self.peer)

    def need(self) -> None:
        """Mark it as used for more than the network's own upkeep."""
        self._needed = True

    @property
    def turns(self) -> int:
        """Calls, posts and streams that either side has begun: where it stays the same, nobody
        uses the link."""
        return self._lane.turns

    @property
    def busy(self) -> bool:
        """Whether calls or streams are open, whichever side's."""
        return bool(self._callers.waiting) or self._at_stake

    def close(self, code: str = "closed", message: str = "") -> None:
        """End the link now; the peer is told the code if its connection takes it."""
        self._lane.go_away(code, message)
        self._end(code)

    def _fail(self) -> None:
        self.close(MISHAP)

    # The life of the link.

    async def run(
        self,
        path: Path,
        way: Way,
        early: bytes,
        up: Callable[[], None],
    ) -> None:
        """Carry the link until it ends. `early` is plaintext that came behind the hello; `up`
        is called once calls may be made."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.attach(path, way, early)
                up()
                await self._tend()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self.close()

    def attach(self, path: Path, way: Way, early: bytes) -> None:
        """A further path, proven to be the peer's. It carries the link if none does better."""
        if self._nursery is None or not self.alive:
            path.close()
            return
        leg = self._legs.attach(path, way)
        if not path.tls.server:  # else the peer may still give up its dial: until it is heard
            self._grace.found()
        self._tell_path(self, way, path.medium)
        self._nursery.start_soon(self._serve, leg, early)
        self._look_again()

    def look(self) -> None:
        """Something about the network has changed: ask every leg for a sign of life."""
        self._legs.look()

    def rest(self, seconds: float) -> None:
        """Set the seconds of silence until a ping, while no component here waits for the peer.

        Other peers watch it, and report its end. 0 restores the usual time.
        """
        self._legs.rest(seconds)

    def tick(self, now: float) -> None:
        """Ping a peer that is quiet, leave a leg that is silent. Called once `due` is over, by
        one task for all links: a timer of its own would wake each of them a few times a second."""
        self._legs.tick(now)
        if not self._grace.under_way and self._legs.is_suspect(now):
            self._look_again()

    async def _tend(self) -> None:
        """See to the grace after the last leg is lost, each time it is, or seems to be."""
        while self.alive:
            if self._legs.missing or self._legs.is_suspect(self._host.now()):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._doubt)
                    await self._grace.run()
                    nursery.cancel_scope.cancel()
                if self.alive and self._doubted:
                    self._doubted = False
                    self._tell_doubt(self, False)
            else:
                self._legs.flush()
                await self._changed.park()

    async def _doubt(self) -> None:
        """Tell that the peer is in doubt: at once where the last path is lost.

        If there is a path, but no answer over it, the peer is doubted once any other path would
        count as silent, because relays are slow at times. If a relay has ended a circuit that was
        used up, the peer most likely answers, and a new circuit is open within a second.
        """
        if not self._legs.missing:
            silence = self._host.now() - self._lane.heard
            await trio.sleep(max(0.0, self._limits.silent_s - silence))
        elif self._legs.lapsed:
            await trio.sleep(defaults.LAPSED_S)
        self._doubted = True
        self._tell_doubt(self, True)

    def _look_again(self) -> None:
        self._changed.unpark_all()

    @property
    def _at_stake(self) -> bool:
        return self._server.busy or self._lane.at_stake or self._held(self.peer)

    async def _serve(self, leg: Leg, early: bytes) -> None:
        """Read and write one connection until it is lost or replaced."""
        stopping, path = True, leg.path
        try:
            with path.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(leg.writer.run)
                    await self._read(leg, early)
                    nursery.cancel_scope.cancel()
            stopping = False
        finally:
            if stopping:  # cancelled from above: there is still a connection to say so on
                self.close()
            if path.finished:
                await path.linger()
            path.close()
            self._legs.lose(leg)

    def _end(self, code: str) -> None:
        """The link is over: say so to everybody who waits, here and at the other end."""
        if not self.alive:
            return
        self.code = code
        self._legs.end()
        self._budget.drop(self)
        self._callers.end()
        self._streams.end()
        self._look_again()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    # Reading.

    async def _read(self, leg: Leg, early: bytes) -> None:
        data: Bytes = early
        path = leg.path
        try:
            while True:
                if data:
                    began = self._host.now()
                    self._take_in(leg, data, began)
                    if path.reads_much and self._host.now() - began > defaults.TURN_S:
                        path.read_less()
                if not self._legs.has(leg):
                    return
                if leg.meter is not None:
                    await leg.keep_to_caps(self._host, leg.meter)
                data = await path.receive()
                if not data:
                    return
        except PathLost:
            return

    def _take_in(self, leg: Leg, data: Bytes, now: float) -> None:
        backlog = self._lane.outbox.backlog
        received = leg.connection.received
        self._grace.found()
        for event in self._lane.receive(leg.connection, data, now):
            if self.code is not None:
                return
            _HANDLERS[type(event)](self, event)
        if self._lane.outbox.has_output(leg.connection):
            leg.writer.flush(at_once=True)
        if leg is not self._legs.used:
            self._legs.heard_beside(leg, now, frames=received != leg.connection.received)
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
        leg = self._legs.used
        if leg is not None:
            leg.writer.wake()

    def _answers_wait(self) -> None:
        self._legs.flush()
        self._account()

    # Asking.

    def _ask(
        self,
        method: str,
        header: Mapping[str, Any],
        payload: Bytes,
        priority: Priority,
        now: float | None,
    ) -> OutCall:
        with self._guard.around(self.peer, self._fail, instead=self._closed):
            try:
                call = self._lane.call(method, header, payload, priority)
            except ValueError as error:
                raise CallRefused("too-large", str(error)) from None
            self._legs.flush(at_once=not self._callers.waiting, now=now)
            self._account()
            self._check_alive()
        return call

    def expire(self, now: float) -> float:
        """End the calls whose time is over; the earliest deadline of the others."""
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
