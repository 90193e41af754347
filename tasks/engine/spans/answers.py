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
        for session, current, outputs in done:
            if current.span.want == "token":
                current.rows += outputs if current.decode else outputs[:0]
                if current.done == current.count:
                    current.rows = current.rows or outputs
                    wanting.append((session, current))
        picks = [
            Pick(rows, current.span.sampling, position, current.span.top)
            for _, current in wanting
            for position, rows in enumerate(current.rows, current.position - len(current.drafts))
        ]
        if any(session.rules is not None or current.reference for session, current in wanting):
            picks = _with_changes(wanting)
        chosen = iter(model.choose(picks) if picks else ())
        for _, current in wanting:
            if current.rows:
                current.chosen = [next(chosen) for _ in current.rows]
                current.rows = []

    def advance(
        self, session: Session, current: SpanInProgress, model: Compute, outputs: list[Any]
    ) -> None:
        """Store or emit what a step has computed for a session."""
        if current.span.want == "token":
            if current.done == current.count:
                self._tokens(session, current, model)
            return
        try:
            for output in outputs:
                self._collect(current, model, output)
        except EngineError as error:
            if not self._retry(session, current, error):
                self.fail(session, current, error)
            return
        if current.done == current.count:
            self._values(session, current, model)

    @staticmethod
    def _collect(current: SpanInProgress, model: Compute, output: Any) -> None:
        """Store the output of a step, or add it to the sum. Raises EngineError `not-finite`."""
        position = current.position - len(output)  # for the message of an error
        if current.span.want == "pooled":
            total = current.outputs[0] if current.outputs else None
            current.outputs = [model.pooled(output, total, position)]
        else:
            current.outputs.append(model.values(output, current.span.want == "logits", position))

    def _tokens(self, session: Session, current: SpanInProgress, model: Compute) -> None:
        """Emit the chosen tokens up to the first one that differs from its draft. Then feed this
        one back as the next input, unless the span ends with it."""
        span, first = current.span, current.position - len(current.drafts)
        position, token, stopped, final, retried = first, 0, False, False, False
        for position, choice in enumerate(current.chosen, first):
            if isinstance(choice, EngineError):
                if (
                    position > first
                    and not span.draft
                    and self._may_retry(session, current, choice)
                ):
                    current.reference, retried = True, True
                    position -= 1  # where the last token is that was sent
                    break
                if position > first or not self._retry(session, current, choice):
                    self.fail(session, current, choice)
                return
            current.emitted += 1
            token = choice.token
            stopped = token in span.stop_ids
            right = current.drafts[position - first : position - first + 1] == (token,)
            final = stopped or (not right if span.draft else current.emitted == span.steps)
            self._token(session, current, choice, position, final=final)
            if session.rules is not None:
                session.rules.took(position, token)
            if final or not right:
                break
        if current.drafts:
            session.table.truncate(position)  # what follows was computed from wrong drafts
        session.sampled = None if stopped else (position, token)
        if final:
            self._finish(session, current)
            return
        # The row whose choice failed is computed again, alone.
        current.drafts = () if retried else self._guesses(session, current, position, token)
        current.reference = retried
        current.source = model.fed_back(token, *current.drafts)
        current.start, current.count, current.done = position, 1 + len(current.drafts), 0

    @staticmethod
    def _guesses(
        session: Session, current: SpanInProgress, position: int, token: int
    ) -> tuple[int, ...]:
        """Return the guesses for the positions after a token of a loop that are worth computing."""
        return session.guessed(position, token)[: current.span.steps - current.emitted - 1]

    def _token(
        self,
        session: Session,
        current: SpanInProgress,
        choice: ChosenToken,
        position: int,
        *,
        final: bool,
    ) -> None:
        """Emit a chosen token."""
        seconds, predicted = current.seconds, current.predicted
        current.seconds = current.predicted = 0.0
        header: Header = (
            *("token", session.name, current.span.epoch, position, choice.token, choice.logprob),
            *(final, seconds, predicted, *((choice.top,) if choice.top else ())),
        )
        current.answer.add(header)
        if final:
            self._emit_with_step(header, b"")
        else:
            # A client waits for the first token.
            (self._emit if current.emitted == 1 else self._emit_soon)(header, b"")

    def _values(self, session: Session, current: SpanInProgress, model: Compute) -> None:
        """Emit the span's outputs as one event and finish the span."""
        packed = session.packed and current.span.want == "hidden" and not model.parts.head
        payload = model.packed_rows(current.outputs) if packed else model.joined(current.outputs)
        self._hidden(session, current, payload)

    def skipped(self, session: Session, current: SpanInProgress) -> None:
        """Finish a span whose last positions, or all, came from elsewhere, without its values."""
        self._hidden(session, current, b"")

    def _hidden(self, session: Session, current: SpanInProgress, payload: Buffer) -> None:
        span = current.span
        seconds = current.seconds, current.predicted
        header = ("hidden", session.name, span.epoch, span.start, span.count, *seconds)
        current.answer.add(header, payload)
        self._emit_with_step(header, payload)
        self._finish(session, current)

    def _emit_with_step(self, header: Header, payload: Buffer) -> None:
        """Emit a frame at the end of the step, with the other frames of the step."""
        self._emit_soon(header, payload)
        self._urgent = True

    def _finish(self, session: Session, current: SpanInProgress) -> None:
        """End the current span, and store its answer for repetitions unless it is a window."""
        session.current = None
        self._groups.left(session.share, self._clock())
        if not current.span.draft:
            session.keep(current.answer)

    def fail(self, session: Session, current: SpanInProgress, error: EngineError) -> None:
        """End the session's current span with a failure and drop its positions."""
        session.current = None
        session.table.discard(current.span.start)
        self.failed(session.name, current.span.epoch, error)

    def _may_retry(self, session: Session, current: SpanInProgress, error: EngineError) -> bool:
        return error.code == "not-finite" and not current.reference and self._retries(session)

    def _retry(self, session: Session, current: SpanInProgress, error: EngineError) -> bool:
        """Compute the present input of a span again without the native kernels, which may be wrong,
        if its result was not finite. Return whether that is to be done: once only."""
        if not self._may_retry(session, current, error):
            return False
        session.table.discard(current.start)
        current.rewind()
        return True

    def failed(self, name: bytes, epoch: int, error: EngineError) -> None:
        self._emit(("failed", name, epoch, error.code, error.message), b"")

    def dropped(self, session: Session, span: Span) -> None:
        self._emit(("dropped", session.name, span.epoch, span.start, span.count), b"")


def _with_changes(wanting: Sequence[tuple[Session, SpanInProgress]]) -> list[Pick]:
    """Return the picks of spans whose sessions may have rules. A span whose rules lack tokens gets
    the error as its choice."""
    picks = list[Pick]()
    for session, current in wanting:
        try:
            found = [
                Pick(
                    rows,
                    current.span.sampling,
                    position,
                    current.span.top,
                    change,
                    current.reference,
                )
                for rows, (position, change) in zip(
                    current.rows, _changes(session, current), strict=True
                )
            ]
        except EngineError as error:
            current.chosen, current.rows = [error], []
        else:
            picks += found
    return picks


def _changes(session: Session, current: SpanInProgress) -> Iterator[tuple[int, Change | None]]:
    """Yield the positions of a span's choices, each with what the session's rules change there. A
    draft counts for the positions behind it, whose tokens are used only if it was right."""
    for at in range(len(current.rows)):
        position = current.position - len(current.drafts) + at
        rules = session.rules
        yield position, None if rules is None else rules.change(position, current.drafts[:at])
