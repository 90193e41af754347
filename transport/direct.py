"""Dialling addresses, over TCP and UDP: the direct ways to a peer."""

import trio

from . import defaults
from .address import Address
from .aim import Aim
from .datagrams import Place
from .endpoint import Endpoint
from .errors import DialFailed
from .identity import PeerId
from .link import Link
from .place import way_to
from .udp.port import UdpPort


class Direct:
    """Dials for one node, at no address in vain too often (`aim`)."""

    def __init__(self, endpoint: Endpoint, udp: UdpPort | None, aim: Aim) -> None:
        self.aim = aim
        self._endpoint = endpoint
        self._udp = udp

    async def dial(self, address: Address, expect: PeerId | None, *, timeout: float) -> Link:
        """A path to who answers at an address, `timeout` seconds for the dial. Raises
        DialFailed."""
        with self.aim.at(address):
            if address.transport == "udp":
                return await self._dial_udp(address, expect)
            return await self._endpoint.reach(address, timeout=timeout)

    async def reach(self, address: Address, timeout: float) -> Link:
        """The same within `timeout` seconds in all."""
        with trio.move_on_after(timeout):
            return await self.dial(address, address.peer, timeout=timeout)
        raise DialFailed("timeout", f"`{address}` did not answer within {timeout:g} s")

    async def dial_place(self, place: Place, peer: PeerId) -> Link:
        """A path to the UDP port of a peer that is linked already. Raises DialFailed."""
        return await self._dial_udp(Address(*place, peer, transport="udp"), peer)

    async def _dial_udp(self, address: Address, expect: PeerId | None) -> Link:
        if self._udp is None:
            raise DialFailed("no-udp", "this node has no UDP port")
        try:
            pipe = await self._udp.dial((address.host, address.port), timeout=defaults.CLIMB_S)
        except OSError as error:
            raise DialFailed("unreachable", f"`{address}` does not answer: {error}") from None
        way, name = way_to(address.host), str(address)
        link = await self._endpoint.join(pipe, way, expect=expect, server=False, name=name)
        pipe.trust()
        return link
