"""Bytes are taken at a rate, after a burst."""

import pytest
import trio

from shoal.transport.rates import Rate, RateLimiter

pytestmark = pytest.mark.trio


async def test_a_burst_and_then_a_rate(autojump_clock: object) -> None:
    pace, began = RateLimiter(Rate(50, 100), trio.current_time()), trio.current_time()
    await pace.pay(50)
    assert trio.current_time() == began
    await pace.pay(200)
    assert trio.current_time() - began == pytest.approx(2.0)


async def test_silence_earns_no_more_than_the_burst(autojump_clock: object) -> None:
    pace = RateLimiter(Rate(50, 100), trio.current_time())
    await trio.sleep(1000)
    began = trio.current_time()
    for _ in range(15):
        await pace.pay(10)
    assert trio.current_time() - began == pytest.approx(1.0)
