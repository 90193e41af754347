"""Tells the owner that a full library keeps this node from jobs of other nodes.

The result of a large piece is a blob in the library. Content that the owner requested may exceed a
default limit, and then no blob of another node fits, without any command that fails.
"""

from collections.abc import Awaitable, Callable

import trio

from ....dht.errors import ModelError, QuotaFull
from ...defaults import JOB_DISK_LOOK, JOB_RESULT
from ...health import Health

CONDITION = "jobs-disk"


async def watch_job_disk(
    shortage: Callable[[int], Awaitable[QuotaFull | None]],
    does_jobs: Callable[[], bool],
    health: Health,
) -> None:
    """Report or clear the condition `jobs-disk`, until cancelled. `shortage` returns the error with
    which the library would refuse some bytes, or None."""
    while True:
        try:
            full = await shortage(JOB_RESULT) if does_jobs() else None
        except ModelError:  # the system does not say how much space is free
            full = None
        if full is None:
            health.clear(CONDITION)
        else:
            sentence = f"no results of other nodes' jobs can be stored here: {full.message}"
            health.report(CONDITION, sentence, hint=full.hint)
        await trio.sleep(JOB_DISK_LOOK)
