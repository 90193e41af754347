"""The shards of a node's engine, and the sessions at its stages. No I/O."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from ...transport.identity import PeerId
from ...transport.link.calls import Call, Refusal, Reply
from ..defaults import (
    CLOSED_REMEMBERED,
    KV_SHARE,
    KV_TURN,
    SESSION_WAITED,
    SESSIONS_PER_GATEWAY,
    SESSIONS_PER_STAGE,
    STANDBY_FREE,
    STANDBYS,
    STANDBYS_OF_ONE,
)
from ..engine.interface import DType, Parts, SessionId
from ..engine.kv.blocks import BLOCK, blocks_for
from ..errors import SessionError
from .messages import (
    AskState,
    EpochMessage,
    FeedToken,
    Need,
    Open,
    SpanMessage,
    StageState,
)
from .serving.places import giving_places, resting
from .serving.stagesession import Name, ServedShard, StageSession
from .speed import ServedSpeed

_LAST_EPOCH: Final = 2**32 - 1

_FREEING: Final = 4 * SESSIONS_PER_STAGE
"""Closed sessions that the engine may still have when the owner's gateway opens a further one."""


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
        self.opening: dict[StageSession, None] = {}
        """Sessions that the engine has not opened yet. Some may be closed already."""
        self.closed: OrderedDict[tuple[PeerId, SessionId], int] = OrderedDict()
        """The highest closed epoch, by gateway and session."""

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
        self.closed[closed] = max(epoch or _LAST_EPOCH, self.closed.get(closed, 0))
        if len(self.closed) > CLOSED_REMEMBERED:
            self.closed.popitem(last=False)
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

    def unused_time(self, number: int, now: float) -> float:
        """Return for how many seconds nothing has used a shard: 0 if a session, a standby or a
        tuning does."""
        served = self.shards.get(number)
        if served is None or served.tunings or self.of_shard(served):
            return 0.0
        if any(session.served is served for session in self.opening):
            return 0.0
        return now - served.used

    def speed(self, root: str, parts: Parts) -> ServedSpeed:
        """Return the speed of a shard; that of a shard that is not held is unknown."""
        for served in self.shards.values():
            if (served.shard.root, served.shard.parts) == (root, parts):
                return served.speed
        return ServedSpeed()

    def find_shard(self, asked: AsksShard) -> ServedShard:
        """Return the shard that a message asks for. Raises SessionError if it is not held."""
        wanted = asked.root, asked.parts, asked.dtype
        for served in self.shards.values():
            if (served.shard.root, served.shard.parts, served.shard.dtype) == wanted:
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
        if message.tokens > served.shard.context:
            context = served.shard.context
            raise SessionError("bad-message", f"`tokens` exceeds the context of {context}")
        return served

    def superseded(self, gateway: PeerId, message: Open) -> StageSession | None:
        """Return the session that a gateway opens again under a higher epoch, or None."""
        older = self.open.get((gateway, message.session, message.index))
        if older is None or older in self.opening or message.epoch <= older.open.epoch:
            return None
        return older

    def check_open(
        self, gateway: PeerId, message: Open, now: float, freeing: int
    ) -> list[StageSession]:
        """Return the sessions that must give their places to a new one. Raises SessionError if it
        may not be opened now.

        `freeing` is the number of closed sessions that the engine still has.
        """
        name = gateway, message.session, message.index
        if message.idle and self.waited_for(now):
            raise SessionError("busy", "this stage has interactive sessions, which precede jobs")
        if name in self.open:
            raise SessionError("session-open", "the session is open already")
        if message.epoch <= self.closed.get(name[:2], 0):
            raise SessionError("session-closed", "the session was closed")
        if message.standby is not None:
            self._check_standby(gateway, message)
            return []
        giving = self._giving(gateway, message, now, freeing)
        if giving is None:
            raise SessionError("too-many-sessions", "this stage has reached its session limit")
        return giving

    def has_place(self, gateway: PeerId, now: float, wanted: int) -> bool:
        """Return whether a gateway would find places for `wanted` interactive sessions now."""
        every = self._placed()
        lacking = len(every) + wanted - SESSIONS_PER_STAGE
        return lacking <= 0 or lacking <= len(self._yielding_places(gateway, now, lacking))

    def _placed(self) -> list[StageSession]:
        """Return the sessions that have places, also those that were closed while they open."""
        standbys = self.standbys()
        every = dict.fromkeys(self.open.values()) | self.opening
        return [each for each in every if each not in standbys]

    def _giving(
        self, gateway: PeerId, message: Open, now: float, freeing: int
    ) -> list[StageSession] | None:
        """Return the sessions that must give their places to a new one, None if it gets none.

        The owner's gateway always gets one, unless it has all of them itself.
        """
        every, mine = self._placed(), gateway == self._own
        own = sum(each.gateway == gateway and not (mine and each.open.idle) for each in every)
        if own >= (SESSIONS_PER_STAGE if mine else SESSIONS_PER_GATEWAY):
            return None
        first = mine and not message.idle
        lacking = len(every) + 1 - SESSIONS_PER_STAGE
        if lacking <= 0:
            few = _FREEING if first else SESSIONS_PER_STAGE - len(every)
            return [] if freeing < few else None
        if message.idle:
            return None
        # What gives its place is in the engine for a while. Until then the new one is being opened
        # and gives its place to none, so this has a limit, too.
        giving = self._yielding_places(gateway, now, lacking)
        return giving if first or len(giving) == lacking else None

    def _yielding_places(self, gateway: PeerId, now: float, wanted: int) -> list[StageSession]:
        """Return up to `wanted` sessions that give their places to a gateway. One that is still
        being opened would not free its place."""
        able = [each for each in self.open.values() if each not in self.opening]
        able = [each for each in able if each.open.standby is None]
        counts = Counter(each.gateway for each in self._placed())
        return giving_places(able, counts, gateway, self._own, now, wanted)

    def resting(self, served: ServedShard, gateway: PeerId, now: float) -> list[StageSession]:
        """Return the sessions of other gateways at a shard that compute nothing, and so end for an
        interactive session of this one, the first to end first."""
        able = [each for each in self.of_shard(served) if each not in self.opening]
        return resting(able, gateway, self._own, now)

    def _check_standby(self, gateway: PeerId, message: Open) -> None:
        """Raise SessionError if a standby may not be opened now. It takes memory only while much is
        free."""
        served, standbys = self.find_shard(message), self.standbys()
        if not served.shard.kv_heads:
            raise SessionError("not-copied", "the state of this shard's sessions cannot be copied")
        of_one = sum(each.gateway == gateway for each in standbys)
        if len(standbys) >= STANDBYS or of_one >= STANDBYS_OF_ONE:
            raise SessionError("too-many-sessions", "this stage has no room for more standbys")
        free = self.room_for(served, self._own) - int(STANDBY_FREE * served.shard.kv_tokens)
        if message.tokens > free:
            raise SessionError("no-memory", "this stage's memory is not free enough for a standby")

    def yielding(
        self, gateway: PeerId, message: Open, now: float, giving: Sequence[StageSession]
    ) -> list[StageSession]:
        """Return the sessions that must end for a new one: those in `giving`, which end in any
        case, and those of which it needs the memory.

        Raises SessionError if there is no free KV for it. It is queued then, so that requests which
        come later do not get the memory before it. This node's own requests do not wait for those
        of others.
        """
        if message.standby is not None:  # it was checked, and ends itself for others
            return []
        served = self.find_shard(message)
        mine = gateway == self._own and not message.idle
        ahead = 0 if mine else served.queue.ahead(gateway, message, now) * BLOCK
        yielding = [*giving, *self.standbys(served)]
        if not message.idle:
            may_end = self._may_end(served, gateway, now)
            yielding += [each for each in may_end if each not in giving]
        room = self.room_for(served, gateway, without=yielding) - ahead
        if message.soon > room:
            if not message.idle and self._within_share(served, gateway, message):
                served.queue.wait(gateway, message, blocks_for(message.soon), now)
            raise SessionError(
                "no-memory",
                f"room for {max(0, room)} tokens of prompt and answer now, {message.soon} are "
                "asked for",
            )
        while len(yielding) > len(giving):
            if message.soon > self.room_for(served, gateway, without=yielding[:-1]) - ahead:
                break
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
        share = int(served.shard.kv_tokens // BLOCK * KV_SHARE)
        return not own or sum(own) + blocks_for(message.soon) <= share

    def _may_end(self, served: ServedShard, gateway: PeerId, now: float) -> list[StageSession]:
        """Return the sessions that may end for a new one of a gateway, the first to end first.

        Sessions of jobs end for all others, and so do those that compute nothing. The owner of this
        machine precedes all other gateways.
        """
        beyond = self.resting(served, gateway, now)
        more = self._beyond_share(served, gateway, now)
        beyond += [each for each in more if each not in beyond]
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
        share = int(served.shard.kv_tokens // BLOCK * KV_SHARE)
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
            if (served.shard.root, served.shard.parts) == (root, parts):
                without = self.standbys(served)
                return self.room_for(served, gateway or self._own, without=without)
        return 0

    def room_for(
        self, served: ServedShard, gateway: PeerId, *, without: Collection[StageSession] = ()
    ) -> int:
        """Return how many positions of KV one more session of this gateway may reserve now, or if
        the sessions in `without` had ended."""
        blocks = served.shard.kv_tokens // BLOCK
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
