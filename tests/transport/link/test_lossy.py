"""A stream over a punched path that loses packets at random, at a large round trip."""

import pytest
import trio

from bench.worlds.punchedbulk import lossy_line, punched_bulk
from shoal.netsim.world import World

RATE = 1e6
RTT = 0.24  # between the homes
LOSS = 0.008  # one or two packets in each round trip


@pytest.mark.ci
def test_bulk_uses_a_path_that_loses_packets() -> None:
    """Bytes wait behind a lost packet, which is no queue. The share is about 0.5 if it is taken
    for one."""
    world = World(1, latency=0.0)

    async def main() -> None:
        async with punched_bulk(world, lossy_line(RTT, RATE, LOSS)) as bulk:
            await trio.sleep(8)
            before = bulk.received
            await trio.sleep(8)
        assert (bulk.received - before) / 8 > 0.7 * RATE

    world.run(main)
