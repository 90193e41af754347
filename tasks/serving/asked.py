"""Answers `shard.ask`: loads a model that a gateway asks for, in place of shards that are idle.

Reasons: docs/adr/0084-room-for-a-model.md.
"""

from collections.abc import Callable, Collection
from math import inf

import trio

from ...transport.errors import ShoalError
from ...transport.host.seam import Host
from ...transport.link.calls import Call, Refusal, Reply
from ...transport.rates import Rate, Rates
from ..defaults import (
    SHARD_READ_TIME,
    SHARDS_ASKED,
    SHARDS_ASKED_IN_ALL,
    SHARDS_READ,
    SLOT_STAY,
    SLOT_WANTED,
)
from ..errors import BadMessage
from ..inference.conversation.asking import AskShard, ShardAsked
from ..inference.courier import Courier
from ..inference.sources import ModelSources
from ..inference.stage import Stage
from ..placement.demand import Backing, candidates, is_spare
from ..placement.holes import holes_of
from .files import ShardPlan
from .interface import ServingSettings
from .room import Place, Room, room_for
from .serving import Serving
from .slots import Slots


class AskedShards:
    """Requests of gateways to one node to load models."""

    def __init__(
        self,
        host: Host,
        stage: Stage,
        slots: Slots,
        sources: ModelSources,
        settings: ServingSettings,
        *,
        backing: Callable[[], Backing],
    ) -> None:
        """`backing` returns the evidence for models that the owner did not name."""
        self._host = host
        self._stage = stage
        self._slots = slots
        self._sources = sources
        self._directory = sources.directory
        self._settings = settings
        self._backing = backing
        self._rates = Rates(Rate(*SHARDS_ASKED), total=Rate(*SHARDS_ASKED_IN_ALL))
        self._reading = set[str]()

    def listen(self, courier: Courier) -> None:
        """Register the handler."""
        courier.handle("shard.ask", self.on_ask)

    async def on_ask(self, call: Call) -> Reply | Refusal:
        """Handle `shard.ask`."""
        try:
            asked = AskShard.parse(call.header)
        except BadMessage as error:
            return Refusal(error.code, error.message)
        if self._slots.barred:
            return Reply(ShardAsked("unasked").fields())
        if self._is_coming(asked.root):  # clients wait for it, so strangers must not hide it
            return Reply(ShardAsked("loading").fields())
        own = self._directory.own().peer
        if call.peer != own and not self._rates.take(call.peer, self._host.now()):
            return Refusal("busy", "this node is asked too often")
        return Reply((await self._answer(asked.root)).fields())

    async def _answer(self, root: str) -> ShardAsked:
        """Have a slot take a model if there is room, and return what becomes of it."""
        backing = self._backing()
        if self._slots.pinned or not await self._is_wanted(root, backing):
            return ShardAsked("unasked")
        plan = await self._read(root)
        if plan is None:
            return ShardAsked("full", 1.0)
        members, need = self._directory.members(), plan.sizes.everything
        if not await self._host.offload(holes_of, members, root, plan.arch.layers):
            return ShardAsked("unasked")  # members serve it, maybe with a part that is loaded here
        if need > self._slots.memory:
            return ShardAsked("no-fit")
        spare = await self._spare()
        if self._slots.barred:
            return ShardAsked("unasked")
        if self._is_coming(root):  # another request was faster
            return ShardAsked("loading")
        # From here to the end nothing waits, so no session opens at a shard that is about to leave.
        room = self._room(root, need, backing, spare)
        if not isinstance(room, Room):
            return ShardAsked("full", SLOT_STAY if room == inf else room)
        slots = self._slots.all
        unloaded = [slots[number].leave_for_another() for number in room.leaving]
        slots[room.taker].take(root, unloaded, need)
        return ShardAsked("loading")

    def _is_coming(self, root: str) -> bool:
        """Return whether the whole model is served here, or prepared."""
        for each in self._slots.all:
            if root in each.roots and each.phase != "failed":
                held = each.held
                return held is None or held.root != root or held.span == (0, held.arch.layers)
        return False

    async def _is_wanted(self, root: str, backing: Backing) -> bool:
        """Return whether there is a reason to serve a model."""
        if root == backing.embedded:
            await trio.lowlevel.checkpoint()
            return True
        members, own = self._directory.members(), self._directory.own().peer
        found = await self._host.offload(candidates, members, own, backing)
        return any(each.root == root and each.why for each in found)

    async def _read(self, root: str) -> ShardPlan | None:
        """Return a plan with all layers of a model, None if it is not known soon."""
        if root in self._reading or len(self._reading) >= SHARDS_READ:
            return None
        self._reading.add(root)
        try:
            with trio.move_on_after(SHARD_READ_TIME):
                manifest = await self._sources.manifest(root)
                dtype = self._settings.dtype
                return await self._host.offload(ShardPlan.whole, manifest, dtype)
        except ShoalError:
            return None
        finally:
            self._reading.discard(root)
        return None

    async def _spare(self) -> Collection[str]:
        """Return the roots of the loaded models that other nodes serve too."""
        members, own = self._directory.members(), self._directory.own().peer
        held = [each.held for each in self._slots.all]
        return {
            plan.root
            for plan in held
            if plan is not None
            and await self._host.offload(is_spare, members, own, plan.root, plan.arch.layers)
        }

    def _room(self, root: str, need: int, backing: Backing, spare: Collection[str]) -> Room | float:
        """Return room for a model, or the seconds after which there may be some."""
        places, part = list[Place](), None
        for number, each in enumerate(self._slots.all):
            plan = each.held
            if plan is not None and plan.root == root:
                part = self._place(number, each, 0.0)
                if part.stays_s > 0:
                    return part.stays_s
            elif plan is not None:
                wanted = 0.0 if plan.root in spare else SLOT_WANTED
                if wanted and plan.root in backing.asked:
                    wanted = inf  # members have jobs for it
                places.append(self._place(number, each, wanted))
            else:
                places.append(Place(number, each.is_free))
        return room_for(need, self._slots.free_bytes, places, part)

    def _place(self, number: int, serving: Serving, wanted: float) -> Place:
        """Return a slot with a shard, which is wanted for some seconds after its last use."""
        unused = serving.unused_s
        stays = inf
        if unused > 0:
            stays = max(serving.stays_s, wanted - unused, 0.0)
        return Place(number, False, serving.loaded_bytes, unused, stays)
