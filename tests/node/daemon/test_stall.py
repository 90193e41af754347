"""The stall guard counts a step that blocks the event loop, and no other step."""

import time

import pytest
import trio

from shoal.node.daemon.stall import StallGuard
from shoal.transport.host.real import RealHost


@pytest.mark.trio
async def test_a_long_step_is_named_and_a_short_one_is_not() -> None:
    guard = StallGuard(RealHost(), 0.03)

    async def polite() -> None:
        for _ in range(20):
            await trio.lowlevel.checkpoint()

    async def rude() -> None:
        time.sleep(0.06)  # noqa: ASYNC251  the mistake that the guard is for

    with guard.watching():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(polite)
            nursery.start_soon(rude)
    assert guard.worst is not None
    assert guard.worst.task.endswith("rude")
    assert guard.worst.seconds > 0.05
