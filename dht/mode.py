"""Whether this node keeps others' records: as a server, for want of better ones, or not at all.

Reachable nodes serve. Who cannot be dialled is a client, as whoever asks it for records pays for
the way through a relay; but a swarm that has hardly a server that all reach needs everybody.
"""

from enum import StrEnum

from . import defaults


class Mode(StrEnum):
    """What a node is to the others."""

    SERVER = "server"  # dialled by anybody
    FALLBACK = "fallback"  # serves by whatever links it has
    CLIENT = "client"  # keeps none of others' records, and is in nobody's table


class ModeRule:
    """Decides; slow to change its mind, as each change moves records."""

    def __init__(self) -> None:
        self.mode = Mode.FALLBACK
        self.why = "this node has just started"
        self._reached: float | None = None  # when it was last found to be reachable

    @property
    def serves(self) -> bool:
        return self.mode is not Mode.CLIENT

    def decide(self, reachable: bool, servers: int, now: float) -> bool:
        """Look again; `servers` are the reachable ones that this node knows. True: it changed."""
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
            return "others reach this node from outside"
        if self.mode is Mode.SERVER:
            return "others reached this node a moment ago"
        if self.mode is Mode.CLIENT:
            return f"others do not reach this node from outside, and {servers} servers are known"
        known = f"only {servers} of {defaults.SERVERS[1]}" if servers else "none"
        return f"others do not reach this node from outside, but {known} whom all reach is known"
