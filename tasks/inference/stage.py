"""Serving part of a session: passes inputs from links to the engine, and results to the next stage.

The handlers of spans and fed tokens are plain functions. A frame's payload therefore reaches the
engine in the same call in which it arrived, neither parsed nor copied. Spec: docs/spec/session.md.
"""

from contextlib import suppress
from dataclasses import dataclass

import trio
from msgspec import structs
from trio import TaskStatus

from ...transport.errors import CallRefused, LinkClosed
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ...transport.link.calls import Call, Refusal, Reply
from ...transport.link.link import Link
from ...transport.rates import Rate, Rates
from ..costs.shardcosts import NO_COSTS, ShardCosts
from ..defaults import (
    PASSED_BYTES,
    SENT_BYTES,
    SESSION_IDLE,
    SESSIONS_PER_STAGE,
    SPANS_BYTES,
    SPANS_WAITING,
    WATCHES,
)
from ..drafting.inputs import Inputs
from ..engine.errors import EngineError
from ..engine.interface import (
    NAME_BYTES,
    DroppedEvent,
    Engine,
    EngineEvent,
    FailedEvent,
    HiddenEvent,
    Parts,
    Sampling,
    SessionId,
    SessionTerms,
    Span,
    TokenEvent,
    Want,
)
from ..engine.kv.blocks import BLOCK
from ..errors import SessionError
from ..placement.shard import HeldShard
from ..usage.metering import UsageMeter, Use
from .courier import Courier
from .names import names_behind
from .serving.meetings import Meetings
from .session import (
    AskState,
    Close,
    Failed,
    FeedToken,
    Open,
    Quiet,
    SampledToken,
    SessionClosed,
    SessionOpened,
    SpanMessage,
    SpanProgress,
    pack_tokens,
    unpack_tokens,
    veiled,
)
from .slowlinks import SlowLinks
from .speed import ServedSpeed
from .stageadapters import AdapterSource, StageAdapters
from .stagechunks import StageChunks
from .stageload import StageLoads
from .stagesessions import (
    AsksShard,
    ServedShard,
    StageSession,
    StageSessions,
    WaitingSpan,
    coded,
)
from .surviving.copying import StageCopies
from .surviving.rebuilding import Rebuilding
from .surviving.recovery import LOST_STATE
from .surviving.sentlog import SentBudget, SentLog
from .surviving.stagechanges import StageChanges, neighbours


@dataclass(slots=True)
class _Freeing:
    """A session whose KV must be freed, except blocks with one of `names`. `done` is set when it
    is."""

    engine_id: SessionId
    names: bytes
    done: trio.Event


