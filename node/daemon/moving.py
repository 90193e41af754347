"""The daemon's part in fine-tunings that move: it trains them, and keeps their checkpoints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...state.views.jobs import Job
from ...tasks.jobs.fairness import FairQueue
from ...tasks.jobs.models import JobModels
from ...tasks.jobs.sealing.seals import JobSeals
from ...tasks.jobs.shelf import Shelves
from ...tasks.tuning.moving.checkpoints import ArchOf, Checkpoints
from ...tasks.tuning.moving.runner import FinetuneRunner, MovedChainSource
from ...tasks.tuning.moving.standby import TrainerStandby
from ...tasks.tuning.moving.state import Vault
from ...transport.identity import PeerId
from .base import Base
from .network import NetworkParts


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
        models: JobModels,
        shelf: Shelves,
        trainers: Trainers,
        seals: JobSeals,
    ) -> None:
        host, jobs = base.host, network.state.views.jobs
        self.vault = Vault(host, shelf)
        self.checkpoints = Checkpoints(self.vault, shelf, jobs, models, trainers.arch_of, seals)
        self.standby = TrainerStandby(host, network.courier, jobs, self.checkpoints)
        folder = base.config.folder.trained
        self.runner = FinetuneRunner(host, folder, trainers.chains, self.checkpoints, self.standby)

    def connect(
        self,
        heirs: Callable[[Job], Sequence[PeerId]],
        keeps: Callable[[PeerId], bool],
        queue: FairQueue,
    ) -> None:
        """Set the heirs of a job, the authors whose checkpoints this node keeps, and the order of
        users in which authors are charged."""
        self.standby.heirs, self.standby.keeps = heirs, keeps
        self.runner.places.queue = queue
