"""One side of an attempt at hole punching: UDP checks and TCP dials in up to three rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from ...bytestream import ByteStream, PathKind, TcpByteStream
from ...errors import ShoalError
from ...host.datagrams import Datagrams, Place
from ...identity import PeerId
from ...udp.quic import QuicByteStream
from ..reach.stun import StunMessage
from . import defaults, schedule
from .candidates import (
    Candidate,
    CandidateKind,
    CandidateTransport,
    SeenAddresses,
    may_probe,
    probeable,
    unseen,
)
from .checks import Checks, Chosen
from .needs import Socket, Tools
from .offer import PunchOffer
from .outcome import PunchOutcome, StrategyOutcome, StrategyResult
from .predict import NatProfile, PredictionPlan, plan
from .preparing import PreparedRound
from .sockets import Sockets
from .tcp import Dialling, PunchDialResult

_TICK_S = 0.002  # shortest time in seconds between two batches of datagrams
_TCP_RESULTS = {
    PunchDialResult.WORKED: StrategyOutcome(StrategyResult.WORKED),
    PunchDialResult.REFUSED: StrategyOutcome(StrategyResult.REFUSED, "reset"),
    PunchDialResult.NO_ANSWER: StrategyOutcome(StrategyResult.NO_ANSWER),
    PunchDialResult.BUDGET: StrategyOutcome(StrategyResult.NOT_POSSIBLE, "budget"),
    PunchDialResult.NOWHERE: StrategyOutcome(StrategyResult.NOT_POSSIBLE, "no-address"),
}
SEARCHES = frozenset({PredictionPlan.OPEN, PredictionPlan.SPRAY})
"""Plans with a birthday search."""
FUTILE = frozenset({PredictionPlan.HOPELESS, PredictionPlan.SPARED})
"""Plans for which a second round would fail like the first."""
_PREDICTS = SEARCHES | {PredictionPlan.COUNT, PredictionPlan.FOLLOW, PredictionPlan.STEP}
"""Plans that predict ports."""
_WAYS = {
    CandidateKind.LAN: PathKind.LAN,
    CandidateKind.PUBLIC: PathKind.DIRECT,
    CandidateKind.MAPPED: PathKind.MAPPED,
}
"""Maps the kind of a candidate to the path kind of a path to that candidate."""


@dataclass(frozen=True, slots=True)
class PunchRole:
    """This side's role in an attempt."""

    name: bytes
    """Random name of the attempt, the same on both sides."""
    client: bool
    """Whether this side has the smaller peer id. That side chooses the pair of UDP addresses, and
    is the client of TLS and QUIC."""
    offering: bool
    """Whether this side sends the offers. The other side replies to them."""
    thrifty: bool = False
    """Whether the attempt makes no birthday search, which costs about 2,000 datagrams."""


