"""Frames between the daemon and the text child: 4 bytes of length, then a msgpack map.

The maps are the messages below (docs/spec/text.md). The daemon checks those of the child like those
of a peer, because the child processes untrusted files.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from ...transport.message import Message, Natural, check_text, pack
from ..defaults import MAX_STOP_IDS, MAX_TOP, TEXT_ITEMS, TEXT_MESSAGES, TEXT_REQUEST_BYTES
from ..errors import TextError

_CODE_BYTES = 64
_MESSAGE_BYTES = 1200
_Id = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class ChildRequest(Message, frozen=True):
    """Common fields of all requests: a number, an operation, and the time limit in seconds."""

    id: int
    op: str
    seconds: float


class TextFiles(Message, frozen=True):
    """Text files of a model, and the ids of special tokens in its config.json."""

    tokenizer: bytes
    tokenizer_config: bytes | None = None
    special_tokens: bytes | None = None
    generation_config: bytes | None = None
    chat_template: bytes | None = None
    bos_token_id: tuple[int, ...] = ()
    eos_token_id: tuple[int, ...] = ()


class LoadFiles(Message, frozen=True):
    """Request `load`: load these files."""

    files: TextFiles


class Encode(Message, frozen=True):
    """Request `encode`: convert text to token ids."""

    text: str
    add_special: bool


class EncodeChat(Message, frozen=True):
    """Request `encode_chat`: convert a conversation to token ids. `now` is the Unix time in
    seconds."""

    messages: Annotated[tuple[dict[str, str], ...], Meta(max_length=TEXT_MESSAGES)]
    add_generation_prompt: bool
    now: float


class Decode(Message, frozen=True):
    """Request `decode`: convert token ids to text. `cut` is the index of the first fresh id."""

    ids: bytes
    cut: Natural


class DecodeEach(Message, frozen=True):
    """Request `decode_each`: as `decode`, for `ids` with each one of the ids in `last` appended."""

    ids: bytes
    cut: Natural
    last: bytes


class ChildReply(Message, frozen=True):
    """Common fields of all replies: the number of the request, and a `code` if the request
    failed."""

    id: int
    code: str = ""
    message: str = ""

    def check(self) -> None:
        """Raise ValueError if a text is too long."""
        check_text(self.code, _CODE_BYTES)
        check_text(self.message, _MESSAGE_BYTES)


class TextInfo(Message, frozen=True):
    """Summary of a model's text files.

    `vocabulary` is the number of tokens. `chat` tells whether there is a chat template.
    """

    vocabulary: Natural
    bos: _Id | None
    eos: _Id | None
    stop_ids: Annotated[tuple[_Id, ...], Meta(max_length=MAX_STOP_IDS)]
    chat: bool


class Ids(Message, frozen=True):
    """Reply to `encode` and `encode_chat`: token ids as 4-byte integers in native byte order."""

    ids: bytes

    def check(self) -> None:
        """Raise ValueError if the bytes are not 4-byte integers."""
        if len(self.ids) % 4:
            raise ValueError(f"{len(self.ids)} bytes are no token ids")


class Decoded(Message, frozen=True):
    """Reply to `decode`: the text of all ids (`window`), and the text of the fresh ids alone."""

    window: str
    fresh: str


class DecodedEach(Message, frozen=True):
    """Reply to `decode_each`: the texts of `Decoded` for each id, in order."""

    windows: Annotated[tuple[str, ...], Meta(max_length=MAX_TOP)]
    fresh: Annotated[tuple[str, ...], Meta(max_length=MAX_TOP)]


def pack_frame(message: Mapping[str, object], *, limit: int = TEXT_REQUEST_BYTES) -> bytes:
    """Encode a frame.

    Raises TextError `text-too-large` if its map exceeds `limit` bytes, and `bad-text` if a text is
    not valid Unicode.
    """
    try:
        body = pack(message)
    except UnicodeEncodeError:
        raise TextError("bad-text", "the text is not valid Unicode") from None
    if len(body) > limit:
        raise TextError("text-too-large", f"{len(body)} bytes where {limit} are allowed")
    return len(body).to_bytes(4) + body


def unpack_body(body: bytes | memoryview, *, limit: int = TEXT_REQUEST_BYTES) -> dict[str, object]:
    """Decode the map in a frame. Raises TextError `text-protocol` if the frame has anything
    else."""
    try:
        message = decode(body, limit=limit, items=TEXT_ITEMS)
    except Undecodable as error:
        raise TextError("text-protocol", f"a frame is not readable: {error}") from None
    if not isinstance(message, dict):
        raise TextError("text-protocol", "a frame is not a map")
    return message


class FrameReader:
    """Decoder of frames. If a frame announces more than `limit` bytes, its content is not read."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, object]]:
        """Append received data and yield the complete frames.

        Raises TextError `text-protocol` if a frame is malformed or exceeds the limit.
        """
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
