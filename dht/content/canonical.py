"""Strict parsing of JSON files, and the canonical JSON encoding of the config in a manifest."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn


def _no_constant(text: str) -> NoReturn:
    """Raise ValueError for NaN or an infinity, which Python's `json` accepts but JSON does not."""
    raise ValueError(f"`{text}` is not valid JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert the members of a JSON object to a dict. Raises ValueError if a key occurs twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def parse_json(data: bytes, *, depth: int) -> Any:
    """Parse strict JSON. A byte order mark at the start is skipped.

    Raises ValueError if the JSON is invalid, has a duplicate key, NaN or an infinity, or nests
    containers more than `depth` levels deep.
    """
    try:
        value = json.loads(
            data.decode("utf-8-sig"), parse_constant=_no_constant, object_pairs_hook=_unique
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _depth(value, depth) > depth:
        raise ValueError(f"nested deeper than {depth} levels")
    return value


def _depth(value: object, limit: int) -> int:
    """Return the number of nested container levels of `value`, or `limit` + 1 if there are more."""
    level, reached = [value], 0
    while level and reached <= limit:
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        reached += any(isinstance(item, (dict, list)) for item in level)
        level = [item for item in inner if isinstance(item, (dict, list))]
    return reached


def dump_json(value: Mapping[str, object]) -> bytes:
    """Encode a mapping as canonical JSON: keys sorted, no spaces, ASCII only, shortest numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
