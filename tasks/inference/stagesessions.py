"""The shards of a node's engine, and the sessions at its stages. No I/O."""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from ...transport.identity import PeerId
from ...transport.link.calls import Call, Refusal, Reply
from ..defaults import (
    ANSWER_SOON,
    CLOSED_REMEMBERED,
    COPY_PART_BYTES,
    KV_SHARE,
    KV_TURN,
    SESSION_WAITED,
    SESSIONS_PER_GATEWAY,
    SESSIONS_PER_STAGE,
    STANDBY_FREE,
    STANDBYS,
    STANDBYS_OF_ONE,
)
from ..drafting.inputs import Inputs
from ..engine.activations.layout import packed_bytes
from ..engine.interface import DType, Parts, SessionId
from ..engine.kv.blocks import BLOCK, GROWTH, blocks_for
from ..errors import SessionError
from ..placement.shard import HeldShard
from ..routing.affinity import CachedNames
from ..routing.waiting import AnswerLength, StepTimes
from ..usage.metering import Use
from .memoryqueue import MemoryQueue
from .session import (
    AskState,
    EpochMessage,
    FeedToken,
    Need,
    Open,
    SpanMessage,
    StageState,
)
from .speed import ServedSpeed
from .surviving.rebuilding import Rebuilding
from .surviving.sentlog import SentLog

_LAST_EPOCH: Final = 2**32 - 1

Name = tuple[PeerId, SessionId, int]
"""(gateway, the session id that the gateway chose, index of the stage in the chain)."""


@dataclass(slots=True, eq=False)
class ServedShard:
    """A shard that the engine has loaded under `number`, and what was measured of it.

    `names` are the prefixes that it has probably cached. `answer` is the mean length of answers.
    """

    number: int
    held: HeldShard
    used: float  # when a session was last open
    speed: ServedSpeed = field(default_factory=ServedSpeed)
    queue: MemoryQueue = field(default_factory=MemoryQueue)
    times: StepTimes = field(init=False)
    answer: AnswerLength = field(default_factory=AnswerLength)
    names: CachedNames = field(init=False)

    def __post_init__(self) -> None:
        costs = self.speed.costs
        self.times = StepTimes(costs.row_s, costs.step_s + costs.row_s)
        self.names = CachedNames(self.held.kv_tokens)


@dataclass(slots=True, eq=False)
class WaitingSpan:
    """A span that the engine has not answered yet.

    `size` is that of its input in bytes. `veiled` are the token ids of a window, as the next stage
    gets them.
    """

    size: int
    seconds: float  # that earlier stages computed; 0 once it was passed on
    token: bool = False  # whether a token is requested
    draft: bool = False
    veiled: bytes = b""


