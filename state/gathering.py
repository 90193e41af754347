"""Many numbers behind one signature. Sans-I/O.

A witness gathers questions for a while, hashes their numbers to one, and has each member that was
asked for sign that one. Every asker gets the hashes on the way from its own number to the signed
one (a Merkle tree), so it knows that the signature is later than its number.
Spec: docs/spec/liveness.md.
"""

from collections.abc import Sequence
from hashlib import sha256
from math import inf

import trio

from ..transport.identity import PeerId
from ..transport.rates import Bucket, Rate
from . import defaults


def join(one: bytes, other: bytes) -> bytes:
    """Return the hash of two numbers, in whichever order they come."""
    return sha256(min(one, other) + max(one, other)).digest()


def climb(number: bytes, path: Sequence[bytes]) -> bytes:
    """Return the number at the top of a path from this one."""
    for beside in path:
        number = join(number, beside)
    return number


def tree(numbers: Sequence[bytes]) -> tuple[bytes, list[list[bytes]]]:
    """Return the number at the top of all, and the path to it from each."""
    paths: list[list[bytes]] = [[] for _ in numbers]
    level = [(number, [place]) for place, number in enumerate(numbers)]
    while len(level) > 1:
        above = []
        for (one, below), (other, beside) in zip(level[::2], level[1::2], strict=False):
            for place in below:
                paths[place].append(other)
            for place in beside:
                paths[place].append(one)
            above.append((join(one, other), below + beside))
        level = above + level[len(above) * 2 :]
    return level[0][0], paths


class Gathered:
    """Questions that are answered together."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.numbers: list[bytes] = []
        self.peers: dict[PeerId, bytes] = {}  # the signature of each, empty where there is none
        self.paths: list[list[bytes]] = []
        self.done = trio.Event()

    def close(self) -> bytes:
        """Return the number to sign, that of all numbers."""
        top, self.paths = tree(self.numbers)
        return top


class Gathering:
    """The questions that one witness is asked: gathered for GATHER_S, or longer where many come."""

    def __init__(self) -> None:
        self._next: Gathered | None = None
        self._pace = Bucket(Rate(*defaults.GATHERINGS), 0.0)

    @property
    def due(self) -> float:
        """When to `take` the questions."""
        return inf if self._next is None else self._next.due

    def add(
        self, number: bytes, peers: Sequence[PeerId], now: float
    ) -> tuple[Gathered, int] | None:
        """Add a question; return what will have its answer, and its place there. None where too
        many wait."""
        if self._next is None:
            at = now if self._pace.has(now) else self._pace.due
            self._next = Gathered(at + defaults.GATHER_S)
        gathered = self._next
        if len(gathered.numbers) >= defaults.GATHERED:
            return None
        gathered.numbers.append(number)
        gathered.peers.update(dict.fromkeys(peers, b""))
        return gathered, len(gathered.numbers) - 1

    def take(self, now: float) -> Gathered | None:
        """Return the questions whose time has come."""
        gathered = self._next
        if gathered is None or now < gathered.due:
            return None
        self._next = None
        self._pace.take(now)
        return gathered
