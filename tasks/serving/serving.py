"""Serves one shard: chooses, fetches, loads and publishes it. Starts again after an engine crash.

A node may serve several shards, each in its own slot (slots.py).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NoReturn

import trio
from trio import TaskStatus

from ...state.membership.record import Rank
from ...transport import naming
from ...transport.errors import ShoalError
from ...transport.host.seam import Host
from ..defaults import DEMAND_TIME, SERVE_RETRY, SLOT_IDLE, SLOT_LOOK
from ..engine.errors import EngineError
from ..engine.families import Architecture
from ..errors import ServingError
from ..inference.sources import ModelSources
from ..placement.coverage import Span
from ..placement.demand import Backing, ServingChoice, is_spare
from ..placement.holes import no_fit
from ..placement.precision import way_out
from .choosing import Choosing
from .files import ShardFiles, ShardPlan
from .interface import Phase, ServingDevices, ServingSettings, ServingStatus, Slot
from .slotshards import SlotShards
from .standing import ModelStanding
from .turn import SlotTurn

# Error codes of an engine that has read a damaged chunk. Other faults of a model share them.
DAMAGE = ("digest-mismatch", "bad-tensor")


class Serving:
    """Service that serves the layers in one slot of a node.

    Without an engine, the node serves nothing but is still a member.
    """

    def __init__(
        self,
        host: Host,
        devices: ServingDevices,
        sources: ModelSources,
        settings: ServingSettings,
        slot: Slot,
        *,
        backing: Callable[[], Backing],
    ) -> None:
        """Create the service. `backing` returns the evidence for models that the owner did not
        name."""
        self._host = host
        self._files = ShardFiles(host, sources)
        self._standing = ModelStanding(host, sources.directory, slot.memory_for, backing)
        self._slot = slot
        self._choosing = self._new_choosing(host, sources, settings.model, backing)
        self._devices = devices
        self._sources = sources
        self._directory = sources.directory
        self._settings = settings
        self._backing = backing
        self._why = ""
        self._chosen: str | None = None  # root of a chosen model, until layers of it are
        self._turn = SlotTurn()
        self._plan: ShardPlan | None = None
        self._shards = SlotShards(host, devices, sources, slot)
        self.serves = trio.Event()
        """Set when the slot has served for the first time."""
        self._barred: str | None = None
        self._bar_changed = trio.Event()
        self._news = trio.Event()
        self._state = ServingStatus("choosing", "choosing what to serve")
        if not devices.shares:
            self._state = ServingStatus("no-engine", devices.lacks)

    def _new_choosing(
        self, host: Host, sources: ModelSources, model: str | None, backing: Callable[[], Backing]
    ) -> Choosing:
        return Choosing(
            host,
            sources,
            model,
            backing=backing,
            say=lambda text: self._say("choosing", text),
            memory=self._slot.memory,
        )

    @property
    def _state(self) -> ServingStatus:
        return self._told

    @_state.setter
    def _state(self, state: ServingStatus) -> None:
        self._told = state
        self._news.set()
        self._news = trio.Event()

    async def changed(self) -> None:
        """Wait until the result of `status` changes."""
        await self._news.wait()

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._state.phase

    @property
    def sentence(self) -> str:
        """Sentence for a person about the current activity."""
        return self._state.text

    @property
    def roots(self) -> Collection[str]:
        """Roots of the model that the owner named, and of the one that is served or prepared."""
        plan, meant = self._plan, self._choosing.meant
        roots = (
            plan.root if plan else None,
            meant.root if meant else None,
            self._standing.root,
            self._chosen,
            self._turn.asked,
        )
        return {root for root in roots if root is not None}

    def status(self) -> ServingStatus:
        """Return the progress towards serving. The member record has the shard itself."""
        return replace(self._state, why=self._why or None, root=self._shards.root)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Serve until cancelled. After a failure, `status` shows the reason and serving is
        retried."""
        task_status.started()
        if not self._devices.shares:
            await self._choosing.learn()
            await trio.sleep_forever()
        pause, longest = SERVE_RETRY
        while True:
            await self._until_allowed()
            try:
                if await self._serve_while_allowed():
                    pause = SERVE_RETRY[0]
            except ShoalError as error:
                self._plan = None
                self._standing.give_up()
                self._shards.withdraw()
                self._state = ServingStatus("failed", error.message, hint=error.hint)
                version = self._directory.version
                await trio.sleep(SERVE_RETRY[0])  # frequent changes must not cause constant retries
                with trio.move_on_after(pause):
                    await self._directory.changed(version)
                pause = min(2 * pause, longest)

    @property
    def barred(self) -> bool:
        """Whether serving is barred."""
        return self._barred is not None

    def bar(self, why: str | None) -> None:
        """Stop serving for the reason `why`, or allow serving again if `why` is None."""
        if why != self._barred:
            self._barred = why
            self._bar_changed.set()
            self._bar_changed = trio.Event()

    async def _until_allowed(self) -> None:
        """Wait until serving is no longer barred. Meanwhile the shard and the aim are withdrawn."""
        while self._barred is not None:
            self._standing.say(None)
            self._shards.withdraw()
            self._say("barred", self._barred)
            await self._bar_changed.wait()

    async def _serve_while_allowed(self) -> bool:
        """Run `_serve` until it ends or serving is barred. Return whether serving was not barred.

        Raises ShoalError if `_serve` failed and serving was not barred.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_barred, nursery.cancel_scope)
            try:
                with self._sources.reading("a model"):
                    await self._serve()
            except ShoalError as error:
                failure: ShoalError | None = error
            else:
                failure = None
            finally:
                self._turn.ended()
            nursery.cancel_scope.cancel()
        if self._barred is None and failure is not None:
            raise failure
        return self._barred is None

    async def _cancel_when_barred(self, scope: trio.CancelScope) -> None:
        while self._barred is None:
            await self._bar_changed.wait()
        scope.cancel()

    async def _serve(self) -> None:
        """Serve until the engine has restarted or other layers are ready to load.

        Raises ShoalError if serving fails.
        """
        if self._plan is None:
            self._plan = await self._choose()
        plan = self._plan
        self._hold(plan)
        await self._fetch(plan)
        try:
            await self._load(plan)
        except EngineError as error:
            if error.code in DAMAGE:
                await self._files.drop_damaged(plan, self._describe(plan))
            raise
        try:
            await self._until_changed(plan)
            if self._plan is plan:  # the engine has restarted and loads the same layers
                self._shards.suspend()
            else:
                if self._plan is None:
                    self._standing.give_up()  # a look that was under way may have taken it up again
                self._shards.withdraw()
                await self._shards.unload()
        finally:
            self._turn.unloaded.set()

    # Choosing.

    async def _choose(self) -> ShardPlan:
        choice = await self._turn.choice(self._next_choice)
        self._why = f"{self._name(choice.root)}: {choice.why}"
        self._chosen = choice.root
        try:
            return await self._place(choice.root)
        finally:
            self._chosen = None

    async def _next_choice(self) -> ServingChoice:
        if self._slot.number:
            return await self._choosing.model_beside(self._slot.taken)
        return await self._choosing.model()

    # Leaving for a model that is asked for (asked.py).

    @property
    def is_free(self) -> bool:
        """Whether the slot waits for a model."""
        return self._turn.waits

    @property
    def loaded_sizes(self) -> Sequence[int]:
        """Memory in bytes of the loaded layers on each device: weights, and KV reserved for
        them."""
        return self._shards.sizes

    @property
    def loaded_bytes(self) -> int:
        """Memory in bytes of the loaded layers on all devices."""
        return sum(self._shards.sizes)

    @property
    def taken_bytes(self) -> int:
        """Bytes of the loaded shard, or of the model that the slot was given and loads next."""
        return max(self.loaded_bytes, self._turn.promised)

    @property
    def held(self) -> ShardPlan | None:
        """The loaded shard, or None while there is none."""
        return self._plan if self._turn.loaded is not None else None

    @property
    def unused_s(self) -> float:
        """Seconds for which nothing has used the loaded layers."""
        return self._shards.unused_s

    @property
    def stays_s(self) -> float:
        """Seconds for which the loaded shard must not be unloaded for another model."""
        return self._turn.stays_s(self._host.now())

    def leave_for_another(self) -> trio.Event:
        """Withdraw the loaded shard at once, so that no session uses it any more. Return an event
        that is set when the engine has unloaded it."""
        event = self._turn.unloaded = trio.Event()
        loaded, self._plan = self._turn.loaded, None
        self._standing.give_up()
        self._shards.withdraw()
        assert loaded is not None  # the caller has looked
        loaded.cancel()
        return event

    def take(self, root: str, after: Collection[trio.Event], need: int) -> None:
        """Serve a model of `need` bytes next, as soon as the events in `after` are set. The slot
        has no shard."""
        self._turn.give(root, after, need)

    def _fixed(self, arch: Architecture) -> Span | None:
        """Return the layers that the owner named, or None if there are none.

        Raises ServingError if the model has no such layers.
        """
        if self._settings.layers is None:
            return None
        start, stop = self._settings.layers
        if not 0 <= start < stop <= arch.layers:
            raise ServingError(
                "bad-layers",
                f"`--layers {start}:{stop}` is no range of this model's {arch.layers} layers",
                hint=f"use 0:{arch.layers} for all of them",
            )
        return start, stop

    async def _place(self, root: str) -> ShardPlan:
        """Choose layers of a model, given what the other nodes hold of it.

        Waits until layers are needed. Raises ShoalError if that fails or no layer fits.
        """
        self._say("choosing", f"reading the manifest of {self._name(root)}")
        plan = await self._read(root)
        if (fixed := self._fixed(plan.arch)) is not None:
            return plan.at(fixed)
        self._say("choosing", f"finding out which layers of {self._name(root)} are needed")
        self._standing.take_up(root, plan.model)
        span = await self._standing.next_span()
        if span is None:
            self._choosing.does_not_fit(root)
            memory = self._slot.memory()
            out = await self._host.offload(way_out, plan.arch, plan.dtype, memory)
            raise no_fit(plan.sizes, memory, out)
        return plan.at(span)

    async def _read(self, root: str) -> ShardPlan:
        """Return a plan with all layers of a model. The caller then chooses the layers."""
        manifest = await self._sources.manifest(root)
        return await self._host.offload(ShardPlan.whole, manifest, self._settings.dtype)

    # Changing.

    async def _until_changed(self, plan: ShardPlan) -> None:
        """Wait until the engine has restarted or the chunks of other layers have been fetched."""
        async with trio.open_nursery() as nursery:
            self._turn.loaded = nursery.cancel_scope
            try:
                if self._slot.number:
                    nursery.start_soon(self._until_spare, plan, nursery.cancel_scope)
                if self._settings.layers is None:
                    nursery.start_soon(self._change, plan, nursery.cancel_scope)
                nursery.start_soon(self._shards.correct_costs)
                await self._shards.restarted.wait()
                nursery.cancel_scope.cancel()
            finally:
                self._turn.loaded = None

    async def _until_spare(self, plan: ShardPlan, loaded: trio.CancelScope) -> None:
        """Wait until other nodes serve the model and no session has used this shard for long. Then
        free its memory."""
        while True:
            await trio.sleep(SLOT_LOOK)
            members, own = self._directory.members(), self._directory.own().peer
            if self._shards.idle_s < SLOT_IDLE:
                continue
            if await self._host.offload(is_spare, members, own, plan.root, plan.arch.layers):
                self._plan = None
                self._standing.give_up()
                loaded.cancel()
                return

    async def _change(self, plan: ShardPlan, loaded: trio.CancelScope) -> None:
        """Choose and fetch the layers to serve next, while the loaded layers are still served."""
        while True:
            try:
                with self._sources.reading("a model"):
                    following = await self._next(plan)
                    await self._fetch(following)
            except ShoalError as error:
                if self._plan is not plan:
                    return  # the shard has left for another model meanwhile
                self._hold(plan)
                self._state = ServingStatus(
                    "serving", f"{error.message}; still {self._serves(plan)}"
                )
                await trio.sleep(SERVE_RETRY[1])
            else:
                if self._plan is not plan:
                    return
                self._plan = following
                loaded.cancel()
                return

    async def _next(self, plan: ShardPlan) -> ShardPlan:
        """Wait until other layers of this model, or another model, are needed. Return the plan for
        them."""
        while True:
            with trio.move_on_after(DEMAND_TIME * self._standing.moves.factor(self._host.now())):
                span = await self._standing.next_span()
                return plan if span is None else plan.at(span)
            if not self._slot.number and (other := await self._other_model(plan)) is not None:
                return other

    async def _other_model(self, plan: ShardPlan) -> ShardPlan | None:
        """Claim and return layers of another model, or return None if this node should not move.

        The node moves if the other model needs it more than its present model, which other nodes
        can serve.
        """
        choice = await self._choosing.other_model(plan.root, self._slot.taken)
        if choice is None:
            return None
        self._chosen = choice.root
        try:
            return await self._moved(plan, choice)
        finally:
            self._chosen = None

    async def _moved(self, plan: ShardPlan, choice: ServingChoice) -> ShardPlan | None:
        """Claim and return layers of the chosen model, or return None if none fits or others
        turned out to be faster."""
        other = await self._read(choice.root)
        span = await self._standing.claim_other(other.root, other.sizes)
        if span is None:
            self._choosing.does_not_fit(other.root)
            return None
        again = await self._choosing.other_model(plan.root, self._slot.taken)
        if again is None or again.root != other.root:
            self._hold(plan)
            return None
        self._standing.moves.note(self._host.now())
        self._why = f"{self._name(other.root)}: {choice.why}"
        self._hold(other.at(span))
        return other.at(span)

    def _hold(self, plan: ShardPlan) -> None:
        """Publish that this node holds these layers, and decide about moves from there."""
        rank = Rank.HOLDS if self._settings.layers is None else Rank.FIXED
        self._standing.hold(plan.root, plan.model, plan.span, rank)

    # Fetching and loading.

    async def _fetch(self, plan: ShardPlan) -> None:
        self._say("fetching", f"fetching {self._describe(plan)}")

        def progress(done: int, total: int) -> None:
            self._state = replace(self._state, done_bytes=done, total_bytes=total)

        named = self._settings.model is not None
        asked = named or plan.root == self._backing().embedded
        await self._files.fetch(plan, progress, named=named, asked=asked)
        await self._files.keep_name(plan.root, self._choosing.meant)

    async def _load(self, plan: ShardPlan) -> None:
        self._say("loading", f"loading {self._describe(plan)}")
        began = self._host.now()
        await self._shards.load(plan)
        self._turn.began(self._host.now(), self._host.now() - began)
        self.serves.set()
        self._state = ServingStatus("serving", self._serves(plan))

    def leave(self) -> None:
        """Withdraw the aim and claim no more layers, because this node is stopping."""
        self._standing.leave()

    # Sentences for a person.

    def _say(self, phase: Phase, text: str) -> None:
        self._state = ServingStatus(phase, text)

    def _serves(self, plan: ShardPlan) -> str:
        return f"serving {self._describe(plan)}"

    def _describe(self, plan: ShardPlan) -> str:
        parts = plan.parts
        return f"layers {parts.start}:{parts.stop} of {self._name(plan.manifest.root)}"

    def _name(self, root: str) -> str:
        names = {other: name for name, other in self._sources.library.names().items()}
        for record in self._directory.members().values():
            names |= {model.root: model.name for model in record.models if model.root not in names}
        return naming.shown(names.get(root, root[:12]))
