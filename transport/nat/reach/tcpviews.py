"""Views of this node's TCP connections by peers, and what they tell about its NAT.

A peer's hello contains its view of the connection that it accepted. Only connections that this node
dialled count. On others, the peer knows just the address that it dialled.
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
class _Seen:
    peer: PeerId
    place: Place
    port: int
    at: float


class TcpViews:
    """The latest view of each observer's IP address; at most `defaults.TCP_VIEWS` of them."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def add(self, observer: PeerId, ip: str, place: Place, port: int, now: float) -> None:
        """Note that `observer`, at the public IPv4 address `ip`, saw a connection from our local
        `port` come from `place`. Views over IPv6 or on private networks do not concern the NAT and
        are skipped."""
        if ":" in ip or ":" in place[0] or not is_public(ip) or not 0 < place[1] < 65536:
            return
        self._seen.pop(ip, None)
        self._seen[ip] = _Seen(observer, place, port, now)
        if len(self._seen) > defaults.TCP_VIEWS:
            self._seen.popitem(last=False)

    def clear(self) -> None:
        """Forget all views, because the route to the internet has changed."""
        self._seen.clear()

    def mapping(self, port: int, own: Collection[str], now: float) -> Behaviour:
        """Return the NAT's mapping of connections from our listen port."""
        views: dict[str, View] = {
            ip: (seen.place, None) for ip, seen in self._fresh(now) if seen.port == port
        }
        return mapping_of(views, [(ip, port) for ip in own])

    def place(self, port: int, now: float) -> Place | None:
        """Return where most observers saw connections from our listen port, or None."""
        return consensus(seen.place for _, seen in self._fresh(now) if seen.port == port)

    def preserves(self, now: float) -> bool | None:
        """Whether most connections kept their local port; None without views."""
        kept = [seen.place[1] == seen.port for _, seen in self._fresh(now)]
        return 2 * sum(kept) > len(kept) if kept else None

    def _fresh(self, now: float) -> list[tuple[str, _Seen]]:
        end = now - defaults.TCP_VIEW_S
        return [(ip, seen) for ip, seen in self._seen.items() if seen.at >= end]
