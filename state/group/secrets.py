"""The secrets of a group that a node knows: the newest is used, older ones still open doors."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .. import defaults
from .sealing import mark_of


class Mark(NamedTuple):
    """Which secret: the number of its rotation, and what tells two of one number apart."""

    number: int
    mark: bytes


class Secrets:
    """At most KEYS_KEPT of them, those that it heard of last and the oldest: of those with the
    lowest number the one that it heard of first.

    Numbers decide nothing else here: an owner that names high ones would let what comes after its
    revocation be forgotten at once; and one that takes number 1 again, by trial with a lower mark,
    what all have in common."""

    def __init__(self, known: Iterable[tuple[int, bytes]] = ()) -> None:
        """`known`: number and secret of each, what was heard of last first."""
        self.on_change: Callable[[], None] = lambda: None
        self._by_mark: dict[Mark, bytes] = {}
        for number, secret in reversed(list(known)):
            self._add(number, secret)

    def __len__(self) -> int:
        return len(self._by_mark)

    def __contains__(self, mark: object) -> bool:
        return mark in self._by_mark

    def __getitem__(self, mark: Mark) -> bytes:
        return self._by_mark[mark]

    def marks(self) -> list[Mark]:
        """Newest first."""
        return sorted(self._by_mark, reverse=True)

    def known(self) -> list[tuple[int, bytes]]:
        """Number and secret of each, what was heard of last first: what a file or a joiner gets."""
        return [(mark.number, self._by_mark[mark]) for mark in reversed(self._by_mark)]

    def add(self, number: int, secret: bytes) -> None:
        """Another one is known."""
        if self._add(number, secret):
            self.on_change()

    def find(self, ident: bytes) -> bytes | None:
        """The secret of a mark, whatever its number."""
        return next((self._by_mark[mark] for mark in self._by_mark if mark.mark == ident), None)

    def shown(self, newest: Mark | None) -> list[Mark]:
        """Those to prove at a door, best first: the newest, then from near to far, so that of two
        nodes that did not hear of each other's rotations one finds what both know."""
        marks = self.marks()
        if newest in self._by_mark:
            marks.remove(newest)
            marks.insert(0, newest)
        chosen = {place for place in defaults.KEYS_SHOWN if place < len(marks)}
        if marks:
            chosen.add(marks.index(self._oldest()))
        return [marks[place] for place in sorted(chosen)]

    def _oldest(self) -> Mark:
        return min(self._by_mark, key=lambda mark: mark.number)

    def _add(self, number: int, secret: bytes) -> bool:
        mark = Mark(number, mark_of(secret))
        if mark in self._by_mark:
            return False
        self._by_mark[mark] = secret
        if len(self._by_mark) > defaults.KEYS_KEPT:
            oldest = self._oldest()
            del self._by_mark[next(each for each in self._by_mark if each != oldest)]
        return True
