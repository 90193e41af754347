"""One attempt of one side: its checks and dials in up to three rounds, and what came of them."""

from collections.abc import Sequence

import trio

from ..datagrams import Datagrams, Place
from ..errors import ShoalError
from ..identity import PeerId
from ..pipe import Pipe, TcpPipe, Way
from ..reach.stun import Message
from ..udp.quic import QuicPipe
from . import defaults, schedule
from .candidates import Candidate, Kind, Seen, Transport, may_probe, probeable, unseen
from .checks import Checks, Chosen
from .needs import Socket, Tools
from .offer import Offer
from .outcome import Outcome, Result, RungOutcome
from .predict import Nat, Plan, plan
from .preparing import Prepared
from .sockets import Sockets
from .tcp import Dialling, TcpEnd

_TICK_S = 0.002  # shots are handed over this often, not one by one
_TCP_RESULTS = {
    TcpEnd.WORKED: RungOutcome(Result.WORKED),
    TcpEnd.REFUSED: RungOutcome(Result.REFUSED, "reset"),
    TcpEnd.NO_ANSWER: RungOutcome(Result.NO_ANSWER),
    TcpEnd.BUDGET: RungOutcome(Result.NOT_POSSIBLE, "budget"),
    TcpEnd.NOWHERE: RungOutcome(Result.NOT_POSSIBLE, "no-address"),
}
SEARCHES = frozenset({Plan.OPEN, Plan.SPRAY})
FUTILE = frozenset({Plan.HOPELESS, Plan.SPARED})
"""Where a second round would end as the first."""
_PREDICTS = SEARCHES | {Plan.COUNT, Plan.FOLLOW, Plan.STEP}
_WAYS = {Kind.LAN: Way.LAN, Kind.PUBLIC: Way.DIRECT, Kind.MAPPED: Way.MAPPED}


