"""What a node's library holds, for the swarm and for the quota: what must stay, what went, what is
fetched again."""

from collections.abc import Callable
from contextlib import suppress

from ..dht.errors import ModelError
from ..dht.exchange import Exchange
from ..dht.library import Library
from ..state.defaults import MODELS
from ..state.directory import Directory
from ..state.record import ModelName
from ..tasks.models import holders
from ..transport.endpoint import Endpoint
from ..transport.identity import PeerId
from .health import Health
from .providers import Providers


class Holdings:
    """Of one node. `say` gets lines for a person."""

    def __init__(
        self,
        library: Library,
        exchange: Exchange,
        directory: Directory,
        endpoint: Endpoint,
        providers: Providers,
        health: Health,
        say: Callable[[str], None],
    ) -> None:
        self._library = library
        self._exchange = exchange
        self._directory = directory
        self._endpoint = endpoint
        self._providers = providers
        self._health = health
        self._say = say

    def linked(self) -> list[PeerId]:
        """Who may be asked for a blob."""
        return [link.peer for link in self._endpoint.links()]

    async def announce(self) -> None:
        """Tell the swarm which models the library has, and of which it holds chunks."""
        models = []
        for name, root in self._library.names().items():
            try:
                manifest = await self._library.manifest(root)
            except ModelError as error:  # damaged: the other models are told of all the same
                self._health.report(f"model {name}", error.message, hint=error.hint)
                continue
            self._health.clear(f"model {name}")
            size = manifest.weight_bytes(True, 0, manifest.layers, True)
            models.append(ModelName(name, root, manifest.layers, size))
        if len(models) > MODELS:
            self._health.report(
                "many-models",
                f"the swarm is told of {MODELS} of this library's {len(models)} models",
            )
        roots = sorted(self._library.roots())
        self._directory.publish(models=tuple(models), holdings=tuple(roots))

    async def announce_chunks(self) -> None:
        """Tell the swarm which chunks are here already."""
        for root in sorted(self._library.everything()):
            with suppress(ModelError):  # damaged: `announce` has said so
                await self._exchange.announce(root)

    async def claims(self, root: str) -> set[PeerId]:
        """Others that say they hold it, members or not."""
        return {*holders(root, self._directory), *await self._providers.replicas(root)}

    def in_use(self) -> frozenset[str]:
        """What must stay: it is served, or being fetched."""
        served = {shard.root for shard in self._directory.own().shards}
        return self._exchange.fetching() | served

    def evicted(self, root: str) -> None:
        """It has made room on the disk, or was no good: the swarm is told of it no longer."""
        own = self._directory.own()
        self._directory.publish(
            models=tuple(model for model in own.models if model.root != root),
            holdings=tuple(held for held in own.holdings if held != root),
        )
        self._exchange.swarm.withdraw(root)
        self._say(f"{root[:16]} is no longer on this disk")

    def mended(self, again: int, lost: int) -> None:
        """Of chunks that were damaged on this disk, so many came again, and so many nobody had."""
        if again:
            self._say(f"{_chunks(again)} damaged on this disk, and fetched again from others")
        if not lost:
            self._health.clear("damaged")
            return
        self._health.report(
            "damaged",
            f"{_chunks(lost)} damaged on this disk, and no other node that can be found has them",
            hint="add what they belong to again: `shoal blob add FILE`, `shoal model add FOLDER`; "
            "`shoal blob list` and `shoal model list` show what is not whole",
        )

    async def repair(self, root: str, digests: list[str]) -> None:
        """Fetch damaged chunks again."""
        await self._exchange.fetch(root, digests, self.linked, asked=True)


def _chunks(count: int) -> str:
    return "1 chunk was" if count == 1 else f"{count} chunks were"
