"""Multicast and broadcast of one host: the groups that its sockets have joined, and sending to
groups.

Each member of a group on the subnet gets a copy of a packet. Routers do not forward such packets,
and the public internet carries none.
"""

import errno
import socket as stdlib
import struct
from typing import TYPE_CHECKING, Final

from ..host import Host, error
from ..network.network import BROADCAST, Attachment
from ..network.packet import Packet
from .base import Option, OptionValue, number_of

if TYPE_CHECKING:
    from .udp import UdpSocket

_IP: Final = stdlib.IPPROTO_IP
_IP6: Final = stdlib.IPPROTO_IPV6
# IP_MTU_DISCOVER and IPV6_MTU_DISCOVER of linux/in.h, which the socket module does not name.
MTU_DISCOVER: Final = 10
MTU_DISCOVER6: Final = 23
_FIRST_INTERFACE: Final = 2  # index of the first interface; the loopback has index 1

OPTIONS4: Final[dict[Option, int]] = {
    (_IP, stdlib.IP_TTL): 64,
    (_IP, stdlib.IP_TOS): 0,
    (_IP, MTU_DISCOVER): 1,
    (_IP, stdlib.IP_MULTICAST_TTL): 1,
    (_IP, stdlib.IP_MULTICAST_LOOP): 1,
}
OPTIONS6: Final[dict[Option, int]] = {
    (_IP6, stdlib.IPV6_V6ONLY): 0,
    (_IP6, stdlib.IPV6_UNICAST_HOPS): 64,
    (_IP6, stdlib.IPV6_MULTICAST_HOPS): 1,
    (_IP6, stdlib.IPV6_MULTICAST_LOOP): 1,
    (_IP6, stdlib.IPV6_TCLASS): 0,
    (_IP6, MTU_DISCOVER6): 1,
}
_FOUR: Final = frozenset(str(first) for first in range(224, 240))  # first byte of IPv4 groups


def is_group(address: str) -> bool:
    """Return whether an address is a multicast group or the broadcast address."""
    if ":" in address:
        return address.startswith("ff")
    return address[:3] in _FOUR or address == BROADCAST


