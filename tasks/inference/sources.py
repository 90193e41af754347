"""Where this node gets models from: its own disk, other copies on this machine, and the members."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import trio

from ...dht.content.library import Library
from ...dht.content.manifest import Manifest
from ...dht.defaults import PATIENCE
from ...dht.errors import ModelError, model_mishap
from ...dht.exchange.exchange import Exchange
from ...dht.names import Meaning
from ...state.directory import Directory
from ...transport.guard import Guard
from ...transport.identity import PeerId
from ..defaults import ASK_PATIENCE

Restore = Callable[[str, Sequence[str]], Awaitable[None]]
"""Restore chunks (by digest) of a model (by root) from this machine, as far as possible."""


Find = Callable[[str], Awaitable[Meaning]]
"""Resolve a model name beyond what this node and its members know. Raises ModelError."""


Reserve = Callable[[str, int], Awaitable[None]]
"""Reserve disk space, in bytes, for a model that is here only for prompts. Raises ModelError."""


async def no_other_copy(_root: str, _digests: Sequence[str]) -> None:
    """Restore nothing: the `Restore` of a machine without other copies."""


async def without_bound(_root: str, _needed: int) -> None:
    """Accept any size: the `Reserve` of a library without a disk limit."""


def resolve(text: str, library: Library, directory: Directory) -> str:
    """Return the root that a name or a prefix of a root means on this node and among its members.

    Raises ModelError `unknown-model` (with the nearest name) or `ambiguous-model`.
    """
    records = directory.members().values()
    return library.resolve(text, [(m.name, m.root) for record in records for m in record.models])


def holders(root: str, directory: Directory) -> list[PeerId]:
    """Return the other members that name, serve, or hold parts of the model."""
    own = directory.own().peer
    return [
        peer
        for peer, record in directory.members().items()
        if peer != own
        and (
            root in record.holdings
            or any(root == model.root for model in record.models)
            or any(root == shard.root for shard in record.shards)
        )
    ]


@dataclass(frozen=True, slots=True)
class Sources:
    """All sources of models of one node."""

    library: Library
    exchange: Exchange
    directory: Directory
    restore: Restore = no_other_copy
    reserve: Reserve = without_bound
    names: Find | None = None
    guard: Guard = field(default_factory=Guard)

    def holders(self, root: str) -> list[PeerId]:
        """Return the other members that name, serve, or hold parts of the model."""
        return holders(root, self.directory)

    def reading(self, model: str) -> AbstractContextManager[None]:
        """Guard a block that reads what other nodes sent of a model: a bug of ours that it
        triggers becomes a ModelError. `model` is for the report."""
        return self.guard.around(model, instead=model_mishap)

    async def find(self, name: str) -> Meaning:
        """Resolve a name or a prefix of a root. Raises ModelError."""
        if self.names is not None:
            return await self.names(name)
        await trio.lowlevel.checkpoint()
        return Meaning("", resolve(name, self.library, self.directory))

    async def manifest(self, root: str, *, patience: float = ASK_PATIENCE) -> Manifest:
        """Return a model's manifest from this disk or from a member. Raises ModelError.

        `patience`: seconds without progress before the fetch fails, because a user may be waiting.
        """
        if root in self.library.roots():
            try:
                return await self.library.manifest(root)
            except ModelError as error:  # reading has deleted a damaged manifest
                if error.code != "manifest-corrupt" or not self.holders(root):
                    raise
        return await self.exchange.fetch_manifest(
            root, lambda: self.holders(root), patience=patience
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
        """Bring those of a model's chunks here that are missing. Raises ModelError.

        `progress` gets the bytes done and the total. `asked`: the chunks may exceed the default
        disk limit. `patience`: seconds without a new chunk before the fetch fails.
        """
        await self.restore(root, digests)
        await self.exchange.fetch(
            root, digests, lambda: self.holders(root), progress, patience=patience, asked=asked
        )
