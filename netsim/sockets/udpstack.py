"""Delivery of datagrams to the UDP sockets of a host."""

import errno
from typing import TYPE_CHECKING
from zlib import crc32

from .. import defaults
from ..host import Host, error
from ..network.packet import Icmp, Packet
from .groups import Memberships
from .icmp import IcmpStack

if TYPE_CHECKING:
    from .udp import UdpSocket


class UdpStack:
    """UDP ports of one host. A datagram goes to the most specific matching socket, as in Linux."""

    def __init__(self, host: Host, icmp: IcmpStack) -> None:
        self.host = host
        self.icmp = icmp
        self.memberships = Memberships(host)
        self._groups = self.memberships.groups
        self._by_port: dict[bool, dict[int, list[UdpSocket]]] = {False: {}, True: {}}  # IPv6?
        self._four = self._by_port[False]
        self._six = self._by_port[True]
        self._next = host.streams.get(host.name, "ports").randrange(*defaults.EPHEMERAL)

    def receive(self, packet: Packet) -> None:
        """Pass a datagram to its socket or, if it is for a group, to all matching sockets. If no
        socket matches, send a port-unreachable error.
        """
        address, port = packet.dst
        if address in self._groups:
            self._spread(packet)
            return
        sockets = (self._six if ":" in address else self._four).get(port)
        if sockets is not None:
            socket: UdpSocket | None = sockets[0]
            if len(sockets) > 1 or not sockets[0].takes_all:
                socket = _best(sockets, packet)
            if socket is not None:
                socket.take(packet)
                return
        self.icmp.refuse(packet)

    def _spread(self, packet: Packet) -> None:
        """Deliver a multicast or broadcast datagram to every socket that matches it."""
        table = self._by_port[":" in packet.dst[0]]
        for socket in list(table.get(packet.dst[1], ())):
            if socket.score(packet) >= 0:
                socket.take(packet)

    def failed(self, icmp: Icmp) -> None:
        """Pass an ICMP error for a datagram of this host to the connected socket that sent the
        datagram.
        """
        for socket in self._by_port[":" in icmp.src[0]].get(icmp.src[1], ()):
            if socket.peer == icmp.dst and socket.score_local(icmp.src[0]) >= 0:
                socket.fail(icmp)
                return

    def free_port(self) -> int:
        """Return an unused port. Raises OSError (EADDRINUSE) if all are used."""
        low, high = defaults.EPHEMERAL
        for _ in range(high - low + 1):
            self._next = self._next + 1 if self._next < high else low
            if self._next not in self._four and self._next not in self._six:
                return self._next
        raise error(errno.EADDRINUSE)

    def enter(self, socket: "UdpSocket") -> None:
        """Register a bound socket at its port. Raises OSError (EADDRINUSE) if another socket
        conflicts with it.
        """
        tables = [self._by_port[six] for six in socket.families()]
        for table in tables:
            for other in table.get(socket.port, ()):
                if socket.conflicts(other):
                    raise error(errno.EADDRINUSE)
        for table in tables:
            table.setdefault(socket.port, []).insert(0, socket)

    def leave(self, socket: "UdpSocket") -> None:
        """Remove a socket from its port, if it is registered."""
        for table in self._by_port.values():
            sockets = table.get(socket.port, [])
            if socket in sockets:
                sockets.remove(socket)
                if not sockets:
                    del table[socket.port]


def _best(sockets: "list[UdpSocket]", packet: Packet) -> "UdpSocket | None":
    """Return the socket that matches a datagram best, or None if none matches. Of sockets that
    share a port with SO_REUSEPORT, a hash of the addresses chooses one.
    """
    scores = [socket.score(packet) for socket in sockets]
    best = max(scores)
    if best < 0:
        return None
    equal = [socket for socket, score in zip(sockets, scores, strict=True) if score == best]
    if len(equal) == 1 or not equal[0].shares_port:
        return equal[0]
    return equal[crc32(repr((packet.src, packet.dst)).encode()) % len(equal)]
