"""Dial-backs: the server's decision whether to dial an address, and the asker's pending nonces.

The idea is that of AutoNAT v2 (libp2p specification, `autonat/autonat-v2.md`). A peer names one of
its addresses and a nonce. A server dials that address from a fresh port of its own and sends the
nonce, which the peer recognizes. Servers must not be usable to attack a victim. So an address at
which the server does not itself see the asker costs the asker more bytes than the victim gets, and
rate limiters bound the rest.
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
class Wanted:
    """A requested dial-back. `transport` is "tcp" or "udp"."""

    transport: str
    place: Place
    nonce: bytes

    @property
    def header(self) -> dict[str, object]:
        """The header of the call that requests this dial-back."""
        ip, port = self.place
        return {"transport": self.transport, "ip": ip, "port": port, "nonce": self.nonce}


def parse_wanted(header: Mapping[str, object]) -> Wanted | None:
    """Parse the header of a peer's request for a dial-back. Return None if it is malformed."""
    transport, ip, port = header.get("transport"), header.get("ip"), header.get("port")
    nonce = header.get("nonce")
    if transport not in ("tcp", "udp") or type(nonce) is not bytes:
        return None
    if len(nonce) != defaults.NONCE_BYTES or type(port) is not int or not 0 < port < 65536:
        return None
    if type(ip) is not str or plain_ip(ip) != ip:  # canonical, because they are compared as text
        return None
    return Wanted(transport, (ip, port), nonce)


@dataclass(frozen=True, slots=True)
class Go:
    """Decision to make the dial-back."""


@dataclass(frozen=True, slots=True)
class Pay:
    """Decision that the asker must first send this many bytes."""

    size: int


@dataclass(frozen=True, slots=True)
class No:
    """Decision to refuse, with a code."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class _Demand:
    size: int
    until: float


class Gate:
    """The server's decisions. All its state is bounded."""

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        everybody = Rate(defaults.ALL_BURST, defaults.ALL_PER_S)
        self._entropy = entropy
        self._askers = Rates(Rate(defaults.ASKER_BURST, defaults.ASKER_PER_S), everybody)
        self._targets = SourceRates(Rate(defaults.TARGET_BURST, defaults.TARGET_PER_S), everybody)
        self._foreign = SourceRates(Rate(defaults.FOREIGN_BURST, defaults.FOREIGN_PER_S), everybody)
        self._demands: OrderedDict[tuple[PeerId, Wanted], _Demand] = OrderedDict()

    def ask(
        self,
        peer: PeerId,
        wanted: Wanted,
        *,
        seen: Collection[str],
        own: Collection[str],
        paid: int,
        now: float,
    ) -> Go | Pay | No:
        """Decide on a request. `seen` are the IP addresses at which this node itself sees the asker
        (none if it comes through a relay), `own` those of this node, `paid` the bytes that came
        with the request."""
        ip, port = wanted.place
        if not may_dial_port(port):
            return No("forbidden", f"port {port} is not dialled")
        if ip not in seen and (ip in own or not is_public(ip)):
            return No("forbidden", f"`{ip}` is not dialled")
        if ":" in ip and not any(":" in each and is_public(each) for each in own):
            return No("no-way", "this node has no IPv6 address")  # checked before it demands bytes
        if ip not in seen and not self._has_paid(peer, wanted, paid, now):
            return self._demand(peer, wanted, now)
        targets = self._targets if ip in seen else self._foreign
        if not self._askers.take(peer, now) or not targets.take(ip, now):
            return No("busy", "too many recent dial-backs")
        return Go()

    def _has_paid(self, peer: PeerId, wanted: Wanted, paid: int, now: float) -> bool:
        demand = self._demands.get((peer, wanted))
        if demand is None or demand.until < now or paid < demand.size:
            return False
        del self._demands[peer, wanted]
        return True

    def _demand(self, peer: PeerId, wanted: Wanted, now: float) -> Pay:
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
    """The nonces of the dial-backs that this node requested and waits for."""

    def __init__(self) -> None:
        self._arrived: OrderedDict[bytes, Callable[[Place], None]] = OrderedDict()

    def expect(self, nonce: bytes, arrived: Callable[[Place], None]) -> None:
        """Call `arrived` with the source once the nonce arrives."""
        self._arrived[nonce] = arrived
        if len(self._arrived) > defaults.AWAITED:
            self._arrived.popitem(last=False)

    def forget(self, nonce: bytes) -> None:
        self._arrived.pop(nonce, None)

    def on_nonce(self, nonce: bytes, source: Place) -> bool:
        """Pass on an arrived nonce. Return whether it was expected."""
        found = self._arrived.get(nonce)
        if found is None:
            return False
        found(source)
        return True

    def on_connection(self, first: bytes, source: Place) -> bool:
        """Return whether an accepted TCP connection with these first bytes is a dial-back to us."""
        size = 1 + defaults.NONCE_BYTES
        if first[:1] != defaults.DIALBACK_BYTE or len(first) < size:
            return False
        return self.on_nonce(first[1:size], source)
