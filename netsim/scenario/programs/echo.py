"""`udp-echo`: answers datagrams, and measures the round trip to other hosts with this program."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from ...host import Host
from ..format import units
from ..format.source import knob

Where = Callable[[str], str]
"""Function that returns the current address of a host by name."""

PORT: Final = 7  # RFC 862
_HEAD: Final = struct.Struct("!QI")  # serial number, number of the target
LEAST: Final = _HEAD.size  # bytes


def datagram_size(value: object) -> int:
    """Read the size of a datagram's content. Return it in bytes.

    Raises ValueError if the content would be too small for its header, or would exceed 1400 bytes.
    """
    found = units.size(value)
    if not LEAST <= found <= 1400:
        raise ValueError(f"`{value}`: a datagram here has {LEAST} B to 1400 B")
    return found


@dataclass(frozen=True, slots=True)
class EchoSettings:
    """Settings of `udp-echo`."""

    to: tuple[str, ...] | None = knob(
        units.names_or_none,
        None,
        says="the hosts to ask (default: the next one that runs udp-echo)",
    )
    every: float = knob(units.period, 1.0, says="between two datagrams to the same host")
    size: int = knob(datagram_size, 64, says="of a datagram's content")
    timeout: float = knob(units.period, 5.0, says="a later echo counts as lost")


@dataclass(slots=True)
class EchoResult:
    """Measurements of one host that runs udp-echo. `rtts` has round trips in seconds."""

    sent: int = 0
    answered: int = 0
    rtts: list[float] = field(default_factory=list)
    # The virtual time of the latest echo from each target, in seconds.
    last_answer: dict[str, float] = field(default_factory=dict)


class Echo:
    """Program of one host. `result` is kept when the host restarts.

    `targets` are the names of hosts, and `where` returns a host's address.
    """

    def __init__(self, settings: EchoSettings, targets: Sequence[str], where: Where) -> None:
        self.settings = settings
        self.targets = list(targets)
        self._where = where
        self.result = EchoResult()
        self._serial = 0
        self._sent: dict[int, float] = {}  # when each unanswered datagram was sent, by serial

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve port 7 and send datagrams to the targets, until cancelled."""
        server = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
        await server.bind(("0.0.0.0", PORT))
        client = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
        await client.bind(("0.0.0.0", 0))
        self._sent.clear()
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, server)
            nursery.start_soon(self._listen, client)
            for number in range(len(self.targets)):
                nursery.start_soon(self._ask, client, number)

    async def _serve(self, server: trio.socket.SocketType) -> None:
        """Send every datagram back to its source."""
        while True:
            data, source = await server.recvfrom(2048)
            try:
                await server.sendto(data, source)
            except OSError:
                continue  # the cable is unplugged: the reply is lost

    async def _ask(self, client: trio.socket.SocketType, number: int) -> None:
        """Send a datagram to one target (given by its index) at each interval, without waiting for
        echoes.
        """
        settings = self.settings
        while True:
            self._forget()
            self._serial += 1
            serial = self._serial
            now = trio.current_time()
            self._sent[serial] = now
            self.result.sent += 1
            data = _HEAD.pack(serial, number).ljust(settings.size, b"\0")
            try:
                await client.sendto(data, (self._where(self.targets[number]), PORT))
            except OSError:
                self._sent.pop(serial)  # no route: counts as unanswered
            await trio.sleep(settings.every)

    def _forget(self) -> None:
        """Discard the records of datagrams whose echoes would now be too late."""
        late = trio.current_time() - self.settings.timeout
        while self._sent and self._sent[oldest := next(iter(self._sent))] < late:
            del self._sent[oldest]

    async def _listen(self, client: trio.socket.SocketType) -> None:
        """Receive echoes and record their round trips."""
        while True:
            data, _ = await client.recvfrom(2048)
            serial, number = _HEAD.unpack_from(data)
            sent = self._sent.pop(serial, None)
            now = trio.current_time()
            if sent is None or now - sent > self.settings.timeout:
                continue  # too late, or sent before a crash
            self.result.answered += 1
            self.result.rtts.append(now - sent)
            self.result.last_answer[self.targets[number]] = now
