"""So many at once, so many per second."""

from shoal.state.pace import Pace


def test_a_burst_then_a_rate() -> None:
    pace = Pace(3, 2, now=0.0)
    assert [pace.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert not pace.take(0.4)
    assert pace.take(0.6)
    assert [pace.take(100.0) for _ in range(4)] == [True, True, True, False]
