"""Core of the worker: processes request frames, computes step by step, and emits frames.

Uses no sockets. Implements docs/spec/engine.md, sections session and spans. The owner of the core
calls `handle` for each frame, and `step` while `busy` is True. The scheduler chooses the rows of
each step, which may belong to many sessions (scheduler.py); their KV is in shared blocks
(kv/blocks.py). This module has the rules of sessions. The shards (shard.py) do the computing.
`spans/` has what stands by itself: checks of spans, their answers, and the memory of sessions.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil

from ..costs.shardcosts import ShardCosts
from .adapters import LoadAdapter
from .defaults import HOLD_S, REFERENCE_PART, REFERENCE_SAVED
from .errors import EngineError
from .families import Architecture, architecture, weight_bytes
from .interface import NO_RULES, Loaded, LoadShard, SessionId, Span
from .kv import arrival
from .kv.blocks import BlockCopy, BlockTable, blocks_for
from .kv.states import SessionStates, StateUse
from .messages import loaded_value, parse_adapter, parse_load, parse_span
from .scheduler import Scheduler, Share
from .session import AnsweredSpan, Session, SpanInProgress
from .shard import Compute, LoadedShard, Piece, StepStopped, Stop
from .spans.answers import Emit, StoredAnswers
from .spans.checks import check
from .spans.opening import block_names, parse_open
from .spans.room import Room
from .spans.rules import SessionRules, recalled
from .training import Training
from .wire import Buffer, Header, WireError

Result = tuple[object, Buffer]
Request = Callable[[Header, memoryview], Result]
_UNLOADABLE = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)
"""Errors of a model's values that no check has foreseen. A RuntimeError is not among them, because
after one of a card the process must end."""
_FEATURES = frozenset({"forward", "logits", "token", "pooled", "export", "adapter"})


class Core:
    """The shards of one device with their sessions. All computing happens inside `handle` (load)
    and `step`."""

    def __init__(
        self,
        emit: Emit,
        emit_soon: Emit | None = None,
        settle: Callable[[bool], None] = lambda urgent: None,
        *,
        memory_bytes: int = 0,
    ) -> None:
        """Create a core without shards.

        `emit` sends a frame at once. `emit_soon` may delay a frame until the next one, or until
        `settle(urgent)`, which is called after each step and sends it if `urgent`. `memory_bytes`
        limits weights and KV of all shards together (0: the available memory).
        """
        self._emit = emit
        self.stop: Stop | None = None
        """Asked during steps of background sessions, which end early if it returns True."""
        self._memory_bytes = memory_bytes
        self._shards: dict[int, LoadedShard] = {}
        self._scheduler = Scheduler()
        self._sessions: dict[SessionId, Session] = {}
        self._by_share: dict[Share, Session] = {}
        self._held_until = 0.0  # time until which background work waits
        self._opened = 0  # number of sessions that were ever opened
        self._training = Training(self._emit, self._loaded, self._spare_bytes, self.clock)
        soon, groups = emit_soon or emit, self._scheduler.groups
        self._answers = StoredAnswers(emit, soon, settle, groups, lambda: self.clock())
        self._answers.may_retry = self._may_retry
        self._reference_s = 0.0  # owed for steps without the native kernels; negative: saved up
        self._repaid_at = self.clock()
        self._room = Room(self._sessions, self._training, self._evict)
        kv_parts = arrival.KvParts(self.session, self._copied, self._loaded)
        self._requests: Mapping[str, Request] = {
            "load": self._load,
            "unload": self._unload,
            "adapt": self._adapt,
            "open": self._open,
            "close": self._close,
            "export": self._export,
            "import": self._import,
            "read": kv_parts.read,
            "write": kv_parts.write,
            "fork": self._fork,
            "recall": self._recall,
            "usage": self._usage,
            "tune-open": self._training.open,
            "tune-set": self._training.set,
            "tune-close": self._training.close,
        }

    # Access to the machine. The simulator overrides these methods.

    def compute(self, arch: Architecture, shard: LoadShard) -> Compute:
        """Load the weights of a shard and return the object that computes it."""
        from .compute.torchcompute import (
            TorchCompute,  # imported late, so that this module needs no torch
        )

        return TorchCompute(arch, shard)

    def adapter(self, compute: Compute, adapter: LoadAdapter) -> Any:
        """Load an adapter's layers of a shard, and return them."""
        return compute.adapt(adapter)

    def clock(self) -> float:
        """Return the current time in seconds, for measuring durations."""
        return time.perf_counter()

    def available_bytes(self) -> int:
        """Return the available memory of this machine in bytes."""
        return int(psutil.virtual_memory().available)

    def resident_bytes(self) -> int:
        """Return the resident memory of the worker in bytes."""
        return int(psutil.Process().memory_info().rss)

    # Interface for the process that owns the core.

    @property
    def busy(self) -> bool:
        """Whether a session or a training pass has work, so that `step` must be called."""
        return self.wait == 0.0

    @property
    def wait(self) -> float | None:
        """Seconds until `step` must be called: 0 if there is work, None if there is none."""
        if not self._scheduler.busy and not self._training.busy:
            return None
        return self._held

    @property
    def _held(self) -> float:
        """Seconds for which all work there is must wait, because it is background work and an
        interactive request has begun."""
        if not (self._held_until and self._scheduler.busy and self._scheduler.idle):
            return 0.0
        left = self._held_until - self.clock()
        if left <= 0:
            self._held_until = left = 0.0
        return left

    def handle(self, header: Header, payload: memoryview) -> None:
        """Process one frame. Raises WireError if no daemon would send such a frame."""
        name = header[0]
        if name == "span":
            self._submit(header, payload)
        elif name == "cancel" and len(header) == 2:
            self._cancel(header[1])
        elif name == "hold" and len(header) == 1:
            self._hold()
        elif name == "tune":
            self._training.submit(header, payload)
        elif name == "tune-stop" and len(header) == 3:
            self._training.stop(header)
        elif isinstance(name, str) and name in self._requests and len(header) > 1:
            self._answer(self._requests[name], header, payload)
        else:
            raise WireError(f"the daemon sent `{name}`")

    @property
    def used_bytes(self) -> int:
        """Memory of all weights and of the used KV, in bytes."""
        return sum(
            shard.weight_bytes + shard.pool.used * shard.block_bytes
            for shard in self._shards.values()
        )

    # Requests. Each returns the value and payload of the reply, or raises EngineError.

    def _answer(self, request: Request, header: Header, payload: memoryview) -> None:
        """Execute a request and emit its reply, or a refusal if it raises EngineError."""
        number = header[1]
        try:
            value, data = request(header[2:], payload)
        except EngineError as error:
            self._emit(("refused", number, error.code, error.message), b"")
        else:
            self._emit(("ok", number, value), data)

    def _load(self, header: Header, payload: memoryview) -> Result:
        """Load a shard in place of the one with the same number, whose sessions end."""
        started = self.clock()
        number = _number(header)
        self._drop_shard(number)
        shard = parse_load(payload)
        arch = architecture(shard.config)
        size = weight_bytes(arch, shard.parts, shard.dtype)
        self._check_memory(size, shard.kv_bytes)
        try:
            loaded = LoadedShard(shard, self.compute(arch, shard), size)
        except _UNLOADABLE as error:  # a model must not end the sessions of other models
            raise _unloadable(error) from error
        self._shards[number] = loaded
        seconds = self.clock() - started
        exactness = loaded.compute.exactness
        features = _FEATURES if loaded.reuses else _FEATURES - {"export"}
        costs = ShardCosts(loaded.costs.fixed, loaded.costs.row, loaded.costs.attended)
        report = Loaded(size, loaded.token_bytes, seconds, features, exactness, costs)
        return loaded_value(report), b""

    def _unload(self, header: Header, payload: memoryview) -> Result:
        """Free a shard. Its sessions end. Does nothing if there is no such shard."""
        self._drop_shard(_number(header))
        return None, b""

    def _adapt(self, header: Header, payload: memoryview) -> Result:
        """Load an adapter for a shard, unless it is loaded."""
        self._loaded(_number(header)).adapt(parse_adapter(payload), self.adapter)
        return None, b""

    def _drop_shard(self, number: int) -> None:
        """Free a shard and drop its sessions."""
        shard = self._shards.pop(number, None)
        self._training.drop(shard)
        for session in [each for each in self._sessions.values() if each.shard is shard]:
            del self._sessions[session.name]
            self._drop(session)

    def _check_memory(self, weights: int, kv: int) -> None:
        """Raise EngineError `no-memory` if a further shard's weights and KV exceed the limit."""
        limit = self.available_bytes()
        if self._memory_bytes:
            limit = self._memory_bytes - sum(shard.bytes for shard in self._shards.values())
            if weights + kv > limit - self._training.beside_kv:
                self._training.end_all()
        if weights + kv > limit:
            raise EngineError(
                "no-memory",
                f"the shard needs {weights} bytes of weights and {kv} of KV, {limit} are there",
            )

    def _spare_bytes(self) -> int:
        """Return the memory that weights and KV leave."""
        if self._memory_bytes:
            return self._memory_bytes - sum(shard.bytes for shard in self._shards.values())
        return self.available_bytes()

    def _open(self, header: Header, payload: memoryview) -> Result:
        """Open a session, and return the number of positions that the cache has of its prefix."""
        order = parse_open(header)
        shard = self._loaded(order.shard)
        if order.name in self._sessions:
            raise EngineError("session-exists", "the session is open already")
        context, tokens, adapter = shard.compute.arch.context, order.tokens, order.adapter
        if not 0 < tokens <= context:
            raise EngineError(
                "too-long", f"{tokens} positions were asked for, the context is {context}"
            )
        names = block_names(order.owner, adapter, payload) if shard.reuses else []
        rules = None
        if order.rules != NO_RULES:
            rules = SessionRules(order.rules, shard.compute.arch.vocab)
        used = shard.adapters.use(adapter, blocks_for(tokens)) if adapter else None
        try:
            self._room.make(shard, blocks_for(order.now))
            table = BlockTable(shard.pool, tokens, names, soon=order.soon, exact=order.exact)
            states = _states_beside(table, shard)
        except EngineError:
            shard.adapters.release(used)
            raise
        if not order.background:
            self._hold()
        share = self._scheduler.join(
            order.owner,
            shard.costs,
            user=order.user,
            background=order.background,
            adapter=used.costs if used is not None else None,
        )
        self._opened += 1
        session = Session(order.name, order.owner, shard, table, share, self._opened)
        session.adapter, session.own, session.states = used, order.own, states
        session.packed, session.rules = order.packed, rules
        self._sessions[order.name] = self._by_share[share] = session
        return table.length, b""

    def _hold(self) -> None:
        """Have background work wait for an interactive request, which would otherwise wait for
        the ends of its steps."""
        self._held_until = self.clock() + HOLD_S

    def _close(self, header: Header, payload: memoryview) -> Result:
        """Close a session, even if its names are malformed. Its named blocks stay cached."""
        session = self._sessions.pop(self._name(header[0]), None)
        if session is not None:
            try:
                names = block_names(session.owner, session.adapter_root, payload)
                if names and not session.busy and session.shard.reuses:
                    session.table.name_all(names)
            finally:
                self._drop(session)
        return None, b""

    def _export(self, header: Header, payload: memoryview) -> Result:
        session = self._copied(header[0])
        table, shard = session.table, session.shard
        data = shard.compute.export(table)
        return None, shard.copies.encode(table.length, data, session.adapter_root)

    def _import(self, header: Header, payload: memoryview) -> Result:
        session = self._copied(header[0])
        table, shard = session.table, session.shard
        length, data = shard.copies.parse(payload, table.tokens, session.adapter_root)
        values = shard.compute.imported(length, data)
        table.secure(length)
        session.arrival = None
        table.prepare(0, length)
        shard.compute.install(table, length, values)
        table.fill(length)
        session.forget()
        return length, b""

    def _fork(self, header: Header, payload: memoryview) -> Result:
        source, into = (self._copied(name) for name in header)
        if source.shard is not into.shard or source.adapter is not into.adapter:
            raise EngineError("bad-state", "the sessions belong to different shards or adapters")
        if source.table.length > into.table.tokens:
            raise EngineError(
                "bad-state",
                f"the session has {source.table.length} positions, {into.table.tokens} are "
                "reserved in the other one",
            )
        if source is not into:
            into.table.secure(source.table.length)
            into.table.share(source.table)
            into.arrival = None
        into.forget()
        return into.table.length, b""

    def _recall(self, header: Header, payload: memoryview) -> Result:
        """Tell a session the tokens on which its rules depend."""
        session = self.session(header[0] if header else None)
        if session.rules is None:
            raise EngineError("bad-span", "the session has no rules")
        session.rules.recall(*recalled(header, payload))
        return None, b""

    def _usage(self, header: Header, payload: memoryview) -> Result:
        shards = self._shards.values()
        usage = {
            "sessions": len(self._sessions),
            "kv_bytes_reserved": sum(each.pool.promised * each.block_bytes for each in shards),
            "kv_bytes_limit": sum(each.pool.total * each.block_bytes for each in shards),
            "kv_bytes_cached": sum(each.pool.cached * each.block_bytes for each in shards),
            "weight_bytes": sum(each.weight_bytes for each in shards),
            "adapter_bytes": sum(each.adapters.size for each in shards),
            "tunings": self._training.count,
            "tuning_bytes": self._training.used_bytes,
            "rss_bytes": self.resident_bytes(),
        }
        return usage, b""

    def _loaded(self, number: object) -> LoadedShard:
        """Return a loaded shard. Raises EngineError `no-shard` if there is none with this
        number."""
        shard = self._shards.get(number) if isinstance(number, int) else None
        if shard is None:
            raise EngineError("no-shard", "no such shard is loaded")
        return shard

    def session(self, name: object) -> Session:
        """Return an open session. Raises EngineError `unknown-session` if it is not open."""
        session = self._sessions.get(self._name(name))
        if session is None:
            raise EngineError("unknown-session", "the session is not open")
        return session

    @staticmethod
    def _name(name: object) -> bytes:
        return name if isinstance(name, bytes) else b""

    def _idle(self, name: object) -> Session:
        """Return an open session. Raises EngineError `busy` if it has spans that run or wait."""
        session = self.session(name)
        if session.busy:
            raise EngineError("busy", "spans of the session run or wait")
        return session

    def _copied(self, name: object) -> Session:
        """Return an idle session that can be copied.

        Raises EngineError `bad-state` if its model has recurrent layers.
        """
        session = self._idle(name)
        if not session.shard.reuses:
            raise EngineError(
                "bad-state", "sessions of models with recurrent layers have no copies"
            )
        return session

    def _drop(self, session: Session) -> None:
        """Cancel a session's work and free its memory."""
        session.job = None
        session.waiting.clear()
        session.table.free()
        if session.states is not None:
            session.states.free()
        session.shard.adapters.release(session.adapter)
        self._scheduler.leave(session.share)
        del self._by_share[session.share]

    # Spans.

    def _submit(self, header: Header, payload: memoryview) -> None:
        """Queue a span. If the span is invalid, emit the failure instead."""
        try:
            session = self.session(header[1] if len(header) > 1 else None)
            span = parse_span(header, payload)
            check(session, span)
        except EngineError as error:
            name, epoch = (*header[1:3], None, None)[:2]
            self._answers.failed(self._name(name), epoch if isinstance(epoch, int) else 0, error)
            return
        if session.raise_epoch(span.epoch):
            self._end_work(session, "old-epoch", f"epoch {span.epoch} began")
        if span.draft and self._is_guess(session, span):
            return
        session.waiting.append(span)
        self._drop_overtaken(session, span)
        self._next(session)

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
        job = session.job
        if job is not None and job.span.draft and span.start <= job.start:
            session.job = None
            self._answers.dropped(session, job.span)

    def _cancel(self, name: object) -> None:
        session = self._sessions.get(self._name(name))
        if session is not None:
            self._end_work(session, "cancelled", "the session's spans were cancelled")

    def _end_work(self, session: Session, code: str, message: str) -> None:
        """Cancel the running span and the waiting spans of a session, and emit the failure."""
        if not session.busy:
            return
        epoch = session.job.span.epoch if session.job else session.waiting[0].epoch
        session.job = None
        session.waiting.clear()
        self._scheduler.rest(session.share)
        self._emit(("failed", session.name, epoch, code, message), b"")

    # Computing.

    def _next(self, session: Session) -> None:
        """Make the next waiting span the session's job, unless one is in progress.

        Spans that need no computing are answered: repeated ones with the stored answer, invalid
        ones with a failure.
        """
        while session.job is None and session.waiting:
            span = session.waiting.popleft()
            key = (span.epoch, span.start, span.count)
            if span.draft and not self._is_current(session, span):
                self._answers.dropped(session, span)
                continue
            answer = None if span.draft else session.kept(key)
            if answer is not None:
                for header, payload in answer.frames:
                    self._emit(header, payload)
                continue
            if span.start <= session.table.length and not session.reaches(span.start):
                self._evict(session, "its recurrent state at that position is not stored")
                return
            try:
                session.job = self._begin(session, span, key)
            except EngineError as error:
                session.table.truncate(span.start)
                self._answers.failed(session.name, span.epoch, error)
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
        """Create the job of a span. Raises EngineError if its input is invalid."""
        length = session.table.length
        if span.start > length:
            raise EngineError(
                "gap", f"the span starts at {span.start}, {length} positions are cached"
            )
        if not span.draft:
            session.sampled = None
        arrival.begin(session)
        compute = session.shard.compute
        if span.hidden is not None and session.packed:
            source = compute.unpacked(span.hidden, span.count)
        else:
            source = compute.source(span)
        job = SpanInProgress(span, AnsweredSpan(key), source, span.start, span.count)
        if span.draft and span.want == "token":
            job.drafts = (span.tokens or ())[1:]
        session.share.picks(self._pick_seconds(session, job))
        return job

    @staticmethod
    def _pick_seconds(session: Session, job: SpanInProgress) -> float:
        """Return the predicted seconds of each choice of a span."""
        span, rules = job.span, session.rules
        if span.want != "token":
            return 0.0
        changed = 0 if rules is None else rules.size + span.steps
        return session.shard.costs.picks.seconds(span.sampling, span.top, changed)

    def _schedule(self, session: Session) -> None:
        """Tell the scheduler which rows the session needs."""
        job = session.job
        if job is None:
            self._scheduler.rest(session.share)
        else:
            rows = job.count - job.done
            if job.decode:
                self._scheduler.groups.came(session.share, self.clock())
            self._scheduler.want(session.share, rows, job.position, decode=job.decode)

    def step(self) -> None:
        """Compute one step of sessions, or one unit of a training pass: if there are no sessions
        with work, or if units have their part of the time beside steps."""
        if self._scheduler.busy and not self._training.is_due:
            self._step()
        elif self._training.busy:
            self._training.unit(beside=self._scheduler.busy)

    def _step(self) -> None:
        """Compute the rows that the scheduler chooses, all of one shard."""
        started = self.clock()
        work = self._room.secured(
            [(self._by_share[share], rows) for share, rows in self._scheduler.plan()]
        )
        if not work:
            return
        model = work[0][0].shard.compute
        pieces: list[Piece] = []
        copies: list[BlockCopy] = []
        for session, rows in work:
            job = session.job
            assert job is not None  # only sessions with a job are scheduled
            copies += session.table.prepare(job.position, job.position + rows)
            states = session.states
            use = None if states is None else states.use(job.position, rows)
            pieces += _pieces(session, job, rows, use)
        if copies:
            model.copy(copies)
        background = all(session.share.background for session, _ in work)
        # A step may change states of recurrent layers before its end.
        stops = background and work[0][0].states is None
        slow = any(piece.reference for piece in pieces)
        stop = self._show_life if slow else self.stop if stops else None
        try:
            outputs = iter(model.forward(pieces, stop))
        except StepStopped:
            return  # a later step computes the same rows
        done: list[tuple[Session, SpanInProgress, list[Any]]] = []
        for session, rows in work:
            job = session.job
            assert job is not None  # nothing else has run since
            done.append((session, job, [next(outputs) for _ in range(_parts(job, rows))]))
            session.table.fill(job.position + rows)
            job.done += rows
            if session.doubt is not None:
                self._settle_doubt(session, job)
        self._answers.choose(model, done)
        ended = self.clock()
        seconds = ended - started
        self._reference_s += seconds if slow else 0.0
        self._scheduler.groups.stepped(started, ended)
        total = sum(session.share.charged for session, _ in work)
        costs = work[0][0].shard.costs
        least = costs.fixed + costs.row
        self._training.time.stepped(total, least, background=background, now=ended)
        for (session, _), (_, job, output) in zip(work, done, strict=True):
            part = session.share.charged / total if total > 0 else 1 / len(work)
            job.seconds += seconds * part
            job.predicted += session.share.charged
            if session.job is job:
                self._answers.advance(session, job, model, output)
            self._next(session)
        self._answers.settle()

    def _may_retry(self, session: Session) -> bool:
        """Return whether rows of a session may be computed again without the native kernels.

        That takes many times as long as predicted, so it gets a small part of the time. Otherwise,
        a peer could have all its inputs computed in this way. Little of it can be saved up, as all
        other sessions wait meanwhile.
        """
        now = self.clock()
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

    def _settle_doubt(self, session: Session, job: SpanInProgress) -> None:
        """Compare what has arrived from elsewhere with what was computed, and fail if it
        differs."""
        assert session.doubt is not None  # the caller has checked
        try:
            session.doubt.check(session)
        except EngineError as error:
            self._answers.fail(session, job, error)

    def _evict(self, session: Session, why: str) -> None:
        """End a session whose gateway may open it again."""
        del self._sessions[session.name]
        epoch = session.epoch
        self._drop(session)
        self._answers.failed(session.name, epoch, EngineError("preempted", why))


