"""A token bucket."""

from shoal.transport.lan.rate import Rate


def test_so_many_at_once_and_so_many_a_second() -> None:
    rate = Rate(2.0, 3, 10.0)
    assert [rate.allows(10.0) for _ in range(4)] == [True, True, True, False]
    assert rate.allows(10.5) and not rate.allows(10.5)
    assert [rate.allows(1000.0) for _ in range(4)] == [True, True, True, False]
    assert not rate.allows(0.0), "a clock that goes back gives nothing"
