"""Bounded decoding of msgpack from peers, the disk and child processes. No other module may do it.

msgpack allocates the list that a header announces before it looks for its items: 3.5 kB of nested
headers allocate 28 MB. An empty map takes one byte on the wire and 64 in memory. So this module
counts depth and elements before it builds anything. A value of n bytes has at most n elements, and
it nests no deeper than the number of its bytes that can begin a container. Counting those bytes
takes 0.1 microseconds and clears nearly all values. The others are walked.

`read` decodes a declared message (message.py) straight from its bytes: msgspec skips unknown fields
without making objects of them. `typed` checks a value that is decoded already, such as a header.
Signed values that nodes forward need `decode` and then `typed`: the depth at which `read` refuses
an unknown field depends on the interpreter's stack, and nodes must agree on what they refuse.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgpack
import msgspec
from msgspec import Meta

from .errors import Undecodable
from .message import Message, Row

T = TypeVar("T")
M = TypeVar("M", bound=Message | Row)
DEPTH: Final = 32  # nested containers
ITEMS: Final = 4_096  # elements of one value; each pair of a map counts as two

_ARRAYS: Final = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
_MAPS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
_CONTAINERS: Final = bytes((*_ARRAYS, *_MAPS))


def decode(
    data: bytes | bytearray | memoryview,
    *,
    limit: int,
    depth: int = DEPTH,
    items: int = ITEMS,
    once: bool = False,
    tuples: bool = False,
) -> Any:
    """Return the one value in `data`. Raises Undecodable.

    `limit` bounds its bytes, `depth` its nested containers, `items` its elements in all. `once`
    refuses a map with a repeated key. `tuples` makes tuples of arrays. Map keys are text or
    bytes, and extension types are refused.
    """
    size = len(data)
    if size > limit:
        raise _too_long(limit, size)
    # A short value can make msgpack allocate depth * size * 8 bytes at most, so only those skip
    # the walk.
    short = size <= ITEMS and size <= items
    if not short or size - len(bytes(data).translate(None, _CONTAINERS)) > depth:
        _walk(data, depth, items)
    try:
        return msgpack.unpackb(
            data,
            use_list=not tuples,
            object_pairs_hook=_each_key_once if once else None,
            max_ext_len=0,
            ext_hook=_refuse_extension,
        )
    except (ValueError, TypeError) as error:
        raise Undecodable(str(error) or "not msgpack") from None


def read(kind: type[M], data: bytes | bytearray | memoryview, *, limit: int) -> M:
    """Return the message in `data`, which has at most `limit` bytes. Raises Undecodable."""
    found: M = _read(_decoder(kind), data, limit)
    return _checked(found)


def read_rows(
    kind: type[T], data: bytes | bytearray | memoryview, *, limit: int, most: int
) -> list[T]:
    """Return a list of at most `most` items, which are messages or named tuples. The latter have
    an exact length on the wire. Raises Undecodable."""
    found: list[T] = _read(_decoder(kind, most), data, limit)
    return [_checked(each) for each in found]


def typed(kind: type[M], value: object) -> M:
    """Return a decoded value as a message of type `kind`. Raises Undecodable."""
    try:
        found = msgspec.convert(value, kind, builtin_types=_BYTES)
        found.check()
    except (msgspec.MsgspecError, ValueError) as error:
        raise Undecodable(_plain(error)) from None
    return found


_BYTES: Final = (bytes,)  # refuses text for bytes, in which it would look for base64
_decoders: Final[dict[tuple[type, int | None], Callable[..., Any]]] = {}


def _decoder(kind: type[T], most: int | None = None) -> Callable[..., Any]:
    """Return the decoder of a message, or of a list of at most `most`."""
    found = _decoders.get((kind, most))
    if found is None:
        listed: Any = Annotated[list[kind], Meta(max_length=most)]  # type: ignore[valid-type]
        found = msgspec.msgpack.Decoder(kind if most is None else listed).decode
        _decoders[kind, most] = found
    return found


def _read(decoder: Callable[..., Any], data: bytes | bytearray | memoryview, limit: int) -> Any:
    if len(data) > limit:
        raise _too_long(limit, len(data))
    try:
        return decoder(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Undecodable(_plain(error)) from None
    except RecursionError:
        raise Undecodable("the value nests too deeply") from None


def _checked(message: T) -> T:
    try:
        if isinstance(message, Message | Row):
            message.check()
    except ValueError as error:
        raise Undecodable(str(error)) from None
    return message


def _plain(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]


class Reader:
    """Reader of a value step by step, which builds only what its caller asks for. Every step raises
    Undecodable."""

    def __init__(self, data: bytes | memoryview, *, limit: int, text: int | None = None) -> None:
        """`limit` bounds the bytes of `data`, `text` those of each text."""
        if len(data) > limit:
            raise _too_long(limit, len(data))
        self._data = memoryview(data)
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=max(len(data), 1),
            max_str_len=len(data) if text is None else text,
            max_bin_len=len(data),
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
            ext_hook=_refuse_extension,
        )
        self._unpacker.feed(data)

    def map(self) -> int:
        """Enter a map and return its number of pairs, which the caller bounds."""
        count: int = self._step(self._unpacker.read_map_header)
        return count

    def flat(self) -> Any:
        """Read a value that is not a container. Empty containers pass, so check the type."""
        return self._step(self._unpacker.unpack)

    def skip(self) -> memoryview:
        """Skip a value and return its bytes."""
        start = self._unpacker.tell()
        self._step(self._unpacker.skip)
        return self._data[start : self._unpacker.tell()]

    @staticmethod
    def _step(read: Callable[[], T]) -> T:
        try:
            return read()
        except msgpack.OutOfData:
            raise Undecodable("the value ends too early") from None
        except (ValueError, TypeError) as error:
            raise Undecodable(str(error) or "not msgpack") from None


def _walk(data: bytes | bytearray | memoryview, depth: int, items: int) -> None:
    """Raise Undecodable unless `data` is exactly one value within these bounds.

    Takes one step for each element, and stops at a container that announces too many.
    """
    at, left, around = 0, 1, list[int]()  # items to come in this container, and in those around it
    try:
        while left or around:
            if not left:
                left = around.pop()
                continue
            left -= 1
            first = data[at]
            if size := _SIZES[first]:
                at += size
                continue
            start = at + 1
            at = start + _WIDTHS[first]
            count = int.from_bytes(data[start:at]) if at > start else first & 0x0F
            times = _TIMES[first]
            if not times:
                at += count
                continue
            around.append(left)
            left = count * times
            items -= left
            if items < 0 or len(around) > depth:
                raise Undecodable("the value announces too many elements, or nests too deeply")
    except IndexError:
        raise Undecodable("the value ends too early") from None
    if at != len(data):
        raise Undecodable("the value ends too early, or bytes follow its end")


# The size of a value by its first byte, where that byte alone determines it. An extension type
# counts as one byte, because the decoder stops at the first one, and both read alike until there.
_SIZES: Final = [1] * 256
for _first, _size in {
    0xCA: 5,
    0xCB: 9,
    0xCC: 2,
    0xCD: 3,
    0xCE: 5,
    0xCF: 9,
    0xD0: 2,
    0xD1: 3,
    0xD2: 5,
    0xD3: 9,
    **{first: 1 + (first & 0x1F) for first in range(0xA0, 0xC0)},
    **dict.fromkeys((*_CONTAINERS, 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB), 0),
}.items():
    _SIZES[_first] = _size
# The width of the number of bytes or items that follow. It is 0 where the first byte holds it.
_WIDTHS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4} | {
    **dict.fromkeys((*range(0x80, 0xA0),), 0),
    0xDC: 2,
    0xDD: 4,
    0xDE: 2,
    0xDF: 4,
}
# Elements of each of a container's items.
_TIMES: Final = dict.fromkeys(_WIDTHS, 0) | dict.fromkeys(_ARRAYS, 1) | dict.fromkeys(_MAPS, 2)


def _each_key_once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a map has a repeated key, and readers would differ in which value counts")
    return fields


def _refuse_extension(kind: int, data: bytes) -> Any:
    raise ValueError(f"the value has an extension type, {kind}")


def _too_long(limit: int, size: int) -> Undecodable:
    return Undecodable(f"expected at most {limit} bytes, got {size}")
