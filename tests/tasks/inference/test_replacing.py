"""A stage that goes and comes back again and again ends a request."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from shoal.state.membership.record import Rank
from shoal.tasks.defaults import CRASHES
from shoal.tasks.errors import NoRoute, SessionError, StageLost
from shoal.tasks.inference.conversation.refilling import Refilling
from shoal.tasks.inference.conversation.replacing import Replacing
from shoal.tasks.inference.surviving.recovery import Crashes
from tests.tasks.fake_swarm import FakeHost

FLAPS, OTHER, ROOT = "flaps", "other", "aa" * 32


def record(start: int, stop: int) -> Any:
    span = SimpleNamespace(root=ROOT, start=start, stop=stop, rank=Rank.HOLDS)
    return SimpleNamespace(
        peer=FLAPS, capacity=SimpleNamespace(engine=True), shards=(span,), aim_at=lambda root: span
    )


class Parts:
    """A directory, routes without another chain, and a mending that opens the stage again."""

    def members(self) -> dict[str, Any]:
        return {FLAPS: record(0, 4), OTHER: record(4, 8)}

    def reaches(self, peer: str) -> bool:
        return True

    def next_run(self, *_: object) -> Any:
        raise NoRoute("no other chain")

    def has_chain(self, *_: object) -> bool:
        return False

    async def hear(self, event: object) -> None:
        await trio.lowlevel.checkpoint()

    async def mend(self, talk: Any, run: Any, without: object, returning: object = ()) -> bool:
        await trio.sleep(0.05)
        return FLAPS in cast(Any, returning) and FLAPS not in talk.lost


@pytest.mark.trio
@pytest.mark.parametrize("by", [None, OTHER])
async def test_a_stage_that_flaps_does_not_keep_an_answer_waiting_for_ever(
    by: Any, autojump_clock: object
) -> None:
    parts, host = cast(Any, Parts()), cast(Any, FakeHost())
    replacing = Replacing(host, parts, parts, parts, Refilling(host, parts, parts))
    answer = SimpleNamespace(made=0, wait=parts.hear)
    talk: Any = SimpleNamespace(
        crashes=Crashes(), answer=answer, lost=set(), accused={OTHER: 0}, refused={},
        must_yield=False, model=SimpleNamespace(root=ROOT, name="m"), run=None,
    )  # fmt: skip
    hop = SimpleNamespace(peer=FLAPS, parts=SimpleNamespace(start=0, stop=4))
    run: Any = SimpleNamespace(
        chain=[hop], parted=set(), missed=set(), suspects=set(), peers=[FLAPS, OTHER],
        has_gone_on=lambda by: False,
    )  # fmt: skip
    with pytest.raises(SessionError) as failure:
        for _ in range(CRASHES + 1):
            await replacing.replace(talk, run, StageLost(cast(Any, FLAPS), "lost", by=by))
    assert "times during this request" in failure.value.message
