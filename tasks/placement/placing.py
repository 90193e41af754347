"""Decides when a node loads layers of one model, and when it changes to other layers.

No I/O: the caller passes facts and the time, and executes the step that is returned. A node claims
layers before it loads them. It then waits until other nodes have had time to publish claims on the
same layers, and the plan gives the layers to only one of these nodes. If the plan keeps changing,
the node loads after CLAIM_LONGEST anyway. A node that holds layers moves only if the reason has
lasted for a while, and this time doubles with each recent move. Reasons:
docs/adr/0032-standing-placement.md.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

from ...state.membership.record import MemberRecord, Rank
from ...transport.identity import PeerId
from ..costs.members import member_rates
from ..costs.rates import UNKNOWN, DeviceRates
from ..costs.seconds import step_seconds
from ..costs.work import EqualRows
from ..defaults import (
    CLAIM_LONGEST,
    CLAIM_TIME,
    CLAIM_WAIT,
    FACTOR_MOST,
    FASTER_LOOK,
    FASTER_SETTLE,
    MOVE_JITTER,
    MOVE_SETTLE,
    MOVES_KEPT,
    PLACES,
    PLAN_MACHINES,
    SPREAD_SETTLE,
    STEADY_TIME,
)
from ..engine.interface import Parts
from .coverage import LayerSizes, Span
from .demand import Slower, as_claimed
from .fleet import DEMAND, PlanModel
from .improve import PlanTerms, considered
from .plan import Place, has_chain, plan
from .speed import SpeedChoices


@dataclass(frozen=True, slots=True)
class PlacingStep:
    """Decision about the layers of this node at one moment."""

    span: Span | None
    """The layers to claim, hold or load. None if not one layer fits."""
    rank: Rank
    load: bool = False
    """Whether the node must load the span now."""
    wake: float = inf
    """Time at which to decide again even if no facts have changed. Infinity: only when facts
    change."""


class Moves:
    """Moves of one node in the last MOVES_KEPT seconds.

    Facts from other nodes, which may be hostile, cause the moves. The node therefore waits longer
    before each further one.
    """

    def __init__(self) -> None:
        self._times: list[float] = []

    def note(self, now: float) -> None:
        """Record a move at `now`."""
        self._times.append(now)

    def factor(self, now: float) -> int:
        """Return the factor for the wait before the next move: 1, 1, 2, 4 and so on after 0, 1, 2,
        3 moves."""
        self._times = [at for at in self._times if at > now - MOVES_KEPT]
        return 1 << max(0, len(self._times) - 1)


class Placing:
    """Decisions about the layers of one node in one model.

    `memory` is in bytes. `jitter` (0 to 1) delays nodes that have the same reason to move by
    different times.
    """

    def __init__(
        self,
        own: PeerId,
        memory: int,
        jitter: float = 0.0,
        moves: Moves | None = None,
        speed: SpeedChoices | None = None,
    ) -> None:
        self._own = own
        self._memory = memory
        self._jitter = jitter * MOVE_JITTER
        self._held: Span | None = None
        self._claim: Span | None = None
        self._claimed_at = 0.0
        self._claiming_since = 0.0
        self._reason_since: float | None = None
        self._moves_for_speed = False
        self.speed = speed or SpeedChoices()
        self._moves = moves or Moves()

    @property
    def rank(self) -> Rank:
        """Whether this node seeks, claims or holds layers."""
        if self._claim is not None:
            return Rank.CLAIMS
        return Rank.SEEKS if self._held is None else Rank.HOLDS

    def look(
        self,
        now: float,
        sizes: LayerSizes,
        others: Sequence[Place],
        terms: PlanTerms | None = None,
    ) -> PlacingStep:
        """Return the next step, given the other nodes and their layers (`others`).

        With `terms` the predicted speed counts, and not only the memory. A step with `load` makes
        this node a holder of the span at once, for later decisions.
        """
        rates = terms.rates if terms is not None else UNKNOWN
        own = Place(self._own, self._memory, self._claim or self._held, self.rank, rates)
        planned = plan(sizes, (*others, own))
        target = planned.spans.get(self._own, own.span)
        if terms is not None and self._held is None and target not in (None, (0, sizes.layers)):
            target = self.speed.chosen(terms, others, own) or target
        if target is None:
            return PlacingStep(None, Rank.SEEKS)
        if target == self._held or self._is_filled(sizes, others):
            return self._stay(now, others, own, terms)
        if target == self._claim:
            return self._confirm(now, target)
        if self._claim is None and self._held is not None:
            due = self._settled(now, complete=planned.complete)
            if now < due:
                return PlacingStep(self._held, Rank.HOLDS, wake=due)
        if not others or target == (0, sizes.layers):
            return self._load(now, target)
        return self._claimed(now, target)

    def _claimed(self, now: float, target: Span) -> PlacingStep:
        """Return the step that claims layers, or loads them if the claims have changed for long."""
        if self._claim is None:
            self._claiming_since = now
        elif now >= self._claiming_since + CLAIM_LONGEST:
            return self._load(now, target)
        self._claim, self._claimed_at = target, now
        return PlacingStep(target, Rank.CLAIMS, wake=now + CLAIM_WAIT)

    def _stay(
        self, now: float, others: Sequence[Place], own: Place, terms: PlanTerms | None
    ) -> PlacingStep:
        """Return the step that keeps the held layers, or claims others with which the model is
        faster."""
        self._claim = self._reason_since = None
        self._moves_for_speed = False
        step = PlacingStep(self._held, Rank.HOLDS)
        if terms is None:
            return step
        own = replace(own, span=self._held, rank=Rank.HOLDS)
        late = self._jitter * FASTER_LOOK + FASTER_SETTLE * self._moves.factor(now)
        span, due = self.speed.faster(now, terms, (*others, own), own, late)
        if span is None or now < due:
            return replace(step, wake=due)
        self._moves_for_speed = True
        return self._claimed(now, span)

    def _is_filled(self, sizes: LayerSizes, others: Sequence[Place]) -> bool:
        """Return whether a claim of a node that holds layers is pointless.

        If it claims them to fill a hole, that is so once the held layers of all nodes form a chain.
        If it claims them because they make the model faster, that is so once the others have no
        chain without it.
        """
        if self._claim is None or self._held is None:
            return False
        held = [place.span for place in others if place.span and place.rank >= Rank.HOLDS]
        if self._moves_for_speed:
            return not has_chain(sizes.layers, held)
        return has_chain(sizes.layers, (self._held, *held))

    def hold(self, span: Span) -> None:
        """Set the held layers to `span` and drop any claim, for example after a failed move."""
        self._moves_for_speed = False
        self._held, self._claim, self._reason_since = span, None, None

    def _settled(self, now: float, *, complete: bool) -> float:
        """Return the time at which the reason to move will have lasted long enough.

        If `complete`, the planned chain covers all layers, and the wait is shorter.
        """
        if self._reason_since is None:
            self._reason_since = now
        settle = MOVE_SETTLE if complete else SPREAD_SETTLE
        return self._reason_since + self._jitter + settle * self._moves.factor(now)

    def _confirm(self, now: float, span: Span) -> PlacingStep:
        """Return the step for an existing claim: load when CLAIM_WAIT has passed, or else wait
        until then."""
        due = self._claimed_at + CLAIM_WAIT
        return self._load(now, span) if now >= due else PlacingStep(span, Rank.CLAIMS, wake=due)

    def _load(self, now: float, span: Span) -> PlacingStep:
        """Hold the span, and count a move if other layers were held before. Return a step with
        `load`."""
        if self._held is not None:
            self._moves.note(now)
        self.hold(span)
        return PlacingStep(span, Rank.HOLDS, load=True)


def joins(spans: Collection[Span], whole: Span) -> bool:
    """Return whether a member's shards are these layers, in one shard or in several that join: one
    on each of its devices."""
    at, stop = whole
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start == at and end <= stop:
            at = end
    return at == stop


def _power(factor: float) -> int:
    """Return the largest power of two that is at most `factor`, from 1 to FACTOR_MOST."""
    return 1 << (max(1, int(min(factor, FACTOR_MOST))).bit_length() - 1)


class Facts:
    """Converter of member records into the places of nodes in one model.

    Remembers since when each member has not served the layers that it seeks or claims, whichever
    these are: a member that lies about its aim could change it often.
    """

    def __init__(self, root: str, model: PlanModel | None = None) -> None:
        """`model` is needed to tell how fast the members are."""
        self.root = root
        self._model = model
        # By peer, and whether it claims layers: (time since when, time since when it has not done
        # so, or None if it does).
        self._unserved: dict[tuple[PeerId, bool], tuple[float, float | None]] = {}
        self._served: dict[PeerId, tuple[Span, float]] = {}  # the aimed layers, and since when

    def places(
        self,
        members: Collection[MemberRecord],
        own: PeerId,
        now: float,
        slower: Slower = as_claimed,
    ) -> list[Place]:
        """Return the other nodes' places in the model, at most PLACES, those with the highest rank
        first.

        A member that has sought or claimed layers for CLAIM_TIME without serving them is left out,
        until it has served them, or has claimed nothing for CLAIM_TIME. A member that serves layers
        but publishes no aim does not move, so its rank is FIXED.
        """
        found, unserved = [], set[tuple[PeerId, bool]]()
        served: dict[PeerId, tuple[Span, float]] = {}
        for record in members:
            if record.peer == own or not record.capacity.engine:
                continue
            aim = record.aim_at(self.root)
            spans = [(s.start, s.stop) for s in record.shards if s.root == self.root]
            memory = record.capacity.memory_bytes
            if aim is None:
                # A member with another aim is about to leave these layers.
                staying = spans[:1] if not record.aims else ()
                found += [Place(record.peer, memory, span, Rank.FIXED) for span in staying]
                continue
            memory = min(memory, aim.memory or memory)
            span = (aim.start, aim.stop) if aim.start < aim.stop else None
            if span is not None and joins(spans, span):
                for claims in (False, True):
                    self._unserved.pop((record.peer, claims), None)
                before = self._served.get(record.peer)
                served[record.peer] = before if before and before[0] == span else (span, now)
            else:
                key = record.peer, span is not None
                since, _ = self._unserved.get(key, (now, None))
                self._unserved[key] = since, None
                unserved.add(key)
                if now - since >= CLAIM_TIME:
                    continue
            found.append(Place(record.peer, memory, span, aim.rank))
        self._served = served
        self._forget(unserved, now)
        found.sort(key=lambda place: (-place.rank, place.peer))
        found = found[:PLACES]
        known = {record.peer: record for record in members}
        rated = {
            place.peer: replace(place, rates=self.rates(known[place.peer], slower))
            for place in considered(found, 2 * PLAN_MACHINES)  # this node may change the order
        }
        return [rated.get(place.peer, place) for place in found]

    def rates(self, record: MemberRecord, slower: Slower = as_claimed) -> DeviceRates:
        """Return the rates of a member, as it measured them with its shard, or else before.

        A member that `slower` finds slower than that is so by the next lower power of two, since
        measurements change a little all the time.
        """
        model = self._model
        if model is None:
            return UNKNOWN
        shard = next((each for each in record.shards if each.root == self.root), None)
        if shard is None or shard.stop > model.sizes.layers:
            return member_rates(record.capacity)
        work = model.part((shard.start, shard.stop))
        rates = member_rates(record.capacity, shard, work)
        parts = Parts(shard.embedding, shard.start, shard.stop, shard.head)
        token_s = step_seconds(rates, work, (EqualRows(1, DEMAND.prompt),), int(shard.head))
        factor = slower(record.peer, self.root, parts, token_s)
        return replace(rates, factor=rates.factor * _power(factor))

    def steady(self, trusted: Collection[PeerId], now: float) -> frozenset[PeerId]:
        """Return the members on which this node relies if it leaves its layers: of those that serve
        the layers that they aim at, the trusted ones, and those that have served them for
        STEADY_TIME."""
        return frozenset(
            peer
            for peer, (_, since) in self._served.items()
            if peer in trusted or now - since >= STEADY_TIME
        )

    def _forget(self, unserved: Collection[tuple[PeerId, bool]], now: float) -> None:
        """Forget what a member has neither sought nor claimed for CLAIM_TIME."""
        for key, (since, away) in list(self._unserved.items()):
            if key not in unserved:
                away = now if away is None else away
                self._unserved[key] = since, away
                if now - away >= CLAIM_TIME:
                    del self._unserved[key]
