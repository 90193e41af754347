"""Members of a relay in an open swarm, according to how long each peer has been linked. No I/O.

An identity costs nothing, so a linked peer begins as a stranger, with low limits. It becomes a
member after it has been linked for `STANDING_S` seconds. In each network, only the first few peers
can become members. Members of longer standing take precedence. A thousand identities that come
later, even patiently and from many networks, can therefore not displace them.
"""

from dataclasses import dataclass

from ..limits import Sources
from .defaults import AWAY_S, MEMBERS, MEMBERS_PER_NETWORK, STANDING_S


@dataclass(slots=True)
class _Known:
    """Times of a peer that is linked, or was linked recently."""

    since: float
    ip: str
    gone: float | None = None  # time at which its link ended; None while it is linked


class LinkedTimes:
    """Times for which peers have been linked to this node, in seconds on the caller's clock."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}  # the oldest first
        self._sources = Sources(MEMBERS_PER_NETWORK, MEMBERS)

    def linked(self, peer: str, ip: str, now: float) -> None:
        """Record that a peer is linked at an IP address.

        A peer whose address has changed keeps its time if the other network still has room for it.
        """
        known = self._known.get(peer)
        if known is not None and known.ip == ip and not _is_over(known, now):
            known.gone = None
            return
        self._forget(peer)
        if self._has_room(now) and self._sources.fits(ip):
            since = now if known is None or _is_over(known, now) else known.since
            self._known[peer] = _Known(since, ip)
            self._sources.add(ip)

    def gone(self, peer: str, now: float) -> None:
        """Record that a peer is no longer linked."""
        if (known := self._known.get(peer)) is not None:
            known.gone = now

    def since(self, peer: str, now: float) -> float | None:
        """Return the time since which a member has been linked; None if the peer is no member."""
        known = self._known.get(peer)
        if known is None or now < known.since + STANDING_S:
            return None
        return known.since

    def _has_room(self, now: float) -> bool:
        """Return whether one more peer can be recorded. Evicts a peer that left long ago if
        necessary."""
        if len(self._known) >= MEMBERS:
            over = next((peer for peer, known in self._known.items() if _is_over(known, now)), None)
            if over is None:
                return False
            self._forget(over)
        return True

    def _forget(self, peer: str) -> None:
        """Remove a peer."""
        if (known := self._known.pop(peer, None)) is not None:
            self._sources.remove(known.ip)


def _is_over(known: _Known, now: float) -> bool:
    """Return whether a peer has been away so long that its time starts over."""
    return known.gone is not None and now > known.gone + AWAY_S
