"""The layers that one node serves, of one model in each slot, on one or several devices.

The first slot is for the model that the owner named, or that the swarm needs most. If the owner
named none and memory is left, further slots take models that no other nodes serve, so that a new
model does not displace the one that is served.
"""

from collections.abc import Callable, Collection, Sequence

import trio

from ...transport.host.seam import Host
from ..defaults import SLOTS
from ..inference.sources import ModelSources
from ..placement.demand import Backing
from .interface import Phase, ServingDevices, ServingSettings, ServingStatus, Slot
from .linkreports import LinkReports
from .serving import Serving


class Slots:
    """Service that serves all shards of one node."""

    def __init__(
        self,
        host: Host,
        devices: ServingDevices,
        sources: ModelSources,
        settings: ServingSettings,
        *,
        backing: Callable[[], Backing],
    ) -> None:
        """Create the service. `backing` returns the evidence for models that the owner did not
        name."""
        self.memory = settings.memory
        """Memory in bytes for the shards: their weights and KV. Trainings reserve some of it."""
        self._devices = devices
        self._guard = sources.guard
        reports = LinkReports(sources.directory, backing, devices.stage.expect)
        self._reports = reports if devices.shares else None
        self.pinned = settings.model is not None or settings.layers is not None
        """Whether the owner chose what is served."""
        count = 1 if self.pinned or not devices.shares else SLOTS
        self.all = [
            Serving(host, devices, sources, settings, self._slot(number), backing=backing)
            for number in range(count)
        ]
        """The services of the slots, by their numbers."""

    def _slot(self, number: int) -> Slot:
        def others() -> Collection[Serving]:
            return [each for at, each in enumerate(self.all) if at != number]

        def rooms() -> Sequence[int]:
            return self._rooms(others())

        def taken() -> Collection[str]:
            return {root for each in others() for root in each.roots}

        return Slot(number, rooms, taken)

    def _rooms(self, others: Collection[Serving]) -> Sequence[int]:
        """Return the bytes that other slots leave on each device.

        What trainings reserve, and what a slot waits for, is taken where most is left.
        """
        shares, broken = self._devices.shares, self._devices.broken
        taken = sum(each.taken_bytes for each in others)
        if len(shares) == 1:
            return [self.memory - taken]
        rooms = [0 if at in broken else share.memory for at, share in enumerate(shares)]
        elsewhere = sum(share.memory for share in shares) - self.memory
        for each in others:
            sizes = each.loaded_sizes
            rooms = [room - size for room, size in zip(rooms, sizes, strict=True)]
            elsewhere += each.taken_bytes - sum(sizes)
        while elsewhere > 0 and max(rooms) > 0:
            most = max(range(len(rooms)), key=rooms.__getitem__)
            part = min(elsewhere, rooms[most])
            rooms[most] -= part
            elsewhere -= part
        return rooms

    @property
    def loaded_bytes(self) -> int:
        """Memory in bytes of the loaded shards: their weights and the KV reserved for them."""
        return sum(each.loaded_bytes for each in self.all)

    @property
    def free_bytes(self) -> int:
        """Bytes of the offered memory that no shard and no training has, and no slot waits for."""
        return self.memory - sum(each.taken_bytes for each in self.all)

    @property
    def barred(self) -> bool:
        """Whether serving is barred."""
        return any(each.barred for each in self.all)

    def reserve(self, size: int) -> None:
        """Load no layers into `size` bytes of the memory, because a training uses them. A negative
        number gives bytes back."""
        self.memory -= size

    def is_for(self, root: str) -> bool:
        """Return whether the owner named this model or this node has chosen it."""
        return any(root in each.roots for each in self.all)

    @property
    def phase(self) -> Phase:
        """The phase of the first slot."""
        return self.all[0].phase

    def status(self) -> ServingStatus:
        """Return the progress of the first slot."""
        return self.all[0].status()

    def beside(self) -> list[ServingStatus]:
        """Return the progress of the further slots that have chosen a model."""
        return [each.status() for each in self.all[1:] if each.roots]

    async def changed(self) -> None:
        """Wait until the result of `status` or `beside` changes."""
        async with trio.open_nursery() as nursery:

            async def one(serving: Serving) -> None:
                await serving.changed()
                nursery.cancel_scope.cancel()

            for each in self.all:
                nursery.start_soon(one, each)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            for number, each in enumerate(self.all):
                nursery.start_soon(self._run_one, number, each)
            if self._reports is not None:
                self._guard.start_repeated(nursery, "members that serve", self._reports.run)
            task_status.started()

    async def _run_one(self, number: int, serving: Serving) -> None:
        """Run a slot as soon as the slot before it serves, since it gets what that one leaves."""
        if number:
            await self.all[number - 1].serves.wait()
        await serving.run()

    def bar(self, why: str | None) -> None:
        """Stop serving for the reason `why`, or allow serving again if `why` is None."""
        for each in self.all:
            each.bar(why)

    def leave(self) -> None:
        """Withdraw all aims and claim no more layers, because this node is stopping."""
        for each in self.all:
            each.leave()
