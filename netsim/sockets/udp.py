"""UDP sockets.

A datagram larger than the MTU of a link is not fragmented. It is lost with the reason "mtu", as on
the many routes that drop fragments.
"""

import errno
import socket as stdlib
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import trio

from .. import defaults
from ..errors import NotSimulated
from ..host import cause, error
from ..network.network import Attachment
from ..network.packet import IP4_HEADER, IP6_HEADER, UDP, UDP_HEADER, Addr, Icmp, Packet
from .base import COMMON, Ancillary, Option, OptionValue, SimSocket, SocketName, Waiters, scatter
from .groups import MTU_DISCOVER, MTU_DISCOVER6, OPTIONS4, OPTIONS6, is_group
from .icmp import UDP_ERRORS
from .udpstack import UdpStack

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_OVERHEAD4 = IP4_HEADER + UDP_HEADER
_OVERHEAD6 = IP6_HEADER + UDP_HEADER
_MAPPED = "::ffff:"
_FLAGS = stdlib.MSG_PEEK | stdlib.MSG_TRUNC | stdlib.MSG_DONTWAIT | stdlib.MSG_NOSIGNAL
_NEVER_FRAGMENT = 2  # IP_PMTUDISC_DO
_ROUTES = 256  # maximum number of destinations in a socket's cache of routes

Item = tuple[bytes, Addr]  # datagram, source
Route = tuple[Addr, Addr, Attachment | None, int, bool]
"""(destination, source, interface, size of the headers in bytes, whether the destination is a
group). The interface is None for the loopback.
"""


