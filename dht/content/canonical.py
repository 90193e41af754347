"""Canonical encoding of the data in a manifest: JSON for the config, msgpack around it.

Reading hostile bytes takes memory in proportion to their number: containers are read one level
at a time, and every count is checked against a limit before anything is allocated for it.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgpack

from ...transport import decoding
from ...transport.errors import Undecodable
from ..errors import ModelError


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"`{text}` is not valid JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def parse_json(data: bytes, *, depth: int) -> Any:
    """Parse strict JSON. Raises ValueError, also for duplicate keys, NaN, and deep nesting."""
    try:
        value = json.loads(
            data.decode("utf-8-sig"), parse_constant=_no_constant, object_pairs_hook=_unique
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _depth(value, depth) > depth:
        raise ValueError(f"nested deeper than {depth} levels")
    return value


def _depth(value: Any, limit: int) -> int:
    """Return how deep containers nest, counting no further than `limit` + 1."""
    level, reached = [value], 0
    while level and reached <= limit:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        reached += any(isinstance(item, (dict, list)) for item in level)
        level = [item for item in inner if isinstance(item, (dict, list))]
    return reached


def dump_json(value: Mapping[str, Any]) -> bytes:
    """Encode as canonical JSON: sorted keys, no spaces, ASCII, shortest numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def pack(value: Any) -> bytes:
    """Encode as canonical msgpack: shortest integers, keys as given (the caller sorts them)."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


class Reader:
    """Reader of one msgpack value, level by level. Raises ModelError `bad-manifest`.

    `what` names the value in error messages.
    """

    def __init__(self, data: bytes, what: str, *, text_limit: int) -> None:
        self._what = what
        self._reader = decoding.Reader(data, limit=len(data), text=text_limit)

    def fail(self, why: str) -> ModelError:
        return ModelError("bad-manifest", f"invalid {self._what}: {why}")

    def _step(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Undecodable as error:
            raise self.fail(error.message) from None

    def count(self, read: Callable[[], Any], limit: int) -> int:
        found = self._step(read)
        if not isinstance(found, int) or found > limit:
            raise self.fail(f"more than {limit} entries")
        return found

    def map(self, limit: int) -> int:
        """Enter a map and return its number of pairs, at most `limit`."""
        return self.count(self._reader.map, limit)

    def array(self, limit: int) -> int:
        """Enter an array and return its number of items, at most `limit`."""
        return self.count(self._reader.array, limit)

    def value(self) -> Any:
        """Read one whole value, within the bounds of `decoding`."""
        return self._step(self._reader.value)

    def key(self, name: str) -> None:
        """Read the next value, which must be the text `name`."""
        if self.value() != name:
            raise self.fail(f"`{name}` is missing")

    def end(self) -> None:
        self._step(self._reader.end)
