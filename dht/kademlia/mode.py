"""Mode of this node in the DHT: server, fallback server, or client.

A publicly reachable node is a server. Other nodes are clients, because every request to them would
have to pass a relay. If hardly any reachable server is known, they serve nevertheless.
"""

from enum import StrEnum

from .. import defaults


class Mode(StrEnum):
    """Role of this node in the DHT."""

    SERVER = "server"  # publicly reachable
    FALLBACK = "fallback"  # serves over whatever links it has
    CLIENT = "client"  # stores no records of others, and is in no routing table


class ModeRule:
    """Chooses the mode, with hysteresis, because each change moves records."""

    def __init__(self) -> None:
        self.mode = Mode.FALLBACK
        self.why = "this node has just started"
        self._reached: float | None = None  # when this node was last known to be reachable

    @property
    def serves(self) -> bool:
        return self.mode is not Mode.CLIENT

    def decide(self, reachable: bool, servers: int, now: float) -> bool:
        """Update the mode; return whether it changed. `servers` counts known reachable servers."""
        if reachable:
            self._reached = now
        mode = self._mode(servers, now)
        changed, self.mode = mode is not self.mode, mode
        self.why = self._words(reachable, servers)
        return changed

    def _mode(self, servers: int, now: float) -> Mode:
        if self._reached is not None and now - self._reached < defaults.REACHED:
            return Mode.SERVER
        few, enough = defaults.SERVERS
        if servers >= (few if self.mode is Mode.CLIENT else enough):
            return Mode.CLIENT
        return Mode.FALLBACK

    def _words(self, reachable: bool, servers: int) -> str:
        if reachable:
            return "this node is publicly reachable"
        if self.mode is Mode.SERVER:
            return "this node was publicly reachable a moment ago"
        if self.mode is Mode.CLIENT:
            return f"this node is not publicly reachable, and {servers} servers are known"
        known = f"only {servers} of {defaults.SERVERS[1]} publicly reachable nodes are known"
        none = "no publicly reachable node is known"
        return f"this node is not publicly reachable, and {known if servers else none}"
