"""Counting at the door."""

from shoal.transport.limits import Crowd, HalfOpen, Limits


def test_half_open_connections_are_counted_by_subnet() -> None:
    doors = HalfOpen(Limits(half_open=5, half_open_per_subnet=2, half_open_loopback=3))
    assert doors.enter("192.0.2.1") == doors.enter("192.0.2.200") == "192.0.2.0/24"
    assert doors.enter("192.0.2.3") is None
    assert doors.enter("::ffff:192.0.2.3") is None
    assert doors.enter("2001:db8::1") == doors.enter("2001:db8::ffff:1") == "2001:db8::/64"
    assert doors.enter("2001:db8::2") is None
    assert doors.enter("198.51.100.1") == "198.51.100.0/24"
    assert doors.enter("203.0.113.1") is None  # five in all
    assert [doors.enter("127.0.0.1") for _ in range(4)] == ["loopback"] * 3 + [None]
    doors.leave("192.0.2.0/24")
    assert doors.enter("192.0.2.9") == "192.0.2.0/24"


def test_a_crowd_is_counted_in_all_and_by_subnet() -> None:
    crowd = Crowd(4, 2, 3)
    first = crowd.enter("192.0.2.1")
    assert first is not None and crowd.enter("192.0.2.200") == first
    assert crowd.enter("192.0.2.3") is None
    assert crowd.enter("127.0.0.1") == crowd.enter("::1") == "loopback"
    assert crowd.enter("127.0.0.1") is None  # four are in
    crowd.leave(first)
    assert crowd.enter("198.51.100.1") is not None


def test_all_nonsense_is_one_subnet() -> None:
    crowd = Crowd(9, 2, 3)
    assert crowd.enter("") == crowd.enter("nonsense") == "unknown"
    assert crowd.enter("more") is None


def test_this_machine_may_be_counted_apart() -> None:
    crowd = Crowd(1, 1, 2, apart=True)
    assert crowd.enter("127.0.0.1") == crowd.enter("127.0.0.1") == "loopback"
    assert crowd.enter("192.0.2.1") is not None
    assert crowd.enter("198.51.100.1") is None