class Stage:
    """Stages of this node, one for each shard of its engine, with the sessions of all gateways.

    Without an engine (no torch), there is no shard and every session is refused.
    """

    def __init__(
        self,
        host: Host,
        courier: Courier,
        engine: Engine | None,
        *,
        sent_bytes: int = SENT_BYTES,
        idle: float = SESSION_IDLE,
    ) -> None:
        self._host = host
        self._courier = courier
        self._engine_or_none = engine
        self._adapters = StageAdapters(host, courier.peer)
        self.chunks = StageChunks()
        """KV of other nodes for the sessions here, and what these leave behind."""
        self._idle = idle
        self.meter = UsageMeter(courier.peer)
        self._all = StageSessions(courier.peer)
        self._meetings = Meetings(host, courier)
        self._changes = StageChanges(host, courier, self._all, self._meetings)
        self.copies = StageCopies(host, courier, engine, self._all, self._meetings)
        """Copies of sessions' KV to standbys."""
        self._budget = SentBudget(sent_bytes)
        self._slow = SlowLinks()
        self._freeing, self._to_free = trio.open_memory_channel[_Freeing](SESSIONS_PER_STAGE * 4)
        courier.on_link_lost(self._link_lost)
        courier.hold_links(self._computes_for)
        courier.watch_links(self._waits_for)
        courier.on_link_quiet(lambda link: self._tell(link.peer, quiet=True))
        courier.on_link_back(lambda link: self._tell(link.peer, quiet=False))
        self._watches = Rates(Rate(*WATCHES))
        courier.handle("session.state", coded(self._on_state))
        courier.handle("stage.probe", StageLoads(host, self._all).on_probe)
        courier.handle("session.open", self._on_open)
        courier.handle("session.close", self._on_close)
        courier.handle("session.span", coded(self._on_span))
        courier.handle("session.feed", coded(self._on_feed))

    def use_adapters(self, source: AdapterSource) -> None:
        """Register the source of adapters. Without it, sessions have none."""
        self._adapters.use(source)

    def find_shard(self, asked: AsksShard) -> ServedShard:
        """Return the shard that a message asks for. Raises SessionError `no-shard`."""
        return self._all.find_shard(asked)

    @property
    def logged_bytes(self) -> int:
        """Bytes of inputs that all sessions together have logged for replay."""
        return self._budget.used

    @property
    def _engine(self) -> Engine:
        assert self._engine_or_none is not None  # without an engine, no session opens
        return self._engine_or_none

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self._all.open)

    @property
    def waited_for(self) -> int:
        """Number of interactive sessions that compute here or did so lately."""
        return self._all.waited_for(self._host.now())

    def hold(self) -> None:
        """Have sessions of jobs wait for a request that has come to this node's gateway."""
        if self._engine_or_none is not None and self._all.has_jobs:
            self._engine.hold()

    def idle_time(self, number: int) -> float:
        """Return for how many seconds no session of a shard has been open, 0 if one is."""
        return self._all.idle_time(number, self._host.now())

    def speed(self, root: str, parts: Parts) -> ServedSpeed:
        """Return the speed of a shard, as predicted and measured."""
        return self._all.speed(root, parts)

    def room(self, root: str, parts: Parts, gateway: PeerId | None = None) -> int:
        """Return how many positions of KV one more session of a gateway may reserve now in a shard.

        None stands for this node's own gateway. The result is 0 if the shard is not held.
        """
        return self._all.room(root, parts, gateway)

    def log(self, gateway: PeerId, session: SessionId, index: int) -> SentLog | None:
        """Return the log of inputs that a session has sent to the next stage, or None if it is not
        open."""
        found = self._all.open.get((gateway, session, index))
        return found.log if found else None

    def serve(self, held: HeldShard, number: int = 0, costs: ShardCosts = NO_COSTS) -> None:
        """Accept sessions for the shard that the engine now has under a number.

        `costs` are what the engine measured after loading it. Sessions of an earlier shard with
        this number fail.
        """
        self.withdraw(number)
        speed = ServedSpeed(costs)
        self._all.shards[number] = ServedShard(number, held, self._host.now(), speed)

    def withdraw(self, number: int = 0) -> None:
        """End all sessions of a shard with code `shard-gone` and open no others, because the engine
        does not have it."""
        served = self._all.shards.pop(number, None)
        for session in self._all.of_shard(served):
            self._fail(session, "shard-gone", "the stage's engine stopped or took another shard")

    def _computes_for(self, peer: PeerId) -> bool:
        """Return whether the peer is the gateway of a session here. It may sleep and continue
        later."""
        return any(session.gateway == peer for session in self._all.open.values())

    def _waits_for(self, peer: PeerId) -> bool:
        """Return whether the peer is the gateway of a session here or a neighbour in its chain.

        Their silence must be detected early, because only the link shows it.
        """
        return any(
            peer in (session.gateway, session.previous, session.next)
            for session in self._all.open.values()
        )

    def _link_lost(self, link: Link, code: str) -> None:
        """End the sessions of a lost gateway. Fail the sessions whose chain has lost a
        neighbour."""
        self._slow.lost(link.peer)
        for session in list(self._all.open.values()):
            if session.gateway == link.peer:
                self._drop(session)
            elif link.peer in (session.previous, session.next):
                self._tell_lost(session, link.peer, f"the link ended: {code}")

    def _tell_lost(self, session: StageSession, peer: PeerId, why: str) -> None:
        """Report that a neighbour in a session's chain is lost. The session stays, because the
        gateway may give it another neighbour."""
        if session.open.pooled:
            self._fail(session, "stage-lost", why, lost=peer)
        elif not session.told_lost:
            session.told_lost = True
            self._report(session, Quiet(session.open.session, session.open.epoch, peer, True, True))

    def _report(self, session: StageSession, message: Quiet) -> None:
        with suppress(LinkClosed):  # the gateway is lost too
            self._courier.post(
                session.gateway, "session.quiet", message.header(), priority=Priority.CONTROL
            )

    def _tell(self, peer: PeerId, *, quiet: bool) -> None:
        """Report that a peer is quiet, or heard again, to the gateways of chains in which it is a
        neighbour.

        Only the gateway can choose another chain.
        """
        for session in self._all.open.values():
            if peer != session.gateway and peer in (session.previous, session.next):
                order = session.open
                self._report(session, Quiet(order.session, order.epoch, peer, quiet))

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Free closed sessions and end idle ones, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._free)
            task_status.started()
            while True:
                await trio.sleep(self._idle / 10)
                self._sweep()

    def _sweep(self) -> None:
        """Fail the sessions without a message for the idle time."""
        for session in list(self._all.open.values()):
            if session.heard < self._host.now() - self._idle:
                self._fail(session, "idle", f"no message for {self._idle:g} s")

    async def _free(self) -> None:
        """Close dropped sessions in the engine, one after another."""
        async for item in self._to_free:
            await self._engine.close(item.engine_id, item.names)
            item.done.set()

    def _on_state(self, call: Call) -> Reply | Refusal:
        """Handle `session.state`: tell a gateway what delays its session."""
        if not self._watches.take(call.peer, self._host.now()):
            return Refusal("busy", "this stage is asked too often")
        return Reply(self._all.state(call.peer, AskState.parse(call.header)).fields())

    # Opening and closing.

    async def _on_open(self, call: Call) -> Reply | Refusal:
        try:
            message = Open.parse(call.header)
            _check_names(call.payload, message.tokens)
            self._all.check(message)
            await self._meetings.meet(call.peer, neighbours(message.stages, message.index))
            session = self._admit(call.peer, message)
            return await self._open(session, bytes(call.payload))
        except (SessionError, EngineError) as error:
            return Refusal(error.code, error.message)

    def _admit(self, gateway: PeerId, message: Open) -> StageSession:
        """Register a new session. Raises SessionError if this stage cannot take it or reach its
        peers."""
        if older := self._all.superseded(gateway, message):
            self._drop(older)
        freeing = self._to_free.statistics().current_buffer_used
        served = self._all.check(message)
        self._all.check_open(gateway, message, self._host.now(), freeing)
        yielding = self._all.yielding(gateway, message, served, self._host.now())
        session = StageSession(
            open=message,
            served=served,
            gateway=gateway,
            use=Use(gateway, message.root, message.job),
            engine_id=self._host.entropy(16),  # two gateways may use the same session id
            log=SentLog(self._budget),
            heard=self._host.now(),
            opened=self._host.now(),
        )
        for peer in (session.gateway, session.previous, session.next):
            if not self._courier.reaches(peer):
                raise SessionError("unreachable", f"this stage has no link to {peer}")
        why = "another session needed its memory"
        session.awaits = tuple(self._fail(each, "preempted", why) for each in yielding)
        self._all.open[session.name] = session
        self._all.opening.add(session)
        return session

    async def _open(self, session: StageSession, names: bytes) -> Reply:
        """Open the session in the engine and return the reply, with the number of cached positions.

        `names` are those of the prompt's full blocks, by which the engine looks for cached ones.

        Raises EngineError if the engine refuses, and SessionError if the session was closed
        meanwhile.
        """

        def on_event(event: EngineEvent) -> None:
            self._on_event(session, event)

        opened = False
        try:
            for event in session.awaits:
                await event.wait()
            session.served.names.note(session.gateway, names)
            names = names_behind(names, session.before)
            order, number = session.open, session.served.number
            terms = SessionTerms(
                *(session.gateway, order.idle, names, order.user, number, order.soon),
                order.adapter,
                own=session.gateway == self._courier.peer,
                exact=session.exact,
                packed=session.packed,
            )
            cached = await self._adapters.open(self._engine, session, on_event, terms)
            cached = await self.chunks.brought(session, names, cached)
            opened = session.name in self._all.open
        finally:
            self._all.opening.discard(session)
            if not opened:  # refused, cancelled, or closed in the meantime
                self._drop(session)
        if not opened:
            raise SessionError(session.failed or "session-closed", "the session was closed")
        session.computed = cached
        if session.open.standby is None:
            self.meter.opened(session.use)
        session.passed = cached
        held, order = session.served.held, session.open
        if order.resume:
            session.rebuilding = Rebuilding(order.resume, cached)
        return Reply(SessionOpened(cached, order.activations, held.drafts).fields())

    async def _on_close(self, call: Call) -> Reply | Refusal:
        try:
            message = Close.parse(call.header)
        except SessionError as error:
            return Refusal(error.code, error.message)
        freed, slow, now = [], dict[PeerId, float](), self._host.now()
        for session in self._all.close(call.peer, message.session, message.epoch):
            self.meter.made(session.use, tokens=session.right(message.length), seconds=0.0)
            # The session ends in any case, so names that are malformed or too many are ignored.
            whole = min(len(call.payload) // NAME_BYTES, session.open.tokens // BLOCK)
            names = bytes(call.payload[: whole * NAME_BYTES])
            session.served.names.note(session.gateway, names)
            names = names_behind(names, session.before)
            freed.append(self._drop(session, names))
            self.chunks.saved(session, names)
            if rate := self._slow.rate(session.next, now):
                slow[session.next] = rate
        for event in freed:
            await event.wait()
        return Reply(SessionClosed(tuple(slow.items())).fields())

    def _drop(self, session: StageSession, names: bytes = b"") -> trio.Event:
        """Remove a session and free its KV, except blocks with one of `names`, which stay cached.

        The returned event is set when the KV is freed.
        """
        if self._all.remove(session, self._host.now()):
            self._engine.cancel(session.engine_id)
        done = trio.Event()
        self._freeing.send_nowait(_Freeing(session.engine_id, names, done))
        return done

    def _fail(
        self, session: StageSession, code: str, message: str, *, lost: PeerId | None = None
    ) -> trio.Event:
        """Drop a session and report its failure to its gateway. `lost` is the neighbour that was
        lost. The returned event is set when its KV is freed."""
        session.failed = code
        freed = self._drop(session)
        failed = Failed(session.open.session, session.open.epoch, code, message, lost)
        with suppress(LinkClosed):  # the gateway is lost too
            self._courier.post(
                session.gateway, "session.failed", failed.header(), priority=Priority.CONTROL
            )
        return freed

    # Incoming spans.

    def _on_span(self, call: Call) -> Reply | Refusal:
        message = SpanMessage.parse(call.header)
        session = self._all.find(call.peer, message, message.index)
        if call.peer != session.previous:
            raise SessionError("not-yours", "spans come from the stage before")
        if message.start + message.count > session.open.tokens:
            raise SessionError("bad-message", "the span ends beyond the session's `tokens`")
        held, rebuilding = session.served.held, session.rebuilding
        if rebuilding and not rebuilding.takes(message.start, message.count, token=message.token):
            return Reply()  # it was sent before this stage had asked for what is before it
        if not held.parts.head and message.count * session.row_bytes > PASSED_BYTES:
            # Computing it would be in vain, since no lane takes the result.
            raise SessionError("bad-message", f"the result would exceed {PASSED_BYTES} bytes")
        if message.draft:
            self._on_window(session, message, call.payload)
        elif session.open.index == 0:
            if message.token:
                session.inputs = Inputs(message.start + message.count)
            tokens = unpack_tokens(call.payload, message.count)
            self._submit(session, message, tokens=_known(tokens, held))
        elif len(call.payload) != message.count * session.row_bytes:
            raise SessionError("bad-message", f"{len(call.payload)} bytes are not that span")
        else:
            self._submit(session, message, hidden=call.payload)
        self._changes.ask(session)
        return Reply()

    def _on_feed(self, call: Call) -> Reply | Refusal:
        message = FeedToken.parse(call.header)
        session = self._all.find(call.peer, message, 0)
        if session.single or call.peer != session.open.stages[-1]:
            raise SessionError("not-yours", "tokens are fed by the head to the first stage")
        if message.position >= session.open.tokens:
            raise SessionError("bad-message", "the position is beyond the session's `tokens`")
        (token,) = _known((message.token,), session.served.held)
        session.inputs = session.inputs or Inputs(session.reached)
        try:
            work = session.inputs.feed(message.position, token)
        except ValueError as error:
            raise SessionError("bad-message", str(error)) from None
        if work is not None:
            at = message.position
            span = SpanMessage(message.session, message.epoch, 0, at, 1, True, 0.0)
            self._submit(session, span, tokens=work.tokens)
        return Reply()

    def _on_window(
        self, session: StageSession, message: SpanMessage, payload: bytes | memoryview
    ) -> None:
        """Have a window of drafts computed, unless it is void. Raises SessionError if it is
        invalid."""
        held = session.served.held
        if not held.drafts or session.open.pooled:
            raise SessionError("bad-message", "this session has no windows")
        if session.ended:
            return
        if session.open.index:
            states = message.count * session.row_bytes
            if len(payload) != states + 4 * message.count:
                raise SessionError("bad-message", f"{len(payload)} bytes are not that window")
            self._pass_window(session, message, memoryview(payload), states)
            return
        tokens = _known(unpack_tokens(payload, message.count), held)
        if session.single:
            self._guess(session, message, tokens)
        elif session.inputs is not None and session.waiting < SPANS_WAITING // 2:
            work = session.inputs.window(message.branch, message.start, tokens)
            if work is not None:
                veil = veiled(session.open.veil, work.start, work.tokens)
                window = structs.replace(message, start=work.start, count=len(work.tokens))
                self._submit(session, window, tokens=work.tokens, ids=pack_tokens(veil))

    def _pass_window(
        self, session: StageSession, message: SpanMessage, payload: memoryview, states: int
    ) -> None:
        """Have a window of the stage before computed. The first `states` bytes of its payload are
        hidden states, the others are token ids."""
        tokens, ids = None, bytes(payload[states:])
        if session.open.parts.head:
            found = unpack_tokens(ids, message.count)
            found = veiled(session.open.veil, message.start, found)
            tokens = _known(found, session.served.held)
        self._submit(session, message, tokens=tokens, hidden=payload[:states], ids=ids)

    def _guess(self, session: StageSession, message: SpanMessage, tokens: tuple[int, ...]) -> None:
        """Give a window to the engine, which runs the loop of the session alone."""
        session.heard = self._host.now()
        try:
            self._engine.submit(
                Span(
                    *(session.engine_id, session.open.epoch, message.start, message.count),
                    tokens=tokens,
                    want="token",
                    draft=True,
                )
            )
        except EngineError as error:
            self._fail(session, error.code, error.message)

    def _submit(
        self,
        session: StageSession,
        message: SpanMessage,
        *,
        tokens: tuple[int, ...] | None = None,
        hidden: bytes | memoryview | None = None,
        ids: bytes = b"",
    ) -> None:
        """Send a span to the engine: `tokens` at the first stage, `hidden` states at the others,
        and both for a window at the head. `ids` are the veiled tokens of a window.

        Fails the session if too many spans wait or the engine refuses.
        """
        session.heard = self._host.now()
        size = len(hidden or b"") + 4 * len(tokens or ())
        # The queue of the engine uses memory of this process and of the worker.
        waiting = session.waiting_bytes
        if session.waiting >= SPANS_WAITING or waiting + size > SPANS_BYTES:
            why = f"{session.waiting} spans of {waiting} bytes are waiting already"
            self._fail(session, "too-many-spans", why)
            return
        session.queued.append(WaitingSpan(size, message.seconds, message.token, message.draft, ids))
        session.reached = max(session.reached, message.start + message.count)
        self.meter.read(session.use, 0 if session.asked else message.count)
        session.asked = session.asked or message.token
        order = session.open
        span = Span(
            session=session.engine_id,
            epoch=order.epoch,
            start=message.start,
            count=message.count,
            tokens=tokens,
            hidden=hidden,
            want=_wanted(order, message),
            sampling=Sampling(*order.sampling or ()),
            steps=order.steps if session.single and message.token else 1,
            stop_ids=order.stop_ids or (),
            top=order.top,
            draft=message.draft,
        )
        try:
            self._engine.submit(span)
        except EngineError as error:
            self._fail(session, error.code, error.message)

    # Outgoing events.

    def _on_event(self, session: StageSession, event: EngineEvent) -> None:
        """Process an event of the engine. Fails the session if it cannot be sent on."""
        if self._all.open.get(session.name) is not session:
            return  # the session was closed in the meantime
        failed = isinstance(event, FailedEvent) and event.code in LOST_STATE
        if event.epoch < session.open.epoch and not failed:
            return  # the chain was changed since
        try:
            match event:
                case HiddenEvent():
                    self._pass_on(session, event, session.queued.popleft())
                case TokenEvent():
                    before = session.queued[0]
                    if event.final:  # the last token of a loop, or of a window
                        session.queued.popleft()
                    if not session.ended:
                        self._pass_token(session, event, before)
                case DroppedEvent():
                    session.queued.popleft()
                case FailedEvent():
                    if event.code == "bad-chunk":
                        self.chunks.refuted(session)
                    self._fail(session, event.code, event.message)
        except LinkClosed as error:
            self._tell_lost(session, session.next, error.message)
        except CallRefused as error:  # the message is too large for the lane
            self._fail(session, error.code, error.message)

    def _pass_on(self, session: StageSession, event: HiddenEvent, before: WaitingSpan) -> None:
        """Send hidden states to the next stage. At the head, report the progress to the gateway
        instead, with the pooled states if it wants them."""
        order, end = session.open, event.start + event.count
        self.meter.made(session.use, tokens=0, seconds=event.seconds)
        if not before.draft:
            texts = self._all.texts(session.served)
            session.note_computed(end, event.count, event.seconds, texts)
        session.served.speed.note(event.count, event.predicted, event.seconds)
        if session.rebuilding is not None and end <= session.rebuilding.resume:
            self._changes.built(session, event)
            return
        session.passed = end
        self._count(session, event, before)
        if order.parts.head:
            progress = SpanProgress(order.session, order.epoch, end).header()
            if order.pooled:
                self._courier.post(session.gateway, "session.pooled", progress, event.data)
            else:
                self._courier.post(session.gateway, "session.progress", progress)
            return
        session.log.append(order.epoch, event.start, event.count, event.data)
        span = SpanMessage(
            session=order.session,
            gateway=session.gateway,
            epoch=order.epoch,
            index=order.index + 1,
            start=event.start,
            count=event.count,
            token=before.token,
            seconds=before.seconds + event.seconds,
            draft=before.draft,
        )
        data = b"".join((event.data, before.veiled)) if before.draft else event.data
        if before.draft or event.count <= BLOCK:
            self._slow.passes(session.next, len(data))
        else:
            waiting = self._courier.waiting(session.next)
            self._slow.sends(session.next, len(data), *waiting, self._host.now())
        self._courier.post(session.next, "session.span", span.header(), data)

    def _count(self, session: StageSession, event: HiddenEvent, before: WaitingSpan) -> None:
        """Count the tokens that follow from inputs that were right: those before a window, and all
        up to a token that was fed. What a window has guessed is counted later."""
        end = event.start + event.count
        if before.token and session.counted is None:
            session.counted = end - 1
        if before.token:
            right = session.right(event.start if before.draft else end)
            self.meter.made(session.use, tokens=right, seconds=0.0)

    def _pass_token(self, session: StageSession, event: TokenEvent, before: WaitingSpan) -> None:
        """Send a sampled token to the gateway and, if it is the last one of its span and not of the
        session, to the first stage."""
        order = session.open
        if event.seconds:  # else it was computed together with its predecessor
            rows = 1 if session.made else max(1, event.position - session.computed)
            if not before.draft:
                texts = self._all.texts(session.served)
                session.note_computed(event.position, rows, event.seconds, texts)
            # The time of a window is that of several rows.
            session.served.speed.note(rows + before.draft, event.predicted, event.seconds)
        session.made += 1
        session.reached = max(session.reached, event.position)
        session.passed = event.position
        self.meter.made(session.use, tokens=1, seconds=event.seconds)
        session.heard = self._host.now()
        final = event.final if session.single else self._is_final(session, event)
        session.ended = final
        if event.final and not final:  # sent before the gateway's message, to save time
            feed = FeedToken(
                order.session, order.epoch, event.position, event.token, session.gateway
            )
            self._courier.post(session.next, "session.feed", feed.header())
        token = SampledToken(
            session=order.session,
            epoch=order.epoch,
            position=event.position,
            token=event.token,
            logprob=max(event.logprob, -1e9),
            final=final,
            seconds=before.seconds + event.seconds,
            top=tuple((other, max(logprob, -1e9)) for other, logprob in event.top),
        )
        before.seconds = 0.0
        self._courier.post(session.gateway, "session.token", token.header())

    @staticmethod
    def _is_final(session: StageSession, event: TokenEvent) -> bool:
        """Return whether this is the session's last token."""
        order = session.open
        return (
            event.token in (order.stop_ids or ())
            or session.made >= order.steps
            or event.position >= order.tokens
        )


def _wanted(order: Open, message: SpanMessage) -> Want:
    """Return what the engine must compute for a span."""
    if not order.parts.head:
        return "hidden"
    if order.pooled:
        return "pooled"
    return "token" if message.token else "hidden"


def _check_names(payload: bytes | memoryview, tokens: int) -> None:
    """Raise SessionError unless a payload has at most one name for each full block of `tokens`
    positions."""
    if len(payload) % NAME_BYTES or len(payload) > tokens // BLOCK * NAME_BYTES:
        raise SessionError("bad-message", f"{len(payload)} bytes are no names of {tokens} tokens")


def _known(tokens: tuple[int, ...], held: HeldShard) -> tuple[int, ...]:
    """Return the token ids. Raises SessionError if one of them is not in the vocabulary."""
    if max(tokens) >= held.vocabulary:
        raise SessionError("bad-message", f"a token id exceeds the vocabulary {held.vocabulary}")
    return tokens
