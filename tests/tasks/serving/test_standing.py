"""The place of one node in one model."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import trio

from shoal.tasks.placement.demand import Backing
from shoal.tasks.serving.standing import ModelStanding
from tests.tasks.fake_node import FakeDirectory
from tests.tasks.fake_swarm import FakeHost
from tests.tasks.placement.fleets import model

ROOT = "ab" * 32


class Thread(FakeHost):
    """Host whose threads end when they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.working, self.end = trio.Event(), trio.Event()

    async def offload(self, work: Callable[..., Any], *args: Any) -> Any:
        self.working.set()
        await self.end.wait()
        return work(*args)


@pytest.mark.trio
async def test_a_model_may_be_given_up_while_the_node_decides(autojump_clock: object) -> None:
    """A peer chooses both times: it changes its record, and asks for another model."""
    host, directory = Thread(), FakeDirectory()
    standing = ModelStanding(cast(Any, host), directory, lambda _: 1 << 40, lambda: Backing())
    standing.take_up(ROOT, model(4))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(standing.next_span)
        await host.working.wait()
        standing.give_up()
        host.end.set()
        await trio.sleep(1)
        assert not directory.own().aims, "no aim at a model that was given up"
        nursery.cancel_scope.cancel()
