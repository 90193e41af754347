"""Says how long a session would wait at a shard, and when it has room: in answers to `stage.probe`,
and to gateways whose session is refused. No I/O.

A reply is a prediction. Gateways correct it by their measurements (`routing/beliefs.py`).
"""

import math
from collections.abc import Sequence

from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.calls import Call, Refusal, Reply
from ...transport.rates import Rate, Rates
from ..defaults import (
    PROBES,
    PROBES_IN_ALL,
    PROMPT_IDLE,
    SESSIONS_PER_GATEWAY,
    SESSIONS_PER_STAGE,
)
from ..engine.errors import EngineError
from ..engine.interface import NAME_BYTES
from ..engine.kv.blocks import BLOCK, blocks_for
from ..errors import SessionError
from ..routing.affinity import Prefix
from ..routing.defaults import ADMISSION_WAIT, PROBE_NAMES, RETRY_LEAST, RETRY_MOST
from ..routing.waiting import Pending, seconds_until_room
from .messages import Open, Probe, StageLoad
from .serving.stagesession import ServedShard, StageSession
from .stagesessions import StageSessions
from .surviving.recovery import FULL


class StageLoads:
    """The loads of a node's shards, for gateways that ask. Each may ask as often as it can open
    sessions."""

    def __init__(self, host: Host, sessions: StageSessions) -> None:
        self._host = host
        self._all = sessions
        self._rates = Rates(Rate(*PROBES), total=Rate(*PROBES_IN_ALL))

    def on_probe(self, call: Call) -> Reply | Refusal:
        """Handle `stage.probe`: reply with the present load of a shard."""
        now = self._host.now()
        if not self._rates.take(call.peer, now):
            return Refusal("busy", "this stage is asked too often")
        try:
            asked = Probe.parse(call.header)
            served = self._all.find_shard(asked)
            names = _names(call.payload)
        except SessionError as error:
            return Refusal(error.code, error.message)
        prefix = Prefix.split(asked.every, names)
        return Reply(self._load(served, call.peer, asked, prefix, now).fields())

    def check_wait(self, gateway: PeerId, message: Open) -> None:
        """Raise SessionError `overloaded` if the prompt of a new session would wait here for longer
        than a gateway lets a request wait. It would fail after it has cost time and memory.

        Requests that have begun to answer wait, and so do those of this node and of jobs.
        """
        continues = message.resume > 0 or message.exact
        if continues or message.idle or message.standby or gateway == self._all.own:
            return
        if (wait := self._wait(gateway, message)) > ADMISSION_WAIT:
            raise SessionError("overloaded", f"other prompts would delay this one by {wait:.0f} s")

    def refused(self, call: Call, error: SessionError | EngineError) -> Refusal:
        """Return the refusal of `session.open`. If this stage is full, it says in how many seconds
        the session will probably be opened."""
        if error.code not in FULL:
            return Refusal(error.code, error.message)
        try:
            again = self._again(call.peer, Open.parse(call.header))
        except SessionError:  # the shard was withdrawn meanwhile
            return Refusal(error.code, error.message)
        return Refusal(error.code, f"{error.message}; again in {again} s")

    def _again(self, gateway: PeerId, message: Open) -> int:
        served, now = self._all.find_shard(message), self._host.now()
        asked = Probe(message.root, message.parts, message.dtype, soon=message.soon)
        pending = _pending(self._all.of_shard(served), now)
        back = self._back(served, gateway, asked, pending, self._all.texts(served), now)
        late = self._wait(gateway, message) - ADMISSION_WAIT
        return math.ceil(min(max(back, late, RETRY_LEAST), RETRY_MOST))

    def _wait(self, gateway: PeerId, message: Open) -> float:
        """Return by how many seconds others delay the prompt of a new session."""
        served = self._all.find_shard(message)
        pending = _pending(self._all.of_shard(served), self._host.now())
        return served.times.wait(pending, self._all.texts(served), gateway, message.soon)

    def _load(
        self, served: ServedShard, asker: PeerId, asked: Probe, prefix: Prefix, now: float
    ) -> StageLoad:
        """Return how busy a shard is, for a prompt of a gateway that asks."""
        standbys = self._all.standbys(served)
        sessions = [each for each in self._all.of_shard(served) if each not in standbys]
        resting = self._all.resting(served, asker, now)
        waiting = [session.waiting for session in sessions]
        running = sum(count > 0 for count in waiting)
        cached = min(served.names.length(asker, prefix), max(0, asked.prompt - 1))
        pending = _pending(sessions, now)
        texts = self._all.texts(served)
        rows = max(1, asked.prompt - cached)
        return StageLoad(
            room=self._all.room_for(served, asker, without=[*standbys, *resting]),
            sessions=len(waiting),
            running=running,
            waiting=sum(waiting),
            wait=served.times.wait(pending, texts, asker, rows),
            cached=cached,
            back=self._back(served, asker, asked, pending, texts, now),
            row=served.times.row_s,
        )

    def _back(
        self,
        served: ServedShard,
        asker: PeerId,
        asked: Probe,
        pending: Sequence[Pending],
        texts: int,
        now: float,
    ) -> float:
        """Return in how many seconds the shard has room for a session of `soon` positions, after
        `ahead` others of its gateway."""
        if not asked.soon:
            return 0.0
        pace = served.times.pace(texts, len(pending))
        prompts = sum(each.rows for each in pending) * served.times.row_s
        ends = [
            (prompts * (each.pending > 0) + pace * each.expected(served.answer), each)
            for each in self._all.of_shard(served)
        ]
        others = {asker, self._all.own}
        ends = [  # a session that computes nothing does not keep others out for longer than that
            (seconds if each.gateway in others else min(seconds, max(0, each.rests_at - now)), each)
            for seconds, each in ends
        ]
        wanted = asked.ahead + 1
        reserved = served.queue.reserved(asker, now)
        standbys = self._all.standbys(served)
        room = self._all.room_for(served, asker, without=standbys) // BLOCK
        memory = [(seconds, each.blocks) for seconds, each in ends]
        back = seconds_until_room(wanted * blocks_for(asked.soon) + reserved, room, memory)
        held = len(self._all.open) + len(self._all.opening.keys() - set(self._all.open.values()))
        slots = [(seconds, 1) for seconds, _ in ends]
        if not self._all.has_place(asker, now, wanted):
            back = max(back, seconds_until_room(wanted, SESSIONS_PER_STAGE - held, slots))
        if asker != self._all.own:
            mine = [(seconds, 1) for seconds, each in ends if each.gateway == asker]
            back = max(back, seconds_until_room(wanted, SESSIONS_PER_GATEWAY - len(mine), mine))
        return back


def _names(payload: bytes | memoryview) -> bytes:
    """Return the names in a probe. Raises SessionError if they are too many or malformed."""
    if len(payload) % NAME_BYTES or len(payload) > PROBE_NAMES * NAME_BYTES:
        raise SessionError("bad-message", f"expected at most {PROBE_NAMES} names of 16 bytes")
    return bytes(payload)


def _pending(sessions: Sequence[StageSession], now: float) -> list[Pending]:
    """Return the sessions whose prompts are being computed.

    A session counts only while its gateway sends its prompt: otherwise a gateway could make this
    stage look busy with sessions that cost it nothing.
    """
    return [
        Pending(each.gateway, each.pending)
        for each in sessions
        if each.pending and (each.waiting > 0 or each.heard >= now - PROMPT_IDLE)
    ]
