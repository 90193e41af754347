"""Switch that forwards real packets between TUN devices, and delays and drops them with the
simulator's pipes.

A packet takes the same steps as in `netsim/network/network.py`: the up pipe of its port, the
latency between ports, and the down pipe of the port with its destination. Time is that of the
machine. A packet is sent when it is due, or later if the machine is slow (see `Counts.late_ms` in
`switch.py`).
"""

import ctypes
import math
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from random import Random
from typing import Final

from ..network.link import REASONS, TOO_BIG, LinkSpec, Pipe, PipeSpec
from ..streams import RandomStreams

TURN: Final = 32
"""Maximum number of packets that are read from one port before other ports get their turn."""
KEPT: Final = 4096
"""Number of latest packets whose lateness is recorded."""
SLACK_NS: Final = 1
"""Timer slack of this process: the kernel may wake it this many nanoseconds late. The default is
50 µs.
"""
IDLE: Final = 3600.0
"""Seconds to wait for a packet if none is due."""
HEADROOM: Final = 64
"""Bytes by which the buffer for a packet exceeds the MTU."""
NAMELESS: Final = bytes((192, 0, 2, 1))
"""Source address of ICMP errors about packets that are too big (192.0.2.1, RFC 5737)."""
PR_SET_TIMERSLACK: Final = 29


class Port:
    """A TUN device and its access link. `size` is the maximum number of bytes of a read."""

    __slots__ = ("descriptor", "down", "dropped", "name", "size", "up")

    def __init__(self, name: str, descriptor: int, link: LinkSpec, streams: RandomStreams) -> None:
        self.name = name
        self.descriptor = descriptor
        self.up = Pipe(link.up, luck(link.up, streams, name, "up"))
        self.down = Pipe(link.down, luck(link.down, streams, name, "down"))
        self.size = max(link.up.mtu, link.down.mtu, 1500) + HEADROOM
        self.dropped: dict[str, int] = {}  # number of dropped packets, by reason

    def change(self, link: LinkSpec, streams: RandomStreams) -> None:
        """Replace the link from now on."""
        self.up.change(link.up, luck(link.up, streams, self.name, "up"))
        self.down.change(link.down, luck(link.down, streams, self.name, "down"))

    def drop(self, why: str) -> None:
        """Count a dropped packet. `why` is the reason."""
        self.dropped[why] = self.dropped.get(why, 0) + 1


def luck(spec: PipeSpec, streams: RandomStreams, name: str, way: str) -> Random | None:
    """Return the random generator of a pipe, named as in the simulator.

    Returns None if nothing about the pipe is random. `way` is "up" or "down".
    """
    return streams.get(name, way) if spec.by_chance else None


