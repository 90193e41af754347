"""Checkpoints of content-addressed parts: format, storing and loading.

The adapter, both moments, the best adapter and each page of the loss curve are a blob of their own.
A part that has not changed since the last checkpoint has the same root, so it is stored once, and a
node that has it fetches only the others. A small blob, the manifest, names them. Spec:
docs/spec/moving.md.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from msgspec import Meta

from ....transport.decoding import decode, typed
from ....transport.errors import Undecodable
from ....transport.host.seam import Host
from ....transport.message import Message, pack
from ...engine.layouts import Shape
from ...jobs.errors import Unsealable
from ...jobs.results import SavedWork
from ...jobs.sealing.states import StateSeal
from ...jobs.shelf import Shelves
from ..interface import LearnedName
from ..trainer import defaults as trainer_defaults
from ..trainer.curve import Point, encode_point
from ..trainer.errors import TuningError
from ..trainer.optimiser import Array, Learned, Shapes, tensor_shapes
from ..trainer.settings import TuningSettings
from . import defaults
from .spec import SizedBlob

FORMAT: Final = "shoal-tuning-state/1"
_Step = Annotated[int, Meta(ge=0, le=trainer_defaults.STEPS_MOST)]


class BadState(TuningError):
    """A checkpoint that another node has made cannot be used."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "bad-checkpoint",
            f"the checkpoint of another node cannot be used: {why}",
            hint="the fine-tuning goes on from an older one",
        )


class _CheckpointManifest(Message, frozen=True):
    format: str
    run: str  # digest of the settings and the data
    step: _Step
    loss: float
    norms: Annotated[tuple[float, ...], Meta(max_length=trainer_defaults.NORMS)]
    tensors: SizedBlob
    first: SizedBlob
    second: SizedBlob
    curve: Annotated[tuple[SizedBlob, ...], Meta(max_length=defaults.PAGES)] = ()
    best: SizedBlob | None = None
    best_loss: float = 0.0
    best_step: _Step = 0

    def check(self) -> None:
        """Raise ValueError if a number cannot be."""
        values = (self.loss, self.best_loss, *self.norms)
        if not all(math.isfinite(each) for each in values) or min(self.loss, *self.norms, 0.0) < 0:
            raise ValueError("a loss or a norm is negative or not finite")
        if self.best_step > self.step:
            raise ValueError("its best step comes after its last one")


@dataclass(frozen=True, slots=True)
class Saved:
    """A stored checkpoint: its manifest, and the roots of the manifest and of all parts."""

    work: SavedWork
    step: int
    roots: frozenset[str]


