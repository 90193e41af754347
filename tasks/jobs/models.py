"""The models that jobs name: whether a node can use one now, and whether none serves it."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ...state.membership.record import ShardRecord
from ..defaults import MAX_STAGES
from ..engine.families import DTYPE_BYTES
from ..inference.shards import Members
from . import defaults


class JobModels:
    """The models that jobs may use on this node.

    `members` returns the members with what they serve now. `works_for` returns whether this node
    itself uses the model with this root. For any other model, a job would make this node fetch and
    process files of an untrusted peer.
    """

    def __init__(
        self,
        members: Callable[[], Members],
        now: Callable[[], float],
        *,
        works_for: Callable[[str], bool],
    ) -> None:
        self.works_for = works_for
        self._members = members
        self._now = now
        self._served: set[str] = set()
        self._looked = -math.inf  # time at which `_served` was computed
        self._unserved: OrderedDict[str, float] = OrderedDict()  # by root: time since when

    def can_use(self, root: str) -> bool:
        """Return whether a job for this model can be done or must be ended with an error."""
        return self.works_for(root) if self._is_served(root) else self._waited(root)

    def is_missing(self, root: str) -> bool:
        """Return whether no node has served the model for MODEL_PATIENCE, so that its jobs must
        fail."""
        return not self._is_served(root) and self._waited(root)

    def _is_served(self, root: str) -> bool:
        """Return whether live members serve the whole model.

        The served models are cached for SERVED_FOR seconds, because there may be thousands of jobs.
        """
        if self._now() - self._looked >= defaults.SERVED_FOR:
            self._served, self._looked = served(self._members()), self._now()
        if root in self._served:
            self._unserved.pop(root, None)
        return root in self._served

    def _waited(self, root: str) -> bool:
        since = self._unserved.setdefault(root, self._now())
        self._unserved.move_to_end(root)
        if len(self._unserved) > defaults.MODELS_WAITED_FOR:
            self._unserved.popitem(last=False)
        return self._now() - since >= defaults.MODEL_PATIENCE


def served(members: Members) -> set[str]:
    """Return the roots of all models that these members serve from the first layer to the head.

    Shards form chains as in `inference/shards.py`. Each shard is examined once, even if members
    state different numbers of layers for a model.
    """
    shards: dict[tuple[str, str], list[ShardRecord]] = {}
    for record in members.values():
        for shard in record.shards:
            if shard.kv_tokens_free >= 1 and shard.dtype in DTYPE_BYTES:
                shards.setdefault((shard.root, shard.dtype), []).append(shard)
    return {root for (root, _), some in shards.items() if _reach_a_head(some)}


def _reach_a_head(shards: Sequence[ShardRecord]) -> bool:
    """Return whether some of these shards, of one model and dtype, form a chain that ends with a
    head."""
    lengths = {0: 0}  # number of shards in the shortest chain found, by its end layer
    for shard in sorted(shards, key=lambda each: (each.start, each.stop)):
        before = lengths.get(shard.start)
        if before is None or (shard.start == 0 and not shard.embedding):
            continue
        if shard.head:
            return True
        if before + 1 < MAX_STAGES:
            lengths[shard.stop] = min(before + 1, lengths.get(shard.stop, MAX_STAGES))
    return False
