"""Bounded decoding of msgpack from peers, the disk and child processes, and of JSON from clients of
the API. No other module decodes msgpack.

A msgpack header announces the number of items of a list or map, and the msgpack library allocates
memory for that number before it has seen any item: 3.5 kB of nested headers allocate 28 MB. An
empty map takes 1 byte on the wire and 64 bytes in memory. This module therefore checks the depth
and the number of elements before it creates any object.

The check has a fast path. A value of n bytes has at most n elements, and its depth is at most the
number of its bytes that can begin a container. Counting those bytes takes 0.1 microseconds, and for
nearly all values it shows that the limits are kept. For other values, the module walks through the
elements.

`read` decodes a declared message (message.py) directly from its bytes: msgspec skips unknown fields
without creating objects for them. `typed` checks a value that is already decoded, such as a header.
Use `decode` and then `typed` for signed values that nodes forward: all nodes must refuse the same
values, and the depth at which `read` refuses an unknown field depends on the interpreter's stack.
"""

import re
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any, Final, TypeVar

import msgpack
import msgspec
from msgspec import Meta

from .errors import Undecodable
from .message import Message, Row

T = TypeVar("T")
M = TypeVar("M", bound=Message | Row)
DEPTH: Final = 32  # largest number of nested containers
ITEMS: Final = 4_096  # largest number of elements of a value; a pair of a map counts as two
JSON_MARKS: Final = 131_072  # texts, commas and opening brackets of a value in JSON