class Attempt:
    """`client` says whether this side is the TLS and QUIC client, and chooses the pair: it has the
    smaller peer id. `offering` says whether it made the offers, `thrifty` that no search is
    made."""

    def __init__(
        self,
        tools: Tools,
        peer: PeerId,
        seen: Seen,
        *,
        name: bytes,
        client: bool,
        offering: bool,
        thrifty: bool = False,
    ) -> None:
        self.peer = peer
        self.name = name
        self.client = client
        self.offering = offering
        self.thrifty = thrifty
        self.round = 0
        self.plan = Plan.CHECKS
        self._theirs: Offer | None = None  # what the peer said last
        self.secret = tools.host.entropy(defaults.SECRET_BYTES)
        self.sockets = Sockets(tools, tools.udp) if tools.udp is not None else None
        self.checks: Checks[Socket] = Checks(
            name,
            controlling=client,
            secret=self.secret,
            may_probe=self._may_check,
            spend=self._spend,
            entropy=tools.host.entropy,
            limits=tools.limits,
        )
        self.settled = trio.Event()  # a pipe is there, or all is lost
        self.over = trio.Event()
        self._tools = tools
        self._seen = seen
        self._unseen: set[str] = set()  # addresses of its that only the peer has named
        self._ways: dict[Place, Way] = {}
        self._began = tools.host.now()
        self._rungs: dict[str, RungOutcome] = {}
        self._kept: Datagrams | None = None
        self._dialling = False
        self._shut = False  # nobody gets in to us from outside without our help
        self.searched = False
        self._choice: Chosen[Socket] | None = None
        self._wake = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._deadline = self._began + tools.limits.attempt_s
        self._scope = trio.CancelScope(deadline=self._deadline)
        self._pipe: QuicPipe | None = None

    # Its life.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until a moment after the first success, the deadline, or `give_up`."""
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
                        self._nursery = None  # nothing more is begun
                    nursery.cancel_scope.cancel()
        finally:
            self._tools.searching.discard(self.name)
            if self.sockets is not None:
                self.sockets.close(keep=self._kept if self._pipe is not None else None)
            self.settled.set()
            self.over.set()

    async def _wait_for_the_rest(self) -> None:
        """The other rung gets a moment, and the peer's checks an answer for longer."""
        limits = self._tools.limits
        if self.outcome().worked:
            await trio.sleep(limits.linger_s if self.checks.chosen else limits.grace_s)

    def give_up(self) -> None:
        """No further round comes."""
        self.settled.set()

    def extend(self) -> None:
        """Another round begins: the side that answers waits no longer than it and what follows."""
        limits = self._tools.limits
        until = self._tools.host.now() + limits.last_round_s + 2 * limits.skew_s + limits.observe_s
        self._scope.deadline = min(self._deadline, until)

    @property
    def kept(self) -> tuple[Datagrams, QuicPipe] | None:
        """The fresh socket that is used from now on, and what uses it."""
        return None if self._kept is None or self._pipe is None else (self._kept, self._pipe)

    async def begin(self, mine: Prepared, theirs: Offer, at: float) -> None:
        """Start a round at the agreed moment; returns when it has begun."""
        self.checks.theirs = theirs.secret
        new = unseen(theirs.candidates, self._seen) if not self._unseen else ()
        self._unseen.update(each.place[0] for each in new)
        remote = [*probeable(theirs.candidates, self._seen), *new]
        tcp = [each.kind for each in mine.candidates if each.transport is Transport.TCP]
        self._shut = not {Kind.PUBLIC, Kind.MAPPED} & {*tcp}
        for each in remote:
            self._ways[each.place] = _WAYS.get(each.kind, Way.PUNCHED)
        self.plan = plan(mine.nat, theirs.nat, search=not self.thrifty)
        if self.plan not in SEARCHES or mine.busy or theirs.busy:
            self._tools.searching.discard(self.name)
        await trio.sleep_until(at)
        if self._nursery is None:  # over meanwhile
            return
        if not self._dialling:
            self._dialling = True
            self._nursery.start_soon(self._dial_tcp, schedule.places(remote, Transport.TCP))
        if self._tools.udp is not None and self.checks.chosen is None:
            await self._check(mine, theirs, [c for c in remote if c.transport is Transport.UDP], at)
            self._wake.set()

    def may_be_at(self, ip: str) -> bool:
        """Whether the peer may be found at an IP address, and so may be sent to there."""
        return may_probe(ip, self._seen)

    def _may_check(self, ip: str) -> bool:
        return ip in self._unseen or self.may_be_at(ip)

    def _spend(self, ip: str, now: float) -> bool:
        budget = self._tools.budget
        if ip in self._unseen and ip not in self.checks.proven:
            return budget.unseen(ip, now)
        return budget.datagram(ip, now)

    def opens(self, ip: str) -> bool:
        """Whether our own dials have opened the way for those of the peer from there: anybody could
        have dialled a public address, or a port that the router forwards."""
        return self._shut and self.may_be_at(ip)

    # UDP.

    async def _check(
        self, mine: Prepared, theirs: Offer, remote: Sequence[Candidate], at: float
    ) -> None:
        checks, main = self.checks, schedule.targets(remote)
        ip = main[0][0] if main else None
        match self.plan:
            case Plan.BLOCKED:
                return
            case Plan.COUNT:
                at += schedule.COUNT_AFTER_S
            case Plan.FOLLOW:
                schedule.follow(checks, theirs, at)
            case Plan.STEP:
                schedule.walk(checks, theirs, at)
                at += schedule.COUNT_AFTER_S
            case Plan.SPRAY if ip is not None and self._begin_search():
                left = self._tools.budget.datagrams_left(ip, at) - 100
                count = min(defaults.BIRTHDAY_PROBES, left)
                schedule.spray(checks, mine.aside, ip, count, self._tools.host.entropy, at)
            case Plan.OPEN if main and self.sockets is not None and self._begin_search():
                many = await self.sockets.open(defaults.BIRTHDAY_SOCKETS)
                at += schedule.OPEN_AFTER_S  # ordinary ones too: one that is early may spoil all
                schedule.open_many(checks, many, theirs.search or main[0], at)
        if mine.fresh or theirs.comb:
            step = schedule.comb_step(theirs.round)
            place = main[0] if main else None
            first = self.offering
            schedule.comb(checks, mine.fresh, theirs.comb, place, at, step, first=first)
        schedule.ordinary(checks, remote, at)

    def told(self, theirs: Offer) -> None:
        """Take note of the peer's part of a round."""
        self._theirs = theirs

    def sees(self, seen: Seen) -> None:
        """Take note of what others say of the peer's addresses."""
        self._seen = seen
        self._unseen.difference_update(seen.vouched)

    def may_need_search(self, mine: Nat) -> bool:
        """Return whether a search may be due in the next round. Each attempt has one."""
        if self.thrifty or self.searched:
            return False
        if self._theirs is None:
            return mine.hard or mine.strict
        return plan(mine, self._theirs.nat) in SEARCHES

    def reserve_search(self) -> bool:
        """Return whether this node can search now. If not, it tells the peer, because the search
        of one side alone finds nothing."""
        searching = self._tools.searching
        theirs = self._theirs.candidates if self._theirs is not None else ()
        if theirs and not schedule.targets(probeable(theirs, self._seen)):
            return False  # no third node has seen the peer by IPv4 yet
        if self.name not in searching and len(searching) >= self._tools.limits.searches:
            return False
        searching.add(self.name)
        return True

    def _begin_search(self) -> bool:
        """Return whether both sides have reserved a search that is not made yet."""
        if self.searched or self.name not in self._tools.searching:
            return False
        self.searched = True
        return True

    async def _pump(self) -> None:
        """Sends what is due; notices the choice."""
        while True:
            self.flush()
            due = max(self.checks.due, self._tools.host.now() + _TICK_S)
            with trio.move_on_at(due):
                await self._wake.wait()
            self._wake = trio.Event()

    def flush(self) -> None:
        """Send what is due now."""
        udp = self._tools.udp
        if udp is None:
            return
        for send in self.checks.take(self._tools.host.now()):
            udp.send(send.data, send.to, send.socket)
        if self.checks.chosen is not None and self.checks.chosen != self._choice:
            self._on_chosen(self.checks.chosen)

    def receive(self, message: Message, data: bytes, source: Place, socket: Socket) -> bool:
        """Take a STUN message; False where it is not of this attempt."""
        now = self._tools.host.now()
        if not self.checks.receive(message, data, source, socket, now):
            return False
        self.flush()
        self._wake.set()
        return True

    def _on_chosen(self, chosen: Chosen[Socket]) -> None:
        self._choice = chosen
        self._kept = chosen.socket
        if self.client and self._nursery is not None:
            self._nursery.start_soon(self._dial_udp, chosen)

    async def _dial_udp(self, chosen: Chosen[Socket]) -> None:
        udp = self._tools.udp
        assert udp is not None
        try:
            pipe = await udp.dial(
                chosen.place, socket=chosen.socket, timeout=self._tools.limits.dial_s
            )
        except (ShoalError, OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            self._rungs["udp"] = RungOutcome(Result.NO_ANSWER, "quic")
            return
        self._pipe = pipe
        self._deliver(pipe, "udp", self.way_of_udp())

    def way_of_udp(self) -> Way:
        """How the chosen pair goes to the peer."""
        if self._choice is None:
            return Way.PUNCHED
        return Way.LAN if self._choice.lan else self._ways.get(self._choice.place, Way.PUNCHED)

    def expects(self, place: Place) -> bool:
        """Whether a QUIC connection that was accepted from there is this attempt's."""
        return not self.client and self._choice is not None and self._choice.place == place

    def arrived(self, pipe: QuicPipe) -> None:
        """The peer's QUIC connection is there, on the chosen pair."""
        self._pipe = pipe
        self._work("udp")

    # TCP.

    async def _dial_tcp(self, places: Sequence[Place]) -> None:
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
        if end is not TcpEnd.WORKED and self._rungs.get("tcp", _FRESH).result is not Result.WORKED:
            self._rungs["tcp"] = _TCP_RESULTS[end]

    def _on_tcp(self, stream: trio.SocketStream, place: Place) -> None:
        self._deliver(TcpPipe(stream), "tcp", self._ways.get(place, Way.PUNCHED))

    def met(self, rung: str) -> None:
        """The peer's own dial came here."""
        self._work(rung)

    # What came of it.

    def _deliver(self, pipe: Pipe, rung: str, way: Way) -> None:
        self._work(rung)
        self._tools.on_pipe(pipe, self.peer, self.client, way)

    def _work(self, rung: str) -> None:
        if self._rungs.get(rung, _FRESH).result is not Result.WORKED:
            after = self._tools.host.now() - self._began
            self._rungs[rung] = RungOutcome(Result.WORKED, "", after)
        self.settled.set()

    def outcome(self) -> Outcome:
        """As far as is known now."""
        worked = any(rung.result is Result.WORKED for rung in self._rungs.values())
        open_ = RungOutcome(Result.NOT_NEEDED if worked else Result.NO_ANSWER)
        rungs = {"tcp": self._rungs.get("tcp", open_), "udp": self._rungs.get("udp", open_)}
        if "udp" not in self._rungs and self._tools.udp is None:
            rungs["udp"] = RungOutcome(Result.NOT_POSSIBLE, "no-udp")
        elif "udp" not in self._rungs and self.plan is Plan.BLOCKED:
            rungs["udp"] = RungOutcome(Result.NOT_POSSIBLE, str(self.plan))
        if self.plan in FUTILE:
            rungs["prediction"] = RungOutcome(Result.NOT_POSSIBLE, str(self.plan))
        elif self.plan in SEARCHES and not self.searched and not worked:
            rungs["prediction"] = RungOutcome(Result.NOT_POSSIBLE, "busy")
        elif self.plan in _PREDICTS:
            rungs["prediction"] = rungs["udp"]
        else:
            rungs["prediction"] = RungOutcome(Result.NOT_NEEDED)
        return Outcome(self.peer, rungs, self.round)


_FRESH = RungOutcome(Result.NO_ANSWER)
