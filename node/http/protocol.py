"""HTTP/1.1 on accepted connections, by hypercorn. Imported only when a client connects.

hypercorn would also speak HTTP/2 and WebSocket on request. Nothing here needs them, so neither can
be reached. hypercorn's version is held, because this module uses its internal classes.
"""

from typing import TYPE_CHECKING, cast

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from .. import defaults
from .stream import ClientStream

if TYPE_CHECKING:
    from hypercorn.protocol import ProtocolWrapper
    from hypercorn.typing import ASGIFramework
    from starlette.types import ASGIApp

H11Sent = h11.Data | h11.EndOfMessage | h11.InformationalResponse | h11.Response

CLIENT = "shoal.client"
"""Key of the client's stream in the state of a request."""


def http_config() -> Config:
    """Return the limits and options for hypercorn. It logs nothing, and adds no headers."""
    config = Config()
    config.accesslog = None
    config.errorlog = None
    config.h11_max_incomplete_size = defaults.API_HEAD
    config.include_date_header = False
    config.include_server_header = False
    config.keep_alive_timeout = defaults.API_HEAD_TIME
    return config


class _OnlyHttp11(H11Protocol):
    """hypercorn's protocol without its ways to another one. The head of a response leaves with the
    beginning of its body, which wakes the client once."""

    _head = b""

    async def _send_h11_event(self, event: "H11Sent") -> None:
        try:
            data = self.connection.send(event) or b""
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        if isinstance(event, h11.Response):
            self._head = data
            return
        data, self._head = self._head + data, b""
        await self.send(RawData(data=data))

    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore requests for HTTP/2."""

    async def _create_stream(self, request: h11.Request) -> None:
        """Begin a request. Its header `Upgrade` is ignored, as a server may do."""
        kept = [each for each in request.headers.raw_items() if each[0].lower() != b"upgrade"]
        await super()._create_stream(
            h11.Request(
                method=request.method,
                headers=kept,
                target=request.target,
                http_version=request.http_version,
            )
        )


class HttpConnection(TCPServer):
    """One connection: hypercorn's server with `_OnlyHttp11`."""

    def __init__(self, app: "ASGIApp", config: Config, client: ClientStream) -> None:
        stream = cast("trio.SSLStream[trio.SocketStream]", client)
        state = {CLIENT: client}
        framework = cast("ASGIFramework", app)  # starlette's types are wider
        super().__init__(ASGIWrapper(framework), config, WorkerContext(None), state, stream)

    async def run(self) -> None:
        """Answer requests until the connection ends."""
        try:
            async with TaskGroup() as group:
                self._task_group = group
                self.protocol = cast(
                    "ProtocolWrapper",
                    _OnlyHttp11(
                        self.app,
                        self.config,
                        self.context,
                        group,
                        ConnectionState(dict(self.state)),
                        False,
                        None,
                        None,
                        self.protocol_send,
                    ),
                )
                await self.idle_task.restart(group, self._idle_timeout)
                await self._read_data()
        finally:
            await self._close()
