"""Clients of NAT-PMP and PCP. They share one UDP socket that sends to the gateway's port 5351."""

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import trio

from ...errors import HostError
from ...host.datagrams import Datagrams
from ...host.seam import Host, MulticastGroup
from . import natpmp, pcp
from .defaults import DATAGRAM_BYTES, FIRST_WAIT_S, TRIES
from .mapping import (
    SILENT,
    Granted,
    MappingHealth,
    MappingRefused,
    ProbeAnswer,
    Proto,
    Scope,
    lease_of,
    scope_of,
)

T = TypeVar("T")


class _Waiter(Generic[T]):
    """A request that waits for its reply.

    `match` decodes a datagram into the awaited reply, or returns None if it is another datagram.
    """

    def __init__(self, match: Callable[[bytes], T | None]) -> None:
        self._match = match
        self.answer: T | None = None
        self.came = trio.Event()

    def take(self, data: bytes) -> None:
        """Store a datagram as the reply if it is the awaited one. Later replies are ignored."""
        found = self._match(data)
        if found is not None and not self.came.is_set():
            self.answer = found
            self.came.set()


class _Takes(Protocol):
    """A `_Waiter` for a reply of any type."""

    def take(self, data: bytes) -> None: ...


class _Clock:
    """Detector of a gateway's restart, from the gateway's clock (the *epoch* of one protocol).

    A gateway that restarts loses its mappings, and its clock begins at 0 again.
    """

    def __init__(self, rule: Callable[[int, float, int], bool]) -> None:
        """`rule` is the function `is_continued` of the protocol."""
        self._rule = rule
        self._before: tuple[int, float] | None = None  # (last epoch, time when it arrived)
        self.restarted = False

    def hear(self, epoch: int, now: float) -> None:
        """Process an epoch that has arrived, and set `restarted` if it shows a restart."""
        if self._before is not None:
            before, then = self._before
            self.restarted |= not self._rule(epoch, now - then, before)
        self._before = epoch, now


class PortControl:
    """UDP socket to the gateway, and another for its announcements.

    Datagrams from another source than the gateway's port 5351 are dropped. `on_news` is called when
    the gateway announces a change. An announcement can be forged, so it is only a reason to check.
    """

    def __init__(self, host: Host, gateway: str, own: str, *, on_news: Callable[[], None]) -> None:
        self.host = host
        self.own = own
        self.gateway = gateway
        self.pmp_clock = _Clock(natpmp.is_continued)
        self.pcp_clock = _Clock(pcp.is_continued)
        self.deaf: str | None = None  # why no announcements can be received
        self._on_news = on_news
        self._socket: Datagrams | None = None
        self._news: Datagrams | None = None
        self._waiters: list[_Takes] = []

    async def open(self, nursery: trio.Nursery) -> None:
        """Open the sockets, and start to receive in `nursery`, until `close` is called.

        Raises HostError if the socket to the gateway cannot be opened.
        """
        self._socket = await self.host.datagrams(self.own, 0)
        self._news = await self._listen()
        nursery.start_soon(self._receive, self._socket, False)
        if self._news is not None:
            nursery.start_soon(self._receive, self._news, True)

    def close(self) -> None:
        """Close the sockets.

        The receiving tasks do not close them when they are cancelled, because requests to remove
        mappings are sent after that.
        """
        for socket in self._socket, self._news:
            if socket is not None:
                socket.close()

    async def _listen(self) -> Datagrams | None:
        """Open the socket for announcements, or return None if its port is not available.

        The port is fixed, so another program may already use it.
        """
        group, port = natpmp.ANNOUNCEMENTS
        try:
            return await self.host.datagrams(
                group, port, group=MulticastGroup(group, self.own), shared=True
            )
        except HostError as error:
            self.deaf = error.message
            return None

    async def _receive(self, socket: Datagrams, announced: bool) -> None:
        """Process all datagrams of the gateway that arrive at `socket`.

        `announced` says whether `socket` is the one for announcements.
        """
        with suppress(trio.ClosedResourceError):
            while True:
                for data, source in await socket.receive():
                    if source == (self.gateway, natpmp.PORT) and len(data) <= DATAGRAM_BYTES:
                        self._take(data, announced)

    def _take(self, data: bytes, announced: bool) -> None:
        """Process an announcement, or pass a reply to the request that waits for it."""
        now = self.host.now()
        if (pmp_answer := natpmp.decode(data)) is not None:
            if announced:
                self.pmp_clock.hear(pmp_answer.epoch, now)
        elif (pcp_answer := pcp.decode(data)) is not None:
            if announced:
                self.pcp_clock.hear(pcp_answer.epoch, now)
        else:
            return
        if announced:
            self._on_news()
            return
        for waiter in self._waiters:
            waiter.take(data)

    def send(self, data: bytes) -> None:
        """Send a datagram once, without waiting for a reply."""
        if self._socket is not None:
            self._socket.send(data, (self.gateway, natpmp.PORT))

    async def ask(self, data: bytes, match: Callable[[bytes], T | None]) -> T | None:
        """Send a request up to `TRIES` times. Return the reply as decoded by `match`, or None."""
        waiter = _Waiter(match)
        self._waiters.append(waiter)
        try:
            for attempt in range(TRIES):
                self.send(data)
                with trio.move_on_after(FIRST_WAIT_S * 2**attempt):
                    await waiter.came.wait()
                    return waiter.answer
            return None
        finally:
            self._waiters.remove(waiter)


