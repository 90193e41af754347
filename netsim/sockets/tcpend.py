"""TCP socket as the simulated stack sees it: it handles segments, timers and options."""

import errno
import socket as stdlib
from collections import deque
from typing import ClassVar, Final

from ..host import error
from ..network.network import Attachment
from ..network.packet import Addr, Icmp
from .base import COMMON, Option, OptionValue, SocketName, StreamSocket, Waiters
from .tcp.connection import (
    CLOSED,
    ESTABLISHED,
    SYN_RECEIVED,
    SYN_SENT,
    TIME_WAIT,
    TcpConnection,
)
from .tcp.defaults import (
    INFINITY,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S,
    KEEPALIVE_PROBES,
    RECEIVE_BUFFER_BYTES,
    SEND_BUFFER_BYTES,
)
from .tcp.ports import PortClaim
from .tcp.segment import TcpSegment
from .tcp.timewait import TimeWait
from .tcpstack import Key, TcpStack

MAPPED: Final = "::ffff:"
"""Prefix that an IPv6 socket puts before an IPv4 address."""

# Phases of a socket. Another `connect` succeeds once in phase DIALLED, and fails in CONNECTED.
NEW: Final = 0
DIALLING: Final = 1
FAILED: Final = 2
DIALLED: Final = 3
CONNECTED: Final = 4


class Backlog:
    """Connections of a listener that wait to be accepted."""

    __slots__ = ("limit", "queue")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.queue: deque[TcpEnd] = deque()

    @property
    def full(self) -> bool:
        """Whether the queue is full. As in Linux, it holds one connection more than `listen`
        requested.
        """
        return len(self.queue) > self.limit


