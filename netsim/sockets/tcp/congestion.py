"""Congestion control: CUBIC (RFC 9438), counted in segments, with HyStart as in Linux."""

from typing import Final

from .defaults import INFINITY, INITIAL_WINDOW

_C: Final = 0.4  # segments per second cubed (RFC 9438, section 5)
_BETA: Final = 0.7
# Makes the estimate grow as fast as Reno's window (RFC 9438, section 4.3).
_ALPHA: Final = 3 * (1 - _BETA) / (1 + _BETA)
_LEAST: Final = 2.0  # minimum of the threshold, in segments

# HyStart (Ha and Rhee 2011) ends slow start when the round-trip time grows, before a loss occurs.
_START_WINDOW: Final = 16.0  # window in segments below which HyStart is inactive
_SAMPLES: Final = 8  # measurements per round, of which the smallest counts
# Bounds in seconds of the tolerated growth, which is an eighth of the smallest round trip.
_DELAY_S: Final = (0.004, 0.016)


class Cubic:
    """Congestion window of one connection, in segments."""

    __slots__ = (
        "_epoch",
        "_estimate",
        "_k",
        "_most",
        "_origin",
        "_round_end",
        "_round_least",
        "_samples",
        "ssthresh",
        "window",
    )

    def __init__(self) -> None:
        self.window = float(INITIAL_WINDOW)
        self.ssthresh = INFINITY
        self._most = 0.0  # window at the last loss (W_max)
        self._origin = 0.0  # window at the plateau of the current curve
        self._epoch = -1.0  # time at which congestion avoidance began; negative if it has not
        self._k = 0.0  # seconds from the beginning to the plateau
        self._estimate = 0.0  # window that Reno would have
        self._round_end = 0  # sequence number whose acknowledgement ends a round of slow start
        self._round_least = INFINITY  # smallest round-trip time (s) of the round
        self._samples = 0

    def grow(self, acked: int, now: float, rtt: float) -> None:
        """Increase the window after `acked` segments were delivered while the window was fully
        used. `rtt` is the smoothed round-trip time in seconds.
        """
        if self.window < self.ssthresh:
            self.window = min(self.window + acked, max(self.ssthresh, self.window))
            return
        if self._epoch < 0:
            self._begin(now)
        since = now - self._epoch
        target = self._origin + _C * (since + rtt - self._k) ** 3
        alpha = _ALPHA if self._estimate < self._most else 1.0
        self._estimate += alpha * acked / self.window
        if self._origin + _C * (since - self._k) ** 3 < self._estimate:
            self.window = max(self.window, self._estimate)  # the Reno-friendly region
        elif target > self.window:
            step = min(target, 1.5 * self.window) - self.window
            self.window += step / self.window * acked

    def watch(self, rtt: float, least: float, una: int, nxt: int) -> None:
        """Process a round-trip time (seconds) measured in slow start, and end slow start if a queue
        builds up. `least` is the smallest round-trip time so far, `una` the first unacknowledged
        sequence number, and `nxt` the next one to send.
        """
        if una >= self._round_end:
            self._round_end = nxt
            self._round_least = INFINITY
            self._samples = 0
        if self._samples >= _SAMPLES:
            return
        self._samples += 1
        if rtt < self._round_least:
            self._round_least = rtt
        low, high = _DELAY_S
        slack = min(max(least / 8, low), high)
        full = self._samples == _SAMPLES and self.window >= _START_WINDOW
        if full and self._round_least > least + slack:
            self.ssthresh = self.window

    def _begin(self, now: float) -> None:
        """Begin congestion avoidance: compute the curve of the window."""
        self._epoch = now
        self._estimate = self.window
        if self.window < self._most:
            self._k = ((self._most - self.window) / _C) ** (1 / 3)
            self._origin = self._most
        else:
            self._k = 0.0
            self._origin = self.window

    def reduce(self) -> None:
        """Reduce the slow-start threshold after a loss. The window itself is reduced later, during
        recovery (`recovery.py`).
        """
        window = self.window
        # Fast convergence (RFC 9438, section 4.7): leave bandwidth to others if losses recur.
        self._most = window * (1 + _BETA) / 2 if window < self._most else window
        self._epoch = -1.0
        self.ssthresh = max(window * _BETA, _LEAST)

    def after_pause(self, silent: float, rto: float) -> None:
        """Reduce the window after `silent` seconds without sending: halve it once per
        retransmission timeout `rto` (RFC 2861).
        """
        floor = min(float(INITIAL_WINDOW), self.window)
        self.ssthresh = max(self.ssthresh, 0.75 * self.window)
        while silent > rto and self.window > floor:
            silent -= rto
            self.window /= 2
        self.window = max(self.window, floor)
        self._epoch = -1.0
