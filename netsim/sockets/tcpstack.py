"""TCP stack of one host: connections by their addresses, listeners, and allocated ports."""

from collections.abc import Callable
from typing import Protocol
from zlib import crc32

from .. import defaults
from ..host import Host, cause
from ..network.network import Attachment
from ..network.packet import IP4_HEADER, IP6_HEADER, TCP, TCP_HEADER, Addr, Icmp, Packet
from .base import SimSocket
from .tcp.defaults import ISN_TICK_S, LOOPBACK_MTU
from .tcp.ports import WILDCARDS, PortClaim, PortClaims
from .tcp.segment import BLOCK_BYTES, SACK_BYTES, TcpSegment, refusal
from .tcp.timewait import TimeWait

Key = tuple[Addr, Addr]
"""(local address, remote address) of a connection, as packets contain them."""

_BARE = 20  # bytes of a TCP header without options
_SYN_OPTIONS = 20


class Party(Protocol):
    """Receiver of a connection's segments: a socket, which may be closed already, or a connection
    in TIME-WAIT.
    """

    def take(self, segment: TcpSegment) -> None: ...

    def failed(self, message: Icmp) -> None: ...


class SynListener(Protocol):
    """Socket that accepts or ignores incoming SYNs."""

    binding: PortClaim

    def knock(self, syn: TcpSegment, key: Key) -> None: ...


class _Remnant:
    """Connection in TIME-WAIT, with its claim on the port."""

    __slots__ = ("binding", "key", "rest", "stack")

    def __init__(self, stack: "TcpStack", key: Key, binding: PortClaim, rest: TimeWait) -> None:
        self.stack = stack
        self.key = key
        self.binding = binding
        self.rest = rest
        stack.events.at(rest.until, self._expire)

    def take(self, segment: TcpSegment) -> None:
        """Reply to a late segment. If it is the SYN of a new connection, end TIME-WAIT and pass the
        SYN to the listener.
        """
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
        """Ignore an ICMP error, because the connection has ended."""

    def _expire(self, _: None) -> None:
        """End TIME-WAIT if its time has come, otherwise check again later."""
        if self.stack.connections.get(self.key) is not self:
            return
        if self.rest.until <= self.stack.events.now:
            self.end()
        else:
            self.stack.events.at(self.rest.until, self._expire)

    def end(self) -> None:
        """Release the port, and remove the connection from the stack."""
        self.stack.ports.release(self.binding)
        del self.stack.connections[self.key]


class TcpStack:
    """State that the TCP sockets of a host share."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.events = host.events
        random = host.streams.get(host.name, "tcp")
        self.ports = PortClaims(random, *defaults.EPHEMERAL)
        self.connections: dict[Key, Party] = {}
        self._listeners: dict[int, list[SynListener]] = {}
        self._isn = random.getrandbits(31)

    @property
    def live(self) -> bool:
        """Whether this is still the stack of the host. It is False after a crash; the stack then
        sends nothing.
        """
        return self.host.protocols.get(TCP) is self

    def power_off(self) -> None:
        """Close all sockets, because the host loses power. This ends tasks that wait on them."""
        for party in list(self.connections.values()):
            if isinstance(party, SimSocket):
                party.close()

    def isn(self) -> int:
        """Return an initial sequence number. It increases with time."""
        return self._isn + int(self.events.now / ISN_TICK_S)

    # Packets.

    def receive(self, packet: Packet) -> None:
        """Pass a segment to its connection, or to `knock` if there is none."""
        key = packet.dst, packet.src
        segment = packet.data
        assert isinstance(segment, TcpSegment)
        party = self.connections.get(key)
        if party is not None:
            party.take(segment)
        else:
            self.knock(segment, key)

    def knock(self, segment: TcpSegment, key: Key) -> None:
        """Handle a segment that belongs to no connection. If it is a SYN and there is a listener,
        pass it to the listener. Otherwise reply with a reset.
        """
        if segment.syn and not segment.ack and not segment.rst:
            listener = self._listener(key)
            if listener is not None:
                listener.knock(segment, key)
                return
        answer = refusal(segment)
        if answer is not None:
            self.send(answer, key)

    def send(self, segment: TcpSegment, key: Key) -> None:
        """Send one segment."""
        via = self.host.source(key[1][0])[0]
        self.transmit([segment], key, via)

    def transmit(self, segments: list[TcpSegment], key: Key, via: Attachment | None) -> None:
        """Send segments of a connection. Send none if the host is off."""
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
        """Pass an ICMP error for a packet of this host to the packet's connection."""
        party = self.connections.get((message.src, message.dst))
        if party is not None:
            party.failed(message)

    def offer(self, remote: str) -> int:
        """Return the MSS in bytes to announce to a remote address. Raises OSError (ENETUNREACH) if
        there is no route.
        """
        via = self.host.source(remote)[0]
        mtu = LOOPBACK_MTU if via is None else via.up.spec.mtu
        return mtu - (IP6_HEADER if ":" in remote else IP4_HEADER) - _BARE

    # Listeners.

    def listen(self, listener: SynListener) -> None:
        """Register a listener for SYNs to the address and port of its binding."""
        self._listeners.setdefault(listener.binding.port, []).append(listener)

    def deafen(self, listener: SynListener) -> None:
        """Unregister a listener, if it is registered."""
        there = self._listeners.get(listener.binding.port, [])
        if listener in there:
            there.remove(listener)

    def _listener(self, key: Key) -> SynListener | None:
        """Return the most specific listener for a SYN, or None. Of listeners that share the port
        with SO_REUSEPORT, a hash of the addresses chooses one.
        """
        (address, port), peer = key
        best: list[SynListener] = []
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

    def remember(self, key: Key, binding: PortClaim, rest: TimeWait) -> None:
        """Keep an ended connection in TIME-WAIT, to reply to late segments."""
        self.connections[key] = _Remnant(self, key, binding, rest)

    def taken(self, local: str, remote: Addr) -> Callable[[int], bool]:
        """Return a function that tells whether a local port already has a connection to
        `remote`.
        """
        return lambda port: ((local, port), remote) in self.connections


def _fit(binding: PortClaim, address: str) -> int:
    """Return how well a binding matches a local address: 3 for the same address, 2 or 1 for a
    wildcard of the same or the other family, 0 for no match.
    """
    if binding.address == address:
        return 3
    if binding.address not in WILDCARDS:
        return 0
    if (":" in binding.address) == (":" in address):
        return 2
    return 1 if binding.address == "::" and not binding.only6 else 0
