"""A node's listening ports: TCP and UDP with the same number, if both are available."""

from collections.abc import Sequence
from typing import Final, Protocol

import trio

from ..errors import AddressInUse, HostError
from .endpoint import Endpoint

_TRIES: Final = 8

Places = tuple[tuple[str, int], ...]
"""IP addresses and ports."""


class ServesUdp(Protocol):
    """A UDP port (`udp.port.UdpPort`)."""

    port: int

    async def run(
        self, listen: Sequence[str], port: int, *, task_status: trio.TaskStatus[int]
    ) -> None:
        """Serve the port on IP addresses until cancelled. Raises AddressInUse, HostError."""
        ...


class Ports:
    """Opener of the listening ports of the endpoint and of UDP. `without_udp` says why there is no
    UDP port although there should be."""

    def __init__(self, endpoint: Endpoint, udp: ServesUdp | None) -> None:
        self.without_udp = ""
        self._endpoint = endpoint
        self._udp = udp
        self._udp_runs = trio.Lock()

    async def listen(
        self, nursery: trio.Nursery, listen: str, port: int, further: Places = ()
    ) -> int:
        """Listen on TCP and UDP, serve in `nursery`, and return the port's number. Port 0 picks a
        free one. `further` is as in `Endpoint.run`. `0.0.0.0` includes `::` if there is IPv6.
        Raises AddressInUse and HostError."""
        if listen == "0.0.0.0":
            further = (("::", 0), *further)
        for turn in range(_TRIES):
            number, scope = await self._listen_udp(nursery, listen, port)
            try:
                bound: int = await nursery.start(
                    lambda task_status, number=number: self._endpoint.run(
                        listen, number, further=further, task_status=task_status
                    )
                )
            except AddressInUse:
                scope.cancel()
                if port or turn == _TRIES - 1:
                    raise
                continue
            self._endpoint.udp_port = self._udp.port if self._udp is not None else 0
            return bound
        raise AssertionError("the last try raises")

    async def _listen_udp(
        self, nursery: trio.Nursery, listen: str, port: int
    ) -> tuple[int, trio.CancelScope]:
        """Return the number of the UDP port and the scope that closes it; the number is `port` if
        UDP is not available. A machine without IPv6 uses IPv4 only."""
        scope = trio.CancelScope()
        if self._udp is None:
            return port, scope
        for addresses in (["0.0.0.0", "::"], ["0.0.0.0"]) if listen == "0.0.0.0" else ([listen],):
            scope = trio.CancelScope()  # the scope of a failed try cannot be reused
            try:
                number: int = await nursery.start(self._run_udp, self._udp, scope, addresses, port)
            except AddressInUse:
                self.without_udp = f"UDP port {port} is in use by another program"
            except HostError as error:
                self.without_udp = error.message
            else:
                self.without_udp = ""
                return number, scope
        return port, scope

    async def _run_udp(
        self,
        udp: ServesUdp,
        scope: trio.CancelScope,
        addresses: list[str],
        port: int,
        *,
        task_status: trio.TaskStatus[int],
    ) -> None:
        with scope:
            async with self._udp_runs:  # an abandoned try may still be closing its sockets
                await udp.run(addresses, port, task_status=task_status)
