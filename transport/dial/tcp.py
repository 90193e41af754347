"""Dialling over TCP: resolves an address, and opens a connection to it."""

import errno
import os
from ipaddress import ip_address

import trio

from ..address import Address
from ..bytestream import TcpByteStream
from ..errors import DialFailed, HostError
from ..host.seam import Host

_TRIES = 8  # largest number of IP addresses of one name that are dialled


async def resolve(host: Host, address: Address) -> list[str]:
    """Return the IP addresses to dial, best first. Raises DialFailed if the name is unknown."""
    if not _is_name(address.host):
        return [address.host]
    try:
        found = await host.resolve(address.host)
    except HostError as error:
        raise DialFailed("bad-name", error.message) from None
    version = {"dns4": 4, "dns6": 6}.get(address.dns)
    return [ip for ip in found if version in (None, ip_address(ip).version)][:_TRIES]


async def connect(host: Host, ip: str, address: Address, source_port: int) -> TcpByteStream:
    """Open a TCP connection from the listening port, and return its byte stream.

    Other nodes then see the port at which this node can be dialled. If there is already a
    connection between the two ports, another local port is used. Raises DialFailed if the
    connection fails.
    """
    try:
        return TcpByteStream(await _connect(host, ip, address.port, source_port))
    except ConnectionRefusedError:
        raise DialFailed("refused", f"nothing listens at `{address}`") from None
    except OSError as error:
        # the text of trio names the address once more, as a Python tuple
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise DialFailed.unreachable(str(address), reason) from None


async def _connect(host: Host, ip: str, port: int, source_port: int) -> trio.SocketStream:
    try:
        return await host.connect(ip, port, source_port=source_port)
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EINVAL):
            raise
    return await host.connect(ip, port)


def _is_name(host: str) -> bool:
    """Return whether a host is a name, and not an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return True
    return False
