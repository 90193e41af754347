"""Packets leave at the rate that congestion control says, in bursts worth waking up for."""

from . import defaults
from .congestion import DelayControl


class Pacer:
    """A bucket of bytes, in the place of aioquic's own pacer."""

    def __init__(self, control: DelayControl, datagram_bytes: int) -> None:
        self.datagram_bytes = datagram_bytes
        self._control = control
        self._bucket = 0.0  # bytes that may leave at once
        self._filled = 0.0  # when it was filled last
        self._before = 0.0  # what it held before the packets that are being built

    def begin(self, now: float) -> None:
        """Packets are going to be built."""
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
        """So many of their bytes count: acknowledgements alone do not."""
        self._bucket = self._before - sent

    def next_send_time(self, now: float) -> float | None:
        """When the next packet may leave; None: at once."""
        rate = self._control.pacing_rate
        if self._bucket > 0 or not rate:
            return None
        return now + max(defaults.WAKE_S, (1 - self._bucket) / rate)

    def update_after_send(self, now: float) -> None:
        """A packet is built, of what size is not known yet."""
        self._bucket -= self.datagram_bytes

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """The rate is asked for when it is needed."""
