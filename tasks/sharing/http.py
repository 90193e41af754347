"""HTTP client for engines: one request on a connection of its own, with bounds on all that comes
back.

No redirect is followed, no proxy is used, and nothing is decompressed. Closing the connection ends
the request, which makes llama.cpp, Ollama, vLLM and LM Studio stop generating.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import h11
import trio

from ...transport.host.seam import Host
from . import defaults
from .address import EngineAddress
from .errors import EngineFailed, EngineGone

_PIECE: Final = 1 << 16  # bytes of one read
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request to an engine. With a body, it is a POST of JSON."""

    path: str
    body: bytes | None = None


class EngineResponse:
    """A response whose head has arrived. `content_type` is in lower case, without parameters."""

    def __init__(self, head: h11.Response, wire: "_EngineConnection") -> None:
        self.status = head.status_code
        self._wire = wire
        self._headers = dict(head.headers)
        self._received = 0  # bytes of the body so far

    @property
    def content_type(self) -> str:
        return self._header(b"content-type").partition(";")[0].strip().lower()

    @property
    def server(self) -> str:
        """The header `Server`, or ""."""
        return self._header(b"server")

    async def piece(self, most: int) -> bytes:
        """Return the next piece of the body, or b"" at its end.

        Raises EngineFailed if the pieces so far have more than `most` bytes, or if the body ends
        too early.
        """
        while isinstance(event := await self._wire.event(), h11.Data):
            await trio.lowlevel.checkpoint()  # thousands of tiny chunks may be there already
            self._received += len(event.data)
            if self._received > most:
                raise EngineFailed("bad-engine", f"the engine sent more than {most} bytes")
            if event.data:
                return bytes(event.data)
        return b""

    async def body(self, most: int) -> bytes:
        """Return the whole body. Raises what `piece` raises."""
        found = bytearray()
        while piece := await self.piece(most):
            found += piece
        return bytes(found)

    def _header(self, name: bytes) -> str:
        return self._headers.get(name, b"").decode("latin-1")


class _EngineConnection:
    """A connection to an engine: bytes on one side, events of h11 on the other."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=defaults.HEAD_BYTES)

    async def send(self, address: EngineAddress, request: EngineRequest) -> None:
        headers = [
            ("Host", address.authority),
            ("Connection", "close"),
            ("Accept-Encoding", "identity"),
        ]
        if request.body is not None:
            headers += [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(request.body))),
            ]
        head = h11.Request(
            method="GET" if request.body is None else "POST", target=request.path, headers=headers
        )
        data = [self._http.send(head)]
        if request.body is not None:
            data.append(self._http.send(h11.Data(data=request.body)))
        data.append(self._http.send(h11.EndOfMessage()))
        await self._stream.send_all(b"".join(piece for piece in data if piece))

    async def response(self) -> h11.Response:
        for _ in range(defaults.INTERIM + 1):
            event = await self.event()
            if isinstance(event, h11.Response):
                return event
        raise EngineFailed("bad-engine", "the engine sent no response")

    async def event(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._stream.receive_some(_PIECE))
        except h11.RemoteProtocolError:
            raise EngineFailed(
                "bad-engine", "the engine sent invalid HTTP, or ended early"
            ) from None
        return event


@asynccontextmanager
async def exchange(
    host: Host, address: EngineAddress, request: EngineRequest
) -> AsyncIterator[EngineResponse]:
    """Send a request and provide its response, until the block ends and closes the connection.

    Raises EngineGone if nothing accepts the connection, and EngineFailed if the connection breaks,
    the response is invalid, or it is a redirect. The caller limits the time.
    """
    stream = await _connect(host, address)
    try:
        wire = _EngineConnection(stream)
        await wire.send(address, request)
        head = await wire.response()
        if 300 <= head.status_code < 400:
            raise EngineFailed(
                "bad-engine", "the engine redirects to another address, which is refused"
            )
        yield EngineResponse(head, wire)
    except _GONE:
        raise EngineFailed("engine-lost", "the connection to the engine broke") from None
    finally:
        stream.socket.close()


async def _connect(host: Host, address: EngineAddress) -> trio.SocketStream:
    with trio.move_on_after(defaults.CONNECT_TIME):
        try:
            return await host.connect(address.ip, address.port)
        except _GONE:
            raise EngineGone(f"no engine answers at {address.url}") from None
    raise EngineGone(f"no engine answers at {address.url}")
