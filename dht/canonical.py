"""The one byte form of the data in a manifest: JSON for the config, msgpack around it.

Reading hostile bytes here costs memory in proportion to their number: containers are read
one level at a time, and every count is compared with a limit before anything is made for it.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgpack

from ..transport import decoding
from ..transport.errors import Undecodable
from .errors import ModelError


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"`{text}` is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def parse_json(data: bytes, *, depth: int) -> Any:
    """Parse strict JSON; raises ValueError, also for doubled keys, NaN, and deep nesting."""
    try:
        value = json.loads(
            data.decode("utf-8-sig"), parse_constant=_no_constant, object_pairs_hook=_unique
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _depth(value, depth) > depth:
        raise ValueError(f"it is nested deeper than {depth}")
    return value


def _depth(value: Any, limit: int) -> int:
    """How deep containers nest; stops counting one above `limit`."""
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
    """The canonical form: sorted keys, no spaces, ASCII, shortest numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def pack(value: Any) -> bytes:
    """Canonical msgpack: shortest integers, keys in the order given (the caller sorts)."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


class Reader:
    """Reads one msgpack value level by level. Raises ModelError `bad-manifest`.

    `what` names the thing read, for messages.
    """

    def __init__(self, data: bytes, what: str, *, text_limit: int) -> None:
        self._what = what
        self._reader = decoding.Reader(data, limit=len(data), text=text_limit)

    def fail(self, why: str) -> ModelError:
        return ModelError("bad-manifest", f"the {self._what} is not a valid one: {why}")

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
        """Enter a map; returns its number of pairs, at most `limit`."""
        return self.count(self._reader.map, limit)

    def array(self, limit: int) -> int:
        """Enter an array; returns its number of items, at most `limit`."""
        return self.count(self._reader.array, limit)

    def value(self) -> Any:
        """One whole value, within the bounds of `decoding`."""
        return self._step(self._reader.value)

    def key(self, name: str) -> None:
        """The next value must be this text."""
        if self.value() != name:
            raise self.fail(f"`{name}` is missing")

    def end(self) -> None:
        self._step(self._reader.end)
