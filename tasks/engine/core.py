"""Core of the worker: processes request frames, computes step by step, and emits frames.

Uses no sockets. Implements docs/spec/engine.md, sections session and spans. The owner of the core
calls `handle` for each frame, and `step` while `busy` is True. The scheduler chooses the rows of
each step, which may belong to many sessions (scheduler.py); their KV is in shared blocks
(blocks.py). This module has the rules of sessions. The shards (shard.py) do the computing.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psutil

from ..costs.shardcosts import ShardCosts
from .adapters import LoadAdapter
from .defaults import ANSWER_BYTES, HOLD_S, WAITING_SPANS, WINDOW_ROWS
from .errors import EngineError
from .families import DTYPE_BYTES, Architecture, architecture, weight_bytes
from .interface import NAME_BYTES, USER_BYTES, Loaded, LoadShard, SessionId, Span
from .kv import arrival
from .kv.blocks import BlockCopy, BlockName, BlockTable, blocks_for
from .kv.states import SessionStates, StateUse
from .messages import loaded_value, parse_adapter, parse_load, parse_span
from .scheduler import Scheduler, Share
from .session import AnsweredSpan, Session, SpanInProgress
from .shard import Choice, Compute, LoadedShard, Pick, Piece
from .training import Training
from .wire import Buffer, Header, WireError

Emit = Callable[[Header, Buffer], None]
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
        self._emit_soon = emit_soon or emit
        self._settle = settle
        self._urgent = False  # whether a frame of the step must be sent at its end
        self._memory_bytes = memory_bytes
        self._shards: dict[int, LoadedShard] = {}
        self._scheduler = Scheduler()
        self._sessions: dict[SessionId, Session] = {}
        self._by_share: dict[Share, Session] = {}
        self._held_until = 0.0  # time until which background work waits
        self._opened = 0  # number of sessions that were ever opened
        self._training = Training(self._emit, self._loaded, self._spare_bytes, self.clock)
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
        name, tokens, owner, background, user, number, soon, adapter, own, packed, exact = header
        shard = self._loaded(number)
        if not isinstance(name, bytes) or len(name) != 16 or type(tokens) is not int:
            raise EngineError("bad-span", "a session has a name of 16 bytes and a size")
        if not (isinstance(own, bool) and isinstance(packed, bool) and isinstance(exact, bool)):
            raise EngineError("bad-span", "a session is of this machine, packed, and exact, or not")
        if not isinstance(owner, str) or not isinstance(background, bool):
            raise EngineError("bad-span", "a session has an owner and may be in the background")
        if soon is not None and (type(soon) is not int or soon < 0):
            raise EngineError("bad-span", "the positions to reserve are no number")
        if not isinstance(user, bytes) or len(user) > USER_BYTES:
            raise EngineError("bad-span", f"a user's tag has at most {USER_BYTES} bytes")
        if not isinstance(adapter, str):
            raise EngineError("bad-span", "a session has an adapter or an empty text")
        if name in self._sessions:
            raise EngineError("session-exists", "the session is open already")
        context = shard.compute.arch.context
        if not 0 < tokens <= context:
            raise EngineError(
                "too-long", f"{tokens} positions were asked for, the context is {context}"
            )
        names = _block_names(owner, adapter, payload) if shard.reuses else []
        used = shard.adapters.use(adapter, blocks_for(tokens)) if adapter else None
        try:
            self._make_room(shard, blocks_for(tokens if soon is None else min(soon, tokens)))
            table = BlockTable(shard.pool, tokens, names, soon=soon, exact=exact)
            states = _states_beside(table, shard)
        except EngineError:
            shard.adapters.release(used)
            raise
        if not background:
            self._hold()
        share = self._scheduler.join(
            owner,
            shard.costs,
            user=user,
            background=background,
            adapter=used.costs if used is not None else None,
        )
        self._opened += 1
        session = Session(name, owner, shard, table, share, self._opened)
        session.adapter, session.own, session.states = used, own, states
        session.packed = packed is True
        self._sessions[name] = self._by_share[share] = session
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
                names = _block_names(session.owner, session.adapter_root, payload)
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
            self._check(session, span)
        except EngineError as error:
            name, epoch = (*header[1:3], None, None)[:2]
            self._failed(self._name(name), epoch if isinstance(epoch, int) else 0, error)
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
            self._dropped(session, job.span)

    def _dropped(self, session: Session, span: Span) -> None:
        self._emit(("dropped", session.name, span.epoch, span.start, span.count), b"")

    def _check(self, session: Session, span: Span) -> None:
        """Check whatever can be checked without computing. Raises EngineError if the span must be
        refused."""
        model = session.shard.compute
        parts = model.parts
        self._check_input(session, span, model)
        if span.draft:
            self._check_window(span, model)
        if span.want != "hidden" and not parts.head:
            raise EngineError("no-head", f"a shard without a head cannot compute `{span.want}`")
        if span.steps > 1 and not (parts.embedding and parts.head and span.want == "token"):
            raise EngineError("bad-span", "only a shard with embedding and head feeds tokens back")
        if span.start + span.count + span.steps - 1 > session.table.tokens:
            raise EngineError(
                "too-long",
                f"{span.count} positions from {span.start} and {span.steps - 1} more were not "
                f"reserved, {session.table.tokens} were",
            )
        self._check_limits(session, span, model)
        if span.epoch < session.epoch:
            raise EngineError("old-epoch", f"epoch {session.epoch} has begun")

    @staticmethod
    def _check_input(session: Session, span: Span, model: Compute) -> None:
        """Raise EngineError unless the tokens and hidden states of a span are the shard's input."""
        arch = model.arch
        if span.tokens is not None:
            if span.hidden is None and not model.parts.embedding:
                raise EngineError("no-embedding", "this shard takes hidden states, not tokens")
            if not 0 <= min(span.tokens) <= max(span.tokens) < arch.vocab:
                raise EngineError("bad-token", f"a token is not among the {arch.vocab} known")
            if span.hidden is None:
                return
        if len(span.hidden or b"") != span.count * session.row_bytes:
            raise EngineError("bad-hidden", f"the input is not {span.count} x {arch.hidden} values")

    @staticmethod
    def _check_window(span: Span, model: Compute) -> None:
        """Raise EngineError unless a span may be a window of this shard."""
        if model.arch.recurrent:
            raise EngineError("unsupported", "recurrent layers cannot take a guess back")
        if span.count > WINDOW_ROWS or span.steps > 1:
            raise EngineError("bad-span", f"a window has at most {WINDOW_ROWS} positions")
        if span.want != ("token" if model.parts.head else "hidden"):
            raise EngineError("bad-span", "a window wants hidden states, or tokens of the head")
        if (span.tokens is not None) != (model.parts.embedding or model.parts.head):
            raise EngineError("bad-span", "the first shard and the head need a window's tokens")
        if (span.hidden is not None) == model.parts.embedding:
            raise EngineError("bad-span", "only the first shard needs no hidden states")

    @staticmethod
    def _check_limits(session: Session, span: Span, model: Compute) -> None:
        """Raise EngineError if the answer would be too large or too many spans wait."""
        size = {
            "hidden": span.count * model.arch.hidden * DTYPE_BYTES[model.dtype],
            "logits": span.count * model.arch.vocab * 4,
            "token": 0,
            "pooled": model.arch.hidden * 4,
        }[span.want]
        if size > ANSWER_BYTES:
            raise EngineError("too-large", f"the answer would have {size} bytes")
        if len(session.waiting) >= WAITING_SPANS:
            raise EngineError("too-many", f"{WAITING_SPANS} spans of the session are waiting")

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
                self._dropped(session, span)
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
                self._failed(session.name, span.epoch, error)
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
        return job

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
        """Compute one step of sessions, and units of training passes beside it. Without sessions,
        compute one unit."""
        if self._scheduler.busy:
            self._step()
            self._training.beside()
        elif self._training.busy:
            self._training.unit()

    def _step(self) -> None:
        """Compute the rows that the scheduler chooses, all of one shard."""
        started = self.clock()
        work = self._secured(
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
        outputs = iter(model.forward(pieces))
        done: list[tuple[Session, SpanInProgress, list[Any]]] = []
        for session, rows in work:
            job = session.job
            assert job is not None  # nothing else has run since
            done.append((session, job, [next(outputs) for _ in range(_parts(job, rows))]))
            session.table.fill(job.position + rows)
            job.done += rows
            if session.doubt is not None:
                self._settle_doubt(session, job)
        self._choose(model, done)
        ended = self.clock()
        seconds = ended - started
        self._scheduler.groups.stepped(started, ended)
        total = sum(session.share.charged for session, _ in work)
        costs = work[0][0].shard.costs
        background = all(session.share.background for session, _ in work)
        least = costs.fixed + costs.row
        self._training.time.stepped(total, least, background=background, now=ended)
        for (session, _), (_, job, output) in zip(work, done, strict=True):
            part = session.share.charged / total if total > 0 else 1 / len(work)
            job.seconds += seconds * part
            job.predicted += session.share.charged
            if session.job is job:
                self._advance(session, job, model, output)
            self._next(session)
        # All at once: the next stage then computes the rows of this step in one step too.
        self._settle(self._urgent)
        self._urgent = False

    def _settle_doubt(self, session: Session, job: SpanInProgress) -> None:
        """Compare what has arrived from elsewhere with what was computed, and fail if it
        differs."""
        assert session.doubt is not None  # the caller has checked
        try:
            session.doubt.check(session)
        except EngineError as error:
            self._fail_job(session, job, error)

    def _make_room(self, shard: LoadedShard, blocks: int) -> None:
        """Free memory of a shard that no session needs until `blocks` blocks can be promised, as
        far as possible."""
        shard.adapters.make_room(blocks)
        self._training.make_room(shard, blocks)

    def _secured(self, work: list[tuple[Session, int]]) -> list[tuple[Session, int]]:
        """Return the part of the work for which there is memory, after ending the sessions whose
        memory it needs.

        Such a session's gateway opens it again when there is room. Each time, the owner that has
        most loses its youngest session; so each owner's oldest session ends some day.
        """
        for session, rows in work:
            job, pool = session.job, session.shard.pool
            while job is not None and session.job is job:
                end = job.position + rows
                self._make_room(session.shard, session.table.lacks(end))
                if session.table.lacks(end) <= pool.total - pool.promised:
                    session.table.secure(end)
                    break
                self._preempt(session.shard)
        return [(session, rows) for session, rows in work if session.job is not None]

    def _preempt(self, shard: LoadedShard) -> None:
        """End a session of a shard to free its memory: first one into which KV is copied, which has
        computed nothing."""
        sessions = [each for each in self._sessions.values() if each.shard is shard]
        has = _promised(sessions)
        victim = max(
            sessions,
            key=lambda each: (
                each.arrival is not None,
                each.share.background,
                not each.own,
                has[each.owner],
                each.age,
            ),
        )
        self._evict(victim, "its memory was needed by another session")

    def _evict(self, session: Session, why: str) -> None:
        """End a session whose gateway may open it again."""
        del self._sessions[session.name]
        epoch = session.epoch
        self._drop(session)
        self._failed(session.name, epoch, EngineError("preempted", why))

    @staticmethod
    def _choose(model: Compute, done: list[tuple[Session, SpanInProgress, list[Any]]]) -> None:
        """Choose the next token of each session whose span is complete and wants one, and for a
        window those after each of its positions."""
        wanting = []
        for _, job, outputs in done:
            if job.span.want == "token":
                job.rows += outputs if job.decode else outputs[:0]
                if job.done == job.count:
                    job.rows = job.rows or outputs
                    wanting.append(job)
        picks = [
            Pick(rows, job.span.sampling, position, job.span.top)
            for job in wanting
            for position, rows in enumerate(job.rows, job.position - len(job.drafts))
        ]
        chosen = iter(model.choose(picks) if picks else ())
        for job in wanting:
            job.chosen = [next(chosen) for _ in job.rows]
            job.rows = []

    def _advance(
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
            self._fail_job(session, job, error)
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
        position, token, stopped, final = first, 0, False, False
        for position, choice in enumerate(job.chosen, first):
            if isinstance(choice, EngineError):
                self._fail_job(session, job, choice)
                return
            job.emitted += 1
            token = choice.token
            stopped = token in span.stop_ids
            right = job.drafts[position - first : position - first + 1] == (token,)
            final = stopped or (not right if span.draft else job.emitted == span.steps)
            self._token(session, job, choice, position, final=final)
            if final or not right:
                break
        session.table.truncate(position)  # what follows was computed from wrong drafts
        session.sampled = None if stopped else (position, token)
        if final:
            self._finish(session, job)
            return
        job.drafts = self._guesses(session, job, position, token)
        job.source = model.fed_back(token, *job.drafts)
        job.start, job.count, job.done = position, 1 + len(job.drafts), 0

    @staticmethod
    def _guesses(
        session: Session, job: SpanInProgress, position: int, token: int
    ) -> tuple[int, ...]:
        """Return the guesses for the positions after a token of a loop that are worth computing."""
        return session.guessed(position, token)[: job.span.steps - job.emitted - 1]

    def _token(
        self, session: Session, job: SpanInProgress, choice: Choice, position: int, *, final: bool
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
        span = job.span
        seconds = job.seconds, job.predicted
        header = ("hidden", session.name, span.epoch, span.start, span.count, *seconds)
        packed = session.packed and span.want == "hidden" and not model.parts.head
        payload = model.packed_rows(job.outputs) if packed else model.joined(job.outputs)
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
        self._scheduler.groups.left(session.share, self.clock())
        if not job.span.draft:
            session.keep(job.answer)

    def _fail_job(self, session: Session, job: SpanInProgress, error: EngineError) -> None:
        """End the session's job with a failure and drop its positions."""
        session.job = None
        session.table.discard(job.span.start)
        self._failed(session.name, job.span.epoch, error)

    def _failed(self, name: bytes, epoch: int, error: EngineError) -> None:
        self._emit(("failed", name, epoch, error.code, error.message), b"")


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
        yield Piece(session.table, job.source, *place, job.decode, adapter, use)


def _states_beside(table: BlockTable, shard: LoadedShard) -> SessionStates | None:
    """Return the states of a new session, or free its table and raise EngineError `no-memory`."""
    try:
        return shard.new_states()
    except EngineError:
        table.free()
        raise


def _promised(sessions: Sequence[Session]) -> dict[str, int]:
    """Return the number of blocks by owner: those of its sessions, and of the adapters that these
    use."""
    has: dict[str, int] = {}
    adapters: dict[str, set[str]] = {}
    for each in sessions:
        has[each.owner] = has.get(each.owner, 0) + each.table.promised
        used = adapters.setdefault(each.owner, set())
        if each.adapter is not None and each.adapter.root not in used:
            used.add(each.adapter.root)
            has[each.owner] += len(each.adapter.blocks)
    return has


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


def _block_names(owner: str, adapter: str, payload: memoryview) -> list[BlockName]:
    """Return the names of a session's blocks from a frame's payload.

    Blocks that were computed with different adapters never have the same name. Raises EngineError
    `bad-span` if the payload has another size than that of whole names.
    """
    if len(payload) % NAME_BYTES:
        raise EngineError("bad-span", f"{len(payload)} bytes are not names of {NAME_BYTES} bytes")
    scope = f"{owner} {adapter}" if adapter else owner
    return [
        (scope, bytes(payload[at : at + NAME_BYTES])) for at in range(0, len(payload), NAME_BYTES)
    ]
