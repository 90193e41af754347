"""`idle`: a host that is there and does nothing."""

from dataclasses import dataclass
from typing import Any

import trio

from ...host import Host


@dataclass(frozen=True, slots=True)
class IdleSettings:
    """None."""


class Idle:
    """Waits for its end."""

    async def run(self, host: Host, *, task_status: trio.TaskStatus[Any]) -> None:
        task_status.started()
        await trio.sleep_forever()
