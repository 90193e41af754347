"""peertasks: tasks are started only while their service runs, and are guarded."""

import pytest
import trio

from shoal.transport.guard import Guard, Mishap
from shoal.transport.peertasks import PeerTasks


@pytest.mark.trio
async def test_tasks_are_started_only_while_the_service_runs() -> None:
    tasks, done = PeerTasks(Guard()), list[int]()

    async def note(number: int) -> None:
        await trio.lowlevel.checkpoint()
        done.append(number)

    assert not tasks.running and not tasks.start("peer", note, 1)
    async with trio.open_nursery() as nursery:
        with tasks.run_in(nursery):
            assert tasks.running and tasks.start("peer", note, 2)
        assert not tasks.running and not tasks.start("peer", note, 3)
    assert done == [2]


@pytest.mark.trio
async def test_tasks_are_guarded() -> None:
    told, ended = list[Mishap](), list[str]()
    tasks = PeerTasks(Guard(told.append))

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("bug")

    async with trio.open_nursery() as nursery:
        with tasks.run_in(nursery):
            tasks.start("peer", fail, end=lambda: ended.append("peer"))
    assert [each.subject for each in told] == ended == ["peer"]
