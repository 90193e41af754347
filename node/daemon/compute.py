"""The parts of a daemon that compute: the gateway's sessions, the served layers, and jobs."""

from dataclasses import replace

from ...dht.content.scrub import Scrub
from ...tasks.engine.families import Architecture, architecture
from ...tasks.engine.passes import TuningEngine
from ...tasks.inference.embedding import encoded
from ...tasks.inference.gateway import Gateway
from ...tasks.inference.models import Models
from ...tasks.jobs.services import RowServices
from ...tasks.placement.demand import Backing
from ...tasks.serving.asked import AskedShards
from ...tasks.serving.interface import DeviceShare, ServingDevices, ServingSettings
from ...tasks.serving.slots import Slots
from ...tasks.tuning.chain.chains import TuningChains
from ...tasks.tuning.scoring import Scorer
from ...tasks.tuning.stage.stage import TuningStage
from ...tasks.usage.paying import Payers
from ..models.consent import Witnesses, backing_of
from ..swarm.grouping import Grouping
from ..swarm.seeking import Seeking
from .base import Base
from .chunks import ChunkParts
from .content import ContentParts
from .interest import Keeping
from .jobs import Working
from .moving import Trainers
from .network import NetworkParts
from .sharing import SharingParts


class ComputeParts:
    """The parts of one daemon that compute, and the parts that depend on what it computes."""

    def __init__(self, base: Base, network: NetworkParts, content: ContentParts) -> None:
        host, directory, endpoint = base.host, network.directory, network.endpoint
        self._base, self._network, self._content = base, network, content
        self._witnesses = Witnesses(
            endpoint, network.dialer, base.library, network.state, base.inviter
        )
        self.stage = network.stage
        self.models = self._new_models()
        chooses = base.engine is not None and base.config.model is None
        self.keeping = Keeping(
            base.library, directory, network.state, chooses=chooses, works=base.works
        )
        self.keeping.look()
        seeking = Seeking(
            host, network.discovery.dht, directory, content.providers, self.keeping.look,
            endpoint.guard,
        )  # fmt: skip
        self.gateway = Gateway(
            host, network.courier, directory, self.models,
            seek=seeking.seek, find_adapter=content.adapter_files.named, expect=self.stage.hold,
        )  # fmt: skip
        self.sharing = SharingParts(base, network, content, self.gateway)
        self.chunks = None
        if base.engine is not None:
            self.chunks = ChunkParts(base, network, content, base.engine)
        self.serving = self._new_serving()
        if base.engine is not None:
            AskedShards(
                host, self.stage, self.serving, content.sources, self._serving_settings(),
                backing=self._serving_backing,
            ).listen(network.courier)  # fmt: skip
        self.grouping = Grouping(
            network.state, base.credentials, endpoint, network.membership, base.health,
            self.bar, self.keeping.look,
        )  # fmt: skip
        able = base.engine if isinstance(base.engine, TuningEngine) else None
        payers = Payers(network.state.views.jobs, endpoint.guard)
        self.tuning_stage = TuningStage(
            host, network.courier, able, self.stage.find_shard, self.stage.meter, payers
        )
        self.tuning = TuningChains(host, network.courier, directory, self.tuning_stage)
        adapters = content.adapter_files
        scorer = Scorer(self.models.use, encoded, self.tuning.chain, adapters.read)
        services = RowServices(self.gateway, scorer)
        trainers = Trainers(self.tuning, self.arch_of)
        self.working = Working(base, network, content, services, self.serving, trainers, payers)
        self.scrub = Scrub(
            host,
            base.library,
            base.config.folder.scrub,
            repair=content.holdings.repair,
            tell=content.holdings.mended,
            idle=self._is_idle,
        )

    async def arch_of(self, root: str) -> Architecture:
        """Return the architecture of a model, whose manifest may have to be fetched first."""
        return architecture((await self._content.sources.manifest(root)).config)

    def bar(self, why: str | None) -> None:
        """Serve and share nothing while `why` is not None."""
        self.serving.bar(why)
        self.sharing.sharing.bar(why)

    def _new_models(self) -> Models:
        base = self._base
        return Models(
            base.host,
            self._content.sources,
            memory=lambda: base.capacity.memory_bytes - self.serving.loaded_bytes,
        )

    def _new_serving(self) -> Slots:
        base = self._base
        return Slots(
            base.host,
            ServingDevices(
                self.stage,
                [DeviceShare(*each) for each in zip(base.engines, base.shares, strict=True)],
                base.no_engine,
            ),
            self._content.sources,
            self._serving_settings(),
            backing=self._serving_backing,
        )

    def _serving_settings(self) -> ServingSettings:
        config, memory = self._base.config, self._base.capacity.memory_bytes
        return ServingSettings(memory, config.model, config.layers, config.dtype)

    def _serving_backing(self) -> Backing:
        """Return the evidence for models that the owner did not name."""
        return replace(backing_of(self._witnesses), slower=self.gateway.slower)

    def _is_idle(self) -> bool:
        """Return whether no session is open here and nothing is being fetched."""
        sessions = self.gateway.sessions or self.stage.sessions
        return not (sessions or self._content.exchange.fetching())
