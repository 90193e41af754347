"""The trio shell of a link: calls, posts and streams to one peer, whatever carries them.

A link has legs (`Leg`), each a connection (`Path`) with one reader and one writer task. It sends by
the best that answers, receives by all, and leaves a dying one before calls time out. A reply wakes
its caller directly; a frame leaves from its caller's context when nothing is being written, and
by the writer task when something is. The link outlives its last leg for a grace, in which
both sides look for a new one (docs/spec/lane.md, section 5).
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf
from types import MappingProxyType
from typing import Any

import outcome
import trio

from . import defaults
from .budget import Budget
from .calls import Reply
from .datagrams import Place
from .errors import CallRefused, LinkClosed
from .events import Answered, Called, Cancelled, Ended, Opened, StreamReady
from .frame import Bytes, Priority
from .host import Host
from .identity import PeerId
from .lane import Lane
from .lanestream import LaneStream
from .leg import Leg, best, is_long, redundant, worst
from .limits import Limits
from .linkstatus import Identities, LegStatus, LinkStatus
from .meter import Meter
from .outbox import OutCall
from .path import Path, PathLost
from .pipe import Way
from .queueing import Yielding
from .serving import (
    HANDLER_ERRORS,
    CallServer,
    Handlers,
    IncomingStream,
    StreamHandler,
    refusal_of,
    stable,
)
from .shaper import Shaper
from .stream import Stream
from .writer import Writer

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
        path: Callable[["Link", Way, str], None],
        held: Callable[[PeerId], bool],
        alarm: Callable[[float], None],
        due: Told,
        shaper: Shaper | None = None,
        brief: bool = False,
        kept: Told = lambda link: None,
    ) -> None:
        """`quiet` is told when the peer has not been heard of for so long that nothing new
        should be sent to it, `back` when it is there again, `path` of every path that comes.
        `held` is asked whether somebody else needs the link to this peer though nothing is open.
        `alarm` is told when `expire` should be called, `due` when `tick` should be sooner than it
        was; `shaper` holds the node's caps, `kept` is told once when somebody wants to keep it."""
        self.identities = identities
        self.brief = brief
        """Whether this side dialled it for a few questions only, and may end it after them."""
        self.peer = identities.peer
        self.code: str | None = None  # why the link ended
        self.address = ("", 0)
        self._host = host
        self._lane = lane
        self._limits = limits
        self._handlers = handlers
        self._budget = budget
        self._rescue = rescue
        self._tell_quiet = quiet
        self._tell_back = back
        self._tell_path = path
        self._tell_kept = kept
        self._kept = False
        self._held = held
        self._alarm = alarm
        self._tell_due = due
        self._shaper = shaper
        self._since = host.now()
        self._legs: list[Leg] = []
        self._leg: Leg | None = None  # the one that carries what this side sends
        self._new = True  # not attached yet
        self._silent = False
        self._heard = self._since  # when the last byte came, over connections that are gone
        self.quiet = False  # not heard of for `Limits.quiet_s`
        self.broken = False  # the last leg was closed by the other end, not lost in silence
        self.due = inf  # when a leg wants the next tick
        self.hurry = False  # the leg in use has gone quiet with frames under way
        self._nursery: trio.Nursery | None = None
        self._rescue_scope: trio.CancelScope | None = None
        self._bytes_in = 0  # over connections that are gone
        self._bytes_out = 0
        self._server = CallServer(identities.peer, lane, handlers, limits, self._answers_wait)
        self._calls: set[OutCall] = set()
        self._changed = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
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
        """Whether something carries it, or is just about to; without it, it is in its grace."""
        return self._leg is not None or self._new

    @property
    def prompt(self) -> bool:
        """Whether the next tick is not to be late: frames are under way."""
        return self._leg is not None and self._leg.connection.unacknowledged

    @property
    def way(self) -> Way | None:
        """How it reaches the peer now; None where nothing carries it."""
        return self._leg.way if self._leg is not None else None

    @property
    def is_long(self) -> bool:
        """Whether its round trip is one at which UDP serves better than TCP."""
        return is_long(self._legs)

    @property
    def carried(self) -> int:
        """Bytes that have passed, both ways."""
        legs = sum(leg.path.bytes_in + leg.path.bytes_out for leg in self._legs)
        return self._bytes_in + self._bytes_out + legs

    @property
    def udp_place(self) -> Place | None:
        """Where the peer's UDP port should be: at the address where this side dialled its TCP
        port; None where that was not so, or a UDP path is there."""
        leg, port = self._leg, self.identities.udp_port
        if leg is None or not port or not self.identities.dialled or leg.path.medium != "tcp":
            return None
        if leg.way.rank > Way.DIRECT.rank or any(x.path.medium == "udp" for x in self._legs):
            return None
        return leg.path.address[0], port

    @property
    def status(self) -> LinkStatus:
        """Figures for a person."""
        leg = self._leg
        return LinkStatus(
            rtt=leg.connection.rtt if leg else None,
            bytes_in=self._bytes_in + sum(item.path.bytes_in for item in self._legs),
            bytes_out=self._bytes_out + sum(item.path.bytes_out for item in self._legs),
            address=self.address,
            since=self._since,
            path=leg.way.value if leg else "none",
            legs=tuple(
                LegStatus(
                    item.way, item.path.medium, item.path.address, item.connection.rtt, item is leg
                )
                for item in self._legs
            ),
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
        deadline = self._host.now() + timeout
        answered = None
        if self._lane.outbox.backlog <= self._limits.backlog_bytes or await self._has_room(
            deadline
        ):
            answered = await self._answer_to(method, header, payload, priority, deadline)
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
        if self._leg is not None:  # not from here: more posts may follow, and leave with this one
            self._leg.writer.wake()
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

    def keep(self) -> None:
        """Somebody wants it for longer than a few questions."""
        self.brief = False
        if not self._kept:
            self._kept = True
            self._tell_kept(self)

    @property
    def turns(self) -> int:
        """Calls, posts and streams that either side has begun: where it stays the same, nobody
        uses the link."""
        return self._lane.turns

    @property
    def busy(self) -> bool:
        """Whether calls or streams are open, whichever side's."""
        return bool(self._calls) or self._at_stake

    def close(self, code: str = "closed", message: str = "") -> None:
        """End the link now; the peer is told the code if its connection takes it."""
        self._lane.go_away(code, message)
        self._end(code)

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
        now = self._host.now()
        # On this machine no modem buffers, and what looks like a queue is a busy processor.
        yielding = None if way is Way.LOOPBACK else Yielding(now)
        connection = self._lane.attach(now, yielding)
        meter = None
        if self._shaper is not None and not path.inside:  # else the link outside has one
            meter = Meter(self._shaper)
        writer = Writer(self._host, self._lane, connection, path, self._wrote, meter)
        leg = Leg(path, way, connection, writer, now, meter)
        self._legs.append(leg)
        self._new = self._silent = self.broken = False
        self._choose(now)
        self._tick_at(now)
        if len(self._legs) > defaults.LEGS:
            self._drop(worst(self._legs, self._leg))
        if not path.tls.server:  # else the peer may still give up its dial: until it is heard
            self._found()
        self._tell_path(self, way, path.medium)
        self._nursery.start_soon(self._serve, leg, early)
        self._changed.unpark_all()

    def _found(self) -> None:
        """The peer is there: nothing need be looked for."""
        if self._rescue_scope is not None:
            self._rescue_scope.cancel()
        if self.quiet:
            self.quiet = False
            self._tell_back(self)

    def look(self) -> None:
        """Something about the network has changed: ask every leg for a sign of life."""
        now = self._host.now()
        for leg in self._legs:
            leg.connection.look(now)
            leg.due = now
            leg.writer.flush()
        self._tick_at(now)

    def _tick_at(self, at: float) -> None:
        if at < self.due:
            self.due = at
            self._tell_due(self)

    def tick(self, now: float) -> None:
        """Ping a peer that is quiet, leave a leg that is silent. Called once `due` is over, by
        one task for all links: a timer of its own would wake each of them a few times a second."""
        for leg in list(self._legs):
            if leg.due <= now:
                if leg.meter is not None and leg.meter.paused:
                    leg.connection.heard = now
                leg.due = leg.connection.tick(now)
                leg.path.tls.release()
                if leg.connection.is_silent(now):
                    self._silent = True
                    self.broken = False
                    self._drop(leg)
                elif leg.writer.has_output:
                    leg.writer.flush()
        self.hurry = self._leg is not None and self._leg.connection.is_overdue(now)
        if self._leg is not None and self.hurry:
            self._ask_others(self._leg, now)
        self._choose(now)
        if len(self._legs) > 1 and self.identities.dialled:  # one side alone, or both are dropped
            for leg in redundant(self._legs, self._leg, now):
                self._drop(leg)
        self.due = min([leg.due for leg in self._legs], default=inf)
        if self._rescue_scope is None and self._is_suspect(now):
            self._changed.unpark_all()

    def _ask_others(self, used: Leg, now: float) -> None:
        """Nothing comes by the one in use: what cuts it may have cut others, too. Where one of
        them is answered, the rest has little time left."""
        used.connection.ping_soon(now)
        silent = [leg for leg in self._legs if not used.connection.is_outrun(leg.connection)]
        for leg in silent:
            if len(silent) < len(self._legs):
                leg.connection.hint(now)
            else:
                leg.connection.ping_soon(now)
            leg.due = now
            leg.writer.flush()

    def _is_suspect(self, now: float) -> bool:
        """Whether to look for another path before this one is given up: it has not been heard
        since the network changed or this machine slept, or its relay may be gone. A peer that
        is merely slow is not dialled for it."""
        leg = self._leg
        if leg is None or not leg.connection.is_doubtful(now):
            return False
        long = now >= leg.connection.heard + defaults.SUSPECT_S
        return leg.connection.unseen or (long and leg.way is Way.RELAYED)

    def _choose(self, now: float) -> None:
        """Send by the best leg."""
        leg = best(self._legs, now, self._leg)
        if leg is None or leg is self._leg:
            return
        before, self._leg = self._leg, leg
        self.address = leg.path.address
        leg.connection.idle_s = self._lane.idle_s
        if before is not None:
            before.connection.idle_s = max(self._lane.idle_s, defaults.STANDBY_S)
        self._lane.use(leg.connection)
        leg.writer.flush()

    async def _tend(self) -> None:
        """See to the grace after the last leg is lost, each time it is, or seems to be."""
        while self.alive:
            if not self._legs or self._is_suspect(self._host.now()):
                await self._restore()
            else:
                self._flush()
                await self._changed.park()

    async def _restore(self) -> None:
        """Look for a connection until one is there, or the link's time is over."""
        async with trio.open_nursery() as nursery:
            self._rescue_scope = nursery.cancel_scope
            nursery.start_soon(self._run_out)
            code = await self._rescue(self)
            if code is not None:
                self.close(code)
            nursery.cancel_scope.cancel()
        self._rescue_scope = None

    async def _run_out(self) -> None:
        """Without a connection it grows quiet, and ends: later where somebody would miss it.
        Time in which our own loop stood still (a laptop's sleep) does not count."""
        limits, now = self._limits, self._host.now()
        heard = now + defaults.RESTORE_S - limits.quiet_s
        while True:
            heard = max(heard, self._heard)
            silence = 0.0 if self._legs else now - heard
            if silence >= limits.quiet_s and not self.quiet:
                self.quiet = True
                self._tell_quiet(self)
            if silence >= limits.hold_s or (silence >= limits.grace_s and not self._at_stake):
                self.close("silent" if self._silent else "unreachable")
                return
            await trio.sleep(defaults.TICK_S)
            late = self._host.now() - now - defaults.TICK_S
            heard += late if late > defaults.STALL_S else 0.0
            now = self._host.now()

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
            if leg in self._legs:
                self.broken = True
                self._drop(leg)

    def _drop(self, leg: Leg) -> None:
        """It is lost, or there is one too many."""
        self._legs.remove(leg)
        leg.connection.forgive(self._host.now())
        self._heard = max(self._heard, leg.connection.heard)
        self._bytes_in += leg.path.bytes_in
        self._bytes_out += leg.path.bytes_out
        leg.path.close()
        if leg.meter is not None:
            leg.meter.leave()
        self._lane.detach(leg.connection)
        if leg is self._leg:
            self._leg = None
            self._choose(self._host.now())
            self._changed.unpark_all()

    def _end(self, code: str) -> None:
        """The link is over: say so to everybody who waits, here and at the other end."""
        if not self.alive:
            return
        self.code = code
        self._say_goodbye()
        for leg in list(self._legs):
            self._drop(leg)
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
        """On the leg that carries the link, or another that takes the words."""
        for leg in sorted(self._legs, key=lambda leg: leg is not self._leg):
            if leg.path.blocked or not (
                words := self._lane.take(leg.connection, 1 << 16, self._host.now())
            ):
                continue
            with suppress(PathLost):
                leg.path.send(words)
                leg.path.finish()
                self._legs.remove(leg)  # `_serve` closes it
                self._lane.detach(leg.connection)
                if leg is self._leg:
                    self._leg = None
                return

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
                if leg not in self._legs:
                    return
                if leg.meter is not None:
                    await self._keep_to_caps(leg, leg.meter)
                data = await path.receive()
                if not data:
                    return
        except PathLost:
            return

    async def _keep_to_caps(self, leg: Leg, meter: Meter) -> None:
        """Charge what was read, and wait until more may be."""
        now, path = self._host.now(), leg.path
        flows = meter.read(leg.connection, path.bytes_in, now)
        path.read_most = defaults.READ_BYTES
        while flows:
            path.read_most, at = meter.room(flows, defaults.READ_BYTES, now)
            if path.read_most:
                break
            meter.paused = True
            await trio.sleep_until(at)
            leg.connection.heard = now = self._host.now()
        meter.paused = False

    def _take_in(self, leg: Leg, data: Bytes, now: float) -> None:
        backlog = self._lane.outbox.backlog
        received = leg.connection.received
        if self._rescue_scope is not None or self.quiet:
            self._found()
        for event in self._lane.receive(leg.connection, data, now):
            if self.code is not None:
                return
            self._on[type(event)](event)
        if leg.writer.has_output:
            leg.writer.flush(at_once=True)
        if leg is not self._leg and self._leg is not None:
            if self.hurry:
                self._tick_at(now)
            if received != leg.connection.received:
                self._preferred(leg, now)
            self._leg.writer.flush(at_once=True)
        if backlog > self._limits.backlog_bytes >= self._lane.outbox.backlog:
            self._room.unpark_all()
        self._account()

    def _preferred(self, leg: Leg, now: float) -> None:
        """The peer sends by another one than we: does ours work? Of equals the side that was
        dialled takes the other's choice: one that carries both ways shows at once when it dies."""
        if not self.identities.dialled:
            leg.wanted = now
            self._choose(now)
        if self._leg is leg:
            return
        for ours in self._legs:
            if ours.way.rank < leg.way.rank:  # it has found none of these to be better
                ours.connection.hint(now)
            elif ours is self._leg:
                ours.connection.ping_soon(now)
            else:
                continue
            ours.due = now
            self._tick_at(now)

    def _account(self) -> None:
        if self.code is None:
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
        if self._leg is not None:
            self._leg.writer.flush()

    def _wrote(self) -> None:
        """What is under way now does not wait for the look at an idle link."""
        if (leg := self._leg) is not None:
            at = leg.connection.look_at(self._host.now())
            if at < leg.due:
                leg.due = at
                self._tick_at(at)
        self._wake_senders()

    def _wake_senders(self) -> None:
        for core in self._lane.streams.values():
            if core.context is not None:
                core.context.wake_sender()

    def _answers_wait(self) -> None:
        self._flush()
        self._account()

    # Calls in flight.

    async def _has_room(self, deadline: float) -> bool:
        """Wait until the backlog is short enough for a new call; False at the deadline."""
        with trio.move_on_at(deadline):
            while self._lane.outbox.backlog > self._limits.backlog_bytes:
                await self._room.park()
                self._check_alive()
            return True
        return False

    async def _answer_to(
        self,
        method: str,
        header: Mapping[str, Any],
        payload: Bytes,
        priority: Priority,
        deadline: float,
    ) -> Answered | None:
        """The answer; None at the deadline."""
        try:
            call = self._lane.call(method, header, payload, priority)
        except ValueError as error:
            raise CallRefused("too-large", str(error)) from None
        self._flush()
        self._account()
        self._check_alive()
        call.context = trio.lowlevel.current_task()
        call.deadline = deadline
        self._calls.add(call)
        self._alarm(deadline)

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._calls.discard(call)
            self._give_up(call)
            return trio.lowlevel.Abort.SUCCEEDED

        answered: Answered | None = await trio.lowlevel.wait_task_rescheduled(abort)
        return answered

    def _give_up(self, call: OutCall) -> None:
        if self.alive:
            self._lane.give_up(call)
            if self._leg is not None:
                self._leg.writer.wake()

    def expire(self, now: float) -> float:
        """End the calls whose time is over; the earliest deadline of the others."""
        for call in [call for call in self._calls if call.deadline <= now]:
            self._wake(call, outcome.Value(None))
            self._give_up(call)
        return min((call.deadline for call in self._calls), default=inf)

    def _wake(self, call: OutCall, result: outcome.Outcome[Any]) -> None:
        if call in self._calls:
            self._calls.discard(call)
            trio.lowlevel.reschedule(call.context, result)

    def _adopt(self, core: LaneStream) -> "Stream":
        stream = core.context = Stream(
            self._lane,
            core,
            flush=self._flush,
            ended=self._ended,
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

    def _ended(self) -> LinkClosed | None:
        return None if self.code is None else self._closed()

    def _closed(self) -> LinkClosed:
        return LinkClosed(self.code or "closed", f"the link to {self.peer} ended ({self.code})")


def _unwrap(answered: Answered, method: str) -> Reply:
    if answered.code is not None:
        words = answered.message or answered.code
        raise CallRefused(answered.code, f"the peer refused `{method}`: {words}")
    return Reply(answered.header, answered.payload, answered.priority)
