"""Loss recovery of a sender: when it enters recovery, and how fast it sends meanwhile."""

from math import ceil
from typing import Final

from .congestion import Cubic
from .defaults import INFINITY
from .scoreboard import Scoreboard

# Phases of loss recovery.
OPEN: Final = 0
RECOVERY: Final = 1  # fast recovery, paced by PRR (RFC 6937)
LOSS: Final = 2  # after a timeout


class Recovery:
    """Base of the sender with its position, its losses and its congestion window."""

    __slots__ = (
        "_prr_delivered",
        "_prr_flight",
        "_prr_out",
        "_recover",
        "_undo",
        "_undo_stamp",
        "board",
        "cubic",
        "nxt",
        "phase",
        "una",
    )

    def __init__(self, isn: int) -> None:
        self.una = self.nxt = isn  # first unacknowledged, next to send
        self.board = Scoreboard()
        self.cubic = Cubic()
        self.phase = OPEN
        self._recover = isn  # recovery ends when this is acknowledged
        self._prr_delivered = self._prr_out = self._prr_flight = 0
        self._undo = (0.0, 0.0)  # window and threshold before the losses
        self._undo_stamp = INFINITY  # when the first of them was sent again

    def _begin_recovery(self, phase: int) -> None:
        cubic = self.cubic
        self._undo = cubic.window, cubic.ssthresh
        self._undo_stamp = INFINITY
        self._recover = self.nxt
        self._prr_delivered = self._prr_out = 0
        self._prr_flight = len(self.board)
        self.phase = phase
        cubic.reduce()

    def _recovered(self) -> None:
        cubic = self.cubic
        if self.phase == RECOVERY:
            cubic.window = cubic.ssthresh
        self.phase = OPEN
        self._undo_stamp = INFINITY

    def _pace(self, delivered: int) -> None:
        """Limit sending to what was delivered: proportional rate reduction (RFC 6937)."""
        self._prr_delivered += delivered
        pipe, threshold = self.board.pipe, self.cubic.ssthresh
        if pipe > threshold:
            allowed = ceil(self._prr_delivered * threshold / self._prr_flight) - self._prr_out
        else:
            due = max(self._prr_delivered - self._prr_out, delivered) + 1
            allowed = int(min(threshold - pipe, due))
        self.cubic.window = float(pipe + max(allowed, 0 if self._prr_out else 1))

    def _undo_losses(self) -> None:
        """Undo a reduction: the original arrived, not the retransmission, so nothing was lost (RFC
        3522).
        """
        cubic = self.cubic
        window, threshold = self._undo
        cubic.window = max(cubic.window, window)
        cubic.ssthresh = max(cubic.ssthresh, threshold)
        self.board.find_all()
        self.phase = OPEN
        self._undo_stamp = INFINITY
