"""Frames between the daemon and the text child: 4 bytes of length, then a msgpack map.

The maps are the messages below (docs/spec/text.md). The daemon trusts those of the child no more
than those of a peer, because the child reads untrusted files.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from ...transport.message import Message, Natural, check_text, pack
from ..defaults import MAX_STOP_IDS, TEXT_ITEMS, TEXT_MESSAGES, TEXT_REQUEST_BYTES
from ..errors import TextError

_CODE_BYTES = 64
_MESSAGE_BYTES = 1200
_Id = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Request(Message, frozen=True):
    """What all requests have: a number, an operation, and its deadline in seconds."""

    id: int
    op: str
    seconds: float


class Files(Message, frozen=True):
    """The text files of a model, and the ids that its config.json names."""

    tokenizer: bytes
    tokenizer_config: bytes | None = None
    special_tokens: bytes | None = None
    generation_config: bytes | None = None
    chat_template: bytes | None = None
    bos_token_id: tuple[int, ...] = ()
    eos_token_id: tuple[int, ...] = ()


class Load(Message, frozen=True):
    """Request `load`."""

    files: Files


class Encode(Message, frozen=True):
    """Request `encode`."""

    text: str
    add_special: bool


class EncodeChat(Message, frozen=True):
    """Request `encode_chat`. `now`: seconds since 1970."""

    messages: Annotated[tuple[dict[str, str], ...], Meta(max_length=TEXT_MESSAGES)]
    add_generation_prompt: bool
    now: float


class Decode(Message, frozen=True):
    """Request `decode`: token ids, and the index of the first one of `fresh`."""

    ids: bytes
    cut: Natural


class Reply(Message, frozen=True):
    """What all replies have: the request's number, and a `code` if it failed."""

    id: int
    code: str = ""
    message: str = ""

    def check(self) -> None:
        check_text(self.code, _CODE_BYTES)
        check_text(self.message, _MESSAGE_BYTES)


class TextInfo(Message, frozen=True):
    """Summary of the text files: token counts and ids; `chat`: whether there is a template."""

    vocabulary: Natural
    bos: _Id | None
    eos: _Id | None
    stop_ids: Annotated[tuple[_Id, ...], Meta(max_length=MAX_STOP_IDS)]
    chat: bool


class Ids(Message, frozen=True):
    """Reply to `encode` and `encode_chat`: token ids as 4-byte integers in native byte order."""

    ids: bytes

    def check(self) -> None:
        if len(self.ids) % 4:
            raise ValueError(f"{len(self.ids)} bytes are no token ids")


class Decoded(Message, frozen=True):
    """Reply to `decode`: the text of all ids, and the text of the fresh ones alone."""

    window: str
    fresh: str


def pack_frame(message: Mapping[str, object], *, limit: int = TEXT_REQUEST_BYTES) -> bytes:
    """Encode a frame. Raises TextError("text-too-large") beyond `limit` bytes."""
    try:
        body = pack(message)
    except UnicodeEncodeError:
        raise TextError("bad-text", "the text is not valid Unicode") from None
    if len(body) > limit:
        raise TextError("text-too-large", f"{len(body)} bytes where {limit} are allowed")
    return len(body).to_bytes(4) + body


def unpack_body(body: bytes | memoryview, *, limit: int = TEXT_REQUEST_BYTES) -> dict[str, object]:
    """Decode the map in a frame. Raises TextError("text-protocol") for anything else."""
    try:
        message = decode(body, limit=limit, items=TEXT_ITEMS)
    except Undecodable as error:
        raise TextError("text-protocol", f"a frame is not readable: {error}") from None
    if not isinstance(message, dict):
        raise TextError("text-protocol", "a frame is not a map")
    return message


class FrameReader:
    """Decoder of frames. A length over `limit` bytes raises TextError before it is read."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, object]]:
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4])
            if size > self._limit:
                raise TextError("text-protocol", f"a frame of {size} bytes")
            if len(self._buffer) < 4 + size:
                return
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            yield unpack_body(body, limit=self._limit)
