"""Chooses the chain of each request of a gateway: asks stages for their load, and learns from what
they then do.

The decisions are in `routing/router.py`. Here are the probes, and what the directory, the links and
the cost model say of members.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import trio

from ...state.directory import Directory
from ...state.membership.record import Capacity, ShardRecord
from ...transport.errors import CallRefused, LinkClosed
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.rates import Rate, Rates
from ..costs.chain import WindowPrices, window_prices
from ..costs.links import trip_within
from ..costs.members import member_rates
from ..costs.rates import UNKNOWN, DeviceRates, LinkRates
from ..costs.seconds import step_seconds
from ..costs.shardcosts import ShardCosts
from ..costs.tracker import Expected, MeanError, Trackers
from ..costs.work import EqualRows, ModelWork, ShardWork
from ..defaults import ANSWER_SOON, MAX_AHEAD, PROBE_TIMEOUT, PROBES
from ..engine.activations.layout import packed_bytes
from ..engine.families import DTYPE_BYTES
from ..engine.interface import Parts, SessionId
from ..errors import BadMessage, NoRoute
from ..placement.links import ReportedTrips
from ..routing.affinity import NO_PREFIX, Prefix
from ..routing.beliefs import TOKENS_LEAST, Load, Observed, Shard, Times
from ..routing.defaults import ADMISSION_WAIT, SPAN_ROWS
from ..routing.paths import Hop
from ..routing.router import GatewayView, PlannedChain, Router, Want
from .chain import Chains
from .courier import Courier
from .generation import GenerationRun, Model, SessionPurpose
from .line import Line, RoomRequest, overloaded
from .messages import SESSION_BYTES, Probe, StageLoad, parse_dtype
from .shards import Members, no_route, parts_of, shards_of

_TimesKey = tuple[str, Hop, Capacity, ShardRecord | None]
_TIMES_KEPT = 4_096  # predicted times of shards on devices, a count
_WORKS_KEPT = 8  # models whose work is described
_UNKNOWN_LAYER = Times(1e-4, 1e-3)  # of a layer of a model whose sizes are not known


@dataclass(slots=True)
class Wish:
    """Needs of a request: room for the prompt with the tokens so far (`ids`) and `new` tokens more.

    `replies` are the last ones of stages to its probes. `first`: it has no answer yet, so that it
    may be refused with `overloaded`.
    """

    model: Model
    ids: list[int]
    new: int
    names: bytes
    place: RoomRequest
    replies: dict[Shard, Load]
    first: bool = True
    prefix: Prefix = field(init=False)

    def __post_init__(self) -> None:
        self.prefix = Prefix.of(self.names)

    def want(self, session: SessionId) -> Want:
        """Return these needs in the form that the router takes."""
        model = self.model
        ids, hidden = len(self.ids), model.hidden
        return Want(model.root, model.layers, ids, self.prefix, self.new, session, hidden)


class AnswerErrors(NamedTuple):
    """Errors of the predicted seconds until the first token of an answer, for each further one, and
    for the part of that which each peer computes."""

    first: MeanError
    token: MeanError
    peers: Trackers[PeerId]


MOST_PREDICTED: Final = 60.0
"""Seconds until the first token that are believed, since members may claim to be slow."""


class Choice:
    """Chooses chains for one gateway."""

    def __init__(self, host: Host, courier: Courier, directory: Directory, chains: Chains) -> None:
        self._host = host
        self._courier = courier
        self._directory = directory
        self._chains = chains
        self.router = Router()
        self._reported = ReportedTrips()
        self._rates = Rates(Rate(PROBES[0] - 1, PROBES[1]))  # as the stages allow
        self._plans: dict[SessionId, tuple[PlannedChain, Prefix]] = {}
        self._works: OrderedDict[tuple[str, str], ModelWork] = OrderedDict()
        self._times: OrderedDict[_TimesKey, Times] = OrderedDict()
        self._line = Line()
        self._looking = trio.Lock()
        self._resting: dict[RoomRequest, trio.Event] = {}
        self.errors = AnswerErrors(MeanError(), MeanError(), Trackers())
        """The errors of predictions about this gateway's answers."""

    def slower(self, peer: PeerId, root: str, parts: Parts, token_s: float) -> float:
        """Return by what factor a stage is slower than its member's claim of `token_s` seconds for
        a token, as this gateway measured it. 1: as claimed, or not measured."""
        shard, claimed = Shard(peer, root, parts), Times(token_s, token_s)
        return self.router.beliefs.times(shard, claimed).token_s / token_s if token_s else 1.0

    def believed(self, hop: Hop, model: Model) -> Times:
        """Return the believed times of a stage, 0 if it is no member any more."""
        members = self._directory.members()
        if hop.peer not in members:
            return Times(0.0, 0.0)
        claimed = self._claimed(members, model, hop)
        return self.router.beliefs.times(Shard(hop.peer, model.root, hop.parts), claimed)

    # Facts about members.

    def _view(self, members: Members, claimed: Callable[[Hop], Times]) -> GatewayView:
        avoid = frozenset(self._chains.avoided())
        return GatewayView(
            self._courier.peer,
            claimed,
            self._courier.round_trip,
            avoid,
            partial(self._trip, members),
            partial(self._rate, members),
        )

    def _view_of(self, members: Members, model: Model) -> GatewayView:
        return self._view(members, partial(self._claimed, members, model))

    def _trip(self, members: Members, one: PeerId, other: PeerId) -> float:
        """Return the seconds of a round trip between two members, as both have reported it, or as
        those to third members bound it. 0 if nothing was reported."""
        if said := self._said(members, one, other):
            return said
        if one not in members or other not in members:
            return 0.0
        low, high = self._reported.bounds(members[one], members[other])
        if high == math.inf:
            return 0.0
        here, there = self._courier.round_trip(one), self._courier.round_trip(other)
        if here and there:
            low, high = max(low, abs(here - there)), min(high, here + there)
        return trip_within(low, high)

    def _said(self, members: Members, one: PeerId, other: PeerId) -> float:
        """Return the seconds of a round trip between two members, 0 if they have not both reported
        it."""
        if one not in members or other not in members:
            return 0.0
        return self._reported.between(members[one], members[other])

    def _rate(self, members: Members, one: PeerId, other: PeerId) -> float:
        """Return the byte/s between two members, as this node has measured or both report them."""
        own = self._courier.peer
        if own in (one, other):
            return self._courier.rate(other if one == own else one)
        if one not in members or other not in members:
            return 0.0
        return self._reported.rate(members[one], members[other])

    def _claimed(self, members: Members, model: Model, hop: Hop) -> Times:
        """Return the times of a shard by the claims of its member, from facts that it published."""
        record = members[hop.peer]
        shard = next((each for each in record.shards if parts_of(each) == hop.parts), None)
        key = model.root, hop, record.capacity, shard
        if key not in self._times:
            self._times[key] = self._predict(model, hop, record.capacity, shard)
            if len(self._times) > _TIMES_KEPT:
                self._times.popitem(last=False)
        return self._times[key]

    def _predict(
        self, model: Model, hop: Hop, capacity: Capacity, shard: ShardRecord | None
    ) -> Times:
        if model.arch is None:
            layers = hop.parts.stop - hop.parts.start
            return Times(_UNKNOWN_LAYER.row_s * layers, _UNKNOWN_LAYER.token_s * layers)
        dtype = parse_dtype(hop.dtype)
        key = model.root, dtype
        if key not in self._works:
            self._works[key] = ModelWork(model.arch, dtype)
            if len(self._works) > _WORKS_KEPT:
                self._works.popitem(last=False)
        work = self._works[key].of(hop.parts)
        rates = member_rates(capacity, shard, work)
        prompt = step_seconds(rates, work, [EqualRows(SPAN_ROWS, SPAN_ROWS)])
        return Times(prompt / SPAN_ROWS, _token_seconds(rates, work))

    def _members(self, without: Collection[str]) -> Members:
        return {
            peer: record
            for peer, record in self._directory.members().items()
            if peer not in without and not self._courier.is_quiet(peer)
        }

    def _hops(self, members: Members, wish: Wish) -> list[Hop]:
        model = wish.model
        return shards_of(members, model.root, model.layers, len(wish.ids) + wish.new)

    # Probes.

    async def look(
        self, wish: Wish, without: Collection[str], session: SessionId
    ) -> PlannedChain | None:
        """Ask some stages for their load, all at once, if there is a choice between chains. Return
        the best chain for a session by what they said, or None if linked members form none.

        Asks no stage if the best chain is this node alone and has no work: the question would only
        delay the answer. Waits for PROBE_TIMEOUT at most. Raises Overloaded if the best chain
        has no room, or not enough time, for too long.
        """
        members = self._members(without)
        linked = {peer: each for peer, each in members.items() if self._courier.reaches(peer)}
        view, want = self._view_of(members, wish.model), wish.want(session)
        hops = self._hops(linked, wish)
        wish.replies.clear()
        plan = await self._idle_here(view, want, hops, wish)
        if plan is None:
            await self._ask(self.router.questions(view, want, hops, self._host.now()), wish)
        if wish.first:
            self._line.check(wish.place, self._host.now())
        plan = plan or self.router.plan(view, want, hops, self._host.now(), wish.replies)
        if wish.first and plan and not plan.avoided and plan.wait_s > ADMISSION_WAIT:
            raise overloaded(plan.wait_s, "the prompts before this one take long")
        return plan

    async def _idle_here(
        self, view: GatewayView, want: Want, hops: Sequence[Hop], wish: Wish
    ) -> PlannedChain | None:
        """Return the best chain if it is this node alone, which has no other work now."""
        chain: Sequence[Hop] = hops
        if len(hops) > 1:
            plan = self.router.plan(view, want, hops, self._host.now())
            chain = plan.chain if plan else ()
        if {hop.peer for hop in chain} != {self._courier.peer}:
            return None
        await self._ask(chain, wish)
        known = self.router.plan(view, want, hops, self._host.now(), wish.replies)
        idle = known and known.chain == tuple(chain) and known.wait_s == 0.0
        return known if idle else None

    async def look_again(self, wish: Wish, full: Collection[PeerId]) -> None:
        """Ask stages that have no room when they will have some.

        Raises Overloaded if that is too long.
        """
        self._line.join(wish.place)
        async with self._looking:  # what a stage says to one request serves all that wait
            if self._line.back(wish.place, self._host.now()) is None:
                hops = self._hops(self._members(()), wish)
                await self._ask([hop for hop in hops if hop.peer in full], wish)
        if wish.first:
            self._line.check(wish.place, self._host.now())

    async def rest(self, place: RoomRequest, seconds: float) -> None:
        """Wait before a request looks for room again: for some seconds, or until a session of this
        gateway has ended and the request is the first that waits."""
        self._resting[place] = event = trio.Event()
        try:
            with trio.move_on_after(seconds):
                await event.wait()
        finally:
            self._resting.pop(place, None)

    def freed(self, root: str) -> None:
        """Have the first request that waits for room for a model look again, because a session has
        ended."""
        place = next((each for each in self._line.waiting(root) if each in self._resting), None)
        if place is not None:
            self._resting.pop(place).set()

    def leave(self, place: RoomRequest) -> None:
        """Record that a request no longer waits for room."""
        self._line.leave(place)

    async def _ask(self, hops: Sequence[Hop], wish: Wish) -> None:
        """Probe stages, all at once. Skip stages that miss a probe for a while."""
        backs: list[float] = []
        ahead = min(self._line.ahead(wish.place), MAX_AHEAD)
        asked = [hop for hop in hops if self._rates.take(hop.peer, self._host.now())]
        if len(asked) == 1:
            await self._probe(asked[0], wish, ahead, backs)
        else:
            async with trio.open_nursery() as nursery:
                for hop in asked:
                    nursery.start_soon(self._probe, hop, wish, ahead, backs)
        if backs:
            self._line.told(wish.model.root, min(backs), ahead, self._host.now())

    async def _probe(self, hop: Hop, wish: Wish, ahead: int, backs: list[float]) -> None:
        root, prompt = wish.model.root, len(wish.ids)
        soon = prompt + min(wish.new, ANSWER_SOON)
        question = Probe(
            root, hop.parts, parse_dtype(hop.dtype), prompt, soon, wish.prefix.every, ahead
        )
        shard = Shard(hop.peer, root, hop.parts)
        beliefs = self.router.beliefs
        with trio.move_on_after(PROBE_TIMEOUT):
            try:
                reply = await self._courier.call(
                    hop.peer,
                    "stage.probe",
                    question.header(),
                    wish.prefix.joined,
                    timeout=PROBE_TIMEOUT,
                )
                said = StageLoad.parse(reply.header)
            except (BadMessage, CallRefused, LinkClosed):
                beliefs.missed(shard, self._host.now())
                return
            cached = min(said.cached, max(prompt - 1, 0))
            load = Load(said.wait, cached, said.back, said.row)
            beliefs.told(shard, load, self._host.now())
            wish.replies[shard] = load
            backs.append(said.back)
            return
        beliefs.missed(shard, self._host.now())

    # The chain.

    def run(
        self, wish: Wish, without: Collection[str], session: SessionId, terms: SessionPurpose
    ) -> GenerationRun:
        """Create a session over the best chain without the peers in `without`.

        Raises NoRoute if no chain covers the model.
        """
        return self.planned(self._plan(wish, without, session), wish, session, terms)

    def planned(
        self, plan: PlannedChain, wish: Wish, session: SessionId, terms: SessionPurpose
    ) -> GenerationRun:
        """Create a session over the chain of a plan."""
        run = GenerationRun(session, plan.chain, wish.ids, wish.new, self._host.now(), terms)
        run.pace.predict(min(plan.cost.first_s, MOST_PREDICTED))
        if not terms.job:  # the requests of people come before those of jobs
            run.pace.token_s = min(plan.cost.token_s, MOST_PREDICTED)
        self._plans[session] = plan, wish.prefix
        return run

    def has_chain(self, wish: Wish, without: Collection[str]) -> bool:
        """Return whether members without the peers in `without` form a chain."""
        try:
            self._plan(wish, without, SessionId(bytes(SESSION_BYTES)))
        except NoRoute:
            return False
        return True

    def _plan(self, wish: Wish, without: Collection[str], session: SessionId) -> PlannedChain:
        """Return the best chain by what is known now."""
        members = self._members(without)
        linked = {peer: each for peer, each in members.items() if self._courier.reaches(peer)}
        view, want = self._view_of(members, wish.model), wish.want(session)
        now = self._host.now()
        for some in (linked, members):  # a new link takes time, so it is the second choice
            plan = self.router.plan(view, want, self._hops(some, wish), now, wish.replies)
            if plan is not None:
                return plan
        model = wish.model
        raise no_route(members, model.root, model.layers, len(wish.ids) + wish.new, wish.new)

    def replaced(
        self, model: Model, session: SessionId, members: Members, rows: int, new: int
    ) -> tuple[Hop, ...]:
        """Return the best chain among the shards in `members` for an answer that has `rows`
        positions and `new` tokens to come, or nothing if they form none."""
        view = self._view_of(self._directory.members(), model)
        want = Want(model.root, model.layers, rows, NO_PREFIX, new, session, model.hidden)
        hops = shards_of(members, model.root, model.layers, rows + new)
        plan = self.router.plan(view, want, hops, self._host.now())
        return plan.chain if plan else ()

    def token_s(self, chain: Sequence[Hop], model: Model) -> float:
        """Return the seconds of a token over a chain of members: as this gateway measured them
        lately, else as predicted from what it measured of parts of the chain."""
        known, now, chain = self.router.measured.of(model.root), self._host.now(), tuple(chain)
        followers = zip(chain, (*chain[1:], chain[0]), self._parts(chain, model), strict=True)
        return known.chain_s(chain, sum(known.pair_s(*each, now) for each in followers), now)

    def _parts(self, chain: Sequence[Hop], model: Model) -> list[float]:
        """Return the predicted seconds of a token from each stage of a chain to the next: of the
        way to that one, and of computing there."""
        links = self._links_s([hop.peer for hop in chain])
        stages = [self.believed(hop, model).token_s for hop in (*chain[1:], chain[0])]
        return [link + stage for link, stage in zip(links, stages, strict=True)]

    def measure(self, run: GenerationRun, model: Model) -> None:
        """Learn from the latest tokens of a session how long one takes around its chain."""
        seconds, count = run.round_s, len(run.times.latest) - 1
        members = self._directory.members()
        known = all(peer in members for peer in run.peers)  # else nothing is predicted of it
        if seconds and known and len(run.chain) > 1 and not run.terms.job:
            parts, now = self._parts(run.chain, model), self._host.now()
            self.router.measured.of(model.root).note(run.chain, parts, seconds, count, now)

    def measured(self, model: Model) -> list[tuple[Hop, ...]]:
        """Return the chains of several stages that this gateway measured last."""
        return self.router.measured.of(model.root).latest()

    def rate(self, one: PeerId, other: PeerId) -> float:
        """Return the byte/s from one member to another, as measured or reported; 0 if unknown."""
        return self._rate(self._directory.members(), one, other)

    def knows(self, chain: Sequence[Hop]) -> bool:
        """Return whether the round trips around a chain are reported or measured."""
        members, own = self._directory.members(), self._courier.peer
        peers = [hop.peer for hop in chain]
        pairs = zip(peers, (*peers[1:], peers[0]), strict=True)
        return all(own in pair or self._said(members, *pair) for pair in pairs)

    def window_prices(self, run: GenerationRun, model: Model) -> WindowPrices:
        """Return the predicted seconds of windows of drafts in the chain of a session."""
        members, peers = self._directory.members(), run.peers
        view = self._view_of(members, model)
        pairs = zip(peers, (*peers[1:], peers[0]), strict=True)
        ring = [LinkRates(view.trip(*pair), view.rate(*pair)) for pair in pairs]
        stages = [self._costs(members, model, hop) for hop in run.chain]
        packed, width = run.activations == "int8", DTYPE_BYTES[parse_dtype(run.chain[0].dtype)]
        row = packed_bytes(model.hidden) if packed else width * model.hidden
        return window_prices(stages, ring, row, run.prompt)

    def _costs(self, members: Members, model: Model, hop: Hop) -> ShardCosts:
        """Return the costs of a shard as its member measured or the cost model predicts them, and
        as many times as much as this gateway measured."""
        believed, record = self.believed(hop, model), members.get(hop.peer)
        shards = () if record is None else record.shards
        shard = next((each for each in shards if parts_of(each) == hop.parts), None)
        if shard is None or not any(shard.costs):
            return ShardCosts(max(0.0, believed.token_s - believed.row_s), believed.row_s)
        claimed = self._claimed(members, model, hop).token_s
        slower = believed.token_s / claimed if claimed else 1.0
        return ShardCosts(*(slower * each for each in shard.costs))

    # Measurements.

    def opened(self, run: GenerationRun) -> None:
        """Record that the stages of a session are open."""
        now = self._host.now()
        run.times.opening_s, run.times.began = now - run.times.began, now
        if run.session in self._plans:
            self.router.take(*self._plans[run.session], now)

    def answered(self, run: GenerationRun) -> None:
        """Learn from the first token of a session."""
        if run.session not in self._plans:
            return
        first = (run.times.first_at or 0.0) - run.times.began
        trips = self._trips(run)
        plan, _ = self._plans[run.session]
        links = (trips[0] + trips[-1]) / 2 + plan.sent.span_s
        seen = Observed(first, links, run.prompt - run.start)
        self.errors.first.note(plan.first_s, run.times.opening_s + first)
        self.router.beliefs.observed(plan.stages, seen, self._host.now())

    def closed(self, run: GenerationRun, model: Model) -> None:
        """Learn from the tokens of a session that has ended."""
        plan, _ = self._plans.pop(run.session, (None, None))
        if plan is None:
            self._learn_mended(run, model)
        else:
            if run.times.first_at is None:
                self.router.beliefs.dropped(plan.stages)
            ring = self._learn(run, plan)
            if run.times.tokens >= TOKENS_LEAST:
                self.errors.token.note(plan.cost.token_s, run.token_s)
                self.errors.peers.note_sum(self._expected(plan), run.token_s - ring)
        self.measure(run, model)

    def _learn_mended(self, run: GenerationRun, model: Model) -> None:
        """Learn from a chain that was not planned, because its stages have replaced others."""
        members = self._directory.members()
        if run.times.tokens < TOKENS_LEAST or any(peer not in members for peer in run.peers):
            return
        want = Want(model.root, model.layers, 1, NO_PREFIX, hidden=model.hidden)
        view, now = self._view_of(members, model), self._host.now()
        self._learn(run, self.router.describe(view, want, run.chain, now))

    def _learn(self, run: GenerationRun, plan: PlannedChain) -> float:
        """Learn how fast the stages of a chain compute. Return the seconds of a token on links."""
        ring = sum(self._links_s(run.peers)) + plan.sent.row_s
        seen = Observed(0.0, 0.0, 0, run.token_s, ring, run.times.tokens - 1)
        self.router.beliefs.observed(plan.stages, seen, self._host.now())
        return ring

    def _expected(self, plan: PlannedChain) -> list[Expected[PeerId]]:
        """Return what each stage of a chain was expected to take for a token."""
        found = []
        for hop, taken in zip(plan.chain, plan.stages, strict=True):
            work = self._works.get((taken.shard.root, parse_dtype(hop.dtype)))
            seconds = taken.times.token_s
            cautious = _token_seconds(UNKNOWN, work.of(hop.parts)) if work else seconds
            found.append(Expected(hop.peer, seconds, cautious))
        return found

    def _links_s(self, peers: Sequence[PeerId]) -> list[float]:
        """Return the seconds that a token takes from each stage of a chain to the next, and from
        the last one to the first."""
        view = self._view(self._directory.members(), lambda hop: _UNKNOWN_LAYER)
        return [view.trip(*pair) / 2 for pair in zip(peers, (*peers[1:], peers[0]), strict=True)]

    def _trips(self, run: GenerationRun) -> list[float]:
        return [self._courier.round_trip(peer) or 0.0 for peer in run.peers]


def _token_seconds(rates: DeviceRates, work: ShardWork) -> float:
    """Return the predicted seconds of a token far into a text."""
    return step_seconds(rates, work, [EqualRows(1, 4 * SPAN_ROWS)], int(work.head_flops > 0))
