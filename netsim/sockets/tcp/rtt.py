"""Round-trip time, and the retransmission timeout computed from it (RFC 6298, with Linux's
minimum).
"""

from .defaults import INFINITY, RTO_MAX_S, RTO_MIN_S, SYN_TIMEOUT_S


class RoundTrip:
    """Round-trip time of one connection, in seconds: smoothed, variation and minimum, with the
    retransmission timeout `rto`.
    """

    __slots__ = ("least", "rto", "smooth", "variation")

    def __init__(self) -> None:
        self.smooth = 0.0  # 0 if nothing is measured yet
        self.variation = 0.0
        """Smoothed deviation of the round trips, in seconds (RFC 6298)."""
        self.least = INFINITY
        self.rto = SYN_TIMEOUT_S

    def sample(self, rtt: float) -> None:
        """Add a measured round-trip time, and compute the timeout again."""
        if rtt < self.least:
            self.least = rtt
        if self.smooth:
            difference = rtt - self.smooth
            self.smooth += difference / 8
            self.variation += (abs(difference) - self.variation) / 4
        else:
            self.smooth = rtt or 1e-9
            self.variation = rtt / 2
        # Linux applies the minimum to the variation, not to the sum.
        slack = 4 * self.variation
        rto = self.smooth + (slack if slack > RTO_MIN_S else RTO_MIN_S)
        self.rto = rto if rto < RTO_MAX_S else RTO_MAX_S
