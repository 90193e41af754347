"""What fine-tunings use of their node, as interfaces that the daemon fills in."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ....transport.identity import PeerId
from ...engine.families import Architecture
from ..averaging.averager import AveragingNode
from ..averaging.layout import Averaged
from ..interface import LearnedTensors, TuningChain
from .curve import Point
from .errors import TuningError
from .optimiser import Learned
from .plan import Errand
from .subject import Subject
from .training import Progress


class ChainSource(Protocol):
    """Source of chains that compute the layers of a model."""

    def chain(self, root: str, arch: Architecture) -> TuningChain: ...


Publish = Callable[[Path, str, str], Awaitable[str]]
"""(`peft` folder, name, root of the model): adds an adapter to the library, returns its root."""
ArchOf = Callable[[str], Awaitable[Architecture]]
"""Returns the architecture of the model with a root."""
Named = Callable[[], Awaitable[set[str]]]
"""Returns the names that adapters have on this node."""


class WholeTraining(Protocol):
    """What trains all weights of a model on this node. `WholeModels` implements it."""

    async def named(self) -> set[str]:
        """Return the names that models have on this node."""
        ...

    async def check(self, root: str, arch: Architecture, length: int, *, together: bool) -> None:
        """Raise TuningError if this node cannot train a model with rows of `length` tokens."""
        ...

    def subject(
        self, root: str, length: int, *, together: bool
    ) -> AbstractAsyncContextManager[Subject]:
        """Provide the weights of a model until the block ends, with the memory that rows of
        `length` tokens need reserved. Raises TuningError `no-memory` if it is not free."""
        ...

    def averaged(self, name: str, root: str, arch: Architecture, every: int) -> Averaged:
        """Return the weights of a model as they are averaged with others."""
        ...

    async def write(self, folder: Path, root: str, tensors: LearnedTensors) -> None:
        """Write a trained model as a folder. Raises OSError if the disk fails."""
        ...

    async def publish(self, folder: Path, name: str) -> str:
        """Add the model in a folder to the library. Return its root."""
        ...


State = tuple[Learned, Sequence[Point]]
"""State of a fine-tuning, and its loss curve up to there."""


class RemoteTraining(Protocol):
    """Fine-tunings of this node that any node may train, as jobs. `RemoteTunings` implements it."""

    async def submit(self, errand: Errand, start: State | None) -> str:
        """Submit a fine-tuning that begins at the state `start`, or at step 0 if that is None.

        Returns the id of its job. If this is cancelled, there is no job.
        """
        ...

    async def replicate(self, job: str, progress: Progress) -> None:
        """Have other nodes store a job and its rows, for some seconds. Show if none does."""
        ...

    async def follow(
        self, job: str, errand: Errand, progress: Progress, show: Callable[[list[Point]], None]
    ) -> State:
        """Show the progress of a submitted fine-tuning until it is done. Return its last state."""
        ...

    async def take_back(self, job: str, errand: Errand) -> State | None:
        """End a fine-tuning, and return its newest available state, or None."""
        ...

    async def move(self, job: str) -> None:
        """Have the trainer of a job stop, so that another node continues."""
        ...

    def trainer(self, job: str) -> PeerId | None:
        """Return the peer that works on a job now, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What fine-tunings use of their node."""

    chains: ChainSource
    arch_of: ArchOf
    publish: Publish
    named: Named
    averaging: AveragingNode | None = None
    """Where adapters are averaged with those of other nodes, or None if they cannot be."""
    remote: RemoteTraining | None = None
    """Where other nodes train them, or None if none may."""
    whole: WholeTraining | None = None
    """What trains all weights of a model, or None if nothing does."""

    def whole_training(self) -> WholeTraining:
        """Return what trains all weights of a model. Raises TuningError `no-full` if nothing
        does."""
        if self.whole is None:
            raise TuningError(
                "no-full", "this node cannot train all weights of a model",
                hint="leave out `--full` to train an adapter",
            )  # fmt: skip
        return self.whole
