"""Loss recovery of a sender: the start and the end of recovery, and the sending rate during it."""

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
    """Base class of the sender, with its sequence numbers, its unacknowledged segments and its
    congestion window.
    """

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
        self.una = self.nxt = isn  # first unacknowledged and next sequence number
        self.board = Scoreboard()
        """The segments in flight, and which of them were acknowledged."""
        self.cubic = Cubic()
        """The congestion window."""
        self.phase = OPEN
        self._recover = isn  # recovery ends when this sequence number is acknowledged
        self._prr_delivered = self._prr_out = self._prr_flight = 0
        self._undo = (0.0, 0.0)  # window and threshold before the losses
        self._undo_stamp = INFINITY  # time of the first retransmission

    def _begin_recovery(self, phase: int) -> None:
        """Begin a phase of recovery, and reduce the congestion window."""
        cubic = self.cubic
        self._undo = cubic.window, cubic.ssthresh
        self._undo_stamp = INFINITY
        self._recover = self.nxt
        self._prr_delivered = self._prr_out = 0
        self._prr_flight = len(self.board)
        self.phase = phase
        cubic.reduce()

    def _recovered(self) -> None:
        """End the recovery, because all segments that were in flight at its start are
        acknowledged.
        """
        cubic = self.cubic
        if self.phase == RECOVERY:
            cubic.window = cubic.ssthresh
        self.phase = OPEN
        self._undo_stamp = INFINITY

    def _pace(self, delivered: int) -> None:
        """Set the congestion window so that no more segments are sent than were delivered:
        proportional rate reduction (RFC 6937). `delivered` is the number of segments that the
        latest ACK reports.
        """
        self._prr_delivered += delivered
        pipe, threshold = self.board.pipe, self.cubic.ssthresh
        if pipe > threshold:
            allowed = ceil(self._prr_delivered * threshold / self._prr_flight) - self._prr_out
        else:
            due = max(self._prr_delivered - self._prr_out, delivered) + 1
            allowed = int(min(threshold - pipe, due))
        self.cubic.window = float(pipe + max(allowed, 0 if self._prr_out else 1))

    def _undo_losses(self) -> None:
        """Undo the reduction of the congestion window, because nothing was lost: the peer has
        acknowledged the original segment, not its retransmission (RFC 3522).
        """
        cubic = self.cubic
        window, threshold = self._undo
        cubic.window = max(cubic.window, window)
        cubic.ssthresh = max(cubic.ssthresh, threshold)
        self.board.find_all()
        self.phase = OPEN
        self._undo_stamp = INFINITY