class PunchAttempt:
    """One side of an attempt to open a direct path to `peer`.

    `seen` are the peer's addresses that are known from other nodes. `part` is this side's role. The
    attempt is itself the `Permits` of its checks.
    """

    def __init__(self, tools: Tools, peer: PeerId, seen: SeenAddresses, part: PunchRole) -> None:
        self.peer = peer
        self.part = part
        self.name = part.name
        self.round = 0
        self.plan = PredictionPlan.CHECKS
        self._theirs: PunchOffer | None = None  # the peer's latest offer, or its reply to ours
        self.secret = tools.host.entropy(defaults.SECRET_BYTES)
        self.sockets = Sockets(tools, tools.udp) if tools.udp is not None else None
        self.checks: Checks[Socket] = Checks(
            part.name,
            self.secret,
            self,
            controlling=part.client,
            entropy=tools.host.entropy,
            limits=tools.limits,
        )
        self.settled = trio.Event()  # set when a byte stream is open, or the attempt has failed
        self.over = trio.Event()  # set when `run` has ended
        self._tools = tools
        self._seen = seen
        self._unseen: set[str] = set()  # addresses to check that only the peer has named
        self._ways: dict[Place, PathKind] = {}  # path kind by the peer's address
        self._began = tools.host.now()
        self._strategies: dict[str, StrategyOutcome] = {}
        self._kept: Datagrams | None = None  # the extra socket of the chosen pair, if any
        self._dialling = False  # whether TCP dials are under way
        self._shut = False  # whether this side has no TCP address that any peer can dial
        self.searched = False  # whether the birthday search has begun
        self._choice: Chosen[Socket] | None = None  # the chosen pair that was already handled
        self._wake = trio.Event()  # set when `_pump` must look for datagrams to send
        self._nursery: trio.Nursery | None = None
        self._deadline = self._began + tools.limits.attempt_s
        self._scope = trio.CancelScope(deadline=self._deadline)
        self._byte_stream: QuicByteStream | None = None  # the byte stream on the chosen pair

    # Life of the attempt.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the attempt to its end.

        The attempt ends a moment after the first success, at its deadline, or when `give_up` is
        called. All extra sockets are closed then, except for one on which a byte stream is open.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    if self._tools.udp is not None:
                        nursery.start_soon(self._pump)
                    task_status.started()
                    try:
                        await self.settled.wait()
                        await self._wait_for_the_rest()
                    finally:
                        self._nursery = None  # from now on nothing new is started
                    nursery.cancel_scope.cancel()
        finally:
            self._tools.searching.discard(self.name)
            if self.sockets is not None:
                self.sockets.close(keep=self._kept if self._byte_stream is not None else None)
            self.settled.set()
            self.over.set()

    async def _wait_for_the_rest(self) -> None:
        """After a success, let the other dials continue for a moment, and go on answering the
        peer's checks."""
        limits = self._tools.limits
        if self.outcome().worked:
            await trio.sleep(limits.linger_s if self.checks.chosen else limits.grace_s)

    def give_up(self) -> None:
        """End the attempt. Call this if there is no further round."""
        self.settled.set()

    def extend(self) -> None:
        """Extend the deadline so that it includes the round that the peer has just offered.

        The deadline never exceeds the time limit of the whole attempt.
        """
        limits = self._tools.limits
        until = self._tools.host.now() + limits.last_round_s + 2 * limits.skew_s + limits.observe_s
        self._scope.deadline = min(self._deadline, until)

    @property
    def kept(self) -> tuple[Datagrams, QuicByteStream] | None:
        """(extra socket that stays in use after the attempt, byte stream on it), or None."""
        return (
            None
            if self._kept is None or self._byte_stream is None
            else (self._kept, self._byte_stream)
        )

    async def begin(self, mine: PreparedRound, theirs: PunchOffer, at: float) -> None:
        """Begin a round at the time `at`, and return once its checks and dials have been started.

        `mine` is what this side has prepared, and `theirs` the peer's offer or reply.
        """
        self.checks.theirs = theirs.secret
        new = unseen(theirs.candidates, self._seen) if not self._unseen else ()
        self._unseen.update(each.place[0] for each in new)
        remote = [*probeable(theirs.candidates, self._seen), *new]
        tcp = [each.kind for each in mine.candidates if each.transport is CandidateTransport.TCP]
        self._shut = not {CandidateKind.PUBLIC, CandidateKind.MAPPED} & {*tcp}
        for each in remote:
            self._ways[each.place] = _WAYS.get(each.kind, PathKind.PUNCHED)
        self.plan = plan(mine.nat, theirs.nat, search=not self.part.thrifty)
        if self.plan not in SEARCHES or mine.busy or theirs.busy:
            self._tools.searching.discard(self.name)
        await trio.sleep_until(at)
        if self._nursery is None:  # the attempt has ended in the meantime
            return
        if not self._dialling:
            self._dialling = True
            self._nursery.start_soon(
                self._dial_tcp, schedule.places(remote, CandidateTransport.TCP)
            )
        if self._tools.udp is not None and self.checks.chosen is None:
            await self._check(
                mine, theirs, [c for c in remote if c.transport is CandidateTransport.UDP], at
            )
            self._wake.set()

    def may_be_at(self, ip: str) -> bool:
        """Return whether the peer may be at an IP address, so that this side may send there."""
        return may_probe(ip, self._seen)

    # Limits on the checks (`Permits`).

    def may_check(self, ip: str) -> bool:
        """Return whether this side may send UDP checks to an IP address.

        Unlike `may_be_at`, this includes a few addresses that only the peer has named.
        """
        return ip in self._unseen or self.may_be_at(ip)

    def spend(self, ip: str, now: float) -> bool:
        """Count one datagram to an IP address, or return False if it must not be sent."""
        budget = self._tools.budget
        if ip in self._unseen and ip not in self.checks.proven:
            return budget.unseen(ip, now)
        return budget.datagram(ip, now)

    def opens(self, ip: str) -> bool:
        """Return whether a TCP connection from an IP address must be a result of this attempt.

        If this side has a public address or a forwarded port, the result is False, because any peer
        could have dialled that. Otherwise only this side's own dials can have opened the NAT for
        the connection.
        """
        return self._shut and self.may_be_at(ip)

    # UDP.

    async def _check(
        self, mine: PreparedRound, theirs: PunchOffer, remote: Sequence[Candidate], at: float
    ) -> None:
        """Schedule the UDP checks of a round that begins at the time `at`, according to the plan.

        `remote` are the peer's UDP addresses to which this side may send.
        """
        checks, main = self.checks, schedule.targets(remote)
        ip = main[0][0] if main else None
        match self.plan:
            case PredictionPlan.BLOCKED:
                return
            case PredictionPlan.COUNT:
                at += schedule.COUNT_AFTER_S
            case PredictionPlan.FOLLOW:
                schedule.follow(checks, theirs, at)
            case PredictionPlan.STEP:
                schedule.walk(checks, theirs, at)
                at += schedule.COUNT_AFTER_S
            case PredictionPlan.SPRAY if ip is not None and self._begin_search():
                left = self._tools.budget.datagrams_left(ip, at) - 100
                count = min(defaults.BIRTHDAY_PROBES, left)
                schedule.spray(checks, mine.aside, ip, count, self._tools.host.entropy, at)
            case PredictionPlan.OPEN if main and self.sockets is not None and self._begin_search():
                many = await self.sockets.open(defaults.BIRTHDAY_SOCKETS)
                at += schedule.OPEN_AFTER_S  # also for ordinary checks: an early one may spoil all
                schedule.open_many(checks, many, theirs.search or main[0], at)
        if mine.fresh or theirs.comb:
            step = schedule.comb_step(theirs.round)
            pairs = schedule.Comb(mine.fresh, theirs.comb, main[0] if main else None)
            schedule.comb(checks, pairs, at, step, first=self.part.offering)
        schedule.ordinary(checks, remote, at)

    def told(self, theirs: PunchOffer) -> None:
        """Store the peer's offer, or its reply to ours."""
        self._theirs = theirs

    def sees(self, seen: SeenAddresses) -> None:
        """Store the peer's addresses that are known from others than the peer itself."""
        self._seen = seen
        self._unseen.difference_update(seen.vouched)

    def may_need_search(self, mine: NatProfile) -> bool:
        """Return whether the next round may need a birthday search. Each attempt makes at most one.

        `mine` is what is known about this side's NAT.
        """
        if self.part.thrifty or self.searched:
            return False
        if self._theirs is None:
            return mine.hard or mine.strict
        return plan(mine, self._theirs.nat) in SEARCHES

    def reserve_search(self) -> bool:
        """Reserve a birthday search. Return whether this was possible.

        If it was not, the caller must tell the peer, because a search succeeds only if both sides
        make it.
        """
        searching = self._tools.searching
        theirs = self._theirs.candidates if self._theirs is not None else ()
        if theirs and not schedule.targets(probeable(theirs, self._seen)):
            return False  # no third node has seen the peer at an IPv4 address yet
        if self.name not in searching and len(searching) >= self._tools.limits.searches:
            return False
        searching.add(self.name)
        return True

    def _begin_search(self) -> bool:
        """Mark the birthday search as begun, if both sides have reserved it.

        Returns False if they have not, or if it has begun before.
        """
        if self.searched or self.name not in self._tools.searching:
            return False
        self.searched = True
        return True

    async def _pump(self) -> None:
        """Send due datagrams, and act when a pair is chosen, until cancelled."""
        while True:
            self.flush()
            due = max(self.checks.due, self._tools.host.now() + _TICK_S)
            with trio.move_on_at(due):
                await self._wake.wait()
            self._wake = trio.Event()

    def flush(self) -> None:
        """Send all datagrams that are due, and open QUIC if a pair has just been chosen."""
        udp = self._tools.udp
        if udp is None:
            return
        for send in self.checks.take(self._tools.host.now()):
            udp.send(send.data, send.to, send.socket)
        if self.checks.chosen is not None and self.checks.chosen != self._choice:
            self._on_chosen(self.checks.chosen)

    def receive(self, message: StunMessage, data: bytes, source: Place, socket: Socket) -> bool:
        """Process a STUN message, decoded from `data`.

        Returns False if it does not belong to this attempt.
        """
        now = self._tools.host.now()
        if not self.checks.receive(message, data, source, socket, now):
            return False
        self.flush()
        self._wake.set()
        return True

    def _on_chosen(self, chosen: Chosen[Socket]) -> None:
        """Store the chosen pair. If this side is the client, start the QUIC handshake on it."""
        self._choice = chosen
        self._kept = chosen.socket
        if self.part.client and self._nursery is not None:
            self._nursery.start_soon(self._dial_udp, chosen)

    async def _dial_udp(self, chosen: Chosen[Socket]) -> None:
        """Open a QUIC connection on the chosen pair, and deliver its byte stream."""
        udp = self._tools.udp
        assert udp is not None
        try:
            byte_stream = await udp.dial(
                chosen.place, socket=chosen.socket, timeout=self._tools.limits.dial_s
            )
        except (ShoalError, OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            self._strategies["udp"] = StrategyOutcome(StrategyResult.NO_ANSWER, "quic")
            return
        self._byte_stream = byte_stream
        self._deliver(byte_stream, "udp", self.kind_of_udp())

    def kind_of_udp(self) -> PathKind:
        """Return the path kind of the chosen pair; PUNCHED if none is chosen."""
        if self._choice is None:
            return PathKind.PUNCHED
        return (
            PathKind.LAN
            if self._choice.lan
            else self._ways.get(self._choice.place, PathKind.PUNCHED)
        )

    def expects(self, place: Place) -> bool:
        """Return whether a QUIC connection accepted from an address belongs to this attempt."""
        return not self.part.client and self._choice is not None and self._choice.place == place

    def arrived(self, byte_stream: QuicByteStream) -> None:
        """Record that the peer has opened its QUIC connection on the chosen pair."""
        self._byte_stream = byte_stream
        self._work("udp")

    # TCP.

    async def _dial_tcp(self, places: Sequence[Place]) -> None:
        """Dial the peer's TCP addresses, and record the outcome."""
        tools = self._tools
        dialling = Dialling(
            tools.host,
            tools.port(),
            spend=lambda ip: tools.budget.syn(ip, tools.host.now()),
            deliver=self._on_tcp,
            limits=tools.limits,
        )
        end = await dialling.run(places)
        self._dialling = False
        if (
            end is not PunchDialResult.WORKED
            and self._strategies.get("tcp", _FRESH).result is not StrategyResult.WORKED
        ):
            self._strategies["tcp"] = _TCP_RESULTS[end]

    def _on_tcp(self, stream: trio.SocketStream, place: Place) -> None:
        """Deliver a TCP connection that this side has dialled."""
        self._deliver(TcpByteStream(stream), "tcp", self._ways.get(place, PathKind.PUNCHED))

    def met(self, strategy: str) -> None:
        """Record that the peer's own dial has arrived, by the strategy "tcp" or "udp"."""
        self._work(strategy)

    # Results.

    def _deliver(self, byte_stream: ByteStream, strategy: str, path_kind: PathKind) -> None:
        """Record the success of a strategy, and pass its byte stream to the node."""
        self._work(strategy)
        self._tools.on_byte_stream(byte_stream, self.peer, self.part.client, path_kind)

    def _work(self, strategy: str) -> None:
        """Record that a strategy has worked, with the time that it took."""
        if self._strategies.get(strategy, _FRESH).result is not StrategyResult.WORKED:
            after = self._tools.host.now() - self._began
            self._strategies[strategy] = StrategyOutcome(StrategyResult.WORKED, "", after)
        self.settled.set()

    def outcome(self) -> PunchOutcome:
        """Return the outcome as far as it is known now."""
        worked = any(
            strategy.result is StrategyResult.WORKED for strategy in self._strategies.values()
        )
        open_ = StrategyOutcome(StrategyResult.NOT_NEEDED if worked else StrategyResult.NO_ANSWER)
        strategies = {
            "tcp": self._strategies.get("tcp", open_),
            "udp": self._strategies.get("udp", open_),
        }
        if "udp" not in self._strategies and self._tools.udp is None:
            strategies["udp"] = StrategyOutcome(StrategyResult.NOT_POSSIBLE, "no-udp")
        elif "udp" not in self._strategies and self.plan is PredictionPlan.BLOCKED:
            strategies["udp"] = StrategyOutcome(StrategyResult.NOT_POSSIBLE, str(self.plan))
        if self.plan in FUTILE:
            strategies["prediction"] = StrategyOutcome(StrategyResult.NOT_POSSIBLE, str(self.plan))
        elif self.plan in SEARCHES and not self.searched and not worked:
            strategies["prediction"] = StrategyOutcome(StrategyResult.NOT_POSSIBLE, "busy")
        elif self.plan in _PREDICTS:
            strategies["prediction"] = strategies["udp"]
        else:
            strategies["prediction"] = StrategyOutcome(StrategyResult.NOT_NEEDED)
        return PunchOutcome(self.peer, strategies, self.round)


_FRESH = StrategyOutcome(StrategyResult.NO_ANSWER)