@dataclass(slots=True, eq=False)
class StageSession:
    """State of an open session at this stage."""

    open: Open
    served: ServedShard
    gateway: PeerId
    use: Use  # the counter to which the session's usage is added
    engine_id: SessionId
    log: SentLog
    heard: float  # when the last message arrived
    opened: float = 0.0  # when it was admitted
    awaits: tuple[trio.Event, ...] = ()  # set when the engine has the memory for it
    failed: str = ""  # code of the failure that has ended it
    source: PeerId | None = None  # the node from which KV was fetched for it
    made: int = 0  # tokens sampled at this stage
    asked: bool = False  # whether a token was requested; later inputs are not part of the prompt
    counted: int | None = None  # inputs whose tokens are counted, from the end of the prompt on
    reached: int = 0  # positions that have been computed or are waiting
    passed: int = 0  # positions of which the state is complete: their output has left
    rebuilding: Rebuilding | None = None  # after its chain was changed
    changes: int = 0  # of its chain
    copied: dict[PeerId, int] = field(default_factory=dict)  # positions that standbys have
    copy_size: int = COPY_PART_BYTES  # of the next part
    copying: bool = False  # whether a part is being copied, or written at a standby
    told_lost: bool = False  # whether the gateway knows that the link to a neighbour has ended
    computed: int = 0  # positions that are cached or have been computed
    queued: deque[WaitingSpan] = field(default_factory=deque)  # in the order of their answers
    inputs: Inputs | None = None  # at the first stage, from the end of the prompt on
    ended: bool = False  # whether the last token was sent

    def right(self, end: int) -> int:
        """Note that the inputs below `end` were right. Return how many tokens of the answer follow
        from those that were not counted before."""
        if self.counted is None:
            return 0
        more = max(0, min(end, self.passed) - self.counted)
        self.counted += more
        return more

    def begin_epoch(self, rebuilding: Rebuilding) -> None:
        """Forget the spans of the previous epoch, whose answers are not used."""
        self.rebuilding = rebuilding
        self.changes += 1
        self.made = 0
        self.told_lost = False
        self.queued.clear()
        self.inputs, self.ended = None, False

    @property
    def name(self) -> Name:
        return self.gateway, self.open.session, self.open.index

    @property
    def blocks(self) -> int:
        """Blocks of KV that the engine has promised to the session, approximately."""
        order = self.open
        growing = self.reached + GROWTH * BLOCK if self.reached > order.soon else order.soon
        return blocks_for(min(order.tokens, growing))

    @property
    def prompt(self) -> int:
        """Positions of the prompt, as far as `tokens` and `soon` tell: at most ANSWER_SOON too
        few."""
        return self.open.soon - min(ANSWER_SOON, self.open.soon - 1)

    @property
    def pending(self) -> int:
        """Positions of the prompt that have not been computed yet."""
        return max(0, self.prompt - self.computed) if not self.made else 0

    def expected(self, answer: AnswerLength) -> float:
        """Return how many tokens the answer will probably still have."""
        end = self.open.tokens - max(self.reached, self.prompt)
        return min(float(max(end, 0)), answer.tokens)

    def note_computed(self, end: int, rows: int, seconds: float, texts: int) -> None:
        """Record that the engine has computed `rows` positions up to `end`, beside `texts`
        texts."""
        self.computed = max(self.computed, end)
        if rows > 1:
            self.served.times.note_prompt(rows, seconds)
        else:
            self.served.times.note_token(texts, seconds)

    @property
    def exact(self) -> bool:
        """Whether the session's KV must not stem from copies in int8.

        Sessions in float32 are exact in any case: of these, the same text is promised.
        """
        return self.open.exact or self.served.held.dtype == "float32"

    @property
    def waiting(self) -> int:
        """Number of spans that the engine has not answered yet."""
        return len(self.queued)

    @property
    def waiting_bytes(self) -> int:
        """Size of their inputs in bytes."""
        return sum(span.size for span in self.queued)

    @property
    def single(self) -> bool:
        """Whether this stage is the only one of the chain."""
        return len(self.open.stages) == 1

    @property
    def packed(self) -> bool:
        """Whether hidden states come and go packed (engine/activations/layout.py)."""
        return self.open.activations == "int8"

    @property
    def row_bytes(self) -> int:
        """Size in bytes of a hidden state from or for another stage."""
        held = self.served.held
        return packed_bytes(held.hidden) if self.packed else held.token_bytes

    @property
    def before(self) -> tuple[str, ...]:
        """What the inputs of this stage depend on beside the tokens: the stages before this one,
        and whether they have packed them."""
        before = self.open.stages[: self.open.index]
        return (*before, self.open.activations) if before and self.packed else before

    @property
    def previous(self) -> PeerId:
        """The previous stage, or the gateway before the first stage."""
        return self.open.stages[self.open.index - 1] if self.open.index else self.gateway

    @property
    def next(self) -> PeerId:
        """The next stage. After the head, this is the first stage."""
        return self.open.stages[(self.open.index + 1) % len(self.open.stages)]


def coded(work: Callable[[Call], Reply | Refusal]) -> Callable[[Call], Reply | Refusal]:
    """Return a handler that runs `work` and turns a SessionError into a refusal."""

    def handler(call: Call) -> Reply | Refusal:
        try:
            return work(call)
        except SessionError as error:
            return Refusal(error.code, error.message)

    return handler


class AsksShard(Protocol):
    """A message that names a shard."""

    @property
    def root(self) -> str: ...

    @property
    def parts(self) -> Parts: ...

    @property
    def dtype(self) -> DType: ...


