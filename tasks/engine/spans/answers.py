"""Answers to spans: what a step has computed, as frames for the daemon. No I/O."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import EngineError
from ..grouping import Groups
from ..interface import Span
from ..sampling import Change
from ..session import Session, SpanInProgress
from ..shard import ChosenToken, Compute, Pick
from ..wire import Buffer, Header

Emit = Callable[[Header, Buffer], None]
Done = list[tuple[Session, SpanInProgress, list[Any]]]
"""The sessions of a step, with the outputs of their rows."""


@dataclass(frozen=True, slots=True)
class FrameOutput:
    """How a worker sends frames.

    `emit` sends one at once. `emit_soon`, by default the same, may delay one until the next frame,
    or until `settle(urgent)`, which is called after each step and sends it if `urgent`.
    """

    emit: Emit
    emit_soon: Emit | None = None
    settle: Callable[[bool], None] = lambda urgent: None


class SpanAnswers:
    """Emits the answers to spans of all sessions of a worker."""

    def __init__(
        self,
        output: FrameOutput,
        groups: Groups,
        clock: Callable[[], float],
        may_retry: Callable[[Session], bool],
    ) -> None:
        """`groups` learn when spans end. `may_retry` returns whether rows that were not finite may
        be computed again without the kernels."""
        self._emit, self._settle = output.emit, output.settle
        self._emit_soon = output.emit_soon or output.emit
        self._groups, self._clock = groups, clock
        self._retries = may_retry
        self._urgent = False  # whether a frame of the step must be sent at its end

    def settle(self) -> None:
        """Send the frames of a step. All at once: the next stage then computes the rows of this
        step in one step too."""
        self._settle(self._urgent)
        self._urgent = False

    @staticmethod
    def choose(model: Compute, done: Done) -> None:
        """Choose the next token of each session whose span is complete and wants one, and for a
        window those after each of its positions."""
        wanting = []
        for session, job, outputs in done:
            if job.span.want == "token":
                job.rows += outputs if job.decode else outputs[:0]
                if job.done == job.count:
                    job.rows = job.rows or outputs
                    wanting.append((session, job))
        picks = [
            Pick(rows, job.span.sampling, position, job.span.top)
            for _, job in wanting
            for position, rows in enumerate(job.rows, job.position - len(job.drafts))
        ]
        if any(session.rules is not None or job.reference for session, job in wanting):
            picks = _with_changes(wanting)
        chosen = iter(model.choose(picks) if picks else ())
        for _, job in wanting:
            if job.rows:
                job.chosen = [next(chosen) for _ in job.rows]
                job.rows = []

    def advance(
        self, session: Session, job: SpanInProgress, model: Compute, outputs: list[Any]
    ) -> None:
        """Store or emit what a step has computed for a session."""
        if job.span.want == "token":
            if job.done == job.count:
                self._tokens(session, job, model)
            return
        try:
            for output in outputs:
                self._collect(job, model, output)
        except EngineError as error:
            if not self._retry(session, job, error):
                self.fail(session, job, error)
            return
        if job.done == job.count:
            self._values(session, job, model)

    @staticmethod
    def _collect(job: SpanInProgress, model: Compute, output: Any) -> None:
        """Store the output of a step, or add it to the sum. Raises EngineError `not-finite`."""
        position = job.position - len(output)  # for the message of an error
        if job.span.want == "pooled":
            total = job.outputs[0] if job.outputs else None
            job.outputs = [model.pooled(output, total, position)]
        else:
            job.outputs.append(model.values(output, job.span.want == "logits", position))

    def _tokens(self, session: Session, job: SpanInProgress, model: Compute) -> None:
        """Emit the chosen tokens up to the first one that differs from its draft. Then feed this
        one back as the next input, unless the span ends with it."""
        span, first = job.span, job.position - len(job.drafts)
        position, token, stopped, final, retried = first, 0, False, False, False
        for position, choice in enumerate(job.chosen, first):
            if isinstance(choice, EngineError):
                if position > first and not span.draft and self._may_retry(session, job, choice):
                    job.reference, retried = True, True
                    position -= 1  # where the last token is that was sent
                    break
                if position > first or not self._retry(session, job, choice):
                    self.fail(session, job, choice)
                return
            job.emitted += 1
            token = choice.token
            stopped = token in span.stop_ids
            right = job.drafts[position - first : position - first + 1] == (token,)
            final = stopped or (not right if span.draft else job.emitted == span.steps)
            self._token(session, job, choice, position, final=final)
            if session.rules is not None:
                session.rules.took(position, token)
            if final or not right:
                break
        if job.drafts:
            session.table.truncate(position)  # what follows was computed from wrong drafts
        session.sampled = None if stopped else (position, token)
        if final:
            self._finish(session, job)
            return
        # The row whose choice failed is computed again, alone.
        job.drafts = () if retried else self._guesses(session, job, position, token)
        job.reference = retried
        job.source = model.fed_back(token, *job.drafts)
        job.start, job.count, job.done = position, 1 + len(job.drafts), 0

    @staticmethod
    def _guesses(
        session: Session, job: SpanInProgress, position: int, token: int
    ) -> tuple[int, ...]:
        """Return the guesses for the positions after a token of a loop that are worth computing."""
        return session.guessed(position, token)[: job.span.steps - job.emitted - 1]

    def _token(
        self,
        session: Session,
        job: SpanInProgress,
        choice: ChosenToken,
        position: int,
        *,
        final: bool,
    ) -> None:
        """Emit a chosen token."""
        seconds, predicted = job.seconds, job.predicted
        job.seconds = job.predicted = 0.0
        header: Header = (
            *("token", session.name, job.span.epoch, position, choice.token, choice.logprob),
            *(final, seconds, predicted, *((choice.top,) if choice.top else ())),
        )
        job.answer.add(header)
        if final:
            self._emit_with_step(header, b"")
        else:
            # A client waits for the first token.
            (self._emit if job.emitted == 1 else self._emit_soon)(header, b"")

    def _values(self, session: Session, job: SpanInProgress, model: Compute) -> None:
        """Emit the span's outputs as one event and finish the span."""
        packed = session.packed and job.span.want == "hidden" and not model.parts.head
        payload = model.packed_rows(job.outputs) if packed else model.joined(job.outputs)
        self._hidden(session, job, payload)

    def skipped(self, session: Session, job: SpanInProgress) -> None:
        """Finish a span whose last positions, or all, came from elsewhere, without its values."""
        self._hidden(session, job, b"")

    def _hidden(self, session: Session, job: SpanInProgress, payload: Buffer) -> None:
        span = job.span
        seconds = job.seconds, job.predicted
        header = ("hidden", session.name, span.epoch, span.start, span.count, *seconds)
        job.answer.add(header, payload)
        self._emit_with_step(header, payload)
        self._finish(session, job)

    def _emit_with_step(self, header: Header, payload: Buffer) -> None:
        """Emit a frame at the end of the step, with the other frames of the step."""
        self._emit_soon(header, payload)
        self._urgent = True

    def _finish(self, session: Session, job: SpanInProgress) -> None:
        """End the session's job and store its answer for repetitions, unless it is a window's."""
        session.job = None
        self._groups.left(session.share, self._clock())
        if not job.span.draft:
            session.keep(job.answer)

    def fail(self, session: Session, job: SpanInProgress, error: EngineError) -> None:
        """End the session's job with a failure and drop its positions."""
        session.job = None
        session.table.discard(job.span.start)
        self.failed(session.name, job.span.epoch, error)

    def _may_retry(self, session: Session, job: SpanInProgress, error: EngineError) -> bool:
        return error.code == "not-finite" and not job.reference and self._retries(session)

    def _retry(self, session: Session, job: SpanInProgress, error: EngineError) -> bool:
        """Compute the present input of a job again without the native kernels, which may be wrong,
        if its result was not finite. Return whether that is to be done: once only."""
        if not self._may_retry(session, job, error):
            return False
        session.table.discard(job.start)
        job.rewind()
        return True

    def failed(self, name: bytes, epoch: int, error: EngineError) -> None:
        self._emit(("failed", name, epoch, error.code, error.message), b"")

    def dropped(self, session: Session, span: Span) -> None:
        self._emit(("dropped", session.name, span.epoch, span.start, span.count), b"")


def _with_changes(wanting: Sequence[tuple[Session, SpanInProgress]]) -> list[Pick]:
    """Return the picks of jobs whose sessions may have rules. A job whose rules lack tokens gets
    the error as its choice."""
    picks = list[Pick]()
    for session, job in wanting:
        try:
            found = [
                Pick(rows, job.span.sampling, position, job.span.top, change, job.reference)
                for rows, (position, change) in zip(job.rows, _changes(session, job), strict=True)
            ]
        except EngineError as error:
            job.chosen, job.rows = [error], []
        else:
            picks += found
    return picks


def _changes(session: Session, job: SpanInProgress) -> Iterator[tuple[int, Change | None]]:
    """Yield the positions of a job's choices, each with what the session's rules change there. A
    draft counts for the positions behind it, whose tokens are used only if it was right."""
    for at in range(len(job.rows)):
        position = job.position - len(job.drafts) + at
        rules = session.rules
        yield position, None if rules is None else rules.change(position, job.drafts[:at])
