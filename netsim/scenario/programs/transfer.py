"""`tcp-transfer`: receives data, and measures the rate of transfers to hosts with this program."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from ...host import Host
from ..format import units
from ..format.source import knob
from .echo import Where

PORT: Final = 9  # RFC 863
_CHUNK: Final = 1 << 16
_SERVED: Final = b"."


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """Settings of `tcp-transfer`."""

    to: tuple[str, ...] | None = knob(
        units.names_or_none,
        None,
        says="the hosts to send to (default: the next one that runs tcp-transfer)",
    )
    size: int = knob(units.size, 1_000_000, says="of one transfer")
    every: float = knob(units.period, 10.0, says="from the start of one to that of the next")
    timeout: float = knob(units.period, 60.0, says="a transfer that takes longer has failed")


@dataclass(slots=True)
class TransferResult:
    """Measurements of one host that runs tcp-transfer."""

    throughputs: list[float] = field(default_factory=list)  # bytes per second
    failed: int = 0


class TransferProgram:
    """Program of one host. `result` is kept when the host restarts.

    `targets` are the names of hosts, and `where` returns a host's address.
    """

    def __init__(self, settings: TransferSettings, targets: Sequence[str], where: Where) -> None:
        self.settings = settings
        self.targets = list(targets)
        self._where = where
        self.result = TransferResult()

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve port 9 and send data to the targets, until cancelled."""
        listeners = await trio.open_tcp_listeners(PORT, host="0.0.0.0")
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._serve, listeners)
            for target in self.targets:
                nursery.start_soon(self._send_often, target)

    async def _serve(self, stream: trio.SocketStream) -> None:
        """Receive data until the sender has finished, then confirm that everything has arrived."""
        try:
            while await stream.receive_some(_CHUNK):
                pass
            await stream.send_all(_SERVED)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the sender counts the failure

    async def _send_often(self, target: str) -> None:
        """Make a transfer to one target at each interval, and record the results."""
        due = trio.current_time()
        while True:
            start = trio.current_time()
            if await self._send(self._where(target)):
                took = trio.current_time() - start
                self.result.throughputs.append(self.settings.size / took)
            else:
                self.result.failed += 1
            due = max(due + self.settings.every, trio.current_time())
            await trio.sleep_until(due)

    async def _send(self, address: str) -> bool:
        """Make one transfer. Return whether the receiver has confirmed it in time."""
        left = self.settings.size
        with trio.move_on_after(self.settings.timeout):
            try:
                async with await trio.open_tcp_stream(address, PORT) as stream:
                    while left > 0:
                        await stream.send_all(bytes(min(left, _CHUNK)))
                        left -= _CHUNK
                    await stream.send_eof()
                    return await stream.receive_some(1) == _SERVED
            except (OSError, trio.BrokenResourceError):
                return False
        return False
