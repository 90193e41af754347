"""Checkpoints of a fine-tuning: format, writing, reading. Spec: docs/spec/trainer.md.

A checkpoint is a head, the tensors, both moments of those that are trained, the best tensors if
there are some, the state of the averager's round if there is one, and the SHA-256 of all
this. It replaces the old checkpoint atomically, which a full
disk or a crash therefore leaves as it was.
"""

import hashlib
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from msgspec import Meta

from ....transport.decoding import decode, typed
from ....transport.errors import Undecodable
from ....transport.host.seam import Files
from ....transport.message import Message, pack
from ...engine.layouts import Shape
from ..interface import LearnedName
from . import defaults
from .errors import Damaged
from .optimiser import Array, Learned, Round
from .settings import TuningSettings

FORMAT: Final = "shoal-tuning/1"
_PREFIX: Final = struct.Struct("!I")
_DIGEST: Final = 32  # bytes


class _CheckpointHead(Message, frozen=True):
    format: str
    run: str  # digest of the settings and the data
    step: Annotated[int, Meta(ge=0, le=defaults.STEPS_MOST)]
    loss: float
    norms: Annotated[tuple[float, ...], Meta(max_length=defaults.NORMS)]
    best: bool
    best_loss: float
    best_step: Annotated[int, Meta(ge=0, le=defaults.STEPS_MOST)]
    base: Annotated[int, Meta(ge=0, le=defaults.CHECKPOINT_BYTES)] = 0  # bytes, or 0 without rounds
    began: Annotated[int, Meta(ge=0, le=defaults.STEPS_MOST)] = 0
    tokens: Annotated[int, Meta(ge=0)] = 0


def run_digest(settings: TuningSettings, data: str) -> str:
    """Return the digest of all that a result depends on: the settings, and the digest of the
    data."""
    return hashlib.sha256(pack([FORMAT, settings.fields(), data])).hexdigest()


def save(files: Files, path: Path, learned: Learned, run: str) -> None:
    """Write a checkpoint, which is durable on return. Blocking. Raises OSError if the disk
    fails."""
    files.write_pieces(path, _pieces(learned, run))


def _pieces(learned: Learned, run: str) -> Iterator[bytes | memoryview]:
    found = hashlib.sha256()
    for piece in _unsigned(learned, run):
        found.update(piece)
        yield piece
    yield found.digest()


def _unsigned(learned: Learned, run: str) -> Iterator[bytes | memoryview]:
    own = learned.round or Round(b"", 0)
    head = pack(
        _CheckpointHead(
            FORMAT, run, learned.step, learned.loss, tuple(learned.norms), bool(learned.best),
            learned.best_loss, learned.best_step, len(own.base), own.began, own.tokens,
        )
    )  # fmt: skip
    yield _PREFIX.pack(len(head)) + head
    for group in (learned.tensors, learned.first, learned.second, learned.best):
        for name in filter(group.__contains__, learned.tensors):
            yield np.ascontiguousarray(group[name], "<f4").data.cast("B")
    yield own.base


def load(
    files: Files,
    path: Path,
    settings: TuningSettings,
    every: Mapping[LearnedName, Shape],
    run: str,
) -> Learned | None:
    """Read a checkpoint of tensors with these shapes. Blocking. Returns None if there is none.

    Raises Damaged if it is not whole, or of other settings or data.
    """
    try:
        data = memoryview(files.read(path, limit=defaults.CHECKPOINT_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(path, (error.strerror or str(error)).lower()) from None
    body = data[:-_DIGEST]
    if len(data) < _DIGEST or hashlib.sha256(body).digest() != data[-_DIGEST:]:
        raise Damaged(path, "it is not what was written")
    head, rest = _head(path, body)
    if head.run != run:
        raise Damaged(path, "it is of other settings or other data")
    trained = {name: shape for name, shape in every.items() if settings.trains(name)}
    wanted = [every, trained, trained, *([every] if head.best else [])]
    size = sum(4 * math.prod(shape) for group in wanted for shape in group.values())
    if len(rest) != size + head.base:
        raise Damaged(path, "its tensors have the wrong size")
    if bool(head.base) != bool(settings.together):
        raise Damaged(path, "it has no state of the average")
    return _learned(head, wanted, rest)


def _head(path: Path, body: memoryview) -> tuple[_CheckpointHead, memoryview]:
    """Return the head and what follows it."""
    (size,) = _PREFIX.unpack_from(body) if len(body) >= _PREFIX.size else (0,)
    end = _PREFIX.size + size
    try:
        if size > defaults.HEAD_BYTES:
            raise Undecodable("its head is too long")
        head = typed(_CheckpointHead, decode(body[_PREFIX.size : end], limit=defaults.HEAD_BYTES))
    except Undecodable as error:
        raise Damaged(path, str(error)) from None
    if head.format != FORMAT:
        raise Damaged(path, f"its format is {ascii(head.format)[:40]}")
    return head, body[end:]


def _learned(
    head: _CheckpointHead, wanted: Sequence[Mapping[LearnedName, Shape]], data: memoryview
) -> Learned:
    groups, at = list[dict[LearnedName, Array]](), 0
    for shapes in wanted:
        group: dict[LearnedName, Array] = {}
        for name, shape in shapes.items():
            size = 4 * math.prod(shape)
            group[name] = np.frombuffer(data[at : at + size], "<f4").reshape(shape).copy()
            at += size
        groups.append(group)
    tensors, first, second, *best = groups
    return Learned(
        head.step, tensors, first, second, head.loss, list(head.norms), best[0] if best else {},
        head.best_loss, head.best_step,
        Round(bytes(data[at:]), head.began, head.tokens) if head.base else None,
    )  # fmt: skip
