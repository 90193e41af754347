"""Addresses for punching: this node's own, and those of peers as reported by third nodes."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ..dial.endpoint import Endpoint
from ..host.datagrams import Place
from ..host.seam import Host
from ..identity import PeerId
from ..networks import is_public, plain_ip
from ..relay.client import RelayClient
from ..relay.vouch import Vouched
from ..udp.port import UdpPort
from .portmap.mapper import PortMapper
from .punch.candidates import Candidate, Seen, Transport, gather
from .punch.needs import Own
from .punch.predict import Nat
from .reach.service import Reach

_VOUCHED: Final = 4  # addresses that are remembered for each peer
_PEERS: Final = 1024


class Knowledge:
    """Implementation of `punch.needs.Knowledge` by the node's own parts."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        udp: UdpPort | None,
        reach: Reach,
        relays: RelayClient,
        mapper: PortMapper,
    ) -> None:
        self._host = host
        self._endpoint = endpoint
        self._udp = udp
        self._reach = reach
        self._relays = relays
        self._mapper = mapper
        self._vouched: dict[PeerId, dict[str, None]] = {}
        # By peer, as reported by relays that this node chose.
        self._by_own: dict[PeerId, dict[str, None]] = {}
        self._found: dict[PeerId, dict[str, None]] = {}
        self._latest: Place | None = None

    def vouch(self, peer: PeerId, seen: Vouched | None, relay: PeerId | None) -> None:
        """Note where a relay sees a peer. Only a relay at which we hold a reservation is believed
        that this is behind our own router, so that the peer's private addresses are in our network.
        Any other relay may belong to the peer, and say so to get access to our neighbours."""
        if seen is None:
            return
        own = any(held.relay == relay for held in self._relays.relays)
        for ip in filter(None, (seen.other, seen.ip)):
            _note(self._vouched, peer, ip)
            if own:
                _note(self._by_own, peer, ip)

    def observed(self, place: Place) -> None:
        """Note the address from which a peer has just seen a connection from our listen port."""
        if ":" not in place[0]:
            self._latest = place

    def found(self, peer: PeerId, ip: str) -> None:
        """Note that a peer answers on the local network."""
        _note(self._found, peer, ip)

    def found_at(self, peer: PeerId) -> list[str]:
        """Return the addresses at which a peer answered on the local network."""
        return list(self._found.get(peer, ()))

    # Queries by punching.

    def own(self, peer: PeerId) -> Own:
        known = self._reach.reachability
        interfaces = [item.address for item in self._host.interfaces()]
        nat = Nat.of(known)
        has_moved = self._has_moved()
        if has_moved:  # the port may have changed as well, until an observer is asked
            nat = replace(nat, preserves=False)
        return Own(
            nat,
            [*self._udp_candidates(interfaces), *self._tcp_candidates(interfaces)],
            self._reach.observers(),
            known.measured_at if known.udp_place is not None and not has_moved else None,
        )

    def _has_moved(self) -> bool:
        """Whether a peer lately saw us at another address than the measured one."""
        known, latest = self._reach.reachability.udp_place, self._latest
        return known is not None and latest is not None and known[0] != latest[0]

    def _udp_candidates(self, interfaces: list[str]) -> list[Candidate]:
        if self._udp is None or not self._udp.port:
            return []
        known, mapping = self._reach.reachability, self._mapper.mapping
        observed = known.udp_places if known.udp_place is None else (known.udp_place,)
        mapped = [(mapping.address, mapping.udp_port)] if mapping and mapping.udp_port else []
        return gather(
            Transport.UDP,
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
            Transport.TCP,
            self._endpoint.port,
            interfaces,
            observed=dict.fromkeys(observed),
            mapped=mapped,
        )[:8]

    def seen(self, peer: PeerId) -> Seen:
        vouched = list(self._vouched.get(peer, ()))
        shares = self._shares_site(self._by_own.get(peer, ()))
        return Seen(vouched, shares, list(self._found.get(peer, ())))

    def _shares_site(self, vouched: Iterable[str]) -> bool:
        """Whether others see this node at one of the addresses too."""
        known = self._reach.reachability
        ours = {place[0] for place in (known.udp_place, known.tcp_place) if place is not None}
        ours |= {held.seen.ip for held in self._relays.relays if held.seen is not None}
        return any(ip in ours and is_public(ip) for ip in vouched)

    def rtt(self, peer: PeerId) -> float | None:
        link = self._endpoint.link(peer)
        return link.status.rtt if link is not None else None


def _note(table: dict[PeerId, dict[str, None]], peer: PeerId, ip: str) -> None:
    """Remember an address: the latest few of each of the latest peers."""
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
