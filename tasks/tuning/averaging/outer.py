"""The state that all peers of a run share, and its outer step (DiLoCo). No I/O.

Each peer trains from the shared values for some inner steps. Its update is the pseudo-gradient: the
shared values minus its own. An outer optimiser (SGD with Nesterov momentum) applies the aggregate
of all updates. Spec: docs/spec/averaging.md, State.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ....transport.identity import KEY_BYTES, PeerId, peer_id_of, public_key_of
from .codecs import Vector
from .defaults import MAX_PEERS, MAX_POINTS, MAX_VALUES, PIECE, REFUSED_POINTS
from .errors import BadUpdate
from .memory import SpareMemory

_MAGIC: Final = b"shoalavg"
_HEAD: Final = struct.Struct("<8sQQHB5x")  # magic, round, values, peers with points, momentum?
_ROW: Final = KEY_BYTES + 1
_F32: Final = np.dtype("<f4")
_MAX_ROUND: Final = 1 << 32
_STANDINGS: Final = 4 * MAX_PEERS  # peers whose points a state may contain


@dataclass(frozen=True, slots=True)
class OuterRule:
    """Learning rate and Nesterov momentum of the outer optimiser."""

    rate: float = 0.7
    momentum: float = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class OuterState:
    """What training continues from after `round` outer steps.

    `points` are those of peers whose updates were refused. `momentum` is None if the rule has none.
    The arrays must not be changed.
    """

    round: int
    values: Vector = field(repr=False)
    momentum: Vector | None = field(repr=False, default=None)
    points: Mapping[PeerId, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the checkpoint of this state. Equal states have equal bytes."""
        return b"".join(self.parts())

    def parts(self) -> tuple[memoryview, ...]:
        """Return the checkpoint in parts, without a copy of the arrays. They are read-only."""
        rows = sorted((public_key_of(peer), points) for peer, points in self.points.items())
        has = self.momentum is not None
        head = _HEAD.pack(_MAGIC, self.round, self.values.size, len(rows), has)
        arrays = [self.values] if self.momentum is None else [self.values, self.momentum]
        known = b"".join(key + bytes([points]) for key, points in rows)
        views = [each.astype(_F32, copy=False).data.cast("B").toreadonly() for each in arrays]
        return memoryview(head + known), *views


def state_bytes(values: int) -> int:
    """Return the largest size of a checkpoint in bytes."""
    return _HEAD.size + _ROW * _STANDINGS + 8 * values


def decode_state(data: bytes | memoryview, values: int, rule: OuterRule) -> OuterState:
    """Decode a checkpoint of a peer.

    Raises BadUpdate: `wrong-size`, `bad-state` or `not-finite`.
    """
    if values > MAX_VALUES or not _HEAD.size <= len(data) <= state_bytes(values):
        raise BadUpdate("wrong-size", "a state is too short or too long")
    magic, number, count, rows, has = _HEAD.unpack_from(data)
    unused = bytes(data[_HEAD.size - 5 : _HEAD.size])
    if magic != _MAGIC or has != (rule.momentum > 0) or any(unused):
        raise BadUpdate("bad-state", "the bytes are not a state of this run")
    at = _HEAD.size + _ROW * rows
    if count != values or rows > _STANDINGS or len(data) != at + 4 * values * (1 + has):
        raise BadUpdate("wrong-size", "a state has another number of values or peers")
    if number > _MAX_ROUND:
        raise BadUpdate("bad-state", "the number of a state's round is too large")
    arrays = np.frombuffer(data, _F32, offset=at).astype(np.float32, copy=False)
    if not np.isfinite(arrays).all():
        raise BadUpdate("not-finite", "a state has values that are not finite")
    points = _points(bytes(data[_HEAD.size : at]))
    return OuterState(number, arrays[:values], arrays[values:] if has else None, points)


def _points(data: bytes) -> dict[PeerId, int]:
    """Decode the points of peers. Raises BadUpdate `bad-state`."""
    rows = [data[at : at + _ROW] for at in range(0, len(data), _ROW)]
    keys = [row[:-1] for row in rows]
    if keys != sorted(set(keys)) or any(not 1 <= row[-1] <= MAX_POINTS for row in rows):
        raise BadUpdate("bad-state", "the points of a state's peers are malformed")
    return {peer_id_of(row[:-1]): row[-1] for row in rows}


def first_state(values: Vector, rule: OuterRule) -> OuterState:
    """Return the state from which a run starts."""
    return OuterState(0, values, np.zeros_like(values) if rule.momentum > 0 else None)


def stepped(
    state: OuterState,
    gradient: Vector,
    refused: Mapping[PeerId, bool],
    rule: OuterRule,
    memory: SpareMemory | None = None,
) -> OuterState:
    """Return the state after an outer step with the aggregated pseudo-gradient.

    `refused` says of each peer that took part whether its update was refused. The state given is
    not changed. The result has the same bits on every machine.
    """
    rate, mu = np.float32(rule.rate), np.float32(rule.momentum)
    memory = memory or SpareMemory()
    values = memory.vector(state.values.size)
    momentum = None if state.momentum is None else memory.vector(values.size)
    for start in range(0, values.size, PIECE):  # so that all arrays of a piece fit the cache
        here = slice(start, start + PIECE)
        change = gradient[here]
        if state.momentum is not None and momentum is not None:
            np.multiply(state.momentum[here], mu, out=momentum[here])
            momentum[here] += change
            change = momentum[here] * mu + change  # Nesterov: the momentum of the next step
        np.subtract(state.values[here], change * rate, out=values[here])
    return OuterState(state.round + 1, values, momentum, _judged(state.points, refused))


def _judged(points: Mapping[PeerId, int], refused: Mapping[PeerId, bool]) -> dict[PeerId, int]:
    """Add points to authors of refused updates, and take one from those of accepted ones."""
    found = dict(points)
    for peer, was_refused in refused.items():
        change = REFUSED_POINTS if was_refused else -1
        found[peer] = min(max(found.get(peer, 0) + change, 0), MAX_POINTS)
    worst = sorted(((-count, peer) for peer, count in found.items() if count > 0))
    return {peer: -count for count, peer in sorted(worst[:_STANDINGS])}
