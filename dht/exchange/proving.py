"""Proof of replicas: challenges peers that claim to have a content before it is evicted here.

A peer is asked for some chunks, chosen at random among those stored here. A peer that sends them
all very likely has the whole content. While the check runs, this node serves no chunk of the
content. A peer therefore cannot pass the check by fetching the chunks from here, and two nodes
cannot both evict a content because each relies on the other. Replicas in the same network (/24 or
/48) count as one.
"""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar

import trio

from ...transport.errors import TransportError
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ...transport.link.link import Link
from .. import defaults
from ..content.content import Content
from ..content.library import Library
from ..errors import ModelError
from ..records.contact import met_at

T = TypeVar("T")


class Proving:
    """Challenges of replicas.

    `connect` opens a link to a peer; it raises TransportError if it fails.
    """

    def __init__(
        self,
        host: Host,
        library: Library,
        *,
        connect: Callable[[PeerId], Awaitable[Link]],
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard or Guard()
        self._host = host
        self._library = library
        self._connect = connect

    async def networks(self, root: str, claimed: Collection[PeerId]) -> int:
        """Challenge peers, and return in how many networks at least one has proven its replica.

        `claimed` are the peers that claim to have a replica. The challenges end once
        `PROOF_NETWORKS` networks are proven. This node does not serve the content until `finish` is
        called.
        """
        try:
            content = await self._library.content(root)
        except ModelError:
            return 0
        self._library.withheld[root] = content.chunks
        here = await self._host.offload(self._here, content)
        proof = _Proof(
            self._drawn(here, defaults.PROOF_CHUNKS),
            self._drawn(sorted(claimed), defaults.PROOF_ASKED),
        )
        with trio.move_on_after(defaults.PROOF_S):
            async with trio.open_nursery() as nursery:
                for _ in range(defaults.PROOFS_AT_ONCE):
                    nursery.start_soon(self._ask_on, proof)
        return len(proof.proven)

    def _here(self, content: Content) -> list[str]:
        """Return the chunks of a content that are stored here. Blocking."""
        return [digest for digest in content.chunks if self._library.store.has(digest)]

    def _drawn(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` items chosen at random, or all in random order if there are fewer."""
        drawn: dict[int, None] = {}
        while len(drawn) < min(count, len(items)):
            drawn[int.from_bytes(self._host.entropy(8)) % len(items)] = None
        return [items[index] for index in drawn]

    def finish(self) -> None:
        """Serve all content again, after the decision about the eviction."""
        self._library.withheld.clear()

    async def _ask_on(self, proof: "_Proof") -> None:
        """Challenge waiting peers, one after the other, until enough networks are proven."""
        while proof.waiting and len(proof.proven) < defaults.PROOF_NETWORKS:
            peer = proof.waiting.pop()
            with self._guard.around(peer), suppress(TransportError):
                link = await self._connect(peer)
                ip = link.address[0]
                name = met_at(ip) or ip
                if proof.worth_asking(name) and await self._has(link, proof.digests):
                    proof.proven.add(name)

    async def _has(self, link: Link, digests: Sequence[str]) -> bool:
        """Return whether a peer sends all of these chunks with the right bytes.

        Raises TransportError if a request fails.
        """
        for digest in digests:
            reply = await link.call(
                "blob.chunk",
                {"digest": digest},
                priority=Priority.BULK,
                timeout=defaults.PROOF_CHUNK_S,
            )
            if not await self._host.offload(_is, reply.payload, digest):
                return False
        return True


class _Proof:
    """State of the check of one content.

    `digests` are the chunks that each peer must send, `waiting` the peers that were not asked yet,
    and `proven` the networks with a proven replica.
    """

    def __init__(self, digests: list[str], waiting: list[PeerId]) -> None:
        self.digests = digests
        self.waiting = waiting
        self.proven: set[str] = set()
        self._asked: Counter[str] = Counter()

    def worth_asking(self, name: str) -> bool:
        """Register a further peer of the network `name`, and return whether to challenge it.

        Returns False if the network is already proven, or if `PROOF_OF_NETWORK` peers of the
        network were registered before.
        """
        self._asked[name] += 1
        return name not in self.proven and self._asked[name] <= defaults.PROOF_OF_NETWORK


def _is(data: bytes | bytearray | memoryview, digest: str) -> bool:
    """Return whether `digest` is the SHA-256 of the data."""
    return hashlib.sha256(data).hexdigest() == digest
