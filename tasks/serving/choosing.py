"""Chooses which model this node serves: the one that its owner named, or one that the swarm needs.

Also decides when the node may leave its model for another one.
"""

from collections.abc import Callable, Collection
from contextlib import suppress

import trio

from ...dht.errors import ModelError
from ...dht.names import NameMeaning
from ...transport.host.seam import Host
from ..defaults import (
    DEMAND_LOOK,
    DEMAND_TIME,
    MODEL_PATIENCE,
    RESOLVE_PAUSE,
    SERVE_RETRY,
    SLOT_PAUSE,
)
from ..inference.sources import ModelSources
from ..placement.demand import Backing, ServingChoice, choose_model, choose_other, waiting_sentence


class Choosing:
    """Choice of the model that one node serves.

    `model` is the name that the owner gave, or None. `say` receives sentences about the progress,
    for a person. `memory` returns the bytes that the node has for the model.
    """

    def __init__(
        self,
        host: Host,
        sources: ModelSources,
        model: str | None,
        *,
        backing: Callable[[], Backing],
        say: Callable[[str], None],
        memory: Callable[[], int],
    ) -> None:
        self._host = host
        self._directory = sources.directory
        self._model = model
        self._backing = backing
        self._find = sources.find
        self._say = say
        self._memory = memory
        self._unfit: dict[str, int] = {}  # by root: the bytes in which no layer of it fitted
        self.meant: NameMeaning | None = None
        """The owner's model, or None until its name is resolved."""

    async def model(self) -> ServingChoice:
        """Return the owner's model. If the owner named none, wait until a model is needed and
        return it.

        Raises ModelError if the owner's name cannot be resolved.
        """
        if self._model is not None:
            meant = await self._named_model(self._model)
            return ServingChoice(meant.root, "its owner named it", True)
        began = self._host.now()
        while True:
            version = self._directory.version
            choice = await self._wanted()
            waited = self._host.now() - began
            if choice is not None and (choice.settled or waited >= DEMAND_TIME):
                return choice
            with trio.move_on_after(DEMAND_TIME if choice is not None else DEMAND_LOOK[1]):
                await self._directory.changed(version)
            await trio.sleep(DEMAND_LOOK[0])

    async def other_model(
        self, root: str, taken: Callable[[], Collection[str]]
    ) -> ServingChoice | None:
        """Return another model that needs this node, or None if there is none.

        Models in `taken` are skipped. Returns None too if the owner named the model, or if the
        other nodes cannot serve the present model (`root`) alone.
        """
        if self._model is not None:
            return None
        return await self._other(root, taken)

    async def _other(self, root: str, taken: Callable[[], Collection[str]]) -> ServingChoice | None:
        members, own = self._directory.members(), self._directory.own().peer
        memory = self._memory()
        unfit = {root for root, tried in self._unfit.items() if memory <= tried} | {*taken()}
        backing = self._backing()
        choice = await self._host.offload(choose_other, members, own, root, backing, unfit)
        if choice is not None and choice.root in taken():  # another slot was faster
            return None
        return choice

    async def model_beside(self, taken: Callable[[], Collection[str]]) -> ServingChoice:
        """Wait until a model needs this node, and return it. Models in `taken` are skipped."""
        while True:
            version = self._directory.version
            choice = await self._other("", taken)
            if choice is not None:
                return choice
            with trio.move_on_after(DEMAND_LOOK[1]):
                await self._directory.changed(version)
            await trio.sleep(SLOT_PAUSE)  # less often than for the first model

    def does_not_fit(self, root: str) -> None:
        """Exclude a model of which not even one layer fits on this node from later choices, until
        the node has more memory for it."""
        self._unfit[root] = self._memory()

    async def _wanted(self) -> ServingChoice | None:
        """Return the choice from what is known now, or None if there is no reason to serve any
        model.

        A choice may change later, because demand from unknown peers counts only after some time.
        """
        members, own = self._directory.members(), self._directory.own().peer
        backing = self._backing()
        choice = await self._host.offload(choose_model, members, own, backing)
        if choice is None:
            self._say(await self._host.offload(waiting_sentence, members, own, backing))
        elif not choice.settled:
            self._say("finding out which models members want")
        return choice

    async def _named_model(self, name: str) -> NameMeaning:
        """Resolve the name that the owner gave. Raises ModelError if that fails for MODEL_PATIENCE
        seconds."""
        with trio.move_on_after(MODEL_PATIENCE):
            while True:
                version = self._directory.version
                try:
                    self.meant = await self._find(name)
                    return self.meant
                except ModelError as error:
                    if error.code != "unknown-model":
                        raise
                    self._say(f"{error.message}; waiting for a node that has it")
                with trio.move_on_after(RESOLVE_PAUSE):
                    await self._directory.changed(version)
        self.meant = await self._find(name)
        return self.meant

    async def learn(self) -> None:
        """Resolve the owner's model on a node without an engine. The node still does jobs for that
        model."""
        name = self._model
        while name is not None and self.meant is None:
            version = self._directory.version
            with suppress(ModelError):
                self.meant = await self._find(name)
                return
            await trio.sleep(RESOLVE_PAUSE)
            with trio.move_on_after(SERVE_RETRY[1]):
                await self._directory.changed(version)
