"""Congestion control by a model of the path instead of counting losses.

BBR's model (Cardwell and others, "BBR: Congestion-Based Congestion Control", ACM Queue 2016;
draft-cardwell-iccrg-bbr-congestion-control): the highest delivery rate of the last round trips and
the shortest round trip determine how many bytes the path holds. Random loss changes neither. Four
things differ:

- The window is the path's own bytes plus a few milliseconds, not twice as much. This limits what
  several of our flows together keep in a modem's buffer.
- The start ends as soon as the round trip grows (HyStart++, RFC 9406), before the buffer is full.
- A probe for more bandwidth starts from the present round trip, with other flows' queue in it, and
  not from the shortest one. That keeps a share beside a sender that fills the buffer (CUBIC), which
  a limited window alone would lose. It adds at most a quarter of our rate for one round trip.
- A flow that measures the shortest round trip shortens the queue; other flows notice it and measure
  at the same time. Alone, each would take the others' queue for a part of the path.

If more than `LOSS_SHARE` of a round trip's packets are lost, the rate is reduced (BBRv2).

`Pacer` spaces packets at the rate of this control, in bursts worth a wake-up each.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum

from aioquic.quic.congestion.base import QuicCongestionControl
from aioquic.quic.packet_builder import QuicSentPacket

from . import defaults

Mark = tuple[int, float, float, bool]
"""State when a packet was sent: bytes delivered, time of that delivery, send time of the first
packet of that flight, and whether the sender had nothing more to send."""


class Phase(Enum):
    """Phase of the sender, named for its purpose."""

    STARTUP = "startup"  # finds the rate, by doubling it
    DRAIN = "drain"  # drains the queue that the start has built
    CRUISE = "cruise"
    UP = "up"  # probes for a higher rate
    DOWN = "down"  # drains the queue that the probe has built
    BASE = "base"  # measures the round trip without a queue of ours


_GAIN = {
    Phase.STARTUP: defaults.STARTUP_GAIN,
    Phase.DRAIN: 1 / defaults.STARTUP_GAIN,
    Phase.CRUISE: 1.0,
    Phase.UP: defaults.UP_GAIN,
    Phase.DOWN: defaults.DOWN_GAIN,
    Phase.BASE: 1.0,
}


class DelayControl(QuicCongestionControl):
    """Congestion control of one path, in bytes and seconds; aioquic calls it for each packet."""

    def __init__(self, *, max_datagram_size: int) -> None:
        self.bytes_in_flight = 0
        self.congestion_window = defaults.INITIAL_PACKETS * max_datagram_size
        self.phase = Phase.STARTUP
        self.rate = 0.0
        """Bytes per second that the path delivers; 0 until measured."""
        self.base_rtt = 0.0
        """Shortest round trip, in seconds; 0 until measured."""
        self._size = max_datagram_size
        self._marks: dict[int, Mark] = {}
        self._delivered = 0
        self._delivered_at = 0.0
        self._first_sent = 0.0
        self._limited_until = 0  # delivered bytes up to which the sender had nothing more to send
        self._newest: tuple[Mark, float] | None = None  # of the packets just acknowledged
        self._acked = 0
        self._rates: deque[tuple[int, float]] = deque()  # (round, rate), rates descending
        self._last_rate = 0.0
        self._base_at = 0.0
        self._round = 0
        self._round_rtt = 0.0  # shortest in the present round trip
        self._round_lost = 0
        self._round_begin = 0
        self._round_limited = True
        self._round_end = 0
        self._full_rate = 0.0
        self._full_rounds = 0
        self._phase_at = 0.0
        self._phase_round = 0
        self._up_rate = 0.0
        self._up_rtt = 0.0
        self._probed_rtt = 0.0
        self._looked_at = 0.0
        self._loss_round = -2
        self._standing: deque[float] = deque(maxlen=defaults.STANDING_ROUNDS)

    @property
    def pacing_rate(self) -> float:
        """Bytes per second at which to send; 0 until a round trip was measured."""
        rate = self.rate
        if not rate or self.phase is Phase.STARTUP:
            rate = max(rate, self.congestion_window / self.base_rtt / 2 if self.base_rtt else 0.0)
        return rate * _GAIN[self.phase]

    def nothing_more(self) -> None:
        """Record that there is nothing to send, so that lower rates measured now are ignored."""
        self._limited_until = max(self._delivered + self.bytes_in_flight, 1)

    # Callbacks of aioquic.

    def on_packet_sent(self, *, packet: QuicSentPacket) -> None:
        sent = packet.sent_time or 0.0
        if not self.bytes_in_flight:
            self._first_sent = self._delivered_at = sent
        self._marks[packet.packet_number] = (
            self._delivered,
            self._delivered_at,
            self._first_sent,
            self._limited_until > self._delivered,
        )
        self.bytes_in_flight += packet.sent_bytes

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        size = packet.sent_bytes
        self.bytes_in_flight -= size
        self._delivered += size
        self._delivered_at = now
        self._acked += size
        mark = self._marks.pop(packet.packet_number, None)
        if mark is not None:
            self._first_sent = packet.sent_time or 0.0
            self._newest = mark, self._first_sent

    def on_packets_expired(self, *, packets: Iterable[QuicSentPacket]) -> None:
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes
            self._marks.pop(packet.packet_number, None)

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes
            self._marks.pop(packet.packet_number, None)
            self._round_lost += packet.sent_bytes

    def on_persistent_congestion(self) -> None:
        """Start again: after a long loss of everything, earlier measurements are worthless."""
        self._rates.clear()
        self.rate = self._last_rate = self._full_rate = 0.0
        self._full_rounds = 0
        self.congestion_window = defaults.MINIMUM_PACKETS * self._size
        self.phase = Phase.STARTUP

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """Process an acknowledgement, after all its packets were reported."""
        newest, self._newest = self._newest, None
        if newest is None:
            return
        self._take_rtt(now, rtt)
        self._take_rate(now, *newest)
        if newest[0][0] >= self._round_end:
            self._end_round(now)
        self._advance(now, rtt)
        self._set_window()

    # Samples.

    def _take_rtt(self, now: float, rtt: float) -> None:
        if not self.base_rtt or rtt <= self.base_rtt:
            self.base_rtt = rtt
            self._base_at = now
        elif rtt <= self.base_rtt + defaults.BASE_NOISE_S:
            self._base_at = now
        if not self._round_rtt or rtt < self._round_rtt:
            self._round_rtt = rtt
        if not self._probed_rtt or rtt < self._probed_rtt:
            self._probed_rtt = rtt

    def _take_rate(self, now: float, mark: Mark, sent: float) -> None:
        """Measure the delivery rate (draft-cheng-iccrg-delivery-rate-estimation)."""
        delivered, delivered_at, first_sent, limited = mark
        interval = max(now - delivered_at, sent - first_sent)
        if interval <= 0 or interval < 0.99 * self.base_rtt:
            return
        rate = (self._delivered - delivered) / interval
        if limited and rate < self.rate:
            return
        self._last_rate = rate
        self._round_limited = self._round_limited and limited
        rates = self._rates
        while rates and rates[-1][1] <= rate:
            rates.pop()
        rates.append((self._round, rate))
        while rates[0][0] < self._round - defaults.RATE_ROUNDS:
            rates.popleft()
        self.rate = rates[0][1]

    def _start_round(self) -> None:
        self._round_rtt = 0.0
        self._round_lost = 0
        self._round_begin = self._delivered
        self._round_limited = True

    # Round trips.

    def _end_round(self, now: float) -> None:
        self._round += 1
        self._round_end = self._delivered
        acked = self._delivered - self._round_begin
        if self._round_lost >= defaults.LOSS_PACKETS * self._size:
            share = self._round_lost / (acked + self._round_lost)
            if share > defaults.LOSS_SHARE and self._round > self._loss_round + 1:
                self._draw_back(now)
        if self._round_rtt:
            self._standing.append(self._round_rtt)
        if self.phase is Phase.STARTUP:
            self._see_full(now, acked)
        elif self.phase is Phase.UP and self._round > self._phase_round + 1:
            if self.rate > 1.1 * self._up_rate:
                self._up_rate = self.rate
            else:
                self._enter(Phase.DOWN, now)
        self._start_round()

    def _draw_back(self, now: float) -> None:
        """Reduce the rate after too much loss, to what was delivered or a fixed share."""
        self._loss_round = self._round
        self.rate = min(self.rate, max(defaults.LOSS_FACTOR * self.rate, self._last_rate))
        self._rates.clear()
        self._rates.append((self._round, self.rate))
        self._enter(Phase.DOWN, now)

    def _see_full(self, now: float, acked: int) -> None:
        """End the start if it has reached the path's rate."""
        queue = self._round_rtt - self.base_rtt
        if acked >= 8 * self._size and queue > min(max(self.base_rtt / 8, 0.004), 0.016):
            self._enter(Phase.DRAIN, now)
        elif self.rate >= defaults.GROWTH * self._full_rate:
            self._full_rate, self._full_rounds = self.rate, 0
        elif not self._round_limited:
            self._full_rounds += 1
            if self._full_rounds >= defaults.FULL_ROUNDS:
                self._enter(Phase.DRAIN, now)

    # Phases.

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self._phase_at = now
        self._phase_round = self._round
        self._up_rate = self.rate
        self._up_rtt = max(self.base_rtt, self._standing[-1] if self._standing else 0.0)
        self._probed_rtt = 0.0

    def _advance(self, now: float, rtt: float) -> None:
        phase = self.phase
        if phase is Phase.BASE:
            if now >= self._phase_at + max(defaults.BASE_PROBE_S, 3 * self._up_rtt):
                self.base_rtt = self._probed_rtt or self.base_rtt
                self._base_at = self._looked_at = now
                self._standing.clear()
                self._enter(Phase.CRUISE, now)
        elif phase is not Phase.STARTUP and self._wants_base(now, rtt):
            self._enter(Phase.BASE, now)
        elif phase is Phase.DRAIN or phase is Phase.DOWN:
            if self.bytes_in_flight <= self._held(self.base_rtt):
                self._enter(Phase.CRUISE, now)
        elif phase is Phase.CRUISE:
            # A pseudorandom part keeps flows that began together from probing at the same time.
            rounds = defaults.CRUISE_ROUNDS + (self._delivered // self._size & 3)
            if (
                self._round >= self._phase_round + rounds
                and now > self._phase_at + defaults.CRUISE_S
            ):
                self._enter(Phase.UP, now)
        elif phase is Phase.UP and rtt > self._up_rtt + defaults.QUEUE_S:
            self._enter(Phase.DOWN, now)

    def _wants_base(self, now: float, rtt: float) -> bool:
        """Whether to measure the round trip without a queue.

        That is so after some time, or when another flow seems to measure. Measuring together works;
        alone, each flow would see the queue of the others.
        """
        age = now - max(self._base_at, self._looked_at)
        if age > defaults.BASE_AGE_S:
            return True
        return (
            now > self._looked_at + defaults.BASE_AGE_S / 4
            and len(self._standing) == defaults.STANDING_ROUNDS
            and rtt < min(self._standing) - max(defaults.JOIN_S, rtt / 8)
            and rtt > self.base_rtt + defaults.BASE_NOISE_S
        )

    def _held(self, rtt: float) -> float:
        """Return the bytes that the path holds with that round trip."""
        return self.rate * rtt

    def _set_window(self) -> None:
        acked, self._acked = self._acked, 0
        if self.phase is Phase.STARTUP:
            # If little is sent, nothing is learnt about the path, so the window does not grow.
            if self.bytes_in_flight + acked >= self.congestion_window / 2:
                self.congestion_window += acked
        else:
            self.congestion_window = int(self._target())
        least = defaults.MINIMUM_PACKETS * self._size
        self.congestion_window = min(
            max(self.congestion_window, least), defaults.WINDOW_LIMIT_BYTES
        )

    def _target(self) -> float:
        held = self._held(self.base_rtt)
        if self.phase is Phase.BASE:
            return held / 2
        if self.phase is Phase.DRAIN or self.phase is Phase.DOWN:
            return held
        if self.phase is Phase.UP:
            return defaults.UP_GAIN * self._held(self._up_rtt)
        return held + min(self.rate * defaults.SLACK_S, defaults.SLACK_BYTES)


class Pacer:
    """Token bucket of bytes, which replaces aioquic's own pacer."""

    def __init__(self, control: DelayControl, datagram_bytes: int) -> None:
        self.datagram_bytes = datagram_bytes
        self._control = control
        self._bucket = 0.0  # bytes that may leave at once
        self._filled = 0.0  # when it was last filled
        self._before = 0.0  # its level before the packets being built

    def begin(self, now: float) -> None:
        """Refill the bucket before packets are built."""
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
        """Charge the bytes that count. Packets with only acknowledgements do not count."""
        self._bucket = self._before - sent

    def next_send_time(self, now: float) -> float | None:
        """Return when the next packet may leave; None for at once."""
        rate = self._control.pacing_rate
        if self._bucket > 0 or not rate:
            return None
        return now + max(defaults.WAKE_S, (1 - self._bucket) / rate)

    def update_after_send(self, now: float) -> None:
        """Charge a packet whose size is not known yet; `settle` corrects it."""
        self._bucket -= self.datagram_bytes

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Do nothing: the rate is read when it is needed."""
