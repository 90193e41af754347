"""The shards of one slot: loads its layers on one device, or a part of them on each of several.

Each shard is published by itself. A device whose worker ends loads its own shard again, and the
shards on other devices stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import trio

from ...transport.host.seam import Host
from ..defaults import COSTS_LOOK, LOAD_CRASHES
from ..engine.connection.devices import shard_number
from ..engine.errors import EngineError, EngineUnavailable
from ..engine.families import weight_bytes
from ..errors import NoFit
from ..inference.sources import ModelSources
from ..placement.devices import divide
from ..placement.shard import shard_of
from .files import ShardPlan
from .interface import RestartingEngine, ServingDevices, Slot
from .publishing import PublishedShard


@dataclass(slots=True)
class _Part:
    """The layers of the slot that one device has. `size` is the memory that they take in bytes, 0
    while they are not loaded."""

    device: int
    number: int  # in the engine
    plan: ShardPlan
    published: PublishedShard
    size: int = 0


class SlotShards:
    """The shards of one slot, on the devices of a node."""

    def __init__(
        self, host: Host, devices: ServingDevices, sources: ModelSources, slot: Slot
    ) -> None:
        self._host = host
        self._devices = devices
        self._sources = sources
        self._slot = slot
        self._parts: list[_Part] = []
        self._used = set[int]()  # devices whose engines may have a shard under this slot's number
        self._lost = set[int]()  # devices that have lost their part
        self.restarted = trio.Event()
        """Set when a device has lost its part and can load it again."""
        for device, share in enumerate(devices.shares):
            share.engine.on_restart(partial(self._on_restart, device))

    @property
    def root(self) -> str | None:
        """Root of the model whose layers are published, or None."""
        return self._parts[0].plan.root if self._parts else None

    @property
    def sizes(self) -> Sequence[int]:
        """Memory in bytes of the loaded layers on each device: weights, and KV reserved for
        them."""
        sizes = [0] * len(self._devices.shares)
        for part in self._parts:
            sizes[part.device] += part.size
        return sizes

    @property
    def idle_s(self) -> float:
        """Seconds for which no session of any of the shards has been open, 0 if one is."""
        stage = self._devices.stage
        return min((stage.idle_time(part.number) for part in self._parts), default=0.0)

    @property
    def unused_s(self) -> float:
        """Seconds for which nothing has used any of the shards, 0 if something does."""
        stage = self._devices.stage
        return min((stage.unused_time(part.number) for part in self._parts), default=0.0)

    async def load(self, plan: ShardPlan) -> None:
        """Load and publish the layers that are not loaded.

        Also if an engine crashes meanwhile, but less than LOAD_CRASHES times for a part. Raises
        NoFit if no devices have room for the layers, and EngineError.
        """
        if not self._parts:
            self._parts = self._divided(plan)
            await self._free(self._used - {part.device for part in self._parts})
        for part in self._parts:
            if not part.size or part.device in self._lost:
                await self._load_patiently(part)
        if not self._lost:
            self.restarted = trio.Event()

    def suspend(self) -> None:
        """Stop the stages of the parts that are lost. They stay published, because they are loaded
        again."""
        for part in self._parts:
            if part.device in self._lost:
                part.published.suspend()
                part.size = 0

    def withdraw(self) -> None:
        """Stop the stages and withdraw the shards."""
        for part in self._parts:
            part.published.withdraw()
        self._parts = []
        self._lost.clear()

    async def unload(self) -> None:
        """Free what the engines have loaded, after `withdraw`."""
        await self._free({*self._used})

    async def correct_costs(self) -> None:
        """Publish the costs of the shards again whenever measured steps have changed them much."""
        while True:
            await trio.sleep(COSTS_LOOK)
            for part in self._parts:
                part.published.correct_costs()

    def _on_restart(self, device: int) -> None:
        if any(part.device == device and part.size for part in self._parts):
            self._lost.add(device)
            self.restarted.set()

    async def _free(self, devices: set[int]) -> None:
        for device in sorted(devices):
            await self._engine(device).unload(shard_number(device, self._slot.number))
            self._used.discard(device)

    def _engine(self, device: int) -> RestartingEngine:
        return self._devices.shares[device].engine

    def _divided(self, plan: ShardPlan) -> list[_Part]:
        """Divide the layers among the devices. Raises NoFit."""
        rooms = self._slot.rooms()
        found = divide(plan.sizes, plan.span, rooms)
        if not found and len(rooms) == 1:
            found = [(0, plan.span)]  # a layer that is smaller than others may fit all the same
        if not found:
            start, stop = plan.span
            raise NoFit(
                f"no devices of this node have room for layers {start}:{stop}, which need "
                f"{-(-plan.sizes.of_span(start, stop) // 2**20)} MiB",
                hint="offer more with `--memory`, or take fewer layers with `--layers A:B`",
            )
        return [self._part(device, plan.at(span)) for device, span in found]

    def _part(self, device: int, plan: ShardPlan) -> _Part:
        number = shard_number(device, self._slot.number)
        directory = self._sources.directory
        return _Part(
            device, number, plan, PublishedShard(directory, self._devices.stage, plan, number)
        )

    async def _load_patiently(self, part: _Part) -> None:
        for _ in range(LOAD_CRASHES - 1):
            try:
                await self._load(part)
            except EngineUnavailable:
                self._devices.broken.add(part.device)
                raise
            except EngineError as error:
                if error.code != "worker-crashed":
                    raise
            else:
                return
        await self._load(part)

    async def _load(self, part: _Part) -> None:
        plan, room = part.plan, self._slot.rooms()[part.device]
        shard = await self._host.offload(  # many paths: takes almost 1 s for 140 GB
            shard_of,
            plan.manifest,
            plan.arch,
            plan.parts,
            plan.dtype,
            room,
            self._sources.library.store.path,
        )
        weights = await self._host.offload(weight_bytes, plan.arch, plan.parts, plan.dtype)
        part.size = weights + shard.kv_bytes
        self._used.add(part.device)
        loaded = await self._engine(part.device).load(shard, part.number)
        self._lost.discard(part.device)
        part.published.publish(shard, loaded)