class StageSessions:
    """All sessions at the stages of one node (`own`), and the shards that they use."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self.shards: dict[int, ServedShard] = {}
        """The shards by their numbers in the engine."""
        self.open: dict[Name, StageSession] = {}
        """The open sessions."""
        self.opening: set[StageSession] = set()
        """Sessions that the engine has not opened yet. Some may be closed already."""
        # By gateway and session: the highest closed epoch.
        self._closed: OrderedDict[tuple[PeerId, SessionId], int] = OrderedDict()

    @property
    def own(self) -> PeerId:
        """The peer id of this node."""
        return self._own

    def standbys(self, served: ServedShard | None = None) -> list[StageSession]:
        """Return the sessions of standbys, of all shards if None. They end when their memory is
        needed."""
        return [
            each
            for each in self.open.values()
            if each.open.standby is not None and served in (None, each.served)
        ]

    def of_shard(self, served: ServedShard | None) -> list[StageSession]:
        """Return the sessions of a shard."""
        return [session for session in self.open.values() if session.served is served]

    def close(self, gateway: PeerId, session: SessionId, epoch: int = 0) -> list[StageSession]:
        """Return the sessions to close in this epoch (0: in all), at most one for each stage. They
        cannot be opened again in this epoch or an earlier one."""
        closed = gateway, session
        self._closed[closed] = max(epoch or _LAST_EPOCH, self._closed.get(closed, 0))
        if len(self._closed) > CLOSED_REMEMBERED:
            self._closed.popitem(last=False)
        return [
            each
            for each in self.open.values()
            if each.name[:2] == closed and epoch in (0, each.open.epoch)
        ]

    def rename(self, session: StageSession, order: Open) -> None:
        """Give a session another place in a changed chain.

        Raises SessionError `session-open` if another session of the same chain has that place.
        """
        before = session.name
        if order.index != before[2] and (*before[:2], order.index) in self.open:
            raise SessionError("session-open", "another shard here has that place in the chain")
        del self.open[before]
        session.open = order
        self.open[session.name] = session

    def texts(self, served: ServedShard) -> int:
        """Return how many sessions of a shard generate text now."""
        return sum(each.waiting > 0 and each.asked for each in self.of_shard(served))

    def remove(self, session: StageSession, now: float) -> bool:
        """Remove a session. Return whether it was open."""
        if self.open.get(session.name) is not session:
            return False
        del self.open[session.name]
        if session.open.standby is None:
            session.served.used = now
            session.served.answer.note(session.reached - session.prompt)
        session.log.drop()
        return True

    def waited_for(self, now: float) -> int:
        """Return the number of interactive sessions that compute or did so in the last
        SESSION_WAITED seconds.

        Idle sessions do not count, because they cost nothing and would block all jobs here.
        """
        lately = now - SESSION_WAITED
        return sum(
            not (session.open.idle or session.open.standby)
            and (session.waiting > 0 or session.heard >= lately)
            for session in self.open.values()
        )

    @property
    def has_jobs(self) -> bool:
        """Whether a session of a job is open."""
        return any(session.open.idle for session in self.open.values())

    def idle_time(self, number: int, now: float) -> float:
        """Return for how many seconds no session of a shard has been open, 0 if one is."""
        served = self.shards.get(number)
        if served is None or len(self.of_shard(served)) > len(self.standbys(served)):
            return 0.0
        return now - served.used

    def speed(self, root: str, parts: Parts) -> ServedSpeed:
        """Return the speed of a shard; that of a shard that is not held is unknown."""
        for served in self.shards.values():
            if (served.held.root, served.held.parts) == (root, parts):
                return served.speed
        return ServedSpeed()

    def find_shard(self, asked: AsksShard) -> ServedShard:
        """Return the shard that a message asks for. Raises SessionError if it is not held."""
        wanted = asked.root, asked.parts, asked.dtype
        for served in self.shards.values():
            if (served.held.root, served.held.parts, served.held.dtype) == wanted:
                return served
        raise SessionError("no-shard", "this stage does not hold that shard")

    def check(self, message: Open) -> ServedShard:
        """Return the shard that a message asks for. Raises SessionError if it is not held or does
        not fit into the chain."""
        served = self.find_shard(message)
        if message.stages[message.index] != self._own:
            raise SessionError("bad-message", "`index` is not this stage's place")
        last = message.index == len(message.stages) - 1
        if message.parts.embedding != (message.index == 0) or message.parts.head != last:
            raise SessionError("bad-message", "the shard does not match its position in the chain")
        if message.tokens > served.held.context:
            context = served.held.context
            raise SessionError("bad-message", f"`tokens` exceeds the context of {context}")
        return served

    def superseded(self, gateway: PeerId, message: Open) -> StageSession | None:
        """Return the session that a gateway opens again under a higher epoch, or None."""
        older = self.open.get((gateway, message.session, message.index))
        if older is None or older in self.opening or message.epoch <= older.open.epoch:
            return None
        return older

    def check_open(self, gateway: PeerId, message: Open, now: float, freeing: int) -> None:
        """Raise SessionError if a session may not be opened now.

        `freeing` is the number of closed sessions that the engine still has.
        """
        name = gateway, message.session, message.index
        if message.idle and self.waited_for(now):
            raise SessionError("busy", "this stage has interactive sessions, which precede jobs")
        if name in self.open:
            raise SessionError("session-open", "the session is open already")
        if message.epoch <= self._closed.get(name[:2], 0):
            raise SessionError("session-closed", "the session was closed")
        if message.standby is not None:
            self._check_standby(gateway, message)
            return
        every = self.opening.union(self.open.values()).difference(self.standbys())
        own = sum(item.gateway == gateway for item in every)
        mine = gateway == self._own  # the owner's gateway has no limit of its own
        held = len(every) + freeing
        if held >= SESSIONS_PER_STAGE or (own >= SESSIONS_PER_GATEWAY and not mine):
            raise SessionError("too-many-sessions", "this stage has reached its session limit")

    def _check_standby(self, gateway: PeerId, message: Open) -> None:
        """Raise SessionError if a standby may not be opened now. It takes memory only while much is
        free."""
        served, standbys = self.find_shard(message), self.standbys()
        if not served.held.kv_heads:
            raise SessionError("not-copied", "the state of this shard's sessions cannot be copied")
        of_one = sum(each.gateway == gateway for each in standbys)
        if len(standbys) >= STANDBYS or of_one >= STANDBYS_OF_ONE:
            raise SessionError("too-many-sessions", "this stage has no room for more standbys")
        free = self.room_for(served, self._own) - int(STANDBY_FREE * served.held.kv_tokens)
        if message.tokens > free:
            raise SessionError("no-memory", "this stage's memory is not free enough for a standby")

    def yielding(
        self, gateway: PeerId, message: Open, served: ServedShard, now: float
    ) -> list[StageSession]:
        """Return the sessions that must end for a new one.

        Raises SessionError if there is no free KV for it. It is queued then, so that requests which
        come later do not get the memory before it. This node's own requests do not wait for those
        of others.
        """
        if message.standby is not None:  # it was checked, and ends itself for others
            return []
        mine = gateway == self._own and not message.idle
        ahead = 0 if mine else served.queue.ahead(gateway, message, now) * BLOCK
        if message.soon <= self.room_for(served, gateway) - ahead:
            served.queue.leave(gateway, message)
            return []
        yielding = self.standbys(served)
        if not message.idle:
            yielding += self._may_end(served, gateway, now)
        room = self.room_for(served, gateway, without=yielding) - ahead
        if message.soon > room:
            if not message.idle and self._within_share(served, gateway, message):
                served.queue.wait(gateway, message, blocks_for(message.soon), now)
            raise SessionError(
                "no-memory",
                f"room for {max(0, room)} tokens of prompt and answer now, {message.soon} are "
                "asked for",
            )
        while message.soon <= self.room_for(served, gateway, without=yielding[:-1]) - ahead:
            yielding.pop()
        served.queue.leave(gateway, message)
        return yielding

    def _within_share(self, served: ServedShard, gateway: PeerId, message: Open) -> bool:
        """Return whether a gateway may have a further session of this size."""
        own = [
            each.blocks
            for each in self.of_shard(served)
            if each.gateway == gateway and each.open.standby is None
        ]
        share = int(served.held.kv_tokens // BLOCK * KV_SHARE)
        return not own or sum(own) + blocks_for(message.soon) <= share

    def _may_end(self, served: ServedShard, gateway: PeerId, now: float) -> list[StageSession]:
        """Return the sessions that may end for a new one of a gateway, the first to end first.

        Sessions of jobs end for all others. The owner of this machine precedes all other gateways.
        """
        beyond = self._beyond_share(served, gateway, now)
        others = [
            each
            for each in reversed(self.of_shard(served))
            if each not in beyond
            and each.open.standby is None
            and (each.open.idle or (gateway == self._own and each.gateway != gateway))
        ]
        return sorted([*beyond, *others], key=lambda each: not each.open.idle)

    def _beyond_share(self, served: ServedShard, gateway: PeerId, now: float) -> list[StageSession]:
        """Return the sessions by which other gateways have grown beyond their share of the KV, the
        youngest first.

        A gateway may use what is free. Otherwise, it could keep all others out by sessions that
        reserve little and then grow. A gateway's only session may have more than its share for
        KV_TURN seconds.
        """
        share = int(served.held.kv_tokens // BLOCK * KV_SHARE)
        has = dict[PeerId, list[StageSession]]()
        for each in self.of_shard(served):
            if each.gateway not in (gateway, self._own) and each.open.standby is None:
                has.setdefault(each.gateway, []).append(each)
        beyond = []
        for sessions in has.values():
            blocks = sum(each.blocks for each in sessions)
            while blocks > share and sessions:
                if len(sessions) == 1 and now < sessions[0].opened + KV_TURN:
                    break
                beyond.append(sessions.pop())
                blocks -= beyond[-1].blocks
        return beyond

    def room(self, root: str, parts: Parts, gateway: PeerId | None = None) -> int:
        """Return how many positions of KV one more session of a gateway may reserve now in a shard.

        None stands for this node's own gateway. The result is 0 if the shard is not held.
        """
        for served in self.shards.values():
            if (served.held.root, served.held.parts) == (root, parts):
                without = self.standbys(served)
                return self.room_for(served, gateway or self._own, without=without)
        return 0

    def room_for(
        self, served: ServedShard, gateway: PeerId, *, without: Collection[StageSession] = ()
    ) -> int:
        """Return how many positions of KV one more session of this gateway may reserve now, or if
        the sessions in `without` had ended."""
        blocks = served.held.kv_tokens // BLOCK
        sessions = [item for item in self.of_shard(served) if item not in without]
        room = blocks - sum(item.blocks for item in sessions)
        own = [item.blocks for item in sessions if item.gateway == gateway]
        if own and gateway != self._own:  # its first session may take all that is free
            room = min(room, int(blocks * KV_SHARE) - sum(own))
        return max(room, 0) * BLOCK

    def state(self, gateway: PeerId, asked: AskState) -> StageState:
        """Return what delays a session, for its gateway.

        Raises SessionError if it is not open or is in another epoch.
        """
        session = self.find(gateway, asked, asked.index)
        others = sum(each.waiting > 0 for each in self.open.values() if each is not session)
        return StageState(session.waiting, others)

    def find(
        self,
        sender: PeerId,
        message: EpochMessage,
        index: int,
    ) -> StageSession:
        """Return the open session of a message for stage `index`.

        Raises SessionError if it is not open or is in another epoch.
        """
        named = message.gateway if isinstance(message, SpanMessage | FeedToken | Need) else None
        session = self.open.get((named or sender, message.session, index))
        if session is None:
            raise SessionError("unknown-session", "no such session is open here")
        if message.epoch != session.open.epoch:
            raise SessionError("stale-epoch", f"the session is in epoch {session.open.epoch}")
        if session.open.standby is not None and not isinstance(message, AskState):
            raise SessionError("not-yours", "this stage stands by for another one")
        return session
