"""Calls of libp2p peers: one request and one reply per stream (docs/spec/libp2p.md, section 4).

The callers are strangers. They may call only published methods, within limits of rate and number.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgpack
import trio

from ..decoding import Reader, decode
from ..defaults import METHOD_BYTES
from ..errors import Undecodable
from ..identity import PeerId
from ..lane import frame
from ..lane.frame import Fault
from ..link.calls import Answer, Call, Handler, Refusal, Reply
from ..link.serving import HANDLER_ERRORS, refusal_of
from . import defaults
from .connection import Libp2pConnection
from .limits import Libp2pLimits
from .muxstream import MuxStream
from .varint import prefixed

CALL: Final = "/shoal/call/1.0.0"
_FIELDS: Final = 8  # largest number of fields in a request
Published = Callable[[], Mapping[str, Handler]]
"""Returns the methods that strangers may call, each with its handler."""


class CallService:
    """Server of calls, which uses the handlers in `published`."""

    def __init__(self, published: Published, limits: Libp2pLimits) -> None:
        self._published = published
        self._limits = limits
        self._open = 0

    async def serve(self, connection: Libp2pConnection, stream: MuxStream) -> None:
        """Read one request from a stream and reply to it. Raises Fault if the stream fails."""
        limits = self._limits
        if connection.calls >= limits.calls or self._open >= limits.calls_total:
            await stream.send(_encode(Refusal("busy", "too many open calls"), limits))
            return
        connection.calls += 1
        self._open += 1
        try:
            with trio.fail_after(limits.call_s):
                request = await stream.receive_message(limits.call_bytes)
                answer = await self._answer(connection, request)
                await stream.send(_encode(answer, limits))
        finally:
            connection.calls -= 1
            self._open -= 1
        connection.progress()

    async def _answer(self, connection: Libp2pConnection, request: bytes) -> Answer:
        """Decode a request, and return the handler's reply to it."""
        await connection.pay(defaults.CALL_COST + len(request))
        try:
            method, header, payload = decode_request(request)
        except Fault as fault:
            return Refusal(fault.code, "cannot decode the request")
        handler = self._published().get(method)
        if handler is None:
            return Refusal("unknown-method", "no such method is published")
        result: Answer = Refusal("timeout", "the handler took too long")
        try:
            with trio.move_on_after(self._limits.call_s / 2):
                answer = handler(Call(PeerId(connection.peer), header, payload))
                result = answer if isinstance(answer, Reply | Refusal) else await answer
        except* HANDLER_ERRORS as errors:
            result = refusal_of(errors)
        return result


def decode_request(data: bytes) -> tuple[str, dict[str, Any], bytes]:
    """Decode a request. Return (method, header, payload).

    Raises Fault (`bad-request`) if it is malformed.
    """
    fields = _fields(data)
    try:
        method = decode(fields.get("method", b"\xc0"), limit=METHOD_BYTES + 2, depth=0)
        payload = decode(fields.get("payload", b"\xc4\x00"), limit=len(data), depth=0)
        header = frame.decode_header(fields.get("header", b""))
    except (Undecodable, frame.Fault):
        raise Fault("bad-request") from None
    if not isinstance(method, str) or not method or not isinstance(payload, bytes):
        raise Fault("bad-request")
    return method, header, payload


def _fields(data: bytes) -> dict[str, bytes | memoryview]:
    """Return the fields of a map with text keys, each value still encoded."""
    found: dict[str, bytes | memoryview] = {}
    try:
        reader = Reader(data, limit=len(data), text=METHOD_BYTES)
        count = reader.map()
        if count > _FIELDS:
            raise Fault("bad-request")
        for _ in range(count):
            key, value = reader.flat(), reader.skip()
            if isinstance(key, str):
                found[key] = value
    except Undecodable:
        raise Fault("bad-request") from None
    return found


def _encode(answer: Answer, limits: Libp2pLimits) -> bytes:
    """Encode a reply or refusal with a length prefix."""
    if isinstance(answer, Reply):
        try:
            packed: bytes = msgpack.packb(
                {"header": answer.header, "payload": bytes(answer.payload)}
            )
        except (ValueError, TypeError, OverflowError):
            answer = Refusal("failed", "the reply cannot be encoded")
        else:
            if len(packed) <= limits.call_bytes:
                return prefixed(packed)
            answer = Refusal("too-large", f"the reply has more than {limits.call_bytes} bytes")
    return prefixed(msgpack.packb({"code": answer.code, "message": answer.message[:1024]}))