def _parts(job: SpanInProgress, rows: int) -> int:
    """Return in how many pieces some rows of a job are computed."""
    return rows if job.decode else 1


def _pieces(
    session: Session, job: SpanInProgress, rows: int, use: StateUse | None
) -> Iterator[Piece]:
    """Yield the pieces of a session in a step. Rows that continue a text are pieces of their own,
    so that a draft is computed like any other token of a text."""
    count = 1 if job.decode else rows
    adapter = session.adapter and session.adapter.tensors
    for at in range(0, rows, count):
        place = job.done + at, count, job.position + at
        yield Piece(session.table, job.source, *place, job.decode, adapter, use, job.reference)


def _states_beside(table: BlockTable, shard: LoadedShard) -> SessionStates | None:
    """Return the states of a new session, or free its table and raise EngineError `no-memory`."""
    try:
        return shard.new_states()
    except EngineError:
        table.free()
        raise


def _unloadable(error: Exception) -> EngineError:
    """Return the error for a model whose values no check has foreseen."""
    if isinstance(error, MemoryError):
        return EngineError("no-memory", "the system refused memory for the shard")
    return EngineError("bad-config", f"the model cannot be loaded: {type(error).__name__}")


def _number(header: Header) -> int:
    """Return the number of a shard from a frame's header.

    Raises EngineError `bad-span` if there is none.
    """
    if len(header) != 1 or not isinstance(header[0], int):
        raise EngineError("bad-span", "a shard has a number")
    return header[0]
