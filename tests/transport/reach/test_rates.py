"""Token buckets by key, bounded."""

from shoal.transport.reach.rates import Rate, Rates, region, subnet

MANY = Rate(1e9, 1e9)


def test_a_burst_and_then_a_rate() -> None:
    rates = Rates(Rate(3, 0.5), MANY)
    assert [rates.allow("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert not rates.allow("a", 1.9)
    assert rates.allow("a", 2.0)
    assert not rates.allow("a", 2.0)
    assert rates.allow("b", 2.0)
    assert [rates.allow("a", 1e6) for _ in range(4)] == [True, True, True, False]


def test_all_together() -> None:
    rates = Rates(MANY, Rate(10, 1))
    assert sum(rates.allow(str(n), 0.0) for n in range(100)) == 10
    assert sum(rates.allow(str(n), 5.0) for n in range(100)) == 5


def test_made_up_keys_use_no_memory_and_win_nothing() -> None:
    rates = Rates(Rate(1, 0), Rate(50, 0), keys=10)
    assert sum(rates.allow(str(n), 0.0) for n in range(1000)) == 50
    assert len(rates) == 10


def test_subnets() -> None:
    assert subnet("1.2.3.4") == subnet("1.2.3.250") == "1.2.3.0/24"
    assert subnet("2001:db8:1:2::1") == subnet("2001:db8:1:ff::9") != subnet("2001:db8:2::1")
    assert region("1.2.3.4") == region("1.2.250.4") == "1.2.0.0/16"
