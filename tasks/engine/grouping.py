"""Groups of sessions that travel through a chain's stages, so that all stages have work at once.

A row of such a session leaves the stage, visits the others, and comes back as the session's next
row. Rows that wait for a stage leave it together in one step. Without a limit, they would therefore
gather in one group, and all other stages would wait for the stage that the group visits. While a
stage is idle for a part of the time between two rows of a session, it divides the rows that wait
into more groups: the first rows leave earlier, and the idle time pays for the additional steps.
While it is hardly idle, it makes fewer and larger groups, which need less time in total.

No I/O: times are arguments, in seconds.
"""

from collections.abc import Hashable

from .defaults import GROUP_BUSY, GROUP_GROWTH, GROUP_IDLE, GROUP_PAUSES

_NEWEST = 0.2  # weight of the newest time that a session was away in their mean


class Groups:
    """The sessions of one device that travel, and into how many groups their rows are divided."""

    def __init__(self) -> None:
        self.count = 1.0
        self._away: dict[Hashable, float] = {}  # since when, by session
        self._travelling: set[Hashable] = set()
        self._cycle = 0.0  # mean time between two rows of a session
        self._began = 0.0  # when the measurement of idle time began
        self._ended = 0.0  # when the last step ended
        self._idle = 0.0
        self._busy = 0.0

    def __contains__(self, session: Hashable) -> bool:
        """Return whether a session has come back at least once."""
        return session in self._travelling

    def left(self, session: Hashable, now: float) -> None:
        """Note that the row of a session has left the stage."""
        self._away[session] = now

    def came(self, session: Hashable, now: float) -> None:
        """Note that the next row of a session has arrived, if it had left."""
        since = self._away.pop(session, None)
        if since is None:
            return
        self._travelling.add(session)
        cycle = now - since
        self._cycle += (cycle - self._cycle) * (_NEWEST if self._cycle else 1.0)

    def gone(self, session: Hashable) -> None:
        """Forget a session."""
        self._away.pop(session, None)
        self._travelling.discard(session)
        if not self._travelling:
            self.count = 1.0

    def stepped(self, began: float, ended: float) -> None:
        """Note that the stage has computed from `began` to `ended`, and choose the number of groups
        again if a session's mean time between two rows has passed."""
        idle = began - self._ended
        # In a longer pause, no tokens were asked for.
        if self._travelling and 0 < idle < GROUP_PAUSES * self._cycle:
            self._idle += idle
        self._busy += ended - began
        self._ended = ended
        if ended - self._began >= self._cycle:
            self._choose()
            self._began, self._idle, self._busy = ended, 0.0, 0.0

    def _choose(self) -> None:
        """Choose the number of groups by the part of the time for which the stage was idle."""
        total = self._idle + self._busy
        idle = self._idle / total if total > 0 else 0.0
        if idle > GROUP_IDLE:
            most = max(1, len(self._travelling))
            self.count = min(most, max(self.count + 1, self.count * GROUP_GROWTH))
        elif idle < GROUP_BUSY:
            self.count = max(1.0, self.count / GROUP_GROWTH)

    def most(self) -> int:
        """Return how many rows of travelling sessions a step may have."""
        return max(1, -(-len(self._travelling) // max(1, int(self.count))))
