"""Files of the shard that this node serves: its chunks on disk, and the name of its model."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...dht.content.manifest import Manifest
from ...dht.names import NameMeaning
from ...state.defaults import MODELS
from ...state.membership.record import ModelName
from ...transport import naming
from ...transport.host.seam import Host
from ..engine.families import Architecture, architecture
from ..engine.interface import DType, Parts
from ..errors import ServingError
from ..inference.sources import ModelSources
from ..placement.coverage import LayerSizes, Span
from ..placement.fleet import PlanModel
from ..placement.holes import parts_of
from ..placement.shard import DTypeSetting, choose_dtype


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A shard of a model that this node is to serve. `model` is the whole model."""

    manifest: Manifest
    arch: Architecture
    parts: Parts
    dtype: DType
    model: PlanModel

    @classmethod
    def whole(cls, manifest: Manifest, setting: DTypeSetting) -> "ShardPlan":
        """Return the plan for all layers of a model. Blocking: takes up to a second for a hostile
        one, with a layout of its own for each of 40,000 weights.

        Raises EngineError if the engine cannot compute the model.
        """
        arch, dtype = architecture(manifest.config), choose_dtype(manifest, setting)
        parts = parts_of(0, arch.layers, arch.layers)
        return cls(manifest, arch, parts, dtype, PlanModel.of(arch, dtype))

    @property
    def sizes(self) -> LayerSizes:
        """The memory that the layers of the whole model need."""
        return self.model.sizes

    @property
    def root(self) -> str:
        return self.manifest.root

    @property
    def span(self) -> Span:
        return self.parts.start, self.parts.stop

    def at(self, span: Span) -> "ShardPlan":
        """Return the plan for other layers of the same model."""
        return replace(self, parts=parts_of(*span, self.arch.layers))


class ShardFiles:
    """Fetching and deletion of the chunks of this node's shard."""

    def __init__(self, host: Host, sources: ModelSources) -> None:
        self._host = host
        self._sources = sources
        self._library = sources.library
        self._directory = sources.directory

    async def fetch(
        self, plan: ShardPlan, progress: Callable[[int, int], None], *, named: bool, asked: bool
    ) -> None:
        """Fetch the missing chunks of a shard, and publish that this node has chunks of the model.

        `named`: the owner named the model. `asked`: the model may exceed the default disk limit.
        `progress` receives (bytes done, total bytes). Raises ModelError if the chunks cannot be
        fetched.
        """
        root, digests = plan.root, await self._digests(plan)
        if named:
            self._library.usage.note_asked(root)
        await self._sources.fetch(root, digests, progress, asked=asked)
        if root not in (stored := self._directory.own().stored):
            self._directory.publish(stored=(*stored, root))

    async def drop_damaged(self, plan: ShardPlan, description: str) -> None:
        """Delete the damaged chunks of a shard so that they are fetched again.

        Raises ServingError if any chunk was damaged. `description` names the shard in the message.
        """
        digests = await self._digests(plan)
        dropped = await self._host.offload(self._library.store.drop_damaged, digests)
        if dropped:
            what = "1 chunk was" if dropped == 1 else f"{dropped} chunks were"
            raise ServingError(
                "damaged-chunks",
                f"{what} damaged on this disk, of {description}; fetching again",
                hint="if it happens again, look at the disk and at the memory of this machine",
            )

    async def keep_name(self, root: str, meant: NameMeaning | None) -> None:
        """Store and publish a name of the served model, so that it outlives the node that it came
        from.

        `meant` is the model that the owner named, or None.
        """
        names = self._library.names()
        given = [model for r in self._directory.members().values() for model in r.models]
        fine = (model for model in given if model.root == root and not naming.problem(model.name))
        model = next(fine, _meant_name(root, meant))
        own = self._directory.own().models
        if model is None or root in names.values() or model.name in names or len(own) >= MODELS:
            return
        await self._library.set_name(model.name, root)
        self._directory.publish(models=(*own, model))

    async def _digests(self, plan: ShardPlan) -> list[str]:
        """Return the digests of all chunks of a shard."""
        parts = plan.parts
        return await self._host.offload(
            plan.manifest.digests_of, parts.embedding, parts.start, parts.stop, parts.head
        )


def _meant_name(root: str, meant: NameMeaning | None) -> ModelName | None:
    """Return the owner's name for a model that no member names, or None if the owner gave none."""
    if meant is None or meant.root != root or not (meant.name and meant.layers):
        return None
    return ModelName(meant.name, root, meant.layers, meant.size)
