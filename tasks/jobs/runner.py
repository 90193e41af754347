"""Runs pieces of jobs of one kind: all rows of a piece at once, as many as have room.

The outputs of rows stay here when a try fails or the node is restarted, so the next try of the same
piece continues.
Spec: docs/spec/jobs.md.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import trio

from ...state.views.jobs import Claim, Job
from ...transport.errors import ShoalError
from ..errors import NoRoute
from ..inference.shards import Members
from . import defaults
from .crew import IdleTime
from .errors import BadSpec, Unsealable
from .kinds.kind import (
    BadRow,
    Declared,
    Fields,
    Kind,
    RowSize,
    RowTerms,
    Services,
    is_able,
)
from .kinds.rows import (
    FileLine,
    OutputHead,
    check_some_output,
    error_fields,
    lines_of,
    output_line,
    read_output,
)
from .models import JobModels
from .outputs import PieceOutputs
from .results import JobOutcome, SavedWork, failed
from .sealing.seals import JobSeals, rows_of
from .shelf import Shelves
from .spec import JobSpec, read_spec, root_of, seal_of
from .speed import JobSpeed, alone_seconds, chain_costs

NOT_NOW: Final = (
    *("busy", "no-route", "no-memory", "too-many", "too-many-sessions", "overloaded"),
    *("unreachable", "no-key", "disk-full", "quota-full", "jobs-disk-full"),
)
"""Codes of temporary obstacles, which do not count as failures of the job."""
MOVED: Final = "moved"
"""Code with which a runner ends if another node is to continue the job."""
_SHORTAGES: Final = ("busy", "no-memory", "too-many", "too-many-sessions", "overloaded")
"""Codes of refusals that other rows of this node may have caused."""


class ReportProgress(Protocol):
    """Takes the progress of a job, and the name of a blob with the work so far (`SavedWork`)."""

    def __call__(self, step: int, saved: bytes = b"") -> None: ...


class Runner(Protocol):
    """Interface of the code that does jobs of one kind."""

    kind: str
    declares: Declared
    """Inputs, stages with their resources, and how pieces merge."""
    moves: bool
    """Whether another node can continue the work from what a claim names as `saved`."""
    run_time: float
    """The most seconds of one try."""

    def able(self, job: Job) -> bool:
        """Return whether the job can be done on this node now."""
        ...

    def seconds(self, job: Job) -> float:
        """Return the seconds that this node will probably take for the job, without other work."""
        ...

    def longest(self, job: Job) -> float:
        """Return the seconds that the job's longest part takes, which cannot be divided."""
        ...

    def measured(self, job: Job, predicted: float, took: float) -> None:
        """Record that a job has taken `took` seconds, for which `predicted` were predicted."""
        ...

    async def proven(self, job: Job, claim: Claim) -> int:
        """Return how much of the job the blob that a claim names contains, in steps.

        Raises ShoalError if it cannot be fetched or read.
        """
        ...

    async def run(self, job: Job, progress: ReportProgress) -> JobOutcome:
        """Do the job and return its outcome. `progress` receives a number that grows with the work,
        and names a blob with this work from time to time.

        Raises ShoalError if a later try or another node might succeed.
        """
        ...


class Places:
    """Places for rows. A row is a task that holds a place (`limiter`) while it is computed."""

    def __init__(self) -> None:
        self._limit = float(defaults.FIRST_ROWS)
        self._gate = trio.Lock()
        self._opened = trio.Event()  # by the row that began last
        self._opened.set()
        self.limiter = trio.CapacityLimiter(defaults.FIRST_ROWS)

    @property
    def busy(self) -> int:
        """Number of rows that are computed now."""
        return int(self.limiter.borrowed_tokens)

    @property
    def free(self) -> int:
        """Number of further rows that could be computed now."""
        waiting = self.limiter.statistics().tasks_waiting
        return max(0, int(self._limit) - self.busy - waiting)

    async def begin(self, turn: IdleTime) -> Callable[[], None]:
        """Wait until a row may begin. Return what the row calls as soon as its chain is open.

        One row after the other opens its chain, so that the event loop of a node that opens many
        sessions answers its user's requests meanwhile. A chain that takes longer than OPENING_TIME
        waits for the network, and the next row opens its own beside it.

        None begins while there are such requests. Stages would refuse its session, and the attempt
        would take the event loop's time from the request.
        """
        async with self._gate:
            with trio.move_on_after(defaults.OPENING_TIME):
                await self._opened.wait()
            await turn.come()
            opened = self._opened = trio.Event()
        return opened.set

    def had_room(self) -> None:
        """Record that a row was computed without a refusal."""
        self.set_limit(self._limit + 1.0)

    def had_no_room(self) -> None:
        """Record that a stage has refused a row because of what else it computes."""
        self.set_limit(min(self._limit, self.busy) * 0.75)

    def set_limit(self, limit: float) -> None:
        """Let that many rows be computed at once: a count, from 1 to ROWS_AT_ONCE."""
        self._limit = min(max(limit, 1.0), float(defaults.ROWS_AT_ONCE))
        self.limiter.total_tokens = int(self._limit)


