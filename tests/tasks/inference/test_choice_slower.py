"""A gateway tells placement how much slower a stage is than its member claims."""

from typing import cast

import pytest

from shoal.state.directory import Directory
from shoal.tasks.engine.interface import Parts
from shoal.tasks.inference.chain import Chains
from shoal.tasks.inference.choice import Choice
from shoal.tasks.inference.courier import Courier
from shoal.tasks.routing.beliefs import Observed, Shard, StageTimes, Times
from shoal.transport.host.seam import Host
from tests.tasks.fake_swarm import FakeHost, peer_of

ROOT, PARTS, CLAIMED = "ab" * 32, Parts(True, 0, 6, True), 0.001


def test_a_stage_that_was_measured_a_thousand_times_slower() -> None:
    choice = Choice(
        cast(Host, FakeHost()), cast(Courier, None), cast(Directory, None), cast(Chains, None)
    )
    peer = peer_of(2)
    assert choice.slower(peer, ROOT, PARTS, CLAIMED) == 1.0
    stage = StageTimes(Shard(peer, ROOT, PARTS), Times(CLAIMED, CLAIMED), None)
    choice.router.beliefs.observed((stage,), Observed(1.0, 0.0, 0, 1.0, 0.0, 10), 0.0)
    assert choice.slower(peer, ROOT, PARTS, CLAIMED) == pytest.approx(1000.0)
    assert choice.slower(peer_of(3), ROOT, PARTS, CLAIMED) == 1.0
    assert choice.slower(peer, ROOT, PARTS, 0.0) == 1.0
