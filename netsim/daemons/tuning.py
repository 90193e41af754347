"""Training passes of a simulated engine: numbers made from hashes, in the time that is predicted.

An answer depends on every byte of the input, on the tensors of the adapter and on the layers. A
part that is computed twice, with old tensors or by the wrong stage therefore shows.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...tasks.engine.adapters import AdapterTerms
from ...tasks.engine.errors import EngineError
from ...tasks.engine.families import Architecture
from ...tasks.engine.interface import Parts
from ...tasks.engine.passes import PassOrder, ShardPass, Tuner, pass_sizes, tensor_sizes
from ...tasks.engine.scheduling.costs import StepCosts
from ...tasks.engine.wire import Buffer

_BACK = 2.0  # time of a backward pass, as a multiple of the forward pass


class NumberTuner:
    """`Tuner` of a shard without weights."""

    def __init__(self, arch: Architecture, parts: Parts, costs: StepCosts) -> None:
        self._arch, self._parts, self._costs = arch, parts, costs

    def check(self, terms: AdapterTerms) -> None:
        """Raise EngineError `bad-adapter` if an adapter does not fit."""
        tensor_sizes(terms, self._arch, self._parts)

    def adapter(self, terms: AdapterTerms, data: memoryview) -> tuple[AdapterTerms, bytes]:
        """Return the terms, and a hash of the tensors.

        Raises EngineError `bad-adapter` if their size is wrong.
        """
        if len(data) != 4 * sum(tensor_sizes(terms, self._arch, self._parts)):
            raise EngineError("bad-adapter", f"{len(data)} bytes are not the adapter's tensors")
        return terms, hashlib.blake2b(data).digest()

    def kept_bytes(self, order: PassOrder, *, results: bool) -> int:
        layers = self._parts.stop - self._parts.start
        return 4 * order.positions * self._arch.hidden * layers * (4 if results else 1)

    def work_bytes(self, order: PassOrder) -> int:
        return 40 * order.positions * self._arch.hidden

    def begin(
        self, order: PassOrder, adapter: Any, payload: memoryview, kept: Any, *, results: bool
    ) -> "NumberPass":
        terms, tensors = adapter
        sizes = pass_sizes(
            order, self._parts, self._arch.hidden, tensor_sizes(terms, self._arch, self._parts)
        )
        if len(payload) != sizes.payload:
            raise EngineError("bad-hidden", f"{len(payload)} bytes are not that pass")
        source = bytes(payload[: sizes.input]) if order.given else kept
        rest = bytes(payload[sizes.input :])
        seed = repr((self._parts, order.rows, order.length, order.back)).encode()
        digest = hashlib.blake2b(b"".join((seed, tensors, source, rest))).digest()
        return NumberPass(order, self._seconds(order), digest, (sizes.answer, source), self._parts)

    def _seconds(self, order: PassOrder) -> Sequence[float]:
        """Return the predicted seconds of each layer of a pass."""
        costs, layers = self._costs, max(1, self._parts.stop - self._parts.start)
        pairs = order.rows * order.length * (order.length + 1) / 2
        whole = order.positions * costs.row + pairs * costs.attended
        return [whole / layers * (_BACK if order.back else 1.0)] * layers


class NumberPass:
    """One pass, whose answer is made from a hash."""

    def __init__(
        self,
        order: PassOrder,
        seconds: Sequence[float],
        digest: bytes,
        answer: tuple[int, bytes],
        parts: Parts,
    ) -> None:
        self.predicted = 0.0
        self._order, self._left, self._digest, self._parts = order, list(seconds), digest, parts
        self._size, self._source = answer

    @property
    def next_s(self) -> float | None:
        return self._left[-1] if self._left else None

    def advance(self, unit_s: float) -> None:
        """Let the time of the next part of a layer pass."""
        seconds = self._left.pop()
        if seconds > unit_s:
            self._left.append(seconds - unit_s)
            seconds = unit_s
        self.predicted += seconds

    def answer(self) -> tuple[float, int, Buffer]:
        seed = int.from_bytes(self._digest[:8])
        kind = np.float32 if self._order.wire == "float32" else np.uint16
        rng = np.random.default_rng(seed)
        values = rng.random(-(-self._size // 4), dtype=np.float32)
        data = values.tobytes()[: self._size]
        if kind is np.uint16:  # below 2 in bfloat16, and as float32
            data = (np.frombuffer(data, np.uint16) & 0x3FFF).tobytes()
        loss = float(rng.random()) * self._order.positions if self._parts.head else 0.0
        return loss, self._order.positions if self._parts.head else 0, data

    def kept(self) -> bytes:
        return self._source


class TimedTuner:
    """`Tuner` wrapper that passes the time of each unit on."""

    def __init__(self, inner: Tuner, passed: Callable[[float], None]) -> None:
        self._inner, self._passed = inner, passed
        self.check, self.adapter = inner.check, inner.adapter
        self.kept_bytes, self.work_bytes = inner.kept_bytes, inner.work_bytes

    def begin(
        self, order: PassOrder, adapter: Any, payload: memoryview, kept: Any, *, results: bool
    ) -> ShardPass:
        return TimedPass(
            self._inner.begin(order, adapter, payload, kept, results=results), self._passed
        )


class TimedPass:
    """`ShardPass` wrapper that passes the time of each unit on."""

    def __init__(self, inner: ShardPass, passed: Callable[[float], None]) -> None:
        self.predicted = 0.0
        self._inner, self._passed = inner, passed
        self.answer, self.kept = inner.answer, inner.kept

    @property
    def next_s(self) -> float | None:
        return self._inner.next_s

    def advance(self, unit_s: float) -> None:
        before = self._inner.predicted
        self._inner.advance(unit_s)
        self.predicted = self._inner.predicted
        self._passed(self.predicted - before)
