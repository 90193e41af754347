"""Choice of relays for a node: which are known, were tried, and are near. No I/O.

Near relays come first, by measured round trips. No two of a /16 are chosen while another is
available, so that one operator's failure or malice does not affect all. At least one should listen
on TCP 443, because some networks let nothing else out.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from ..address import Address
from ..identity import PeerId
from ..networks import parse_ip, region
from .defaults import BACKOFF_S, CANDIDATES, RELAY_ADDRESSES, RELAY_PORT

_FOR_LONG: Final = frozenset({"not-a-relay", "unknown-method", "wrong-peer", "self"})
_FOR_A_WHILE: Final = frozenset({"full", "subnet-full", "not-admitted", "revoked", "wrong-swarm"})


@dataclass(slots=True)
class Candidate:
    """A node that may relay. `rtt` in seconds, as last measured."""

    peer: PeerId
    addresses: list[Address] = field(default_factory=list)
    rtt: float | None = None
    failures: int = 0
    not_before: float = 0.0

    @property
    def everywhere(self) -> Address | None:
        """Its address on TCP 443, if it has one."""
        return next((each for each in self.addresses if is_everywhere(each)), None)

    @property
    def networks(self) -> set[str]:
        """The /16s (IPv4) and /32s (IPv6) of its addresses."""
        return {network_of(each.host) for each in self.addresses}


class Choice:
    """Known relays, up to a limit beyond which the one seen longest ago is forgotten."""

    def __init__(self) -> None:
        self._known: dict[PeerId, Candidate] = {}
        self._lending: dict[PeerId, None] = {}

    def offer(self, peer: PeerId, address: Address) -> bool:
        """Store an address of a relay; return whether it is new. Circuit addresses do not count."""
        if address.relay is not None or address.peer not in (None, peer):
            return False
        candidate = self._known.pop(peer, None) or Candidate(peer)
        self._known[peer] = candidate
        while len(self._known) > CANDIDATES:
            del self._known[next(iter(self._known))]
        address = Address(address.host, address.port, peer, address.dns, address.transport)
        if address in candidate.addresses:
            return False
        candidate.addresses.append(address)
        if len(candidate.addresses) > RELAY_ADDRESSES:
            spare = [each for each in candidate.addresses if not is_everywhere(each)]
            candidate.addresses.remove((spare or candidate.addresses)[0])
        return True

    def lends(self, peer: PeerId, lends: bool) -> None:
        """Record whether a linked peer relays. One that starts to is tried at once."""
        known = peer in self._lending
        self._lending.pop(peer, None)
        if lends:
            self._lending[peer] = None
            if not known:
                self.worked(peer)
        while len(self._lending) > CANDIDATES:
            del self._lending[next(iter(self._lending))]

    def find(self, peer: PeerId) -> Candidate | None:
        """Return the candidate with this peer id, else None."""
        return self._known.get(peer)

    def answered(self) -> list[Candidate]:
        """Return the candidates that answered as relays and have not failed since."""
        return [each for each in self._known.values() if each.rtt is not None and not each.failures]

    def to_try(
        self, held: Collection[PeerId], linked: Collection[PeerId], count: int, now: float
    ) -> list[Candidate]:
        """Return the next relays to measure.

        Linked ones come first, then by round trip, spread over networks. One on TCP 443 is among
        them if none of `held` is.
        """
        usable = [each for each in self._usable(now) if each.peer not in held]
        usable.sort(key=lambda each: (each.peer not in linked, each.rtt is None, each.rtt or 0))
        taken = self._networks(held)
        order = _spread(usable, taken)
        chosen = order[:count]
        if self.lacks_443(held) and not any(each.everywhere for each in chosen):
            chosen[-1:] = [each for each in order if each.everywhere][:1] or chosen[-1:]
        return chosen

    def offers_443(self, held: Collection[PeerId], now: float) -> bool:
        """Whether another relay on TCP 443 may be tried."""
        return any(each.everywhere and each.peer not in held for each in self._usable(now))

    def next_try(self, held: Collection[PeerId]) -> float:
        """Return when the next failed relay may be retried; infinity for none."""
        times = [
            each.not_before
            for each in self._known.values()
            if each.peer not in held and each.peer in self._lending
        ]
        return min(times, default=float("inf"))

    def rank(
        self, measured: Iterable[Candidate], held: Collection[PeerId], want: int
    ) -> list[Candidate]:
        """Return the relays to reserve at, best first; `want` is how many will be used.

        They are sorted by round trip, new networks first. If no relay on 443 is held, the nearest
        of those is moved up so far that it will be used.
        """
        order = _spread(
            sorted(measured, key=lambda each: each.rtt if each.rtt is not None else float("inf")),
            self._networks(held),
        )
        if self.lacks_443(held) and not any(each.everywhere for each in order[:want]):
            first = next((each for each in order if each.everywhere), None)
            if first is not None:
                order.remove(first)
                order.insert(max(0, want - 1), first)
        return order

    def lacks_443(self, held: Collection[PeerId]) -> bool:
        """Whether none of `held` listens on TCP 443."""
        return not any(
            candidate.everywhere for peer in held if (candidate := self._known.get(peer))
        )

    def worked(self, peer: PeerId) -> None:
        """Clear the failures of a relay that worked."""
        if (candidate := self._known.get(peer)) is not None:
            candidate.failures, candidate.not_before = 0, 0.0

    def failed(self, peer: PeerId, code: str, now: float) -> None:
        """Back off from a relay that failed, the longer the less likely it is to recover."""
        candidate = self._known.get(peer)
        if candidate is None:
            return
        first, longest = BACKOFF_S
        candidate.failures += 1
        pause = min(first * 2.0 ** min(candidate.failures - 1, 20), longest)
        if code in _FOR_LONG:
            pause = longest
        elif code in _FOR_A_WHILE:
            pause = max(pause, longest / 6)
        candidate.not_before = now + pause

    def _usable(self, now: float) -> list[Candidate]:
        """Return the peers that say that they relay. No other peer is asked."""
        return [
            each
            for each in self._known.values()
            if each.peer in self._lending and each.not_before <= now
        ]

    def _networks(self, held: Collection[PeerId]) -> set[str]:
        found: set[str] = set()
        for peer in held:
            if (candidate := self._known.get(peer)) is not None:
                found |= candidate.networks
        return found


def _spread(candidates: Iterable[Candidate], taken: set[str]) -> list[Candidate]:
    """Stable reordering: candidates of a network already seen move behind the others."""
    first: list[Candidate] = []
    second: list[Candidate] = []
    seen = set(taken)
    for each in candidates:
        (second if each.networks & seen else first).append(each)
        seen |= each.networks
    return first + second


def is_everywhere(address: Address) -> bool:
    """Whether nearly every network lets a node connect to it."""
    return address.transport == "tcp" and address.port == RELAY_PORT


def network_of(host: str) -> str:
    """Return the region of an IP address; a DNS name is its own."""
    return region(host) if parse_ip(host) is not None else host
