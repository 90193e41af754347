"""The secrets of a group that a node knows: the newest is in use, older ones are still accepted."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .. import defaults
from .sealing import mark_of


class Mark(NamedTuple):
    """Identifier of a secret: the number of its rotation, and a hash that tells equal numbers
    apart."""

    number: int
    mark: bytes


class Secrets:
    """At most KEYS_KEPT secrets: the ones learnt last, and the oldest.

    The oldest is the one with the lowest number, and of equal numbers the one learnt first. Numbers
    decide nothing else here. Otherwise an owner that uses high numbers could make nodes forget the
    secrets made after its revocation, and an owner that reuses number 1, with a lower mark found by
    trial, could make them forget the secret that all have in common.
    """

    def __init__(self, known: Iterable[tuple[int, bytes]] = ()) -> None:
        """`known` has the number and secret of each, the one learnt last first."""
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
        """Return the marks of all secrets, newest first."""
        return sorted(self._by_mark, reverse=True)

    def known(self) -> list[tuple[int, bytes]]:
        """Return the number and secret of each, the one learnt last first, for a file or a new
        member."""
        return [(mark.number, self._by_mark[mark]) for mark in reversed(self._by_mark)]

    def add(self, number: int, secret: bytes) -> None:
        """Add a secret."""
        if self._add(number, secret):
            self.on_change()

    def find(self, ident: bytes) -> bytes | None:
        """Return the secret with this mark, whatever its number, or None."""
        return next((self._by_mark[mark] for mark in self._by_mark if mark.mark == ident), None)

    def shown(self, newest: Mark | None) -> list[Mark]:
        """Return the marks of the secrets to prove to a peer, best first.

        These are the newest, then others at growing distances, and the oldest. So two nodes that
        missed each other's rotations find a secret that both know.
        """
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
