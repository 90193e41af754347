"""Messages between a gateway and a sharer: the request, and the frames of its answer. No I/O."""

import struct
from enum import IntEnum
from typing import Annotated, Final, Literal, TypeVar

from msgspec import Meta

from ...transport.decoding import read, typed
from ...transport.errors import Undecodable
from ...transport.message import Message, Row, pack
from ..defaults import (
    MAX_POSITIONS,
    STOP_STRING_CHARACTERS,
    STOP_STRINGS,
    TEXT_BYTES,
    TEXT_MESSAGES,
)
from . import defaults
from .errors import BadShare

CHAT: Final = "chat"
TEXT: Final = "text"
TOP_K: Final = "top-k"
NAME_CHARACTERS: Final = 128
_HEAD: Final = struct.Struct(">BI")  # kind of a frame, and bytes of its payload

M = TypeVar("M", bound=Message)
Reason = Literal["stop", "length"]
Role = Literal["system", "user", "assistant"]
ROLES: Final[tuple[Role, ...]] = ("system", "user", "assistant")
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)]
_Count = Annotated[int, Meta(ge=0, le=MAX_POSITIONS)]
_Seconds = Annotated[float, Meta(ge=0, le=1e6)]


class ShareProbe(Message, frozen=True):
    """Question how long a request to a shared model would wait (`share.probe`)."""

    model: _Name


class ShareLoad(Message, frozen=True):
    """Reply to a probe.

    `ahead` requests wait before a new one of this gateway, and `free` places are free. An answer
    takes `answer_s` seconds, and its first text `first_s`; 0 is unknown.
    """

    ahead: _Count
    free: _Count
    first_s: _Seconds = 0.0
    answer_s: _Seconds = 0.0

    @property
    def wait_s(self) -> float:
        """The predicted seconds until the first text, without the way there."""
        turns = 0 if self.free > self.ahead else self.ahead + 1 - self.free
        return self.first_s + turns * (self.answer_s or 1.0)


class ShareAsk(Message, frozen=True):
    """Header of a stream `share.ask`: a request without its text.

    `size` is the number of bytes of the body, which follows on the stream. A `raw` request
    continues a text without a chat template.
    """

    model: _Name
    size: Annotated[int, Meta(ge=1, le=defaults.BODY_BYTES)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
    raw: bool = False
    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=2**31)] = 0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0

    @property
    def needs(self) -> frozenset[str]:
        """What an engine must take to honour the request."""
        return frozenset((TEXT if self.raw else CHAT, *((TOP_K,) if self.top_k else ())))


class ConversationTurn(Row, frozen=True):
    """One message of a conversation."""

    role: Role
    content: str


class ShareBody(Message, frozen=True):
    """Body of a request: a prompt, or the messages of a conversation, and stop strings."""

    prompt: str = ""
    messages: Annotated[tuple[ConversationTurn, ...], Meta(max_length=TEXT_MESSAGES)] = ()
    stop: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=STOP_STRING_CHARACTERS)], ...],
        Meta(max_length=STOP_STRINGS),
    ] = ()

    def check(self) -> None:
        """Raise ValueError if there is no text, or too much."""
        if not 0 < self.text_bytes <= TEXT_BYTES:
            raise ValueError(f"expected 1 to {TEXT_BYTES} bytes of text")

    @property
    def text_bytes(self) -> int:
        """Bytes of the prompt or of all messages."""
        texts = [self.prompt, *(turn.content for turn in self.messages)]
        return sum(len(text.encode("utf-8", "replace")) for text in texts)


class AnswerEnd(Message, frozen=True):
    """Payload of the frame END: why the answer ended, and its tokens."""

    reason: Reason
    prompt_tokens: _Count
    tokens: _Count


class FailedAnswer(Message, frozen=True):
    """Payload of the frame FAILED: an error of the sharer."""

    code: Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^[a-z0-9-]+\Z")]
    message: Annotated[str, Meta(max_length=1000)] = ""


class FrameKind(IntEnum):
    """Kind of a frame. Unknown kinds are skipped."""

    WAITING = 1  # no payload: the sharer is there
    TEXT = 2  # the next part of the answer, in UTF-8
    END = 3
    FAILED = 4


def pack_frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    """Encode a frame. The payload has at most FRAME_BYTES."""
    return _HEAD.pack(kind, len(payload)) + payload


def text_frames(text: str) -> bytes:
    """Encode a text as frames, each of which has whole characters. Lone surrogates become `?`."""
    step = defaults.FRAME_BYTES // 4  # characters, of up to 4 bytes each
    parts = (text[at : at + step] for at in range(0, len(text), step))
    return b"".join(pack_frame(FrameKind.TEXT, part.encode("utf-8", "replace")) for part in parts)


class Frames:
    """Decoder of frames, which takes bytes in any pieces."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, piece: bytes) -> list[tuple[int, bytes]]:
        """Return (kind, payload) of the frames that `piece` completes. Raises BadShare if one is
        too large."""
        self._data += piece
        found, at = list[tuple[int, bytes]](), 0
        while len(self._data) - at >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._data, at)
            if size > defaults.FRAME_BYTES:
                raise BadShare(f"a frame has over {defaults.FRAME_BYTES} bytes")
            end = at + _HEAD.size + size
            if end > len(self._data):
                break
            found.append((kind, bytes(self._data[at + _HEAD.size : end])))
            at = end
        del self._data[:at]
        return found


def read_header(kind: type[M], header: object) -> M:
    """Return a header as a message. Raises BadShare if it is malformed."""
    try:
        return typed(kind, header)
    except Undecodable as error:
        raise BadShare(f"malformed request: {error.message}") from None


def read_payload(kind: type[M], data: bytes, limit: int = defaults.FRAME_BYTES) -> M:
    """Decode a payload. Raises BadShare if it is malformed."""
    try:
        return read(kind, data, limit=limit)
    except Undecodable as error:
        raise BadShare(f"malformed message: {error.message}") from None


def pack_body(body: ShareBody) -> bytes:
    """Encode the body of a request."""
    return pack(body)
