"""The engines of a node's devices as one `Engine`: each has the shards with its numbers."""

from collections.abc import Callable, Mapping, Sequence

from ...defaults import SLOTS
from ..adapters import LoadAdapter
from ..errors import EngineError
from ..interface import (
    DEFAULT_TERMS,
    Engine,
    EngineEvent,
    KvForm,
    KvRange,
    KvSource,
    Loaded,
    LoadShard,
    NamedBlocks,
    SessionId,
    SessionTerms,
    Span,
)
from ..passes import OpenTuning, PassDone, PassOrder, TuningEngine
from ..wire import Buffer


def shard_number(device: int, slot: int) -> int:
    """Return the number of the shard of a slot on a device."""
    return device * SLOTS + slot


class DeviceEngines:
    """Implementation of `Engine` and `TuningEngine` with one engine for each device.

    The number of a shard says on which device it is (`shard_number`). A device whose worker ends
    takes only its own sessions with it.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._sessions: dict[SessionId, Engine] = {}
        self._tunings: dict[SessionId, TuningEngine] = {}

    def _at(self, number: int) -> Engine:
        device = number // SLOTS
        if device >= len(self._engines):
            raise EngineError("no-shard", f"this node has no shard {number}")
        return self._engines[device]

    def _of(self, session: SessionId) -> Engine:
        engine = self._sessions.get(session)
        if engine is None:
            raise EngineError("unknown-session", "the session is not open")
        return engine

    # Implementation of `Engine`.

    async def load(self, shard: LoadShard, number: int = 0) -> Loaded:
        return await self._at(number).load(shard, number)

    async def unload(self, number: int) -> None:
        await self._at(number).unload(number)

    async def adapt(self, adapter: LoadAdapter, shard: int = 0) -> None:
        await self._at(shard).adapt(adapter, shard)

    async def open(
        self,
        session: SessionId,
        tokens: int,
        on_event: Callable[[EngineEvent], None],
        terms: SessionTerms = DEFAULT_TERMS,
    ) -> int:
        if session in self._sessions:
            raise EngineError("session-exists", "the session is open already")
        engine = self._sessions[session] = self._at(terms.shard)
        try:
            return await engine.open(session, tokens, on_event, terms)
        except BaseException:
            self._sessions.pop(session, None)
            raise

    async def recall(
        self, session: SessionId, position: int, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        await self._of(session).recall(session, position, prompt, answer)

    def submit(self, span: Span) -> None:
        self._of(span.session).submit(span)

    def hold(self) -> None:
        for engine in self._engines:
            engine.hold()

    def cancel(self, session: SessionId) -> None:
        if engine := self._sessions.get(session):
            engine.cancel(session)

    async def close(self, session: SessionId, names: bytes = b"") -> None:
        if engine := self._sessions.pop(session, None):
            await engine.close(session, names)

    async def export_kv(self, session: SessionId) -> bytes:
        return await self._of(session).export_kv(session)

    async def import_kv(self, session: SessionId, state: bytes) -> int:
        return await self._of(session).import_kv(session, state)

    async def read_kv(self, source: KvSource, part: KvRange, form: KvForm = "exact") -> bytes:
        engine = self._at(source.shard) if isinstance(source, NamedBlocks) else self._of(source)
        return await engine.read_kv(source, part, form)

    async def write_kv(self, session: SessionId, part: bytes, *, doubted: bool = False) -> int:
        return await self._of(session).write_kv(session, part, doubted=doubted)

    def expect_kv(self, session: SessionId, expected: bool) -> None:
        if engine := self._sessions.get(session):
            engine.expect_kv(session, expected)

    async def bring_kv(
        self, session: SessionId, part: bytes, start: int, stop: int, *, doubted: bool = False
    ) -> int:
        return await self._of(session).bring_kv(session, part, start, stop, doubted=doubted)

    async def fork(self, session: SessionId, into: SessionId) -> None:
        engine = self._of(session)
        if engine is not self._of(into):
            raise EngineError("bad-state", "the sessions are on different devices")
        await engine.fork(session, into)

    async def usage(self) -> Mapping[str, int]:
        total: dict[str, int] = {}
        for engine in self._engines:
            for key, value in (await engine.usage()).items():
                total[key] = total.get(key, 0) + value
        return total

    # Implementation of `TuningEngine`.

    async def open_tuning(self, tuning: SessionId, order: OpenTuning) -> None:
        engine = self._at(order.shard)
        if not isinstance(engine, TuningEngine):
            raise EngineError("no-backward", "this device computes no training passes")
        self._tunings[tuning] = engine
        try:
            await engine.open_tuning(tuning, order)
        except BaseException:
            self._tunings.pop(tuning, None)
            raise

    async def set_tensors(self, tuning: SessionId, data: Buffer) -> None:
        await self._tuner(tuning).set_tensors(tuning, data)

    async def tune(self, tuning: SessionId, order: PassOrder, data: Buffer) -> PassDone:
        return await self._tuner(tuning).tune(tuning, order, data)

    async def close_tuning(self, tuning: SessionId) -> None:
        if engine := self._tunings.pop(tuning, None):
            await engine.close_tuning(tuning)

    def _tuner(self, tuning: SessionId) -> TuningEngine:
        engine = self._tunings.get(tuning)
        if engine is None:
            raise EngineError("unknown-session", "the tuning is not open")
        return engine
