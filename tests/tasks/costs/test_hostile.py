"""Whatever members claim, predictions are finite, above zero and do not fail."""

from math import isfinite
from random import Random

import pytest

from shoal.state.membership.record import Capacity, DeviceSpeed, ShardRecord
from shoal.tasks.costs.chain import CostedStage, chain_times, window_times
from shoal.tasks.costs.links import between, link_rates
from shoal.tasks.costs.members import member_rates
from shoal.tasks.costs.steps import shard_costs
from shoal.tasks.costs.tracker import Expected, Trackers
from shoal.tasks.costs.work import AttentionWork, ShardWork
from tests.tasks.costs.linkstatus import status

WORKS = (
    ShardWork("float32", 1, 1, 1, 0, 0.0, (), 0, 0, 0, 1),
    ShardWork(
        "int4",
        4096,
        10**13,
        10**13,
        10**14,
        0.01,
        (AttentionWork(4096, 10**9, 10**6),),
        10**9,
        9,
        9,
        8,
    ),
    ShardWork(
        "bfloat16", 22, 10**9, 10**9, 0, 0.0, (AttentionWork(0, 9000, 900),), 0, 99, 99, 4096
    ),
)
CLAIMS = (0.0, 5e-324, 1e-12, 1.0, 1e9, 1e13, 1e24)  # what facts can contain
SECONDS = (0.0, 5e-324, 1e-9, 0.01, 3600.0)
TRIPS = (None, 0.0, 1e-6, 0.1, 1e4)


def claimed(random: Random) -> tuple[Capacity, ShardRecord]:
    kind, batch = random.choice(("cpu", "cuda:0", "")), random.choice((0, 1, 64, 2**20))
    read, float32, bfloat16 = (random.choice(CLAIMS) for _ in range(3))
    device = DeviceSpeed(kind, "", 0, read, float32, bfloat16, batch)
    step, row, pair = (random.choice(SECONDS) for _ in range(3))
    shard = ShardRecord("ab" * 32, True, 0, 1, True, "float32", 1, costs=(step, row, pair))
    return Capacity(1, 1, True, random.choice(CLAIMS), (device,)), shard


@pytest.mark.parametrize("seed", range(20))
def test_claims_give_finite_times(seed: int) -> None:
    random = Random(seed)
    trackers: Trackers[int] = Trackers()
    for _ in range(100):
        work = random.choice(WORKS)
        capacity, shard = claimed(random)
        rates = member_rates(capacity, shard, work)
        assert all(isfinite(each) and each >= 0 for each in shard_costs(rates, work))
        paths = ("lan", "punched", "none")
        links = [
            link_rates(
                status(
                    random.choice(TRIPS),
                    random.choice(paths),
                    random.choice(CLAIMS),
                    random.choice((0.0, 0.1, 1.0, 5.0)),
                )
            )
            for _ in range(2)
        ]
        chain = [CostedStage(work, rates, links[0]), CostedStage(work, rates, between(*links))]
        times = chain_times(chain, links[1], random.choice((1, 513, 10**6)), 0)
        window = window_times(chain, links[1], 5, 10**6)
        for each in (*times, *window):
            assert isfinite(each) and each >= 0
        parts = [Expected(random.randrange(5), window.latency_s, random.choice(CLAIMS[1:]))] * 2
        trackers.note_sum(parts, random.choice((5e-324, 1e-3, 3600.0)))
        for key in range(5):
            assert isfinite(trackers.factor(key)) and trackers.factor(key) > 0
