"""Checks the results of this node's jobs: has other nodes recompute some of their rows.

The rows are chosen by chance when the result is here, so the claimant cannot know which. They are
computed by a chain without the claimant. If that disagrees, another chain is asked that has no node
of the first one, because a stage of it may be the liar. Spec: docs/spec/checking.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import trio

from ....state.views.jobs import Claim, Job
from ....transport.errors import ShoalError
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...errors import NoRoute
from ...inference.generation import Apart
from ..errors import BadOutcome, JobError
from ..kinds.kind import BadRow, Kind, RowTerms
from ..kinds.rows import FileLine, OutputHead, error_fields, lines_of, output_line, read_output
from ..models import served
from ..results import JobOutcome
from ..runner import NOT_NOW, RowRunner, Workshop
from ..sealing.seals import rows_of
from ..spec import JobSpec, read_spec
from . import defaults
from .trust import Trust

_ROW_FAULTS = ("bad-spec", "bad-row", "row-too-long", "prompt-too-long", "bad-request")
"""Errors of pieces that say that the rows are impossible. Other errors are believed, because their
cause may be a row that crashes engines."""


class Verdict(Enum):
    """What checks say of the result of a piece."""

    RIGHT = "right"  # the rows that were recomputed are right
    UNCHECKED = "unchecked"  # no row was chosen, or none could be recomputed
    WRONG = "wrong"  # a chain disagrees; it may be the one that is wrong
    LIE = "lie"  # two chains without a common node disagree, or this node alone


class Judgement(NamedTuple):
    """What checks say of a piece, and how many rows were recomputed and are right."""

    verdict: Verdict
    rows: int = 0


_UNCHECKED = Judgement(Verdict.UNCHECKED)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece that is checked, with its rows and their outputs."""

    job: Job
    spec: JobSpec
    claimant: PeerId
    rows: Sequence[tuple[FileLine, FileLine]]


class ResultChecks:
    """Checks of one node. `own` is its peer id."""

    def __init__(
        self,
        host: Host,
        own: PeerId,
        shop: Workshop,
        kinds: Mapping[str, Kind[Any]],
        trust: Trust,
    ) -> None:
        self.trust = trust
        self.rows = 0  # rows that were recomputed since the start
        self._host, self._own, self._shop, self._kinds = host, own, shop, kinds
        self._runners = {name: RowRunner(kind, shop) for name, kind in kinds.items()}
        self._few = trio.CapacityLimiter(defaults.PIECES_AT_ONCE)

    async def judge(self, job: Job, claim: Claim, outcome: JobOutcome) -> Judgement:
        """Check the result of a claim, and note what it says of the claimant.

        Returns UNCHECKED if the rows cannot be recomputed now, because no other node serves the
        model, or all are busy.
        """
        if claim.claimant == self._own or job.kind not in self._kinds:
            return _UNCHECKED
        if outcome.error:
            if outcome.error not in _ROW_FAULTS:
                return _UNCHECKED
            error = output_line(1, error_fields(outcome.error, outcome.message))
            outputs = [FileLine(1, 0, len(error), error)] * job.rows
            chosen = [int(self._chance() * job.rows)]
        else:
            outputs = list(lines_of(outcome.text.encode()))
            chosen = self.chosen(len(outputs), self.trust.share(claim.claimant))
        if not chosen:
            return _UNCHECKED
        try:
            spec = read_spec(job.spec)
            if self._shop.seals is not None:
                spec = self._shop.seals.opened(job, spec)
        except JobError:
            return _UNCHECKED
        others = {p: r for p, r in self._shop.members().items() if p != claim.claimant}
        if spec.root not in served(others):
            return _UNCHECKED
        async with self._few:
            try:
                rows = await self._rows(job, spec)
            except ShoalError:
                return _UNCHECKED
            if len(rows) != len(outputs):
                return _UNCHECKED
            pairs = [(rows[at], outputs[at]) for at in chosen]
            return await self._judge(_Piece(job, spec, claim.claimant, pairs))

    def chosen(self, rows: int, share: float) -> list[int]:
        """Return rows that are chosen by chance, each with the probability `share`."""
        found = [at for at in range(rows) if self._chance() < share]
        while len(found) > defaults.ROWS_OF_ONE:
            del found[int(self._chance() * len(found))]
        return found

    def _chance(self) -> float:
        return int.from_bytes(self._host.entropy(8)) / 2**64

    async def _rows(self, job: Job, spec: JobSpec) -> list[FileLine]:
        data = await rows_of(job, spec, self._shop.shelf, self._shop.seals)
        return list(lines_of(data, spec.first))

    async def _judge(self, piece: _Piece) -> Judgement:
        right = 0
        for row, output in piece.rows:
            apart = Apart(frozenset({piece.claimant}))
            agrees = await self._agrees(piece, row, output, apart)
            if agrees is False:
                if _failed(output):
                    return Judgement(Verdict.WRONG)  # an engine of the claimant may have failed
                verdict = await self._again(piece, row, output, apart)
                if verdict is not Verdict.RIGHT:
                    if verdict is Verdict.LIE:
                        self.trust.note_lie(piece.claimant)
                    return Judgement(verdict)
                agrees = True
            right += agrees is True
        if not right:
            return _UNCHECKED
        self.trust.note_right(
            piece.claimant, right, self._runners[piece.job.kind].seconds(piece.job)
        )
        return Judgement(Verdict.RIGHT, right)

    async def _again(self, piece: _Piece, row: FileLine, output: FileLine, apart: Apart) -> Verdict:
        """Recompute a row that one chain computed differently, on another one."""
        others = apart.used - {self._own}
        if not others:
            return Verdict.LIE  # this node has computed the row itself
        again = Apart(apart.without | others)
        agrees = await self._agrees(piece, row, output, again)
        if agrees is None:
            return Verdict.WRONG
        return Verdict.RIGHT if agrees else Verdict.LIE

    async def _agrees(
        self, piece: _Piece, row: FileLine, output: FileLine, apart: Apart
    ) -> bool | None:
        """Return whether a chain computes this output for a row, or None if none computes it."""
        kind, services, turn = self._kinds[piece.job.kind], self._shop.services, self._shop.turn
        terms = RowTerms(piece.job.id, piece.spec, turn, services, apart)
        for _ in range(defaults.BUSY_TRIES):
            with trio.move_on_after(defaults.CHECK_TIME):
                await turn.come()
                try:
                    agrees = await _compare(kind, row, output, terms)
                    self.rows += 1
                    return agrees
                except NoRoute:
                    return None
                except ShoalError as error:
                    if getattr(error, "code", "") not in NOT_NOW:
                        return None
            await trio.sleep(defaults.BUSY_PAUSE)
        return None


async def _compare(kind: Kind[Any], row: FileLine, output: FileLine, terms: RowTerms) -> bool:
    """Return whether a row has this output, which may be an error."""
    failed = _failed(output)
    try:
        known = kind.read(row.data)
        if failed:
            await kind.do(known, terms)
            return False
        return await kind.agrees(known, output.data, terms)
    except BadRow:
        return failed
    except BadOutcome:
        return False


def _failed(output: FileLine) -> bool:
    """Return whether an output says that its row is impossible."""
    return read_output(OutputHead, output.data).error is not None
