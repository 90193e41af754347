"""The secrets of a group that a node knows.

The newest secret is in use. Older ones are still accepted from peers that do not know it yet.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .. import defaults
from .sealing import mark_of


class Mark(NamedTuple):
    """Identifier of a secret: the number of its rotation, and a hash.

    The hash distinguishes secrets of rotations with the same number.
    """

    number: int
    mark: bytes


class Secrets:
    """The secrets that this node knows, at most KEYS_KEPT: those learnt last, and the oldest.

    The oldest is the one with the lowest number, and of equal numbers the one learnt first. Apart
    from that, numbers do not decide which secrets are kept. Otherwise an owner that uses high
    numbers could make nodes forget the secrets made after its revocation. Nor do marks decide,
    because an owner could find a lower mark by trial, reuse number 1 with it, and so make nodes
    forget the founding secret, which all of them have in common.
    """

    def __init__(
        self,
        known: Iterable[tuple[int, bytes]] = (),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the collection from `known`: (number, secret) pairs, the one learnt last first.

        `on_change` is called for each secret that is added later.
        """
        self._on_change = on_change
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
        """Return the marks of all secrets, the highest number first."""
        return sorted(self._by_mark, reverse=True)

    def known(self) -> list[tuple[int, bytes]]:
        """Return (number, secret) of each, the one learnt last first, for a file or for a new
        member."""
        return [(mark.number, self._by_mark[mark]) for mark in reversed(self._by_mark)]

    def add(self, number: int, secret: bytes) -> None:
        """Add a secret, and call `on_change` if it was not known.

        If there are too many, one is forgotten.
        """
        if self._add(number, secret):
            self._on_change()

    def find(self, ident: bytes) -> bytes | None:
        """Return the secret whose mark has this hash, with any number, or None if it is not
        known."""
        return next((self._by_mark[mark] for mark in self._by_mark if mark.mark == ident), None)

    def shown(self, newest: Mark | None) -> list[Mark]:
        """Return the marks of the secrets that this node proves to a peer, best first.

        The list has `newest`, other secrets at growing distances from it, and the oldest secret.
        Two nodes that missed each other's rotations can therefore find a secret that both know.
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
