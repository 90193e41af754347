"""Service for hole punching: sends offers to peers, answers their offers, and runs the attempts.

    puncher = Puncher(endpoint, tools, knowledge)
    nursery.start_soon(puncher.run)
    outcome = await puncher.punch(link)

The node passes it each STUN message that arrives at the UDP port (`on_stun`), and asks it whether
an accepted connection is a result of hole punching: for QUIC by `arrived`, for TCP by `opened` and
`is_client`.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf
from typing import Final

import trio

from ...bytestream import ByteStream
from ...errors import CallRefused, LinkClosed
from ...guard import Guard
from ...host.datagrams import Datagrams, Place
from ...identity import PeerId
from ...link.calls import Answer, Call, Refusal, Reply
from ...udp.quic import QuicByteStream
from ..reach import stun
from . import defaults
from .attempt import FUTILE, PunchAttempt, PunchRole
from .needs import Knowledge, PunchChannel, Serves, Socket, Tools
from .offer import PunchOffer, decode, encode
from .outcome import PunchOutcome, StrategyResult, failed
from .predict import PredictionPlan
from .preparing import Observing, PreparedRound, is_stale, prepare, set_aside
from .sockets import discard
from .tcp import stays_silent

METHOD: Final = "punch.offer"
_OUTCOMES: Final = 512  # peers whose latest outcome is remembered, a count
_SWEEP_S: Final = 30.0  # seconds between two calls of `_sweep`
_UNKNOWN_RTT_S: Final = 0.1  # round trip that is assumed for a link if none was measured


async def _no_look(peer: PeerId) -> None:
    await trio.lowlevel.checkpoint()


class Puncher:
    """Hole punching of one node. Registers the call `punch.offer` at the endpoint."""

    def __init__(
        self,
        endpoint: Serves,
        tools: Tools,
        knowledge: Knowledge,
        *,
        guard: Guard | None = None,
        look: Callable[[PeerId], Awaitable[None]] | None = None,
    ) -> None:
        """`look(peer)` asks other nodes where they see `peer`, unless `knowledge` already has
        this."""
        self.limits = tools.limits
        self.budget = tools.budget
        self.outcomes: dict[PeerId, PunchOutcome] = {}
        """The latest outcome with each peer, including attempts that the peer began."""
        self._host = tools.host
        self._guard = guard or Guard()
        self._endpoint = endpoint
        self._knowledge = knowledge
        self._look = look or _no_look
        self.tools = tools
        """What its attempts use."""
        self.observing = Observing(tools, tools.udp) if tools.udp is not None else None
        """Asks observers for the outer addresses of UDP sockets; None without a UDP port."""
        self._attempts: dict[PeerId, PunchAttempt] = {}  # attempts in which the peer takes part
        self._offered: dict[PeerId, PunchAttempt] = {}  # attempts whose first offer is unanswered
        self._news = trio.lowlevel.ParkingLot()  # woken when an attempt has begun
        self._asked: dict[PeerId, deque[float]] = {}  # times of recent offers by each peer
        # Extra sockets that stay open after their attempt, and the byte streams on them.
        self._kept: dict[Datagrams, QuicByteStream] = {}
        self._nursery: trio.Nursery | None = None
        endpoint.handle(METHOD, self.offered)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run attempts, and close unused sockets, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                while True:
                    await trio.sleep(_SWEEP_S)
                    self._sweep()
            finally:
                self._nursery = None

    # Sending offers.

    async def punch(self, link: PunchChannel, *, thrifty: bool = False) -> PunchOutcome:
        """Try to open a direct path to the peer of `link`, and return the outcome.

        If an attempt with this peer is already under way, waits for its outcome instead. A
        `thrifty` attempt makes no birthday search, which costs about 2,000 datagrams. If the peer
        refuses the attempt or the link closes, the outcome says so; nothing is raised.
        """
        running = self._attempts.get(link.peer) or self._offered.get(link.peer)
        if running is not None:
            return await self._outcome_of(running)
        if self._nursery is None:
            return failed(link.peer, StrategyResult.NOT_POSSIBLE, "not-running")
        if self._is_full:
            return failed(link.peer, StrategyResult.NOT_POSSIBLE, "busy")
        name = self._host.entropy(defaults.ATTEMPT_BYTES)
        attempt = self._new(link.peer, name, offering=True, thrifty=thrifty)
        self._offered[link.peer] = attempt
        try:
            await self._nursery.start(self._run, attempt)
            code = await self._rounds(attempt, link)
        except (CallRefused, LinkClosed) as error:
            code = error.code
            if attempt.round > 1:  # perhaps the peer has ended it because its byte stream works
                with trio.move_on_after(self.limits.last_round_s):
                    await attempt.settled.wait()
        finally:
            attempt.give_up()
            if self._offered.get(link.peer) is attempt:
                del self._offered[link.peer]
        if code == "glare":  # the peer's offer has crossed with ours, and takes precedence
            return await self._wait_for_theirs(link.peer)
        outcome = await self._outcome_of(attempt)
        if code is not None and not outcome.worked:
            return self._note(failed(link.peer, StrategyResult.REFUSED, code, outcome.rounds))
        return outcome

    async def _rounds(self, attempt: PunchAttempt, link: PunchChannel) -> str | None:
        """Offer and run one round after the other, until a byte stream is open or no round is left.

        Returns the code `bad-answer` if the peer's reply is malformed, else None. Raises
        CallRefused if the peer refuses an offer, and LinkClosed if the link ends.
        """
        rtt = self._knowledge.rtt(attempt.peer)
        for number in range(1, self.limits.rounds + 1):
            attempt.round = number
            mine = await self._prepare(attempt, number)
            offer = self._offer(attempt, number, mine, rtt)
            asked = self._host.now()
            reply = await link.call(METHOD, encode(offer), timeout=self.limits.offer_s)
            now = self._host.now()
            theirs = decode(reply.header)
            if theirs is None or (theirs.name, theirs.round) != (attempt.name, number):
                return "bad-answer"
            self._take_part(attempt)
            attempt.told(theirs)
            rtt = min(now - asked, rtt if rtt is not None else self.limits.skew_s)
            await attempt.begin(mine, theirs, now)
            with trio.move_on_after(self._span(attempt, number, rtt)):
                await attempt.settled.wait()
            if attempt.checks.chosen is not None:  # the QUIC handshake is about to begin
                with trio.move_on_after(self.limits.dial_s):
                    await attempt.settled.wait()
            if attempt.settled.is_set() or attempt.plan in FUTILE or attempt.searched:
                break
        return None

    def _span(self, attempt: PunchAttempt, number: int, rtt: float) -> float:
        """Return the length of a round in seconds. The last round and a search take longer."""
        limits = self.limits
        if number == limits.rounds or attempt.plan in FUTILE or attempt.searched:
            return limits.last_round_s + 2 * rtt
        return limits.round_s + 2 * rtt

    def _offer(
        self, attempt: PunchAttempt, number: int, mine: PreparedRound, rtt: float | None
    ) -> PunchOffer:
        """Return the offer, or the reply to one, for the round `number`."""
        return PunchOffer(
            attempt.name,
            number,
            attempt.secret,
            mine.nat,
            mine.candidates,
            mine.comb,
            mine.counting,
            _UNKNOWN_RTT_S if rtt is None else rtt,
            mine.search,
            attempt.part.thrifty,
            mine.busy,
        )

    async def _prepare(self, attempt: PunchAttempt, number: int) -> PreparedRound:
        """Collect this side's addresses for the round `number`. Open extra sockets if needed."""
        if number == 1:
            # The peer waits only a limited time for the reply to its offer.
            with trio.move_on_after(inf if attempt.part.offering else self.limits.observe_s):
                await self._look(attempt.peer)
        attempt.sees(self._knowledge.seen(attempt.peer))
        own = self._knowledge.own(attempt.peer)
        look = number > 1 or is_stale(own, self._host.now(), self.limits)
        comb = number > 1 and attempt.plan is PredictionPlan.CHECKS
        mine = await prepare(own, self.observing, attempt.sockets, look=look, comb=comb)
        if not attempt.may_need_search(mine.nat):
            return mine
        if not attempt.reserve_search():
            return replace(mine, busy=True)
        return await set_aside(mine, attempt.sockets)

    async def _wait_for_theirs(self, peer: PeerId) -> PunchOutcome:
        """Wait for the attempt that a peer's offer begins, and return its outcome."""
        with trio.move_on_after(self.limits.offer_s):
            while (attempt := self._attempts.get(peer)) is None:
                await self._news.park()
            return await self._outcome_of(attempt)
        return failed(peer, StrategyResult.REFUSED, "glare")

    async def _outcome_of(self, attempt: PunchAttempt) -> PunchOutcome:
        """Wait until an attempt succeeds or ends. Store its outcome, and return it."""
        await attempt.settled.wait()
        if attempt.outcome().worked:
            return self._note(attempt.outcome())
        await attempt.over.wait()
        return self._note(attempt.outcome())

    # Answering offers.

    async def offered(self, call: Call) -> Answer:
        """Handle a call of `punch.offer`: reply with this side's addresses, and begin the round."""
        offer = decode(call.header)
        if offer is None or call.payload:
            return Refusal("bad-offer", "malformed offer")
        if self._nursery is None:
            return Refusal("not-running", "not now")
        code = self._refusal_of(offer, call.peer)
        if code is not None:
            return Refusal(code, "the offer is refused")
        attempt = self._attempts.get(call.peer)
        if attempt is not None:
            attempt.round = offer.round
        else:
            attempt = self._new(call.peer, offer.name, offering=False, thrifty=offer.thrifty)
            attempt.round = offer.round
            self._take_part(attempt)
            await self._nursery.start(self._run, attempt)
        attempt.extend()
        attempt.told(offer)
        mine = await self._prepare(attempt, offer.round)
        if self._nursery is None or attempt.over.is_set():
            return Refusal("over", "the attempt has ended")
        # Both sides begin when the reply has arrived, which takes half a round trip.
        at = self._host.now() + min(offer.rtt / 2, self.limits.skew_s)
        end = attempt.give_up
        self._guard.start(self._nursery, call.peer, attempt.begin, mine, offer, at, end=end)
        return Reply(encode(self._offer(attempt, offer.round, mine, offer.rtt)))

    def _refusal_of(self, offer: PunchOffer, peer: PeerId) -> str | None:
        """Return the code with which to refuse an offer, or None to accept it."""
        attempt = self._attempts.get(peer)
        if attempt is not None:
            fits = not attempt.part.offering and attempt.name == offer.name
            if not fits or offer.round != attempt.round + 1 or offer.round > self.limits.rounds:
                return "busy"
        elif offer.round != 1:
            return "no-such-attempt"
        elif peer in self._offered and self._endpoint.peer < peer:
            return "glare"
        elif self._is_full:
            return "busy"
        return None if self._may_ask(peer) else "too-often"

    def _may_ask(self, peer: PeerId) -> bool:
        """Return whether a peer may make another offer now, and count the offer if so."""
        now, limits = self._host.now(), self.limits
        asked = self._asked.setdefault(peer, deque())
        while asked and asked[0] <= now - limits.offers_s:
            asked.popleft()
        if len(asked) >= limits.offers_per_peer:
            return False
        asked.append(now)
        return True

    # Attempts.

    @property
    def _is_full(self) -> bool:
        """Whether the largest number of concurrent attempts is reached."""
        return len({*self._attempts, *self._offered}) >= self.limits.attempts

    def _new(self, peer: PeerId, name: bytes, *, offering: bool, thrifty: bool) -> PunchAttempt:
        return PunchAttempt(
            self.tools,
            peer,
            self._knowledge.seen(peer),
            PunchRole(name, self._endpoint.peer < peer, offering, thrifty),
        )

    def _take_part(self, attempt: PunchAttempt) -> None:
        """Register an attempt in which the peer takes part."""
        self._attempts[attempt.peer] = attempt
        if self._offered.get(attempt.peer) is attempt:
            del self._offered[attempt.peer]
        self._news.unpark_all()

    async def _run(self, attempt: PunchAttempt, *, task_status: trio.TaskStatus[None]) -> None:
        """Run an attempt to its end, and store its outcome and the socket that stays in use."""
        try:
            with self._guard.around(attempt.peer):
                await attempt.run(task_status=task_status)
        finally:
            if self._attempts.get(attempt.peer) is attempt:
                del self._attempts[attempt.peer]
            if attempt.kept is not None:
                self._kept[attempt.kept[0]] = attempt.kept[1]
            self._note(attempt.outcome())

    def _note(self, outcome: PunchOutcome) -> PunchOutcome:
        """Store an outcome as the latest one with its peer, and return it."""
        self.outcomes.pop(outcome.peer, None)
        if len(self.outcomes) >= _OUTCOMES:
            del self.outcomes[next(iter(self.outcomes))]
        self.outcomes[outcome.peer] = outcome
        return outcome

    def _sweep(self) -> None:
        """Close extra sockets whose connection has ended, and forget the times of old offers."""
        for socket, byte_stream in list(self._kept.items()):
            if byte_stream.connection.ended and self.tools.udp is not None:
                del self._kept[socket]
                discard(self.tools, self.tools.udp, socket)
        since = self._host.now() - self.limits.offers_s
        self._asked = {peer: asked for peer, asked in self._asked.items() if asked[-1] > since}

    # Events from the node.

    def on_stun(self, data: bytes, source: Place, socket: Datagrams) -> bool:
        """Process a datagram that arrived at the UDP port and looks like STUN.

        Returns False if it does not belong to an attempt.
        """
        message = stun.decode(data)
        if message is None:
            return False
        key: Socket = socket if socket in self.tools.extra else None
        if self.observing is not None and self.observing.receive(message, source, key):
            return True
        return any(each.receive(message, data, source, key) for each in self._all())

    def arrived(self, byte_stream: QuicByteStream) -> PeerId | None:
        """Return the peer to which an accepted QUIC connection probably belongs.

        This is the peer of the attempt that has chosen the connection's remote address. Returns
        None if there is no such attempt. The caller must still authenticate the peer.
        """
        for attempt in self._all():
            if attempt.expects(byte_stream.remote):
                attempt.arrived(byte_stream)
                return attempt.peer
        return None

    def opened(self, peer: PeerId, ip: str) -> bool:
        """Return whether hole punching led to an accepted TCP connection of `peer` from `ip`."""
        return any(each.peer == peer and each.opens(ip) for each in self._attempts.values())

    def met(self, peer: PeerId, medium: str) -> None:
        """Record that a peer has been authenticated on a direct path, which ends attempts with it.

        `medium` is "tcp" or "udp". The path need not be a result of hole punching.
        """
        for attempt in (self._attempts.get(peer), self._offered.get(peer)):
            if attempt is not None:
                attempt.met(medium)

    async def is_client(self, byte_stream: ByteStream) -> bool:
        """Return whether this side must be the TLS client on an accepted TCP connection.

        That is so if the connection comes from the peer of an attempt in which this side is the
        client, and if that peer stays silent. Returns False at once if no attempt concerns the
        connection's remote address. Raises the errors of `ByteStream.wait_readable`.
        """
        for attempt in self._all():
            if attempt.part.client and attempt.may_be_at(byte_stream.remote[0]):
                if not await stays_silent(byte_stream, self.limits):
                    return False
                attempt.met("tcp")
                return True
        return False

    def _all(self) -> list[PunchAttempt]:
        """Return all attempts.

        This includes attempts whose first offer has no reply yet, because the peer may have begun
        before its reply arrives.
        """
        return [*self._attempts.values(), *self._offered.values()]
