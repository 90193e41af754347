"""Shortest path over the shards of a model, in predicted seconds. Pure functions.

Every stage computes its whole published shard, as the engine does. Each shard in a chain must
therefore begin exactly where the previous one ends.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

from ...transport.identity import PeerId
from ..defaults import MAX_STAGES
from ..engine.interface import Parts
from .defaults import EXPECTED_TOKENS, LABELS, LABELS_ALL

_STEP = math.log(1.01)  # chains whose seconds differ by less than this factor count as equal


@dataclass(frozen=True, slots=True)
class Hop:
    """A stage of a chain: its peer, and the shard that it computes."""

    peer: PeerId
    parts: Parts
    dtype: str


class StageCost(NamedTuple):
    """Predicted seconds at one stage: `wait_s` until it begins with the prompt, `prompt_s` for the
    prompt, `span_s` for the first span of it, and `token_s` for each further token."""

    wait_s: float
    prompt_s: float
    span_s: float
    token_s: float


class Sending(NamedTuple):
    """Seconds in which a link carries hidden states: those of the prompt, of its first span, and of
    one position, as for each further token."""

    prompt_s: float
    span_s: float
    row_s: float


NOTHING_SENT: Final = Sending(0.0, 0.0, 0.0)


class HopTimes(NamedTuple):
    """A way to a stage: half of the round trip in seconds, and the sending of hidden states. The
    gateway sends token ids, which take no time beside the round trip."""

    half_s: float
    prompt_s: float
    span_s: float
    row_s: float


class RouteCosts(Protocol):
    """Costs of a request at each stage and on each link."""

    @property
    def own(self) -> PeerId | None:
        """The gateway."""
        ...

    def stage(self, hop: Hop) -> StageCost:
        """Return the costs at a stage."""
        ...

    def link(self, one: PeerId | None, other: PeerId) -> float:
        """Return the seconds of a round trip between two peers. None stands for the gateway."""
        ...

    def hop_times(self, one: PeerId | None, hop: Hop) -> "HopTimes":
        """Return the seconds of the way from a stage of the peer `one` to the next stage. None
        stands for the gateway."""
        ...

    def opening(self, peer: PeerId) -> float:
        """Return the seconds until the gateway has a link to a peer."""
        ...


class ChainCost(NamedTuple):
    """Predicted seconds of a chain: until the first token, and for each further one."""

    first_s: float
    token_s: float

    def total(self, tokens: int) -> float:
        """Return the seconds of an answer of `tokens` tokens."""
        return self.first_s + tokens * self.token_s


class _Label(NamedTuple):
    """A partial chain with its sums. `order` differs from session to session."""

    hops: tuple[Hop, ...]
    avoided: int
    opening_s: float  # the longest, because links are made at the same time
    links_s: float  # of round trips between the gateway and the first stage, and between stages
    ring_s: float  # … without the gateway
    slowest_s: float  # wait and prompt at the slowest stage, or the prompt on the slowest link
    spans_s: float
    token_s: float  # of computing and sending
    others: int  # hops on other nodes
    order: bytes


_START = _Label((), 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, b"")


class MeasuredCosts(Protocol):
    """Seconds of a token as the gateway measured them, or as predicted where it has not."""

    def pair_s(self, one: Hop, other: Hop, predicted: float) -> float:
        """Return the seconds from the end of one stage to the end of the next."""
        ...

    def chain_s(self, chain: tuple[Hop, ...], predicted: float) -> float:
        """Return the seconds around a chain."""
        ...


@dataclass(frozen=True, slots=True)
class Search:
    """Search for a chain over `layers` layers, for an answer of about `tokens` tokens.

    Chains with fewer peers in `avoid` come first, even if they take longer, then those that take
    fewer seconds. Ties go to chains with more hops on the gateway's own node, then to an order that
    depends on `session`, so that sessions spread over replicas.
    """

    layers: int
    costs: RouteCosts
    session: bytes = b""
    avoid: frozenset[PeerId] = field(default_factory=frozenset)
    tokens: int = EXPECTED_TOKENS
    measured: MeasuredCosts | None = None

    def cost(self, chain: Sequence[Hop]) -> ChainCost:
        """Return the predicted seconds of a chain."""
        label = _START
        for hop in chain:
            label = self._extended(label, hop, self.costs.stage(hop))
        return self._whole(label)

    def rank(self, chain: Sequence[Hop]) -> tuple[int, int, int, bytes]:
        """Return the sort key of a chain: the best one has the least."""
        label = _START
        for hop in chain:
            label = self._extended(label, hop, self.costs.stage(hop))
        return self._rank(label)

    def _rank(self, label: _Label) -> tuple[int, int, int, bytes]:
        seconds = self._whole(label).total(self.tokens)
        return label.avoided, math.floor(math.log(seconds) / _STEP), label.others, label.order

    def _whole(self, label: _Label) -> ChainCost:
        """Return the costs of a complete chain, with its way back. At least a microsecond."""
        first, last = label.hops[0], label.hops[-1]
        links = label.links_s + self.costs.link(None, last.peer) / 2
        back = self.costs.link(last.peer, first.peer) / 2
        token = label.token_s + label.ring_s + back
        if self.measured is not None:
            closing = back + self.costs.stage(first).token_s
            token += self.measured.pair_s(last, first, closing) - closing
            token = self.measured.chain_s(label.hops, token)
        waits = label.opening_s + label.slowest_s + label.spans_s
        return ChainCost(max(waits + links, 1e-6), max(token, 1e-6))

    def _partial(self, label: _Label) -> tuple[int, float, int, bytes]:
        """Return the sort key of a partial chain."""
        first = label.opening_s + label.links_s + label.slowest_s + label.spans_s
        rest = self.tokens * (label.token_s + label.ring_s)
        return label.avoided, first + rest, label.others, label.order

    def _extended(self, label: _Label, hop: Hop, cost: StageCost) -> _Label:
        before = label.hops[-1].peer if label.hops else None
        half, sent_s, span_s, row_s = self.costs.hop_times(before, hop)
        token_s = cost.token_s + row_s
        if self.measured is not None and label.hops:
            token_s = self.measured.pair_s(label.hops[-1], hop, token_s + half) - half
        return _Label(
            (*label.hops, hop),
            label.avoided + (hop.peer in self.avoid),
            max(label.opening_s, self.costs.opening(hop.peer)),
            label.links_s + half,
            label.ring_s + (half if label.hops else 0.0),
            max(label.slowest_s, cost.wait_s + cost.prompt_s, sent_s),
            label.spans_s + cost.span_s + span_s,
            label.token_s + token_s,
            label.others + (hop.peer != self.costs.own),
            label.order + _order(self.session, hop.peer),
        )

    def best(self, hops: Iterable[Hop]) -> tuple[Hop, ...] | None:
        """Return the best chain of these shards, or None if there is none. All compute in one
        dtype.

        One pass over the boundaries of layers, because every hop leads forward. From each boundary,
        the best partial chains are extended: several, because the next link depends on the last
        stage, but fewer the more shards there are, so that the work is bounded.
        """
        by_dtype: dict[str, list[Hop]] = {}
        for hop in hops:
            by_dtype.setdefault(hop.dtype, []).append(hop)
        found = [
            chain
            for dtype in sorted(by_dtype)
            if (chain := self._best(by_dtype[dtype])) is not None
        ]
        return min(found, key=self._rank).hops if found else None

    def _best(self, hops: list[Hop]) -> _Label | None:
        width = min(LABELS, max(1, LABELS_ALL // max(len(hops), 1)))
        labels: dict[int, list[_Label]] = {0: [_START]}
        finished: list[_Label] = []
        sorted_at = -1
        for hop in sorted(hops, key=lambda hop: (hop.parts.start, hop.parts.stop)):
            start, stop = hop.parts.start, hop.parts.stop
            if start not in labels or stop <= start or (start == 0 and not hop.parts.embedding):
                continue
            if stop == self.layers and not hop.parts.head:
                continue
            if start != sorted_at:  # all chains that end here are known now
                labels[start] = sorted(labels[start], key=self._partial)[:width]
                sorted_at = start
            cost = self.costs.stage(hop)
            goal = finished if stop == self.layers else labels.setdefault(stop, [])
            goal += [
                self._extended(label, hop, cost)
                for label in labels[start]
                if len(label.hops) < MAX_STAGES  # stages refuse longer chains
            ]
        return min(finished, key=self._rank, default=None)


def _order(session: bytes, peer: PeerId) -> bytes:
    """Return a sort key for a peer that differs from session to session."""
    return sha256(session + peer.encode()).digest()[:8]