class TcpEnd(StreamSocket):
    """TCP socket with the methods that the simulated stack calls.

    The subclass `TcpSocket` adds the methods that a program calls.
    """

    OPTIONS: ClassVar[dict[Option, int]] = {
        **COMMON,
        (stdlib.SOL_SOCKET, stdlib.SO_RCVBUF): RECEIVE_BUFFER_BYTES,
        (stdlib.SOL_SOCKET, stdlib.SO_SNDBUF): SEND_BUFFER_BYTES,
        (stdlib.SOL_SOCKET, stdlib.SO_LINGER): 0,
        (stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY): 0,
        (stdlib.IPPROTO_TCP, stdlib.TCP_NOTSENT_LOWAT): 0,
        (stdlib.IPPROTO_TCP, stdlib.TCP_QUICKACK): 1,
        (stdlib.IPPROTO_TCP, stdlib.TCP_KEEPIDLE): KEEPALIVE_IDLE_S,
        (stdlib.IPPROTO_TCP, stdlib.TCP_KEEPINTVL): KEEPALIVE_INTERVAL_S,
        (stdlib.IPPROTO_TCP, stdlib.TCP_KEEPCNT): KEEPALIVE_PROBES,
        (stdlib.IPPROTO_IP, stdlib.IP_TOS): 0,
        (stdlib.IPPROTO_IP, stdlib.IP_TTL): 64,
        (stdlib.IPPROTO_IP, getattr(stdlib, "IP_BIND_ADDRESS_NO_PORT", 24)): 0,
        (stdlib.IPPROTO_IPV6, stdlib.IPV6_V6ONLY): 0,
    }

    def __init__(self, stack: TcpStack, family: int) -> None:
        super().__init__(stack.host, family, stdlib.SOCK_STREAM, stdlib.IPPROTO_TCP)
        self.stack = stack
        self.binding = PortClaim("::" if family == stdlib.AF_INET6 else "0.0.0.0")
        self.connection: TcpConnection | None = None
        self.local: Addr = (self.binding.address, 0)
        self.remote: Addr | None = None
        self.backlog: Backlog | None = None
        self.parent: TcpEnd | None = (
            None  # listener of an incoming connection until its handshake ends
        )
        self.armed = INFINITY  # time of the earliest event that is scheduled to call `_tick`
        self.key: Key = self.local, self.local
        self._via: Attachment | None = None
        self._phase = NEW
        self._shut_write = False
        self._linger = bytes(8)
        self._hard = False  # whether `close` resets the connection (SO_LINGER of 0 seconds)
        self._readers: Waiters[None] = Waiters()
        self._writers: Waiters[None] = Waiters()

    def _shown(self, address: Addr) -> SocketName:
        """Return an address as the socket module returns it, with IPv4 addresses mapped to IPv6 if
        this is an IPv6 socket.
        """
        ip, port = address
        if self._family != stdlib.AF_INET6:
            return ip, port
        return (ip if ":" in ip else MAPPED + ip), port, 0, 0

    def _join(self, key: Key) -> None:
        """Create the connection between two addresses, and register it with the stack."""
        self.key = key
        self.local, self.remote = key
        stack, ip = self.stack, key[1][0]
        self._via = self.host.source(ip)[0]
        limit = self._options.get((stdlib.SOL_SOCKET, stdlib.SO_RCVBUF), 0) // 2
        now = self.stack.events.now
        self.connection = TcpConnection(stack.isn(), stack.offer(ip), now, limit)
        for (level, option), value in self._options.items():
            self._apply(level, option, value)
        stack.connections[key] = self

    # Called by the stack.

    def take(self, segment: TcpSegment) -> None:
        """Process a segment that has arrived."""
        connection = self.connection
        assert connection is not None
        parent = self.parent
        if parent is not None and not segment.rst and connection.state == SYN_RECEIVED:
            if parent.backlog is None:
                self._hard = True
                self.close()
                return
            if parent.backlog.full:
                return  # treated as lost: the SYN with ACK is sent again
        connection.receive(segment, self.stack.events.now)
        self._after()

    def _tick(self, _: None) -> None:
        """Handle a timer event: run the connection's timers that are due, and schedule the next
        event.
        """
        events = self.stack.events
        if events.now < self.armed:
            return  # an event for an earlier time has replaced this one
        self.armed = INFINITY
        connection = self.connection
        if connection is None or not self.stack.live:
            return
        due = connection.due()
        if due <= events.now:
            connection.tick(events.now)
            self._after()
        elif due < INFINITY:  # the deadline was postponed
            self.armed = connection.wake = due
            events.at(due, self._tick)
        else:
            connection.wake = due

    def failed(self, message: Icmp) -> None:
        """Process an ICMP error. It reduces the MSS ("too-big") or ends a connection attempt; an
        established connection ignores all other errors (RFC 5461).
        """
        connection = self.connection
        if connection is None:
            return
        if message.kind == "too-big":
            headers = 72 if ":" in message.dst[0] else 52
            connection.path_takes(message.mtu - headers, self.stack.events.now)
        elif connection.state == SYN_SENT:
            refused = message.kind in ("port", "protocol")
            connection.fail(errno.ECONNREFUSED if refused else errno.EHOSTUNREACH)
        self._after()

    def _after(self) -> None:
        """Update the socket after any call of the connection: send the connection's segments,
        schedule its timer, handle a change of its state, and wake waiting tasks.
        """
        connection = self.connection
        assert connection is not None
        if connection.out:
            self.stack.transmit(connection.out, self.key, self._via)
            connection.out.clear()
        if connection.wake < self.armed:
            self.armed = connection.wake
            self.stack.events.at(self.armed, self._tick)
        state = connection.state
        if state in (CLOSED, TIME_WAIT):
            self._over(state)
        elif self.parent is not None and state >= ESTABLISHED:
            self._is_up()
        elif self._phase == DIALLING and state >= ESTABLISHED:
            self._phase = DIALLED
            self._writers.wake()
        if self._readers.task is not None and connection.readable:
            self._readers.wake()
        if self._writers.task is not None and self._phase != DIALLING and self._may_write():
            self._writers.wake()

    def _over(self, state: int) -> None:
        """Remove an ended connection from the stack. The socket itself may still be open."""
        connection, stack = self.connection, self.stack
        assert connection is not None
        if stack.connections.get(self.key) is self:
            del stack.connections[self.key]
            if state == TIME_WAIT:
                claim = self.binding.inherit(self.binding.address)
                stack.ports.add(claim, claim.port)
                rest = TimeWait(connection, self.stack.events.now)
                stack.remember(self.key, claim, rest)
            if self._closed or self.parent is not None:
                stack.ports.release(self.binding)
        if self._phase == DIALLING:
            self._phase = FAILED
        connection.state = CLOSED
        self._writers.wake()

    def _is_up(self) -> None:
        """Put an incoming connection whose handshake is complete into the backlog of its
        listener.
        """
        parent, self.parent = self.parent, None
        if parent is None or parent.backlog is None:
            return
        parent.backlog.queue.append(self)
        parent._readers.wake()

    def _may_write(self) -> bool:
        """Return whether a write would return at once."""
        connection = self.connection
        if connection is None or connection.error or connection.fin_wanted:
            return True
        return connection.may_write()

    def _take_error(self) -> int:
        connection = self.connection
        if connection is None:
            return 0
        number, connection.error = connection.error, 0
        return number

    # Options.

    def setsockopt(
        self, level: int, option: int, value: OptionValue, length: int | None = None
    ) -> None:
        self._options = dict(self._options)  # a listener and its connections may share the dict
        super().setsockopt(level, option, value, length)
        if (level, option) == (stdlib.SOL_SOCKET, stdlib.SO_LINGER):
            if value is None or isinstance(value, int):
                raise error(errno.EINVAL)
            self._linger = bytes(value)[:8]  # `struct linger`: on or off, seconds
            on, seconds = (int.from_bytes(self._linger[i : i + 4], "little") for i in (0, 4))
            self._hard = bool(on) and not seconds
            return
        self._apply(level, option, self._options[level, option])
        if self.connection is not None and self.connection.out:
            self._after()

    def _structure(self, level: int, option: int) -> bytes | None:
        linger = (level, option) == (stdlib.SOL_SOCKET, stdlib.SO_LINGER)
        return self._linger if linger else super()._structure(level, option)

    def _apply(self, level: int, option: int, value: int) -> None:
        """Apply the value of an option to the binding or to the connection."""
        binding, connection = self.binding, self.connection
        if level == stdlib.SOL_SOCKET:
            if option == stdlib.SO_REUSEADDR:
                binding.reuse_address = bool(value)
            elif option == stdlib.SO_REUSEPORT:
                binding.reuse_port = bool(value)
            elif connection is not None:
                self._apply_to_connection(option, value)
        elif level == stdlib.IPPROTO_IPV6 and option == stdlib.IPV6_V6ONLY:
            binding.only6 = bool(value)
        elif level == stdlib.IPPROTO_TCP and connection is not None:
            if option == stdlib.TCP_NODELAY:
                connection.no_delay = bool(value)
            elif option == stdlib.TCP_NOTSENT_LOWAT:
                connection.unsent_limit = value
            elif option == stdlib.TCP_QUICKACK:
                if self.parent is None:  # a listener's connections do not inherit it
                    connection.set_quick(bool(value), self.stack.events.now)
            else:
                self._apply_keepalive(connection)

    def _apply_to_connection(self, option: int, value: int) -> None:
        """Apply the value of an option of level SOL_SOCKET to the connection."""
        connection = self.connection
        assert connection is not None
        if option == stdlib.SO_SNDBUF:
            connection.send_limit = value
        elif option == stdlib.SO_RCVBUF:
            connection.inbox.fix(value // 2)
        elif option == stdlib.SO_KEEPALIVE:
            self._apply_keepalive(connection)

    def _apply_keepalive(self, connection: TcpConnection) -> None:
        """Apply the keepalive options to the connection."""
        on = self._get(stdlib.SOL_SOCKET, stdlib.SO_KEEPALIVE)
        idle, interval, probes = (
            self._get(stdlib.IPPROTO_TCP, option)
            for option in (stdlib.TCP_KEEPIDLE, stdlib.TCP_KEEPINTVL, stdlib.TCP_KEEPCNT)
        )
        connection.keep_alive(idle if on else 0, interval, probes, self.stack.events.now)