_ARRAYS: Final = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
_MAPS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
_CONTAINERS: Final = bytes((*_ARRAYS, *_MAPS))
_JSON_MARK: Final = re.compile(  # cannot backtrack, and takes 20 ms for 4 MiB of escapes
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[,\[{]', re.DOTALL
)


def decode(
    data: bytes | bytearray | memoryview,
    *,
    limit: int,
    depth: int = DEPTH,
    items: int = ITEMS,
    once: bool = False,
    tuples: bool = False,
) -> Any:
    """Decode the one value in `data`. Raises Undecodable if it is malformed or exceeds a limit.

    `limit` is the largest size in bytes, `depth` the largest number of nested containers, and
    `items` the largest number of elements in all. With `once`, a map with a repeated key is
    refused. With `tuples`, arrays become tuples. Map keys must be text or bytes, and extension
    types are refused.
    """
    size = len(data)
    if size > limit:
        raise _too_long(limit, size)
    # A short value makes msgpack allocate at most depth * size * 8 bytes, so it needs no walk if
    # its depth is certain to be small.
    short = size <= ITEMS and size <= items
    if not short or size - len(bytes(data).translate(None, _CONTAINERS)) > depth:
        walk(data, depth, items)
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
    """Decode the message in `data`, which may have at most `limit` bytes.

    Raises Undecodable if it is malformed.
    """
    found: M = _read(_decoder(kind), data, limit)
    return _checked(found)


def read_json(kind: type[M], data: bytes | bytearray, *, limit: int) -> M:
    """Decode the JSON object in `data`, of at most `limit` bytes, as a message.

    msgspec checks the length of a list or map only after it has built it, so the texts, commas and
    opening brackets are counted before, up to JSON_MARKS. Raises Undecodable if the object is
    malformed or exceeds a limit. For a message with `forbid_unknown_fields`, the error names an
    unknown field.
    """
    if len(data) > limit:
        raise _too_long(limit, len(data))
    if sum(map(data.count, (b'"', b",", b"[", b"{"))) > JSON_MARKS:  # some may be within texts
        marks = sum(1 for _ in islice(_JSON_MARK.finditer(data), JSON_MARKS + 1))
        if marks > JSON_MARKS:
            raise Undecodable("the value has too many elements")
    decoder = _json_decoders.get(kind)
    if decoder is None:
        decoder = _json_decoders[kind] = msgspec.json.Decoder(kind).decode
    found: M = _read(decoder, data, limit)
    return _checked(found)


def read_rows(
    kind: type[T], data: bytes | bytearray | memoryview, *, limit: int, most: int
) -> list[T]:
    """Decode a list of at most `most` messages or named tuples.

    A named tuple must have its exact length on the wire. Raises Undecodable if the list is
    malformed.
    """
    found: list[T] = _read(_decoder(kind, most), data, limit)
    return [_checked(each) for each in found]


def typed(kind: type[M], value: object) -> M:
    """Return a decoded value as a message of type `kind`. Raises Undecodable if it does not
    conform."""
    try:
        found = msgspec.convert(value, kind, builtin_types=_BYTES)
        found.check()
    except (msgspec.MsgspecError, ValueError) as error:
        raise Undecodable(_plain(error)) from None
    return found


_ERROR_CHARACTERS: Final = 200
_BYTES: Final = (bytes,)  # without this, msgspec would accept base64 text in place of bytes
_decoders: Final[dict[tuple[type, int | None], Callable[..., Any]]] = {}
_json_decoders: Final[dict[type, Callable[..., Any]]] = {}


def _decoder(kind: type[T], most: int | None = None) -> Callable[..., Any]:
    """Return the decoder of a message, or of a list of at most `most` messages. Caches decoders."""
    found = _decoders.get((kind, most))
    if found is None:
        listed: Any = Annotated[list[kind], Meta(max_length=most)]  # type: ignore[valid-type]
        found = msgspec.msgpack.Decoder(kind if most is None else listed).decode
        _decoders[kind, most] = found
    return found


def _read(decoder: Callable[..., Any], data: bytes | bytearray | memoryview, limit: int) -> Any:
    """Decode `data`. Raises Undecodable if that fails."""
    if len(data) > limit:
        raise _too_long(limit, len(data))
    try:
        return decoder(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Undecodable(_plain(error)) from None
    except RecursionError:
        raise Undecodable("the value nests too deeply") from None


def _checked(message: T) -> T:
    """Return a message after its own check. Raises Undecodable if that fails."""
    try:
        if isinstance(message, Message | Row):
            message.check()
    except ValueError as error:
        raise Undecodable(_plain(error)) from None
    return message


def _plain(error: Exception) -> str:
    """Return the text of an error, with a lower-case first letter.

    msgspec quotes wrong values and unknown field names whole, so a long text, or one that is not
    safe for terminals, is replaced.
    """
    text = str(error)
    if len(text) > _ERROR_CHARACTERS or not text.isprintable():
        return "a value, or the name of a field, is not allowed"
    return text[:1].lower() + text[1:]


class Reader:
    """Reader of a value step by step, which decodes only the parts that its caller requests.

    Each method raises Undecodable if the value is malformed.
    """

    def __init__(self, data: bytes | memoryview, *, limit: int, text: int | None = None) -> None:
        """`limit` is the largest size of `data` in bytes, and `text` that of each text in it."""
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
        """Enter a map, and return its number of pairs. The caller must check that number."""
        count: int = self._step(self._unpacker.read_map_header)
        return count

    def flat(self) -> Any:
        """Decode a value that is not a container. Empty containers are accepted, so check the
        type."""
        return self._step(self._unpacker.unpack)

    def skip(self) -> memoryview:
        """Skip a value, and return its bytes."""
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


def walk(data: bytes | bytearray | memoryview, depth: int, items: int) -> None:
    """Raise Undecodable unless `data` is exactly one value within the limits.

    Takes one step for each element, and stops at a container that announces too many.
    """
    at, left, around = 0, 1, list[int]()  # remaining items here, and in containers around
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


# The size of a value by its first byte; 0 if that byte does not determine the size. An extension
# type counts as one byte, because the decoder refuses the value when it reaches the first one.
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
# The width of the number of bytes or items that follow; 0 if the first byte contains that number.
_WIDTHS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4} | {
    **dict.fromkeys((*range(0x80, 0xA0),), 0),
    0xDC: 2,
    0xDD: 4,
    0xDE: 2,
    0xDF: 4,
}
# Elements per item of a container: 1 for an array, 2 for a map, 0 for text and bytes.
_TIMES: Final = dict.fromkeys(_WIDTHS, 0) | dict.fromkeys(_ARRAYS, 1) | dict.fromkeys(_MAPS, 2)


def _each_key_once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a dict of the pairs. Raises ValueError if a key is repeated."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a map has a repeated key, and readers would differ in which value counts")
    return fields


def _refuse_extension(kind: int, data: bytes) -> Any:
    """Raise ValueError, because extension types are refused."""
    raise ValueError(f"the value has an extension type, {kind}")


def _too_long(limit: int, size: int) -> Undecodable:
    """Return the error for data that exceeds a limit."""
    return Undecodable(f"expected at most {limit} bytes, got {size}")
