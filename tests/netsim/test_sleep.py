"""Tasks of a sleeping host are held and resumed; trio is not patched while no host sleeps."""

import pytest
import trio
from trio._core import _run

from shoal.netsim.errors import SimError
from shoal.netsim.host import Host
from shoal.netsim.sleep import Dormitory
from shoal.netsim.world import World

ORIGINAL = _run.Runner.reschedule


def test_trio_is_patched_only_while_a_host_sleeps() -> None:
    world = World()
    a, b = world.host("a"), world.host("b")
    dormitory = Dormitory()

    async def main() -> None:
        dormitory.hold(a)
        dormitory.hold(a)  # a second call has no effect
        dormitory.hold(b)
        assert a in dormitory and _run.Runner.reschedule is not ORIGINAL
        dormitory.release(a)
        assert a not in dormitory and _run.Runner.reschedule is not ORIGINAL
        dormitory.release(b)
        assert _run.Runner.reschedule is ORIGINAL
        dormitory.release(b)

    world.run(main)


def test_held_tasks_resume_in_order_with_their_results() -> None:
    world = World()
    host, other = world.host("host"), world.host("other")
    dormitory = Dormitory()
    send, receive = trio.open_memory_channel[int](10)
    got: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await trio.sleep(seconds)
        got.append((name, trio.current_time()))

    async def take() -> None:
        got.append((f"item {await receive.receive()}", trio.current_time()))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            host.start_soon(nursery, take)
            host.start_soon(nursery, wait, "late", 3.0)
            host.start_soon(nursery, wait, "early", 1.0)
            other.start_soon(nursery, wait, "other", 2.0)
            await trio.sleep(0.5)
            dormitory.hold(host)
            await send.send(7)
            await trio.sleep(9.5)
            assert got == [("other", 2.0)]
            dormitory.release(host)

    world.run(main)
    assert got[0] == ("other", 2.0)
    assert sorted(got[1:]) == [("early", 10.0), ("item 7", 10.0), ("late", 10.0)]


def test_a_held_task_can_be_cancelled_once_released() -> None:
    world = World()
    host = world.host("host")
    dormitory = Dormitory()
    ended: list[str] = []

    async def stay() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("stay")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            host.start_soon(nursery, stay)
            await trio.sleep(1)
            dormitory.hold(host)
            nursery.cancel_scope.cancel()
            assert ended == []
            dormitory.release_all()
        assert ended == ["stay"]

    world.run(main)


def test_no_host_sleeps_outside_a_run() -> None:
    host: Host = World().host("host")
    with pytest.raises(SimError, match="while the world runs"):
        Dormitory().hold(host)


def test_trio_has_the_attributes_that_are_patched() -> None:
    """A canary for changes of trio: the queue of runnable tasks, their order of arrival, a task's
    context.
    """
    assert {"runq", "reschedule"} <= set(dir(_run.Runner))
    assert "context" in dir(_run.Task)
