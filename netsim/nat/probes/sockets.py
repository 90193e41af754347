"""Interface of the lab in which NATs are probed: its hosts, sockets and timers.

A lab has two gateways of the kind under test (`a` and `b`), and these hosts:

    a1, a2   behind gateway a           server   public, two addresses: server, server2
    b1       behind gateway b           gate_a, gate_b   the gateways' outer addresses

Probes get their sockets from the lab and wait with trio. The gateways' UDP timeouts are `TIMERS`,
which are short because a real lab has to wait for them. Links have almost no delay. A lab closes
the sockets that it created.
"""

import errno
import socket as stdlib
import struct
from collections.abc import Mapping
from typing import Final, Protocol

import trio

from ...network.packet import Addr

UDP_NEW_S: Final = 2.0
UDP_STREAM_S: Final = 4.0
TIMERS: Final = {"udp_new": UDP_NEW_S, "udp_stream": UDP_STREAM_S}
"""UDP timeouts of the gateways, in seconds: nf_conntrack_udp_timeout and
nf_conntrack_udp_timeout_stream of Linux.
"""

WAIT_S: Final = 0.3  # for a datagram that should arrive at once
CONNECT_S: Final = 2.5  # one retransmission of a SYN included
PORTS: Final = (3478, 3479)
SKEWS_S: Final = (0.02, 0.15)
"""Seconds by which the second peer of a hole punch starts later, for each attempt. Zero is avoided,
because the order of two sends at the same instant would be arbitrary on links without delay.
"""

Answer = bool | float | str | list[float] | list[str] | None
"""Result of a probe, as a JSON value that is the same in every run."""
Found = dict[str, Answer]


class Lab(Protocol):
    """The environment in which probes run: hosts and sockets."""

    addresses: Mapping[str, str]
    """IPv4 addresses by name: a1, a2, b1, server, server2, gate_a, gate_b."""

    def socket(self, host: str, kind: int) -> trio.socket.SocketType:
        """Return a new socket (SOCK_DGRAM or SOCK_STREAM) on host `a1`, `a2`, `b1` or `server`."""
        ...


# UDP.


class LabDatagrams:
    """UDP socket on a host of the lab, bound to a port."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.sock = sock

    async def send(self, to: Addr, data: bytes = b"?") -> None:
        """Send a datagram. Ignore an ICMP error that an earlier datagram of this socket caused."""
        try:
            await self.sock.sendto(data, to)
        except ConnectionRefusedError:
            await self.sock.sendto(data, to)

    async def expect(self, timeout: float = WAIT_S) -> Addr | None:
        """Return the sender of the next datagram, or None if no datagram arrives in time."""
        with trio.move_on_after(timeout):
            while True:
                try:
                    return _addr((await self.sock.recvfrom(2048))[1])
                except ConnectionRefusedError:
                    continue
        return None


def _addr(name: tuple[str, int]) -> Addr:
    return str(name[0]), int(name[1])


async def udp(lab: Lab, host: str, port: int, address: str = "0.0.0.0") -> LabDatagrams:
    sock = lab.socket(host, stdlib.SOCK_DGRAM)
    await sock.bind((address, port))
    return LabDatagrams(sock)


class Servers:
    """Four UDP sockets of the public host. A key is (index of the address, index of the port),
    each 0 or 1.
    """

    def __init__(self, lab: Lab, sockets: dict[tuple[int, int], LabDatagrams]) -> None:
        self._sockets = sockets
        self._hosts = lab.addresses["server"], lab.addresses["server2"]

    def __getitem__(self, where: tuple[int, int]) -> LabDatagrams:
        return self._sockets[where]

    def address(self, where: tuple[int, int]) -> Addr:
        return self._hosts[where[0]], PORTS[where[1]]

    async def seen(self, client: LabDatagrams, where: tuple[int, int]) -> Addr | None:
        """Send a datagram from `client` to the server socket `where`. Return its source as the
        server sees it, or None if it does not arrive.
        """
        await client.send(self.address(where))
        return await self[where].expect()

    async def ask(self, client: LabDatagrams, where: tuple[int, int]) -> Addr | None:
        """Send a datagram from `client` as in `seen`, let the server reply, and wait for the reply.
        Return the source that the server sees, or None.
        """
        seen = await self.seen(client, where)
        if seen is not None:
            await self[where].send(seen)
            await client.expect()
        return seen


async def open_servers(lab: Lab) -> Servers:
    names = "server", "server2"
    sockets = {
        (host, port): await udp(lab, "server", PORTS[port], lab.addresses[names[host]])
        for host in (0, 1)
        for port in (0, 1)
    }
    return Servers(lab, sockets)


# TCP.


async def listen(lab: Lab, host: str, port: int) -> trio.socket.SocketType:
    sock = lab.socket(host, stdlib.SOCK_STREAM)
    sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_REUSEADDR, 1)
    await sock.bind(("0.0.0.0", port))
    sock.listen(5)
    return sock


async def connect(
    lab: Lab, host: str, port: int, to: Addr, timeout: float = CONNECT_S
) -> tuple[str, trio.socket.SocketType]:
    """Connect from a fixed port of a host. Return (outcome, socket): the outcome is "connected",
    "refused", "unreachable", "silence" after `timeout` seconds, or "errno N".
    """
    sock = lab.socket(host, stdlib.SOCK_STREAM)
    sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_REUSEADDR, 1)
    await sock.bind(("0.0.0.0", port))
    outcome = "silence"
    with trio.move_on_after(timeout):
        outcome = await _outcome(sock, to)
    if outcome != "connected":
        sock.close()
    return outcome, sock


async def _outcome(sock: trio.socket.SocketType, to: Addr) -> str:
    try:
        await sock.connect(to)
    except (ConnectionRefusedError, ConnectionResetError):
        return "refused"
    except OSError as problem:
        unreachable = errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES
        return "unreachable" if problem.errno in unreachable else f"errno {problem.errno}"
    return "connected"


async def accept(
    listener: trio.socket.SocketType, timeout: float = WAIT_S
) -> tuple[trio.socket.SocketType | None, Addr | None]:
    with trio.move_on_after(timeout):
        sock, name = await listener.accept()
        return sock, _addr(name)
    return None, None


def reset(sock: trio.socket.SocketType) -> None:
    """Close a TCP connection with a reset."""
    sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def ending(sock: trio.socket.SocketType) -> str:
    """Read from a connection, and return what happens first: "data", "end", "reset", "errno N", or
    "silence" after `WAIT_S` seconds.
    """
    with trio.move_on_after(WAIT_S):
        try:
            return "data" if await sock.recv(10) else "end"
        except ConnectionResetError:
            return "reset"
        except OSError as problem:
            return f"errno {problem.errno}"
    return "silence"
