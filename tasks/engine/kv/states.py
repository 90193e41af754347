"""States of recurrent layers: which slots of a shard's memory a session's states are in. No I/O.

A recurrent layer keeps one state for each session, of a fixed size, instead of something for each
position. It cannot be shortened. Therefore a session has two slots: one for the state after its
latest position, and one for a snapshot of an earlier state, to which it can return. The state
before the first position is zero, so a session can always begin again.
"""

from dataclasses import dataclass

from ..defaults import STATE_SLOTS
from ..errors import EngineError
from .blocks import BLOCK


@dataclass(frozen=True, slots=True)
class StateUse:
    """What one step does with the states of a session.

    The step begins with the state in slot `restore` (None: the one in `slot`; with `fresh`, zero),
    copies it to slot `save` unless that is None, and leaves the new state in `slot`.
    """

    slot: int
    fresh: bool = False
    restore: int | None = None
    save: int | None = None


class StatePool:
    """All slots of a shard, numbered from 0."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(reversed(range(total)))

    @property
    def free(self) -> int:
        """Number of slots that no session has."""
        return len(self._free)

    def take(self) -> tuple[int, int]:
        """Return the slots of a new session. Raises EngineError `no-memory` if there are none."""
        if len(self._free) < STATE_SLOTS:
            raise EngineError(
                "no-memory",
                "the memory for recurrent states is in use: it has room for "
                f"{self.total // STATE_SLOTS} sessions",
            )
        return self._free.pop(), self._free.pop()

    def give_back(self, slots: tuple[int, int]) -> None:
        """Return the slots of a session."""
        self._free += slots


class SessionStates:
    """The states of one session: which positions they stand for."""

    def __init__(self, pool: StatePool) -> None:
        """Take slots. Raises EngineError `no-memory`."""
        self._pool = pool
        self._slots: tuple[int, int] | None = pool.take()
        self._live, self._saved = self._slots
        self._position = 0  # number of positions that the live state stands for
        self._saved_at = 0  # … and the snapshot; 0: there is none

    def reaches(self, start: int) -> bool:
        """Return whether the state after `start` positions is there."""
        return start in (0, self._position, self._saved_at)

    def use(self, start: int, count: int) -> StateUse:
        """Return what a step with the positions `start` to `start + count - 1` does.

        The state after `start` positions is there. A snapshot of it is made where a session may
        return to: before a part of a prompt, and at the beginning of each block.
        """
        assert self.reaches(start)
        restore = self._saved if start == self._saved_at != self._position else None
        save = None
        if start and start != self._saved_at and (count > 1 or start % BLOCK == 0):
            save, self._saved_at = self._saved, start
        if not start:
            self._saved_at, restore = 0, None
        self._position = start + count
        return StateUse(self._live, not start, restore, save)

    def free(self) -> None:
        """Give the slots back. May be called repeatedly."""
        if self._slots is not None:
            self._pool.give_back(self._slots)
            self._slots = None
