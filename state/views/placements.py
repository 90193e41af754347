"""View of shards: which members serve which layers of which models."""

from collections.abc import Iterable, Mapping

from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadFact
from ..feeds.entry import FeedName
from ..feeds.kinds import KINDS, part_of_root
from ..membership.record import UNKNOWN_COSTS, ShardRecord
from .fields import read_each, read_rate, read_root, read_text, read_whole
from .view import View

Serving = Mapping[PeerId, tuple[ShardRecord, ...]]


class Placements(View[str, ShardRecord, Serving]):
    """Shards by the root of their model and by the member that serves them."""

    kinds = ("shards",)

    def __init__(self) -> None:
        super().__init__()
        self._by_root: dict[str, dict[PeerId, tuple[ShardRecord, ...]]] = {}

    def get(self, subject: str) -> Serving | None:
        """Return the shards of a model by member, or None if no member serves any.

        The mapping changes with the view.
        """
        return self._by_root.get(subject)

    def roots(self) -> Iterable[str]:
        """Return the roots of all models that have a shard, in no particular order."""
        return self._by_root.keys()

    def of(self, peer: PeerId) -> tuple[ShardRecord, ...]:
        """Return the shards of a member, sorted by the root of their model and by their number."""
        parts = (FeedName(peer, "shards", part) for part in KINDS["shards"].parts)
        held = [item for name in parts for item in self._said(name).items()]
        return tuple(shard for _, shard in sorted(held, key=lambda item: item[0]))

    def _read(self, name: FeedName, key: str, value: Mapping[str, object]) -> ShardRecord:
        root = _root_in(key)
        if part_of_root(root) != name.part:
            raise BadFact("a shard is in the wrong part for its model")
        start = read_whole(value.get("start"), defaults.MAX_LAYERS)
        stop = read_whole(value.get("stop"), defaults.MAX_LAYERS)
        if start >= stop:
            raise BadFact("a shard has no layers")
        return ShardRecord(
            root=root,
            embedding=value.get("embedding") is True,
            start=start,
            stop=stop,
            head=value.get("head") is True,
            dtype=read_text(value.get("dtype", ""), defaults.DTYPE_NAME_BYTES),
            kv_tokens_free=read_whole(value.get("tokens", 0), defaults.MAX_TOKENS),
            exactness=read_text(value.get("class", ""), defaults.EXACTNESS_BYTES),
            run=read_whole(value.get("run", 0), defaults.MAX_SEQ),
            costs=_costs(value.get("costs")),
        )

    def _replace(
        self, name: FeedName, key: str, old: ShardRecord | None, new: ShardRecord | None
    ) -> None:
        root = _root_in(key)
        facts = self._said(name)
        numbered = (facts.get(shard_key(root, number)) for number in range(defaults.SHARDS))
        served = tuple(shard for shard in numbered if shard is not None)
        peers = self._by_root.setdefault(root, {})
        if served:
            peers[name.author] = served
        else:
            peers.pop(name.author, None)
        if not peers:
            del self._by_root[root]
        self._tell(root)


def shard_key(root: str, number: int) -> str:
    """Return the key of the fact about this node's `number`th shard of a model, counted from 0."""
    return f"{root}/{number:x}"


def shard_fact(shard: ShardRecord) -> dict[str, object]:
    """Return the value of the fact about a shard of this node."""
    return {
        "start": shard.start,
        "stop": shard.stop,
        "embedding": shard.embedding,
        "head": shard.head,
        "dtype": shard.dtype,
        "tokens": shard.kv_tokens_free,
        "class": shard.exactness,
        "run": shard.run,
    } | ({"costs": list(shard.costs)} if any(shard.costs) else {})


def _costs(value: object) -> tuple[float, float, float]:
    if value is None:
        return UNKNOWN_COSTS
    found = read_each(value, 3, _seconds)
    if len(found) != 3:
        raise BadFact("the costs of a shard are three numbers")
    return found[0], found[1], found[2]


def _seconds(value: object) -> float:
    return read_rate(value, defaults.MAX_STEP_S)


def _root_in(key: str) -> str:
    root, _, number = key.partition("/")
    if len(number) != 1 or number not in "0123456789abcdef":
        raise BadFact("a shard's key lacks its number")
    return read_root(root)
