"""Rules for stages that lose a session's state but will serve their layers again. No I/O.

When a worker crashes, its node restarts it and loads the same shard. The gateway then sends the
prompt and the tokens so far to a new session (docs/adr/0040-crashes-are-pauses.md).
"""

from collections.abc import Mapping
from typing import Final

from ....transport.identity import PeerId
from ...defaults import (
    CRASHES,
    CRASHES_IN_ALL,
    LOAD_PATIENCE,
    MEMORY_LOOK,
    MEMORY_PATIENCE,
    RESUME_PATIENCE,
    RETURN_LOOK,
    RETURN_PATIENCE,
)
from ...errors import NoRoute, SessionError, StageLost

PREEMPTED: Final = "preempted"
"""Code of a stage that ended a session because others needed its memory."""

FULL: Final = frozenset({"no-memory", "too-many-sessions", "overloaded"})
"""Codes of a stage that has no room, or not enough time, beside its other sessions."""

LOST_STATE = frozenset(
    {PREEMPTED, "worker-crashed", "shard-replaced", "shard-gone", "no-shard", "bad-chunk"}
)
"""Codes of a stage that lost its state. Unless its node moves, it serves the same layers again."""


def returning(refused: Mapping[PeerId, SessionError]) -> set[PeerId]:
    """Return the stages that have refused to open a session but will open it later.

    They lost their state, or their memory is full of other sessions.
    """
    codes = LOST_STATE | FULL
    return {peer for peer, error in refused.items() if error.code in codes}


def patience(refused: Mapping[PeerId, SessionError], preempted: bool) -> float:
    """Return how many seconds a request waits for the stages that have refused it and will return.

    A stage that says `no-shard` while its record lists its layers is loading them, which may take
    long. A stage says `worker-crashed` only until its worker has started. A request that was
    preempted waits until others have been answered, and a new one for a short time.
    """
    codes = {refused[peer].code for peer in returning(refused)}
    if preempted:
        return RESUME_PATIENCE
    if FULL & codes:
        return MEMORY_PATIENCE
    loads = codes <= {"no-shard"}
    return RETURN_PATIENCE + LOAD_PATIENCE * loads


def not_back(error: SessionError | NoRoute, waited: float) -> SessionError:
    """Return the error of a request whose stage has not returned after `waited` seconds."""
    return SessionError(
        error.code,
        f"{error.message} (still after {waited:.0f} s)",
        hint=error.hint
        or "`shoal peers` shows what the nodes do; run it again when the layers are served",
    )


class Crashes:
    """Counter of the losses of state during one request, which may be their cause."""

    def __init__(self) -> None:
        self.preempted = False  # whether the request was preempted
        self._made: list[int] = []  # for each loss: the number of tokens generated before it
        # The preemptions without a token in between: their number, the tokens before, the first.
        self._stuck, self._stuck_at, self._stuck_since = 0, -1, 0.0

    def note(self, error: StageLost, made: int, now: float) -> float:
        """Count a loss after `made` tokens. Return for how many seconds to wait.

        Raises SessionError with the stage's own code if there were too many. A request that gets
        further between the losses is probably not their cause, so it may continue more often. A
        preemption has another cause, and does not count.
        """
        if error.cause == PREEMPTED:
            self.preempted = True
            return self._preempt(error, made, now)
        self._made.append(made)
        count = len(self._made)
        if self._made.count(made) >= CRASHES or count >= CRASHES_IN_ALL:
            raise SessionError(
                error.cause or error.code,
                f"{error.message} ({count} times during this request)",
                hint="this request may be the cause: change it, or try another model or node",
            )
        return 0.0

    def _preempt(self, error: StageLost, made: int, now: float) -> float:
        """Return for how many seconds to wait after a preemption: longer each time that the request
        has not got further, since stages may lie.

        Raises SessionError `preempted` if it has not got further for RESUME_PATIENCE seconds.
        """
        if made != self._stuck_at:
            self._stuck, self._stuck_at, self._stuck_since = 0, made, now
        elif now >= self._stuck_since + RESUME_PATIENCE:
            raise not_back(SessionError(PREEMPTED, error.message), now - self._stuck_since)
        self._stuck += 1
        return min(RETURN_LOOK * ((1 << min(self._stuck - 1, 8)) - 1), MEMORY_LOOK)
