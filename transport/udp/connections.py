"""All QUIC connections of a UDP port: finds the connection that a datagram belongs to, and runs the
timers of all connections.

This module does not wait for I/O. `receive` processes datagrams, and the sockets' `send`, which
never blocks, sends them. The owner must call `timeout` once the time `due` has passed.
"""

import errno
import heapq
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import Final

import trio
from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    HandshakeCompleted,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)
from aioquic.quic.packet import QuicErrorCode, QuicFrameType

from ..guard import Guard
from ..host.datagrams import Datagram, Datagrams, Place
from ..host.seam import Host
from ..limits import CrowdEntry, HalfOpen
from ..rates import ByteBudget
from .certificate import QuicCertificate
from .connection import UNREADABLE, UdpConnection, configuration
from .defaults import UdpLimits
from .gate import FirstPacketGate, Welcome, destination
from .quic import QuicByteStream

_EARLY_S: Final = 1e-9  # a timer this close to its time is due, because float sums are inexact
_LEAST_S: Final = 0.0005  # shortest timer, so that no state of aioquic can cause a busy loop


class _PortConnection:
    """A connection, and what the port knows about it."""

    def __init__(
        self, connection: UdpConnection, deadline: float, half_open: CrowdEntry | None
    ) -> None:
        self.connection = connection
        self.deadline = deadline  # when the handshake and the authentication must be done
        # Entry in the counter of half-open connections; None if dialled or authenticated.
        self.half_open = half_open
        self.byte_stream: QuicByteStream | None = None
        self.opened = trio.Event()  # set when the handshake of a dial is done or has failed
        self.cids: dict[bytes, None] = {}  # connection ids by which the peer addresses it
        self.due = inf  # when its timer is due
        self.armed = inf  # time of its valid entry in the heap; other entries are ignored
        self.last_words: bytes = b""  # last packet that was sent after the end
        self.asked = 0  # datagrams that the peer sent after the end
        self.forgotten = False
        self.kept = 0  # unread bytes when they were last counted


