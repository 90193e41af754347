"""Sources of models for this node: its own disk, other copies on this machine, and the members."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import trio

from ...dht.content.library import Library
from ...dht.content.manifest import Manifest
from ...dht.defaults import PATIENCE
from ...dht.errors import ModelError, model_mishap
from ...dht.exchange.exchange import ChunkExchange
from ...dht.exchange.fetch import FetchTerms
from ...dht.names import NameMeaning
from ...state.directory import Directory
from ...transport.guard import Guard
from ...transport.identity import PeerId
from ..defaults import ASK_PATIENCE

Restore = Callable[[str, Sequence[str]], Awaitable[None]]
"""Restores as many as possible of the chunks (digests) of a model (root) from this machine."""


Find = Callable[[str], Awaitable[NameMeaning]]
"""Resolves a model name, also names that this node and its members do not know.

Raises ModelError if nothing has that name.
"""


Reserve = Callable[[str, int], Awaitable[None]]
"""Reserves disk space for a model (root, bytes) that is stored only to answer prompts.

Raises ModelError if there is not enough.
"""


async def no_other_copy(_root: str, _digests: Sequence[str]) -> None:
    """Restore nothing. Used as the `Restore` function on a machine without other copies."""


async def without_bound(_root: str, _needed: int) -> None:
    """Accept any size. Used as the `Reserve` function of a library without a disk limit."""


def resolve(text: str, library: Library, directory: Directory) -> str:
    """Return the root that a name, or a prefix of a root, denotes on this node and among its
    members.

    Raises ModelError `unknown-model` (with the most similar name) if nothing matches, and
    `ambiguous-model` if several roots do.
    """
    records = directory.members().values()
    return library.resolve(text, [(m.name, m.root) for record in records for m in record.models])


def providers(root: str, directory: Directory) -> list[PeerId]:
    """Return the other members that name or serve the model or have chunks of it."""
    own = directory.own().peer
    return [
        peer
        for peer, record in directory.members().items()
        if peer != own
        and (
            root in record.stored
            or any(root == model.root for model in record.models)
            or any(root == shard.root for shard in record.shards)
        )
    ]


@dataclass(frozen=True, slots=True)
class ModelSources:
    """All places from which one node gets models."""

    library: Library
    exchange: ChunkExchange
    directory: Directory
    restore: Restore = no_other_copy
    reserve: Reserve = without_bound
    names: Find | None = None
    guard: Guard = field(default_factory=Guard)

    def providers(self, root: str) -> list[PeerId]:
        """Return the other members that name or serve the model or have chunks of it."""
        return providers(root, self.directory)

    def reading(self, model: str) -> AbstractContextManager[None]:
        """Return a guard for a block that processes data about a model from other nodes.

        If the data triggers a bug of this program, the guard reports it and raises ModelError.
        `model` is a name for the report.
        """
        return self.guard.around(model, instead=model_mishap)

    async def find(self, name: str) -> NameMeaning:
        """Resolve a name or a prefix of a root. Raises ModelError if nothing matches."""
        if self.names is not None:
            return await self.names(name)
        await trio.lowlevel.checkpoint()
        return NameMeaning("", resolve(name, self.library, self.directory))

    async def manifest(self, root: str, *, patience: float = ASK_PATIENCE) -> Manifest:
        """Return a model's manifest from this disk or from a member. Raises ModelError if neither
        has it.

        The fetch fails after `patience` seconds without progress, because a user may be waiting.
        """
        if root in self.library.roots():
            try:
                return await self.library.manifest(root)
            except ModelError as error:  # reading has deleted a damaged manifest
                if error.code != "manifest-corrupt" or not self.providers(root):
                    raise
        return await self.exchange.fetch_manifest(
            root, lambda: self.providers(root), patience=patience
        )

    async def fetch(
        self,
        root: str,
        digests: Sequence[str],
        progress: Callable[[int, int], None] | None = None,
        *,
        asked: bool,
        patience: float = PATIENCE,
    ) -> None:
        """Fetch the chunks in `digests` that are missing here. Raises ModelError if that fails.

        `progress` receives (bytes done, total bytes). `asked`: the chunks may exceed the default
        disk limit. The fetch fails after `patience` seconds without a new chunk.
        """
        await self.restore(root, digests)
        await self.exchange.fetch(
            root, digests, lambda: self.providers(root), progress, FetchTerms(patience, asked=asked)
        )
