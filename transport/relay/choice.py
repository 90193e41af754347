"""Choice of the relays of a node: which ones it knows, has tried, and can reach fast. No I/O.

Near relays come first, by measured round trip. No two relays in the same /16 are chosen while
another one is available, so that the failure or the malice of one operator does not affect all. At
least one relay should listen on TCP 443, because some networks allow no other outbound connections.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from ..address import Address
from ..identity import PeerId
from ..networks import parse_ip, region
from .defaults import BACKOFF_S, CANDIDATES, RELAY_ADDRESSES, RELAY_PORT

# Codes of failures after which a relay is retried after the longest pause.
_FOR_LONG: Final = frozenset({"not-a-relay", "unknown-method", "wrong-peer", "self"})
# Codes of failures after which a relay is retried after at least a sixth of the longest pause.
_FOR_A_WHILE: Final = frozenset({"full", "subnet-full", "not-admitted", "revoked", "wrong-swarm"})


@dataclass(slots=True)
class RelayCandidate:
    """A node that may relay.

    `rtt` is the round trip in seconds as last measured, None if it never was. `failures` counts the
    failures since the last success. The node is not tried before the time `not_before`.
    """

    peer: PeerId
    addresses: list[Address] = field(default_factory=list)
    rtt: float | None = None
    failures: int = 0
    not_before: float = 0.0

    @property
    def everywhere(self) -> Address | None:
        """The node's address on TCP 443, or None."""
        return next((each for each in self.addresses if is_everywhere(each)), None)

    @property
    def networks(self) -> set[str]:
        """The /16s (IPv4) and /32s (IPv6) of the node's addresses."""
        return {network_of(each.host) for each in self.addresses}


class KnownRelays:
    """Known relays. If there are too many, the one whose address was named least recently is
    removed."""

    def __init__(self) -> None:
        self._known: dict[PeerId, RelayCandidate] = {}
        self._lending: dict[PeerId, None] = {}

    def offer(self, peer: PeerId, address: Address) -> bool:
        """Add an address of a relay. Return whether it is new. Circuit addresses are ignored."""
        if address.relay is not None or address.peer not in (None, peer):
            return False
        candidate = self._known.pop(peer, None) or RelayCandidate(peer)
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
        """Record whether a linked peer relays. One that begins to relay may be tried at once."""
        known = peer in self._lending
        self._lending.pop(peer, None)
        if lends:
            self._lending[peer] = None
            if not known:
                self.worked(peer)
        while len(self._lending) > CANDIDATES:
            del self._lending[next(iter(self._lending))]

    def find(self, peer: PeerId) -> RelayCandidate | None:
        """Return the candidate with this peer id, or None."""
        return self._known.get(peer)

    def answered(self) -> list[RelayCandidate]:
        """Return the candidates that have answered as relays and have not failed since."""
        return [each for each in self._known.values() if each.rtt is not None and not each.failures]

    def to_try(
        self, held: Collection[PeerId], linked: Collection[PeerId], count: int, now: float
    ) -> list[RelayCandidate]:
        """Return up to `count` relays to measure next.

        `held` are the relays with a reservation, which are left out, and `linked` the peers with a
        link. Linked relays come first, then those with a shorter round trip; relays of a network
        that has another relay already come last. If no relay in `held` listens on TCP 443, one that
        does is included, if any is known.
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
        """Return whether a relay on TCP 443 that is not in `held` may be tried now."""
        return any(each.everywhere and each.peer not in held for each in self._usable(now))

    def next_try(self, held: Collection[PeerId]) -> float:
        """Return the time at which the next failed relay may be retried; infinity if there is
        none."""
        times = [
            each.not_before
            for each in self._known.values()
            if each.peer not in held and each.peer in self._lending
        ]
        return min(times, default=float("inf"))

    def rank(
        self, measured: Iterable[RelayCandidate], held: Collection[PeerId], want: int
    ) -> list[RelayCandidate]:
        """Return the measured relays in the order in which to reserve at them.

        `want` is the number that will be used. They are sorted by round trip, with new networks
        first. If no relay in `held` listens on TCP 443, the nearest one that does is moved forward
        among the first `want`.
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
        """Return whether no relay in `held` listens on TCP 443."""
        return not any(
            candidate.everywhere for peer in held if (candidate := self._known.get(peer))
        )

    def worked(self, peer: PeerId) -> None:
        """Clear the failures of a relay, because it has worked."""
        if (candidate := self._known.get(peer)) is not None:
            candidate.failures, candidate.not_before = 0, 0.0

    def failed(self, peer: PeerId, code: str, now: float) -> None:
        """Record a failure of a relay, and set the time of its next try.

        The pause is longer for codes after which the relay is less likely to recover.
        """
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

    def _usable(self, now: float) -> list[RelayCandidate]:
        """Return the relays that may be tried now. These are peers that have said that they
        relay."""
        return [
            each
            for each in self._known.values()
            if each.peer in self._lending and each.not_before <= now
        ]

    def _networks(self, held: Collection[PeerId]) -> set[str]:
        """Return the networks of the relays in `held`."""
        found: set[str] = set()
        for peer in held:
            if (candidate := self._known.get(peer)) is not None:
                found |= candidate.networks
        return found


def _spread(candidates: Iterable[RelayCandidate], taken: set[str]) -> list[RelayCandidate]:
    """Move a candidate behind the others if one of its networks is in `taken` or belongs to an
    earlier candidate. Otherwise the order stays."""
    first: list[RelayCandidate] = []
    second: list[RelayCandidate] = []
    seen = set(taken)
    for each in candidates:
        (second if each.networks & seen else first).append(each)
        seen |= each.networks
    return first + second


def is_everywhere(address: Address) -> bool:
    """Return whether an address can be dialled from nearly every network, because it uses TCP
    443."""
    return address.transport == "tcp" and address.port == RELAY_PORT


def network_of(host: str) -> str:
    """Return the region of an IP address. The region of a DNS name is the name itself."""
    return region(host) if parse_ip(host) is not None else host
