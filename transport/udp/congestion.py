"""Congestion control by a model of the path, instead of by counting losses.

The model is that of BBR (Cardwell and others, "BBR: Congestion-Based Congestion Control", ACM Queue
2016; draft-cardwell-iccrg-bbr-congestion-control). The highest delivery rate of the last round
trips and the shortest round trip determine how many bytes the path holds. Random loss changes
neither. This implementation differs in four points:

- The window is the number of bytes that the path holds plus those of a few milliseconds, not twice
  the number that the path holds. This limits what several of our flows together keep in a modem's
  buffer.
- The startup phase ends as soon as the round trip grows (HyStart++, RFC 9406), before the buffer is
  full.
- A probe for more bandwidth starts from the present round trip, which includes the queue of other
  flows, and not from the shortest one. The flow thereby keeps its share beside a sender that fills
  the buffer (CUBIC). With the limited window alone, it would lose its share. The probe adds at most
  a quarter of our rate for one round trip.
- A flow that measures the shortest round trip shortens the queue. Other flows notice this and
  measure at the same time. If each flow measured alone, it would mistake the queue of the others
  for a part of the path.

If more than `LOSS_SHARE` of a round trip's packets are lost, the rate is reduced (BBRv2).

`Pacer` spaces packets at this rate. It sends them in bursts that are large enough to be worth a
wake-up of the sender.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum

from aioquic.quic.congestion.base import QuicCongestionControl
from aioquic.quic.packet_builder import QuicSentPacket

from . import defaults

Mark = tuple[int, float, float, bool]
"""State when a packet was sent: (bytes delivered so far, time of the latest delivery, time at which
the packet acknowledged by that delivery was sent, whether the sender had no more data)."""


class Phase(Enum):
    """Phase of congestion control. Each comment says what the sender does in it."""

    STARTUP = "startup"  # doubles the rate until it reaches that of the path
    DRAIN = "drain"  # drains the queue that the startup has built
    CRUISE = "cruise"  # sends at the measured rate
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
    """Congestion control of one path. Sizes are in bytes and times in seconds. aioquic calls it for
    each packet."""

    def __init__(self, *, max_datagram_size: int) -> None:
        self.bytes_in_flight = 0  # sent, and neither acknowledged nor lost
        self.congestion_window = defaults.INITIAL_PACKETS * max_datagram_size  # bytes
        self.phase = Phase.STARTUP
        self.rate = 0.0
        """Delivery rate of the path, in bytes per second; 0 until measured."""
        self.loss = 0.0
        """Share of the bytes of the last round trips that were lost."""
        self.base_rtt = 0.0
        """Shortest round trip, in seconds; 0 until measured."""
        self._size = max_datagram_size
        self.marks: dict[int, Mark] = {}
        """The state at the time when each packet in flight was sent, by packet number."""
        self._delivered = 0
        self._delivered_at = 0.0
        self._first_sent = 0.0
        # While no more bytes than this are delivered, measured rates reflect a lack of data.
        self._limited_until = -1
        # (mark, time sent) of the newest packet that was just acknowledged.
        self._newest: tuple[Mark, float] | None = None
        self._acked = 0
        self._rates: deque[tuple[int, float]] = deque()  # (round, rate), highest rate first
        self._last_rate = 0.0
        self._base_at = 0.0
        self._round = 0
        self._round_rtt = 0.0  # shortest one measured during the present round
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
        """Rate at which to send, in bytes per second; 0 until a round trip has been measured."""
        rate = self.rate
        if not rate or self.phase is Phase.STARTUP:
            rate = max(rate, self.congestion_window / self.base_rtt / 2 if self.base_rtt else 0.0)
        return rate * _GAIN[self.phase]

    @property
    def path_rate(self) -> float:
        """Delivery rate that the path itself limits, in bytes per second; 0 until the sender has
        once had enough data to measure it."""
        return 0.0 if self.phase is Phase.STARTUP else self.rate

    @property
    def packet_rtt(self) -> float:
        """Shortest round trip of a packet in the present round, or in the last one if the present
        one has none yet, in seconds; 0 until measured."""
        return self._round_rtt or (self._standing[-1] if self._standing else 0.0)

    def nothing_more(self) -> None:
        """Record that the sender has no more data at present. Until more bytes than those in flight
        are delivered, measurements that are lower than the present rate are ignored, because the
        lack of data causes them. So they are for what is sent next, if nothing is in flight: a
        single packet takes a round trip, whatever the path could carry."""
        self._limited_until = max(self._delivered + self.bytes_in_flight, 1)

    # Callbacks of aioquic.

    def on_packet_sent(self, *, packet: QuicSentPacket) -> None:
        sent = packet.sent_time or 0.0
        if not self.bytes_in_flight:
            self._first_sent = self._delivered_at = sent
        self.marks[packet.packet_number] = (
            self._delivered,
            self._delivered_at,
            self._first_sent,
            self._limited_until >= self._delivered,
        )
        self.bytes_in_flight += packet.sent_bytes

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        size = packet.sent_bytes
        self.bytes_in_flight -= size
        self._delivered += size
        self._delivered_at = now
        self._acked += size
        mark = self.marks.pop(packet.packet_number, None)
        if mark is not None:
            self._first_sent = packet.sent_time or 0.0
            self._newest = mark, self._first_sent

    def on_packets_expired(self, *, packets: Iterable[QuicSentPacket]) -> None:
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes
            self.marks.pop(packet.packet_number, None)

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes
            self.marks.pop(packet.packet_number, None)
            self._round_lost += packet.sent_bytes

    def on_persistent_congestion(self) -> None:
        """Restart in the startup phase. All packets of a long period were lost, so earlier
        measurements say nothing about the present path."""
        self._rates.clear()
        self.rate = self._last_rate = self._full_rate = 0.0
        self._full_rounds = 0
        self.congestion_window = defaults.MINIMUM_PACKETS * self._size
        self.phase = Phase.STARTUP

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """Process an acknowledgement. aioquic calls this after it has reported each acknowledged
        packet."""
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
        """Measure the delivery rate from the newest acknowledged packet: its `mark` and the time at
        which it was sent (draft-cheng-iccrg-delivery-rate-estimation)."""
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
        lost = self._round_lost / max(1, acked + self._round_lost)
        self.loss += defaults.LOSS_WEIGHT * (lost - self.loss)
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
        """Reduce the rate after too much loss, to the latest delivery rate or to a fixed part of
        the present rate, whichever is higher."""
        self._loss_round = self._round
        self.rate = min(self.rate, max(defaults.LOSS_FACTOR * self.rate, self._last_rate))
        self._rates.clear()
        self._rates.append((self._round, self.rate))
        self._enter(Phase.DOWN, now)

    def _see_full(self, now: float, acked: int) -> None:
        """End the startup phase if a queue builds up or if the rate has stopped growing."""
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
            # The pseudorandom part prevents flows that began together from probing simultaneously.
            rounds = defaults.CRUISE_ROUNDS + (self._delivered // self._size & 3)
            if (
                self._round >= self._phase_round + rounds
                and now > self._phase_at + defaults.CRUISE_S
            ):
                self._enter(Phase.UP, now)
        elif phase is Phase.UP and rtt > self._up_rtt + defaults.QUEUE_S:
            self._enter(Phase.DOWN, now)

    def _wants_base(self, now: float, rtt: float) -> bool:
        """Return whether to begin measuring the round trip without a queue.

        This is so if the last measurement is old, or if another flow seems to be measuring. Flows
        must measure at the same time, because a flow that measures alone sees the queue of the
        others.
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
        """Return the bandwidth-delay product of the path in bytes, for a round trip of `rtt`
        seconds."""
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
        """Size of the datagrams that are sent, in bytes."""
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
        """Charge the `sent` bytes of the packets that were just built, instead of the estimates of
        `update_after_send`. Packets with only acknowledgements are not charged."""
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
