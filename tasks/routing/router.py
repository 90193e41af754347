"""Which stages a gateway asks before a request, and which chain it then takes. No I/O, no clock."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from ...transport.identity import PeerId
from ..costs.links import trip_between
from ..costs.rates import RATE_LEAST
from ..engine.families import DTYPE_BYTES
from ..engine.interface import Parts
from .affinity import Chain, Hotness, Prefix, PrefixMemory, ranked
from .beliefs import Beliefs, Load, Shard, StageTimes, Times
from .defaults import (
    AGREES,
    EXPECTED_TOKENS,
    LINK_S,
    NEW_LINK_S,
    PROBES_OF_REQUEST,
    PROBES_OF_STAGE,
    SPAN_ROWS,
    UNASKED_WAIT,
)
from .measured import MeasuredChains, MeasuredNow
from .paths import NOTHING_SENT, ChainCost, Hop, HopTimes, RouteCosts, Search, Sending, StageCost

Replies = Mapping[Shard, Load]
"""The replies to the probes of one request. The positions that they say are cached are those of its
prompt."""
NO_REPLIES: Final[Replies] = {}
_BYTES: Final[Mapping[str, int]] = {str(dtype): size for dtype, size in DTYPE_BYTES.items()}


@dataclass(frozen=True, slots=True)
class GatewayView:
    """Knowledge of a gateway (`own`) about the members, apart from its beliefs.

    `claimed` returns the times that a stage's member claims, and `round_trip` the seconds of a
    round trip to a peer, or None without a link. `reported` returns those of a round trip between
    two other peers as members report them or bound them, or 0 if none does.
    """

    own: PeerId | None
    claimed: Callable[[Hop], Times]
    round_trip: Callable[[PeerId], float | None]
    avoid: frozenset[PeerId] = frozenset()
    reported: Callable[[PeerId, PeerId], float] = lambda one, other: 0.0

    rate: Callable[[PeerId, PeerId], float] = lambda one, other: 0.0
    """Returns the byte/s from one peer to another, 0 if they are not known."""

    def trip(self, one: PeerId | None, other: PeerId) -> float:
        """Return the seconds of a round trip between two peers, of which None is the gateway.

        Between two others it is as they report, or else predicted from those to here.
        """
        if one == other:
            return 0.0
        if one is None or self.own in (one, other):
            return max(self._own_trip(one) if one is not None else 0.0, self._own_trip(other))
        reported = self.reported(one, other)
        return reported or trip_between(self._own_trip(one), self._own_trip(other))

    def _own_trip(self, peer: PeerId) -> float:
        trip = 0.0 if peer == self.own else self.round_trip(peer)
        return LINK_S if trip is None else trip


@dataclass(frozen=True, slots=True)
class Want:
    """A request: a prompt of `rows` positions for the model `root` with `layers` layers.

    `tokens` are wanted at most. `session` is random. With `hidden`, the seconds count in which
    links carry hidden states.
    """

    root: str
    layers: int
    rows: int
    prefix: Prefix
    tokens: int = EXPECTED_TOKENS
    session: bytes = b""
    hidden: int = 0  # values of a hidden state


@dataclass(frozen=True, slots=True)
class PlannedChain:
    """A chain with its predicted costs. `stages` say what was predicted of each."""

    chain: tuple[Hop, ...]
    cost: ChainCost
    stages: tuple[StageTimes, ...]
    wait_s: float  # seconds that the prompt waits at its slowest stage that was asked
    first_s: float  # seconds until the first token, if the stages that were not asked are idle
    avoided: int = 0  # stages that are used as a last resort
    sent: Sending = NOTHING_SENT  # on all links together


@dataclass(frozen=True, slots=True)
class _IfIdle:
    """`RouteCosts` with the waits of some stages left out. A stage that was not asked seems to need
    more time than others, which is for comparing chains, and no prediction."""

    costs: RouteCosts
    idle: frozenset[Hop]

    @property
    def own(self) -> PeerId | None:
        return self.costs.own

    def stage(self, hop: Hop) -> StageCost:
        cost = self.costs.stage(hop)
        return cost._replace(wait_s=0.0) if hop in self.idle else cost

    def link(self, one: PeerId | None, other: PeerId) -> float:
        return self.costs.link(one, other)

    def hop_times(self, one: PeerId | None, hop: Hop) -> HopTimes:
        return self.costs.hop_times(one, hop)

    def opening(self, peer: PeerId) -> float:
        return self.costs.opening(peer)


class _RequestCosts:
    """`RouteCosts` of one request, by the beliefs of a moment."""

    def __init__(
        self,
        view: GatewayView,
        want: Want,
        beliefs: Beliefs,
        now: float,
        replies: Replies,
        cached: Mapping[PeerId, int] | int,
    ) -> None:
        """Create the costs. `cached` positions are cached at all stages; or it has those of each
        stage with all layers, if the stage does not say better."""
        self._view = view
        self._want = want
        self._beliefs = beliefs
        self._now = now
        self._replies = replies
        self._asked = {shard.parts for shard in replies}
        self._slower: dict[Parts, float] = {}
        self._cached = cached
        self._sent_rows = max(want.rows - (cached if isinstance(cached, int) else 0), 1)
        self._trips: dict[tuple[PeerId | None, PeerId], float] = {}
        self._hop_times: dict[tuple[PeerId | None, PeerId, str], HopTimes] = {}
        self._late: dict[Shard, float] = {}
        self._stages: dict[Hop, StageCost] = {}
        self._unasked = UNASKED_WAIT
        self.own = view.own

    def expect(self, hops: Iterable[Hop]) -> None:
        """Assume that stages which were not asked are busier than those that were."""
        waits = [wait for hop in hops if (wait := self.wait(self.shard(hop))) is not None]
        self._unasked += max(waits, default=0.0)
        for hop in hops:
            if (said := self._said_slower(hop)) > self._slower.get(hop.parts, 1.0):
                self._slower[hop.parts] = said

    def _said_slower(self, hop: Hop) -> float:
        """Return by what factor a stage says that it needs longer for a row of a prompt than is
        believed, 0 if it does not say. It gains nothing by saying less."""
        reply = self._replies.get(self.shard(hop))
        if reply is None or not reply.row_s or self._doubted(self.shard(hop)):
            return 0.0
        believed = self._beliefs.times(self.shard(hop), self._view.claimed(hop)).row_s
        return min(max(1.0, reply.row_s / max(believed, 1e-9)), AGREES)

    def wait(self, shard: Shard) -> float | None:
        """Return the wait that a stage said lately to this request, or else to another one.

        If other replicas of it were asked for this request, what it said to another one does not
        count: prompts stay with the replicas that their hash chooses, where the next prompt with
        the same beginning will look for them.
        """
        reply, before = self._replies.get(shard), self._beliefs.load(shard, self._now)
        if self._doubted(shard):
            return None
        if before is None or (reply is None and shard.parts in self._asked):
            return None
        return before.wait_s if reply is None else reply.wait_s + self._beliefs.given(shard)

    def shard(self, hop: Hop) -> Shard:
        return Shard(hop.peer, self._want.root, hop.parts)

    def cached(self, hop: Hop) -> int:
        """Return the positions of the prompt that need not be computed."""
        if isinstance(self._cached, int):
            return self._cached
        if hop.parts.start or hop.parts.stop < self._want.layers:
            return 0
        reply = self._replies.get(self.shard(hop))
        if reply is None or self._doubted(self.shard(hop)):
            return self._cached.get(hop.peer, 0)
        return reply.cached

    def _doubted(self, shard: Shard) -> bool:
        return self._lateness(shard) > 0.0

    def _lateness(self, shard: Shard) -> float:
        if shard not in self._late:
            self._late[shard] = self._beliefs.late(shard, self._now)
        return self._late[shard]

    def stage(self, hop: Hop) -> StageCost:
        cost = self._stages.get(hop)
        if cost is None:
            cost = self._stages[hop] = self._stage(hop)
        return cost

    def _stage(self, hop: Hop) -> StageCost:
        shard = self.shard(hop)
        times = self._beliefs.times(shard, self._view.claimed(hop))
        row_s = times.row_s * (self._said_slower(hop) or self._slower.get(hop.parts, 1.0))
        rows = max(self._want.rows - self.cached(hop), 1)
        known = self.wait(shard)
        wait = self._unasked if known is None else known
        wait += self._lateness(shard) + self._beliefs.silent(shard, self._now)
        prompt, span = rows * row_s, min(rows, SPAN_ROWS) * row_s
        whole = hop.parts.start == 0 and hop.parts.stop == self._want.layers
        return StageCost(wait, prompt, 0.0 if whole else span, times.token_s)

    def link(self, one: PeerId | None, other: PeerId) -> float:
        """Return a round trip in seconds."""
        pair = one, other
        if pair not in self._trips:
            self._trips[pair] = self._view.trip(one, other)
        return self._trips[pair]

    def hop_times(self, one: PeerId | None, hop: Hop) -> HopTimes:
        key = one, hop.peer, hop.dtype
        way = self._hop_times.get(key)
        if way is None:
            way = self._hop_times[key] = self._times(one, hop)
        return way

    def _times(self, one: PeerId | None, hop: Hop) -> HopTimes:
        half = self._view.trip(one, hop.peer) / 2
        if one is None or one == hop.peer or not self._want.hidden:
            return HopTimes(half, 0.0, 0.0, 0.0)
        rate = self._view.rate(one, hop.peer)
        if rate <= 0.0:
            return HopTimes(half, 0.0, 0.0, 0.0)
        row = self._want.hidden * _BYTES.get(hop.dtype, 4) / max(rate, RATE_LEAST)
        return HopTimes(half, self._sent_rows * row, min(self._sent_rows, SPAN_ROWS) * row, row)

    def opening(self, peer: PeerId) -> float:
        linked = peer == self._view.own or self._view.round_trip(peer) is not None
        return 0.0 if linked else NEW_LINK_S


class Router:
    """Memory and decisions of one gateway."""

    def __init__(self) -> None:
        self.beliefs = Beliefs()
        self.measured = MeasuredChains()
        self.sent = PrefixMemory()
        self.hotness = Hotness()

    def questions(
        self, view: GatewayView, want: Want, hops: Sequence[Hop], now: float
    ) -> list[Hop]:
        """Return the stages to probe, at most PROBES_OF_REQUEST, and none if there is no choice.

        The best chain by what is believed says which layers its stages have. Of each of these, some
        replicas are asked: one that computed more of the prompt before than what is common
        to many requests, and those that a hash of the prefix chooses, the faster and nearer ones
        more often. If there are several stages, the best one by what is believed is asked too,
        because it is near the others.
        """
        search = self._search(view, want, hops, now)
        chain = search.best(hops)
        if chain is None:
            return []
        groups = [
            [hop for hop in hops if (hop.parts, hop.dtype) == (each.parts, each.dtype)]
            for each in chain
        ]
        asked: list[Hop] = []
        most = PROBES_OF_REQUEST if len(chain) == 1 else PROBES_OF_STAGE
        for best, group in sorted(zip(chain, groups, strict=True), key=lambda pair: -len(pair[1])):
            left = min(most, PROBES_OF_REQUEST - len(asked))
            if len(group) > 1 and left > 0:
                asked += self._of_group(search, want, best, group, now)[:left]
        return asked

    def _of_group(
        self, search: Search, want: Want, best: Hop, group: Sequence[Hop], now: float
    ) -> list[Hop]:
        """Return the replicas of one stage in the order in which they are asked."""
        by_peer = {hop.peer: hop for hop in group}
        key = self.hotness.key(want.prefix, len(group))
        special = want.prefix.covers(key)
        before = [
            peer
            for chain, cached in self.sent.find(want.prefix).items()
            if cached >= special
            for peer in chain
        ]
        first = [peer for peer in before if peer in by_peer][:1]
        alone = best.parts.start == 0 and best.parts.stop == want.layers
        near = [] if alone else [best.peer]
        order = dict.fromkeys(
            [*first, *near, *ranked(key or want.session[:16], _weights(search, group))]
        )
        return [
            by_peer[peer]
            for peer in order
            if self.beliefs.may_ask(Shard(peer, want.root, best.parts), now)
        ]

    def plan(
        self,
        view: GatewayView,
        want: Want,
        hops: Sequence[Hop],
        now: float,
        replies: Replies = NO_REPLIES,
    ) -> PlannedChain | None:
        """Return the best chain by what is believed now, or None if there is none.

        `replies` are those of the stages that were asked for this request.
        """
        search = self._search(view, want, hops, now, replies)
        chain = search.best(hops)
        if chain is None:
            return None
        if len(chain) > 1:
            measured = self.measured.of(want.root).latest()
            others = [(search, each) for each in measured if {*each} <= {*hops}]
            for search_, other in [*others, *self._remembered(view, want, hops, now, replies)]:
                if search_.rank(other)[:2] < search.rank(chain)[:2]:
                    search, chain = search_, other
        return self._planned(view, want, search, chain, replies)

    def describe(
        self, view: GatewayView, want: Want, chain: tuple[Hop, ...], now: float
    ) -> PlannedChain:
        """Return what is believed of a given chain now."""
        return self._planned(view, want, self._search(view, want, chain, now), chain, NO_REPLIES)

    def _search(
        self,
        view: GatewayView,
        want: Want,
        hops: Sequence[Hop],
        now: float,
        replies: Replies = NO_REPLIES,
        cached: int | None = None,
    ) -> Search:
        found = self.sent.find(want.prefix) if cached is None else {}
        alone = {chain[0]: count for chain, count in found.items() if len(chain) == 1}
        known = alone if cached is None else cached
        costs = _RequestCosts(view, want, self.beliefs, now, replies, known)
        costs.expect(hops)
        tokens = min(want.tokens, EXPECTED_TOKENS)
        measured = MeasuredNow(self.measured.of(want.root), now)
        return Search(want.layers, costs, want.session, view.avoid, tokens, measured)

    def _remembered(
        self, view: GatewayView, want: Want, hops: Sequence[Hop], now: float, replies: Replies
    ) -> Iterable[tuple[Search, tuple[Hop, ...]]]:
        """Yield the chains of several stages that have computed the prefix before.

        Only a chain with the same stages finds what was cached (`names_behind`).
        """
        for peers, cached in self.sent.find(want.prefix).items():
            chain = _chain_of(hops, peers, want.layers)
            if chain is not None:
                yield self._search(view, want, hops, now, replies, cached), chain

    def _planned(
        self,
        view: GatewayView,
        want: Want,
        search: Search,
        chain: tuple[Hop, ...],
        replies: Replies,
    ) -> PlannedChain:
        stages, wait = list[StageTimes](), 0.0
        for hop in chain:
            shard = Shard(hop.peer, want.root, hop.parts)
            load = replies.get(shard)
            cost = search.costs.stage(hop)
            told = load.wait_s if load is not None else None
            stages.append(StageTimes(shard, view.claimed(hop), told, cost.prompt_s))
            if load is not None:
                wait = max(wait, cost.wait_s)
        avoided = sum(hop.peer in view.avoid for hop in chain)
        idle = frozenset(
            hop for hop, each in zip(chain, stages, strict=True) if each.wait_s is None
        )
        whole = search.cost(chain)
        first = whole.first_s
        if idle:
            first = replace(search, costs=_IfIdle(search.costs, idle)).cost(chain).first_s
        sends = [search.costs.hop_times(one.peer, other)[1:] for one, other in pairwise(chain)]
        sent = Sending(*map(sum, zip(NOTHING_SENT, *sends, strict=True)))
        return PlannedChain(chain, whole, tuple(stages), wait, first, avoided, sent)

    def take(self, plan: PlannedChain, prefix: Prefix, now: float) -> None:
        """Record that a session is opened over a planned chain."""
        self.beliefs.begun(plan.stages, now)
        self.hotness.note(prefix)
        self.sent.note(prefix, tuple(hop.peer for hop in plan.chain))
        for taken in plan.stages:
            self.beliefs.give(taken.shard, taken.prompt_s or 0.0)


def _weights(search: Search, group: Sequence[Hop]) -> dict[PeerId, float]:
    """Return how often each replica of a stage is to be asked.

    Weights are powers of 4, so that gateways with slightly different beliefs ask the same replicas.
    """
    costs = search.costs
    seconds = {
        hop.peer: costs.link(None, hop.peer) + cost.prompt_s + search.tokens * cost.token_s
        for hop in group
        if (cost := costs.stage(hop))
    }
    least = max(min(seconds.values()), 1e-9)
    return {
        peer: 0.25 ** round(math.log2(max(each / least, 1.0))) for peer, each in seconds.items()
    }


def _chain_of(hops: Sequence[Hop], peers: Chain, layers: int) -> tuple[Hop, ...] | None:
    """Return the shards of these peers that join into a chain, or None if they do not."""
    at, chain = 0, list[Hop]()
    for peer in peers:
        hop = next((h for h in hops if h.peer == peer and h.parts.start == at), None)
        if hop is None or (chain and hop.dtype != chain[0].dtype):
            return None
        chain.append(hop)
        at = hop.parts.stop
    whole = bool(chain) and at == layers and chain[0].parts.embedding and chain[-1].parts.head
    return tuple(chain) if whole else None
