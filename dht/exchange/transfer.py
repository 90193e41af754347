"""Choice of which chunk to request from which peer: the core of a fetch, without I/O.

A peer gets its next request as soon as it delivers a chunk, so faster peers get more requests. A
peer gets no request if the other peers would fetch all remaining chunks sooner than it would
deliver one. The rarest chunks are requested first. Each fetch orders equally rare chunks
differently, so nodes that fetch the same content at the same time soon have different chunks to
exchange. At the end, requests that slow peers have not answered are hedged with fast ones.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from ...transport.identity import PeerId
from ..defaults import (
    BACKOFF_MAX,
    BACKOFF_START,
    CHUNK,
    CHUNK_TIMEOUT,
    CHUNK_TIMEOUT_MAX,
    CHUNK_TIMEOUT_MIN,
    COPIES_MAX,
    IN_FLIGHT,
    OFFER_STEP,
    RARE_AMONG,
    RATE_MEMORY,
    SPARED_FOR,
    STEAL_AFTER,
    STEAL_FACTOR,
    TIMEOUT_FACTOR,
    WINDOW_MAX,
    WINDOW_SECONDS,
    WINDOW_START,
)


@dataclass(slots=True)
class ChunkSource:
    """State of a peer as a source of chunks. `rate` is measured, in bytes per second."""

    has: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)  # chunks added after its last offer
    queue: list[str] = field(default_factory=list)  # to request, next one last; may be outdated
    spared: dict[str, float] = field(default_factory=dict)  # chunk given to another peer -> when
    whole: bool = False  # whether it had all wanted chunks at its last offer
    asked: dict[str, float] = field(default_factory=dict)  # pending requests: digest -> time sent
    rate: float | None = None  # None while not measured
    failures: int = 0  # in a row
    rest_until: float = -math.inf  # no request is sent to it before this time

    def window(self) -> int:
        """Return how many requests to this peer may be pending at the same time."""
        if self.failures:
            return 1
        if self.rate is None:
            return WINDOW_START
        return max(1, min(WINDOW_MAX, math.ceil(self.rate * WINDOW_SECONDS / CHUNK)))

    def seconds(self, requests: int) -> float:
        """Return the expected time in seconds to deliver `requests` chunks.

        Returns infinity if the rate is not measured yet.
        """
        return requests * CHUNK / self.rate if self.rate else math.inf

    def measure(self, rate: float) -> None:
        """Update the moving average of the rate with a new measurement."""
        old = rate if self.rate is None else self.rate
        self.rate = RATE_MEMORY * old + (1 - RATE_MEMORY) * rate


class ChunkOffer(NamedTuple):
    """Wanted chunks that a peer says it has."""

    has: set[str]
    queue: list[str]  # the same chunks in the order of requests, the next one last
    news: bool  # whether the peer did not have one of them before


class Transfer:
    """State of a fetch: wanted chunks, their sources, and pending requests.

    `wanted` maps digests to bytes. `salt` determines the order of equally rare chunks.
    """

    def __init__(self, wanted: Mapping[str, int], salt: bytes) -> None:
        self._sizes = dict(wanted)
        self._order = _in_own_order(wanted, salt)
        self.wanted = set(wanted)  # not stored yet
        self._pending = set(wanted)  # wanted and not requested from any peer
        # digest -> peers with a pending request, or with a delivery that is not stored yet
        self.asked: dict[str, set[PeerId]] = {}
        self._liars: set[PeerId] = set()
        self._quiet: set[PeerId] = set()
        self.sources: dict[PeerId, ChunkSource] = {}

    @property
    def done(self) -> bool:
        """Whether all wanted chunks are stored."""
        return not self.wanted

    @property
    def left(self) -> int:
        """Number of chunks that are not stored yet."""
        return len(self.wanted)

    @property
    def liars(self) -> frozenset[PeerId]:
        """Peers that sent wrong bytes."""
        return frozenset(self._liars)

    def wants(self, digest: str) -> bool:
        """Return whether a chunk is not stored yet."""
        return digest in self.wanted

    def offers(self, peer: PeerId, digests: Iterable[str]) -> bool:
        """Replace the list of chunks that a peer has.

        Return whether any of them is new for this peer.
        """
        return self.take(peer, self.weigh(peer, digests))

    def weigh(self, peer: PeerId, digests: Iterable[str]) -> ChunkOffer:
        """Prepare an offer for `take` from the chunks that a peer has. Does not change any state.

        It takes long for many chunks, and may therefore run in a thread beside the event loop. It
        works in small steps, so that it does not hold the interpreter lock for long.
        """
        source = self.sources.get(peer)
        known = source.has if source is not None else set()
        has, queue, news = set[str](), list[str](), False
        left: Iterator[str] = iter(digests)
        while step := list(islice(left, OFFER_STEP)):
            part = self.wanted.intersection(step)
            news = news or not part <= known
            has |= part
        left = filter(has.__contains__, reversed(self._order)) if has else iter(())
        while step := list(islice(left, OFFER_STEP)):
            queue += step
        return ChunkOffer(has, queue, news)

    def take(self, peer: PeerId, offer: ChunkOffer) -> bool:
        """Replace the last offer of a peer by one that `weigh` has prepared.

        Returns whether the new offer has a chunk that the peer did not have before.
        """
        if peer in self._liars:
            return False
        source = self.sources.setdefault(peer, ChunkSource())
        added = source.added - offer.has  # added while the offer was prepared
        source.has, source.queue, source.added = offer.has, offer.queue, set()
        source.has |= added
        source.queue += added
        source.whole = len(source.has) >= len(self.wanted)
        return offer.news

    def adds(self, peer: PeerId, digests: Iterable[str]) -> bool:
        """Add chunks to the offer of a peer. Return whether any of them is wanted and new."""
        source = self.sources.get(peer)
        if source is None or peer in self._liars:
            return False
        fresh = [d for d in digests if self.wants(d) and d not in source.has]
        source.has.update(fresh)
        source.added.update(fresh)
        source.queue += fresh
        return bool(fresh)

    def _providers(self, digest: str) -> int:
        """Return the number of sources that have a chunk."""
        return sum([digest in source.has for source in self.sources.values()])

    def is_rare(self, digest: str) -> bool:
        """Return whether at most one source has the chunk."""
        return self._providers(digest) <= 1

    def spare(self, peer: PeerId, digest: str) -> bool:
        """Return whether the request for a chunk should allow the refusal `given`.

        With it, a peer refuses a chunk that it has just sent to another peer. It is allowed once
        per chunk, and only if the peer has all wanted chunks or no other source has this chunk.
        """
        source = self.sources[peer]
        return (source.whole or self.is_rare(digest)) and digest not in source.spared

    def given(self, peer: PeerId, digest: str, now: float) -> None:
        """Record that a peer refused a chunk because it just gave it to another peer."""
        self.sources[peer].spared[digest] = now
        self.abandoned(peer, digest)

    def has_all(self, peer: PeerId) -> bool:
        """Return whether the peer has offered all chunks that are still wanted."""
        source = self.sources.get(peer)
        return source is not None and (source.whole or self._pending <= source.has)

    def delivered(self, peer: PeerId) -> bool:
        """Return whether the peer has ever sent a chunk with the right bytes."""
        source = self.sources.get(peer)
        return source is not None and source.rate is not None

    def choose(self, now: float) -> tuple[PeerId, str] | None:
        """Choose the next request, and register it as sent.

        Returns the peer and the digest, or None if no request should be sent now.
        """
        if sum(map(len, self.asked.values())) >= IN_FLIGHT:
            return None
        free = [
            (peer, source)
            for peer, source in self.sources.items()
            if source.rest_until <= now
            and len(source.asked) < source.window()
            and peer not in self._quiet
        ]
        free.sort(key=lambda item: item[1].seconds(len(item[1].asked) + 1))
        for peer, source in free:
            digest = self._next_pending(source, now)
            if digest is None:
                digest = self._late(peer, source, now)
            if digest is not None:
                self._pending.discard(digest)
                self.asked.setdefault(digest, set()).add(peer)
                source.asked[digest] = now
                return peer, digest
        return None

    def _next_pending(self, source: ChunkSource, now: float) -> str | None:
        """Remove the rarest of the next few chunks from a source's queue, and return it.

        Returns None if there is none, or if other sources would fetch it sooner. Outdated entries
        of the queue are dropped.
        """
        queue, best, place, looked = source.queue, None, 0, 0
        for index in range(len(queue) - 1, -1, -1):
            digest = queue[index]
            if digest not in self._pending or digest not in source.has:
                del queue[index]
                place -= 1
                continue
            looked += 1
            if now < source.spared.get(digest, -math.inf) + SPARED_FOR:
                continue
            rank = self._providers(digest)
            if best is None or rank < best:
                best, place = rank, index
            if looked == RARE_AMONG or best == 1:
                break
        if best is None or self._is_too_slow(source, queue[place]):
            return None
        return queue.pop(place)

    def _is_too_slow(self, source: ChunkSource, digest: str) -> bool:
        """Return whether other sources would fetch all remaining chunks before `source` delivers.

        Only other sources that have the chunk `digest` are considered. The fastest source of the
        chunk is never too slow.
        """
        mine = source.seconds(len(source.asked) + 1)
        if self.is_rare(digest) or mine == math.inf:
            return False
        together, soonest = 0.0, math.inf
        for peer, other in self.sources.items():
            if peer in self._quiet or other is source or digest not in other.has:
                continue
            if other.rate and not other.failures:
                together += other.rate
                soonest = min(soonest, other.seconds(len(other.asked) + 1))
        return together > 0 and mine > max(soonest, self.left * CHUNK / together)

    def _late(self, peer: PeerId, source: ChunkSource, now: float) -> str | None:
        """Return a chunk to hedge with this peer, or None if there is none.

        The chunk was requested from other peers and has the longest expected wait. This peer must
        be expected to deliver it at least `STEAL_FACTOR` times as fast.
        """
        own = source.seconds(len(source.asked) + 1)
        worst, found = STEAL_FACTOR * own, None
        for digest, peers in self.asked.items():
            if peer in peers or len(peers) >= COPIES_MAX or digest not in source.has:
                continue
            wait = min(self._remaining(self.sources[other], digest, now) for other in peers)
            if wait > worst:
                worst, found = wait, digest
        return found

    @staticmethod
    def _remaining(source: ChunkSource, digest: str, now: float) -> float:
        """Estimate the time in seconds until a requested chunk arrives, from the peer's rate.

        If the expected time has passed, or the rate is unknown, the request is assumed to take as
        long again as it has taken so far.
        """
        asked = source.asked.get(digest)
        if asked is None:
            return 0.0  # it has arrived and is being stored
        elapsed = now - asked
        if elapsed < STEAL_AFTER:
            return 0.0
        expected = source.seconds(len(source.asked)) - elapsed
        return expected if 0 < expected < math.inf else elapsed

    def timeout(self, peer: PeerId) -> float:
        """Return the time in seconds after which a request to this peer counts as failed."""
        source = self.sources[peer]
        if source.rate is None:
            return min(CHUNK_TIMEOUT * 2.0**source.failures, CHUNK_TIMEOUT_MAX)
        limit = TIMEOUT_FACTOR * source.seconds(len(source.asked) + 1) * 2.0**source.failures
        return min(max(limit, CHUNK_TIMEOUT_MIN), CHUNK_TIMEOUT_MAX)

    def received(self, peer: PeerId, digest: str, now: float) -> None:
        """Close a request whose bytes have arrived, so that the next one can be sent.

        The bytes are not verified yet. If the peer has never sent correct bytes, its request
        therefore stays open until `arrived` or `lied` is called.
        """
        if self.sources[peer].rate is not None:
            self._received(self.sources[peer], digest, now)

    def _received(self, source: ChunkSource, digest: str, now: float) -> None:
        """Close a request, and measure the peer's rate."""
        together = len(source.asked)
        asked = source.asked.pop(digest, None)
        if asked is not None:
            source.measure(self._sizes[digest] * together / max(now - asked, 1e-6))
            source.failures = 0

    def arrived(self, peer: PeerId, digest: str, now: float) -> set[PeerId]:
        """Record that a chunk is stored.

        Return the other peers whose requests for it can be cancelled.
        """
        self._received(self.sources[peer], digest, now)
        self.wanted.discard(digest)
        self._pending.discard(digest)
        return self.asked.pop(digest, set()) - {peer}

    def abandoned(self, peer: PeerId, digest: str) -> None:
        """Close a request that brought no bytes.

        The chunk is requested again, unless a request to another peer is pending.
        """
        self.sources[peer].asked.pop(digest, None)
        peers = self.asked.get(digest)
        if peers is None:
            return
        peers.discard(peer)
        if not peers:
            del self.asked[digest]
            self._pending.add(digest)
            for source in self.sources.values():
                if digest in source.has:
                    source.queue.append(digest)

    def absent(self, peer: PeerId, digest: str) -> None:
        """Record that a peer does not have a chunk that it offered."""
        source = self.sources[peer]
        source.has.discard(digest)
        source.whole = False
        self.abandoned(peer, digest)

    def failed(self, peer: PeerId, digest: str, now: float) -> None:
        """Back off from a peer after a timeout, a refusal or a lost link."""
        source = self.sources[peer]
        source.rest_until = now + min(BACKOFF_START * 2**source.failures, BACKOFF_MAX)
        source.failures = min(source.failures + 1, 16)
        self.abandoned(peer, digest)

    def quiet(self, peer: PeerId) -> list[str]:
        """Stop requesting from a peer that has fallen silent, until `back` is called.

        This does not count as a failure. Returns the chunks that were requested from the peer; they
        are requested again.
        """
        self._quiet.add(peer)
        source = self.sources.get(peer)
        open_requests = list(source.asked) if source is not None else []
        for digest in open_requests:
            self.abandoned(peer, digest)
        return open_requests

    def back(self, peer: PeerId) -> None:
        """Resume requests to a peer that was silent. Its earlier offer still counts."""
        self._quiet.discard(peer)

    def lied(self, peer: PeerId) -> list[str]:
        """Ban a peer that sent wrong bytes. Return the chunks that were requested from it."""
        self._liars.add(peer)
        source = self.sources[peer]
        source.has, source.queue = set(), []
        open_requests = list(source.asked)
        for digest in open_requests:
            self.abandoned(peer, digest)
        return open_requests


def _in_own_order(digests: Iterable[str], salt: bytes) -> list[str]:
    """Sort digests by the SHA-256 of the salt and the digest.

    The digests are sorted in 256 parts. A single sort would hold the interpreter lock, and so block
    the event loop even from a thread.
    """
    buckets: list[list[tuple[bytes, str]]] = [[] for _ in range(256)]
    for digest in digests:
        rank = hashlib.sha256(salt + bytes.fromhex(digest)).digest()
        buckets[rank[0]].append((rank, digest))
    return [digest for bucket in buckets for _, digest in sorted(bucket)]
