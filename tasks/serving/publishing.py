"""Facts about the shard in one slot: published when it is loaded, and withdrawn when it is not."""

from dataclasses import replace

import trio

from ...state.directory import Directory
from ...state.membership.record import ShardRecord
from ..defaults import COSTS_LOOK
from ..engine.families import kv_room
from ..engine.interface import Loaded, LoadShard
from ..inference.stage import Stage
from ..placement.shard import held_of
from .files import ShardPlan


class PublishedShard:
    """The shard of slot `number`, as the member record and the stage have it."""

    def __init__(self, directory: Directory, stage: Stage, number: int) -> None:
        self._directory = directory
        self._stage = stage
        self._number = number
        self.root: str | None = None
        """Root of the published shard, or None."""

    def publish(self, plan: ShardPlan, shard: LoadShard, loaded: Loaded) -> None:
        """Accept sessions for a shard that the engine has loaded, and publish it."""
        self._stage.serve(held_of(shard, plan.arch), self._number, loaded.costs)
        parts, self.root = plan.parts, plan.root
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
        self.root = None
        if others != self._directory.own().shards:
            self._directory.publish(shards=others)

    async def correct_costs(self, plan: ShardPlan) -> None:
        """Publish the costs of the shard again whenever measured steps have changed them much."""
        while True:
            await trio.sleep(COSTS_LOOK)
            speed = self._stage.speed(plan.root, plan.parts)
            shards = self._directory.own().shards
            right = tuple(
                replace(shard, costs=speed.costs)
                if shard.root == plan.root and speed.differs(shard.costs)
                else shard
                for shard in shards
            )
            if right != shards:
                self._directory.publish(shards=right)

    def _others(self) -> tuple[ShardRecord, ...]:
        """Return the shards in the other slots, as published."""
        shards = self._directory.own().shards
        return tuple(shard for shard in shards if shard.root != self.root)
