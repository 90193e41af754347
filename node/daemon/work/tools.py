"""The parts of a daemon that all its jobs use, its own and those of other nodes."""

from dataclasses import dataclass

from ....tasks.inference.stage import Stage
from ....tasks.jobs.crew import IdleTime
from ....tasks.jobs.desk import JobNode
from ....tasks.jobs.models import JobModels
from ....tasks.jobs.outputs import PieceOutputs
from ....tasks.jobs.runner import Workshop
from ....tasks.jobs.sealing.seals import JobSeals
from ....tasks.jobs.services import RowServices
from ....tasks.jobs.shelf import Shelf, Storage
from ....tasks.serving.slots import Slots
from ....tasks.tuning.moving.checkpoints import ArchOf
from ....tasks.tuning.moving.runner import MovedChainSource
from ..base import Base
from ..content import ContentParts
from ..network import NetworkParts
from .jobrules import JobRules


@dataclass(frozen=True, slots=True)
class Computing:
    """The parts of one node with which its jobs compute."""

    services: RowServices
    stage: Stage
    serving: Slots
    chains: MovedChainSource
    """Chains of layers to train."""
    arch_of: ArchOf
    """Returns the architecture of a model, by its root."""


class JobTools:
    """What jobs of all kinds use on one node."""

    def __init__(
        self, base: Base, network: NetworkParts, content: ContentParts, computing: Computing
    ) -> None:
        host, live = base.host, network.directory.members
        services, serving, stage = computing.services, computing.serving, computing.stage
        self.node = JobNode(host, network.state, base.identity.peer, network.endpoint.guard)
        self.rules = JobRules(base, network)
        """The authors that this node works for."""
        self.seals = JobSeals(base.identity, host, self.rules.group)
        """Keys of sealed jobs."""
        storage = Storage(base.library, content.quota, content.announced.withdraw)
        self.shelf = Shelf(
            host,
            storage,
            content.exchange,
            base.config.folder.shelf,
            own=base.identity.peer,
            linked=content.inventory.linked,
        )
        """Blobs with the inputs and outputs of jobs."""
        self.models = JobModels(
            live,
            host.now,
            works_for=lambda root: serving.is_for(root) or base.library.is_named(root),
        )
        self.turn = IdleTime(lambda: services.gateway.waited_for + stage.waited_for)
        self.shop = Workshop(
            services,
            self.models,
            self.shelf,
            self.turn,
            live,
            self.seals,
            outputs=PieceOutputs(host, base.config.folder.pieces, self.seals.state_seal),
        )
