"""Extra UDP sockets of one attempt. All but the chosen one are closed when the attempt ends."""

import trio

from ...errors import HostError
from ...host.datagrams import Datagrams
from .needs import Tools, Udp


class Sockets:
    """Extra sockets of one attempt. The set `Tools.extra` has those of all attempts."""

    def __init__(self, tools: Tools, udp: Udp) -> None:
        self._tools = tools
        self._udp = udp
        self._open: list[Datagrams] = []
        self._closed = False

    async def open(self, count: int) -> list[Datagrams]:
        """Open `count` sockets, register them with the UDP port, and return them.

        Returns fewer if the system refuses one, or if the attempt has ended.
        """
        found: list[Datagrams] = []
        for _ in range(count):
            try:
                socket = await self._tools.host.datagrams(self._tools.bind, 0)
            except (HostError, OSError):
                break
            if self._closed:  # the attempt has ended in the meantime
                socket.close()
                break
            try:
                self._udp.add(socket)
            except trio.ClosedResourceError:  # the UDP port itself is closing
                socket.close()
                break
            self._open.append(socket)
            self._tools.extra.add(socket)
            found.append(socket)
        return found

    def close(self, *, keep: Datagrams | None) -> None:
        """Close all sockets except `keep`, which the UDP port continues to serve."""
        self._closed = True
        for socket in self._open:
            if socket is not keep:
                discard(self._tools, self._udp, socket)
        self._open.clear()


def discard(tools: Tools, udp: Udp, socket: Datagrams) -> None:
    """Close one extra socket, and remove it from the UDP port."""
    tools.extra.discard(socket)
    udp.remove(socket)
    socket.close()
