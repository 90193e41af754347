"""Stages of this node: opens and closes sessions, and tells gateways of lost neighbours.

The modules in `serving/` handle inputs and outputs of sessions. Spec: docs/spec/session.md.
"""

from collections.abc import Collection

import trio
from trio import TaskStatus

from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.calls import Call, Refusal, Reply
from ...transport.link.link import Link
from ...transport.rates import ByteBudget, Rate, Rates
from ..costs.shardcosts import NO_COSTS, ShardCosts
from ..defaults import (
    SENT_BYTES,
    SESSION_IDLE,
    WATCHES,
)
from ..engine.errors import EngineError
from ..engine.interface import (
    NAME_BYTES,
    NO_RULES,
    Engine,
    EngineEvent,
    Parts,
    SessionId,
    SessionTerms,
)
from ..engine.kv.blocks import BLOCK
from ..errors import SessionError
from ..placement.shard import ShardProperties
from ..usage.metering import UsageMeter, Use
from .courier import Courier
from .messages import (
    AskState,
    Close,
    Open,
    Quiet,
    SessionClosed,
    SessionOpened,
)
from .names import names_behind
from .serving.endings import StageEndings, StageParts
from .serving.inputs import StageInputs
from .serving.meetings import Meetings
from .serving.outputs import StageOutputs
from .serving.recalling import StageRecalls
from .serving.stagesession import ServedShard, StageSession
from .slowlinks import SlowLinks
from .speed import ServedSpeed
from .stageadapters import AdapterSource, StageAdapters
from .stagechunks import Connector, StageChunks
from .stageload import StageLoads
from .stagesessions import AsksShard, StageSessions, coded
from .surviving.copying import StageCopies
from .surviving.rebuilding import Rebuilding
from .surviving.sentlog import SentLog
from .surviving.stagechanges import StageChanges, neighbours