class Connections:
    """The QUIC connections of one UDP port."""

    def __init__(
        self,
        host: Host,
        limits: UdpLimits,
        half_open: HalfOpen,
        on_byte_stream: Callable[[QuicByteStream], None],
        on_due: Callable[[float], None],
        guard: Guard,
    ) -> None:
        """`half_open` counts accepted connections that are not authenticated yet. `on_byte_stream`
        is called with the byte stream of each accepted connection. `on_due` is called with a time
        whenever `timeout` must be called earlier, or need not be called until later, than announced
        before."""
        self.dropped = 0
        """Datagrams that belonged to no connection."""
        self.gate = FirstPacketGate(host, half_open, limits)
        self._host = host
        self._limits = limits
        self.growth = ByteBudget(limits.extra_bytes)
        """Bytes by which the windows of all connections have grown."""
        # Upper bound of all unread bytes: what was read since the last count is not subtracted.
        self._kept = 0
        self._on_byte_stream = on_byte_stream
        self._on_due = on_due
        self._guard = guard
        self._client = configuration(None, limits)
        self._server = configuration(QuicCertificate.generate(host), limits)
        self._by_cid: dict[bytes, _PortConnection] = {}
        self._entries: dict[_PortConnection, None] = {}
        self._heap: list[tuple[float, int, _PortConnection]] = []
        self._number = 0

    def __len__(self) -> int:
        """Return the number of connections, including closing ones."""
        return len(self._entries)

    @property
    def due(self) -> float:
        """Time at which to call `timeout` next; infinite if no timer is set."""
        return self._heap[0][0] if self._heap else inf

    # Datagrams.

    def receive(self, batch: Iterable[Datagram], socket: Datagrams) -> None:
        """Process all datagrams that a socket has received at one wake-up, then let each of their
        connections reply once."""
        now = self._host.now()
        touched: dict[_PortConnection, None] = {}
        for data, place in batch:
            entry = self._by_cid.get(destination(data))
            if entry is None:
                with self._guard.around(place):
                    entry = self._begin(data, place, socket, now)
                if entry is None:
                    continue
            if entry.connection.ended:
                self._repeat(entry, place, socket)
                continue
            with self._guard.around(place, partial(self._forget, entry)):
                entry.connection.receive(data, place, socket, now)
                touched[entry] = None
        for entry in touched:
            self._turn(entry, now)
            if entry.byte_stream is not None and not entry.forgotten:
                self._bound(entry, entry.byte_stream.kept)

    def _guarding(self, entry: _PortConnection) -> AbstractContextManager[None]:
        """Return a guard that ends only this connection if the guarded block hits a bug."""
        return self._guard.around(entry.connection.via.place, partial(self._forget, entry))

    def _bound(self, entry: _PortConnection, kept: int) -> None:
        """Enforce the limit on the unread bytes of all connections: if it is exceeded, close the
        connection with the most. `kept` is the number of unread bytes of this connection."""
        self._count(entry, kept)
        if self._kept <= self._limits.total_bytes:
            return
        for each in self._entries:
            self._count(each, each.byte_stream.kept if each.byte_stream is not None else 0)
        if self._kept > self._limits.total_bytes:
            most = max(self._entries, key=lambda each: each.kept)
            if most.byte_stream is not None:
                self._count(most, 0)
                most.byte_stream.close()

    def _count(self, entry: _PortConnection, kept: int) -> None:
        self._kept += kept - entry.kept
        entry.kept = kept

    def _begin(
        self, data: bytes, place: Place, socket: Datagrams, now: float
    ) -> _PortConnection | None:
        """Accept a client's first packet and return its connection. Return None if the packet is
        not admitted."""
        full = len(self._entries) >= self._limits.connections
        found = None if full else self.gate.admit(data, place, now)
        if not isinstance(found, Welcome):
            self.dropped += 1
            if found is not None:
                socket.send(found, place)
            return None
        try:
            connection = UdpConnection(
                self._server,
                self._limits,
                self.growth,
                original_destination_connection_id=found.original,
                retry_source_connection_id=found.retried,
            )
        except BaseException:
            self.gate.half_open.leave(found.entry)
            raise
        entry = self._add(connection, now, found.entry)
        self._name(entry, destination(data))
        return entry

    def _repeat(self, entry: _PortConnection, place: Place, socket: Datagrams) -> None:
        """Send the last packet of an ended connection again, because the peer has missed it.

        Replies become rarer and rarer, and never have more bytes than the peer sent (RFC 9000,
        section 10.2.1).
        """
        entry.asked += 1
        if entry.last_words and entry.asked & entry.asked - 1 == 0 and entry.connection.began:
            socket.send(entry.last_words, place)

    # Connections.

    def dial(self, place: Place, socket: Datagrams) -> tuple[QuicByteStream, trio.Event]:
        """Begin a connection and return (byte stream, event). The event is set once the handshake
        is done or has failed.

        Raises OSError if there are too many connections.
        """
        if len(self._entries) >= self._limits.connections:
            raise OSError(errno.EMFILE, "too many QUIC connections")
        now = self._host.now()
        connection = UdpConnection(self._client, self._limits, self.growth)
        entry = self._add(connection, now, None)
        entry.byte_stream = QuicByteStream(connection, lambda: self._turn(entry, self._host.now()))
        connection.begin(place, socket, now)
        self._turn(entry, now)
        return entry.byte_stream, entry.opened

    def _add(
        self, connection: UdpConnection, now: float, half_open: CrowdEntry | None
    ) -> _PortConnection:
        entry = _PortConnection(connection, now + self._limits.handshake_s, half_open)
        self._entries[entry] = None
        for cid in connection.cids:
            self._name(entry, cid)
        return entry

    def _name(self, entry: _PortConnection, cid: bytes) -> None:
        entry.cids[cid] = None
        self._by_cid[cid] = entry

    def _forget(self, entry: _PortConnection) -> None:
        if entry.forgotten:
            return
        entry.forgotten = True
        del self._entries[entry]
        for cid in entry.cids:
            if self._by_cid.get(cid) is entry:
                del self._by_cid[cid]
        entry.connection.window.close()
        self._count(entry, 0)
        self._leave_gate(entry)
        if entry.byte_stream is not None:
            entry.byte_stream.lose()
        entry.connection.release()
        entry.opened.set()

    def _leave_gate(self, entry: _PortConnection) -> None:
        if entry.half_open is not None:
            self.gate.half_open.leave(entry.half_open)
            entry.half_open = None

    def close(self) -> None:
        """Close all connections and notify their peers."""
        for entry in list(self._entries):
            if entry.byte_stream is not None:
                entry.byte_stream.close()
            self._end(entry, QuicErrorCode.NO_ERROR)
            self._forget(entry)
        self._heap.clear()

    # Timers and events.

    def timeout(self) -> None:
        """Run the timers that are due."""
        now = self._host.now()
        heap = self._heap
        while heap and heap[0][0] <= now + _EARLY_S:
            when, _, entry = heapq.heappop(heap)
            if entry.forgotten or when != entry.armed:
                continue
            entry.armed = inf
            with self._guarding(entry):
                self._expire(entry, now)
        self._prune()

    def _expire(self, entry: _PortConnection, now: float) -> None:
        if entry.due > now + _EARLY_S:
            self._arm(entry)
        elif now + _EARLY_S >= entry.deadline:
            self._end(entry, QuicErrorCode.CONNECTION_REFUSED)
            self._forget(entry)
        else:
            # The time is slightly later than the timer's. At the exact time, aioquic would make an
            # acknowledgement wait for the pacer, and set the same timer again.
            then = max(now, entry.due) + _EARLY_S
            entry.connection.expire(then)
            self._turn(entry, then)

    def _end(self, entry: _PortConnection, code: QuicErrorCode) -> None:
        entry.connection.close(code, QuicFrameType.PADDING)
        self._transmit(entry, self._host.now())

    def _turn(self, entry: _PortConnection, now: float) -> None:
        """Process the events of a connection, send its datagrams and set its timer."""
        if not entry.forgotten:
            with self._guarding(entry):
                self._take_turn(entry, now)

    def _take_turn(self, entry: _PortConnection, now: float) -> None:
        self._hear(entry)
        self._transmit(entry, now)
        self._hear(entry)  # sending can create further events
        if entry.forgotten:
            return
        if entry.byte_stream is not None and not entry.connection.ended:
            entry.byte_stream.sent()
        elif entry.connection.ended:
            self._leave_gate(entry)
            if entry.byte_stream is not None:
                entry.byte_stream.lose()
            entry.opened.set()
        elif (
            entry.half_open is not None and not entry.connection.began
        ):  # its first packet was not authentic
            self._forget(entry)
            return
        timer = entry.connection.get_timer()
        entry.due = min(inf if timer is None else max(timer, now + _LEAST_S), entry.deadline)
        if entry.due < entry.armed:
            self._arm(entry)
        elif self._heap and self._heap[0][2] is entry:
            before = self.due
            self._prune()
            if self.due > before:
                self._on_due(self.due)

    def _prune(self) -> None:
        """Remove or postpone the earliest entries of the heap as long as their timers are not due
        then.

        Most timers are for packets that might be lost. Their acknowledgement moves the timer to a
        later time, and to wake up for the earlier one would cost more than to move the deadline.
        """
        heap = self._heap
        while heap:
            when, number, entry = heap[0]
            if entry.forgotten or when != entry.armed:
                heapq.heappop(heap)
            elif entry.due > when:
                heapq.heappop(heap)
                entry.armed = entry.due
                if entry.due < inf:
                    heapq.heappush(heap, (entry.due, number, entry))
            else:
                break

    def _transmit(self, entry: _PortConnection, now: float) -> None:
        ended = entry.connection.ended
        try:
            datagrams = entry.connection.transmit(now)
        except UNREADABLE as error:
            entry.connection.fault = error
            self._forget(entry)
            return
        for data, (place, socket) in datagrams:
            socket.send(data, place)
        if ended and datagrams:
            entry.last_words = datagrams[-1][0]

    def _arm(self, entry: _PortConnection) -> None:
        entry.armed = entry.due
        self._number += 1
        earliest = self.due
        heapq.heappush(self._heap, (entry.due, self._number, entry))
        if entry.due < earliest:
            self._on_due(entry.due)

    def _hear(self, entry: _PortConnection) -> None:
        connection = entry.connection
        while (event := connection.next_event()) is not None:
            if type(event) is StreamDataReceived:
                self._take(entry, event)
            elif isinstance(event, ConnectionTerminated):
                self._forget(entry)
            elif isinstance(event, ConnectionIdIssued):
                self._name(entry, event.connection_id)
            elif isinstance(event, ConnectionIdRetired):
                entry.cids.pop(event.connection_id, None)
                self._by_cid.pop(event.connection_id, None)
            elif isinstance(event, HandshakeCompleted):
                if entry.byte_stream is not None:
                    entry.deadline = inf
                    entry.opened.set()
            elif isinstance(event, StreamReset | StopSendingReceived):
                connection.close(QuicErrorCode.APPLICATION_ERROR)

    def _take(self, entry: _PortConnection, event: StreamDataReceived) -> None:
        if entry.byte_stream is None:
            entry.byte_stream = QuicByteStream(
                entry.connection,
                lambda: self._turn(entry, self._host.now()),
                lambda: self._trust(entry),
            )
            entry.byte_stream.take(event)
            self._on_byte_stream(entry.byte_stream)
        else:
            entry.byte_stream.take(event)

    def _trust(self, entry: _PortConnection) -> None:
        entry.deadline = inf
        self._leave_gate(entry)


def unreachable(place: Place) -> OSError:
    """Return the error for a dial that was refused or not answered."""
    return OSError(errno.ECONNREFUSED, f"no QUIC at {place[0]} port {place[1]}")
