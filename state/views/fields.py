"""Functions that read the fields of facts, with their types and limits.

Facts come from peers. Unknown fields stay in the feed's document, and are ignored by views.
Spec: docs/spec/state.md, Facts.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadFact

T = TypeVar("T")
Fields = Mapping[str, object]
_ROOT = re.compile(r"[0-9a-f]{64}")
_PEER = re.compile(r"[1-9A-HJ-NP-Za-km-z]{52}")


def read_fields(value: bytes) -> Fields:
    """Decode a fact's value, which is a map with text keys.

    Raises BadFact if it is anything else.
    """
    try:
        fields = decode(value, limit=defaults.FACT_BYTES, once=True)
    except Undecodable:
        raise BadFact("malformed fact") from None
    if not isinstance(fields, dict) or not all(type(key) is str for key in fields):
        raise BadFact("expected a fact to be a map with text keys")
    return fields


def read_whole(value: object, most: int, least: int = 0) -> int:
    """Return a whole number, clamped to the range from `least` to `most`.

    Raises BadFact if the value is not a whole number.
    """
    if type(value) is not int:
        raise BadFact("expected a whole number in a fact")
    return min(max(value, least), most)


def read_rate(value: object, most: float, least: float = 0.0) -> float:
    """Return a number, clamped to the range from `least` to `most`.

    Raises BadFact if the value is not a finite number.
    """
    if type(value) is not int and type(value) is not float:
        raise BadFact("expected a number in a fact")
    if type(value) is float and not math.isfinite(value):
        raise BadFact("expected a finite number in a fact")
    return float(min(max(value, least), most))


def read_text(value: object, most: int) -> str:
    """Return text that is safe to print on a terminal.

    Raises BadFact if the value is not printable text of at most `most` bytes.
    """
    if type(value) is not str or not value.isprintable() or len(value.encode()) > most:
        raise BadFact(f"expected printable text of at most {most} bytes in a fact")
    return value


def read_bytes(value: object, most: int) -> bytes:
    """Return a byte string. Raises BadFact if the value is not one of at most `most` bytes."""
    if type(value) is not bytes or len(value) > most:
        raise BadFact(f"expected at most {most} bytes in a fact")
    return value


def read_root(value: object) -> str:
    """Return 64 hex digits, which identify a model or a job.

    Raises BadFact if the value is anything else.
    """
    if type(value) is not str or not _ROOT.fullmatch(value):
        raise BadFact("expected 64 hex digits in a fact")
    return value


def read_peer(value: object) -> PeerId:
    """Return a peer id. Raises BadFact if the value does not have the form of a peer id.

    The key in the peer id is not decoded and checked, because the id is only compared with others.
    """
    if type(value) is not str or not _PEER.fullmatch(value):
        raise BadFact("expected a peer id in a fact")
    return PeerId(value)


def read_each(value: object, most: int, read: Callable[[object], T]) -> tuple[T, ...]:
    """Return a list's items, each converted by `read`.

    Raises BadFact if the value is not a list of at most `most` items, or if `read` refuses an item.
    """
    if type(value) is not list or len(value) > most:
        raise BadFact(f"expected a list of at most {most} items in a fact")
    return tuple(read(item) for item in value)
