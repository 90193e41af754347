"""Addresses from which peers see this node's TCP connections, and conclusions about its NAT.

A *view* is the address from which a peer sees a connection; the peer reports it in its hello. Only
connections that this node dialled count, because this node's NAT has translated their source.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from ...host.datagrams import Place
from ...identity import PeerId
from ...networks import is_public
from . import defaults
from .judging import View, consensus, mapping_of
from .reachability import Behaviour


@dataclass(frozen=True, slots=True)
class _SeenConnection:
    """One view: `peer` saw a connection from our local `port` come from `place`."""

    peer: PeerId
    place: Place
    port: int
    at: float  # when this was reported, on the host's clock in seconds


class TcpViews:
    """Store of the latest view from each observer's IP address, for at most `TCP_VIEWS`
    addresses."""

    def __init__(self) -> None:
        self.seen: OrderedDict[str, _SeenConnection] = OrderedDict()

    def add(self, observer: PeerId, ip: str, place: Place, port: int, now: float) -> None:
        """Record that `observer`, whose IP address is `ip`, saw our connection come from `place`.

        The connection left from our local `port`. Views over IPv6 and on private networks are
        ignored, because the NAT does not translate such connections.
        """
        if ":" in ip or ":" in place[0] or not is_public(ip) or not 0 < place[1] < 65536:
            return
        self.seen.pop(ip, None)
        self.seen[ip] = _SeenConnection(observer, place, port, now)
        if len(self.seen) > defaults.TCP_VIEWS:
            self.seen.popitem(last=False)

    def clear(self) -> None:
        """Forget all views. Call this when the route to the internet has changed."""
        self.seen.clear()

    def mapping(self, port: int, own: Collection[str], now: float) -> Behaviour:
        """Return the kind of the NAT's mapping, judged by views of connections from local `port`.

        `own` are this machine's IP addresses.
        """
        views: dict[str, View] = {
            ip: (seen.place, None) for ip, seen in self._fresh(now) if seen.port == port
        }
        return mapping_of(views, [(ip, port) for ip in own])

    def place(self, port: int, now: float) -> Place | None:
        """Return the address from which most observers saw connections from local `port`.

        Returns None if no address has a majority.
        """
        return consensus(seen.place for _, seen in self._fresh(now) if seen.port == port)

    def preserves(self, now: float) -> bool | None:
        """Return whether the NAT kept the local port of most connections; None without views."""
        kept = [seen.place[1] == seen.port for _, seen in self._fresh(now)]
        return 2 * sum(kept) > len(kept) if kept else None

    def _fresh(self, now: float) -> list[tuple[str, _SeenConnection]]:
        """Return (observer's IP address, view) of all views of the last `TCP_VIEW_S` seconds."""
        end = now - defaults.TCP_VIEW_S
        return [(ip, seen) for ip, seen in self.seen.items() if seen.at >= end]
