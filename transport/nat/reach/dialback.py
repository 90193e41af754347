"""Dial-backs: the server's decision whether to dial an address, and the asker's pending nonces.

The protocol follows AutoNAT v2 (libp2p specification, `autonat/autonat-v2.md`). An *asker* sends a
server one of its addresses and a nonce. The server dials that address from a new port and sends the
nonce, by which the asker recognizes the dial-back. A dishonest asker could name the address of a
victim. Therefore, if the server does not see the asker at the address, the asker must first send
more bytes than the victim would receive. Rate limiters bound all dial-backs.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ...host.datagrams import Place
from ...identity import PeerId
from ...networks import is_public, may_dial_port, plain_ip
from ...rates import Rate, Rates, SourceRates
from . import defaults


@dataclass(frozen=True, slots=True)
class WantedDialBack:
    """A request for a dial-back to the address `place`. `transport` is "tcp" or "udp"."""

    transport: str
    place: Place
    nonce: bytes

    @property
    def header(self) -> dict[str, object]:
        """The header of the call `reach.dialback` with this request."""
        ip, port = self.place
        return {"transport": self.transport, "ip": ip, "port": port, "nonce": self.nonce}


def parse_wanted(header: Mapping[str, object]) -> WantedDialBack | None:
    """Parse the header of a call `reach.dialback`. Return None if it is malformed."""
    transport, ip, port = header.get("transport"), header.get("ip"), header.get("port")
    nonce = header.get("nonce")
    if transport not in ("tcp", "udp") or type(nonce) is not bytes:
        return None
    if len(nonce) != defaults.NONCE_BYTES or type(port) is not int or not 0 < port < 65536:
        return None
    if type(ip) is not str or plain_ip(ip) != ip:  # canonical, because IPs are compared as text
        return None
    return WantedDialBack(transport, (ip, port), nonce)


@dataclass(frozen=True, slots=True)
class Go:
    """Decision to send the dial-back."""


@dataclass(frozen=True, slots=True)
class Pay:
    """Decision that the asker must first pay by sending `size` bytes."""

    size: int


@dataclass(frozen=True, slots=True)
class No:
    """Decision to refuse, with the error's code and message."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class _Demand:
    """A demand for a payment of `size` bytes."""

    size: int
    until: float  # when it becomes invalid, in seconds on the host's clock


class DialBackGate:
    """Decision-maker on requested dial-backs, for the server. Its memory is bounded."""

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        everybody = Rate(defaults.ALL_BURST, defaults.ALL_PER_S)
        self._entropy = entropy
        self._askers = Rates(Rate(defaults.ASKER_BURST, defaults.ASKER_PER_S), everybody)
        self._targets = SourceRates(Rate(defaults.TARGET_BURST, defaults.TARGET_PER_S), everybody)
        self._foreign = SourceRates(Rate(defaults.FOREIGN_BURST, defaults.FOREIGN_PER_S), everybody)
        self._demands: OrderedDict[tuple[PeerId, WantedDialBack], _Demand] = OrderedDict()

    def ask(
        self,
        peer: PeerId,
        wanted: WantedDialBack,
        *,
        seen: Collection[str],
        own: Collection[str],
        paid: int,
        now: float,
    ) -> Go | Pay | No:
        """Decide on the request `wanted` of an asker.

        `seen` are the IP addresses at which this node itself sees the asker; there are none if the
        asker comes through a relay. `own` are this node's IP addresses. `paid` is the number of
        bytes that came with the request.
        """
        ip, port = wanted.place
        if not may_dial_port(port):
            return No("forbidden", f"port {port} is not dialled")
        if ip not in seen and (ip in own or not is_public(ip)):
            return No("forbidden", f"`{ip}` is not dialled")
        if ":" in ip and not any(":" in each and is_public(each) for each in own):
            return No("no-way", "this node has no IPv6 address")  # before a payment is demanded
        if ip not in seen and not self._has_paid(peer, wanted, paid, now):
            return self._demand(peer, wanted, now)
        targets = self._targets if ip in seen else self._foreign
        if not self._askers.take(peer, now) or not targets.take(ip, now):
            return No("busy", "too many recent dial-backs")
        return Go()

    def _has_paid(self, peer: PeerId, wanted: WantedDialBack, paid: int, now: float) -> bool:
        """Return whether `paid` bytes fulfil a valid demand, and remove that demand if so."""
        demand = self._demands.get((peer, wanted))
        if demand is None or demand.until < now or paid < demand.size:
            return False
        del self._demands[peer, wanted]
        return True

    def _demand(self, peer: PeerId, wanted: WantedDialBack, now: float) -> Pay:
        """Store and return a demand for a payment of random size.

        Evicts the oldest demand of this peer, or of all peers, if a limit is reached.
        """
        least, most = defaults.PAYMENT_BYTES
        size = least + int.from_bytes(self._entropy(4)) % (most - least + 1)
        self._demands.pop((peer, wanted), None)
        theirs = [key for key in self._demands if key[0] == peer]
        if len(theirs) >= defaults.PAYMENTS_PER_ASKER:
            del self._demands[theirs[0]]
        elif len(self._demands) >= defaults.PAYMENTS:
            self._demands.popitem(last=False)
        self._demands[peer, wanted] = _Demand(size, now + defaults.PAYMENT_S)
        return Pay(size)


class Awaited:
    """Table of the dial-backs that this node has requested and waits for. The key is the nonce."""

    def __init__(self) -> None:
        self._arrived: OrderedDict[bytes, Callable[[Place], None]] = OrderedDict()

    def expect(self, nonce: bytes, arrived: Callable[[Place], None]) -> None:
        """Register a nonce. `arrived` is called with the source address when it arrives."""
        self._arrived[nonce] = arrived
        if len(self._arrived) > defaults.AWAITED:
            self._arrived.popitem(last=False)

    def forget(self, nonce: bytes) -> None:
        """Stop waiting for a nonce."""
        self._arrived.pop(nonce, None)

    def on_nonce(self, nonce: bytes, source: Place) -> bool:
        """Report an arrived nonce to its `arrived` callback. Return whether it was expected."""
        found = self._arrived.get(nonce)
        if found is None:
            return False
        found(source)
        return True

    def on_connection(self, first: bytes, source: Place) -> bool:
        """Process the first bytes of an accepted TCP connection.

        Returns whether the connection is an expected dial-back, whose nonce is then reported.
        """
        size = 1 + defaults.NONCE_BYTES
        if first[:1] != defaults.DIALBACK_BYTE or len(first) < size:
            return False
        return self.on_nonce(first[1:size], source)
