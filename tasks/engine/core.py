"""Core of the worker: processes request frames, computes step by step, and emits frames.

Uses no sockets. Implements docs/spec/engine.md, sections session and spans. The owner of the core
calls `handle` for each frame, and `step` while `busy` is True. Sessions take turns, so a long
prompt delays the others by one chunk at most. This module has the rules. An implementation of
`Compute`, such as that in torch (`compute.py`), does the computing.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import psutil

from .budget import KvBudget
from .defaults import ANSWER_BYTES, PREFILL_CHUNK, WAITING_SPANS
from .errors import EngineError
from .families import DTYPE_BYTES, Architecture, architecture, kv_token_bytes, weight_bytes
from .interface import DType, Loaded, LoadShard, Parts, Sampling, SessionId, Span
from .messages import loaded_value, parse_load, parse_span
from .session import AnsweredSpan, KvState, Session, SpanInProgress
from .wire import Buffer, Header, WireError

Emit = Callable[[Header, Buffer], None]
Result = tuple[object, Buffer]
Request = Callable[[Header, memoryview], Result]
_FEATURES = frozenset({"forward", "logits", "token", "export"})


class Compute(Protocol):
    """Interface that computes the layers of one shard.

    Batches have one row per position. They are tensors whose type the implementation chooses, and
    the core does not look inside. Any method may raise EngineError.
    """

    arch: Architecture
    parts: Parts
    dtype: DType

    def state(self, root: str, tokens: int, budget: KvBudget) -> KvState:
        """Reserve memory in the budget for the keys and values of `tokens` positions."""
        ...

    def source(self, span: Span) -> Any:
        """Return a span's input, either token ids or rows. Raises EngineError `not-finite` if rows
        are not finite."""
        ...

    def fed_back(self, token: int) -> Any:
        """Return one sampled token as the next input."""
        ...

    def advance(self, source: Any, first: int, count: int, state: KvState, position: int) -> Any:
        """Compute `count` rows of `source`, starting with row `first`, and return the output rows.

        Row `first` belongs to `position`. Keys and values are written into `state`.
        """
        ...

    def values(self, rows: Any, logits: bool, position: int) -> Any:
        """Return the shard's output: the rows themselves or, if `logits`, their logits.

        Raises EngineError `not-finite` if the output is not finite.
        """
        ...

    def joined(self, outputs: list[Any]) -> Buffer:
        """Concatenate several outputs of `values` and return them as bytes."""
        ...

    def choose(self, rows: Any, sampling: Sampling, position: int) -> tuple[int, float]:
        """Return the token that follows the last row, and its log-probability.

        Raises EngineError `not-finite` if the logits are not finite.
        """
        ...


class Core:
    """One shard with many sessions. All computing happens inside `handle` (load) and `step`."""

    def __init__(self, emit: Emit, emit_soon: Emit | None = None, *, memory_bytes: int = 0) -> None:
        """Create a core without a shard.

        `emit` sends a frame at once. `emit_soon` may delay a frame until the next frame, which
        follows after one step. `memory_bytes` limits weights and KV together (0: the available
        memory).
        """
        self._emit = emit
        self._emit_soon = emit_soon or emit
        self._memory_bytes = memory_bytes
        self._model: Compute | None = None
        self._root = ""
        self._weight_bytes = 0
        self._budget = KvBudget(0)
        self._sessions: dict[SessionId, Session] = {}
        self._turns: deque[Session] = deque()
        self._requests: Mapping[str, Request] = {
            "load": self._load,
            "open": self._open,
            "close": self._close,
            "export": self._export,
            "import": self._import,
            "fork": self._fork,
            "usage": self._usage,
        }

    # Access to the machine. The simulator overrides these methods.

    def compute(self, arch: Architecture, shard: LoadShard) -> Compute:
        """Load the weights of a shard and return the object that computes it."""
        from .compute import TorchCompute  # imported late, so that this module needs no torch

        return TorchCompute(arch, shard)

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
        """Whether a session has work, so that `step` must be called."""
        return bool(self._turns)

    def handle(self, header: Header, payload: memoryview) -> None:
        """Process one frame. Raises WireError if no daemon would send such a frame."""
        name = header[0]
        if name == "span":
            self._submit(header, payload)
        elif name == "cancel" and len(header) == 2:
            self._cancel(header[1])
        elif isinstance(name, str) and name in self._requests and len(header) > 1:
            self._answer(self._requests[name], header, payload)
        else:
            raise WireError(f"the daemon sent `{name}`")

    def step(self) -> None:
        """Compute one step of the session whose turn it is."""
        session = self._turns.popleft()
        if session.busy:
            try:
                self._advance(session)
            except EngineError as error:
                self._fail_job(session, error)
        if session.busy:
            self._turns.append(session)
        else:
            session.scheduled = False

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
        """Load a shard in place of the current one, whose sessions end."""
        started = self.clock()
        self._unload()
        shard = parse_load(payload)
        arch = architecture(shard.config)
        size = weight_bytes(arch, shard.parts, shard.dtype)
        self._check_memory(size, shard.kv_bytes)
        self._model = self.compute(arch, shard)
        self._root, self._weight_bytes = shard.root, size
        self._budget = KvBudget(shard.kv_bytes)
        loaded = Loaded(size, self._token_bytes(arch, shard), self.clock() - started, _FEATURES)
        return loaded_value(loaded), b""

    def _unload(self) -> None:
        """Drop all sessions and the shard."""
        for session in self._sessions.values():
            self._drop(session)
        self._sessions.clear()
        self._model = None
        self._weight_bytes = 0
        self._budget = KvBudget(0)

    def _check_memory(self, weights: int, kv: int) -> None:
        """Raise EngineError `no-memory` if weights and KV exceed the limit."""
        limit = self._memory_bytes or self.available_bytes()
        if weights + kv > limit:
            raise EngineError(
                "no-memory",
                f"the shard needs {weights} bytes of weights and {kv} of KV, {limit} are there",
            )

    @staticmethod
    def _token_bytes(arch: Architecture, shard: LoadShard) -> int:
        return kv_token_bytes(arch, shard.parts.start, shard.parts.stop, shard.dtype)

    def _open(self, header: Header, payload: memoryview) -> Result:
        name, tokens = header
        model = self._loaded()
        if not isinstance(name, bytes) or len(name) != 16 or type(tokens) is not int:
            raise EngineError("bad-span", "a session has a name of 16 bytes and a size")
        if name in self._sessions:
            raise EngineError("session-exists", "the session is open already")
        if not 0 < tokens <= model.arch.context:
            raise EngineError(
                "too-long",
                f"{tokens} positions were asked for, the context is {model.arch.context}",
            )
        self._sessions[name] = Session(name, model.state(self._root, tokens, self._budget))
        return 0, b""

    def _close(self, header: Header, payload: memoryview) -> Result:
        session = self._sessions.pop(self._name(header[0]), None)
        if session is not None:
            self._drop(session)
        return None, b""

    def _export(self, header: Header, payload: memoryview) -> Result:
        return None, self._idle(header[0]).kv.export()

    def _import(self, header: Header, payload: memoryview) -> Result:
        session = self._idle(header[0])
        length = session.kv.install(payload)
        session.forget()
        return length, b""

    def _fork(self, header: Header, payload: memoryview) -> Result:
        source, into = (self._idle(name) for name in header)
        into.kv.copy_from(source.kv)
        into.forget()
        return into.kv.length, b""

    def _usage(self, header: Header, payload: memoryview) -> Result:
        usage = {
            "sessions": len(self._sessions),
            "kv_bytes_reserved": self._budget.reserved,
            "kv_bytes_limit": self._budget.limit,
            "weight_bytes": self._weight_bytes,
            "rss_bytes": self.resident_bytes(),
        }
        return usage, b""

    def _loaded(self) -> Compute:
        """Return the loaded shard. Raises EngineError `no-shard` if there is none."""
        if self._model is None:
            raise EngineError("no-shard", "no shard is loaded")
        return self._model

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

    def _drop(self, session: Session) -> None:
        """Cancel a session's work and free its memory. If it is still queued for a step, that does
        nothing."""
        session.job = None
        session.waiting.clear()
        session.kv.free()

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
        session.waiting.append(span)
        if not session.scheduled:
            session.scheduled = True
            self._turns.append(session)

    def _check(self, session: Session, span: Span) -> None:
        """Check whatever can be checked without computing. Raises EngineError if the span must be
        refused."""
        model = self._loaded()
        arch, parts = model.arch, model.parts
        if span.tokens is not None:
            if not parts.embedding:
                raise EngineError("no-embedding", "this shard takes hidden states, not tokens")
            if not 0 <= min(span.tokens) <= max(span.tokens) < arch.vocab:
                raise EngineError("bad-token", f"a token is not among the {arch.vocab} known")
        elif len(span.hidden or b"") != span.count * arch.hidden * DTYPE_BYTES[model.dtype]:
            raise EngineError("bad-hidden", f"the input is not {span.count} x {arch.hidden} values")
        if span.want != "hidden" and not parts.head:
            raise EngineError("no-head", f"a shard without a head cannot compute `{span.want}`")
        if span.steps > 1 and not (parts.embedding and parts.head and span.want == "token"):
            raise EngineError("bad-span", "only a shard with embedding and head feeds tokens back")
        if span.start + span.count + span.steps - 1 > session.kv.tokens:
            raise EngineError(
                "too-long",
                f"{span.count} positions from {span.start} and {span.steps - 1} more were not "
                f"reserved, {session.kv.tokens} were",
            )
        self._check_limits(session, span, model)
        if span.epoch < session.epoch:
            raise EngineError("old-epoch", f"epoch {session.epoch} has begun")

    @staticmethod
    def _check_limits(session: Session, span: Span, model: Compute) -> None:
        """Raise EngineError if the answer would be too large or too many spans wait."""
        size = {
            "hidden": span.count * model.arch.hidden * DTYPE_BYTES[model.dtype],
            "logits": span.count * model.arch.vocab * 4,
            "token": 0,
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
        self._emit(("failed", session.name, epoch, code, message), b"")

    # Computing.

    def _advance(self, session: Session) -> None:
        """Compute the next chunk of the session's current span, and emit the results if it is
        complete."""
        job = session.job or self._begin(session)
        if job is None:
            return
        started = self.clock()
        model = self._loaded()
        count = min(PREFILL_CHUNK, job.count - job.done)
        position = job.start + job.done
        x = model.advance(job.source, job.done, count, session.kv, position)
        session.kv.length = position + count
        job.done += count
        if job.span.want == "token":
            if job.done == job.count:
                self._token(session, job, model, x, started)
            else:
                job.seconds += self.clock() - started
            return
        job.outputs.append(model.values(x, job.span.want == "logits", position))
        job.seconds += self.clock() - started
        if job.done == job.count:
            self._values(session, job, model)

    def _begin(self, session: Session) -> SpanInProgress | None:
        """Make the next waiting span the session's job and return it.

        If the span is a repetition, emit the stored answer and return None.
        """
        span = session.waiting.popleft()
        key = (span.epoch, span.start, span.count)
        answer = session.kept(key)
        if answer is not None:
            for header, payload in answer.frames:
                self._emit(header, payload)
            return None
        job = SpanInProgress(span, AnsweredSpan(key), None, span.start, span.count)
        session.job = job  # a failure from here on is a failure of this span
        if span.start > session.kv.length:
            raise EngineError(
                "gap", f"the span starts at {span.start}, {session.kv.length} positions are cached"
            )
        job.source = self._loaded().source(span)
        return job

    def _token(
        self, session: Session, job: SpanInProgress, model: Compute, rows: Any, started: float
    ) -> None:
        """Choose and emit the next token. Unless it is final, feed the token back as the next
        input."""
        span = job.span
        position = job.start + job.count
        token, logprob = model.choose(rows, span.sampling, position)
        job.emitted += 1
        final = job.emitted == span.steps or token in span.stop_ids
        seconds = job.seconds + self.clock() - started
        header = ("token", session.name, span.epoch, position, token, logprob, final, seconds)
        job.answer.add(header)
        if final:
            self._emit(header, b"")
            self._finish(session, job)
        else:
            # A client waits for the first token. Other sessions would delay the next frame.
            at_once = job.emitted == 1 or self._turns
            (self._emit if at_once else self._emit_soon)(header, b"")
            job.source = model.fed_back(token)
            job.start, job.count, job.done, job.seconds = position, 1, 0, 0.0

    def _values(self, session: Session, job: SpanInProgress, model: Compute) -> None:
        """Emit the span's outputs as one event and finish the span."""
        span = job.span
        header = ("hidden", session.name, span.epoch, span.start, span.count, job.seconds)
        payload = model.joined(job.outputs)
        job.answer.add(header, payload)
        self._emit(header, payload)
        self._finish(session, job)

    @staticmethod
    def _finish(session: Session, job: SpanInProgress) -> None:
        """End the session's job and store its answer for repetitions."""
        session.job = None
        session.keep(job.answer)

    def _fail_job(self, session: Session, error: EngineError) -> None:
        """End the session's job with a failure and drop its positions."""
        job = session.job
        assert job is not None  # only a job raises
        session.job = None
        session.kv.truncate(job.span.start)
        self._failed(session.name, job.span.epoch, error)

    def _failed(self, name: bytes, epoch: int, error: EngineError) -> None:
        self._emit(("failed", name, epoch, error.code, error.message), b"")
