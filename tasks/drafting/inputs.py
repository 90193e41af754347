"""Inputs of the first stage of a chain: fed tokens, and windows of drafts. No I/O.

Drafts are computed as if they were right. A token that the head feeds, or the gateway knows, and
that differs from the draft at its position begins a new *branch*, named by that position. Windows
of earlier branches are refused. Spec: docs/spec/session.md.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from .defaults import AHEAD, KNOWN


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens to compute from position `start` on. They replace what was computed there."""

    start: int
    tokens: tuple[int, ...]


class Inputs:
    """The latest tokens of one session at its first stage, some of them drafts."""

    def __init__(self, end: int) -> None:
        """`end` is the position after the prompt."""
        self._first = end  # position of the first of `tokens`
        self.tokens: deque[int] = deque()
        self._fed = end  # positions below are fed, not drafts
        self.branch = 0
        """The position of the last token that was another than drafted, at first 0."""

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self._first + len(self.tokens)

    def feed(self, position: int, token: int) -> Work | None:
        """Take a token that the head has chosen. Return the positions to compute next, or None if
        they were sent as drafts before.

        Raises ValueError if the head cannot have chosen it, because its position was fed before, or
        its predecessor is not computed.
        """
        if not self._fed <= position <= self.end:
            raise ValueError(f"position {position} is not among {self._fed} to {self.end}")
        self._fed = position + 1
        if position < self.end:
            if self.tokens[position - self._first] == token:
                self._forget()
                return None
            self._cut(position)
        self.tokens.append(token)
        self._forget()
        return Work(position, (token,))

    def window(self, branch: int, start: int, tokens: Sequence[int]) -> Work | None:
        """Take a window of the gateway, whose `branch` is the position of the last token that was
        another than it had drafted. Return what is to be computed, if anything.

        Windows of earlier branches, or behind a gap, and positions that are too far ahead are
        ignored.
        """
        if branch < self.branch or not branch <= self.end:
            return None
        if branch > self.branch and self._fed <= branch < self.end:
            # The gateway knows of a wrong draft before the head has told this stage.
            self._cut(branch)
        self.branch = max(branch, self.branch)
        if not self._agrees(start, tokens) or start > self.end:
            return None
        room = self._fed + AHEAD - self.end
        new = tuple(tokens[self.end - start :][: max(0, room)])
        if not new:
            return None
        at = self.end
        self.tokens.extend(new)
        return Work(at, new)

    def _agrees(self, start: int, tokens: Sequence[int]) -> bool:
        """Return whether a window has the tokens that are known at its positions. If not, its
        branch has ended."""
        for position, token in enumerate(tokens, start):
            known = self._first <= position < self.end
            if known and self.tokens[position - self._first] != token:
                self.branch = max(self.branch, position)
                return False
        return True

    def _cut(self, position: int) -> None:
        """Drop the drafts from a position on, and begin a branch there."""
        while self.end > max(position, self._first):
            self.tokens.pop()
        self.branch = position

    def _forget(self) -> None:
        """Drop the tokens that no window is compared with any more."""
        while self._first < self._fed - KNOWN and self.tokens:
            self.tokens.popleft()
            self._first += 1
