"""Batching of liveness questions: one signature of a member answers the nonces of many questions.

A witness gathers the questions of its peers for a while, and builds a Merkle tree over their
nonces. Each member that they ask about signs the root once. Every peer that asked gets the Merkle
path from its own nonce to the signed root, which proves that the signature is newer than the nonce.
No I/O. Spec: docs/spec/liveness.md.
"""

from collections.abc import Sequence
from hashlib import sha256
from math import inf

import trio

from ...transport.identity import PeerId
from ...transport.rates import Rate, RateLimiter
from .. import defaults


def join(one: bytes, other: bytes) -> bytes:
    """Return the hash of two nonces or hashes. Their order does not matter."""
    return sha256(min(one, other) + max(one, other)).digest()


def merkle_root(number: bytes, path: Sequence[bytes]) -> bytes:
    """Return the Merkle root that this nonce and path lead to."""
    for beside in path:
        number = join(number, beside)
    return number


def tree(numbers: Sequence[bytes]) -> tuple[bytes, list[list[bytes]]]:
    """Return (Merkle root of all nonces, path from each nonce to the root)."""
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
    """A batch of questions that are answered together."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.numbers: list[bytes] = []
        self.peers: dict[PeerId, bytes] = {}  # the signature of each member, empty if there is none
        self.paths: list[list[bytes]] = []
        self.done = trio.Event()

    def close(self) -> bytes:
        """Compute the Merkle paths of the batch, and return the root to sign."""
        top, self.paths = tree(self.numbers)
        return top


class WitnessQuestions:
    """The questions of peers to this node as a witness, which it answers in batches.

    Questions are gathered for GATHER_S seconds, or longer if batches follow each other too fast. A
    question about a member that has just come does not wait for longer, because no request is
    routed to the member before it is proved live. Such questions have a batch of their own, as each
    member in a batch has to sign.
    """

    def __init__(self) -> None:
        self._next: Gathered | None = None
        self._hurried: Gathered | None = None  # the batch that does not wait for the pace
        self._pace = RateLimiter(Rate(*defaults.GATHERINGS), 0.0)
        self._soon = RateLimiter(Rate(*defaults.GATHERINGS_SOON), 0.0)
        self._asked: dict[PeerId, float] = {}  # when members were first asked about

    @property
    def due(self) -> float:
        """The time at which to call `take`, or infinity if there are no questions."""
        return min((each.due for each in (self._hurried, self._next) if each), default=inf)

    def add(
        self, number: bytes, peers: Sequence[PeerId], now: float
    ) -> tuple[Gathered, int] | None:
        """Add a question to the next batch.

        Returns (batch, position of the question in it), or None if the batch is full.
        """
        gathered = self._batch(self._are_new(peers, now), now)
        if len(gathered.numbers) >= defaults.GATHERED:
            return None
        gathered.numbers.append(number)
        gathered.peers.update(dict.fromkeys(peers, b""))
        return gathered, len(gathered.numbers) - 1

    def _batch(self, new: bool, now: float) -> Gathered:
        """Return the batch for a question, and begin it if there is none.

        `new` means that the question is about a new member.
        """
        soon = now + defaults.GATHER_S
        if self._next is None:
            at = now if self._pace.has(now) else self._pace.due
            due = at + defaults.GATHER_S
        else:
            due = self._next.due
        if new and due > soon:
            if self._hurried is None and self._soon.take(now):
                self._hurried = Gathered(soon)
            if self._hurried is not None:
                return self._hurried
        if self._next is None:
            self._next = Gathered(due)
        return self._next

    def _are_new(self, peers: Sequence[PeerId], now: float) -> bool:
        """Return whether one of these members was first asked about a moment ago."""
        return any(
            now - self._asked.setdefault(peer, now) < defaults.GATHER_NEW_S for peer in peers
        )

    def forget(self, peer: PeerId) -> None:
        """Record that a member's link has ended. If it comes back, it is new again."""
        self._asked.pop(peer, None)

    def take(self, now: float) -> Gathered | None:
        """Remove and return the batch if it is due, else return None."""
        hurried, gathered = self._hurried, self._next
        if hurried is not None and now >= hurried.due:
            self._hurried = None
            return hurried
        if gathered is None or now < gathered.due:
            return None
        self._next = None
        self._pace.take(now)
        return gathered