class Memberships:
    """Multicast groups that the sockets of one host have joined."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._joined: dict[UdpSocket, dict[tuple[str, Attachment], None]] = {}
        self._interfaces: dict[
            UdpSocket, Attachment
        ] = {}  # interface that a socket set for sending
        self.groups: set[str] = {BROADCAST}  # groups that the host listens to

    def option(self, socket: "UdpSocket", level: int, option: int, value: OptionValue) -> bool:
        """Set a multicast option of a socket. Return False if the option is not about multicast.
        Raises OSError if the value is invalid.
        """
        match level, option:
            case (stdlib.IPPROTO_IP, stdlib.IP_ADD_MEMBERSHIP | stdlib.IP_DROP_MEMBERSHIP):
                group, at = self._four(value)
                leaves = option == stdlib.IP_DROP_MEMBERSHIP
            case (stdlib.IPPROTO_IPV6, stdlib.IPV6_JOIN_GROUP | stdlib.IPV6_LEAVE_GROUP):
                group, at = self._six(value)
                leaves = option == stdlib.IPV6_LEAVE_GROUP
            case (stdlib.IPPROTO_IP, stdlib.IP_MULTICAST_IF):
                self._interfaces[socket] = self._by_address(_interface_address(value))
                return True
            case (stdlib.IPPROTO_IPV6, stdlib.IPV6_MULTICAST_IF):
                self._interfaces[socket] = self._by_index(number_of(value))
                return True
            case _:
                return False
        (self._leave if leaves else self._join)(socket, group, at)
        return True

    def _four(self, value: OptionValue) -> tuple[str, Attachment]:
        """Return the group and the interface in a `struct ip_mreq`, or in an `ip_mreqn`, which has
        the interface's index. Raises OSError if the value is invalid.
        """
        data = _structure(value)
        if len(data) < 8:
            raise error(errno.EINVAL)
        group = stdlib.inet_ntop(stdlib.AF_INET, data[:4])
        index = number_of(data[8:12]) if len(data) >= 12 else 0
        if index:
            return group, self._by_index(index)
        return group, self._by_address(stdlib.inet_ntop(stdlib.AF_INET, data[4:8]))

    def _six(self, value: OptionValue) -> tuple[str, Attachment]:
        """Return the group and the interface in a `struct ipv6_mreq`. Raises OSError if the value
        is invalid.
        """
        data = _structure(value)
        if len(data) < 20:
            raise error(errno.EINVAL)
        group = stdlib.inet_ntop(stdlib.AF_INET6, data[:16])
        return group, self._by_index(struct.unpack_from("i", data, 16)[0])

    def _by_address(self, address: str) -> Attachment:
        """Return the interface with an address; 0.0.0.0 means the first one. Raises OSError
        (ENODEV) if there is none.
        """
        for item in self._host.attachments:
            if address == "0.0.0.0" or address in item.addresses:
                return item
        raise error(errno.ENODEV)

    def _by_index(self, index: int) -> Attachment:
        """Return the interface with an index; 0 means the first one. Raises OSError (ENODEV) if
        there is none.
        """
        items = self._host.attachments
        if not 0 <= index - _FIRST_INTERFACE < len(items) and (index or not items):
            raise error(errno.ENODEV)
        return items[index - _FIRST_INTERFACE if index else 0]

    def _join(self, socket: "UdpSocket", group: str, at: Attachment) -> None:
        """Add a socket to a multicast group on the interface `at`. Raises OSError if the address is
        not a multicast group, or if the socket has already joined the group there.
        """
        if not is_group(group) or group == BROADCAST:
            raise error(errno.EINVAL)
        mine = self._joined.setdefault(socket, {})
        if (group, at) in mine:
            raise error(errno.EADDRINUSE)
        mine[group, at] = None
        at.subnet.join(group, at)
        self.groups.add(group)

    def _leave(self, socket: "UdpSocket", group: str, at: Attachment) -> None:
        """Remove a socket from a multicast group on the interface `at`. Raises OSError
        (EADDRNOTAVAIL) if the socket has not joined the group there.
        """
        mine = self._joined.get(socket, {})
        if (group, at) not in mine:
            raise error(errno.EADDRNOTAVAIL)
        del mine[group, at]
        everybody = [key for joined in self._joined.values() for key in joined]
        if (group, at) not in everybody:
            at.subnet.leave(group, at)
        if all(group != other for other, _ in everybody):
            self.groups.discard(group)

    def closed(self, socket: "UdpSocket") -> None:
        """Remove a socket from all its groups, because it is being closed."""
        for group, at in list(self._joined.get(socket, ())):
            self._leave(socket, group, at)
        self._joined.pop(socket, None)
        self._interfaces.pop(socket, None)

    # Sending.

    def source(self, socket: "UdpSocket", group: str) -> tuple[Attachment, str]:
        """Return the interface and the source address for packets to a group. Raises OSError
        (ENETUNREACH) if no interface has an address of the group's family.
        """
        chosen = self._interfaces.get(socket)
        for item in [chosen] if chosen is not None else self._host.attachments:
            for address in item.addresses:
                if (":" in address) == (":" in group):
                    return item, address
        raise error(errno.ENETUNREACH)

    def send(self, socket: "UdpSocket", packet: Packet, via: Attachment | None) -> None:
        """Send a packet to a group, and also to this host if the socket's options request it.
        Raises OSError (EACCES) for a broadcast without SO_BROADCAST.
        """
        assert via is not None
        group = packet.dst[0]
        if group == BROADCAST:
            if not socket.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_BROADCAST):
                raise error(errno.EACCES)
            loop = True
        elif ":" in group:
            packet.ttl = socket.getsockopt(_IP6, stdlib.IPV6_MULTICAST_HOPS)
            loop = bool(socket.getsockopt(_IP6, stdlib.IPV6_MULTICAST_LOOP))
        else:
            packet.ttl = socket.getsockopt(_IP, stdlib.IP_MULTICAST_TTL)
            loop = bool(socket.getsockopt(_IP, stdlib.IP_MULTICAST_LOOP))
        if packet.ttl and self._host.up:
            via.spread(packet)
        if loop and group in self.groups:
            self._host.send(packet.copy(), None)


def _structure(value: OptionValue) -> bytes:
    """Return the bytes of an option whose value is a structure. Return b"" for a number or None."""
    return b"" if value is None or isinstance(value, int) else bytes(value)


def _interface_address(value: OptionValue) -> str:
    """Return the address of the interface in a `struct in_addr`, `ip_mreq` or `ip_mreqn`. Raises
    OSError (EINVAL) if the value is too short.
    """
    data = value.to_bytes(4, "big") if isinstance(value, int) else _structure(value)
    if len(data) < 4:
        raise error(errno.EINVAL)
    return stdlib.inet_ntop(stdlib.AF_INET, data[4:8] if len(data) >= 8 else data[:4])
