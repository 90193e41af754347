"""Which members answer a request: a chain of shards over all layers. Pure functions.

A session runs every stage's whole published shard (the engine's spans do), so shards are joined
exactly where one ends and the next begins; one is never entered in its middle.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ..state.record import MemberRecord, ShardRecord
from ..transport.identity import PeerId
from .engine.families import DTYPE_BYTES
from .engine.interface import Parts
from .errors import NoRoute
from .placement import holes_of, missing_sentence

Members = Mapping[PeerId, MemberRecord]
# Hops to avoid, hops, hops that are not our own, a random order by session.
_Cost = tuple[int, int, int, bytes]


@dataclass(frozen=True, slots=True)
class Hop:
    """One stage of a chain: who, and the shard it runs."""

    peer: PeerId
    parts: Parts
    dtype: str


def find_route(
    members: Members,
    root: str,
    layers: int,
    tokens: int,
    *,
    own: PeerId | None = None,
    session: bytes = b"",
    avoid: Collection[PeerId] = (),
) -> tuple[Hop, ...]:
    """The chain with the fewest hops whose stages have KV for `tokens` positions.

    One with fewer peers to `avoid` comes first, however long it is. Ties go to `own`, then to
    an order that depends on `session`, so that sessions spread over replicas. All stages
    compute in one dtype. Raises NoRoute, which says what is missing.
    """
    shards = list(_shards(members, root, layers, tokens))
    chains = [
        chain
        for dtype in sorted({hop.dtype for hop in shards})
        if (chain := _chain([h for h in shards if h.dtype == dtype], layers, own, session, avoid))
    ]
    if not chains:
        raise _no_route(members, root, layers, tokens)
    return min(chains, key=lambda chain: chain[0])[1]


def _shards(members: Members, root: str, layers: int, tokens: int) -> Iterator[Hop]:
    for peer, record in members.items():
        for shard in record.shards:
            fits = shard.stop <= layers and shard.kv_tokens_free >= tokens
            if shard.root == root and fits and shard.dtype in DTYPE_BYTES:
                yield Hop(peer, _parts(shard), shard.dtype)


def _parts(shard: ShardRecord) -> Parts:
    return Parts(shard.embedding, shard.start, shard.stop, shard.head)


def _chain(
    hops: list[Hop], layers: int, own: PeerId | None, session: bytes, avoid: Collection[PeerId]
) -> tuple[_Cost, tuple[Hop, ...]] | None:
    """The cheapest chain, layer boundary by layer boundary (a shortest path: every hop moves on).

    The embedding must be at the first hop, the head at the last.
    """
    best: dict[int, tuple[_Cost, tuple[Hop, ...]]] = {0: ((0, 0, 0, b""), ())}
    finished: list[tuple[_Cost, tuple[Hop, ...]]] = []
    for hop in sorted(hops, key=lambda hop: (hop.parts.start, hop.parts.stop)):
        before = best.get(hop.parts.start)
        if before is None or (hop.parts.start == 0 and not hop.parts.embedding):
            continue
        if any(earlier.peer == hop.peer for earlier in before[1]):
            continue  # a peer stands once in a chain
        (avoided, count, others, order), chain = before
        cost = (
            avoided + (hop.peer in avoid),
            count + 1,
            others + (hop.peer != own),
            order + _order(session, hop.peer),
        )
        if hop.parts.stop == layers:
            if hop.parts.head:
                finished.append((cost, (*chain, hop)))
        elif hop.parts.stop not in best or cost < best[hop.parts.stop][0]:
            best[hop.parts.stop] = (cost, (*chain, hop))
    return min(finished, key=lambda found: found[0], default=None)


def _order(session: bytes, peer: PeerId) -> bytes:
    return hashlib.sha256(session + peer.encode()).digest()[:8]


def _no_route(members: Members, root: str, layers: int, tokens: int) -> NoRoute:
    holes = holes_of(members, root, layers)
    if not holes:
        return NoRoute(
            f"every layer is served, but no chain of nodes has room for {tokens} tokens "
            "or fits together layer to layer",
            hint="try again later, with a shorter text, or see `shoal peers`",
        )
    return NoRoute(
        missing_sentence(members, root, layers, holes),
        hint="start a node for them: `shoal node --model NAME`, with `--memory SIZE` to offer more",
    )
