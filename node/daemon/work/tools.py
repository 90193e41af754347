"""The parts of a daemon that all its jobs use, its own and those of other nodes."""

from ....tasks.jobs.crew import IdleTime
from ....tasks.jobs.desk import JobNode
from ....tasks.jobs.models import JobModels
from ....tasks.jobs.outputs import PieceOutputs
from ....tasks.jobs.runner import Workshop
from ....tasks.jobs.sealing.seals import JobSeals
from ....tasks.jobs.services import RowServices
from ....tasks.jobs.shelf import Shelf, Storage
from ....tasks.serving.slots import Slots
from ..base import Base
from ..content import ContentParts
from ..network import NetworkParts
from .jobrules import JobRules


class JobTools:
    """What jobs of all kinds use on one node."""

    def __init__(
        self,
        base: Base,
        network: NetworkParts,
        content: ContentParts,
        services: RowServices,
        serving: Slots,
    ) -> None:
        host, live = base.host, network.directory.members
        stage, gateway = network.stage, services.gateway
        self.node = JobNode(host, network.state, base.identity.peer, network.endpoint.guard)
        self.rules = JobRules(base, network)
        """The authors for whom this node works."""
        self.seals = JobSeals(base.identity, host, self.rules.group)
        """Keys of sealed jobs."""
        storage = Storage(base.library, content.quota, content.inventory.withdraw)
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
        self.turn = IdleTime(lambda: gateway.waited_for + stage.waited_for)
        self.shop = Workshop(
            services,
            self.models,
            self.shelf,
            self.turn,
            live,
            self.seals,
            outputs=PieceOutputs(host, base.config.folder.pieces),
        )