@dataclass(frozen=True, slots=True)
class Seen:
    """A checkpoint without its tensors. `best` is the lowest held-out loss, or None."""

    step: int
    points: list[Point]
    best: float | None
    best_step: int


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint in memory."""

    learned: Learned
    points: list[Point]
    saved: Saved


@dataclass(frozen=True, slots=True)
class CheckpointTerms:
    """Properties that a checkpoint must fit: settings, shapes of the model's modules,
    digest of the run, the author of the job, for which parts are kept, and their seal, or
    None."""

    settings: TuningSettings
    shapes: Shapes
    run: str
    author: str
    seal: StateSeal | None = None

    @property
    def extra(self) -> int:
        """Bytes that a stored part has more than its content."""
        return 0 if self.seal is None else self.seal.extra


class Vault:
    """The checkpoints of fine-tunings that move, on one node, of which each has the latest here."""

    def __init__(self, host: Host, shelf: Shelves) -> None:
        self._host = host
        self.shelf = shelf
        self._latest: dict[str, Saved] = {}  # by job
        self.fetched = 0
        """Bytes of checkpoints that were fetched from other nodes."""
        self.whole = 0
        """Bytes of the same checkpoints if all their parts had been fetched."""

    def latest(self, job: str) -> Saved | None:
        """Return the latest checkpoint of a job that this node has stored since its start."""
        return self._latest.get(job)

    @property
    def jobs(self) -> Collection[str]:
        """The jobs whose checkpoints this node has stored since its start."""
        return self._latest.keys()

    async def save(
        self, job: str, terms: CheckpointTerms, learned: Learned, points: Sequence[Point]
    ) -> Saved:
        """Store a checkpoint, and delete the parts of the previous one that this one does not use.

        Raises ModelError if the disk is full or fails.
        """
        names = list(learned.tensors)
        parts = dict[str, SizedBlob]()
        groups = [("tensors", learned.tensors), ("first", learned.first)]
        groups += [("second", learned.second), ("best", learned.best)]
        for name, group in groups:
            if group:
                data = await self._host.offload(_joined, group, names)
                parts[name] = await self._put(data, terms)
        known = [point for point in points if point.step <= learned.step]
        curve = [
            await self._put(b"".join(map(encode_point, known[at : at + defaults.PAGE])), terms)
            for at in range(0, len(known), defaults.PAGE)
        ]
        best = math.isfinite(learned.best_loss)
        manifest = _CheckpointManifest(
            FORMAT, terms.run, learned.step, learned.loss, tuple(learned.norms), parts["tensors"],
            parts["first"], parts["second"], tuple(curve), parts.get("best"),
            learned.best_loss if best else 0.0, learned.best_step,
        )  # fmt: skip
        stored = await self._put(pack(manifest), terms, announced=True)
        roots = {stored.root, *(part.root for part in (*parts.values(), *curve))}
        saved = Saved(SavedWork(stored.root, stored.size), learned.step, frozenset(roots))
        await self.hold(job, saved, terms.author)
        return saved

    async def _put(
        self, data: bytes, terms: CheckpointTerms, *, announced: bool = False
    ) -> SizedBlob:
        """Store a part, sealed if the terms say so."""
        if terms.seal is not None:
            data = await self._host.offload(terms.seal.seal, data)
        root = await self.shelf.put(data, terms.author, announced=announced)
        return SizedBlob(root, len(data))

    async def _read(
        self, part: SizedBlob, terms: CheckpointTerms, *, for_peer: bool = False
    ) -> bytes:
        """Return the content of a part. Raises BadState if it cannot be opened."""
        data = await self.shelf.read(part.whole, terms.author, for_peer=for_peer)
        if terms.seal is None:
            return data
        try:
            return await self._host.offload(terms.seal.open, data)
        except Unsealable as error:
            raise BadState(error.message) from None

    async def hold(self, job: str, saved: Saved, author: str, *, for_peer: bool = False) -> None:
        """Let a checkpoint be the latest of a job. Delete what nothing else here needs.

        `for_peer` says that a peer has asked for it. Then this raises JobsDiskFull if there is no
        room to keep it, and ModelError if a part of it was evicted meanwhile.
        """
        await self.shelf.pin(saved.roots, author, for_peer=for_peer)
        before = self._latest.get(job)
        self._latest[job] = saved
        if before is not None:
            await self._drop(before.roots)

    async def forget(self, job: str) -> None:
        """Delete the latest checkpoint of a job."""
        saved = self._latest.pop(job, None)
        if saved is not None:
            await self._drop(saved.roots)

    async def _drop(self, roots: frozenset[str]) -> None:
        needed = frozenset[str]().union(*(each.roots for each in self._latest.values()))
        for root in sorted(roots - needed):
            await self.shelf.drop(root)

    async def load(
        self, work: SavedWork, terms: CheckpointTerms, *, for_peer: bool = False
    ) -> LoadedCheckpoint:
        """Return a checkpoint whose missing parts are fetched from any node that has them.
        `for_peer` says that a peer has asked this node to keep it.

        Raises BadState if it does not fit the fine-tuning or has impossible values, and ModelError
        or BadOutcome if a part cannot be fetched. A checkpoint with impossible values is deleted.
        """
        before = self.shelf.fetched
        found, wanted = await self._manifest(work, terms, for_peer=for_peer)
        parts = [found.tensors, found.first, found.second, *found.curve]
        parts += [] if found.best is None else [found.best]
        roots = frozenset({work.root, *(part.root for part in parts)})
        if for_peer:
            sizes = {work.root: work.size, **{part.root: part.size for part in parts}}
            await self.shelf.check_room(sizes, terms.author)
        try:
            loaded = await self._loaded(found, wanted, terms, for_peer=for_peer)
        except BadState:
            await self._drop(roots)
            raise
        if (fetched := self.shelf.fetched - before) > 0:
            self.fetched += fetched
            self.whole += work.size + sum(part.size for part in parts)
        return LoadedCheckpoint(*loaded, Saved(work, found.step, roots))

    async def _loaded(
        self,
        found: _CheckpointManifest,
        wanted: Mapping[LearnedName, Shape],
        terms: CheckpointTerms,
        *,
        for_peer: bool,
    ) -> tuple[Learned, list[Point]]:
        """Return the tensors and the loss curve of a checkpoint."""
        groups = list[dict[LearnedName, Array]]()
        for name in ("tensors", "first", "second", "best"):
            part: SizedBlob | None = getattr(found, name)
            data = b"" if part is None else await self._read(part, terms, for_peer=for_peer)
            shapes = {} if part is None else wanted
            groups.append(await self._host.offload(_divided, data, shapes, name))
        points = await self._curve(found, terms, for_peer=for_peer)
        tensors, first, second, best = groups
        learned = Learned(
            found.step, tensors, first, second, found.loss, list(found.norms), best,
            found.best_loss if best else math.inf, found.best_step,
        )  # fmt: skip
        return learned, points

    async def look(self, job: str, work: SavedWork, terms: CheckpointTerms) -> Seen:
        """Return what a checkpoint says without its tensors, which are not fetched.

        Raises the errors of `load`.
        """
        found, _ = await self._manifest(work, terms)
        points = await self._curve(found, terms)
        roots = frozenset({work.root, *(part.root for part in found.curve)})
        await self.hold(f"look {job}", Saved(work, found.step, roots), terms.author)
        best = None if found.best is None else found.best_loss
        return Seen(found.step, points, best, found.best_step)

    async def _manifest(
        self, work: SavedWork, terms: CheckpointTerms, *, for_peer: bool = False
    ) -> tuple[_CheckpointManifest, Mapping[LearnedName, Shape]]:
        """Return the manifest of a checkpoint, and the shapes of its tensors."""
        if not 0 < work.size <= defaults.MANIFEST_BYTES:
            raise BadState(f"its manifest has {work.size} bytes")
        data = await self._read(SizedBlob(work.root, work.size), terms, for_peer=for_peer)
        try:
            found = typed(_CheckpointManifest, decode(data, limit=defaults.MANIFEST_BYTES))
        except Undecodable as error:
            raise BadState(str(error)) from None
        return found, self._fits(found, terms)

    async def _curve(
        self, found: _CheckpointManifest, terms: CheckpointTerms, *, for_peer: bool = False
    ) -> list[Point]:
        """Return the loss curve of a checkpoint."""
        points = list[Point]()
        for part in found.curve:
            data = await self._read(part, terms, for_peer=for_peer)
            points += await self._host.offload(read_points, data)
        steps = [point.step for point in points]
        if steps != sorted(set(steps)) or (steps and not 0 < steps[0] <= steps[-1] <= found.step):
            raise BadState("the steps of its loss curve are not in order")
        return points

    @staticmethod
    def _fits(found: _CheckpointManifest, terms: CheckpointTerms) -> Mapping[LearnedName, Shape]:
        """Return the shapes of the tensors of a checkpoint.

        Raises BadState if it is of another fine-tuning, or a part has another size than these
        tensors. So nothing is fetched for a checkpoint with other shapes.
        """
        if found.format != FORMAT:
            raise BadState(f"its format is {ascii(found.format)[:40]}")
        if found.run != terms.run:
            raise BadState("it is of other settings or other data")
        if found.step > terms.settings.steps:
            raise BadState(f"it has {found.step} of {terms.settings.steps} steps")
        wanted = tensor_shapes(terms.settings, terms.shapes)
        size = 4 * sum(map(math.prod, wanted.values())) + terms.extra
        groups = [found.tensors, found.first, found.second]
        groups += [] if found.best is None else [found.best]
        if any(part.size != size for part in groups):
            raise BadState(f"its tensors have another size than the {size} bytes of this adapter")
        if any(part.size > defaults.PAGE_BYTES + terms.extra for part in found.curve):
            raise BadState("a page of its loss curve is too large")
        return wanted


def _joined(group: Mapping[LearnedName, Array], names: Sequence[LearnedName]) -> bytes:
    return b"".join(np.ascontiguousarray(group[name], "<f4").tobytes() for name in names)


def _divided(
    data: bytes, shapes: Mapping[LearnedName, Shape], what: str
) -> dict[LearnedName, Array]:
    """Return the tensors in some bytes. Raises BadState if a value cannot be."""
    values = np.frombuffer(data, "<f4")
    if not np.isfinite(values).all():
        raise BadState(f"a value of `{what}` is not finite")
    if (np.abs(values) > defaults.LARGEST).any():
        raise BadState(f"a value of `{what}` is larger than any that training gives")
    if what == "second" and (values < 0).any():
        raise BadState("a second moment is negative")
    found, at = dict[LearnedName, Array](), 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        found[name] = values[at : at + size].reshape(shape).copy()
        at += size
    return found


def read_points(data: bytes) -> list[Point]:
    """Return the points of a page of a curve. Raises BadState if it is malformed."""
    try:
        points = [typed(Point, json.loads(line)) for line in data.splitlines()]
    except (ValueError, RecursionError, Undecodable) as error:
        raise BadState(f"its loss curve is malformed: {str(error)[:80]}") from None
    losses = [each for point in points for each in (point.loss, point.held_out or 0.0, point.norm)]
    if len(points) > defaults.PAGE or not all(map(math.isfinite, losses)):
        raise BadState("its loss curve has values that are not finite, or too many points")
    return points
