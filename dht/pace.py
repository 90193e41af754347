"""How often upkeep may dial: nobody waits for it, and a dial costs more than what it asks.

Joining, the refresh of buckets and the publication of what members know already take turns here.
What a user or an application waits for does not. Sans-I/O; times are seconds of the host's
monotonic clock.
"""


class Pace:
    """One dial each `pause` seconds, the first of them after the first pause."""

    def __init__(self, pause: float, now: float) -> None:
        self.pause = pause
        self.at = now + pause
        """When the next may go."""

    def take(self, now: float) -> bool:
        """Whether one may go now; if so, it counts."""
        if now < self.at:
            return False
        self.at = now + self.pause
        return True

    def within(self, seconds: float, dials: int, now: float) -> "Pace":
        """This one, or a faster one where so many dials would take longer than that: of a thousand
        records none may end before it is announced again."""
        if dials * self.pause <= seconds:
            return self
        return Pace(seconds / dials, now)
