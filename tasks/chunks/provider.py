"""Serves `kv.part`: parts of cached chunks, to peers that prove that they know the chunk's name."""

import hmac
from collections import Counter
from typing import Protocol

from ...transport.decoding import typed
from ...transport.errors import Undecodable
from ...transport.host.seam import Host
from ...transport.identity import Identity, PeerId
from ...transport.lane.frame import Priority
from ...transport.link.calls import Answer, Call, Handler, Refusal, Reply
from ...transport.rates import Rate, Rates
from ..defaults import CHUNK_REFUSALS, PARTS_GIVEN, PARTS_GIVEN_TO_ONE
from ..engine.errors import EngineError
from ..engine.interface import Engine
from .messages import AskPart, PartSent
from .naming import CHUNK, proof_of, sign_part
from .store import SharedChunks, StoredChunk

_UNKNOWN = Refusal("unknown-chunk", "this node does not have that chunk for you")


class Switchboard(Protocol):
    """The part of an `Endpoint` that the provider uses."""

    def handle(self, method: str, handler: Handler) -> None: ...


class ChunkProvider:
    """Server of the chunks in `store`, which `engine` has cached."""

    def __init__(
        self, host: Host, endpoint: Switchboard, identity: Identity, store: SharedChunks,
        engine: Engine,
    ) -> None:  # fmt: skip
        self._host = host
        self._identity = identity
        self.store = store
        self._engine = engine
        self.giving: Counter[PeerId] = Counter()
        self._refused = Rates(Rate(*CHUNK_REFUSALS))
        self.given_bytes = 0
        """Bytes of parts that were given to peers since the start."""
        endpoint.handle("kv.part", self._on_part)

    async def _on_part(self, call: Call) -> Answer:
        """Answer `kv.part` with a signed part of a chunk."""
        try:
            asked = typed(AskPart, call.header)
        except Undecodable as error:
            return Refusal("bad-request", f"expected a part of a chunk: {error}")
        busy = self.giving.total() >= PARTS_GIVEN
        if busy or self.giving[call.peer] >= PARTS_GIVEN_TO_ONE:
            return Refusal("busy", "this node gives as many parts as it can")
        stored = self._known(call.peer, asked)
        if stored is None:
            return self._unknown(call.peer)
        self.giving[call.peer] += 1
        try:
            return await self._give(asked, stored)
        finally:
            self.giving[call.peer] -= 1
            if not self.giving[call.peer]:
                del self.giving[call.peer]

    def _known(self, peer: PeerId, asked: AskPart) -> StoredChunk | None:
        """Return the chunk, unless it is not here, or the peer does not know its name.

        Both look the same to the peer, so it does not learn which chunks are here.
        """
        stored = self.store.find(asked.tag)
        if stored is None:
            return None
        proof = proof_of(stored.name, peer, self._identity.peer)
        return stored if hmac.compare_digest(proof, asked.proof) else None

    def _unknown(self, peer: PeerId) -> Refusal:
        """Refuse a chunk. A peer that asks for many that it cannot have is told to wait."""
        if not self._refused.take(peer, self._host.now()):
            return Refusal("busy", "too many requests for chunks that are not here")
        return _UNKNOWN

    async def _give(self, asked: AskPart, stored: StoredChunk) -> Answer:
        part, end = asked.part, stored.start + CHUNK
        if not stored.start <= part.start < part.stop <= end:
            return Refusal("bad-request", f"the chunk has the positions {stored.start} to {end}")
        blocks = stored.blocks(part.start, part.stop)
        try:
            data = await self._engine.read_kv(blocks, part, asked.form)
        except EngineError as error:
            if error.code != "bad-state":
                return Refusal("busy", error.message)
            if asked.form == "int8":  # not cached in any form: evicted since then
                self.store.forget(asked.tag)
            return _UNKNOWN
        signature = sign_part(self._identity, asked.tag, data)
        self.given_bytes += len(data)
        return Reply(PartSent(signature).fields(), data, Priority.BULK)
