"""The checkpoints of fine-tunings that move, by their jobs: which one is the newest, and whether it
fits."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from ....dht.errors import NotEnoughDisk
from ....state.views.jobs import Job, Jobs
from ....transport.errors import ShoalError
from ...engine.families import Architecture
from ...errors import NoRoute
from ...jobs.models import JobModels
from ...jobs.results import SavedWork
from ...jobs.sealing.seals import JobSeals
from ...jobs.shelf import Shelves
from ...jobs.spec import seal_of
from ..trainer.checkpoint import run_digest
from ..trainer.curve import Point
from ..trainer.optimiser import Learned
from . import defaults
from .spec import SizedBlob, TuningSpec, checked_shapes, opened_tuning, read_tuning
from .state import BadState, CheckpointTerms, LoadedCheckpoint, Saved, Vault

ArchOf = Callable[[str], Awaitable[Architecture]]
"""Returns the architecture of the model with a root."""


class CheckedTuning(NamedTuple):
    """A fine-tuning that was read and checked."""

    spec: TuningSpec
    arch: Architecture
    terms: CheckpointTerms


class Checkpoints:
    """The checkpoints of all fine-tunings that move, as far as this node has to do with them."""

    def __init__(
        self,
        vault: Vault,
        shelf: Shelves,
        jobs: Jobs,
        models: JobModels,
        arch_of: ArchOf,
        seals: JobSeals | None = None,
    ) -> None:
        """Create them. Without `seals`, this node does nothing for sealed fine-tunings."""
        self.seals = seals
        self._vault = vault
        self.shelf = shelf
        self._jobs = jobs
        self.models = models
        self._arch_of = arch_of

    @property
    def jobs(self) -> Collection[str]:
        """The jobs whose checkpoints this node has stored since its start."""
        return self._vault.jobs

    async def known(self, job: Job) -> CheckedTuning:
        """Return what a job asks for.

        Raises BadSpec or TuningError if it is impossible, NoRoute if this node does nothing for its
        model, ModelError if the model cannot be read, and Unsealable if the spec cannot be opened.
        """
        spec = read_tuning(job.spec)
        if not self.models.works_for(spec.root):
            raise NoRoute("this node does jobs for its own models")
        arch = await self._arch_of(spec.root)
        shapes = checked_shapes(spec.settings, arch)
        opened, seal = opened_tuning(spec, job, self.seals), None
        if spec.seal is not None and self.seals is not None:
            seal = self.seals.state_seal(job, spec.seal.mark)
        run = run_digest(spec.settings, opened.data)
        terms = CheckpointTerms(spec.settings, shapes, run, job.author, seal)
        return CheckedTuning(opened, arch, terms)

    def has_key(self, job: Job) -> bool:
        """Return whether this node can read the inputs of a fine-tuning."""
        keys = seal_of(job.spec)
        return keys is None or (self.seals is not None and self.seals.has_key(job.spec))

    async def rows(self, job: Job, spec: TuningSpec) -> bytes:
        """Return the encoded rows. Raises ModelError or BadOutcome if no node has them."""
        before = self.shelf.fetched
        data = await self.shelf.read(spec.rows.whole, job.author)
        self._vault.fetched += self.shelf.fetched - before
        return data

    async def open_rows(self, job: Job, spec: TuningSpec) -> bytes:
        """Return the encoded rows, opened if they are sealed. Raises the errors of `rows`, and
        Unsealable."""
        data, seal = await self.rows(job, spec), read_tuning(job.spec).seal
        if seal is None or self.seals is None:
            return data
        return self.seals.open_rows(job, seal, data)

    async def take(self, job: Job, work: SavedWork) -> Saved:
        """Fetch and check a checkpoint that another node has made, and keep it. Its rows are kept
        with it.

        Raises the errors of `known`, `rows`, `Vault.load` and `Vault.hold`.
        """
        known = await self.known(job)
        whole = self._vault.whole
        loaded = await self._vault.load(work, known.terms, for_peer=True)
        await self.rows(job, known.spec)
        if self._vault.whole > whole:
            self._vault.whole += known.spec.rows.size
        await self.shelf.pin([known.spec.rows.root], job.author, for_peer=True)
        await self._vault.hold(job.id, loaded.saved, job.author, for_peer=True)
        return loaded.saved

    async def newest(self, job: Job, known: CheckedTuning) -> LoadedCheckpoint | None:
        """Return the available checkpoint with the most steps, or None.

        Checkpoints that do not fit, or that no node has, are left out. Raises BadState
        if the author's own one does not fit, and NotEnoughDisk if this node has no room for one:
        an older one would repeat steps that another node need not repeat.
        """
        for work in self._candidates(job):
            try:
                whole = self._vault.whole
                loaded = await self._vault.load(work, known.terms)
                await self._vault.hold(job.id, loaded.saved, job.author)
                if self._vault.whole > whole:
                    self._vault.whole += known.spec.rows.size
                return loaded
            except NotEnoughDisk:
                raise
            except ShoalError:
                continue
        start = known.spec.start
        if start is None:
            return None
        loaded = await self._vault.load(SavedWork(start.root, start.size), known.terms)
        await self._vault.hold(job.id, loaded.saved, job.author)
        return loaded

    def _candidates(self, job: Job) -> Sequence[SavedWork]:
        """Return the checkpoints that claims name, and the latest one here, by their steps."""
        found = list[tuple[int, SavedWork]]()
        for claim in self._jobs.saved_of(job.id):
            with suppress(ShoalError):
                found.append((claim.step, SavedWork.read(claim.saved, defaults.MANIFEST_BYTES)))
        if (own := self._vault.latest(job.id)) is not None:
            found.append((own.step, own.work))
        ordered = sorted(found, key=lambda each: -each[0])
        return list(dict.fromkeys(work for _, work in ordered))

    async def save(
        self, job: str, terms: CheckpointTerms, learned: Learned, points: Sequence[Point]
    ) -> Saved:
        """Store a checkpoint of this node's own work. Raises ModelError if the disk refuses it."""
        return await self._vault.save(job, terms, learned, points)

    async def load(self, work: SavedWork, terms: CheckpointTerms) -> LoadedCheckpoint:
        """Return a checkpoint. Raises the errors of `Vault.load`."""
        return await self._vault.load(work, terms)

    async def tidy(self) -> None:
        """Delete the checkpoints of jobs that no longer exist."""
        for job in list(self._vault.jobs):
            standing = self._jobs.get(job)
            if standing is None or standing.job is None:
                await self._vault.forget(job)


__all__ = ["BadState", "CheckedTuning", "Checkpoints", "SizedBlob"]
