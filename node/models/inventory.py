"""Announces the contents of a node's library to the swarm, and handles evicted and damaged
content.

The disk quota asks `AnnouncedRoots`. `Inventory` is built after the exchange, which uses the quota.
"""

from collections.abc import Callable
from contextlib import suppress

from ...dht.content.library import Library
from ...dht.errors import ModelError
from ...dht.exchange.exchange import ChunkExchange
from ...dht.exchange.fetch import FetchTerms
from ...state.defaults import MODELS
from ...state.directory import Directory
from ...state.membership.record import ModelName
from ...tasks.inference.sources import providers
from ...transport.dial.endpoint import Endpoint
from ...transport.identity import PeerId
from ..health import Health
from .providers import Providers


class AnnouncedRoots:
    """Roots as nodes have announced them: which others claim to have one, and which this node
    withdraws because it was evicted or found damaged."""

    def __init__(
        self, directory: Directory, providers: Providers, say: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._providers = providers
        self._say = say

    async def claims(self, root: str) -> set[PeerId]:
        """Return the other nodes that claim to hold a root. The claims come from member records and
        from the DHT."""
        return {*providers(root, self._directory), *await self._providers.replicas(root)}

    def in_use(self) -> frozenset[str]:
        """Return the roots that must not be evicted because this node serves them."""
        return frozenset(shard.root for shard in self._directory.own().shards)

    def evicted(self, root: str) -> None:
        """Withdraw the announcements of a root that was evicted or found damaged, and tell the
        owner."""
        self.withdraw(root)
        self._say(f"{root[:16]} is no longer on this disk")

    def withdraw(self, root: str) -> None:
        """Withdraw the announcements of a root."""
        own = self._directory.own()
        self._directory.publish(
            models=tuple(model for model in own.models if model.root != root),
            stored=tuple(held for held in own.stored if held != root),
        )
        self._providers.withdraw(root)


class Inventory:
    """Contents of one node's library, as announced to the swarm."""

    def __init__(
        self,
        library: Library,
        exchange: ChunkExchange,
        directory: Directory,
        endpoint: Endpoint,
        health: Health,
        say: Callable[[str], None],
    ) -> None:
        self._library = library
        self._exchange = exchange
        self._directory = directory
        self._endpoint = endpoint
        self._health = health
        self._say = say

    def linked(self) -> list[PeerId]:
        """Return the linked peers, which can be asked for a blob."""
        return [link.peer for link in self._endpoint.links()]

    async def announce(self) -> None:
        """Publish in the member record which models the library has names for, and of which roots
        it has chunks."""
        models = []
        for name, root in self._library.names().items():
            try:
                manifest = await self._library.manifest(root)
            except ModelError as error:  # damaged; announce the other models anyway
                self._health.report(f"model {name}", error.message, hint=error.hint)
                continue
            self._health.clear(f"model {name}")
            size = manifest.weight_bytes(True, 0, manifest.layers, True)
            models.append(ModelName(name, root, manifest.layers, size))
        if len(models) > MODELS:
            self._health.report(
                "many-models",
                f"only {MODELS} of this library's {len(models)} models are announced to the swarm",
            )
        roots = sorted(self._library.roots())
        self._directory.publish(models=tuple(models), stored=tuple(roots))

    async def announce_chunks(self) -> None:
        """Announce, for every root of the library, which of its chunks are stored here."""
        for root in sorted(self._library.everything()):
            with suppress(ModelError):  # damaged: `announce` has reported it
                await self._exchange.announce(root)

    def mended(self, again: int, lost: int) -> None:
        """Report the result of a repair. `again` is the number of damaged chunks that were fetched
        again, and `lost` the number of those that no node had."""
        if again:
            self._say(f"{_chunks(again)} damaged on this disk, and fetched again from others")
        if not lost:
            self._health.clear("damaged")
            return
        self._health.report(
            "damaged",
            f"{_chunks(lost)} damaged on this disk, and no reachable node has a copy",
            hint="add their files again: `shoal blob add FILE`, `shoal model add FOLDER`; "
            "`shoal blob list` and `shoal model list` show what is incomplete",
        )

    async def repair(self, root: str, digests: list[str]) -> None:
        """Fetch damaged chunks of a root again."""
        await self._exchange.fetch(root, digests, self.linked, terms=FetchTerms(asked=True))


def _chunks(count: int) -> str:
    return "1 chunk was" if count == 1 else f"{count} chunks were"
