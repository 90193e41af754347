"""One alarm for many deadlines: none late, none forgotten."""

from math import inf

import pytest
import trio
import trio.testing

from shoal.transport.defaults import ALARM_S
from shoal.transport.errors import CallRefused
from shoal.transport.host.real import RealHost
from shoal.transport.link.callers import Alarm
from tests.transport.fleet import clock, make_node, running, until

pytestmark = pytest.mark.trio


class Deadlines:
    """Records the deadlines of an alarm, and when each was handled."""

    def __init__(self) -> None:
        self.due: set[float] = set()
        self.found: list[tuple[float, float]] = []
        self.looks = 0
        self.alarm = Alarm(RealHost(), self._expire)

    def add(self, after: float) -> None:
        at = trio.current_time() + after
        self.due.add(at)
        self.alarm.set(at)

    def _expire(self, now: float) -> float:
        self.looks += 1
        over = {at for at in self.due if at <= now}
        self.due -= over
        self.found += [(at, now) for at in over]
        return min(self.due, default=inf)


async def test_each_deadline_is_met(autojump_clock: object, nursery: trio.Nursery) -> None:
    deadlines = Deadlines()
    deadlines.add(3.0)
    nursery.start_soon(deadlines.alarm.run)
    await trio.sleep(1.0)
    deadlines.add(0.5)
    deadlines.add(5.0)
    await trio.sleep(0.6)
    deadlines.add(inf)
    await trio.sleep(10.0)
    assert [now - at for at, now in deadlines.found] == pytest.approx([0, 0, 0])
    assert deadlines.looks == 3


async def test_many_deadlines_cost_few_wakeups(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    deadlines = Deadlines()
    nursery.start_soon(deadlines.alarm.run)
    for index in range(1000):
        deadlines.add(1.0 + index / 10_000)
    await trio.sleep(5.0)
    assert len(deadlines.found) == 1000
    assert max(now - at for at, now in deadlines.found) <= ALARM_S + 1e-9
    assert deadlines.looks <= 0.1 / ALARM_S + 2


@pytest.fixture
def virtual_time() -> trio.testing.MockClock:
    return clock()


async def test_calls_end_at_their_own_deadlines(virtual_time: object) -> None:
    """A first caller may have the latest deadline. Calls with a reply in time need no wake-up, and
    a closed link leaves no deadline behind."""
    a, b = make_node(1), make_node(2)
    ended: dict[float, float] = {}

    async def never(_: object) -> None:
        await trio.sleep_forever()

    b.endpoint.handle("never", never)  # type: ignore[arg-type]
    async with running(a, b):
        link = await a.endpoint.dial(b.address, timeout=5)
        began = trio.current_time()

        async def ask(timeout: float) -> None:
            with pytest.raises(CallRefused, match="no reply within"):
                await link.call("never", timeout=timeout)
            ended[timeout] = trio.current_time() - began

        async with trio.open_nursery() as nursery:
            for timeout in (3.0, 0.5, 1.0, 1.001, 0.0):
                nursery.start_soon(ask, timeout)
                assert (await link.call("echo", {"n": 1}, timeout=0.25)).header == {"n": 1}
        for timeout, took in ended.items():
            assert timeout <= took < timeout + 0.05
        await until(lambda: not b.up[0]._server._open)


async def test_an_alarm_that_is_moved_does_not_wake_before(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    deadlines = Deadlines()
    deadlines.add(3.0)
    nursery.start_soon(deadlines.alarm.run)
    await trio.sleep(1.0)
    deadlines.due = {at + 2.0 for at in deadlines.due}
    deadlines.alarm.move(min(deadlines.due))
    await trio.sleep(3.0)
    assert not deadlines.looks
    await trio.sleep(1.5)
    assert deadlines.looks == len(deadlines.found) == 1
