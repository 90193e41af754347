"""The daemon's part in fine-tunings that move: it trains them, and keeps their checkpoints."""

from ....tasks.jobs.crew import Crew
from ....tasks.jobs.fairness import FairQueue
from ....tasks.tuning.moving.checkpoints import Checkpoints
from ....tasks.tuning.moving.places import TrainerPlaces
from ....tasks.tuning.moving.runner import FinetuneRunner
from ....tasks.tuning.moving.standby import MoveRequests, TrainerStandby
from ....tasks.tuning.moving.state import Vault
from ..base import Base
from ..network import NetworkParts
from .tools import Computing, JobTools


class Moving:
    """The fine-tunings of other nodes and of this one that this node may train."""

    def __init__(
        self,
        base: Base,
        network: NetworkParts,
        tools: JobTools,
        computing: Computing,
        crew: Crew,
        queue: FairQueue,
    ) -> None:
        host, jobs, own = base.host, network.state.views.jobs, base.identity.peer
        self.vault = Vault(host, tools.shelf)
        self.checkpoints = Checkpoints(
            self.vault, tools.shelf, jobs, tools.models, computing.arch_of, tools.seals
        )
        standby = TrainerStandby(
            host,
            network.courier,
            jobs,
            self.checkpoints,
            heirs=lambda job: crew.heirs(job.id, own),
            stores_for=tools.rules.stores_for,
        )
        folder = base.config.folder.trained
        places = TrainerPlaces(host.now, queue)
        self.runner = FinetuneRunner(
            host, folder, computing.chains, self.checkpoints, standby, places
        )
        self.moves = MoveRequests(network.courier, jobs, self.runner.stop)
