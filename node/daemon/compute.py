"""The parts of a daemon that compute: the gateway's sessions, the served layers, and jobs."""

from dataclasses import replace

from ...dht.content.scrub import Scrub
from ...tasks.engine.families import Architecture, architecture
from ...tasks.engine.passes import TuningEngine
from ...tasks.inference.embedding import encoded
from ...tasks.inference.gateway import Finders, Gateway
from ...tasks.inference.models import Models
from ...tasks.inference.stage import Stage
from ...tasks.jobs.services import RowServices
from ...tasks.placement.demand import Backing
from ...tasks.serving.asked import AskedShards
from ...tasks.serving.interface import DeviceShare, ServingDevices, ServingSettings
from ...tasks.serving.slots import Slots
from ...tasks.tuning.chain.chains import TuningChains
from ...tasks.tuning.scoring import Scorer
from ...tasks.tuning.stage.stage import TuningStage
from ..models.consent import Witnesses, backing_of
from ..swarm.grouping import Grouping
from ..swarm.seeking import Seeking
from .base import Base
from .chunks import ChunkParts
from .content import ContentParts
from .interest import StateInterest
from .network import NetworkParts
from .sharing import SharingParts
from .work.jobs import Working
from .work.tools import Computing


class ServingParts:
    """The layers that one daemon serves (`slots`). It listens for requests of gateways to load a
    model, if it has an engine."""

    def __init__(
        self,
        base: Base,
        network: NetworkParts,
        content: ContentParts,
        stage: Stage,
        gateway: Gateway,
    ) -> None:
        self._gateway = gateway
        self._witnesses = Witnesses(
            network.endpoint, network.dialer, base.library, network.state, base.inviter
        )
        config, memory = base.config, base.capacity.memory_bytes
        settings = ServingSettings(memory, config.model, config.layers, config.dtype)
        shares = [DeviceShare(*each) for each in zip(base.engines, base.shares, strict=True)]
        devices = ServingDevices(stage, shares, base.no_engine)
        self.slots = Slots(base.host, devices, content.sources, settings, backing=self._backing)
        if base.engine is not None:
            AskedShards(
                base.host,
                stage,
                self.slots,
                content.sources,
                settings,
                backing=self._backing,
            ).listen(network.courier)

    def _backing(self) -> Backing:
        """Return the evidence for models that the owner did not name."""
        return replace(backing_of(self._witnesses), slower=self._gateway.choice.slower)


class ComputeParts:
    """The parts of one daemon that compute, and the parts that depend on what it computes."""

    def __init__(self, base: Base, network: NetworkParts, content: ContentParts) -> None:
        host, directory, endpoint = base.host, network.directory, network.endpoint
        self._base, self._network, self._content = base, network, content
        self.chunks = ChunkParts(base, network, content, base.engine) if base.engine else None
        self.stage = Stage(
            host, network.courier, base.engine,
            table=network.shards, adapters=content.adapter_files,
            connector=None if self.chunks is None else self.chunks.connector,
        )  # fmt: skip
        self.models = self._new_models()
        self.interest = StateInterest(base, directory, network.state)
        self.interest.look()
        self.gateway = self._new_gateway()
        self.sharing = SharingParts(base, network, content, self.stage.meter, self.gateway)
        self.serving = ServingParts(base, network, content, self.stage, self.gateway).slots
        self.grouping = Grouping(
            network.state, base.credentials, endpoint, network.membership, base.health,
            self._regrouped,
        )  # fmt: skip
        able = base.engine if isinstance(base.engine, TuningEngine) else None
        self.tuning_stage = TuningStage(
            host, network.courier, able, self.stage.find_shard, self.stage.meter, network.payers
        )
        self.tuning = TuningChains(host, network.courier, directory, self.tuning_stage)
        read = content.adapter_files.read
        scorer = Scorer(self.models.use, encoded, self.tuning.chain, read)
        services = RowServices(self.gateway, scorer)
        computing = Computing(services, self.stage, self.serving, self.tuning, self.arch_of)
        self.working = Working(base, network, content, computing)
        self.scrub = Scrub(
            host,
            base.library,
            base.config.folder.scrub,
            repair=content.inventory.repair,
            tell=content.inventory.mended,
            idle=self._is_idle,
        )

    async def arch_of(self, root: str) -> Architecture:
        """Return the architecture of a model, whose manifest may have to be fetched first."""
        return architecture((await self._content.sources.manifest(root)).config)

    def _regrouped(self, why: str | None) -> None:
        """Serve and share nothing while `why` is not None, and store what the role requires."""
        self.serving.bar(why)
        self.sharing.sharing.bar(why)
        self.interest.look()

    def _new_models(self) -> Models:
        base = self._base
        return Models(
            base.host,
            self._content.sources,
            memory=lambda: base.capacity.memory_bytes - self.serving.loaded_bytes,
        )

    def _new_gateway(self) -> Gateway:
        network, content, directory = self._network, self._content, self._network.directory
        seeking = Seeking(
            self._base.host, network.discovery.dht, directory, content.providers,
            self.interest.look, network.endpoint.guard,
        )  # fmt: skip
        return Gateway(
            self._base.host, network.courier, directory, self.models,
            finders=Finders(seeking.seek, content.adapter_files.named), expect=self.stage.hold,
        )  # fmt: skip

    def _is_idle(self) -> bool:
        """Return whether no session is open here and nothing is being fetched."""
        sessions = self.gateway.sessions or self.stage.sessions
        return not (sessions or self._content.exchange.fetching())
