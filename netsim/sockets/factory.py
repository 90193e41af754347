"""Socket factory for trio during a simulation, and the protocol stack of a new host."""

import socket as stdlib

import trio

from ..errors import NoHost, NotSimulated
from ..host import CURRENT, Host
from ..network.packet import ICMP, TCP, UDP
from .base import SimSocket
from .icmp import IcmpStack
from .local import LocalSocket, LocalStack
from .tcpsocket import TcpSocket
from .tcpstack import TcpStack
from .udp import UdpSocket
from .udpstack import UdpStack


def current_host() -> Host:
    """Return the host of the running task. Raises NoHost if the task belongs to none."""
    try:
        return CURRENT.get()
    except LookupError:
        raise NoHost("a task outside every simulated host asked for a socket") from None


def equip(host: Host) -> None:
    """Create the protocol stack of a host, at each start of the host."""
    icmp = IcmpStack(host)
    udp = UdpStack(host, icmp)
    host.protocols[ICMP], host.protocols[UDP] = icmp, udp
    icmp.listeners[UDP] = udp
    host.protocols[TCP] = icmp.listeners[TCP] = TcpStack(host)
    if not hasattr(host, "local"):  # path names of Unix sockets survive a crash, as files do
        host.local = LocalStack(host)


class SocketFactory(trio.abc.SocketFactory):
    """Factory of sockets for trio. Each socket belongs to the host of the running task."""

    def socket(self, family: int = 0, type: int = 0, proto: int = 0) -> SimSocket:
        """Return a new socket of the current host. Raises NoHost outside every host, and
        NotSimulated for other families and types.
        """
        host = current_host()
        kind = type or stdlib.SOCK_STREAM
        family = family or stdlib.AF_INET
        if kind == stdlib.SOCK_DGRAM and family in (stdlib.AF_INET, stdlib.AF_INET6):
            stack = host.protocols[UDP]
            assert isinstance(stack, UdpStack)
            return UdpSocket(stack, family)
        if kind == stdlib.SOCK_STREAM and family in (stdlib.AF_INET, stdlib.AF_INET6):
            tcp = host.protocols[TCP]
            assert isinstance(tcp, TcpStack)
            return TcpSocket(tcp, family)
        if kind == stdlib.SOCK_STREAM and family == stdlib.AF_UNIX:
            return LocalSocket(host)
        raise NotSimulated(f"{host.name}: no sockets of family {family}, type {kind}")
