"""Classification of this node's NAT with real sockets: does the I/O for a `Classifier`."""

from collections.abc import Awaitable, Callable, Collection, Sequence

import trio

from ...host.datagrams import Datagrams
from ...host.seam import Host
from . import defaults
from .natkind import Classifier, NatProbe, NatRequest, Observer
from .reachability import UdpKind

AskBack = Callable[[NatRequest], Awaitable[bool]]
"""Asks a peer for a dial-back. Returns whether the peer reports that it has sent it. Never
raises."""


async def classify(
    host: Host, observers: Sequence[Observer], own: Collection[str], ask_back: AskBack
) -> UdpKind:
    """Measure how the NAT treats UDP over IPv4, with the help of `observers`.

    `own` are this machine's IP addresses. Takes 1 to 4 s if observers reply. Raises HostError if no
    socket is available.
    """
    sockets: list[Datagrams] = []
    try:
        for _ in range(defaults.PROBE_SOCKETS):
            sockets.append(await host.datagrams("0.0.0.0", 0))
        measurement = _Measurement(host, observers, own, sockets, ask_back)
        return await measurement.run()
    finally:
        for socket in sockets:
            socket.close()


class _Measurement:
    """I/O of one `Classifier`: sends its datagrams and requests, and passes it what arrives."""

    def __init__(
        self,
        host: Host,
        observers: Sequence[Observer],
        own: Collection[str],
        sockets: Sequence[Datagrams],
        ask_back: AskBack,
    ) -> None:
        ports = [socket.port for socket in sockets]
        now = host.now()
        self._core = Classifier(observers, ports, own, entropy=host.entropy, now=now)
        self._host = host
        self._sockets = sockets
        self._ask_back = ask_back
        self._news = trio.Event()

    async def run(self) -> UdpKind:
        """Run until the classifier has finished, and return its result."""
        async with trio.open_nursery() as nursery:
            for number, socket in enumerate(self._sockets):
                nursery.start_soon(self._read, number, socket)
            while not self._core.done:
                self._news = trio.Event()
                for deed in self._core.poll(self._host.now()):
                    if isinstance(deed, NatProbe):
                        self._sockets[deed.socket].send(deed.data, deed.to)
                    else:
                        nursery.start_soon(self._request, deed)
                if not self._core.done:
                    with trio.move_on_at(self._core.wake_at):
                        await self._news.wait()
            nursery.cancel_scope.cancel()
        return self._core.result()

    async def _read(self, number: int, socket: Datagrams) -> None:
        while True:
            for data, source in await socket.receive():
                self._core.on_datagram(number, data, source)
            self._news.set()

    async def _request(self, request: NatRequest) -> None:
        sent = await self._ask_back(request)
        self._core.on_sent(request.nonce, self._host.now(), sent=sent)
        self._news.set()
