"""Progress lines of a node that fetches layers."""

import pytest
import trio

from shoal.node.daemon.telling.fetchprogress import MIB, FetchProgress
from shoal.tasks.serving.interface import Phase, ServingStatus
from shoal.transport.host.real import RealHost


def status(done: int, phase: Phase = "fetching", total: int = 10) -> ServingStatus:
    return ServingStatus(phase, "", done * MIB, total * MIB)


@pytest.mark.trio
async def test_progress_lines_are_rate_limited(autojump_clock: trio.testing.MockClock) -> None:
    progress = FetchProgress(RealHost())
    assert progress.line(status(0)) is None
    await trio.sleep(0.5)
    assert progress.line(status(1)) is None, "too soon"
    await trio.sleep(1.5)
    assert progress.line(status(4)) == "40 % fetched: 4.0 of 10.0 MiB, 2.0 MiB/s"
    await trio.sleep(5)
    assert progress.line(status(4)) is None, "no news"
    assert progress.line(status(10, "loading")) is None
    assert progress.line(status(0, total=0)) is None
