"""Core of the worker: processes request frames, computes step by step, and emits frames.

Uses no sockets. Implements docs/spec/engine.md, sections session and spans. The owner of the core
calls `handle` for each frame, and `step` while `busy` is True. The scheduler chooses the rows of
each step, which may belong to many sessions (scheduler.py); their KV is in shared blocks
(kv/blocks.py). This module has the rules of sessions. The shards (shard.py) do the computing.
`spans/` has what stands by itself: checks of spans, their answers, and the memory of sessions.
"""

import time
from collections.abc import Mapping
from typing import Any

import psutil

from ..costs.shardcosts import ShardCosts
from .adapters import LoadAdapter
from .defaults import HOLD_S, HOST_PART
from .errors import EngineError
from .families import Architecture, architecture, weight_bytes
from .interface import NO_RULES, Loaded, LoadShard, SessionId
from .kv import arrival
from .kv.ahead import KvAhead
from .kv.blocks import BlockTable, blocks_for
from .kv.hostcopies import HostCopies
from .kv.states import SessionStates
from .messages import loaded_value, parse_adapter, parse_load
from .session import Session
from .shard import Compute, LoadedShard, Stop
from .spans.answers import FrameOutput
from .spans.opening import block_names, parse_open
from .spans.rules import SessionRules, recalled
from .spans.runner import Runner
from .training import Training
from .wire import Header, Request, Result, WireError

_UNLOADABLE = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)
"""Errors of a model's values that no check has foreseen. A RuntimeError is not among them, because
after one of a card the process must end."""
_FEATURES = frozenset({"forward", "logits", "token", "pooled", "export", "adapter"})


