"""Which chunk to ask of which peer: the sans-I/O core of a fetch.

A peer that delivers is asked again at once, so peers share the work by their speed; one that
would bring a chunk later than the others bring all the rest is not asked for it. Each getter takes
first what the fewest peers have, else in an order of its own, so that several getters soon have
different chunks for each other. At the end, chunks that slow peers owe are asked of fast ones as
well.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from ..transport.identity import PeerId
from .defaults import (
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
class Source:
    """A peer as a source of chunks. `rate` is measured, in bytes per second."""

    has: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)  # to that, since its last offer
    queue: list[str] = field(default_factory=list)  # of `has`, the next one last; may be stale
    spared: dict[str, float] = field(default_factory=dict)  # what it gave to others just now: when
    whole: bool = False  # it had all that was wanted when it said what it has
    asked: dict[str, float] = field(default_factory=dict)  # what it owes: digest -> since when
    rate: float | None = None
    failures: int = 0  # in a row
    rest_until: float = -math.inf

    def window(self) -> int:
        """Requests it may have in flight."""
        if self.failures:
            return 1
        if self.rate is None:
            return WINDOW_START
        return max(1, min(WINDOW_MAX, math.ceil(self.rate * WINDOW_SECONDS / CHUNK)))

    def seconds(self, requests: int) -> float:
        """How long it takes to deliver so many chunks; infinite while not measured."""
        return requests * CHUNK / self.rate if self.rate else math.inf

    def measure(self, rate: float) -> None:
        old = rate if self.rate is None else self.rate
        self.rate = RATE_MEMORY * old + (1 - RATE_MEMORY) * rate


class Offer(NamedTuple):
    """What a peer says it has, as far as it is wanted."""

    has: set[str]
    queue: list[str]  # the next one last
    news: bool  # whether the peer has not said all of it before


class Transfer:
    """The state of a fetch: what is wanted, who has it, who was asked for what.

    `wanted` maps digests to bytes; `salt` makes the order.
    """

    def __init__(self, wanted: Mapping[str, int], salt: bytes) -> None:
        self._sizes = dict(wanted)
        self._order = _in_own_order(wanted, salt)
        self._wanted = set(wanted)  # not stored yet
        self._pending = set(wanted)  # wanted and asked of nobody
        self._asked: dict[str, set[PeerId]] = {}  # who owes it, or has sent what is not stored yet
        self._liars: set[PeerId] = set()
        self._quiet: set[PeerId] = set()
        self.sources: dict[PeerId, Source] = {}

    @property
    def done(self) -> bool:
        return not self._wanted

    @property
    def left(self) -> int:
        """Chunks still wanted."""
        return len(self._wanted)

    @property
    def liars(self) -> frozenset[PeerId]:
        return frozenset(self._liars)

    def wants(self, digest: str) -> bool:
        return digest in self._wanted

    def offers(self, peer: PeerId, digests: Iterable[str]) -> bool:
        """What a peer says it has, all of it; is there anything new in that?"""
        return self.take(peer, self.weigh(peer, digests))

    def weigh(self, peer: PeerId, digests: Iterable[str]) -> Offer:
        """What an offer comes to, for `take`. It changes nothing and goes by small steps, so a
        thread may do it beside the event loop: of many chunks it takes long."""
        source = self.sources.get(peer)
        known = source.has if source is not None else set()
        has, queue, news = set[str](), list[str](), False
        left: Iterator[str] = iter(digests)
        while step := list(islice(left, OFFER_STEP)):
            part = self._wanted.intersection(step)
            news = news or not part <= known
            has |= part
        left = filter(has.__contains__, reversed(self._order)) if has else iter(())
        while step := list(islice(left, OFFER_STEP)):
            queue += step
        return Offer(has, queue, news)

    def take(self, peer: PeerId, offer: Offer) -> bool:
        """A peer's offer counts instead of its last one; is there anything new in it?"""
        if peer in self._liars:
            return False
        source = self.sources.setdefault(peer, Source())
        added = source.added - offer.has  # it may have said so while the offer was weighed
        source.has, source.queue, source.added = offer.has, offer.queue, set()
        source.has |= added
        source.queue += added
        source.whole = len(source.has) >= len(self._wanted)
        return offer.news

    def adds(self, peer: PeerId, digests: Iterable[str]) -> bool:
        """What has come in at a peer that made an offer; is any of it wanted?"""
        source = self.sources.get(peer)
        if source is None or peer in self._liars:
            return False
        fresh = [d for d in digests if self.wants(d) and d not in source.has]
        source.has.update(fresh)
        source.added.update(fresh)
        source.queue += fresh
        return bool(fresh)

    def _holders(self, digest: str) -> int:
        """Sources that have a chunk."""
        return sum([digest in source.has for source in self.sources.values()])

    def is_rare(self, digest: str) -> bool:
        """Whether one peer alone is known to have it."""
        return self._holders(digest) <= 1

    def spare(self, peer: PeerId, digest: str) -> bool:
        """Whether to let the peer put this off, for others who lack it as well."""
        source = self.sources[peer]
        return (source.whole or self.is_rare(digest)) and digest not in source.spared

    def given(self, peer: PeerId, digest: str, now: float) -> None:
        """The peer gave it to another getter just now, and would rather give something else."""
        self.sources[peer].spared[digest] = now
        self.abandoned(peer, digest)

    def has_all(self, peer: PeerId) -> bool:
        """Did the peer offer everything that is still wanted?"""
        source = self.sources.get(peer)
        return source is not None and (source.whole or self._pending <= source.has)

    def delivered(self, peer: PeerId) -> bool:
        """Did the peer ever send a chunk, and the right bytes?"""
        source = self.sources.get(peer)
        return source is not None and source.rate is not None

    def choose(self, now: float) -> tuple[PeerId, str] | None:
        """The next request to send; it counts as sent."""
        if sum(map(len, self._asked.values())) >= IN_FLIGHT:
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
                self._asked.setdefault(digest, set()).add(peer)
                source.asked[digest] = now
                return peer, digest
        return None

    def _next_pending(self, source: Source, now: float) -> str | None:
        """Among the next few, the one that the fewest have; stale entries are dropped."""
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
            rank = self._holders(digest)
            if best is None or rank < best:
                best, place = rank, index
            if looked == RARE_AMONG or best == 1:
                break
        if best is None or self._is_too_slow(source, queue[place]):
            return None
        return queue.pop(place)

    def _is_too_slow(self, source: Source, digest: str) -> bool:
        """Whether others that have a chunk would bring all that is left, and this chunk, sooner
        than this one would. The fastest of those that have it never is."""
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

    def _late(self, peer: PeerId, source: Source, now: float) -> str | None:
        """The chunk that others owe for the longest and this peer would bring sooner."""
        own = source.seconds(len(source.asked) + 1)
        worst, found = STEAL_FACTOR * own, None
        for digest, peers in self._asked.items():
            if peer in peers or len(peers) >= COPIES_MAX or digest not in source.has:
                continue
            wait = min(self._remaining(self.sources[other], digest, now) for other in peers)
            if wait > worst:
                worst, found = wait, digest
        return found

    @staticmethod
    def _remaining(source: Source, digest: str, now: float) -> float:
        """Seconds until a chunk asked for may come: what its peer's rate says, and where that
        is over or unknown, as long again as it took so far."""
        asked = source.asked.get(digest)
        if asked is None:
            return 0.0  # it has come, and is being stored
        elapsed = now - asked
        if elapsed < STEAL_AFTER:
            return 0.0
        expected = source.seconds(len(source.asked)) - elapsed
        return expected if 0 < expected < math.inf else elapsed

    def timeout(self, peer: PeerId) -> float:
        """Seconds a request to this peer may take."""
        source = self.sources[peer]
        if source.rate is None:
            return min(CHUNK_TIMEOUT * 2.0**source.failures, CHUNK_TIMEOUT_MAX)
        limit = TIMEOUT_FACTOR * source.seconds(len(source.asked) + 1) * 2.0**source.failures
        return min(max(limit, CHUNK_TIMEOUT_MIN), CHUNK_TIMEOUT_MAX)

    def received(self, peer: PeerId, digest: str, now: float) -> None:
        """It has come, so the peer owes one less; whether it is right is still to be seen. One
        that never sent the right bytes owes it until then, and is asked for no more."""
        if self.sources[peer].rate is not None:
            self._received(self.sources[peer], digest, now)

    def _received(self, source: Source, digest: str, now: float) -> None:
        together = len(source.asked)
        asked = source.asked.pop(digest, None)
        if asked is not None:
            source.measure(self._sizes[digest] * together / max(now - asked, 1e-6))
            source.failures = 0

    def arrived(self, peer: PeerId, digest: str, now: float) -> set[PeerId]:
        """A verified chunk is stored; the peers whose copies are no longer needed."""
        self._received(self.sources[peer], digest, now)
        self._wanted.discard(digest)
        self._pending.discard(digest)
        return self._asked.pop(digest, set()) - {peer}

    def abandoned(self, peer: PeerId, digest: str) -> None:
        """A request ended without a chunk; it is wanted again unless another peer was asked."""
        self.sources[peer].asked.pop(digest, None)
        peers = self._asked.get(digest)
        if peers is None:
            return
        peers.discard(peer)
        if not peers:
            del self._asked[digest]
            self._pending.add(digest)
            for source in self.sources.values():
                if digest in source.has:
                    source.queue.append(digest)

    def absent(self, peer: PeerId, digest: str) -> None:
        """The peer turned out not to hold a chunk."""
        source = self.sources[peer]
        source.has.discard(digest)
        source.whole = False
        self.abandoned(peer, digest)

    def failed(self, peer: PeerId, digest: str, now: float) -> None:
        """A timeout, a refusal or a lost link: the peer is left alone for a while."""
        source = self.sources[peer]
        source.rest_until = now + min(BACKOFF_START * 2**source.failures, BACKOFF_MAX)
        source.failures = min(source.failures + 1, 16)
        self.abandoned(peer, digest)

    def quiet(self, peer: PeerId) -> list[str]:
        """The peer is not heard of: nothing is asked of it until it is `back`, and it is none the
        worse for it. Its open requests, which are wanted of others now."""
        self._quiet.add(peer)
        source = self.sources.get(peer)
        open_requests = list(source.asked) if source is not None else []
        for digest in open_requests:
            self.abandoned(peer, digest)
        return open_requests

    def back(self, peer: PeerId) -> None:
        """It may be asked again, and for what it has said that it has."""
        self._quiet.discard(peer)

    def lied(self, peer: PeerId) -> list[str]:
        """Other bytes than asked for: never ask this peer again. Its open requests."""
        self._liars.add(peer)
        source = self.sources[peer]
        source.has, source.queue = set(), []
        open_requests = list(source.asked)
        for digest in open_requests:
            self.abandoned(peer, digest)
        return open_requests


def _in_own_order(digests: Iterable[str], salt: bytes) -> list[str]:
    """By the SHA-256 of salt and digest. Sorted bucket by bucket: one sort of all would hold up
    the event loop even from a thread."""
    buckets: list[list[tuple[bytes, str]]] = [[] for _ in range(256)]
    for digest in digests:
        rank = hashlib.sha256(salt + bytes.fromhex(digest)).digest()
        buckets[rank[0]].append((rank, digest))
    return [digest for bucket in buckets for _, digest in sorted(bucket)]
