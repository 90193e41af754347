"""Whose turn a job is first: a ring on which every worker has points, and jobs fall between.

Only a preference: it keeps nodes that cannot hear each other from taking the same jobs, for both
sides of a cut know the same workers. Whoever has nothing left to do takes what is another's, and
who comes next inherits from who is gone.
"""

import hashlib
from bisect import bisect, bisect_left, insort
from collections.abc import Iterator

from ..transport.identity import PeerId
from . import defaults

_DOMAIN = b"shoal/share/1 "
_BYTES = 8  # of a point


class Shares:
    """The workers, and what falls to each."""

    def __init__(self) -> None:
        self._points: list[tuple[int, PeerId]] = []
        self._workers: set[PeerId] = set()

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, peer: PeerId) -> None:
        """One more who does jobs."""
        if peer not in self._workers:
            self._workers.add(peer)
            for point in _points_of(peer):
                insort(self._points, (point, peer))

    def remove(self, peer: PeerId) -> None:
        """It does none any more."""
        if peer in self._workers:
            self._workers.remove(peer)
            for point in _points_of(peer):
                del self._points[bisect_left(self._points, (point, peer))]

    def heirs(self, job: str) -> Iterator[PeerId]:
        """Whose turn a job is first, then who comes after that one. Some may come twice.

        `job`: its id, a hash in hex.
        """
        begin = bisect(self._points, (int(job[: 2 * _BYTES], 16), PeerId("")))
        for at in range(len(self._points)):
            yield self._points[(begin + at) % len(self._points)][1]


def _points_of(peer: PeerId) -> Iterator[int]:
    for number in range(defaults.SHARE_POINTS):
        told = _DOMAIN + f"{number} {peer}".encode()
        yield int.from_bytes(hashlib.sha256(told).digest()[:_BYTES])
