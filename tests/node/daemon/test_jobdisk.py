"""The condition that a full library keeps this node from jobs."""

import pytest
import trio
import trio.testing

from shoal.dht.errors import QuotaFull
from shoal.node.daemon.telling.jobdisk import CONDITION, watch_job_disk
from shoal.node.defaults import JOB_DISK_LOOK
from shoal.node.health import Health


@pytest.mark.trio
async def test_a_full_library_is_told_while_the_node_does_jobs(autojump_clock: object) -> None:
    health, full, works = Health(), True, True

    async def shortage(needed: int) -> QuotaFull | None:
        await trio.lowlevel.checkpoint()
        return QuotaFull(10 << 20, needed, 12 << 20) if full else None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_job_disk, shortage, lambda: works, health)
        await trio.testing.wait_all_tasks_blocked()
        (told,) = health.conditions()
        assert told.name == CONDITION and "other nodes' jobs" in told.sentence
        assert "10.0 MiB" in told.sentence and "12.0 MiB" in told.sentence
        assert told.hint is not None and "shoal config set disk" in told.hint
        works = False
        await trio.sleep(JOB_DISK_LOOK + 1)
        assert health.conditions() == []
        works = True
        await trio.sleep(JOB_DISK_LOOK + 1)
        assert health.conditions()
        full = False
        await trio.sleep(JOB_DISK_LOOK + 1)
        assert health.conditions() == []
        nursery.cancel_scope.cancel()
