"""Beliefs of a gateway about stages, from claims, replies to probes, and measurements.

No I/O. A member's claim of its speed counts until the first answer of its stage. From then on, it
counts only if the least measured time agrees within the factor AGREES. The load in a stage's reply
counts for LOAD_FRESH seconds. If the last LATE_ANSWERS answers of a stage were all much later
than it said, its replies do not count, and the greatest lateness of these is added to what others
wait.

In busy times all stages seem slower in prompts than they claim, and later than they said, because
further prompts come meanwhile. So both are compared with what is usual among the stages. Other
prompts at most double the time between two tokens.
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
    LATE_ANSWERS,
    LATE_FACTOR,
    LATE_HALF_LIFE,
    LATE_S,
    LATE_USUAL,
    LOAD_FRESH,
    MISSED_FIRST,
    MISSED_LONGEST,
    OPEN_KEPT,
    STAGES_KNOWN,
    USUAL_DOWN,
    USUAL_UP,
    WAIT_LONGEST,
)

TOKENS_LEAST = 4  # tokens after which the time between them is measured
_COMPUTING_LEAST = 0.1  # part of a time that is computing, whatever is said of waits and links
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
    are cached, in how many seconds there is room for the session (0: now), and how many seconds a
    row of a prompt took there lately (0: unknown)."""

    wait_s: float
    cached: int
    back_s: float = 0.0
    row_s: float = 0.0


@dataclass(slots=True)
class _Belief:
    """Facts about a shard. Times are 0 until they are measured."""

    row_s: float = 0.0
    token_s: float = 0.0
    lates: tuple[float, ...] = ()  # seconds by which its last answers were too late
    # When prompts were sent whose first token has not come, and the seconds that it was to take.
    open: tuple[tuple[float, float], ...] = ()
    late_at: float = 0.0
    load: Load | None = None
    load_at: float = 0.0
    given_s: float = 0.0  # prompts that this gateway has sent since then
    missed: int = 0  # probes missed in a row
    ask_at: float = 0.0  # when it may be asked again


