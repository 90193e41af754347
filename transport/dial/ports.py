"""A node's listening ports: TCP and UDP with the same number, if both are available."""

from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import trio

from ..errors import AddressInUse, HostError
from .endpoint import Endpoint

_TRIES: Final = 8  # attempts to find a number that is free for both TCP and UDP

Places = tuple[tuple[str, int], ...]
"""(IP address, port) of each listener."""


class ServesUdp(Protocol):
    """Part of the interface of a UDP port (`udp.port.UdpPort`) that this module uses."""

    port: int

    async def run(
        self, listen: Sequence[str], port: int, *, task_status: trio.TaskStatus[int]
    ) -> None:
        """Serve the port on the IP addresses `listen` until cancelled.

        Raises AddressInUse or HostError if a socket cannot be opened.
        """
        ...


class PortOpener:
    """Opener of this node's listening ports.

    `without_udp` is the reason why there is no UDP port; "" if there is one or there should be
    none.
    """

    def __init__(self, endpoint: Endpoint, udp: ServesUdp | None) -> None:
        self.without_udp = ""
        """Why the node has no UDP port, as a sentence; empty if it has one."""
        self._endpoint = endpoint
        self._udp = udp
        self._udp_runs = trio.Lock()

    async def listen(
        self, nursery: trio.Nursery, listen: str, port: int, further: Places = ()
    ) -> int:
        """Listen on TCP and UDP, serve both in `nursery`, and return the port's number.

        Port 0 picks a free number. `0.0.0.0` includes `::` if the machine has IPv6. `further` are
        additional addresses and ports for TCP (see `Endpoint.run`). Raises AddressInUse or
        HostError if TCP cannot listen. If UDP cannot, the node runs without it.
        """
        if listen == "0.0.0.0":
            further = (("::", 0), *further)
        for turn in range(_TRIES):
            number, scope = await self._listen_udp(nursery, listen, port)
            try:
                bound: int = await nursery.start(
                    partial(self._endpoint.run, listen, number, further=further)
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
        """Listen on UDP. Return the port's number, and the scope that closes the port.

        If UDP is not available, the number is `port`. A machine without IPv6 uses IPv4 only.
        """
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
        """Serve the UDP port until its scope is cancelled."""
        with scope:
            async with self._udp_runs:  # an earlier attempt may still be closing its sockets
                await udp.run(addresses, port, task_status=task_status)
