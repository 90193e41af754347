"""Congestion control: CUBIC (RFC 9438), in segments, and HyStart as in Linux."""

from typing import Final

from .defaults import INFINITY, INITIAL_WINDOW

_C: Final = 0.4  # segments per second cubed (RFC 9438, 5)
_BETA: Final = 0.7
_ALPHA: Final = 3 * (1 - _BETA) / (1 + _BETA)  # makes the estimate as fast as Reno (4.3)
_LEAST: Final = 2.0

# HyStart (Ha and Rhee 2011): slow start ends when round trips grow, not with a loss.
_START_WINDOW: Final = 16.0  # segments: inactive below
_SAMPLES: Final = 8  # per round; the smallest counts
_DELAY_S: Final = (0.004, 0.016)  # an eighth of the smallest round trip, within these bounds


class Cubic:
    """Congestion window of one connection."""

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
        self._most = 0.0  # the window at the last loss: W_max
        self._origin = 0.0  # the plateau of the current curve
        self._epoch = -1.0  # when congestion avoidance began; negative: not yet
        self._k = 0.0  # seconds from there to the plateau
        self._estimate = 0.0  # what Reno would have
        self._round_end = 0  # a round of slow start ends when this is acknowledged
        self._round_least = INFINITY  # its smallest round trip
        self._samples = 0

    def grow(self, acked: int, now: float, rtt: float) -> None:
        """Grow after segments were acknowledged while the window was in full use."""
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
        """Check, after a round trip was measured in slow start, whether a queue builds up."""
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
        self._epoch = now
        self._estimate = self.window
        if self.window < self._most:
            self._k = ((self._most - self.window) / _C) ** (1 / 3)
            self._origin = self._most
        else:
            self._k = 0.0
            self._origin = self.window

    def reduce(self) -> None:
        """Reduce the threshold after a loss. The window follows during recovery."""
        window = self.window
        # Fast convergence (4.7): a flow that has just lost leaves bandwidth to new flows.
        self._most = window * (1 + _BETA) / 2 if window < self._most else window
        self._epoch = -1.0
        self.ssthresh = max(window * _BETA, _LEAST)

    def after_pause(self, silent: float, rto: float) -> None:
        """Shrink after `silent` seconds without sending: halve for each timeout (RFC 2861)."""
        floor = min(float(INITIAL_WINDOW), self.window)
        self.ssthresh = max(self.ssthresh, 0.75 * self.window)
        while silent > rto and self.window > floor:
            silent -= rto
            self.window /= 2
        self.window = max(self.window, floor)
        self._epoch = -1.0
