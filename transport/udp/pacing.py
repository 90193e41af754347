"""Pacing: spaces packets at the rate that congestion control sets, in bursts that are large enough
to be worth a wake-up."""

from . import defaults
from .congestion import DelayControl


class Pacer:
    """Token bucket of bytes, which replaces aioquic's pacer."""

    def __init__(self, control: DelayControl, datagram_bytes: int) -> None:
        self.datagram_bytes = datagram_bytes
        self._control = control
        self._bucket = 0.0  # bytes that may leave at once
        self._filled = 0.0  # when the bucket was last refilled
        self._before = 0.0  # level of the bucket before the present packets were built

    def begin(self, now: float) -> None:
        """Refill the bucket. Call this before packets are built."""
        rate = self._control.pacing_rate
        most = max(
            min(rate * defaults.BURST_S, defaults.BURST_BYTES),
            defaults.BURST_PACKETS * self.datagram_bytes,
        )
        if now > self._filled:
            self._bucket = min(self._bucket + (now - self._filled) * rate, most)
            self._filled = now
        self._before = self._bucket

    def settle(self, sent: int) -> None:
        """Charge the `sent` bytes of the packets just built that count as in flight. Packets that
        hold only acknowledgements do not count."""
        self._bucket = self._before - sent

    def next_send_time(self, now: float) -> float | None:
        """Return the time at which the next packet may leave, or None if it may leave now."""
        rate = self._control.pacing_rate
        if self._bucket > 0 or not rate:
            return None
        return now + max(defaults.WAKE_S, (1 - self._bucket) / rate)

    def update_after_send(self, now: float) -> None:
        """Charge the largest packet size, because the size of the packet is not known yet. `settle`
        corrects this."""
        self._bucket -= self.datagram_bytes

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Do nothing, because this pacer reads the rate when it needs it."""
