"""Members of a relay in an open swarm, by how long each has been linked. No I/O.

An identity costs nothing, so a linked peer begins as a newcomer with a stranger's limits. It
becomes a member when it has been linked for `STANDING_S`; of one network only the first few do.
Older members take precedence, so a thousand identities that come later, patiently and from many
networks, cannot displace them.
"""

from dataclasses import dataclass

from ..limits import Sources
from .defaults import AWAY_S, MEMBERS, MEMBERS_PER_NETWORK, STANDING_S


@dataclass(slots=True)
class _Known:
    since: float
    ip: str
    gone: float | None = None  # since when it is not linked; None while it is


class Standing:
    """Times for which peers have been linked to this node, in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}  # oldest first
        self._sources = Sources(MEMBERS_PER_NETWORK, MEMBERS)

    def linked(self, peer: str, ip: str, now: float) -> None:
        """Record that a peer is linked at an IP address. If the address changes, it starts over."""
        known = self._known.get(peer)
        if known is not None and known.ip == ip and not _is_over(known, now):
            known.gone = None
            return
        self._forget(peer)
        if self._has_room(now) and self._sources.fits(ip):
            self._known[peer] = _Known(now, ip)
            self._sources.add(ip)

    def gone(self, peer: str, now: float) -> None:
        """Record that a peer is no longer linked."""
        if (known := self._known.get(peer)) is not None:
            known.gone = now

    def since(self, peer: str, now: float) -> float | None:
        """Return since when a member has been known; None for a newcomer."""
        known = self._known.get(peer)
        if known is None or now < known.since + STANDING_S:
            return None
        return known.since

    def _has_room(self, now: float) -> bool:
        """Whether one more can be remembered, if necessary by evicting one that left long ago."""
        if len(self._known) >= MEMBERS:
            over = next((peer for peer, known in self._known.items() if _is_over(known, now)), None)
            if over is None:
                return False
            self._forget(over)
        return True

    def _forget(self, peer: str) -> None:
        if (known := self._known.pop(peer, None)) is not None:
            self._sources.remove(known.ip)


def _is_over(known: _Known, now: float) -> bool:
    return known.gone is not None and now > known.gone + AWAY_S
