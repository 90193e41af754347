"""The internet between TUN devices: real packets, delayed and dropped by the simulator's pipes.

A packet's way is that of `netsim/network.py`: the up pipe of its port, the latency between
ports, the down pipe of the port that has its destination. Here time is the machine's own, and
a packet leaves when its time has come: late by what the machine needs (`Counts.late`).
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

from ..link import REASONS, TOO_BIG, LinkSpec, Pipe, PipeSpec
from ..streams import Streams

TURN: Final = 32
"""Packets read of one port before those that are due leave."""
KEPT: Final = 4096
"""Of so many packets the lateness is known."""
SLACK_NS: Final = 1
"""By so much the kernel may oversleep on purpose, instead of 50 µs."""
IDLE: Final = 3600.0
HEADROOM: Final = 64
NAMELESS: Final = bytes((192, 0, 2, 1))
"""The router that complains of a packet too big."""
PR_SET_TIMERSLACK: Final = 29


class Port:
    """One TUN device and its access link."""

    __slots__ = ("descriptor", "down", "dropped", "name", "size", "up")

    def __init__(self, name: str, descriptor: int, link: LinkSpec, streams: Streams) -> None:
        self.name = name
        self.descriptor = descriptor
        self.up = Pipe(link.up, luck(link.up, streams, name, "up"))
        self.down = Pipe(link.down, luck(link.down, streams, name, "down"))
        self.size = max(link.up.mtu, link.down.mtu, 1500) + HEADROOM
        self.dropped: dict[str, int] = {}  # by why

    def change(self, link: LinkSpec, streams: Streams) -> None:
        """Another link from now on."""
        self.up.change(link.up, luck(link.up, streams, self.name, "up"))
        self.down.change(link.down, luck(link.down, streams, self.name, "down"))

    def drop(self, why: str) -> None:
        self.dropped[why] = self.dropped.get(why, 0) + 1


def luck(spec: PipeSpec, streams: Streams, name: str, way: str) -> Random | None:
    """The stream a pipe draws from, named as in the simulator; None where nothing is drawn."""
    return streams.get(name, way) if spec.by_chance else None


class Switch:
    """Forwards between ports. `latency` is seconds from any port to any other."""

    def __init__(self, *, latency: float = 0.0, seed: int = 0) -> None:
        self.ports: dict[str, Port] = {}
        self.forwarded = 0
        self.streams = Streams(seed)
        self._latency = latency
        self._routes: dict[bytes, Port] = {}  # by destination address
        self._readers: dict[int, Port] = {}
        self._heap: list[tuple[float, int, Port, Port, bytes, bool]] = []
        self._serial = 0
        self._late = [0.0] * KEPT
        self._began = time.monotonic()
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}

    def attach(self, name: str, descriptor: int, addresses: list[str], link: LinkSpec) -> None:
        """A device from now on; `addresses` are reached through it."""
        port = Port(name, descriptor, link, self.streams)
        self.ports[name] = port
        self._readers[descriptor] = port
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._routes[socket.inet_pton(family, address)] = port
        self._epoll.register(descriptor, select.EPOLLIN)

    def watch(self, descriptor: int, action: Callable[[], None]) -> None:
        """Call `action` whenever there is something to read."""
        self._watched[descriptor] = action
        self._epoll.register(descriptor, select.EPOLLIN)

    def close(self) -> None:
        """Stop watching; the devices are their opener's."""
        self._epoll.close()

    def lateness(self) -> list[float]:
        """Seconds by which the latest packets left too late, sorted."""
        return sorted(self._late[: min(self.forwarded, KEPT)])

    def turn(self, patience: float = IDLE) -> None:
        """Wait until a packet has come or is due, at most `patience` seconds; do what there is."""
        due = self._heap[0][0] - self._now() if self._heap else IDLE
        # An epoll descriptor can itself be selected on, which counts in microseconds.
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
        return time.monotonic() - self._began

    def _read(self, port: Port) -> None:
        descriptor, size = port.descriptor, port.size
        for turn in range(TURN):
            try:
                packet = os.read(descriptor, size)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:  # the device has gone
                self._epoll.unregister(descriptor)
                return
            self._take(port, packet, self._now())
            if turn % 8 == 7:
                self._leave()

    def _take(self, port: Port, packet: bytes, now: float) -> None:
        """A packet that a device sends: on its way, or lost."""
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
        """Whatever is due goes through the down pipe, and out of it."""
        heap = self._heap
        now = self._now()
        while heap and heap[0][0] <= now:
            when, _, to, port, packet, passed = heappop(heap)
            if passed or self._passes(when, now, to, port, packet):
                now = self._write(to, packet, when)

    def _passes(self, when: float, now: float, to: Port, port: Port, packet: bytes) -> bool:
        """At the far end: True where the packet leaves at once, else its time is noted."""
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
        where.drop(REASONS[why])
        if why == TOO_BIG and (told := too_big(packet, mtu)):
            with suppress(OSError):
                os.write(sender.descriptor, told)


def too_big(packet: bytes, mtu: int) -> bytes:
    """The ICMP message about a packet too big for the next link (RFC 1191); empty for one that
    nobody complains of (ICMP itself, and all but IPv4)."""
    if packet[0] >> 4 != 4 or packet[9] == socket.IPPROTO_ICMP:
        return b""
    about = packet[: (packet[0] & 15) * 4 + 8]
    icmp = _summed(bytes((3, 4, 0, 0, 0, 0, mtu >> 8, mtu & 255)) + about, 2)
    length = 20 + len(icmp)
    head = bytes((0x45, 0, length >> 8, length & 255, 0, 0, 0, 0, 64, socket.IPPROTO_ICMP, 0, 0))
    return _summed(head + NAMELESS + packet[12:16], 10) + icmp


def _summed(data: bytes, place: int) -> bytes:
    """With the internet checksum (RFC 1071) of everything in two bytes at `place`."""
    padded = data + b"\0" * (len(data) % 2)
    total = sum(padded[i] << 8 | padded[i + 1] for i in range(0, len(padded), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return data[:place] + (~total & 0xFFFF).to_bytes(2) + data[place + 2 :]


def hurry() -> None:
    """Let this process wake on time, as far as the machine allows it."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)


def quantile(values: list[float], part: float) -> float:
    """Of sorted values, the one below which `part` of them lie; NaN of none."""
    return values[min(len(values) - 1, math.floor(part * len(values)))] if values else math.nan
