"""Direct paths: dials the addresses of a peer over TCP and QUIC."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from .. import defaults
from ..address import Address
from ..bytestream import ByteStream, PathKind
from ..errors import DialFailed
from ..host.datagrams import Place
from ..identity import PeerId
from ..link.link import Link
from ..networks import may_dial_port, path_kind_to
from .endpoint import Endpoint


class UdpByteStream(ByteStream, Protocol):
    """A byte stream over UDP. Its flow control window is small until `trust` is called."""

    def trust(self) -> None: ...


class DialsUdp(Protocol):
    """Part of the interface of a UDP port (`udp.port.UdpPort`) that this module uses."""

    async def dial(self, place: Place, *, timeout: float) -> UdpByteStream:
        """Open a byte stream within `timeout` seconds. Raises OSError if that fails."""
        ...


class Direct:
    """Dialer of direct addresses. Limits failed dials by target (`Endpoint.aim`).

    It dials QUIC only at addresses where a peer has answered, or at which other members see the
    peer, because QUIC repeats its datagrams to a host that does not answer. `is_seen(peer, ip)`
    asks other members whether they see a peer at an IP address (`Vouching.is_seen`).
    """

    def __init__(
        self,
        endpoint: Endpoint,
        udp: DialsUdp | None,
        is_seen: Callable[[PeerId, str], Awaitable[bool]],
    ) -> None:
        self._endpoint = endpoint
        self._udp = udp
        self._is_seen = is_seen

    async def dial(self, address: Address, expect: PeerId | None, *, timeout: float) -> Link:
        """Dial an address for at most `timeout` seconds, and return the link to the peer there.

        `expect` is the peer that must answer; None accepts any. Raises DialFailed if that fails.
        """
        if address.transport == "udp" and not await self._may_send(address, expect):
            raise DialFailed("not-seen", f"no other member sees the peer at `{address}`")
        if address.transport != "udp":
            return await self._endpoint.reach(address, timeout=timeout)
        with self._endpoint.aim.at(address):
            return await self._dial_udp(address, expect)

    async def _may_send(self, address: Address, peer: PeerId | None) -> bool:
        """Return whether QUIC may be dialled at an address. Asks other members if necessary."""
        near = path_kind_to(address.host) is not PathKind.DIRECT
        if near or self._endpoint.aim.is_known(address) or peer is None:
            return True
        return await self._is_seen(peer, address.host)

    async def reach(self, address: Address, timeout: float) -> Link:
        """Dial the peer that an address names, within `timeout` seconds. Raises DialFailed if that
        fails."""
        with trio.move_on_after(timeout):
            return await self.dial(address, address.peer, timeout=timeout)
        raise DialFailed("timeout", f"`{address}` did not answer within {timeout:g} s")

    async def dial_place(self, place: Place, peer: PeerId) -> Link:
        """Add a path to the link of a peer by dialling its UDP port. Raises DialFailed if that
        fails."""
        if not may_dial_port(place[1]):
            raise DialFailed("forbidden", f"port {place[1]}: peers cannot name ports below 1024")
        return await self._dial_udp(Address(*place, peer, transport="udp"), peer)

    async def _dial_udp(self, address: Address, expect: PeerId | None) -> Link:
        """Dial an address over QUIC, and return the link to the peer there."""
        if self._udp is None:
            raise DialFailed("no-udp", "this node has no UDP port")
        try:
            byte_stream = await self._udp.dial(
                (address.host, address.port), timeout=defaults.ATTEMPT_S
            )
        except OSError as error:
            raise DialFailed("unreachable", f"`{address}` does not answer: {error}") from None
        path_kind, name = path_kind_to(address.host), str(address)
        link = await self._endpoint.join(
            byte_stream, path_kind, expect=expect, server=False, name=name
        )
        byte_stream.trust()
        return link