class UdpSocket(SimSocket):
    """UDP socket for IPv4 or IPv6, which behaves as in Linux: udp(7), ip(7), ipv6(7)."""

    OPTIONS: ClassVar[dict[Option, int]] = {**COMMON, **OPTIONS4}
    OPTIONS_SIX: ClassVar[dict[Option, int]] = {**COMMON, **OPTIONS4, **OPTIONS6}

    def __init__(self, stack: UdpStack, family: int) -> None:
        super().__init__(stack.host, family, stdlib.SOCK_DGRAM, stdlib.IPPROTO_UDP)
        self._stack = stack
        self._is_six = family == stdlib.AF_INET6
        if self._is_six:
            self.OPTIONS = self.OPTIONS_SIX  # type: ignore[misc]
        self._local: str | None = None  # bound address; None: every address of the host
        self.port = 0
        self.peer: Addr | None = None
        self.takes_all = False  # whether it is bound to every address and not connected
        self.queue: deque[Item] = deque()
        self._queued = 0
        self._limit = defaults.RECEIVE_BUFFER_BYTES
        self._readers: Waiters[Item] = Waiters()
        self._error = 0  # errno of the pending error, or 0
        self._done_writing = False
        self._routes: dict[SocketName, Route] = {}
        self._routes_of: object = None  # `Host.routes` from which `_routes` was computed

    # Names.

    async def bind(self, address: object) -> None:
        self._check()
        await trio.lowlevel.checkpoint()
        found = await self._resolve(address, local=True)
        self._bind(_plain(found[0]), _port(found[1]))

    def _bind(self, address: str, port: int) -> None:
        """Bind to an address and a port; 0 means any free port. Raises OSError."""
        if self.port:
            raise error(errno.EINVAL)
        local = None if address in ("0.0.0.0", "::") else address
        if local is not None and not is_group(local) and not self.host.has(local):
            raise error(errno.EADDRNOTAVAIL)
        if address == "0.0.0.0" and self._is_six:
            local = address
        self._local, self.port = local, port or self._stack.free_port()
        try:
            self._stack.enter(self)
        except OSError:
            self._local, self.port = None, 0
            raise
        self.takes_all = local is None

    def families(self) -> list[bool]:
        """Return the IP versions whose packets the socket receives: False for IPv4, True for
        IPv6.
        """
        if not self._is_six:
            return [False]
        if self._local is not None:
            return [":" in self._local]
        return [True] if self._get(stdlib.IPPROTO_IPV6, stdlib.IPV6_V6ONLY) else [False, True]

    @property
    def shares_port(self) -> bool:
        """Whether the option SO_REUSEPORT is set."""
        return bool(self._options.get((stdlib.SOL_SOCKET, stdlib.SO_REUSEPORT)))

    def conflicts(self, other: "UdpSocket") -> bool:
        """Return whether this socket and another one cannot both use the port (Linux:
        udp_lib_lport_inuse).
        """
        mine, theirs = self._local, other._local
        if mine != theirs and None not in (mine, theirs) and "0.0.0.0" not in (mine, theirs):
            return False
        reuse = stdlib.SOL_SOCKET, stdlib.SO_REUSEADDR
        if self._options.get(reuse) and other._options.get(reuse):
            return False
        return not (self.shares_port and other.shares_port)

    def getsockname(self) -> SocketName:
        self._check()
        if self._local is None:
            return ("::", self.port, 0, 0) if self._is_six else ("0.0.0.0", self.port)
        return self._shown((self._local, self.port))

    def getpeername(self) -> SocketName:
        self._check()
        if self.peer is None:
            raise error(errno.ENOTCONN)
        return self._shown(self.peer)

    def _shown(self, address: Addr) -> SocketName:
        """Return an address as the socket module returns it, with IPv4 addresses mapped to IPv6 if
        this is an IPv6 socket.
        """
        if not self._is_six:
            return address
        ip, port = address
        return (ip if ":" in ip else _MAPPED + ip, port, 0, 0)

    async def connect(self, address: object) -> None:
        self._check()
        await trio.lowlevel.checkpoint()
        found = await self._resolve(address, local=False)
        to, source, *_ = self._route(found)
        if not self.port:
            self._bind("::" if self._is_six else "0.0.0.0", 0)
        self._stack.leave(self)
        if self._local is None:
            self._local = source[0]
        self.peer, self.takes_all = to, False
        self._stack.enter(self)

    # Options.

    def setsockopt(
        self, level: int, option: int, value: OptionValue, length: int | None = None
    ) -> None:
        self._check()
        if level in (stdlib.IPPROTO_IP, stdlib.IPPROTO_IPV6):
            if self._stack.memberships.option(self, level, option, value):
                return
            if option == stdlib.IPV6_V6ONLY and level == stdlib.IPPROTO_IPV6 and self.port:
                raise error(errno.EINVAL)
            self._routes.clear()
        super().setsockopt(level, option, value, length)
        if (level, option) == (stdlib.SOL_SOCKET, stdlib.SO_RCVBUF):
            self._limit = self._options[level, option]

    def _take_error(self) -> int:
        pending, self._error = self._error, 0
        return pending

    def _raise_pending(self) -> None:
        """Raise the pending error, if there is one, and clear it."""
        if self._error:
            raise error(self._take_error())

    # Sending.

    async def sendto(self, data: "ReadableBuffer", *args: Any) -> int:
        address = args[-1]
        if self._is_turn():
            await trio.lowlevel.checkpoint()
        if address not in self._routes and not self._is_numeric(address):
            self._check()
            address = await self._resolve(address, local=False)
        return self.send_datagram(bytes(data), address)

    def _is_numeric(self, address: object) -> bool:
        """Return whether an address is numeric and of this socket's family, so that resolving it
        would not change it.
        """
        if type(address) is tuple and type(address[1]) is int:
            try:
                stdlib.inet_pton(self._family, address[0])
            except (OSError, TypeError):
                return False
            return len(address) == 2 or self._is_six
        return False

    async def send(self, data: "ReadableBuffer", flags: int = 0) -> int:
        await self._turn()
        self._check()
        if self.peer is None:
            raise error(errno.EDESTADDRREQ)
        return self.send_datagram(bytes(data), self.peer)

    async def sendmsg(
        self,
        buffers: "Iterable[ReadableBuffer]",
        ancdata: Iterable[object] = (),
        flags: int = 0,
        address: object = None,
    ) -> int:
        if any(True for _ in ancdata):
            raise NotSimulated(f"{self.host.name}: ancillary data of datagrams is not simulated")
        data = b"".join(map(bytes, buffers))
        return await (self.send(data) if address is None else self.sendto(data, address))

    def send_datagram(self, data: bytes, to: SocketName) -> int:
        """Send a datagram to a numeric address, without a checkpoint. Return its size in bytes.
        Raises OSError.
        """
        if self._closed:
            raise error(errno.EBADF)
        if self._error:
            self._raise_pending()
        host = self.host
        if self._routes_of is not host.routes:
            self._routes_of = host.routes
            self._routes.clear()
        route = self._routes.get(to)
        if route is None:
            if not to[1]:
                raise error(errno.EINVAL)
            if not self.port:
                self._bind("::" if self._is_six else "0.0.0.0", 0)
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            route = self._routes[to] = self._route(to)
        destination, source, via, overhead, means_many = route
        size = len(data)
        if size > defaults.DATAGRAM_BYTES or self._done_writing:
            raise error(errno.EPIPE if self._done_writing else errno.EMSGSIZE)
        packet = Packet(UDP, source, destination, size + overhead, data, host.name, cause(host))
        if self._options:
            self._apply(packet)
        if means_many:
            self._stack.memberships.send(self, packet, via)
        else:
            host.send(packet, via)
        return size

    def _route(self, to: SocketName) -> Route:
        """Compute the route to a numeric address. Raises OSError if there is none."""
        address, port = to[0], _port(to[1])
        six = ":" in address
        if six:
            address = _plain(address)
            six = ":" in address
        if address in ("0.0.0.0", "::"):
            address = "::1" if six else "127.0.0.1"
        means_many = is_group(address)
        via: Attachment | None
        if means_many:
            via, source = self._stack.memberships.source(self, address)
        else:
            via, source = self.host.source(address)
        if self._local is not None and not is_group(self._local):
            if (":" in self._local) != six:
                raise error(errno.ENETUNREACH if six else errno.EINVAL)
            if via is not None and self._local in ("127.0.0.1", "::1"):
                raise error(errno.EINVAL)
            source = self._local
        overhead = _OVERHEAD6 if six else _OVERHEAD4
        return (address, port), (source, self.port), via, overhead, means_many

    def _apply(self, packet: Packet) -> None:
        """Apply the options that affect a packet on the wire. Raises OSError (EMSGSIZE) if the
        packet is larger than the path MTU and must not be fragmented.
        """
        six = ":" in packet.dst[0]
        level = stdlib.IPPROTO_IPV6 if six else stdlib.IPPROTO_IP
        ttl = self._options.get((level, stdlib.IPV6_UNICAST_HOPS if six else stdlib.IP_TTL))
        if ttl:
            packet.ttl = ttl
        whole = self._options.get((level, MTU_DISCOVER6 if six else MTU_DISCOVER))
        if whole == _NEVER_FRAGMENT and packet.size > self._stack.icmp.mtu(packet.dst[0]):
            raise error(errno.EMSGSIZE)

    def fail(self, icmp: Icmp) -> None:
        """Process an ICMP error for a datagram to the connected peer: raise it in the task that
        waits, or in the next call.
        """
        number = UDP_ERRORS[":" in icmp.dst[0]].get(icmp.kind, 0)
        if not number:
            return
        if self._readers:
            self._readers.fail(error(number))
        else:
            self._error = number

    # Receiving.

    def score(self, packet: Packet) -> int:
        """Return how well the socket matches a datagram (Linux: compute_score). A higher score is
        better; a negative score means that the socket does not match.
        """
        score = self.score_local(packet.dst[0])
        if self.peer is None or score < 0:
            return score
        return score + 4 if packet.src == self.peer else -1

    def score_local(self, address: str) -> int:
        """Return how well the socket's bound address matches a destination address.

        The score is 3 for the same address, and -1 for another one. For a socket bound to every
        address, it is 1 if the destination has the socket's family, otherwise 0.
        """
        local = self._local
        if local is None or local == "0.0.0.0":
            return 1 if self._is_six == (":" in address) else 0
        return 3 if local == address else -1

    def take(self, packet: Packet) -> None:
        """Queue a datagram that has arrived, or pass it to the waiting task. Drop it if the buffer
        is full.
        """
        assert isinstance(packet.data, bytes)
        item = packet.data, packet.src
        if self._readers.give(item):
            return
        cost = len(packet.data) + defaults.DATAGRAM_OVERHEAD_BYTES
        if self._queued + cost > self._limit:
            self.host.network.drop("buffer", self.host.name, packet)
            return
        self._queued += cost
        self.queue.append(item)

    async def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, SocketName]:
        if flags or self._is_six or self._closed or self._error or bufsize < 0:
            return (await self._receive(bufsize, flags))[:2]
        if self.queue:  # the common case of `_receive`, inlined for speed
            if self._is_turn():
                await trio.lowlevel.checkpoint()
            item = self._next(0)
        else:
            item = await self._readers.wait()
        return item if len(item[0]) <= bufsize else (item[0][:bufsize], item[1])

    async def _receive(self, size: int, flags: int) -> tuple[bytes, SocketName, int]:
        """Wait for a datagram. Return (data, source, flags); the flag MSG_TRUNC means that the data
        was cut to `size` bytes.
        """
        self._before_receiving(size, flags)
        if self.queue:
            await self._turn()
        data, source = self._next(flags) if self.queue else await self._wait(flags)
        shown = self._shown(source) if self._is_six else source
        if len(data) <= size:
            return data, shown, 0
        return data[:size], shown, stdlib.MSG_TRUNC

    def _before_receiving(self, size: int, flags: int) -> None:
        """Check the arguments of a receive, and raise the pending error if there is one."""
        self._check()
        if size < 0:
            raise ValueError("negative buffersize in recvfrom")
        if flags & ~_FLAGS:
            raise error(errno.EOPNOTSUPP)
        self._raise_pending()

    def _next(self, flags: int) -> Item:
        """Return the first datagram of the queue. Remove it, unless `flags` contain MSG_PEEK."""
        if flags & stdlib.MSG_PEEK:
            return self.queue[0]
        item = self.queue.popleft()
        self._queued -= len(item[0]) + defaults.DATAGRAM_OVERHEAD_BYTES
        return item

    async def _wait(self, flags: int) -> Item:
        """Wait for a datagram and return it. If `flags` contain MSG_PEEK, also put it into the
        queue.
        """
        item = await self._readers.wait()
        if flags & stdlib.MSG_PEEK:
            self._queued += len(item[0]) + defaults.DATAGRAM_OVERHEAD_BYTES
            self.queue.appendleft(item)
        return item

    async def recv(self, buflen: int, flags: int = 0) -> bytes:
        return (await self._receive(buflen, flags))[0]

    async def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        return (await self.recvfrom_into(buffer, nbytes, flags))[0]

    async def recvfrom_into(
        self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0
    ) -> tuple[int, SocketName]:
        view = memoryview(buffer).cast("B")
        data, source, _ = await self._receive(nbytes or len(view), flags)
        view[: len(data)] = data
        return len(data), source

    async def recvmsg(
        self, bufsize: int, ancbufsize: int = 0, flags: int = 0
    ) -> tuple[bytes, Ancillary, int, SocketName]:
        data, source, cut = await self._receive(bufsize, flags)
        return data, [], cut, source

    async def recvmsg_into(
        self, buffers: "Iterable[WriteableBuffer]", ancbufsize: int = 0, flags: int = 0
    ) -> tuple[int, Ancillary, int, SocketName]:
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        data, source, cut = await self._receive(sum(map(len, views)), flags)
        scatter(data, views)
        return len(data), [], cut, source

    async def receive_some(self) -> list[Item]:
        """Return all datagrams that have arrived, each with its source. Wait if there are none.

        A pending error is discarded, because an unconnected socket would not report it. Raises
        ClosedResourceError if the socket is closed.
        """
        if self._closed:
            raise trio.ClosedResourceError("this socket is closed")
        self._error = 0
        if self.queue:
            await self._turn()
            found = list(self.queue)
            self.queue.clear()
            self._queued = 0
        else:
            found = [await self._readers.wait()]
        return found

    def is_readable(self) -> bool:
        """Return whether a receive would return at once."""
        return bool(self.queue or self._error)

    async def wait_writable(self) -> None:
        self._check()
        await trio.lowlevel.checkpoint()

    # The end, and operations that datagram sockets do not support.

    def shutdown(self, flag: int) -> None:
        self._check()
        if self.peer is None:
            raise error(errno.ENOTCONN)
        if flag in (stdlib.SHUT_WR, stdlib.SHUT_RDWR):
            self._done_writing = True

    def listen(self, backlog: int = 0) -> None:
        self._check()
        raise error(errno.EOPNOTSUPP)

    async def accept(self) -> NoReturn:
        self._check()
        await trio.lowlevel.checkpoint()
        raise error(errno.EOPNOTSUPP)

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        self._stack.leave(self)
        self._stack.memberships.closed(self)
        self._readers.fail(trio.ClosedResourceError("another task closed this socket"))


def _plain(address: str) -> str:
    """Return an address as packets contain it: an IPv4-mapped address as IPv4, and an IPv6 address
    in canonical text.
    """
    if ":" not in address:
        return address
    packed = stdlib.inet_pton(stdlib.AF_INET6, address.split("%")[0])
    if packed[:12] == bytes(10) + b"\xff\xff":
        return stdlib.inet_ntop(stdlib.AF_INET, packed[12:])
    return stdlib.inet_ntop(stdlib.AF_INET6, packed)


def _port(number: int) -> int:
    """Return a port number. Raises OverflowError if it is out of range."""
    if not 0 <= number <= 65535:
        raise OverflowError("port must be 0-65535.")
    return number
