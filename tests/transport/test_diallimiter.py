"""diallimiter: background work dials one peer at a time."""

from shoal.transport.rates import DialLimiter


def test_one_dial_per_pause_and_none_before_the_first() -> None:
    limiter = DialLimiter(20.0, now=100.0)
    assert not limiter.take(100.0) and limiter.at == 120.0
    assert limiter.take(121.0) and limiter.at == 141.0, "unused dials are not saved up"
    assert not limiter.take(140.9) and limiter.take(141.0)


def test_many_dials_end_within_their_time() -> None:
    limiter = DialLimiter(20.0, now=0.0)
    assert limiter.within(1_200.0, 60, now=0.0) is limiter
    fast = limiter.within(1_200.0, 20_000, now=5.0)
    assert fast.pause == 0.06 and fast.at == 5.06 and limiter.pause == 20.0


def test_pauses_grow_up_to_the_limit() -> None:
    limiter, times = DialLimiter(20.0, now=0.0, most=60.0), []
    for second in range(400):
        if limiter.take(float(second)):
            times.append(second)
    assert times == [20, 50, 95, 155, 215, 275, 335, 395]
