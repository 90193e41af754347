"""The daemon's part in fine-tunings of its own users: models, chains, and where results go."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ....dht.content.manifest import Manifest
from ....tasks.tuning.averaging.averager import AveragingNode
from ....tasks.tuning.averaging.parcels import Parcels
from ....tasks.tuning.moving.checking import HeldOutCheck
from ....tasks.tuning.moving.remote import RemoteParts, RemoteTunings
from ....tasks.tuning.trainer.accepting import Tunable
from ....tasks.tuning.trainer.encoding import Encoder
from ....tasks.tuning.trainer.errors import TuningError
from ....tasks.tuning.trainer.surroundings import Surroundings
from ....tasks.tuning.trainer.tunings import Tunings
from ....tasks.tuning.whole.models import Computer, Content, WholeModels
from ..base import Base
from ..compute import ComputeParts
from ..content import ContentParts
from ..network import NetworkParts


class TuningParts:
    """The fine-tunings of one daemon. It is created after the parts that compute."""

    def __init__(
        self, base: Base, network: NetworkParts, content: ContentParts, compute: ComputeParts
    ) -> None:
        self._host = base.host
        self._content = content
        self._state = network.state
        self._models = compute.models
        self._seals = compute.working.tools.seals
        working, moving = compute.working, compute.working.moving
        self.replication = working.own.replication
        """Replication of the jobs of this node's user."""
        self.vault = moving.vault
        """The checkpoints of fine-tunings that move."""
        remote = RemoteTunings(
            working.tools.node,
            RemoteParts(
                working.own.desk,
                working.own.submitter,
                working.tools.shelf,
                working.own.replication,
                moving.moves,
                moving.runner,
                working.tools.seals,
                HeldOutCheck(base.host, compute.tuning, compute.arch_of),
            ),
            moving.vault,
        )
        self.tunings = Tunings(
            base.host,
            base.config.folder.tunings,
            Surroundings(
                compute.tuning, compute.arch_of, self._publish, self._named,
                _averaging(base, network, content), remote, _whole(base, content, compute),
            ),
            network.endpoint.guard,
        )  # fmt: skip

    def check_seal(self) -> None:
        """Raise JobError `no-group` or GroupRefused `not-ready` if nothing can be sealed for a
        group now."""
        self._seals.newest()

    @property
    def is_private(self) -> bool:
        """Whether this node is in a private swarm, whose members train for each other."""
        return self._state.upkeep is not None

    @asynccontextmanager
    async def tunable(self, name: str) -> AsyncIterator[Tunable]:
        """Provide a model that is to be tuned until the block ends.

        Raises ModelError or TextError if it cannot be found, fetched or loaded.
        """
        async with self._models.use(name) as model:
            if model.arch is None:
                raise TuningError("unsupported-model", f"the layers of `{name}` are unknown")
            encoder: Encoder = model.text
            yield Tunable(model.root, model.arch, model.context, encoder)

    async def _named(self) -> set[str]:
        return set(await self._content.adapters.names())

    async def _publish(self, folder: Path, name: str, base: str) -> str:
        """Add an adapter to the library, and announce it."""
        content, size = self._content, self._host.files.size
        weights = await self._host.offload(size, folder / "adapter_model.safetensors")
        await content.quota.evict_for(2 * (weights or 0), asked=True)  # with the temporary file
        added = await content.adapters.add(folder, name, base)
        await content.exchange.announce(added.root)
        return added.root


def _whole(base: Base, content: ContentParts, compute: ComputeParts) -> WholeModels:
    """Return what trains all weights of models on this node."""

    async def fetch(root: str) -> Manifest:
        manifest = await content.sources.manifest(root)
        await content.sources.fetch(root, list(manifest.chunks), asked=True)
        return manifest

    async def make_room(size: int) -> None:
        await content.quota.evict_for(size, asked=True)

    async def announce(root: str) -> None:
        await content.inventory.announce()
        await content.exchange.announce(root)

    return WholeModels(
        base.host,
        Content(base.library, fetch, make_room, announce),
        Computer(
            base.threads,
            lambda: compute.serving.free_bytes,
            lambda: None if base.engine else base.no_engine,
            compute.serving.reserve,
        ),
    )


def _averaging(base: Base, network: NetworkParts, content: ContentParts) -> AveragingNode:
    """Return what averages with other nodes. A daemon has one: it registers a handler."""
    endpoint = network.endpoint
    parcels = Parcels(base.host, endpoint, content.providers.connect)
    return AveragingNode(base.host, network.state, base.identity.peer, parcels, endpoint.guard)
