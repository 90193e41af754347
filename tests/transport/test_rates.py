"""Token buckets, alone and by key."""

import pytest

from shoal.transport.rates import Rate, RateLimiter, Rates

MANY = Rate(1e9, 1e9)


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = RateLimiter(Rate(3, 2.0), 10.0)
    assert [bucket.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.has(10.5) and bucket.take(10.5) and not bucket.has(10.5)
    assert [bucket.take(1000.0) for _ in range(4)] == [True, True, True, False]


def test_several_tokens_are_taken_together_or_not_at_all() -> None:
    rates = Rates(Rate(10, 1.0), Rate(12, 0.0))
    assert rates.take("a", 0.0, 8) and not rates.take("a", 0.0, 3) and rates.take("a", 0.0, 2)
    assert not rates.take("b", 0.0, 3) and rates.take("b", 0.0, 2)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = RateLimiter(Rate(1, 2.0), 10.0)
    assert bucket.take(10.0)
    assert not bucket.take(0.0)


def test_each_key_has_its_own_limiter() -> None:
    rates = Rates(Rate(3, 0.5))
    assert [rates.take("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert not rates.take("a", 1.9)
    assert rates.take("a", 2.0)
    assert not rates.take("a", 2.0)
    assert rates.take("b", 2.0)
    assert [rates.take("a", 1e6) for _ in range(4)] == [True, True, True, False]


def test_the_total_is_limited() -> None:
    rates = Rates(MANY, Rate(10, 1))
    assert sum(rates.take(str(n), 0.0) for n in range(100)) == 10
    assert sum(rates.take(str(n), 5.0) for n in range(100)) == 5


def test_a_refused_key_uses_no_tokens() -> None:
    rates = Rates(Rate(1, 0), Rate(2, 0))
    assert rates.take("a", 0.0)
    assert not any(rates.take("a", 0.0) for _ in range(10))
    assert rates.take("b", 0.0), "the bucket of all together was not touched"
    assert not rates.take("c", 0.0)


@pytest.mark.parametrize(("total", "allowed"), [(Rate(50, 0), 50), (None, 1000)])
def test_invented_keys_use_no_memory_and_gain_nothing(total: Rate | None, allowed: int) -> None:
    rates = Rates(Rate(1, 0), total, keys=10)
    assert sum(rates.take(str(n), 0.0) for n in range(1000)) == allowed
    assert len(rates) == 10
