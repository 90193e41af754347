"""How far a peer may write ahead."""

from shoal.transport.rates import ByteBudget
from shoal.transport.udp.defaults import UdpLimits
from shoal.transport.udp.window import FlowWindow

LIMITS = UdpLimits(window_bytes=1000, largest_window_bytes=3000, extra_bytes=2500)


def trusted(extra: ByteBudget) -> FlowWindow:
    """The window of a peer that has proven itself."""
    window = FlowWindow(LIMITS, extra)
    window.trust()
    return window


def read_all(window: FlowWindow, *, rtt: float, seconds: float, times: int = 10) -> None:
    """Read a quarter of the window every `seconds` seconds."""
    now, granted = 1.0, window.limit
    window.grant(now, rtt)
    for _ in range(times):
        window.taken += window.bytes // 4
        now += seconds
        assert window.owes(granted)
        granted = window.grant(now, rtt)
        assert granted == window.taken + window.bytes


def test_it_goes_on_from_what_was_read() -> None:
    window = trusted(ByteBudget(LIMITS.extra_bytes))
    assert window.limit == 1000
    window.taken = 249
    assert not window.owes(1000)
    window.taken = 250
    assert window.owes(1000)
    assert window.grant(1.0, 0.0) == 1250


def test_a_short_path_needs_no_more() -> None:
    window = trusted(ByteBudget(LIMITS.extra_bytes))
    read_all(window, rtt=0.01, seconds=0.05)
    assert window.bytes == 1000


def test_a_long_one_does_up_to_the_largest() -> None:
    window = trusted(ByteBudget(LIMITS.extra_bytes))
    read_all(window, rtt=0.2, seconds=0.05)
    assert window.bytes == 3000


def test_all_together_have_an_end() -> None:
    extra = ByteBudget(LIMITS.extra_bytes)
    windows = [trusted(extra) for _ in range(4)]
    for window in windows:
        read_all(window, rtt=0.2, seconds=0.05)
    assert sum(window.bytes - 1000 for window in windows) <= 2500
    assert extra.used <= extra.limit
    for window in windows:
        window.close()
        window.close()
    assert extra.used == 0


def test_a_stranger_s_window_is_small_and_stays_so() -> None:
    limits = UdpLimits(window_bytes=1000, stranger_window_bytes=100)
    window = FlowWindow(limits, ByteBudget(limits.extra_bytes))
    assert window.limit == 100
    read_all(window, rtt=0.2, seconds=0.05)
    assert window.bytes == 100
    window.trust()
    window.trust()
    assert window.bytes == 1000
