"""`punch`: pairs of hosts behind gateways try to reach each other, introduced by a relay.

Each host registers at a relay. The relay sees the address that the host's NAT has mapped. A host
that wants to reach a partner sends a request to the relay. The relay sends each of the two hosts
the other's address (RFC 5128, section 3.3). Both then send a probe every 50 ms (RFC 8445, section
14) to the partner's address, and to any other address from which a probe of the partner arrives. A
probe says whether its sender has received a probe. The attempt succeeds when a probe arrives that
says so.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from ...host import Host
from ...network.packet import Addr
from ..format import units
from ..format.source import knob
from .echo import Where

PORT: Final = 3478
PACE_S: Final = 0.05  # from one probe to the next
KEEPALIVE_S: Final = 15.0  # from one registration to the next, so that the NAT keeps the mapping
MOST_ROUNDS: Final = 10_000
RESEND_S: Final = 0.5  # until a message that the relay has not answered is sent again
_REGISTER, _CONNECT, _PEER, _PROBE = b"R", b"C", b"P", b"H"
_TWO: Final = struct.Struct("!II")


@dataclass(frozen=True, slots=True)
class PunchSettings:
    """Settings of `punch`."""

    rounds: int = knob(units.Count(MOST_ROUNDS), 1, says="how many times the hosts are paired")
    every: float = knob(units.period, 20.0, says="from one round to the next")
    timeout: float = knob(units.period, 5.0, says="a pair that is silent for this time has failed")


@dataclass(slots=True)
class PunchResult:
    """Measurements of one host.

    `attempts` has each partner that the host has called, with the seconds until both had received a
    probe, or None if the attempt failed.
    """

    attempts: list[tuple[str, float | None]] = field(default_factory=list)


class Introducer:
    """Server that records the address of every host, and sends the addresses of two hosts to each
    other.
    """

    def __init__(self) -> None:
        self._known: dict[int, Addr] = {}

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        socket = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
        await socket.bind(("0.0.0.0", PORT))
        task_status.started()
        while True:
            data, source = await socket.recvfrom(2048)
            for message, to in self.answer(data, source):
                await socket.sendto(message, to)

    def answer(self, data: bytes, source: Addr) -> list[tuple[bytes, Addr]]:
        """Process a message from `source`. Return the replies and their destinations."""
        one, other = _TWO.unpack_from(data, 1)
        self._known[one] = source
        if data[:1] == _REGISTER:
            return [(data, source)]
        if other not in self._known:
            return []
        return [
            (_peer(other, self._known[other]), source),
            (_peer(one, source), self._known[other]),
        ]


def _peer(number: int, at: Addr) -> bytes:
    """Encode the message that the host `number` has the address `at`."""
    return _PEER + _TWO.pack(number, at[1]) + at[0].encode()


@dataclass(frozen=True, slots=True)
class HostDirectory:
    """Names that all hosts that punch share: `names` of the hosts, by number, and `relays`. `where`
    returns the address of a host by name.
    """

    names: Sequence[str]
    relays: Sequence[str]
    where: Where


class Punch:
    """Program of one host. `result` is kept when the host restarts.

    The host has the number `number`. `partners` are those that it calls: pairs of a round and a
    partner's number. `luck` draws the delay of each call.
    """

    def __init__(
        self,
        settings: PunchSettings,
        number: int,
        partners: Sequence[tuple[int, int]],
        meeting: HostDirectory,
        luck: Random,
    ) -> None:
        self.settings = settings
        self.result = PunchResult()
        self._number = number
        self._partners = list(partners)  # (round, number of the partner) that this host calls
        self._meeting = meeting
        self._luck = luck
        self._tried = 0

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        """Register at a relay, then call a partner in each round."""
        self._peers: dict[int, _Peer] = {}
        self._registered = trio.Event()
        self._socket = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
        await self._socket.bind(("0.0.0.0", 0))
        task_status.started()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._listen)
            nursery.start_soon(self._stay_known)
            start = trio.current_time()
            while self._tried < len(self._partners):
                turn, partner = self._partners[self._tried]
                self._tried += 1
                late = self._luck.uniform(0.25, 0.75) * self.settings.every
                await trio.sleep_until(start + turn * self.settings.every + late)
                nursery.start_soon(self._call, partner)

    async def _stay_known(self) -> None:
        """Register at the relay again and again, so that the NAT keeps its mapping."""
        while True:
            await self._tell(self._number, _REGISTER + _TWO.pack(self._number, 0))
            await trio.sleep(KEEPALIVE_S if self._registered.is_set() else RESEND_S)

    async def _call(self, partner: int) -> None:
        """Make one attempt to reach a partner, and record its outcome."""
        start = trio.current_time()
        peer = self._peers.setdefault(partner, _Peer())
        took = None
        with trio.move_on_after(self.settings.timeout):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_for, partner, peer)
                await peer.mutual.wait()
                took = trio.current_time() - start
                nursery.cancel_scope.cancel()
        self.result.attempts.append((self._meeting.names[partner], took))

    async def _ask_for(self, partner: int, peer: "_Peer") -> None:
        """Ask the relay for a partner's address until the address has arrived."""
        while not peer.addresses:
            await self._tell(partner, _CONNECT + _TWO.pack(self._number, partner))
            await trio.sleep(RESEND_S)

    async def _listen(self) -> None:
        """Receive messages from the relay and probes from partners."""
        while True:
            data, source = await self._socket.recvfrom(2048)
            number, word = _TWO.unpack_from(data, 1)
            if data[:1] == _REGISTER:
                self._registered.set()
            elif data[:1] == _PEER:
                self._introduced(number, (data[1 + _TWO.size :].decode(), word))
            elif data[:1] == _PROBE:
                self._heard(number, source, word)

    def _introduced(self, number: int, at: Addr) -> None:
        """Process a partner's address, received from the relay.

        Start to send probes to the partner.
        """
        peer = self._peers.setdefault(number, _Peer())
        known = bool(peer.addresses)
        peer.addresses[at] = None
        if not known:
            self._nursery.start_soon(self._probe, peer)

    def _heard(self, number: int, source: Addr, heard: int) -> None:
        """Process a probe from a partner.

        `heard` is not 0 if the partner has received a probe of this host.
        """
        peer = self._peers.setdefault(number, _Peer())
        peer.heard = True
        if peer.addresses:
            peer.addresses[source] = None  # the address from which its gateway really sends
        if heard:
            peer.mutual.set()

    async def _probe(self, peer: "_Peer") -> None:
        """Send probes to all known addresses of a partner, until the timeout."""
        end = trio.current_time() + self.settings.timeout
        while trio.current_time() < end:
            for address in list(peer.addresses):
                await self._send(_PROBE + _TWO.pack(self._number, peer.heard), address)
            await trio.sleep(PACE_S)

    async def _tell(self, number: int, data: bytes) -> None:
        """Send `data` to the relay at which the host with this number is registered."""
        relays = self._meeting.relays
        await self._send(data, (self._meeting.where(relays[number % len(relays)]), PORT))

    async def _send(self, data: bytes, to: Addr) -> None:
        """Send a datagram. If there is no route, discard it."""
        try:
            await self._socket.sendto(data, to)
        except OSError:
            return  # no route now; it is sent again soon


class _Peer:
    """State of the exchange with one partner.

    `addresses` are the addresses to which probes are sent. `heard` says whether a probe of the
    partner has arrived. `mutual` is set once the partner reports that it has received a probe.
    """

    def __init__(self) -> None:
        self.addresses: dict[Addr, None] = {}
        self.heard = False
        self.mutual = trio.Event()


def draw_pairs(
    numbers: Sequence[int], rounds: int, luck: Random
) -> dict[int, list[tuple[int, int]]]:
    """Pair the hosts at random in each round, and return the calls that each host makes.

    `numbers` are the numbers of the hosts. The result maps the number of each host to its calls:
    (round, number of the partner). Hosts that were paired in an earlier round do not call each
    other again.
    """
    met: set[tuple[int, int]] = set()
    found: dict[int, list[tuple[int, int]]] = {number: [] for number in numbers}
    for turn in range(rounds):
        order = list(numbers)
        luck.shuffle(order)
        for a, b in zip(order[::2], order[1::2], strict=False):
            pair = min(a, b), max(a, b)
            if pair not in met:
                met.add(pair)
                found[a].append((turn, b))
    return found
