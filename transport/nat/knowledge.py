"""Addresses for hole punching: this node's own, and those at which third nodes see its peers."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ..dial.endpoint import Endpoint
from ..host.datagrams import Place
from ..host.seam import Host
from ..identity import PeerId
from ..networks import is_public, plain_ip
from ..relay.vouch import Vouched
from .punch.candidates import Candidate, CandidateTransport, SeenAddresses, gather
from .punch.needs import OwnNat
from .punch.predict import NatProfile
from .whereabouts import AddressSources

_VOUCHED: Final = 4  # IP addresses that are remembered for each peer, a count
_PEERS: Final = 1024  # peers whose addresses are remembered, a count


class NodeKnowledge:
    """Store of the addresses at which others see this node and its peers.

    Implements the protocol `punch.needs.Knowledge`, through which hole punching queries it.
    """

    def __init__(self, host: Host, endpoint: Endpoint, sources: AddressSources) -> None:
        self._host = host
        self._endpoint = endpoint
        self._udp = sources.udp
        self._reach = sources.reach
        self._relays = sources.relays
        self._mapper = sources.mapper
        # The tables below map a peer to its IP addresses, the latest last.
        # Addresses at which a relay or a linked peer sees the peer.
        self._vouched: dict[PeerId, dict[str, None]] = {}
        # The subset that was reported by relays at which this node has a reservation.
        self._by_own: dict[PeerId, dict[str, None]] = {}
        # Addresses at which the peer answered on the local network.
        self._found: dict[PeerId, dict[str, None]] = {}
        # The IPv4 address at which a peer last saw a TCP connection from the listen port.
        self._latest: Place | None = None

    def vouch(self, peer: PeerId, seen: Vouched | None, relay: PeerId | None) -> None:
        """Record the address `seen` at which the node `relay` (a relay or a linked peer) sees
        `peer`. Do nothing if `seen` is None.

        If the peer is seen at this node's own public address, both are behind the same router, and
        the peer's private addresses are in this node's network. Only a relay at which this node has
        a reservation is trusted with that conclusion. Any other relay may belong to the peer, and
        report a false address so that this node sends datagrams to its neighbours.
        """
        if seen is None:
            return
        own = any(held.relay == relay for held in self._relays.relays)
        for ip in filter(None, (seen.other, seen.ip)):
            _note(self._vouched, peer, ip)
            if own:
                _note(self._by_own, peer, ip)

    def observed(self, place: Place) -> None:
        """Record where a peer has just seen a TCP connection that came from the listen port.

        IPv6 addresses are ignored, because no NAT translates them.
        """
        if ":" not in place[0]:
            self._latest = place

    def found(self, peer: PeerId, ip: str) -> None:
        """Record that a peer answers on the local network, at the address `ip`."""
        _note(self._found, peer, ip)

    def found_at(self, peer: PeerId) -> list[str]:
        """Return the addresses at which a peer answered on the local network."""
        return list(self._found.get(peer, ()))

    # Queries by hole punching.

    def own(self, peer: PeerId) -> OwnNat:
        """Return this node's NAT, its candidate addresses, and the observers that it may ask."""
        known = self._reach.reachability
        interfaces = [item.address for item in self._host.interfaces()]
        nat = NatProfile.of(known)
        has_moved = self._has_moved()
        if has_moved:  # until an observer is asked, the outer UDP port may have changed as well
            nat = replace(nat, preserves=False)
        return OwnNat(
            nat,
            [*self._udp_candidates(interfaces), *self._tcp_candidates(interfaces)],
            self._reach.observers(),
            known.measured_at if known.udp_place is not None and not has_moved else None,
        )

    def _has_moved(self) -> bool:
        """Whether a peer has lately seen this node at another IP address than the measured one."""
        known, latest = self._reach.reachability.udp_place, self._latest
        return known is not None and latest is not None and known[0] != latest[0]

    def _udp_candidates(self, interfaces: list[str]) -> list[Candidate]:
        if self._udp is None or not self._udp.port:
            return []
        known, mapping = self._reach.reachability, self._mapper.mapping
        observed = known.udp_places if known.udp_place is None else (known.udp_place,)
        mapped = [(mapping.address, mapping.udp_port)] if mapping and mapping.udp_port else []
        return gather(
            CandidateTransport.UDP,
            self._udp.port,
            interfaces,
            observed=dict.fromkeys(observed),
            mapped=mapped,
        )[:8]

    def _tcp_candidates(self, interfaces: list[str]) -> list[Candidate]:
        known, mapping = self._reach.reachability, self._mapper.mapping
        observed = [place for place in (self._latest, known.tcp_place) if place is not None]
        for held in self._relays.relays:
            if held.seen is not None and held.seen.tcp:
                observed.append((held.seen.ip, held.seen.tcp))
        mapped = [(mapping.address, mapping.tcp_port)] if mapping and mapping.tcp_port else []
        return gather(
            CandidateTransport.TCP,
            self._endpoint.port,
            interfaces,
            observed=dict.fromkeys(observed),
            mapped=mapped,
        )[:8]

    def seen(self, peer: PeerId) -> SeenAddresses:
        """Return the IP addresses of a peer that are known from others than the peer itself."""
        vouched = list(self._vouched.get(peer, ()))
        shares = self._shares_site(self._by_own.get(peer, ()))
        return SeenAddresses(vouched, shares, list(self._found.get(peer, ())))

    def _shares_site(self, vouched: Iterable[str]) -> bool:
        """Whether this node is itself seen at one of the public addresses in `vouched`."""
        known = self._reach.reachability
        ours = {place[0] for place in (known.udp_place, known.tcp_place) if place is not None}
        ours |= {held.seen.ip for held in self._relays.relays if held.seen is not None}
        return any(ip in ours and is_public(ip) for ip in vouched)

    def rtt(self, peer: PeerId) -> float | None:
        """Return the round trip of the link to a peer in seconds; None if there is no such link."""
        link = self._endpoint.link(peer)
        return link.round_trip if link is not None else None


def _note(table: dict[PeerId, dict[str, None]], peer: PeerId, ip: str) -> None:
    """Add an IP address to those of a peer in `table`.

    Evicts the oldest of more than `_VOUCHED` addresses, and of more than `_PEERS` peers the one
    that was updated least recently. Ignores `ip` if it is not an IP address.
    """
    plain = plain_ip(ip)
    if plain is None:
        return
    kept = table.pop(peer, {})
    kept.pop(plain, None)
    kept[plain] = None
    while len(kept) > _VOUCHED:
        del kept[next(iter(kept))]
    table[peer] = kept
    while len(table) > _PEERS:
        del table[next(iter(table))]
