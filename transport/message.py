"""Declaration of messages: bounded structures that `decoding.py` decodes and `pack` encodes.

A message is a subclass of `Message`, which is a map on the wire, or of `Row`, which is an array.
The types of its fields contain their bounds, as in `Annotated[int, Meta(ge=0, le=9)]`. msgspec
checks types, lengths and ranges before it creates an object. Unknown fields of a map, and items of
an array after the known ones, are ignored, so that versions N and N-1 understand each other.
docs/adr/0022-one-decoder.md describes how to declare a message.
"""

from typing import Annotated, Final

import msgpack
from msgspec import Meta, Struct
from msgspec.structs import astuple

DIGEST_BYTES: Final = 32  # of SHA-256
_KEY_BYTES: Final = 32  # of Ed25519. `identity.py` would load trio into every child process
Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
PublicKey = Annotated[bytes, Meta(min_length=_KEY_BYTES, max_length=_KEY_BYTES)]
Root = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""64 lower-case hex digits that identify a model or a blob."""
Natural = Annotated[int, Meta(ge=0)]  # up to 2^64 - 1


class Message(Struct, frozen=True):
    """Base class of messages that are maps on the wire."""

    def check(self) -> None:
        """Check the rules that declared bounds cannot express. Raises ValueError if one is broken.

        The decoder calls this after it has created the object.
        """

    def fields(self) -> dict[str, object]:
        """Return the fields under their names on the wire, without those that have their default
        value."""
        values = astuple(self)
        required = len(values) - len(self.__struct_defaults__)
        return {
            name: value
            for at, (name, value) in enumerate(
                zip(self.__struct_encode_fields__, values, strict=True)
            )
            if at < required or value != self.__struct_defaults__[at - required]
        }


class Row(Struct, frozen=True, array_like=True):
    """Base class of messages that are arrays on the wire."""

    def check(self) -> None:
        """Check the rules that declared bounds cannot express. Raises ValueError if one is broken.

        The decoder calls this after it has created the object.
        """


def pack(value: object) -> bytes:
    """Encode a value as msgpack. It may contain messages."""
    packed: bytes = msgpack.packb(value, default=_plain)
    return packed


def check_text(text: str, most: int) -> str:
    """Return `text` if it has at most `most` bytes and is safe to print on a terminal.

    Raises ValueError otherwise.
    """
    if not text.isprintable() or len(text.encode()) > most:
        raise ValueError(f"expected a text of at most {most} printable bytes")
    return text


def _plain(value: object) -> object:
    """Return a message as a list or dict that msgpack can encode. Raises TypeError for other
    values."""
    if isinstance(value, Row):
        return astuple(value)
    if isinstance(value, Message):
        return value.fields()
    raise TypeError(f"expected a message, got {type(value).__name__}")
