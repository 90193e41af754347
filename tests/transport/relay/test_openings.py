"""Circuits are opened a few at a time."""

from functools import partial
from typing import Any, cast

import pytest
import trio

from shoal.transport.host.seam import Host
from shoal.transport.relay.defaults import (
    OPENING_RATE,
    OPENING_S,
    OPENINGS_LEAST,
    QUEUE,
    QUEUE_PER_SOURCE,
    QUEUE_S,
)
from shoal.transport.relay.openings import Openings

MOST = 8
pytestmark = pytest.mark.trio


class Clock:
    """As much of a host as is needed."""

    def now(self) -> float:
        return trio.current_time()


HOST = cast(Host, Clock())


async def tries(
    openings: Openings, log: list[str], name: str, source: str, *, member: bool = False
) -> None:
    key = object()
    if await openings.enter(key, source, member=member):
        log.append(name)


async def test_members_go_first_then_in_their_order(autojump_clock: Any) -> None:
    openings, log = Openings(HOST, MOST * OPENING_RATE), list[str]()
    keys = [object() for _ in range(MOST)]
    for number, key in enumerate(keys):
        assert await openings.enter(key, f"first{number}", member=False)
    async with trio.open_nursery() as nursery:
        for name, member in (("s1", False), ("s2", False), ("m1", True), ("m2", True)):
            await trio.sleep(0.01)
            nursery.start_soon(partial(tries, openings, log, name, name, member=member))
        await trio.sleep(0.5)
        assert log == []
        for count, key in enumerate(keys[:4], start=1):
            openings.leave(key)
            openings.leave(key)
            await trio.sleep(0.1)
            assert len(log) == count
    assert log == ["m1", "m2", "s1", "s2"]


async def test_a_stuck_opening_delays_others_only_briefly(autojump_clock: Any) -> None:
    openings, log = Openings(HOST, MOST * OPENING_RATE), list[str]()
    for number in range(MOST):
        await openings.enter(object(), f"first{number}", member=False)
    began = trio.current_time()
    await tries(openings, log, "next", "next")
    assert log == ["next"] and trio.current_time() - began <= OPENING_S + 0.1


async def test_long_waits_and_full_queues_are_refused(autojump_clock: Any) -> None:
    openings, log = Openings(HOST, 1), list[str]()
    refused = list[float]()

    async def ask(source: str) -> None:
        if not await openings.enter(object(), source, member=False):
            refused.append(trio.current_time() - began)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(ask, f"source{number % 20}" if number % 2 else "foe")
    at_once = [after for after in refused if after == 0.0]
    assert len(at_once) >= 200 - QUEUE - 4 - 1
    assert max(refused) == QUEUE_S and log == []


async def test_one_source_waits_with_a_few(autojump_clock: Any) -> None:
    openings = Openings(HOST, 1)
    refused = 0

    async def ask() -> None:
        nonlocal refused
        refused += not await openings.enter(object(), "foe", member=False)

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(ask)
        await trio.sleep(0.1)
        assert refused == 30 - QUEUE_PER_SOURCE - OPENINGS_LEAST
