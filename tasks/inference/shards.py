"""The shards of members that can answer a request, and the error if none can. Pure functions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...state.membership.record import MemberRecord, ShardRecord
from ...transport.identity import PeerId
from ..defaults import MAX_STAGES
from ..engine.families import DTYPE_BYTES
from ..engine.interface import Parts
from ..errors import NoRoute
from ..placement.holes import holes_of, missing_sentence
from ..routing.defaults import LINK_S, SHARDS_LOOKED, SHARDS_OF_PEER
from ..routing.paths import Hop, HopTimes, Search, StageCost

Members = Mapping[PeerId, MemberRecord]


@dataclass(frozen=True, slots=True)
class Preference:
    """Criteria for the choice among several chains, if nothing is known of the stages' speed.

    Chains with fewer peers in `avoid` come first, even if they are longer, then those with fewer
    hops. Ties go to chains with more hops on the peer `own`, then to an order that depends on
    `session`, so that sessions spread over replicas.
    """

    own: PeerId | None = None
    session: bytes = b""
    avoid: Collection[PeerId] = ()


@dataclass(frozen=True, slots=True)
class _EqualCosts:
    """Costs by which all layers are equally fast, and all other peers equally far away."""

    own: PeerId | None

    def stage(self, hop: Hop) -> StageCost:
        return StageCost(0.0, 0.0, 0.0, 0.005 + 0.001 * (hop.parts.stop - hop.parts.start))

    def link(self, one: PeerId | None, other: PeerId) -> float:
        return 0.0 if other == (self.own if one is None else one) else LINK_S

    def hop_times(self, one: PeerId | None, hop: Hop) -> HopTimes:
        return HopTimes(self.link(one, hop.peer) / 2, 0.0, 0.0, 0.0)

    def opening(self, peer: PeerId) -> float:
        return 0.0


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
    costs = _EqualCosts(prefer.own)
    search = Search(layers, costs, prefer.session, frozenset(prefer.avoid))
    chain = search.best(shards_of(members, root, layers, tokens))
    if chain is None:
        raise no_route(members, root, layers, tokens, answer)
    return chain


def shards_of(members: Members, root: str, layers: int, tokens: int) -> list[Hop]:
    """Return the shards of a model that have free KV for `tokens` positions.

    Of each peer at most SHARDS_OF_PEER, and at most SHARDS_LOOKED in all, because hostile members
    may publish thousands, and the choice among 512 takes about 20 ms.
    """
    found: list[Hop] = []
    for peer, record in members.items():
        hops = (
            Hop(peer, parts_of(shard), shard.dtype)
            for shard in record.shards
            if shard.root == root
            and shard.stop <= layers
            and shard.kv_tokens_free >= tokens
            and shard.dtype in DTYPE_BYTES
        )
        found += [hop for hop, _ in zip(hops, range(SHARDS_OF_PEER), strict=False)]
    # Some of all members, and not the first ones, which may all be one attacker's.
    return found[:: -(-len(found) // SHARDS_LOOKED) or 1]


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


def parts_of(shard: ShardRecord) -> Parts:
    """Return the parts of a model that a shard has."""
    return Parts(shard.embedding, shard.start, shard.stop, shard.head)


def no_route(members: Members, root: str, layers: int, tokens: int, answer: int) -> NoRoute:
    """Return the error of a request for `tokens` positions that no chain can answer."""
    holes = holes_of(members, root, layers)
    if not holes:
        return _too_small(largest_room(members, root, layers), tokens - answer, answer)
    start = "start a node for them: `shoal node --model NAME`, with `--memory SIZE` to offer more"
    comes = any(
        record.aim_at(root) and all(shard.root != root for shard in record.shards)
        for record in members.values()
    )
    return NoRoute(
        missing_sentence(members, root, layers, holes),
        hint=f"a node will soon serve some: try again in a moment, or {start}" if comes else start,
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
