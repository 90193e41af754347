"""Server side of the exchange: tells peers which content this node has, and sends it to them.

Methods and limits: docs/spec/blob.md. If this node is the only provider of a content, it sends each
chunk once before it sends any chunk twice. Every byte that it uploads in this phase is then new to
the swarm.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import trio
from msgspec import Meta

from ...transport.decoding import typed
from ...transport.errors import CallRefused, LinkClosed, Undecodable
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ...transport.link.calls import Answer, Call, Refusal, Reply
from ...transport.message import Message, Root
from ...transport.rates import Rate, Rates
from ..content.content import Content
from ..content.library import Library
from ..content.ranges import pack_indexes, pack_ranges
from ..defaults import (
    GIVEN_FOR,
    GIVEN_ROOTS,
    HAVE_AGE,
    HAVE_RATE,
    MANIFEST_LIMIT,
    MANIFEST_PIECE,
    SERVE_AT_ONCE,
    SERVE_WAITING,
    WATCH_FOR,
    WATCHERS,
    WATCHES_OF_PEER,
)
from ..errors import ChunkCorrupt, ChunkMissing, ModelError
from .switchboard import Switchboard


@dataclass(slots=True)
class _Guest:
    """A peer that requests chunks.

    `requests` is the number of its pending requests, and `gate` limits the concurrent disk reads
    for it.
    """

    requests: int = 0
    gate: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(SERVE_AT_ONCE))


class _AskPiece(Message, frozen=True):
    """Header of `model.manifest`."""

    root: Root
    offset: Annotated[int, Meta(ge=0, le=MANIFEST_LIMIT)] = 0  # bytes


class _AskHave(Message, frozen=True):
    """Header of `blob.have`."""

    root: Root
    watch: bool = False  # whether the peer wants to be notified of new chunks


class _AskChunk(Message, frozen=True):
    """Header of `blob.chunk`."""

    digest: Root
    # The root of the content if this node may refuse with the code `given`. The peer then requests
    # another chunk, which no peer has received yet.
    spare: Root | None = None


class Provider:
    """Server of the content in `library`. Requests of the peers of `endpoint` are answered."""

    def __init__(self, host: Host, endpoint: Switchboard, library: Library) -> None:
        self._host = host
        self._endpoint = endpoint
        self._library = library
        self._guests: dict[PeerId, _Guest] = {}
        # root -> (time, packed ranges): the cached replies to `blob.have`
        self._have: dict[str, tuple[float, bytes]] = {}
        self._asked = Rates(Rate(*HAVE_RATE))
        self._counting = trio.Lock()  # limits the scans of the chunk store to one at a time
        self.watchers: dict[str, dict[PeerId, float]] = {}  # root -> peer -> end of its watch
        # root -> digest -> the peer that received the chunk last, and when
        self.given: OrderedDict[str, dict[str, tuple[PeerId, float]]] = OrderedDict()
        endpoint.handle("model.manifest", self._serve_manifest)
        endpoint.handle("blob.have", self._serve_have)
        endpoint.handle("blob.chunk", self.serve_chunk)

    async def _serve_manifest(self, call: Call) -> Answer:
        """Answer `model.manifest` with a piece of the manifest, and its total size in bytes."""
        try:
            asked = typed(_AskPiece, call.header)
        except Undecodable:
            return Refusal("bad-request", "expected a root and an offset")
        if asked.root not in self._library.roots():
            return Refusal("unknown-model", "this node does not have the model")
        piece, size = await self._library.manifest_piece(asked.root, asked.offset, MANIFEST_PIECE)
        return Reply({"size": size}, piece)

    # Which chunks are here.

    async def _serve_have(self, call: Call) -> Answer:
        """Answer `blob.have` with the ranges of the stored chunks.

        If the peer wants to be notified of new chunks, it is registered.
        """
        try:
            asked = typed(_AskHave, call.header)
        except Undecodable:
            return Refusal("bad-request", "expected a root")
        if not self._library.knows(asked.root):
            return Refusal("unknown-root", "this node does not have the model or blob")
        if not self._asked.take(call.peer, self._host.now()):
            return Refusal("busy", "too many `blob.have` calls")
        watching = asked.watch and self._watch(asked.root, call.peer)
        return Reply({"watching": watching}, await self._held(asked.root))

    async def _held(self, root: str) -> bytes:
        """Return the packed ranges of the chunks stored here.

        They are at most `HAVE_AGE` seconds old.
        """
        self._library.usage.note_used(root)
        async with self._counting:
            known = self._have.get(root)
            if known is None or self._host.now() - known[0] > HAVE_AGE:
                content = await self._library.content(root)
                ranges = await self._host.offload(self.ranges, content)
                self._have[root] = known = self._host.now(), ranges
            return known[1]

    def ranges(self, content: Content) -> bytes:
        """Scan the chunk store for the chunks of a content, and return the packed ranges.

        Blocking.
        """
        return pack_ranges(self._library.store.has(digest) for digest in content.order)

    def _watch(self, root: str, peer: PeerId) -> bool:
        """Register a peer for notifications of new chunks. Return False if there are too many."""
        now = self._host.now()
        watchers = self.watchers.setdefault(root, {})
        for other in [other for other, until in watchers.items() if until <= now]:
            del watchers[other]
        elsewhere = sum(peer in found for found in self.watchers.values())
        if peer not in watchers and (len(watchers) >= WATCHERS or elsewhere >= WATCHES_OF_PEER):
            return False
        watchers[peer] = now + WATCH_FOR
        return True

    def notify(self, content: Content, digests: Iterable[str]) -> None:
        """Notify the peers that watch a content of new chunks."""
        self._have.pop(content.root, None)
        watchers = self.watchers.get(content.root, {})
        if not watchers:
            return
        payload = pack_indexes(sorted(content.index[digest] for digest in digests))
        now = self._host.now()
        for peer, until in list(watchers.items()):
            link = self._endpoint.link(peer)
            if link is None or until <= now:
                del watchers[peer]
                continue
            try:
                link.post("blob.news", {"root": content.root}, payload, priority=Priority.CONTROL)
            except (CallRefused, LinkClosed):
                del watchers[peer]
        if not watchers:
            self.watchers.pop(content.root, None)

    # Serving chunks.

    async def serve_chunk(self, call: Call) -> Answer:
        """Answer `blob.chunk` with the bytes of a chunk."""
        try:
            asked = typed(_AskChunk, call.header)
        except Undecodable:
            return Refusal("bad-request", "expected a digest")
        digest, root = asked.digest, asked.spare
        if root is not None and await self._is_spared(root, digest, call.peer):
            return Refusal("given", "this node has just given the chunk to another peer")
        if any(digest in chunks for chunks in self._library.withheld.values()):
            return Refusal("busy", "the chunk may be evicted here")
        guest = self._guests.setdefault(call.peer, _Guest())
        if guest.requests >= SERVE_WAITING:
            return Refusal("busy", "too many open chunk requests")
        guest.requests += 1
        try:
            async with guest.gate:
                store = self._library.store
                data = await self._host.offload(store.get_to_serve, str(digest), self._host.now())
        except (ChunkMissing, ChunkCorrupt):
            return Refusal("not-held", "this node does not have the chunk")
        finally:
            guest.requests -= 1
            if not guest.requests:
                self._guests.pop(call.peer, None)
        return Reply({}, data)

    async def _is_spared(self, root: str, digest: str, peer: PeerId) -> bool:
        """Return whether to refuse a chunk because it was just given to another peer.

        After the refusal, `peer` requests a chunk that no peer has received from here. A peer
        allows such a refusal only if it knows no other provider of the chunk, or if this node has
        all chunks. If the chunk is not refused, this method records that `peer` received it.
        """
        if not self._library.knows(root):
            return False
        try:
            content = await self._library.content(root)
        except ModelError:
            return False
        if digest not in content.chunks:
            return False
        given = self.given.setdefault(root, {})
        self.given.move_to_end(root)
        while len(self.given) > GIVEN_ROOTS:
            self.given.popitem(last=False)
        other, when = given.get(digest, (peer, 0.0))
        recent = other != peer and self._host.now() - when < GIVEN_FOR
        if recent and len(given) < len(content.chunks):
            return True
        given[digest] = peer, self._host.now()
        return False
