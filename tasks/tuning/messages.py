"""Messages between a trainer's chain and the stages. Spec: docs/spec/tuning.md. No I/O.

Everything that arrives is decoded here, into bounded types.
"""

import struct
from typing import Annotated, Final

from msgspec import Meta
from msgspec.structs import astuple

from ...transport.decoding import read
from ...transport.errors import Undecodable
from ...transport.message import Digest, Message, Natural, Root, pack
from ..engine.adapters import AdapterTerms
from ..engine.interface import DType, Parts
from ..engine.passes import PassOrder
from ..errors import BadMessage, SessionError
from ..message import HeaderMessage
from .defaults import HEAD_BYTES

TUNING_BYTES: Final = 16
_SIZE: Final = struct.Struct("!I")
_CODE: Final = 32
_TEXT: Final = 300

_CODES = """
    bad-message unknown-session session-exists no-shard too-many busy no-memory no-backward no-input
    no-adapter bad-adapter bad-span bad-hidden bad-token not-finite too-long stale idle cancelled
    shard-replaced worker-crashed bad-result engine-unavailable unreachable timeout too-large
"""
STAGE_CODES: Final = frozenset(_CODES.split())
"""Codes with which a stage refuses. Others become `stage-failed`."""


class TuningMessage(HeaderMessage, frozen=True):
    """Base of all messages of a tuning, which the trainer has named."""

    tuning: Annotated[bytes, Meta(min_length=TUNING_BYTES, max_length=TUNING_BYTES)]


class TuneOpen(TuningMessage, frozen=True):
    """`tune.open`: a trainer asks for a tuning of one shard, for a job or for itself. One that
    `reads` computes losses of texts, and runs no backward passes."""

    root: Root
    parts: Parts
    dtype: DType
    terms: AdapterTerms
    job: Root = ""
    reads: bool = False

    def check(self) -> None:
        """Raise ValueError if the values contradict each other."""
        self.parts.check()
        self.terms.check()
        if self.terms.dtype != "F32":
            raise ValueError("an adapter is trained in F32")
        if self.terms.base != self.root:
            raise ValueError("the adapter belongs to another model")

    def header(self) -> dict[str, object]:
        rows = {"parts": astuple(self.parts), "terms": astuple(self.terms)}
        return self.fields() | rows


class SetTensors(TuningMessage, frozen=True):
    """`tune.set`: the stream on which the tensors with this SHA-256 are sent, if the stage lacks
    them."""

    digest: Digest


class RunPass(TuningMessage, frozen=True):
    """`tune.pass`: the stream of one pass, with the tensors of this SHA-256."""

    digest: Digest
    order: PassOrder

    def check(self) -> None:
        """Raise ValueError if the values contradict each other."""
        self.order.check()

    def header(self) -> dict[str, object]:
        return self.fields() | {"order": astuple(self.order)}


class TuneClose(TuningMessage, frozen=True):
    """`tune.close`: the stage must forget a tuning."""


class Said(Message, frozen=True):
    """One frame from a stage on a stream: `busy` (a sign of life), `send` (the tensors are needed),
    `done` (with `size` bytes of data after it), or `refused`."""

    kind: Annotated[str, Meta(max_length=8)]
    code: Annotated[str, Meta(max_length=_CODE)] = ""
    message: Annotated[str, Meta(max_length=_TEXT)] = ""
    size: Natural = 0
    loss: float = 0.0
    counted: Natural = 0
    seconds: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0
    predicted: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0


def frame(said: Said) -> bytes:
    """Encode a frame, with its size before it."""
    packed = pack(said)
    return _SIZE.pack(len(packed)) + packed


FRAME_HEAD: Final = _SIZE.size


def frame_size(head: bytes) -> int:
    """Return the size of a frame from its first FRAME_HEAD bytes. Raises BadMessage if it is too
    large."""
    (size,) = _SIZE.unpack(head)
    if size > HEAD_BYTES:
        raise BadMessage(f"a frame of {size} bytes is too large")
    return int(size)


def parse_frame(data: bytes) -> Said:
    """Decode a frame without its size. Raises BadMessage if it is malformed."""
    try:
        return read(Said, data, limit=HEAD_BYTES)
    except Undecodable as error:
        raise BadMessage(str(error)) from None


def refused(code: str, message: str) -> Said:
    """Return the frame of a refusal."""
    return Said("refused", code[:_CODE], message[:_TEXT])


def refusal_error(code: str, message: str) -> SessionError:
    """Return a stage's refusal as an error. The stage cannot choose other codes than STAGE_CODES,
    nor characters that a terminal interprets."""
    text = "".join(each if each.isprintable() else "?" for each in message[:_TEXT])
    return SessionError(code if code in STAGE_CODES else "stage-failed", text)
