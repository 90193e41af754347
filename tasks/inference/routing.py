"""Chooses the chain of shards that answers a request. Pure functions.

Every stage computes its whole published shard, as the engine does. Each shard in a chain must
therefore begin exactly where the previous one ends.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ...state.membership.record import MemberRecord, ShardRecord
from ...transport.identity import PeerId
from ..defaults import MAX_STAGES
from ..engine.families import DTYPE_BYTES
from ..engine.interface import Parts
from ..errors import NoRoute
from ..placement.holes import holes_of, missing_sentence

Members = Mapping[PeerId, MemberRecord]
# (hops to avoid, all hops, hops on other nodes, order that depends on the session)
_Cost = tuple[int, int, int, bytes]


@dataclass(frozen=True, slots=True)
class Hop:
    """A stage of a chain: its peer, and the shard that it computes."""

    peer: PeerId
    parts: Parts
    dtype: str


@dataclass(frozen=True, slots=True)
class Preference:
    """Criteria for the choice among several chains that can answer.

    Chains with fewer peers in `avoid` come first, even if they are longer, then those with fewer
    hops. Ties go to chains with more hops on the peer `own`, then to an order that depends on
    `session`, so that sessions spread over replicas.
    """

    own: PeerId | None = None
    session: bytes = b""
    avoid: Collection[PeerId] = ()


def find_route(
    members: Members,
    root: str,
    layers: int,
    tokens: int,
    prefer: Preference = Preference(),
    *,
    answer: int = 0,
) -> tuple[Hop, ...]:
    """Return the preferred chain whose stages all have free KV for `tokens` positions.

    Of these positions, `answer` are for tokens that are still to be generated. All stages compute
    in one dtype. Raises NoRoute, whose message says what is missing.
    """
    chain = _best_chain(members, root, layers, tokens, prefer)
    if chain is None:
        raise _no_route(members, root, layers, tokens, answer)
    return chain


def largest_room(members: Members, root: str, layers: int) -> int | None:
    """Return how many positions the chain with the most free KV can hold.

    The positions are for prompt and answer together. Returns None if no chain covers the model.
    Visits each shard once (widest path), because hostile members may publish thousands.
    """
    by_dtype: dict[str, list[ShardRecord]] = {}
    for record in members.values():
        for shard in record.shards:
            if shard.root == root and shard.stop <= layers and shard.dtype in DTYPE_BYTES:
                by_dtype.setdefault(shard.dtype, []).append(shard)
    rooms = [_widest(shards, layers) for shards in by_dtype.values()]
    return max((room for room in rooms if room is not None), default=None)


def _widest(shards: list[ShardRecord], layers: int) -> int | None:
    """Return the most positions for which all shards of some chain have free KV, or None without a
    chain.

    Among partial chains with equal room, the one with the fewest shards is extended. Chains have at
    most MAX_STAGES shards.
    """
    best: dict[int, tuple[int, int]] = {}  # (free KV, minus the number of shards)
    finished: int | None = None
    for shard in sorted(shards, key=lambda shard: (shard.start, shard.stop)):
        room, stages = shard.kv_tokens_free, -1
        if shard.start:
            before = best.get(shard.start)
            if before is None or -before[1] >= MAX_STAGES:
                continue
            room, stages = min(room, before[0]), before[1] - 1
        elif not shard.embedding:
            continue
        if shard.stop < layers:
            best[shard.stop] = max((room, stages), best.get(shard.stop, (room, stages)))
        elif shard.head:
            finished = max(room, finished or 0)
    return finished


def _best_chain(
    members: Members, root: str, layers: int, tokens: int, prefer: Preference
) -> tuple[Hop, ...] | None:
    """Return the preferred chain among those of all dtypes, or None if there is none."""
    shards = list(_shards(members, root, layers, tokens))
    chains = [
        chain
        for dtype in sorted({hop.dtype for hop in shards})
        if (chain := _chain([h for h in shards if h.dtype == dtype], layers, prefer))
    ]
    return min(chains, key=lambda chain: chain[0])[1] if chains else None


def _shards(members: Members, root: str, layers: int, tokens: int) -> Iterator[Hop]:
    """Yield the shards of the model that have free KV for `tokens` positions."""
    for peer, record in members.items():
        for shard in record.shards:
            fits = shard.stop <= layers and shard.kv_tokens_free >= tokens
            if shard.root == root and fits and shard.dtype in DTYPE_BYTES:
                yield Hop(peer, _parts(shard), shard.dtype)


def _parts(shard: ShardRecord) -> Parts:
    return Parts(shard.embedding, shard.start, shard.stop, shard.head)


def _chain(
    hops: list[Hop], layers: int, prefer: Preference
) -> tuple[_Cost, tuple[Hop, ...]] | None:
    """Return (cost, chain) for the cheapest chain, or None if there is none.

    Finds the shortest path over layer boundaries in one pass, because every hop leads forward. The
    first hop must have the embedding, and the last hop the head.
    """
    best: dict[int, tuple[_Cost, tuple[Hop, ...]]] = {0: ((0, 0, 0, b""), ())}
    finished: list[tuple[_Cost, tuple[Hop, ...]]] = []
    for hop in sorted(hops, key=lambda hop: (hop.parts.start, hop.parts.stop)):
        before = best.get(hop.parts.start)
        if before is None or (hop.parts.start == 0 and not hop.parts.embedding):
            continue
        if len(before[1]) >= MAX_STAGES:
            continue  # stages refuse longer chains
        (avoided, count, others, order), chain = before
        cost = (
            avoided + (hop.peer in prefer.avoid),
            count + 1,
            others + (hop.peer != prefer.own),
            order + _order(prefer.session, hop.peer),
        )
        if hop.parts.stop == layers:
            if hop.parts.head:
                finished.append((cost, (*chain, hop)))
        elif hop.parts.stop not in best or cost < best[hop.parts.stop][0]:
            best[hop.parts.stop] = (cost, (*chain, hop))
    return min(finished, key=lambda found: found[0], default=None)


def _order(session: bytes, peer: PeerId) -> bytes:
    """Return a sort key for a peer that differs from session to session."""
    return hashlib.sha256(session + peer.encode()).digest()[:8]


def _no_route(members: Members, root: str, layers: int, tokens: int, answer: int) -> NoRoute:
    holes = holes_of(members, root, layers)
    if not holes:
        return _too_small(largest_room(members, root, layers), tokens - answer, answer)
    return NoRoute(
        missing_sentence(members, root, layers, holes),
        hint="start a node for them: `shoal node --model NAME`, with `--memory SIZE` to offer more",
    )


def _too_small(room: int | None, prompt: int, answer: int) -> NoRoute:
    """Create the error for a request that fits on no chain although all layers are served.

    `room` is the largest number of positions that fit, or None if no chain covers the model.
    """
    if room is None:
        return NoRoute(
            "every layer is served, but no shards join into a chain",
            hint="`shoal peers` shows which node serves which layers; start one more",
        )
    if room <= 1:
        return NoRoute(
            "every layer is served, but the memory of the nodes is full of other requests",
            hint="try again in a moment; `shoal peers` shows the room of each node",
        )
    spare, most = room - answer, room - 1
    largest = f"{spare} tokens" if spare > 0 else f"{most} tokens, with `--max-tokens 1`"
    shorter = f"`--max-tokens {room - prompt}` fits beside this prompt" if room > prompt else (
        f"shorten the prompt; with its answer (`--max-tokens N`) it may take {room} tokens"
    )  # fmt: skip
    return NoRoute(
        f"no chain of nodes has room for a prompt of {prompt} tokens and an answer of up to "
        f"{answer}: the largest prompt that fits now has {largest}",
        hint=shorter,
    )
