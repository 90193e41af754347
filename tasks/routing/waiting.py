"""Predicts at a stage how long a new session waits: for its prompt, and for memory. No I/O.

The scheduler (`engine/scheduler.py`) divides its time equally among the gateways that want some,
and a gateway's part among its sessions. Texts come first, and leave prompts a part of each step.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..engine.defaults import PREFILL_FACTOR, STEP_S
from .defaults import EXPECTED_TOKENS, ROOM_LONGEST, TIMES_MEMORY


class Pending(NamedTuple):
    """A session whose prompt is not computed yet: `rows` are left."""

    gateway: str
    rows: int


class StepTimes:
    """Seconds of the steps of one shard: predicted at first, and then measured.

    `row_s` is the time of one row of a prompt, and `step_s` that of a step with texts alone.
    """

    def __init__(self, row_s: float = 0.0, step_s: float = 0.0) -> None:
        self.row_s = row_s
        self.step_s = step_s
        self._measured = [False, False]

    def note_prompt(self, rows: int, seconds: float) -> None:
        """Record the computing time of `rows` rows of a prompt."""
        if rows > 0 and seconds > 0.0:
            self.row_s = self._mean(0, self.row_s, seconds / rows)

    def note_token(self, texts: int, seconds: float) -> None:
        """Record the part of one text in the computing time of a step with `texts` texts."""
        if seconds > 0.0:
            self.step_s = self._mean(1, self.step_s, seconds * max(1, texts))

    def _mean(self, which: int, before: float, measured: float) -> float:
        """Return the new mean. The first measurement replaces the prediction."""
        weight = TIMES_MEMORY if self._measured[which] else 0.0
        self._measured[which] = True
        return weight * before + (1.0 - weight) * measured

    def prompt_share(self, texts: int) -> float:
        """Return the share of the time that prompts get beside `texts` running texts."""
        if not texts:
            return 1.0
        budget = max(STEP_S, PREFILL_FACTOR * self.step_s)
        return max(0.1, 1.0 - self.step_s / budget)

    def wait(self, pending: Sequence[Pending], texts: int, gateway: str, rows: int) -> float:
        """Return by how many seconds the others delay a new prompt of a gateway with `rows`
        rows."""
        work = rows_until_done(pending, gateway, rows)
        return max(0.0, self.row_s * (work / self.prompt_share(texts) - rows))

    def pace(self, texts: int, prompts: int) -> float:
        """Return the seconds between two tokens of a text, beside other texts and prompts."""
        return max(STEP_S, PREFILL_FACTOR * self.step_s) if prompts else self.step_s


class AnswerLength:
    """Moving mean of the tokens of answers."""

    def __init__(self) -> None:
        self.tokens = float(EXPECTED_TOKENS)

    def note(self, tokens: int) -> None:
        """Record the length of an answer."""
        if tokens > 0:
            self.tokens = TIMES_MEMORY * self.tokens + (1.0 - TIMES_MEMORY) * tokens


def rows_until_done(pending: Sequence[Pending], gateway: str, rows: int) -> float:
    """Return how many rows are computed, together with those of the others, until a new prompt of
    `rows` rows is done."""
    left = [(each.gateway, float(each.rows)) for each in pending if each.rows > 0]
    own, done = float(max(rows, 1)), 0.0
    while True:
        sessions = {gateway: 1}
        for name, _ in left:
            sessions[name] = sessions.get(name, 0) + 1
        parts = [len(sessions) * sessions[name] for name, _ in left]
        mine = len(sessions) * sessions[gateway]
        step = min([own * mine, *(r * part for (_, r), part in zip(left, parts, strict=True))])
        done += step
        if own * mine <= step:
            return done
        own -= step / mine
        left = [
            (name, r - step / part)
            for (name, r), part in zip(left, parts, strict=True)
            if r * part > step
        ]


def seconds_until_room(need: int, free: int, ends: Sequence[tuple[float, int]]) -> float:
    """Return in how many seconds `need` blocks are free, of which `free` are now.

    `ends` has the seconds in which each session ends at the latest, and its blocks. If all of them
    together are not enough, others that come after them are assumed to take as long.
    """
    if need <= free:
        return 0.0
    last = 0.0
    for last, blocks in sorted(ends):
        free += blocks
        if need <= free:
            return min(last, ROOM_LONGEST)
    return min(last * need / free, ROOM_LONGEST) if free > 0 else ROOM_LONGEST