class Core:
    """The shards of one device with their sessions. All computing happens inside `handle` (load)
    and `step`."""

    def __init__(
        self, output: FrameOutput, *, stop: Stop | None = None, memory_bytes: int = 0
    ) -> None:
        """Create a core without shards.

        `stop` is asked during steps of background sessions, which end early if it returns True.
        `memory_bytes` limits weights and KV of all shards together (0: the available memory).
        """
        self._emit = output.emit
        self._memory_bytes = memory_bytes
        self.shards: dict[int, LoadedShard] = {}
        self.sessions: dict[SessionId, Session] = {}
        self._held_until = 0.0  # time until which background work waits
        self._opened = 0  # number of sessions that were ever opened
        self.training = Training(self._emit, self._loaded, self._spare_bytes, self.clock)
        copies = HostCopies(self._host_bytes)
        self.runner = Runner(
            self.sessions, self.training, output, copies, lambda: self.clock(), stop=stop
        )
        kv_parts = arrival.KvParts(self._present, self._copied, self._loaded)
        self._ahead = KvAhead(self._present, self.runner.arrived, lambda: self.clock())
        self._requests: Mapping[str, Request] = {
            "load": self._load,
            "unload": self._unload,
            "adapt": self._adapt,
            "open": self._open,
            "close": self._close,
            "export": self._export,
            "import": self._import,
            "fork": self._fork,
            "recall": self._recall,
            "usage": self._usage,
            "bring": self._ahead.bring,
            **kv_parts.requests(),
            **self.training.requests(),
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

    def host_available_bytes(self) -> int:
        """Return the available memory of this machine in bytes, even if it computes on a card."""
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
        if not self.runner.scheduler.busy and not self.training.busy:
            return None
        return self._held

    @property
    def _held(self) -> float:
        """Seconds for which all work there is must wait, because it is background work and an
        interactive request has begun."""
        if not (self._held_until and self.runner.scheduler.busy and self.runner.scheduler.idle):
            return 0.0
        left = self._held_until - self.clock()
        if left <= 0:
            self._held_until = left = 0.0
        return left

    def step(self) -> None:
        """Compute one step of sessions, or one unit of a training pass: if there are no sessions
        with work, or if units have their part of the time beside steps."""
        if self.runner.scheduler.busy and not self.training.is_due:
            self.runner.step()
        elif self.training.busy:
            self.training.unit(beside=self.runner.scheduler.busy)

    def handle(self, header: Header, payload: memoryview) -> None:
        """Process one frame. Raises WireError if no daemon would send such a frame."""
        name = header[0]
        if name == "span":
            self.runner.submit(header, payload)
        elif name == "cancel" and len(header) == 2:
            self.runner.cancel(header[1])
        elif name == "hold" and len(header) == 1:
            self._hold()
        elif name == "expect" and len(header) == 3:
            self._expect(header[1], bool(header[2]))
        elif name == "tune":
            self.training.submit(header, payload)
        elif name == "tune-stop" and len(header) == 3:
            self.training.stop(header)
        elif isinstance(name, str) and name in self._requests and len(header) > 1:
            self._answer(self._requests[name], header, payload)
        else:
            raise WireError(f"the daemon sent `{name}`")

    @property
    def used_bytes(self) -> int:
        """Memory of all weights and of the used KV, in bytes."""
        return sum(
            shard.weight_bytes + shard.pool.used * shard.block_bytes
            for shard in self.shards.values()
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
        self.shards[number] = loaded
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
        shard = self.shards.pop(number, None)
        self.training.drop(shard)
        for session in [each for each in self.sessions.values() if each.shard is shard]:
            del self.sessions[session.name]
            self.runner.drop(session)

    def _check_memory(self, weights: int, kv: int) -> None:
        """Raise EngineError `no-memory` if a further shard's weights and KV exceed the limit."""
        limit = self.available_bytes()
        if self._memory_bytes:
            limit = self._memory_bytes - sum(shard.bytes for shard in self.shards.values())
            if weights + kv > limit - self.training.beside_kv:
                self.training.end_all()
        if weights + kv > limit:
            raise EngineError(
                "no-memory",
                f"the shard needs {weights} bytes of weights and {kv} of KV, {limit} are there",
            )

    def _host_bytes(self) -> int:
        """Return the host memory that copies of KV may take in all: as much as the weights and KV
        on the device, and a part of what is free."""
        most = self.runner.room.copies.used + int(HOST_PART * self.host_available_bytes())
        return min(self._memory_bytes or most, most)

    def _spare_bytes(self) -> int:
        """Return the memory that weights and KV leave."""
        if self._memory_bytes:
            return self._memory_bytes - sum(shard.bytes for shard in self.shards.values())
        return self.available_bytes()

    def _open(self, header: Header, payload: memoryview) -> Result:
        """Open a session, and return the number of positions that the cache has of its prefix."""
        order = parse_open(header)
        shard = self._loaded(order.shard)
        if order.name in self.sessions:
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
            self.runner.room.make(shard, blocks_for(order.now))
            table = BlockTable(shard.pool, tokens, names, soon=order.soon, exact=order.exact)
            states = _states_beside(table, shard)
        except EngineError:
            shard.adapters.release(used)
            raise
        if not order.background:
            self._hold()
        share = self.runner.scheduler.join(
            order.owner,
            shard.costs,
            user=order.user,
            network=order.network,
            background=order.background,
            adapter=used.costs if used is not None else None,
        )
        self._opened += 1
        session = Session(order.name, order.owner, shard, table, share, self._opened)
        session.adapter, session.own, session.states = used, order.own, states
        session.packed, session.rules = order.packed, rules
        self.runner.add(session)
        return table.length, b""

    def _hold(self) -> None:
        """Have background work wait for an interactive request, which would otherwise wait for
        the ends of its steps."""
        self._held_until = self.clock() + HOLD_S

    def _expect(self, name: object, expected: bool) -> None:
        """Prepare a session, if it is open, for KV that arrives ahead of it."""
        session = self.sessions.get(self._name(name))
        if session is not None:
            self._ahead.expect(session, expected)

    def _close(self, header: Header, payload: memoryview) -> Result:
        """Close a session, even if its names are malformed. Its named blocks stay cached."""
        session = self.sessions.pop(self._name(header[0]), None)
        if session is not None:
            try:
                names = block_names(session.owner, session.adapter_root, payload)
                here = not session.busy and session.copy is None
                if names and here and session.shard.reuses:
                    session.table.name_all(names)
            finally:
                self.runner.drop(session)
                self.runner.resume()
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
        session.arrival = session.ahead = None
        table.prepare(0, length)
        shard.compute.install(table, length, values)
        table.fill(length)
        session.forget()
        return length, b""

    def _fork(self, header: Header, payload: memoryview) -> Result:
        source, into = (self._copied(name) for name in header)
        if source.shard is not into.shard or source.adapter is not into.adapter:
            raise EngineError("bad-state", "the sessions belong to different shards or adapters")
        if source.copy is not None:  # it left again, for the other one
            raise EngineError("no-memory", "there is no memory for both sessions")
        if source.table.length > into.table.tokens:
            raise EngineError(
                "bad-state",
                f"the session has {source.table.length} positions, {into.table.tokens} are "
                "reserved in the other one",
            )
        if source is not into:
            into.table.secure(source.table.length)
            into.table.share(source.table)
            into.arrival = into.ahead = None
        into.forget()
        return into.table.length, b""

    def _recall(self, header: Header, payload: memoryview) -> Result:
        """Tell a session the tokens on which its rules depend."""
        session = self.runner.find(header[0] if header else None)
        if session.rules is None:
            raise EngineError("bad-span", "the session has no rules")
        session.rules.recall(*recalled(header, payload))
        return None, b""

    def _usage(self, header: Header, payload: memoryview) -> Result:
        shards = self.shards.values()
        usage = {
            "sessions": len(self.sessions),
            "kv_bytes_reserved": sum(each.pool.promised * each.block_bytes for each in shards),
            "kv_bytes_limit": sum(each.pool.total * each.block_bytes for each in shards),
            "kv_bytes_cached": sum(each.pool.cached * each.block_bytes for each in shards),
            "kv_bytes_copied": self.runner.room.copies.used,
            "weight_bytes": sum(each.weight_bytes for each in shards),
            "adapter_bytes": sum(each.adapters.size for each in shards),
            "tunings": self.training.count,
            "tuning_bytes": self.training.used_bytes,
            "rss_bytes": self.resident_bytes(),
        }
        return usage, b""

    def _loaded(self, number: object) -> LoadedShard:
        """Return a loaded shard. Raises EngineError `no-shard` if there is none with this
        number."""
        shard = self.shards.get(number) if isinstance(number, int) else None
        if shard is None:
            raise EngineError("no-shard", "no such shard is loaded")
        return shard

    def _present(self, name: object) -> Session:
        """Return an open session whose KV is on the device, or comes back to it.

        Raises EngineError `unknown-session` if it is not open, and `no-memory`.
        """
        session = self.runner.find(name)
        self.runner.fetch(session)
        return session

    @staticmethod
    def _name(name: object) -> bytes:
        return name if isinstance(name, bytes) else b""

    def _idle(self, name: object) -> Session:
        """Return an open session. Raises EngineError `busy` if it has spans that run or wait."""
        session = self.runner.find(name)
        if session.busy:
            raise EngineError("busy", "spans of the session run or wait")
        return self._present(name)

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
