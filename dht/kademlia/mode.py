"""Mode of this node in the DHT: server, fallback server, or client.

A publicly reachable node is a server. Other nodes are normally clients, because every request to
them would have to pass a relay. If too few publicly reachable servers are known, a node that is not
reachable serves as well (fallback).
"""

from enum import StrEnum

from .. import defaults


class Mode(StrEnum):
    """Role of this node in the DHT."""

    SERVER = "server"  # publicly reachable
    FALLBACK = "fallback"  # not reachable, but serves because too few servers are known
    CLIENT = "client"  # stores no records of others, and is in no routing table


class ModeRule:
    """Rule that chooses the mode. It has hysteresis, because each change of the mode moves records.

    `why` is the reason for the present mode, for people.
    """

    def __init__(self) -> None:
        self.mode = Mode.FALLBACK
        self.why = "this node has just started"
        self._reached: float | None = None  # when this node was last known to be reachable

    @property
    def serves(self) -> bool:
        """Whether this node answers DHT requests and stores records of others."""
        return self.mode is not Mode.CLIENT

    def decide(self, reachable: bool, servers: int, now: float) -> bool:
        """Update the mode and the reason. Return whether the mode has changed.

        `servers` is the number of publicly reachable servers that this node knows. `now` is in
        seconds.
        """
        if reachable:
            self._reached = now
        mode = self._mode(servers, now)
        changed, self.mode = mode is not self.mode, mode
        self.why = self._words(reachable, servers)
        return changed

    def _mode(self, servers: int, now: float) -> Mode:
        """Return the mode that the rule chooses at `now`, for this number of known servers."""
        if self._reached is not None and now - self._reached < defaults.REACHED:
            return Mode.SERVER
        few, enough = defaults.SERVERS
        if servers >= (few if self.mode is Mode.CLIENT else enough):
            return Mode.CLIENT
        return Mode.FALLBACK

    def _words(self, reachable: bool, servers: int) -> str:
        """Return the text of `why`."""
        if reachable:
            return "this node is publicly reachable"
        if self.mode is Mode.SERVER:
            return "this node was publicly reachable a moment ago"
        if self.mode is Mode.CLIENT:
            return f"this node is not publicly reachable, and {servers} servers are known"
        known = f"only {servers} of {defaults.SERVERS[1]} publicly reachable nodes are known"
        none = "no publicly reachable node is known"
        return f"this node is not publicly reachable, and {known if servers else none}"
