"""The positions that a stage and the next stage lack after a change of their chain. No I/O.

Spec: docs/spec/session.md, *Replaced stages*.
"""

from ...errors import SessionError


class Rebuilding:
    """State of one stage in one epoch of a changed chain, which continues at position `resume`.

    A stage that has the state of fewer than `resume` positions asks for the inputs of the next
    ones, one range after another, and the previous stage sends exactly these.
    """

    def __init__(self, resume: int, have: int) -> None:
        self.resume = resume
        self._have = min(have, resume)  # positions of which the inputs have arrived, in order
        self._asked = self._have  # end of the range that was asked for last
        self._given = 0  # positions that were sent to the next stage …
        self._wanted = -1  # … and those that it asked for, or -1
        self._rewound = False
        self.through = False
        """Whether the log lacks what the next stage needs, so that outputs pass through."""

    @property
    def lacks(self) -> bool:
        """Whether inputs of positions before `resume` are missing."""
        return self._have < self.resume

    def ask(self, most: int) -> tuple[int, int] | None:
        """Return the next range of at most `most` positions to ask for, or None if all that was
        asked for has not arrived yet, or nothing is missing."""
        if not self.lacks or self._have < self._asked:
            return None
        stop = min(self._have + most, self.resume)
        if self.through:
            stop = min(stop, self._wanted)
        if stop <= self._have:
            return None
        self._asked = stop
        return self._have, stop

    def takes(self, start: int, count: int, *, token: bool) -> bool:
        """Return whether to compute a span that arrives. Others that are on their way are ignored
        until nothing is missing."""
        if not self.lacks:
            return True
        if token or start != self._have or start + count > self._asked:
            return False
        self._have += count
        return True

    def want(self, start: int, stop: int, most: int) -> None:
        """Note that the next stage needs a range.

        It asks for one range after another, and may start again once in an epoch. Raises
        SessionError `bad-message` for other ranges, which would make this stage send the same
        again and again.
        """
        anew = self._wanted < 0 or (start < self._wanted and not self._rewound)
        if stop > self.resume or stop - start > most or not (anew or start == self._wanted):
            raise SessionError("bad-message", f"positions {start} to {stop} are not what follows")
        if anew:
            self._rewound = self._wanted >= 0
            self._given = start
        self._wanted = stop

    @property
    def wanted(self) -> tuple[int, int]:
        """The range that the next stage has asked for and was not sent yet. It may be empty."""
        return self._given, max(self._wanted, self._given)

    def gave(self, stop: int) -> None:
        """Note that the positions before `stop` were sent."""
        self._given = stop

    def rewind(self, start: int) -> bool:
        """Begin at the position `start` if it is earlier, because the log lacks what the next stage
        needs. From then on, this stage asks only for positions that the next stage asks for. Return
        whether `start` was earlier."""
        if start >= self._have:
            return False
        self._have = self._asked = start
        self.through = True
        return True