class Stage:
    """Stages of this node, one for each shard of its engine, with the sessions of all gateways.

    Without an engine (no torch), there is no shard and every session is refused. `table` lists the
    shards and the sessions, `adapters` finds the adapters of sessions, and `connector` brings KV of
    other nodes. Without these two, sessions have no adapters, and all KV is computed here.
    """

    def __init__(
        self,
        host: Host,
        courier: Courier,
        engine: Engine | None,
        *,
        table: StageSessions | None = None,
        adapters: AdapterSource | None = None,
        connector: Connector | None = None,
    ) -> None:
        self._host = host
        self._courier = courier
        self._adapters = StageAdapters(host, courier.peer, adapters)
        self._chunks = StageChunks(courier, connector)
        self.meter = UsageMeter(courier.peer)
        self.table = table or StageSessions(courier.peer)
        """The shards that are served, and the sessions of all gateways."""
        self._meetings = Meetings(host, courier)
        self._changes = StageChanges(host, courier, self.table, self._meetings)
        self.copies = StageCopies(host, courier, engine, self.table, self._meetings)
        """Copies of sessions' KV to standbys."""
        self._budget = ByteBudget(SENT_BYTES)
        self._slow = SlowLinks()
        self.endings = StageEndings(host, courier, engine, self.table)
        """What ends sessions, and frees their KV."""
        self._parts = StageParts(host, courier, engine, self.table, self.meter, self.endings)
        self._outputs = StageOutputs(self._parts, self._changes, self._chunks, self._slow)
        StageInputs(self._parts, self._changes).listen()
        StageRecalls(self._parts).listen()
        courier.on_link_lost(self._link_lost)
        courier.hold_links(self._computes_for)
        courier.watch_links(self._waits_for)
        courier.on_link_quiet(lambda link: self._tell(link.peer, quiet=True))
        courier.on_link_back(lambda link: self._tell(link.peer, quiet=False))
        self._watches = Rates(Rate(*WATCHES))
        courier.handle("session.state", coded(self._on_state))
        self._loads = StageLoads(host, self.table)
        courier.handle("stage.probe", self._loads.on_probe)
        courier.handle("session.open", self._on_open)
        courier.handle("session.close", self._on_close)

    def expect(self, peers: Collection[PeerId]) -> None:
        """Prepare the links to members that may be neighbours in a chain."""
        self._meetings.expect(peers)

    def find_shard(self, asked: AsksShard) -> ServedShard:
        """Return the shard that a message asks for. Raises SessionError `no-shard`."""
        return self.table.find_shard(asked)

    @property
    def logged_bytes(self) -> int:
        """Bytes of inputs that all sessions together have logged for replay."""
        return self._budget.used

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self.table.open)

    @property
    def waited_for(self) -> int:
        """Number of interactive sessions that compute here or did so lately."""
        return self.table.waited_for(self._host.now())

    def hold(self) -> None:
        """Have sessions of jobs wait for a request that has come to this node's gateway."""
        if self.table.has_jobs:
            self._parts.engine.hold()

    def idle_time(self, number: int) -> float:
        """Return for how many seconds no session of a shard has been open, 0 if one is."""
        return self.table.idle_time(number, self._host.now())

    def unused_time(self, number: int) -> float:
        """Return for how many seconds nothing has used a shard: 0 if a session, a standby or a
        tuning does."""
        return self.table.unused_time(number, self._host.now())

    def speed(self, root: str, parts: Parts) -> ServedSpeed:
        """Return the speed of a shard, as predicted and measured."""
        return self.table.speed(root, parts)

    def room(self, root: str, parts: Parts, gateway: PeerId | None = None) -> int:
        """Return how many positions of KV one more session of a gateway may reserve now in a shard.

        None stands for this node's own gateway. The result is 0 if the shard is not held.
        """
        return self.table.room(root, parts, gateway)

    def log(self, gateway: PeerId, session: SessionId, index: int) -> SentLog | None:
        """Return the log of inputs that a session has sent to the next stage, or None if it is not
        open."""
        found = self.table.open.get((gateway, session, index))
        return found.log if found else None

    def serve(self, held: ShardProperties, number: int = 0, costs: ShardCosts = NO_COSTS) -> None:
        """Accept sessions for the shard that the engine now has under a number.

        `costs` are what the engine measured after loading it. Sessions of an earlier shard with
        this number fail.
        """
        self.withdraw(number)
        speed = ServedSpeed(costs)
        self.table.shards[number] = ServedShard(number, held, self._host.now(), speed)

    def withdraw(self, number: int = 0) -> None:
        """End all sessions of a shard with code `shard-gone` and open no others, because the engine
        does not have it."""
        served = self.table.shards.pop(number, None)
        for session in self.table.of_shard(served):
            self.endings.fail(
                session, "shard-gone", "the stage's engine stopped or took another shard"
            )

    def _computes_for(self, peer: PeerId) -> bool:
        """Return whether the peer is the gateway of a session here. It may sleep and continue
        later."""
        return any(session.gateway == peer for session in self.table.open.values())

    def _waits_for(self, peer: PeerId) -> bool:
        """Return whether the peer is the gateway of a session here or a neighbour in its chain.

        Their silence must be detected early, because only the link shows it.
        """
        return any(
            peer in (session.gateway, session.previous, session.next)
            for session in self.table.open.values()
        )

    def _link_lost(self, link: Link, code: str) -> None:
        """End the sessions of a lost gateway. Fail the sessions whose chain has lost a
        neighbour."""
        self._slow.lost(link.peer)
        for session in list(self.table.open.values()):
            if session.gateway == link.peer:
                self.endings.drop(session)
            elif link.peer in (session.previous, session.next):
                self.endings.tell_lost(session, link.peer, f"the link ended: {code}")

    def _tell(self, peer: PeerId, *, quiet: bool) -> None:
        """Report that a peer is quiet, or heard again, to the gateways of chains in which it is a
        neighbour.

        Only the gateway can choose another chain.
        """
        for session in self.table.open.values():
            if peer != session.gateway and peer in (session.previous, session.next):
                order = session.open
                self.endings.report(session, Quiet(order.session, order.epoch, peer, quiet))

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Free closed sessions and end idle ones, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.endings.free)
            await nursery.start(self._chunks.run)
            task_status.started()
            while True:
                await trio.sleep(SESSION_IDLE / 10)
                self._sweep()

    def _sweep(self) -> None:
        """Fail the sessions without a message for the idle time."""
        for session in list(self.table.open.values()):
            if session.heard < self._host.now() - SESSION_IDLE:
                self.endings.fail(session, "idle", f"no message for {SESSION_IDLE:g} s")

    def _on_state(self, call: Call) -> Reply | Refusal:
        """Handle `session.state`: tell a gateway what delays its session."""
        if not self._watches.take(call.peer, self._host.now()):
            return Refusal("busy", "this stage is asked too often")
        return Reply(self.table.state(call.peer, AskState.parse(call.header)).fields())

    # Opening and closing.

    async def _on_open(self, call: Call) -> Reply | Refusal:
        try:
            message = Open.parse(call.header)
            _check_names(call.payload, message.tokens)
            self.table.check(message)
            self._loads.check_wait(call.peer, message)
            await self._meetings.meet(call.peer, neighbours(message.stages, message.index))
            session = self._admit(call.peer, message)
            return await self._open(session, bytes(call.payload))
        except (SessionError, EngineError) as error:
            return self._loads.refused(call, error)

    def _admit(self, gateway: PeerId, message: Open) -> StageSession:
        """Register a new session. Raises SessionError if this stage cannot take it or reach its
        peers."""
        if older := self.table.superseded(gateway, message):
            self.endings.drop(older)
        freeing = self.endings.freeing
        served = self.table.check(message)
        giving = self.table.check_open(gateway, message, self._host.now(), freeing)
        yielding = self.table.yielding(gateway, message, self._host.now(), giving)
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
        why = "another session needed its place or its memory"
        session.awaits = tuple(self.endings.fail(each, "preempted", why) for each in yielding)
        self.table.open[session.name] = session
        self.table.opening[session] = None
        return session

    async def _open(self, session: StageSession, names: bytes) -> Reply:
        """Open the session in the engine and return the reply, with the number of cached positions.

        `names` are those of the prompt's full blocks, by which the engine looks for cached ones.

        Raises EngineError if the engine refuses, and SessionError if the session was closed
        meanwhile.
        """

        def on_event(event: EngineEvent) -> None:
            self._outputs.on_event(session, event)

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
                rules=order.sampling.rules if order.sampling else NO_RULES,
                network=self._courier.network(session.gateway),
            )
            cached = await self._adapters.open(self._parts.engine, session, on_event, terms)
            busy = any(each.waiting for each in self.table.of_shard(session.served))
            cached = await self._chunks.brought(session, names, cached, busy=busy)
            opened = session.name in self.table.open
        finally:
            self.table.opening.pop(session, None)
            if not opened:  # refused, cancelled, or closed in the meantime
                self.endings.drop(session)
        if not opened:
            raise SessionError(session.failed or "session-closed", "the session was closed")
        session.computed = cached
        session.heard = self._host.now()  # before, the gateway had nothing to send
        session.passed = cached
        held, order = session.served.shard, session.open
        if order.resume:
            session.rebuilding = Rebuilding(order.resume, cached)
        kept = session.skips, session.fetching
        return Reply(SessionOpened(cached, order.activations, held.drafts, *kept).fields())

    async def _on_close(self, call: Call) -> Reply | Refusal:
        try:
            message = Close.parse(call.header)
        except SessionError as error:
            return Refusal(error.code, error.message)
        freed, slow, now = [], dict[PeerId, float](), self._host.now()
        for session in self.table.close(call.peer, message.session, message.epoch):
            self.meter.made(session.use, tokens=session.right(message.length), seconds=0.0)
            # The session ends in any case, so names that are malformed or too many are ignored.
            whole = min(len(call.payload) // NAME_BYTES, session.open.tokens // BLOCK)
            names = bytes(call.payload[: whole * NAME_BYTES])
            session.served.names.note(session.gateway, names)
            names = names_behind(names, session.before)
            freed.append(self.endings.drop(session, names))
            self._chunks.saved(session, names)
            if rate := self._slow.rate(session.next, now):
                slow[session.next] = rate
        for event in freed:
            await event.wait()
        return Reply(SessionClosed(tuple(slow.items())).fields())


def _check_names(payload: bytes | memoryview, tokens: int) -> None:
    """Raise SessionError unless a payload has at most one name for each full block of `tokens`
    positions."""
    if len(payload) % NAME_BYTES or len(payload) > tokens // BLOCK * NAME_BYTES:
        raise SessionError("bad-message", f"{len(payload)} bytes are no names of {tokens} tokens")