class Switch:
    """Forwards packets between ports. `latency` is the seconds from any port to any other."""

    def __init__(self, *, latency: float = 0.0, seed: int = 0) -> None:
        self.ports: dict[str, Port] = {}
        self.forwarded = 0
        """Number of frames that were forwarded."""
        self.streams = RandomStreams(seed)
        self._latency = latency
        self._routes: dict[bytes, Port] = {}  # by destination address
        self._readers: dict[int, Port] = {}  # by descriptor
        # Packets under way: (time when due, serial number, port of the destination, port of the
        # sender, packet, whether it has passed the down pipe).
        self._heap: list[tuple[float, int, Port, Port, bytes, bool]] = []
        self._serial = 0
        self._late = [0.0] * KEPT  # lateness of the latest packets in seconds, as a ring buffer
        self._began = time.monotonic()
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}  # actions by descriptor

    def attach(self, name: str, descriptor: int, addresses: list[str], link: LinkSpec) -> None:
        """Add a port for the TUN device `descriptor`. Packets to `addresses` go to this port."""
        port = Port(name, descriptor, link, self.streams)
        self.ports[name] = port
        self._readers[descriptor] = port
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._routes[socket.inet_pton(family, address)] = port
        self._epoll.register(descriptor, select.EPOLLIN)

    def watch(self, descriptor: int, action: Callable[[], None]) -> None:
        """Call `action` whenever the descriptor is readable."""
        self._watched[descriptor] = action
        self._epoll.register(descriptor, select.EPOLLIN)

    def close(self) -> None:
        """Stop watching. Does not close the descriptors of the devices, which the callers own."""
        self._epoll.close()

    def lateness(self) -> list[float]:
        """Return by how many seconds each of the latest packets was sent too late, in ascending
        order.
        """
        return sorted(self._late[: min(self.forwarded, KEPT)])

    def turn(self, patience: float = IDLE) -> None:
        """Wait until a packet arrives or is due, but at most `patience` seconds.

        Process such packets.
        """
        due = self._heap[0][0] - self._now() if self._heap else IDLE
        # `epoll` itself can only wait for whole milliseconds, `select` for microseconds.
        wait = min(due, patience)
        if wait > 0:
            select.select([self._epoll], [], [], wait)
        for descriptor, _ in self._epoll.poll(0):
            port = self._readers.get(descriptor)
            if port is not None:
                self._read(port)
            else:
                self._watched[descriptor]()
        self._leave()

    def _now(self) -> float:
        """Return the seconds since the switch was created."""
        return time.monotonic() - self._began

    def _read(self, port: Port) -> None:
        """Read up to `TURN` packets from a port."""
        descriptor, size = port.descriptor, port.size
        for turn in range(TURN):
            try:
                packet = os.read(descriptor, size)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:  # the device no longer exists
                self._epoll.unregister(descriptor)
                return
            self._take(port, packet, self._now())
            if turn % 8 == 7:
                self._leave()

    def _take(self, port: Port, packet: bytes, now: float) -> None:
        """Process a packet that a device has sent: schedule it, or drop it."""
        up = port.up
        when = up.offer(now, len(packet))
        if when < 0:
            self._lost(port, when, packet, up.spec.mtu, port)
            return
        to = self._routes.get(packet[16:20] if packet[0] >> 4 == 4 else packet[24:40])
        if to is None:
            port.drop("no-route")
            return
        when += self._latency
        self._serial += 1
        heappush(self._heap, (when, self._serial, to, port, packet, False))
        if up.duplicates and up.again():
            self._serial += 1
            heappush(self._heap, (when, self._serial, to, port, packet, False))

    def _leave(self) -> None:
        """Process the packets that are due. Offer a packet to the down pipe of its destination, or
        send it if it has already passed that pipe.
        """
        heap = self._heap
        now = self._now()
        while heap and heap[0][0] <= now:
            when, _, to, port, packet, passed = heappop(heap)
            if passed or self._passes(when, now, to, port, packet):
                now = self._write(to, packet, when)

    def _passes(self, when: float, now: float, to: Port, port: Port, packet: bytes) -> bool:
        """Offer a packet to the down pipe of port `to`. Return True if it is to be sent at once.

        Otherwise the packet is scheduled for later, or dropped.
        """
        down = to.down
        out = down.offer(when, len(packet))
        if out < 0:
            self._lost(to, out, packet, down.spec.mtu, port)
            return False
        twice = down.duplicates and down.again()
        if out <= now and not twice:
            return True
        for _ in range(1 + twice):
            self._serial += 1
            heappush(self._heap, (out, self._serial, to, port, packet, True))
        return False

    def _write(self, to: Port, packet: bytes, when: float) -> float:
        """Send a packet that was due at `when`. Return the clock's time after the packet has left,
        in seconds."""
        try:
            os.write(to.descriptor, packet)
        except OSError:
            to.drop("device")
            return self._now()
        now = self._now()
        self._late[self.forwarded % KEPT] = now - when
        self.forwarded += 1
        return now

    def _lost(self, where: Port, why: float, packet: bytes, mtu: int, sender: Port) -> None:
        """Count a lost packet, and send an ICMP error to the sender if the packet was too big."""
        where.drop(REASONS[why])
        if why == TOO_BIG and (told := too_big(packet, mtu)):
            with suppress(OSError):
                os.write(sender.descriptor, told)


def too_big(packet: bytes, mtu: int) -> bytes:
    """Return the ICMP message about a packet that is too big for the next link (RFC 1191, section
    4).

    Returns an empty message if none is to be sent: about ICMP packets and about IPv6.
    """
    if packet[0] >> 4 != 4 or packet[9] == socket.IPPROTO_ICMP:
        return b""
    about = packet[: (packet[0] & 15) * 4 + 8]
    icmp = _summed(bytes((3, 4, 0, 0, 0, 0, mtu >> 8, mtu & 255)) + about, 2)
    length = 20 + len(icmp)
    head = bytes((0x45, 0, length >> 8, length & 255, 0, 0, 0, 0, 64, socket.IPPROTO_ICMP, 0, 0))
    return _summed(head + NAMELESS + packet[12:16], 10) + icmp


def _summed(data: bytes, place: int) -> bytes:
    """Return a copy of `data` with its internet checksum (RFC 1071) in the two bytes at `place`,
    which must be zero in `data`.
    """
    padded = data + b"\0" * (len(data) % 2)
    total = sum(padded[i] << 8 | padded[i + 1] for i in range(0, len(padded), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return data[:place] + (~total & 0xFFFF).to_bytes(2) + data[place + 2 :]


def hurry() -> None:
    """Make the kernel wake this process as exactly as possible, with minimal timer slack and, if
    permitted, the highest priority.
    """
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)


def quantile(values: list[float], part: float) -> float:
    """Return the quantile `part` (0 to 1) of the sorted values, or NaN if there are none."""
    return values[min(len(values) - 1, math.floor(part * len(values)))] if values else math.nan
