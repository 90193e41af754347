"""Spans of all sessions of a worker: queued, computed step by step, and answered.

The scheduler chooses the rows of each step, which may belong to many sessions (scheduler.py). The
shards (shard.py) do the computing.
"""

from collections.abc import Callable, Iterator, MutableMapping

from ..defaults import REFERENCE_PART, REFERENCE_SAVED
from ..errors import EngineError
from ..interface import SessionId, Span
from ..kv import ahead, arrival
from ..kv.blocks import BLOCK, BlockCopy
from ..kv.hostcopies import HostCopies
from ..kv.states import StateUse
from ..messages import parse_span
from ..scheduler import Scheduler
from ..scheduling.shares import Share
from ..session import AnsweredSpan, Session, SpanInProgress
from ..shard import Piece, StepStopped, Stop
from ..training import Training
from ..wire import Header
from .answers import Done, FrameOutput, SpanAnswers
from .checks import check
from .room import Room

_SKIPPABLE = ("token", "hidden")  # of a shard that is alone: its hidden states go nowhere


class Runner:
    """Work of the sessions of one device."""

    def __init__(
        self,
        sessions: MutableMapping[SessionId, Session],
        training: Training,
        output: FrameOutput,
        copies: HostCopies,
        clock: Callable[[], float],
        *,
        stop: Stop | None = None,
    ) -> None:
        """`sessions` are the open ones, and `copies` those of their KV in host memory. `stop` is
        asked during steps of background sessions, which end early if it returns True."""
        self._sessions = sessions
        self._training = training
        self._emit = output.emit
        self._clock = clock
        self.scheduler = Scheduler()
        """Chooses the rows of each step."""
        self._stop = stop
        self._by_share: dict[Share, Session] = {}
        groups, retries = self.scheduler.groups, self._may_retry
        self.answers = SpanAnswers(output, groups, clock, retries)
        self._reference_s = 0.0  # owed for steps without the native kernels; negative: saved up
        self._repaid_at = clock()
        self.room = Room(
            sessions,
            training,
            copies,
            clock,
            evict=self.evict,
            rest=lambda session: self.scheduler.rest(session.share),
        )

    def add(self, session: Session) -> None:
        """Add an open session."""
        self._sessions[session.name] = self._by_share[session.share] = session

    def find(self, name: object) -> Session:
        """Return an open session. Raises EngineError `unknown-session` if it is not open."""
        session = self._sessions.get(name) if isinstance(name, bytes) else None
        if session is None:
            raise EngineError("unknown-session", "the session is not open")
        return session

    def drop(self, session: Session) -> None:
        """Cancel a session's work and free its memory."""
        session.current = None
        session.waiting.clear()
        self.room.forget(session)
        session.table.free()
        if session.states is not None:
            session.states.free()
        session.shard.adapters.release(session.adapter)
        self.scheduler.leave(session.share)
        del self._by_share[session.share]

    def submit(self, header: Header, payload: memoryview) -> None:
        """Queue a span. If the span is invalid, emit the failure instead."""
        try:
            session = self.find(header[1] if len(header) > 1 else None)
            span = parse_span(header, payload)
            check(session, span)
        except EngineError as error:
            name, epoch = (*header[1:3], None, None)[:2]
            self.answers.failed(
                name if isinstance(name, bytes) else b"",
                epoch if isinstance(epoch, int) else 0,
                error,
            )
            return
        if session.raise_epoch(span.epoch):
            self._end_work(session, "old-epoch", f"epoch {span.epoch} began")
        if span.draft and self._is_guess(session, span):
            return
        session.waiting.append(span)
        self._drop_overtaken(session, span)
        self._drop_left_out(session)
        self._next(session)

    def resume(self) -> None:
        """Continue the sessions for which there are blocks again."""
        for session in self.room.returned():
            self._next(session)

    def fetch(self, session: Session) -> None:
        """Bring a session back to its device. Raises EngineError `no-memory` if it must wait."""
        if not self.room.bring_back(session):
            raise EngineError("no-memory", "the session is in host memory, and must wait there")
        if session.busy:
            self._next(session)

    def arrived(self, session: Session) -> None:
        """Go on behind what has arrived ahead of a session, and compute the rest."""
        ahead.go_on(session)
        if session.current is not None:
            self._skip(session, session.current)
        self._next(session)

    def _skip(self, session: Session, current: SpanInProgress) -> None:
        """Do not compute the positions of a span that came from elsewhere, but for the last one of
        a span that wants a token. Answer the span if none is left."""
        began, stop = session.table.taken
        stop = min(stop, session.table.length)
        if (
            not began <= current.position < stop
            or current.decode
            or current.span.want not in _SKIPPABLE
        ):
            return
        current.done = min(stop - current.start, current.count - (current.span.want == "token"))
        session.table.taken = current.position, stop  # a later span may be of another text
        if current.done == current.count:
            self.answers.skipped(session, current)

    @staticmethod
    def _is_guess(session: Session, span: Span) -> bool:
        """Remember a window for a session whose text is computed here alone, and return whether it
        is."""
        parts = session.shard.compute.parts
        if not (parts.embedding and parts.head):
            return False
        session.guess(span.start, span.tokens or ())
        return True

    def _drop_overtaken(self, session: Session, span: Span) -> None:
        """Drop the window in progress if a new span replaces all of its positions.

        Waiting windows are dropped in their turn.
        """
        current = session.current
        if current is not None and current.span.draft and span.start <= current.start:
            session.current = None
            self.answers.dropped(session, current.span)

    def _drop_left_out(self, session: Session) -> None:
        """Drop the span in progress if a waiting one leaves out its positions.

        Waiting spans are dropped in their turn, so that all answers come in order.
        """
        current = session.current
        if current is None or current.position % BLOCK:  # the rest of its block has no KV
            return
        if session.is_left_out(current.span):
            session.current = None
            self.answers.dropped(session, current.span)

    def cancel(self, name: object) -> None:
        session = self._sessions.get(name) if isinstance(name, bytes) else None
        if session is not None:
            self._end_work(session, "cancelled", "the session's spans were cancelled")

    def _end_work(self, session: Session, code: str, message: str) -> None:
        """Cancel the running span and the waiting spans of a session, and emit the failure."""
        if not session.busy:
            return
        epoch = session.current.span.epoch if session.current else session.waiting[0].epoch
        session.current = None
        session.waiting.clear()
        self.scheduler.rest(session.share)
        self._emit(("failed", session.name, epoch, code, message), b"")

    # Computing.

    def _next(self, session: Session) -> None:
        """Make the next waiting span the session's current one, unless one is in progress.

        Spans that need no computing are answered: repeated ones with the stored answer, invalid
        ones with a failure.
        """
        if session.busy and not self.room.bring_back(session):
            self.scheduler.rest(session.share)
            return
        while session.current is None and session.waiting:
            span = session.waiting.popleft()
            key = (span.epoch, span.start, span.count)
            stale = span.draft and not self._is_current(session, span)
            if stale or session.is_left_out(span):
                self.answers.dropped(session, span)
                continue
            answer = None if span.draft else session.kept(key)
            if answer is not None:
                for header, payload in answer.frames:
                    self._emit(header, payload)
                continue
            if span.start <= session.table.length and not session.reaches(span.start):
                self.evict(session, "its recurrent state at that position is not stored")
                return
            try:
                session.current = self._begin(session, span, key)
                self._skip(session, session.current)
            except EngineError as error:
                session.table.truncate(span.start)
                self.answers.failed(session.name, span.epoch, error)
        self._schedule(session)

    @staticmethod
    def _is_current(session: Session, span: Span) -> bool:
        """Return whether a window begins where the computed positions end. At the head, its first
        token must also be the last one that was chosen."""
        if span.start > session.table.length or session.is_overtaken(span):
            return False
        return (
            span.tokens is None
            or span.want != "token"
            or (session.sampled == (span.start, span.tokens[0]))
        )

    def _begin(self, session: Session, span: Span, key: tuple[int, int, int]) -> SpanInProgress:
        """Begin with a span. Raises EngineError if its input is invalid."""
        arrival.begin(session)
        ahead.go_to(session, span.start)
        if not span.draft:
            session.sampled = None
        compute = session.shard.compute
        if span.hidden is not None and session.packed:
            source = compute.unpacked(span.hidden, span.count)
        else:
            source = compute.source(span)
        current = SpanInProgress(span, AnsweredSpan(key), source, span.start, span.count)
        if span.draft and span.want == "token":
            current.drafts = (span.tokens or ())[1:]
        session.share.picks(self._pick_seconds(session, current))
        return current

    @staticmethod
    def _pick_seconds(session: Session, current: SpanInProgress) -> float:
        """Return the predicted seconds of each choice of a span."""
        span, rules = current.span, session.rules
        if span.want != "token":
            return 0.0
        changed = 0 if rules is None else rules.size + span.steps
        return session.shard.costs.picks.seconds(span.sampling, span.top, changed)

    def _schedule(self, session: Session) -> None:
        """Tell the scheduler which rows the session needs."""
        current = session.current
        if current is None:
            self.scheduler.rest(session.share)
        else:
            rows = current.count - current.done
            if current.decode:
                self.scheduler.groups.came(session.share, self._clock())
            elif session.ahead is not None:
                costs, place = session.shard.costs, current.position
                row_s = costs.row + costs.attended * place
                most = session.ahead.rows(place, row_s, costs.fixed, self._clock())
                rows = min(rows, most)
            more = bool(session.waiting) or rows < current.count - current.done
            self.scheduler.want(
                session.share, rows, current.position, decode=current.decode, more=more
            )

    def step(self) -> None:
        """Compute the rows that the scheduler chooses, all of one shard."""
        started = self._clock()
        work = self.room.secured(
            [(self._by_share[share], rows) for share, rows in self.scheduler.plan()]
        )
        if not work:  # all sessions that were chosen have left or ended
            self.resume()
            return
        model = work[0][0].shard.compute
        pieces: list[Piece] = []
        copies: list[BlockCopy] = []
        for session, rows in work:
            current = session.current
            assert current is not None  # only sessions with a current span are scheduled
            copies += session.table.prepare(current.position, current.position + rows)
            states = session.states
            use = None if states is None else states.use(current.position, rows)
            pieces += _pieces(session, current, rows, use)
        if copies:
            model.copy(copies)
        background = all(session.share.background for session, _ in work)
        # A step may change states of recurrent layers before its end.
        stops = background and work[0][0].states is None
        slow = any(piece.reference for piece in pieces)
        stop = self._show_life if slow else self._stop if stops else None
        try:
            outputs = iter(model.forward(pieces, stop))
        except StepStopped:
            return  # a later step computes the same rows
        done: Done = []
        for session, rows in work:
            current = session.current
            assert current is not None  # nothing else has run since
            done.append((session, current, [next(outputs) for _ in range(_parts(current, rows))]))
            session.table.fill(current.position + rows)
            current.done += rows
            if session.doubt is not None:
                self._settle_doubt(session, current)
            if session.ahead is not None:
                ahead.go_on(session)
        self.answers.choose(model, done)
        ended = self._clock()
        seconds = ended - started
        self._reference_s += seconds if slow else 0.0
        self.scheduler.groups.stepped(started, ended)
        total = sum(session.share.charged for session, _ in work)
        costs = work[0][0].shard.costs
        least = costs.fixed + costs.row
        self._training.time.stepped(total, least, background=background, now=ended)
        for (session, _), (_, current, output) in zip(work, done, strict=True):
            part = session.share.charged / total if total > 0 else 1 / len(work)
            current.seconds += seconds * part
            current.predicted += session.share.charged
            if session.current is current:
                self.answers.advance(session, current, model, output)
            if session.current is current:
                self._skip(session, current)
            self._next(session)
        self.resume()
        self.answers.settle()

    def _may_retry(self, session: Session) -> bool:
        """Return whether rows of a session may be computed again without the native kernels.

        That takes many times as long as predicted, so it gets a small part of the time. Otherwise,
        a peer could have all its inputs computed in this way. Little of it can be saved up, as all
        other sessions wait meanwhile.
        """
        now = self._clock()
        repaid = REFERENCE_PART * (now - self._repaid_at)
        self._reference_s = max(-REFERENCE_SAVED, self._reference_s - repaid)
        self._repaid_at = now
        able = session.shard.compute.has_reference and session.states is None
        return able and self._reference_s <= 0

    def _show_life(self) -> bool:
        """Send the daemon a reply that it ignores, so that it does not take a step without the
        native kernels for the silence of a crashed worker. It goes on."""
        self._emit(("ok", 0, None), b"")
        return False

    def _settle_doubt(self, session: Session, current: SpanInProgress) -> None:
        """Compare what has arrived from elsewhere with what was computed, and fail if it
        differs."""
        assert session.doubt is not None  # the caller has checked
        try:
            session.doubt.check(session)
        except EngineError as error:
            self.answers.fail(session, current, error)

    def evict(self, session: Session, why: str) -> None:
        """End a session whose gateway may open it again."""
        del self._sessions[session.name]
        epoch = session.epoch
        self.drop(session)
        self.answers.failed(session.name, epoch, EngineError("preempted", why))


def _parts(current: SpanInProgress, rows: int) -> int:
    """Return in how many pieces some rows of a span are computed."""
    return rows if current.decode else 1


def _pieces(
    session: Session, current: SpanInProgress, rows: int, use: StateUse | None
) -> Iterator[Piece]:
    """Yield the pieces of a session in a step. Rows that continue a text are pieces of their own,
    so that a draft is computed like any other token of a text."""
    count = 1 if current.decode else rows
    adapter = session.adapter and session.adapter.tensors
    for at in range(0, rows, count):
        place = current.done + at, count, current.position + at
        yield Piece(
            session.table, current.source, *place, current.decode, adapter, use, current.reference
        )
