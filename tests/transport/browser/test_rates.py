"""Token buckets."""

import pytest

from shoal.transport.browser.rates import Bucket, Buckets, subnet_of


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(rate=2.0, burst=3.0, now=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.take(0.5) and not bucket.take(0.5)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]


def test_each_source_has_its_own_and_the_oldest_is_forgotten() -> None:
    buckets = Buckets(rate=0.001, burst=1.0, sources=2)
    assert buckets.take("a", 0.0) and not buckets.take("a", 0.0)
    assert buckets.take("b", 0.0) and buckets.take("c", 0.0)
    assert not buckets.take("c", 0.0)
    assert buckets.take("a", 0.0)  # had been forgotten: the table is bounded


@pytest.mark.parametrize(
    ("address", "subnet"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("::ffff:192.0.2.77", "192.0.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
    ],
)
def test_subnets(address: str, subnet: str) -> None:
    assert subnet_of(address) == subnet