@dataclass(frozen=True, slots=True)
class Workshop:
    """The parts of one node that the runners of all kinds share."""

    services: Services
    models: JobModels
    shelf: Shelves
    turn: IdleTime
    members: Callable[[], Members]
    seals: JobSeals | None = None  # None: this node does no jobs with sealed inputs
    places: Places = field(default_factory=Places)
    speed: JobSpeed = field(default_factory=JobSpeed)
    outputs: PieceOutputs = field(default_factory=PieceOutputs)


class RowRunner:
    """`Runner` of the pieces of one kind."""

    moves = False  # outputs of another node would become this node's word
    run_time = defaults.RUN_TIME

    def __init__(self, kind: Kind[Any], shop: Workshop) -> None:
        self.kind = kind.name
        self.declares: Declared = kind
        """The needs of these jobs, as their kind declares them."""
        self._kind = kind
        self._shop = shop

    def able(self, job: Job) -> bool:
        """Return whether this node can do the job now.

        Also returns True if no node can do the job, so that this node begins it and ends it with an
        error.
        """
        try:
            root = root_of(job.spec)
        except BadSpec:
            return True
        has_model = partial(self._shop.models.can_use, root)
        return self._has_key(job) and is_able(self.declares, {"model": has_model})

    def _has_key(self, job: Job) -> bool:
        """Return whether this node can read the rows of a job."""
        seals, keys = self._shop.seals, seal_of(job.spec)
        return keys is None or (seals is not None and seals.has_key(job.spec))

    def seconds(self, job: Job) -> float:
        """Return the seconds that this node will probably take for a piece, without other work."""
        try:
            spec = read_spec(job.spec)
        except BadSpec:
            return 0.0
        rows = [self._row_size(job, spec)] * job.rows
        costs = chain_costs(self._shop.members(), spec.root)
        return self._shop.speed.seconds((spec.root, self.kind), costs, rows)

    def longest(self, job: Job) -> float:
        """Return the seconds that a row of a piece will probably take.

        A piece of few rows takes at least as long, however much else the node could do meanwhile.
        """
        try:
            spec = read_spec(job.spec)
        except BadSpec:
            return 0.0
        costs = chain_costs(self._shop.members(), spec.root)
        return alone_seconds(costs, self._row_size(job, spec))

    def _row_size(self, job: Job, spec: JobSpec) -> RowSize:
        """Return the size of a row of a piece, as far as the spec tells."""
        part = spec.blob
        inline = spec.lines if spec.seal is None else spec.seal.hidden or spec.lines
        size = len(inline) if part is None else part.stop - part.start
        tokens = spec.options.max_tokens if self.kind == "generate" else 0
        return RowSize(size // job.rows, tokens)

    def measured(self, job: Job, predicted: float, took: float) -> None:
        """Record that a piece has taken `took` seconds, for which `predicted` were predicted."""
        with suppress(BadSpec):  # a stranger's invalid job is ended too
            self._shop.speed.measured((root_of(job.spec), self.kind), predicted, took)

    async def proven(self, job: Job, claim: Claim) -> int:
        """Return how many rows of a piece have an output in the blob that a claim names."""
        work, spec = SavedWork.read(claim.saved, defaults.RESULT_BYTES), read_spec(job.spec)
        data = await self._shop.shelf.get(work.root, work.size, own=False)
        return len(check_some_output(data, job.rows, spec.first, spec.last))

    async def run(self, job: Job, progress: ReportProgress) -> JobOutcome:
        """Do a piece and return its outcome. `progress` receives the number of rows done so far.

        Raises ShoalError if a later try or another node might succeed.
        """
        try:
            spec = read_spec(job.spec)
        except BadSpec as error:
            return failed(error.code, error.message)
        if self._shop.models.is_missing(spec.root):
            minutes = defaults.MODEL_PATIENCE / 60
            return failed("no-route", f"no node has served this model for {minutes:g} minutes")
        if not self._shop.models.works_for(spec.root):
            raise NoRoute("this node does jobs for its own models")
        try:
            spec = self._opened(job, spec)
            data = await rows_of(job, spec, self._shop.shelf, self._shop.seals)
        except BadSpec as error:
            return failed(error.code, error.message)
        except Unsealable as error:
            if error.code in NOT_NOW:
                raise
            return failed(error.code, error.message)
        lines = list(lines_of(data, spec.first))
        if len(lines) != job.rows or lines[-1].number != spec.last:
            return failed("bad-spec", f"the job says {job.rows} rows, its input has {len(lines)}")
        return await self._all(job, spec, lines, progress)

    def _opened(self, job: Job, spec: JobSpec) -> JobSpec:
        seals = self._shop.seals
        return spec if seals is None else seals.opened(job, spec)

    async def _all(
        self, job: Job, spec: JobSpec, lines: list[FileLine], progress: ReportProgress
    ) -> JobOutcome:
        outputs = await self._shop.outputs.open(job)
        sealed = spec.seal is not None
        async with self._evidence(job, outputs, progress, sealed=sealed) as evidence:
            return await self._rest(job, spec, lines, outputs, evidence)

    @asynccontextmanager
    async def _evidence(
        self, job: Job, outputs: dict[int, bytes], progress: ReportProgress, *, sealed: bool
    ) -> AsyncIterator["_Evidence"]:
        """Let other nodes see the progress of a piece until the block ends."""
        shelf = None if sealed else self._shop.shelf
        evidence = _Evidence(shelf, job.lease, outputs, progress)
        try:
            yield evidence
        finally:
            with trio.CancelScope(shield=True):
                await evidence.drop()

    async def _rest(
        self,
        job: Job,
        spec: JobSpec,
        lines: list[FileLine],
        outputs: dict[int, bytes],
        evidence: "_Evidence",
    ) -> JobOutcome:
        """Do the rows that have no output yet."""
        terms = RowTerms(job.id, spec, self._shop.turn, self._shop.services)
        failures: list[ShoalError] = []

        async def one(line: FileLine) -> None:
            try:
                output = output_line(line.number, await self._row(line, terms))
                outputs[line.number] = output
                await self._shop.outputs.added(job, output)
                await evidence.show()
                if sum(map(len, outputs.values())) > defaults.RESULT_BYTES:
                    nursery.cancel_scope.cancel()  # further rows would be computed for nothing
            except ShoalError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for line in lines:
                if line.number not in outputs:
                    nursery.start_soon(one, line)
        size = sum(map(len, outputs.values()))
        if failures and size <= defaults.RESULT_BYTES:
            raise failures[0]
        await self._shop.outputs.close(job)
        if size > defaults.RESULT_BYTES:
            return failed("too-large", f"the output has over {defaults.RESULT_BYTES} bytes")
        return _outcome(job, [outputs[line.number] for line in lines])

    async def _row(self, line: FileLine, terms: RowTerms) -> Fields:
        """Do a row, and wait for room if stages have none. Raises ShoalError if that fails."""
        places, turn = self._shop.places, self._shop.turn
        try:
            row = self._kind.read(line.data)
        except BadRow as error:
            return error_fields(error.code, error.message)
        while True:
            async with places.limiter:
                opened = await places.begin(turn)
                try:
                    found = await self._kind.do(row, replace(terms, opened=opened))
                    places.had_room()
                    return found
                except BadRow as error:
                    return error_fields(error.code, error.message)
                except ShoalError as error:
                    code = getattr(error, "code", "")
                    alone = places.busy == 1 and not turn.is_wanted
                    if code not in _SHORTAGES or alone:
                        raise
                finally:
                    opened()
            if not turn.is_wanted:
                places.had_no_room()
            await trio.sleep(defaults.PAUSE)
            await turn.come()


class _Evidence:
    """Proof for other nodes that this node works on a piece: a blob with the outputs so far.

    Most pieces are done before one is due. Without a `shelf` there is none: sealed outputs would
    prove nothing to other nodes.
    """

    def __init__(
        self,
        shelf: Shelves | None,
        lease: float,
        outputs: Mapping[int, bytes],
        progress: ReportProgress,
    ) -> None:
        self._shelf = shelf
        self._outputs = outputs
        self._progress = progress
        self._pause = max(defaults.STEP_PAUSE, lease / defaults.STEPS_A_LEASE)
        self._last = trio.current_time()
        self._root = ""

    async def show(self) -> None:
        """Report the progress, with a blob if one is due."""
        self._progress(len(self._outputs))
        now, shelf = trio.current_time(), self._shelf
        if shelf is None or now - self._last < self._pause:
            return
        self._last, before, many = now, self._root, len(self._outputs)
        data = b"".join(self._outputs[line] for line in sorted(self._outputs))
        with suppress(ShoalError):  # without room on the disk, the piece is done all the same
            self._root = await shelf.put(data)
            self._progress(many, SavedWork(self._root, len(data)).packed())
            if before:
                await shelf.drop(before)

    async def drop(self) -> None:
        """Delete the last blob, which the output replaces."""
        if self._shelf is not None and self._root:
            await self._shelf.drop(self._root)


class _Output(OutputHead, frozen=True):
    """What an outcome says of the output of a row."""

    message: str = ""
    tokens: int = 0
    reason: str = ""


def _outcome(job: Job, lines: list[bytes]) -> JobOutcome:
    """Return the outcome of a piece from its lines of output."""
    outputs = [read_output(_Output, line) for line in lines]
    first = outputs[0]
    if job.parts == job.rows == 1 and first.error is not None:
        return failed(first.error, first.message)
    reason = first.reason if job.rows == 1 else ""
    tokens = sum(output.tokens for output in outputs)
    return JobOutcome(text=b"".join(lines).decode(), tokens=tokens, reason=reason)


def runners(kinds: Mapping[str, Kind[Any]], shop: Workshop) -> dict[str, RowRunner]:
    """Return the runners of several kinds, by the kinds' names."""
    return {name: RowRunner(kind, shop) for name, kind in kinds.items()}
