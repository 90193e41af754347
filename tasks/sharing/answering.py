"""Answers a client's request: by a chain of stages if its model has a root, else by a sharer."""

from collections.abc import Awaitable, Callable, Set
from typing import Protocol

from ...dht.errors import ModelError
from ...dht.names import NameMeaning
from ...state.directory import Directory
from ..errors import NoRoute
from ..inference.generation import Emit, GenerateRequest, Summary
from .asking import Asking
from .offers import WORD, SharedName, SharedOffer, called, offers_of, pinned, read_name

Generate = Callable[[GenerateRequest, Emit], Awaitable[Summary]]


class NamesNear(Protocol):
    """The names of the models with a root that this node and its members know."""

    def near(self, text: str) -> list[NameMeaning]:
        """Return the models that a name means. Raises ModelError if the name is invalid."""
        ...

    def named(self) -> Set[str]:
        """Return the names of all these models."""
        ...


class Answering:
    """Chooses for each request between a model with a root and a shared one.

    A model with a root takes precedence, because its name stands for certain weights. `rooted` is
    the gateway's function for these.
    """

    def __init__(
        self, directory: Directory, names: NamesNear, rooted: Generate, asking: Asking
    ) -> None:
        self._directory = directory
        self._names = names
        self._rooted = rooted
        self._asking = asking

    async def generate(self, request: GenerateRequest, emit: Emit) -> Summary:
        """Answer a request. Raises what `Gateway.generate` and `Asking.generate` raise."""
        if found := self.shared(request.model):
            return await self._asking.generate(request, found, emit)
        try:
            return await self._rooted(request, emit)
        except NoRoute as error:
            hint = self._hint(request.model) or error.hint
            raise NoRoute(error.message, hint=hint) from None

    def shared(self, text: str) -> list[SharedOffer]:
        """Return the offers that a name means, or none if it means a model with a root, or nothing
        known here. Raises ShareError if it names a peer that does not share the model."""
        asked = read_name(text)
        found = offers_of(self._directory.members(), asked)
        return [] if found and not asked.peer and self._has_root(text) else found

    def called(self, offer: SharedOffer) -> str:
        """Return the name by which a user asks for an offer: NAME, or NAME@PEER if a model with a
        root has the same name."""
        name = offer.model.name
        return pinned(offer, self._offers_of(name)) if self._has_root(name) else name

    def all(self) -> list[tuple[str, SharedOffer]]:
        """Return the offers of all live members, each with its name as `called` returns it."""
        return called(self._directory.members(), self._names.named())

    def _offers_of(self, name: str) -> list[SharedOffer]:
        return offers_of(self._directory.members(), SharedName(name, ""))

    def _has_root(self, text: str) -> bool:
        try:
            return bool(self._names.near(text))
        except ModelError:  # the name is invalid, which the gateway reports
            return False

    def _hint(self, text: str) -> str | None:
        """Return a hint if a model that no chain serves is also shared under the same name."""
        found = self._offers_of(text)
        return None if not found else (
            f"a member shares another model of this name ({WORD}): "
            f'`shoal run {pinned(found[0], found)} "TEXT"`'
        )  # fmt: skip
