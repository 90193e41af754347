"""Facts about a loaded shard: published when it is loaded, and withdrawn when it is not."""

from dataclasses import replace

from ...state.directory import Directory
from ...state.membership.record import ShardRecord
from ..engine.families import kv_room
from ..engine.interface import Loaded, LoadShard
from ..inference.stage import Stage
from ..placement.shard import properties_of
from .files import ShardPlan


class PublishedShard:
    """The shard `number` of the engine, as the member record and the stage have it."""

    def __init__(self, directory: Directory, stage: Stage, plan: ShardPlan, number: int) -> None:
        self._directory = directory
        self._stage = stage
        self._plan = plan
        self._number = number

    def publish(self, shard: LoadShard, loaded: Loaded) -> None:
        """Accept sessions for a shard that the engine has loaded, and publish it."""
        plan, parts = self._plan, self._plan.parts
        self._stage.serve(properties_of(shard, plan.arch), self._number, loaded.costs)
        record = ShardRecord(
            root=plan.root,
            embedding=parts.embedding,
            start=parts.start,
            stop=parts.stop,
            head=parts.head,
            dtype=plan.dtype,
            kv_tokens_free=kv_room(plan.arch, parts, plan.dtype, shard.kv_bytes).positions,
            exactness=loaded.exactness,
            costs=loaded.costs,
        )
        self._directory.publish(shards=(*self._others(), record))

    def suspend(self) -> None:
        """Stop the stage for a reload. The shard stays published: routes and placement rely on it.

        Gateways would otherwise find no route, and other nodes would load these layers.
        """
        self._stage.withdraw(self._number)

    def withdraw(self) -> None:
        """Stop the stage and remove the shard from the member record."""
        self.suspend()
        others = self._others()
        if others != self._directory.own().shards:
            self._directory.publish(shards=others)

    def correct_costs(self) -> None:
        """Publish the costs of the shard again if measured steps have changed them much."""
        speed = self._stage.speed(self._plan.root, self._plan.parts)
        shards = self._directory.own().shards
        right = tuple(
            replace(shard, costs=speed.costs)
            if self._is_it(shard) and speed.differs(shard.costs)
            else shard
            for shard in shards
        )
        if right != shards:
            self._directory.publish(shards=right)

    def _others(self) -> tuple[ShardRecord, ...]:
        """Return the other shards of this node, as published."""
        return tuple(shard for shard in self._directory.own().shards if not self._is_it(shard))

    def _is_it(self, shard: ShardRecord) -> bool:
        return (shard.root, (shard.start, shard.stop)) == (self._plan.root, self._plan.span)
