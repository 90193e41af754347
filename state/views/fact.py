"""Readers for the fields of facts from peers, which check types and bounds.

Unknown fields survive in the document and are ignored here. Spec: docs/spec/state.md, Facts.
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
    """Return the map in a fact's value. Raises BadFact."""
    try:
        fields = decode(value, limit=defaults.FACT_BYTES, once=True)
    except Undecodable:
        raise BadFact("malformed fact") from None
    if not isinstance(fields, dict) or not all(type(key) is str for key in fields):
        raise BadFact("expected a fact to be a map with text keys")
    return fields


def read_whole(value: object, most: int, least: int = 0) -> int:
    """Return a whole number, clamped to its bounds. Raises BadFact."""
    if type(value) is not int:
        raise BadFact("expected a whole number in a fact")
    return min(max(value, least), most)


def read_rate(value: object, most: float, least: float = 0.0) -> float:
    """Return a finite number, clamped to its bounds. Raises BadFact."""
    if type(value) is not int and type(value) is not float:
        raise BadFact("expected a number in a fact")
    if type(value) is float and not math.isfinite(value):
        raise BadFact("expected a finite number in a fact")
    return float(min(max(value, least), most))


def read_text(value: object, most: int) -> str:
    """Return printable text of at most `most` bytes, safe for terminals. Raises BadFact."""
    if type(value) is not str or not value.isprintable() or len(value.encode()) > most:
        raise BadFact(f"expected printable text of at most {most} bytes in a fact")
    return value


def read_bytes(value: object, most: int) -> bytes:
    """Return at most `most` bytes. Raises BadFact."""
    if type(value) is not bytes or len(value) > most:
        raise BadFact(f"expected at most {most} bytes in a fact")
    return value


def read_root(value: object) -> str:
    """Return 64 hex digits, which identify a model or a job. Raises BadFact."""
    if type(value) is not str or not _ROOT.fullmatch(value):
        raise BadFact("expected 64 hex digits in a fact")
    return value


def read_peer(value: object) -> PeerId:
    """Return text in the form of a peer id. Its key is not checked, because it is only compared.

    Raises BadFact.
    """
    if type(value) is not str or not _PEER.fullmatch(value):
        raise BadFact("expected a peer id in a fact")
    return PeerId(value)


def read_each(value: object, most: int, read: Callable[[object], T]) -> tuple[T, ...]:
    """Return a list of at most `most` items, each read with `read`. Raises BadFact."""
    if type(value) is not list or len(value) > most:
        raise BadFact(f"expected a list of at most {most} items in a fact")
    return tuple(read(item) for item in value)
