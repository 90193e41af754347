"""`idle`: a host that does nothing."""

from dataclasses import dataclass

import trio

from ...host import Host


@dataclass(frozen=True, slots=True)
class IdleSettings:
    """Settings of `idle`: none."""


class Idle:
    """Program that waits until it is cancelled."""

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        """Wait until cancelled."""
        task_status.started()
        await trio.sleep_forever()
