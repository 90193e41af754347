"""Packets leave at a rate."""

import pytest

from shoal.transport.udp import defaults
from shoal.transport.udp.congestion import DelayControl, Pacer

SIZE = 1200


class Steady(DelayControl):
    """Congestion control that knows what it wants."""

    wanted = 1e6

    @property
    def pacing_rate(self) -> float:
        return self.wanted


def sent(seconds: float, rate: float) -> tuple[int, int]:
    """Return the bytes sent within `seconds`, and how often the sender woke."""
    control = Steady(max_datagram_size=SIZE)
    control.wanted = rate
    pacer = Pacer(control, SIZE)
    now, total, wakes = 1.0, 0, 0
    while now < 1.0 + seconds:
        wakes += 1
        pacer.begin(now)
        count = 0
        while (later := pacer.next_send_time(now)) is None:
            pacer.update_after_send(now)
            count += 1
        pacer.settle(count * SIZE)
        total += count * SIZE
        assert later > now
        now = later
    return total, wakes


@pytest.mark.parametrize("rate", [1e4, 1e6, 3e7])
def test_the_rate_is_kept(rate: float) -> None:
    total, wakes = sent(2, rate)
    burst = max(min(rate * defaults.BURST_S, defaults.BURST_BYTES), 4 * SIZE)
    assert abs(total - 2 * rate) <= burst + SIZE
    assert wakes <= 2 / defaults.WAKE_S + 2


def test_before_a_round_trip_nothing_waits() -> None:
    pacer = Pacer(DelayControl(max_datagram_size=SIZE), SIZE)
    pacer.begin(1.0)
    for _ in range(20):
        assert pacer.next_send_time(1.0) is None
        pacer.update_after_send(1.0)


def test_acknowledgements_cost_nothing() -> None:
    control = Steady(max_datagram_size=SIZE)
    pacer = Pacer(control, SIZE)
    pacer.begin(1.0)
    for _ in range(50):
        pacer.update_after_send(1.0)
        pacer.settle(0)
    assert pacer.next_send_time(1.0) is None
