"""Reading the fields of a stranger's fact: typed, bounded, clamped. Fields not asked for survive
in the document and are passed over here. Spec: docs/spec/state.md, Facts.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadFact

T = TypeVar("T")
Fields = Mapping[str, Any]
_ROOT = re.compile(r"[0-9a-f]{64}")
_PEER = re.compile(r"[1-9A-HJ-NP-Za-km-z]{52}")


def read_fields(value: bytes) -> Fields:
    """The map that a fact's value is. Raises BadFact."""
    try:
        fields = decode(value, limit=defaults.FACT_BYTES, once=True)
    except Undecodable:
        raise BadFact("a fact is not readable") from None
    if not isinstance(fields, dict) or not all(type(key) is str for key in fields):
        raise BadFact("a fact is not a map with texts as keys")
    return fields


def read_whole(value: object, most: int, least: int = 0) -> int:
    """A whole number, brought within its bounds."""
    if type(value) is not int:
        raise BadFact("a number of a fact is not whole")
    return min(max(value, least), most)


def read_rate(value: object, most: float, least: float = 0.0) -> float:
    """A number that is finite, brought within its bounds."""
    if type(value) is not int and type(value) is not float:
        raise BadFact("a rate of a fact is no number")
    if type(value) is float and not math.isfinite(value):
        raise BadFact("a rate of a fact is not finite")
    return float(min(max(value, least), most))


def read_text(value: object, most: int) -> str:
    """Printable text of at most `most` bytes: it ends up on terminals."""
    if type(value) is not str or not value.isprintable() or len(value.encode()) > most:
        raise BadFact(f"a text of a fact is not at most {most} printable bytes")
    return value


def read_bytes(value: object, most: int) -> bytes:
    """At most `most` bytes."""
    if type(value) is not bytes or len(value) > most:
        raise BadFact(f"a fact has something else than at most {most} bytes")
    return value


def read_root(value: object) -> str:
    """64 hex digits: of a model, of a job."""
    if type(value) is not str or not _ROOT.fullmatch(value):
        raise BadFact("a fact has something else than 64 hex digits")
    return value


def read_peer(value: object) -> PeerId:
    """What looks like a peer id. Whether a key is in it is not asked: it is only compared."""
    if type(value) is not str or not _PEER.fullmatch(value):
        raise BadFact("a fact has something else than a peer id")
    return PeerId(value)


def read_each(value: object, most: int, read: Callable[[object], T]) -> tuple[T, ...]:
    """A list of at most `most`."""
    if type(value) is not list or len(value) > most:
        raise BadFact(f"a fact has something else than a list of at most {most}")
    return tuple(read(item) for item in value)
