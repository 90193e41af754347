"""Guesses of a smaller model that reads the same text.

The smaller model samples as the larger one does: with the same temperature, seed and positions, so
with the same noise. Their choices therefore agree more often than two independent draws, also at
high temperatures.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, log

import trio

from .defaults import (
    SAID_BEHIND,
    SAID_LEAST,
    SAID_MOST,
    SAID_PRIOR,
    SAID_REACHED,
    SAID_USEFUL,
)


class ModelGuesses:
    """Guesses of a smaller model for the text of one session. `ids` is the session's prompt.

    `begin`, `add` and `end` are called for the smaller model's answers, one at a time, and `take`
    for the session's own tokens.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self._known = list(ids)  # the session's text
        self._ahead: deque[int] = deque()  # guesses for the positions behind it
        self._at = len(self._known)  # position of the next guess
        self._stopped = False  # whether the last guess ends the text
        self._right = self._checked = 0
        self._cancel: Callable[[], None] | None = None  # ends the present answer
        self._changed = trio.Event()

    @property
    def rate(self) -> float:
        """The part of the guesses that were right, between 0 and 1."""
        return (self._right + SAID_PRIOR / 2) / (self._checked + SAID_PRIOR)

    @property
    def useful(self) -> bool:
        """Whether enough guesses were right, so far as they are known."""
        return self.rate >= SAID_USEFUL

    def behind(self, guesses: Sequence[int], most: int) -> list[int]:
        """Return up to `most` guesses for what follows the text and these guesses of it; none if
        the smaller model guesses otherwise."""
        ahead = list(self._ahead)
        same = len(ahead) > len(guesses) and ahead[: len(guesses)] == list(guesses)
        return ahead[len(guesses) : len(guesses) + most] if same else []

    def take(self, token: int) -> None:
        """Note the next token of the session. A guess that was wrong ends the present answer."""
        self._known.append(token)
        if self._ahead:
            right = self._ahead.popleft() == token
            self._right += right
            self._checked += 1
            if not right:
                self._leave()
        elif len(self._known) - self._at > SAID_BEHIND:
            self._leave()  # reading what was missed takes less time than saying it
        self._tell()

    def _leave(self) -> None:
        """End the present answer, and forget its guesses."""
        self._ahead.clear()
        self._stopped = False
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    async def wanted(self) -> int:
        """Wait until more guesses are worth making, and return how many."""
        while True:
            most = self._most()
            if not self._stopped and 2 * len(self._ahead) <= most:
                return most - len(self._ahead)
            await self._changed.wait()

    def _most(self) -> int:
        """Return how many guesses may lie ahead: one is reached only if all before it are right."""
        worth = ceil(log(SAID_REACHED) / log(min(self.rate, 0.99)))
        return min(max(worth, SAID_LEAST), SAID_MOST)

    def begin(self, cancel: Callable[[], None]) -> list[int]:
        """Begin an answer of the smaller model: return the text that it continues. `cancel` is
        called when the session turns out to go on otherwise."""
        self._cancel = cancel
        self._at = len(self._known) + len(self._ahead)
        return [*self._known, *self._ahead]

    def add(self, token: int) -> bool:
        """Add the next token of the smaller model's answer. Return whether the answer goes on as
        the session does, so far as both are known."""
        if self._cancel is None:
            return False
        self._at += 1
        if self._at > len(self._known):
            self._ahead.append(token)
            return True
        return self._known[self._at - 1] == token

    def end(self, *, stopped: bool) -> None:
        """End an answer. `stopped`: its last token ends the text."""
        self._cancel = None
        self._stopped = stopped and bool(self._ahead)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