class PmpClient:
    """Client of NAT-PMP. It identifies a mapping by its transport protocol and inner port."""

    name = "nat-pmp"

    def __init__(self, control: PortControl, lease_s: int) -> None:
        self._control = control
        self._lease_s = lease_s
        self._address: str | None = None

    async def probe(self) -> ProbeAnswer:
        answer = await self._ask_address()
        if answer is None:
            return ProbeAnswer(False, SILENT.words)
        if isinstance(answer, pcp.PcpAnswer):
            return ProbeAnswer(False, "speaks PCP only")
        if answer.result:
            return ProbeAnswer(False, answer.words)
        if scope_of(answer.address) is Scope.NOWHERE:
            return ProbeAnswer(False, natpmp.WORDS[natpmp.NatPmpResult.NETWORK_FAILURE])
        return ProbeAnswer(True, "answers")

    async def address(self) -> str | None:
        answer = await self._ask_address()
        if not isinstance(answer, natpmp.PmpAnswer) or answer.result:
            return None
        self._address = answer.address
        return self._address

    async def map(self, proto: Proto, inside: int, wish: int) -> Granted | MappingRefused:
        request = natpmp.encode_map(proto, inside, wish, self._lease_s)
        answer = await self._ask(request, proto, inside)
        if answer is None:
            return SILENT
        if not isinstance(answer, natpmp.PmpAnswer):
            return MappingRefused("speaks PCP only")
        if answer.result or not answer.outside:
            return MappingRefused(answer.words)
        return Granted(proto, inside, answer.outside, lease_of(answer.seconds, self._lease_s))

    async def unmap(self, granted: Granted) -> None:
        """Send one request to remove a mapping. If it is lost, the mapping ends with its lease."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._control.send(natpmp.encode_map(granted.proto, granted.inside, 0, 0))

    async def check(self, held: list[Granted]) -> MappingHealth:
        before = self._address
        address = await self.address()
        if address is None:
            return MappingHealth.SILENT
        return _health(self._control.pmp_clock, address == before)

    async def _ask_address(self) -> natpmp.PmpAnswer | pcp.PcpAnswer | None:
        """Ask for the outer address. See `_ask` for the result."""
        return await self._ask(natpmp.encode_address_request(), None, 0)

    async def _ask(
        self, request: bytes, proto: Proto | None, inside: int
    ) -> natpmp.PmpAnswer | pcp.PcpAnswer | None:
        """Send a request about a mapping, or about the outer address if `proto` is None.

        Returns the reply. A PcpAnswer means that the gateway supports only PCP; None means that it
        has not replied.
        """

        def match(data: bytes) -> natpmp.PmpAnswer | pcp.PcpAnswer | None:
            answer = natpmp.decode(data)
            if answer is not None:
                named = answer.inside == inside or (answer.result and not answer.inside)
                mine = answer.proto is proto and named and not answer.of_deletion
                return answer if mine and answer.result != _VERSION else None
            other = pcp.decode(data)  # the refusal of a gateway that supports only PCP
            return other if other is not None and other.result == _VERSION else None

        found = await self._control.ask(request, match)
        if isinstance(found, natpmp.PmpAnswer):
            self._control.pmp_clock.hear(found.epoch, self._control.host.now())
            return found
        return found if isinstance(found, pcp.PcpAnswer) else None


_VERSION = natpmp.NatPmpResult.UNSUPPORTED_VERSION  # the same number in both protocols


class PcpClient:
    """Client of PCP. It identifies a mapping by its transport protocol, inner port and nonce.

    `nonce_of(proto, inner port)` returns the nonce of a mapping. A computer that does not know the
    nonce can neither forge a reply nor change the mapping.
    """

    name = "pcp"

    def __init__(
        self, control: PortControl, lease_s: int, nonce_of: Callable[[Proto, int], bytes]
    ) -> None:
        self._control = control
        self._lease_s = lease_s
        self._nonce_of = nonce_of
        self._address: str | None = None

    async def probe(self) -> ProbeAnswer:
        def match(data: bytes) -> str | pcp.PcpAnswer | None:
            older = natpmp.decode(data)
            if older is not None:
                return "speaks NAT-PMP only" if older.result == _VERSION else None
            return _announced(data)

        found = await self._control.ask(pcp.encode_announce(self._control.own), match)
        if found is None:
            return ProbeAnswer(False, SILENT.words)
        if not isinstance(found, pcp.PcpAnswer):
            return ProbeAnswer(False, str(found))
        self._hear(found)
        # An old server may support MAP, but not ANNOUNCE.
        works = found.result in (pcp.PcpResult.SUCCESS, pcp.PcpResult.UNSUPP_OPCODE)
        return ProbeAnswer(works, "answers" if works else found.words)

    async def address(self) -> str | None:
        """Return the outer address of the latest mapping, or None if there was none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        return self._address

    async def map(self, proto: Proto, inside: int, wish: int) -> Granted | MappingRefused:
        nonce = self._nonce_of(proto, inside)

        def match(data: bytes) -> pcp.PcpAnswer | None:
            answer = pcp.decode(data)
            if answer is None or answer.opcode != pcp.MAP or answer.of_deletion:
                return None
            mine = (answer.nonce, answer.proto, answer.inside) == (nonce, proto, inside)
            return answer if mine else None

        request = pcp.encode_map(self._control.own, nonce, proto, inside, wish, self._lease_s)
        answer = await self._control.ask(request, match)
        if not isinstance(answer, pcp.PcpAnswer):
            return SILENT
        self._hear(answer)
        if answer.result or not answer.outside:
            return MappingRefused(answer.words)
        if scope_of(answer.address) is Scope.NOWHERE:
            return MappingRefused(pcp.WORDS[pcp.PcpResult.NETWORK_FAILURE])
        self._address = answer.address
        return Granted(proto, inside, answer.outside, lease_of(answer.seconds, self._lease_s))

    async def unmap(self, granted: Granted) -> None:
        """Send one request to remove a mapping. If it is lost, the mapping ends with its lease."""
        await trio.lowlevel.checkpoint_if_cancelled()
        nonce = self._nonce_of(granted.proto, granted.inside)
        own, port = self._control.own, granted.port
        self._control.send(pcp.encode_map(own, nonce, granted.proto, granted.inside, port, 0))

    async def check(self, held: list[Granted]) -> MappingHealth:
        found = await self._control.ask(pcp.encode_announce(self._control.own), _announced)
        if not isinstance(found, pcp.PcpAnswer):
            return MappingHealth.SILENT
        self._hear(found)
        return _health(self._control.pcp_clock, True)

    def _hear(self, answer: pcp.PcpAnswer) -> None:
        """Process the epoch in a reply."""
        self._control.pcp_clock.hear(answer.epoch, self._control.host.now())


def _announced(data: bytes) -> pcp.PcpAnswer | None:
    """Decode the reply to an ANNOUNCE request. Return None if `data` is another datagram.

    A reply with the result "unsupported version" is not accepted. It belongs to a NAT-PMP request,
    which may be under way at the same time.
    """
    answer = pcp.decode(data)
    good = answer is not None and answer.opcode == pcp.ANNOUNCE and answer.result != _VERSION
    return answer if good else None


def _health(clock: _Clock, same_address: bool) -> MappingHealth:
    """Return the result of a check. A restart of the gateway is reported only once."""
    restarted, clock.restarted = clock.restarted, False
    return MappingHealth.GOOD if same_address and not restarted else MappingHealth.LOST
