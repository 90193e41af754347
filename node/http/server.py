"""The listener of the API: accepts clients on loopback, and limits their number.

Everything that parses HTTP is imported when the first client connects.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio
from trio import TaskStatus

from ...transport.errors import AddressInUse, HostError
from ...transport.host.seam import Host
from .. import defaults
from ..errors import ApiRefusal
from ..health import Health
from ..settings.config import DataFolder
from .backend import Backend
from .door import Door
from .refusals import body_of
from .stream import GONE, ClientStream
from .token import load_or_create_token

_PIECE = 1 << 16  # bytes of one read
CONDITION = "api"
"""Name of the condition that the API is not at its port."""


class ApiServer:
    """Server of one node's API."""

    def __init__(
        self, host: Host, folder: DataFolder, port: int, health: Health, backend: Backend
    ) -> None:
        """`port` is the TCP port on loopback; 0 takes a free one."""
        self._host = host
        self._folder = folder
        self._wanted = port
        self._health = health
        self._backend = backend
        self.clients: dict[ClientStream, None] = {}
        self._refusals = trio.Semaphore(defaults.API_CONNECTIONS)
        self._loading = trio.Lock()
        self._serve: Callable[[ClientStream], Awaitable[None]] | None = None
        self.token = ""
        self.port = 0
        """The port that is open, or 0."""

    @property
    def url(self) -> str:
        """Base URL of the API, or "" if its port could not be opened."""
        return f"http://{defaults.API_ADDRESS}:{self.port}/v1" if self.port else ""

    @property
    def running(self) -> int:
        """Number of requests in progress."""
        return sum(client.answering for client in self.clients)

    def models(self) -> Sequence[str]:
        """Return the names of the models that can answer now."""
        return self._backend.names()

    async def run(self, *, task_status: TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept clients until cancelled. `nursery.start` returns the base URL.

        If the port is in use, another one is opened, and a condition says so. If none can be
        opened, a condition says that as well, and the URL is "". Raises NodeError `disk` if the
        token cannot be stored.
        """
        self.token = await self._host.offload(load_or_create_token, self._host, self._folder)
        listener = await self._listen()
        if listener is None:
            task_status.started("")
            return
        async with listener, trio.open_nursery() as nursery:
            await nursery.start(self._backend.resumable.run)
            self.port = int(listener.socket.getsockname()[1])
            task_status.started(self.url)
            await self._accept(listener, nursery)

    async def _listen(self) -> trio.SocketListener | None:
        port = self._wanted
        try:
            try:
                return await self._host.listen(defaults.API_ADDRESS, port)
            except AddressInUse:
                listener = await self._host.listen(defaults.API_ADDRESS, 0)
        except HostError as error:
            self._health.report(CONDITION, f"the API is off: {error.message}", hint=error.hint)
            return None
        actual = int(listener.socket.getsockname()[1])
        self._health.report(
            CONDITION,
            f"port {port} on {defaults.API_ADDRESS} is in use by another program, so the API is "
            f"at port {actual} until this node stops",
            hint="`shoal api` shows the URL; `shoal config set api PORT` chooses another port, "
            "`shoal config set api no` none",
        )
        return listener

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        guard = self._backend.guard
        while True:
            try:
                stream = await listener.accept()
            except OSError:  # no file descriptor is left, or the client has hung up already
                await trio.sleep(defaults.API_ACCEPT_PAUSE)
                continue
            end = stream.socket.close
            try:
                room = await self._make_room()
            except trio.Cancelled:
                end()
                raise
            if not room:
                guard.start(nursery, "client of the API", self._turn_away, stream, end=end)
                continue
            scope = trio.CancelScope()
            client = ClientStream(stream, self._host.now(), scope.cancel)
            self.clients[client] = None
            guard.start(nursery, "client of the API", self._keep, client, scope, end=end)

    async def _make_room(self) -> bool:
        """Disconnect the client that has had no request in progress for the longest time, if there
        are too many. Return False if the new one is to be turned away, because all have a request,
        or have had little time for their first one."""
        if len(self.clients) < defaults.API_CONNECTIONS:
            return True
        await self._refusals.acquire()  # until then, further clients wait
        late = self._host.now() - defaults.API_FRESH
        idle = [
            client
            for client in self.clients
            if not client.answering and (client.asked or client.idle_since <= late)
        ]
        if not idle:
            return False
        longest = min(idle, key=lambda client: client.idle_since)
        self.clients.pop(longest, None)
        if longest.asked:
            self._refusals.release()
            longest.close()
        else:
            longest.displace()  # and `_keep` turns it away
        return True

    async def _keep(self, client: ClientStream, scope: trio.CancelScope) -> None:
        """Serve one client until its connection ends."""
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.pump)
                    serve = await self._loaded()
                    await serve(client)
                    nursery.cancel_scope.cancel()
            if client.displaced:
                await self._say_why(client.stream)
        finally:
            if client.displaced:
                client.displaced = False
                self._refusals.release()
            client.close()
            self.clients.pop(client, None)

    async def _turn_away(self, stream: trio.SocketStream) -> None:
        """Refuse a client whatever it asks, as there are too many."""
        try:
            await self._say_why(stream)
        finally:
            stream.socket.close()
            self._refusals.release()

    async def _say_why(self, stream: trio.SocketStream) -> None:
        """Send the response of a client that is turned away. Reads its request, because it could
        not read the response from a connection that was closed before."""
        with trio.move_on_after(defaults.API_AWAY), suppress(*GONE):
            await stream.send_all(_too_many())
            await stream.send_eof()
            while await stream.receive_some(_PIECE):
                pass

    async def _loaded(self) -> Callable[[ClientStream], Awaitable[None]]:
        """Return the function that serves a client. Imports it in a thread at the first call."""
        async with self._loading:
            if self._serve is None:
                self._serve = await self._host.offload(_load, self._backend, Door(self.token))
            return self._serve


def _too_many() -> bytes:
    """Return the whole response to a client that is one too many."""
    message = (
        f"{defaults.API_CONNECTIONS} clients are connected already; try again in "
        f"{defaults.API_RETRY} s"
    )
    body = body_of(ApiRefusal(429, "rate_limit_exceeded", message))
    head = (
        "HTTP/1.1 429 Too Many Requests",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"Retry-After: {defaults.API_RETRY}",
        "Connection: close",
        "\r\n",
    )
    return "\r\n".join(head).encode() + body


def preload() -> None:
    """Import what serves clients now instead of when the first one connects."""
    from . import app, protocol

    assert app and protocol


def _load(backend: Backend, door: Door) -> Callable[[ClientStream], Awaitable[None]]:
    """Import what serves clients, which takes 7 MB and some hundredths of a second."""
    from .app import ApiApp
    from .protocol import HttpConnection, http_config

    app, config = ApiApp(backend, door), http_config()

    async def serve(client: ClientStream) -> None:
        await HttpConnection(app, config, client).run()

    return serve
