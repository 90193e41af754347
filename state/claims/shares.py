"""Consistent-hash ring that assigns each job a preferred worker.

All nodes know about the same workers, even on different sides of a partition. If each worker begins
with the jobs that the ring assigns to it, both sides rarely do the same job. The ring is only a
preference: a worker that has none of its own jobs left does jobs of others, and the next worker on
the ring inherits the jobs of a dead one.
"""

import hashlib
from bisect import bisect, bisect_left, insort
from collections.abc import Iterator

from ...transport.identity import PeerId
from .. import defaults

_DOMAIN = b"shoal/share/1 "
_BYTES = 8  # of a point


class WorkerRing:
    """The ring of workers. Each worker has SHARE_POINTS points on the ring."""

    def __init__(self) -> None:
        self._points: list[tuple[int, PeerId]] = []
        self._workers: set[PeerId] = set()

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, peer: PeerId) -> None:
        """Add a worker to the ring, unless it is there."""
        if peer not in self._workers:
            self._workers.add(peer)
            for point in _points_of(peer):
                insort(self._points, (point, peer))

    def remove(self, peer: PeerId) -> None:
        """Remove a worker from the ring, if it is there."""
        if peer in self._workers:
            self._workers.remove(peer)
            for point in _points_of(peer):
                del self._points[bisect_left(self._points, (point, peer))]

    def heirs(self, job: str) -> Iterator[PeerId]:
        """Yield the preferred worker of a job, and then its successors on the ring.

        A worker may be yielded several times. `job` is the job's id, a hash in hex.
        """
        begin = bisect(self._points, (int(job[: 2 * _BYTES], 16), PeerId("")))
        for at in range(len(self._points)):
            yield self._points[(begin + at) % len(self._points)][1]


def _points_of(peer: PeerId) -> Iterator[int]:
    for number in range(defaults.SHARE_POINTS):
        told = _DOMAIN + f"{number} {peer}".encode()
        yield int.from_bytes(hashlib.sha256(told).digest()[:_BYTES])
