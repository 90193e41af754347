"""Beliefs of a gateway about stages, from claims, replies to probes, and measurements.

No I/O. A member's claim of its speed counts until the first answer of its stage. From then on, it
counts only if what was measured agrees within the factor AGREES: measured times include waits, so
they are upper bounds, and the least of them is kept. The load in a stage's reply counts for
LOAD_FRESH seconds. A stage that is much later than it said, compared with the others, loses that
advantage: its lateness is added to what it says from then on. All of them are a little late,
because further prompts come after what they said.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...transport.identity import PeerId
from ..engine.interface import Parts
from .defaults import (
    AGREES,
    GROWTH,
    LATE_FACTOR,
    LATE_HALF_LIFE,
    LATE_MEMORY,
    LATE_S,
    LOAD_FRESH,
    MISSED_FIRST,
    MISSED_LONGEST,
    STAGES_KNOWN,
    USUAL_RATE,
    WAIT_LONGEST,
)

_TOKENS_LEAST = 4  # tokens after which the time between them is measured
_COMPUTING_LEAST = 0.2  # part of the time between tokens that is no link's, whatever the links are
_SHORTEST_S = 1e-5  # seconds; what takes less was not measured, but rounded
_ROWS_LEAST = 32  # rows of a prompt after which their time is measured


class Shard(NamedTuple):
    """A shard of a model on a peer."""

    peer: PeerId
    root: str
    parts: Parts


class Times(NamedTuple):
    """Seconds of one row of a prompt, and of one token of an answer, at a stage."""

    row_s: float
    token_s: float


class Load(NamedTuple):
    """A stage's reply to a probe: how many seconds the prompt would wait, how many of its positions
    are cached, and in how many seconds there is room for the session (0: now)."""

    wait_s: float
    cached: int
    back_s: float = 0.0


@dataclass(slots=True)
class _Belief:
    """Facts about a shard. Times are 0 until they are measured."""

    row_s: float = 0.0
    token_s: float = 0.0
    late_s: float = 0.0
    late_at: float = 0.0
    load: Load | None = None
    load_at: float = 0.0
    given_s: float = 0.0  # prompts that this gateway has sent since then
    missed: int = 0  # probes missed in a row
    ask_at: float = 0.0  # when it may be asked again


class Taken(NamedTuple):
    """A stage of an answer, as it was predicted: its wait as the stage said it, without lateness,
    or None if it was not asked."""

    shard: Shard
    times: Times
    wait_s: float | None


class Observed(NamedTuple):
    """Measurements of an answer by its gateway.

    `first_s` is the time until the first token, of which `links_s` on links. `rows` of the prompt
    were computed. `token_s` is the mean time of `tokens` further tokens, of which `ring_s` on
    links.
    """

    first_s: float
    links_s: float
    rows: int
    token_s: float = 0.0
    ring_s: float = 0.0
    tokens: int = 0


class Beliefs:
    """Beliefs of a gateway about at most STAGES_KNOWN shards. The least recently used ones are
    forgotten first."""

    def __init__(self) -> None:
        self._known: OrderedDict[Shard, _Belief] = OrderedDict()
        self._usual = 0.0  # seconds by which stages are usually later than they say

    def __len__(self) -> int:
        return len(self._known)

    def _of(self, shard: Shard) -> _Belief:
        belief = self._known.get(shard)
        if belief is None:
            belief = self._known[shard] = _Belief()
            if len(self._known) > STAGES_KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(shard)
        return belief

    def times(self, shard: Shard, claimed: Times) -> Times:
        """Return the times of a stage: as measured, else, or if that agrees, as its member
        claims."""
        belief = self._known.get(shard)
        if belief is None:
            return claimed
        return Times(_agreed(belief.row_s, claimed.row_s), _agreed(belief.token_s, claimed.token_s))

    def load(self, shard: Shard, now: float) -> Load | None:
        """Return what a stage said last, if that is fresh, with the prompts sent since then.

        It was said to any request, so its cached positions are those of another prompt.
        """
        belief = self._known.get(shard)
        if belief is None or belief.load is None or now > belief.load_at + LOAD_FRESH:
            return None
        return belief.load._replace(wait_s=belief.load.wait_s + belief.given_s)

    def late(self, shard: Shard, now: float) -> float:
        """Return by how many seconds a stage is later than it says, if others are not."""
        late = self._own_late(shard, now)
        return late - self._usual if late > LATE_FACTOR * self._usual + LATE_S else 0.0

    def _own_late(self, shard: Shard, now: float) -> float:
        belief = self._known.get(shard)
        if belief is None:
            return 0.0
        return float(belief.late_s * 0.5 ** ((now - belief.late_at) / LATE_HALF_LIFE))

    def may_ask(self, shard: Shard, now: float) -> bool:
        """Return whether a stage may be probed: it has not missed a probe lately."""
        belief = self._known.get(shard)
        return belief is None or now >= belief.ask_at

    def silent(self, shard: Shard, now: float) -> float:
        """Return for how many more seconds a stage is not asked, because it missed a probe."""
        belief = self._known.get(shard)
        return max(0.0, belief.ask_at - now) if belief is not None else 0.0

    def told(self, shard: Shard, load: Load, now: float) -> None:
        """Record the reply to a probe."""
        belief = self._of(shard)
        belief.load = load._replace(wait_s=min(max(load.wait_s, 0.0), WAIT_LONGEST))
        belief.load_at, belief.given_s = now, 0.0
        belief.missed, belief.ask_at = 0, 0.0

    def missed(self, shard: Shard, now: float) -> None:
        """Record that a stage did not reply in time."""
        belief = self._of(shard)
        belief.load = None
        belief.ask_at = now + min(MISSED_FIRST * 2.0**belief.missed, MISSED_LONGEST)
        belief.missed = min(belief.missed + 1, 16)

    def given(self, shard: Shard) -> float:
        """Return the seconds of the prompts that were sent to a stage since it replied last."""
        belief = self._known.get(shard)
        return belief.given_s if belief is not None else 0.0

    def give(self, shard: Shard, seconds: float) -> None:
        """Record that a prompt of `seconds` was sent to a stage."""
        if (belief := self._known.get(shard)) is not None:
            belief.given_s += seconds

    def observed(self, stages: Sequence[Taken], seen: Observed, now: float) -> None:
        """Learn from an answer of a chain."""
        if seen.rows > 0 and seen.first_s - seen.links_s > _SHORTEST_S:
            self._learn_prompt(stages, seen, now)
        if seen.tokens >= _TOKENS_LEAST and seen.token_s > _SHORTEST_S:
            least = _COMPUTING_LEAST * seen.token_s
            self._learn_tokens(stages, max(seen.token_s - seen.ring_s, least))

    def _learn_prompt(self, stages: Sequence[Taken], seen: Observed, now: float) -> None:
        """Learn from the time until the first token, of which a part is waiting.

        The parts of a prompt pass the stages one after another, so the slowest one decides.
        """
        took = seen.first_s - seen.links_s
        if seen.rows >= _ROWS_LEAST:
            unproven = [each for each in stages if not self._of(each.shard).row_s]
            slowest = max(stages, key=self._row_s)
            for each in unproven or [slowest]:
                belief = self._of(each.shard)
                belief.row_s = _least(belief.row_s, took / seen.rows)
        said = max((each.wait_s or 0.0 for each in stages), default=0.0)
        promised = said + seen.rows * max(map(self._row_s, stages))
        late = took - promised
        for each in stages:
            if each.wait_s is not None:
                self._learn_late(each.shard, late, now)

    def _row_s(self, taken: Taken) -> float:
        return self.times(taken.shard, taken.times).row_s

    def _learn_late(self, shard: Shard, late: float, now: float) -> None:
        belief, before = self._of(shard), self._own_late(shard, now)
        belief.late_s = max(0.0, LATE_MEMORY * before + (1 - LATE_MEMORY) * late)
        belief.late_at = now
        most = LATE_FACTOR * self._usual + LATE_S  # one liar does not change what is usual
        self._usual += USUAL_RATE * (min(max(late, 0.0), most) - self._usual)

    def _learn_tokens(self, stages: Sequence[Taken], measured: float) -> None:
        """Divide the time between two tokens among the stages.

        Stages that were never measured take what the others leave, whatever they claim.
        """
        proven = [each for each in stages if self._of(each.shard).token_s]
        known = sum(self.times(each.shard, each.times).token_s for each in proven)
        if len(proven) < len(stages):
            left = max(measured - known, 0.1 * measured) / (len(stages) - len(proven))
            for each in stages:
                if each not in proven:
                    self._of(each.shard).token_s = left
            return
        for each in stages:
            part = self.times(each.shard, each.times).token_s / max(known, 1e-9)
            belief = self._of(each.shard)
            belief.token_s = _least(belief.token_s, measured * part)


def _agreed(measured: float, claimed: float) -> float:
    """Return the time to believe. `measured` is an upper bound, or 0 if there is none."""
    if not measured:
        return claimed
    return measured if claimed * AGREES < measured else min(claimed, measured)


def _least(before: float, measured: float) -> float:
    """Return the least of the measured times. It grows slowly if all later ones are longer."""
    return min(measured, GROWTH * before) if before else measured
