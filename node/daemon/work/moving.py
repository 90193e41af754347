"""The daemon's part in fine-tunings that move: it trains them, and keeps their checkpoints."""

from dataclasses import dataclass

from ....tasks.jobs.crew import Crew
from ....tasks.jobs.fairness import FairQueue
from ....tasks.tuning.moving.checkpoints import ArchOf, Checkpoints
from ....tasks.tuning.moving.places import TrainerPlaces
from ....tasks.tuning.moving.runner import FinetuneRunner, MovedChainSource
from ....tasks.tuning.moving.standby import MoveRequests, TrainerStandby
from ....tasks.tuning.moving.state import Vault
from ..base import Base
from ..network import NetworkParts
from .tools import JobTools


@dataclass(frozen=True, slots=True)
class Trainers:
    """What trainers use of their node: chains, and the architectures of models."""

    chains: MovedChainSource
    arch_of: ArchOf


class Moving:
    """The fine-tunings of other nodes and of this one that this node may train."""

    def __init__(
        self,
        base: Base,
        network: NetworkParts,
        tools: JobTools,
        trainers: Trainers,
        crew: Crew,
        queue: FairQueue,
    ) -> None:
        host, jobs, own = base.host, network.state.views.jobs, base.identity.peer
        self.vault = Vault(host, tools.shelf)
        self.checkpoints = Checkpoints(
            self.vault, tools.shelf, jobs, tools.models, trainers.arch_of, tools.seals
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
            host, folder, trainers.chains, self.checkpoints, standby, places
        )
        self.moves = MoveRequests(network.courier, jobs, self.runner.stop)
