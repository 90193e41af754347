"""Where trio asks for sockets and names, while a simulation runs."""

import socket as stdlib
from typing import Any

import trio

from ..errors import NoHost, NotSimulated
from ..host import CURRENT, UDP, Host
from .base import SimSocket
from .udp import UdpSocket, UdpStack


def current_host() -> Host:
    """The host of the task that runs. Raises NoHost."""
    try:
        return CURRENT.get()
    except LookupError:
        raise NoHost("a socket was asked for outside every simulated host") from None


def equip(host: Host) -> None:
    """Give a host its stack."""
    host.protocols[UDP] = UdpStack(host)


class SocketFactory(trio.abc.SocketFactory):
    """Sockets of the current host."""

    def socket(self, family: int = 0, type: int = 0, proto: int = 0) -> SimSocket:
        host = current_host()
        kind = type or stdlib.SOCK_STREAM
        family = family or stdlib.AF_INET
        if kind == stdlib.SOCK_DGRAM and family in (stdlib.AF_INET, stdlib.AF_INET6):
            stack = host.protocols[UDP]
            assert isinstance(stack, UdpStack)
            return UdpSocket(stack, family)
        raise NotSimulated(f"{host.name}: no sockets of family {family}, type {kind}")


class Resolver(trio.abc.HostnameResolver):
    """Names of the simulated DNS."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self._names = names

    async def getaddrinfo(
        self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        await trio.lowlevel.checkpoint()
        name = host.decode() if isinstance(host, bytes) else host
        found = []
        for address in self._names.get(name, []):
            kind = stdlib.AF_INET6 if ":" in address else stdlib.AF_INET
            if family in (0, kind):
                where: Any = (address, int(port or 0))
                found.append((kind, type or stdlib.SOCK_STREAM, proto or 6, "", where))
        if not found:
            raise stdlib.gaierror(stdlib.EAI_NONAME, "Name or service not known")
        return found

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        await trio.lowlevel.checkpoint()
        return str(sockaddr[0]), str(sockaddr[1])
