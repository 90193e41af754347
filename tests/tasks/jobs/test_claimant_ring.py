"""Jobs are spread evenly over workers, and few move when a worker comes or goes."""

import hashlib
from collections import Counter

from shoal.tasks.jobs.crew import WorkerRing
from shoal.transport.identity import Identity, PeerId

PEERS = [Identity.from_seed(bytes([n]) * 32).peer for n in range(1, 21)]
JOBS = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(2_000)]


def shares_of(peers: list[PeerId]) -> WorkerRing:
    shares = WorkerRing()
    for peer in peers:
        shares.add(peer)
    return shares


def firsts(shares: WorkerRing) -> list[PeerId]:
    return [next(shares.heirs(job)) for job in JOBS]


def test_every_worker_has_a_share() -> None:
    counts = Counter(firsts(shares_of(PEERS)))
    assert set(counts) == set(PEERS)
    assert max(counts.values()) < 2.5 * len(JOBS) / len(PEERS)


def test_nodes_that_know_the_same_workers_agree() -> None:
    one, other = shares_of(PEERS), shares_of([*reversed(PEERS), *PEERS])
    other.remove(PEERS[3])
    other.remove(PEERS[3])
    other.add(PEERS[3])
    assert firsts(one) == firsts(other) and len(one) == len(other) == 20


def test_only_the_jobs_of_a_removed_worker_move() -> None:
    shares, gone = shares_of(PEERS), PEERS[7]
    before = firsts(shares)
    heirs = [
        next(peer for peer in shares.heirs(job) if peer != gone)
        for job, first in zip(JOBS, before, strict=True)
        if first == gone
    ]
    shares.remove(gone)
    assert gone not in shares
    after = firsts(shares)
    moved = [now for was, now in zip(before, after, strict=True) if was != now]
    assert moved == heirs and len(set(heirs)) > 3


def test_a_ring_without_workers() -> None:
    assert list(WorkerRing().heirs(JOBS[0])) == []
    assert set(shares_of(PEERS).heirs(JOBS[0])) == set(PEERS)