class StageTimes(NamedTuple):
    """A stage of an answer: the times that its member claims, the wait that the stage said, or None
    if it was not asked, and the seconds for the prompt, by what it said is cached.

    If these are None, they follow from the rows that were computed.
    """

    shard: Shard
    times: Times
    wait_s: float | None
    prompt_s: float | None = None


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
        self.known: OrderedDict[Shard, _Belief] = OrderedDict()
        self._late_usual = _Usual()  # 1 s, and the seconds by which stages are later than they say
        self._row_usual = _Usual()  # measured by claimed times of a row

    def __len__(self) -> int:
        return len(self.known)

    def _of(self, shard: Shard) -> _Belief:
        belief = self.known.get(shard)
        if belief is None:
            belief = self.known[shard] = _Belief()
            if len(self.known) > STAGES_KNOWN:
                self.known.popitem(last=False)
        else:
            self.known.move_to_end(shard)
        return belief

    def times(self, shard: Shard, claimed: Times) -> Times:
        """Return the times of a stage: as measured, else, or if that agrees, as its member
        claims."""
        belief = self.known.get(shard)
        if belief is None:
            return claimed
        return Times(
            _agreed(belief.row_s, claimed.row_s, self._row_usual.value),
            _agreed(belief.token_s, claimed.token_s),
        )

    def load(self, shard: Shard, now: float) -> Load | None:
        """Return what a stage said last, if that is fresh, with the prompts sent since then.

        It was said to any request, so its cached positions are those of another prompt.
        """
        belief = self.known.get(shard)
        if belief is None or belief.load is None or now > belief.load_at + LOAD_FRESH:
            return None
        return belief.load._replace(wait_s=belief.load.wait_s + belief.given_s)

    def late(self, shard: Shard, now: float) -> float:
        """Return by how many seconds a stage is later than it says: 0 unless its last answers, with
        those that are overdue, were all much later, and much later than is usual."""
        belief = self.known.get(shard)
        if belief is None:
            return 0.0
        lates, forgiven = belief.lates, 0.5 ** ((now - belief.late_at) / LATE_HALF_LIFE)
        overdue = (_late(now - began, promised) for began, promised in belief.open)
        recent = (*(late * forgiven for late in lates), *(late for late in overdue if late))
        last = recent[-LATE_ANSWERS:]
        if len(last) < LATE_ANSWERS or min(last) <= LATE_USUAL * (self._late_usual.value - 1.0):
            return 0.0
        return float(max(last))

    def may_ask(self, shard: Shard, now: float) -> bool:
        """Return whether a stage may be probed: it has not missed a probe lately."""
        belief = self.known.get(shard)
        return belief is None or now >= belief.ask_at

    def silent(self, shard: Shard, now: float) -> float:
        """Return for how many more seconds a stage is not asked, because it missed a probe."""
        belief = self.known.get(shard)
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
        belief = self.known.get(shard)
        return belief.given_s if belief is not None else 0.0

    def give(self, shard: Shard, seconds: float) -> None:
        """Record that a prompt of `seconds` was sent to a stage."""
        if (belief := self.known.get(shard)) is not None:
            belief.given_s += seconds

    def observed(self, stages: Sequence[StageTimes], seen: Observed, now: float) -> None:
        """Learn from an answer of a chain."""
        if seen.rows > 0 and seen.first_s - seen.links_s > _SHORTEST_S:
            self._learn_prompt(stages, seen, now)
        elif seen.rows > 0:  # sooner than a round trip by its links: not overdue at least
            self.dropped(stages)
        if seen.tokens >= TOKENS_LEAST and seen.token_s > _SHORTEST_S:
            least = _COMPUTING_LEAST * seen.token_s
            computing = seen.token_s - seen.ring_s
            # Where links take nearly all of the time, they hide what stages compute. Such a stage
            # is not slower than it claims, and no slower than one that was not measured yet.
            hidden = max(computing, sum(each.times.token_s for each in stages)) < least
            if not hidden or all(self._of(each.shard).token_s for each in stages):
                self._learn_tokens(stages, max(computing, least))

    def _learn_prompt(self, stages: Sequence[StageTimes], seen: Observed, now: float) -> None:
        """Learn from the time until the first token, of which a part is waiting.

        The parts of a prompt pass the stages one after another, so the slowest one decides.
        """
        took = seen.first_s - seen.links_s
        said = max((each.wait_s or 0.0 for each in stages), default=0.0)
        if seen.rows >= _ROWS_LEAST:
            unproven = [each for each in stages if not self._of(each.shard).row_s]
            slowest = max(stages, key=self._row_s)
            for each in unproven or [slowest]:
                belief = self._of(each.shard)
                computing = max(took - said, _COMPUTING_LEAST * took)
                belief.row_s = _least(belief.row_s, computing / seen.rows)
                self._row_usual.note(computing / seen.rows / max(each.times.row_s, 1e-9))
        promised = self._promised(stages, seen.rows)
        for each in stages:
            if each.wait_s is not None:
                self._learn_late(each.shard, _late(took, promised), now)
        self.dropped(stages)

    def begun(self, stages: Sequence[StageTimes], now: float) -> None:
        """Record that a prompt is sent to a chain. If its first token is overdue, the stages count
        as late even before it comes."""
        promised = self._promised(stages, 0)
        for each in stages:
            if each.wait_s is not None:
                belief = self._of(each.shard)
                belief.open = (*belief.open[1 - OPEN_KEPT :], (now, promised))

    def dropped(self, stages: Sequence[StageTimes]) -> None:
        """Record that a prompt is no longer computed, or that its first token has come."""
        promised = self._promised(stages, 0)
        for each in stages:
            belief = self._of(each.shard)
            done = next((one for one in belief.open if one[1] == promised), None)
            belief.open = tuple(one for one in belief.open if one is not done)

    def _promised(self, stages: Sequence[StageTimes], rows: int) -> float:
        """Return the seconds until the first token, by what the stages said and claim."""
        return max(
            (each.wait_s or 0.0)
            + (rows * self._row_s(each) if each.prompt_s is None else each.prompt_s)
            for each in stages
        )

    def _row_s(self, taken: StageTimes) -> float:
        return self.times(taken.shard, taken.times).row_s

    def _learn_late(self, shard: Shard, late: float, now: float) -> None:
        belief = self._of(shard)
        belief.lates, belief.late_at = (*belief.lates[1 - LATE_ANSWERS :], late), now
        self._late_usual.note(1.0 + late)

    def _learn_tokens(self, stages: Sequence[StageTimes], measured: float) -> None:
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


def _late(took: float, promised: float) -> float:
    """Return by how many seconds an answer is too late, 0 if it is not much."""
    return took - promised if took > LATE_FACTOR * promised + LATE_S else 0.0


class _Usual:
    """A figure below which about a third of all answers are, at least 1. It moves by small steps,
    so that the size of a liar's figures does not matter."""

    def __init__(self) -> None:
        self.value = 1.0

    def note(self, figure: float) -> None:
        """Record the figure of one answer."""
        step = USUAL_UP if figure > self.value else USUAL_DOWN
        self.value = max(1.0, self.value * step)


def _agreed(measured: float, claimed: float, usual: float = 1.0) -> float:
    """Return the time to believe. `measured` is the least measured time, or 0 if there is none, and
    `usual` the ratio of measured to claimed times of all stages."""
    if not measured:
        return claimed
    return measured / usual if claimed * AGREES * usual < measured else min(claimed, measured)


def _least(before: float, measured: float) -> float:
    """Return the least of the measured times. It grows slowly if all later ones are longer."""
    return min(measured, GROWTH * before) if before else measured
