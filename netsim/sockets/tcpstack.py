"""TCP of one host: connections by their addresses, listeners, and allocated ports."""

from collections.abc import Callable
from typing import Protocol
from zlib import crc32

from .. import defaults
from ..host import Host, cause
from ..network.network import Attachment
from ..network.packet import IP4_HEADER, IP6_HEADER, TCP, TCP_HEADER, Addr, Icmp, Packet
from .base import SimSocket
from .tcp.defaults import ISN_TICK_S, LOOPBACK_MTU
from .tcp.ports import WILDCARDS, Binding, Ports
from .tcp.segment import BLOCK_BYTES, SACK_BYTES, Segment, refusal
from .tcp.timewait import TimeWait

Key = tuple[Addr, Addr]
"""A connection's own address and its peer's, as written in packets."""

_BARE = 20  # bytes of a TCP header without options
_SYN_OPTIONS = 20


class Party(Protocol):
    """Owner of a connection: a socket, open or closed."""

    def take(self, segment: Segment) -> None: ...

    def failed(self, message: Icmp) -> None: ...


class Listener(Protocol):
    """Socket that decides about a SYN."""

    binding: Binding

    def knock(self, syn: Segment, key: Key) -> None: ...


class _Remnant:
    """Connection in TIME-WAIT, and its claim on the port."""

    __slots__ = ("binding", "key", "rest", "stack")

    def __init__(self, stack: "TcpStack", key: Key, binding: Binding, rest: TimeWait) -> None:
        self.stack = stack
        self.key = key
        self.binding = binding
        self.rest = rest
        stack.events.at(rest.until, self._expire)

    def take(self, segment: Segment) -> None:
        stack, now = self.stack, self.stack.events.now
        if self.rest.admits(segment):
            self.end()
            stack.knock(segment, self.key)
            return
        answer = self.rest.receive(segment, now)
        if answer is not None:
            stack.send(answer, self.key)
        if self.rest.until <= now:
            self.end()

    def failed(self, message: Icmp) -> None:
        """Ignore the error: the connection has ended."""

    def _expire(self, _: None) -> None:
        if self.stack.connections.get(self.key) is not self:
            return
        if self.rest.until <= self.stack.events.now:
            self.end()
        else:
            self.stack.events.at(self.rest.until, self._expire)

    def end(self) -> None:
        self.stack.ports.release(self.binding)
        del self.stack.connections[self.key]


class TcpStack:
    """State that a host's TCP sockets share."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.events = host.events
        random = host.streams.get(host.name, "tcp")
        self.ports = Ports(random, *defaults.EPHEMERAL)
        self.connections: dict[Key, Party] = {}
        self._listeners: dict[int, list[Listener]] = {}
        self._isn = random.getrandbits(31)

    @property
    def live(self) -> bool:
        """Whether the computer has power; without it, nothing is sent."""
        return self.host.protocols.get(TCP) is self

    def power_off(self) -> None:
        """Close all sockets when the computer stops, which ends waiting tasks."""
        for party in list(self.connections.values()):
            if isinstance(party, SimSocket):
                party.close()

    def isn(self) -> int:
        """Return an initial sequence number; they rise with time."""
        return self._isn + int(self.events.now / ISN_TICK_S)

    # Packets.

    def receive(self, packet: Packet) -> None:
        key = packet.dst, packet.src
        segment = packet.data
        assert isinstance(segment, Segment)
        party = self.connections.get(key)
        if party is not None:
            party.take(segment)
        else:
            self.knock(segment, key)

    def knock(self, segment: Segment, key: Key) -> None:
        """Pass a segment without a connection to a listener, or refuse it."""
        if segment.syn and not segment.ack and not segment.rst:
            listener = self._listener(key)
            if listener is not None:
                listener.knock(segment, key)
                return
        answer = refusal(segment)
        if answer is not None:
            self.send(answer, key)

    def send(self, segment: Segment, key: Key) -> None:
        """Send one segment."""
        via = self.host.source(key[1][0])[0]
        self.transmit([segment], key, via)

    def transmit(self, segments: list[Segment], key: Key, via: Attachment | None) -> None:
        """Send segments; a host that is off sends none."""
        host = self.host
        if not host.up or host.protocols.get(TCP) is not self:
            return
        src, dst = key
        header = (IP6_HEADER if ":" in dst[0] else IP4_HEADER) + TCP_HEADER
        name, why, send = host.name, cause(host), host.send
        for segment in segments:
            size = header + len(segment.data)
            if segment.sack:
                size += SACK_BYTES + BLOCK_BYTES * len(segment.sack)
            elif segment.syn:
                size += _BARE + _SYN_OPTIONS - TCP_HEADER
            send(Packet(TCP, src, dst, size, segment, name, why), via)

    def failed(self, message: Icmp) -> None:
        """Process an ICMP error about one of this host's packets."""
        party = self.connections.get((message.src, message.dst))
        if party is not None:
            party.failed(message)

    def offer(self, remote: str) -> int:
        """Return the MSS to announce towards an address, in bytes. Raises OSError (ENETUNREACH)."""
        via = self.host.source(remote)[0]
        mtu = LOOPBACK_MTU if via is None else via.up.spec.mtu
        return mtu - (IP6_HEADER if ":" in remote else IP4_HEADER) - _BARE

    # Listeners.

    def listen(self, listener: Listener) -> None:
        """Pass SYNs for its binding to a listener from now on."""
        self._listeners.setdefault(listener.binding.port, []).append(listener)

    def deafen(self, listener: Listener) -> None:
        """Stop passing SYNs to a listener."""
        there = self._listeners.get(listener.binding.port, [])
        if listener in there:
            there.remove(listener)

    def _listener(self, key: Key) -> Listener | None:
        """Return the most specific listener; among equals (SO_REUSEPORT) the addresses decide."""
        (address, port), peer = key
        best: list[Listener] = []
        best_score = 0
        for listener in self._listeners.get(port, ()):
            score = _fit(listener.binding, address)
            if score > best_score:
                best, best_score = [listener], score
            elif score and score == best_score:
                best.append(listener)
        if len(best) < 2:
            return best[0] if best else None
        return best[crc32(f"{address} {port} {peer}".encode()) % len(best)]

    # TIME-WAIT.

    def remember(self, key: Key, binding: Binding, rest: TimeWait) -> None:
        """Keep a connection that has ended, for its late segments."""
        self.connections[key] = _Remnant(self, key, binding, rest)

    def taken(self, local: str, remote: Addr) -> Callable[[int], bool]:
        """Return a test for whether a dial from a port would clash with an existing connection."""
        return lambda port: ((local, port), remote) in self.connections


def _fit(binding: Binding, address: str) -> int:
    """Return how specifically a binding matches an address; 0: not at all."""
    if binding.address == address:
        return 3
    if binding.address not in WILDCARDS:
        return 0
    if (":" in binding.address) == (":" in address):
        return 2
    return 1 if binding.address == "::" and not binding.only6 else 0
