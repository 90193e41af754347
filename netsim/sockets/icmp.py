"""ICMP errors of a host: sent for datagrams to closed ports, and received from routers and other
hosts.
"""

import errno
from typing import Final, Protocol

from .. import defaults
from ..host import Host, cause
from ..network.packet import ICMP, IP4_HEADER, IP6_HEADER, Icmp, Packet
from .groups import is_group

_HEADER: Final = 8
# Maximum size in bytes of an ICMP error, with the packet that it quotes, for IPv4 (False) and
# IPv6 (True).
_LARGEST: Final = {False: 576, True: 1280}
_BURST: Final = 6
_EVERY_S: Final = 1.0
"""Interval in seconds between ICMP errors to one host, after a burst of `_BURST` errors (Linux:
icmp_ratelimit).
"""
_HOSTS: Final = 1024  # maximum number of hosts whose rate is recorded

UDP_ERRORS: Final[dict[bool, dict[str, int]]] = {
    False: {"port": errno.ECONNREFUSED, "admin": errno.EHOSTUNREACH},
    True: {"port": errno.ECONNREFUSED, "admin": errno.EACCES},
}
"""errno that a connected UDP socket gets for each kind of ICMP error, for IPv4 (False) and IPv6
(True). Linux hides transient errors (host unreachable, too big, time exceeded) from sockets that
did not request them.
"""


class ErrorReceiver(Protocol):
    """Protocol stack that receives the ICMP errors for its packets."""

    def failed(self, icmp: Icmp) -> None: ...


class IcmpStack:
    """ICMP implementation of one host. `listeners` maps an IP protocol number to the stack that
    receives the ICMP errors for packets of that protocol.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.listeners: dict[int, ErrorReceiver] = {}
        self._mtus: dict[
            str, int
        ] = {}  # path MTU in bytes by destination, where an error reported one
        self._spent: dict[str, float] = {}  # time at which a host's full burst is available again

    def mtu(self, destination: str) -> int:
        """Return the size in bytes of the largest packet that is known to fit the route to a
        destination.
        """
        learnt = self._mtus.get(destination)
        if learnt is not None:
            return learnt
        via, _ = self.host.source(destination)
        return defaults.LOOPBACK_MTU if via is None else via.up.spec.mtu

    def receive(self, packet: Packet) -> None:
        """Process an ICMP error: record the path MTU that it reports, and pass the error to the
        protocol's stack.
        """
        icmp = packet.icmp
        if icmp.kind == "too-big":
            known = self._mtus.get(icmp.dst[0], icmp.mtu)
            self._mtus[icmp.dst[0]] = min(known, icmp.mtu)
        listener = self.listeners.get(icmp.proto)
        if listener is not None:
            listener.failed(icmp)

    def refuse(self, packet: Packet) -> None:
        """Send a port-unreachable error for a datagram, within the rate limit. Send none for a
        multicast datagram.
        """
        host = self.host
        if is_group(packet.dst[0]) or is_group(packet.src[0]):
            return
        via, _ = host.source(packet.src[0])
        if via is not None and not self._may_tell(packet.src[0]):
            return
        six = ":" in packet.src[0]
        size = (IP6_HEADER if six else IP4_HEADER) + _HEADER + packet.size
        answer = Packet(
            ICMP,
            (packet.dst[0], 0),
            (packet.src[0], 0),
            min(size, _LARGEST[six]),
            Icmp("port", packet),
            host.name,
            cause(host),
        )
        host.send(answer, via)

    def _may_tell(self, address: str) -> bool:
        """Return whether the rate limit allows an ICMP error to `address` now. If it does, count
        the error.
        """
        now = self.host.events.now
        whole = max(self._spent.get(address, 0.0), now)
        if whole - now > (_BURST - 1) * _EVERY_S:
            return False
        if len(self._spent) >= _HOSTS:
            self._spent.clear()
        self._spent[address] = whole + _EVERY_S
        return True
