"""Which relays a node should use: who is known, who was tried, who is near. No I/O.

Near ones first, by measured round trips; no two of one /16 while another will do, so that one
operator's failure or malice does not take all; one that listens on TCP 443 among them, because
some networks let nothing else out.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from ..address import Address
from ..identity import PeerId
from ..place import parse_ip, region
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
        """The /16s (IPv4) and /32s (IPv6) that it has addresses in."""
        return {network_of(each.host) for each in self.addresses}


class Choice:
    """What is known of relays. Bounded; whoever was heard of longest ago falls out."""

    def __init__(self) -> None:
        self._known: dict[PeerId, Candidate] = {}
        self._lending: dict[PeerId, None] = {}

    def offer(self, peer: PeerId, address: Address) -> bool:
        """Learn of a relay; whether that is new. Circuit addresses are none."""
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
        """A linked peer says whether it relays. It is asked at once, whatever was before."""
        known = peer in self._lending
        self._lending.pop(peer, None)
        if lends:
            self._lending[peer] = None
            if not known:
                self.worked(peer)
        while len(self._lending) > CANDIDATES:
            del self._lending[next(iter(self._lending))]

    def find(self, peer: PeerId) -> Candidate | None:
        """What is known of one."""
        return self._known.get(peer)

    def answered(self) -> list[Candidate]:
        """Those that said that they relay, and did not fail since."""
        return [each for each in self._known.values() if each.rtt is not None and not each.failures]

    def to_try(
        self, held: Collection[PeerId], linked: Collection[PeerId], count: int, now: float
    ) -> list[Candidate]:
        """The next to be measured: those with a link, then by round trip, then one of each
        network; one on TCP 443 is among them if none of `held` is."""
        usable = [each for each in self._usable(now) if each.peer not in held]
        usable.sort(key=lambda each: (each.peer not in linked, each.rtt is None, each.rtt or 0))
        taken = self._networks(held)
        order = _spread(usable, taken)
        chosen = order[:count]
        if self.lacks_443(held) and not any(each.everywhere for each in chosen):
            chosen[-1:] = [each for each in order if each.everywhere][:1] or chosen[-1:]
        return chosen

    def offers_443(self, held: Collection[PeerId], now: float) -> bool:
        """Whether a relay on TCP 443 may be tried that is not held yet."""
        return any(each.everywhere and each.peer not in held for each in self._usable(now))

    def next_try(self, held: Collection[PeerId]) -> float:
        """When the next of those that failed may be tried again; infinity for none."""
        times = [
            each.not_before
            for each in self._known.values()
            if each.peer not in held and each.peer in self._lending
        ]
        return min(times, default=float("inf"))

    def rank(
        self, measured: Iterable[Candidate], held: Collection[PeerId], want: int
    ) -> list[Candidate]:
        """Those to reserve at, best first; `want` is how many will be taken.

        By round trip, networks that are new before those that are not; where no relay on 443 is
        held, the nearest of those comes in time to be taken."""
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
        """It relays."""
        if (candidate := self._known.get(peer)) is not None:
            candidate.failures, candidate.not_before = 0, 0.0

    def failed(self, peer: PeerId, code: str, now: float) -> None:
        """It does not relay, or not now: leave it alone, the longer the less likely it is."""
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
    """The same in the same order, but those behind whose network comes a second time."""
    first: list[Candidate] = []
    second: list[Candidate] = []
    seen = set(taken)
    for each in candidates:
        (second if each.networks & seen else first).append(each)
        seen |= each.networks
    return first + second


def is_everywhere(address: Address) -> bool:
    """Whether nearly every network lets one out to there."""
    return address.transport == "tcp" and address.port == RELAY_PORT


def network_of(host: str) -> str:
    """The region of an IP address; a name is its own."""
    return region(host) if parse_ip(host) is not None else host
