"""pace: the rate limiter lets background work dial one peer at a time."""

from shoal.dht.pace import Pace


def test_one_dial_per_pause_and_none_before_the_first() -> None:
    pace = Pace(20.0, now=100.0)
    assert not pace.take(100.0) and pace.at == 120.0
    assert pace.take(121.0) and pace.at == 141.0, "unused dials are not saved up"
    assert not pace.take(140.9) and pace.take(141.0)


def test_many_dials_end_within_their_time() -> None:
    pace = Pace(20.0, now=0.0)
    assert pace.within(1_200.0, 60, now=0.0) is pace
    fast = pace.within(1_200.0, 20_000, now=5.0)
    assert fast.pause == 0.06 and fast.at == 5.06 and pace.pause == 20.0


def test_pauses_grow_up_to_the_limit() -> None:
    pace, times = Pace(20.0, now=0.0, most=60.0), []
    for second in range(400):
        if pace.take(float(second)):
            times.append(second)
    assert times == [20, 50, 95, 155, 215, 275, 335, 395]
