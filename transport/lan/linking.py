"""Discovery of members of the same swarm on the local network, and direct links to them."""

from collections.abc import Callable
from contextlib import suppress

import trio

from .. import defaults
from ..address import Address
from ..bytestream import PathKind
from ..dial.endpoint import Endpoint
from ..errors import DialFailed
from ..host.datagrams import Place
from ..host.seam import Host
from ..identity import PeerId
from ..networks import may_dial_port
from .mdns import LanDiscovery


class Neighbourhood:
    """Finder of members of the same swarm on the local network. It makes a direct link to each
    member, and calls `found(peer, ip)`. `lan` is the running discovery, or None."""

    def __init__(
        self, host: Host, endpoint: Endpoint, found: Callable[[PeerId, str], None]
    ) -> None:
        self.lan: LanDiscovery | None = None
        self._host = host
        self._endpoint = endpoint
        self._tell_found = found

    async def run(self, port: int) -> None:
        """Discover members until cancelled; start again when the node changes its swarm."""
        async with trio.open_nursery() as dials:
            while True:
                swarm = self._endpoint.admission.swarm
                async with trio.open_nursery() as nursery:
                    if swarm:
                        self.lan = LanDiscovery(
                            self._host, self._endpoint.peer, swarm, guard=self._endpoint.guard
                        )
                        self.lan.on_peer(lambda peer, place: self._meet(peer, place, dials))
                        nursery.start_soon(self.lan.run, port)
                    await self._endpoint.admission_changed()
                    nursery.cancel_scope.cancel()

    def _meet(self, peer: PeerId, place: Place, dials: trio.Nursery) -> None:
        """Link a member that was found on the local network."""
        if not may_dial_port(place[1]):
            return
        self._tell_found(peer, place[0])
        link = self._endpoint.link(peer)
        if link is not None:
            link.keep()
        if link is None or link.path_kind not in (PathKind.LAN, PathKind.LOOPBACK):
            self._endpoint.guard.start(dials, place, self._dial, Address(*place, peer))

    async def _dial(self, address: Address) -> None:
        with suppress(DialFailed):
            await self._endpoint.reach(
                address, timeout=defaults.ATTEMPT_S, path_kind=PathKind.LAN, sure=True
            )
