"""Client of UPnP port mapping at one gateway: finds its service, and calls the service's actions.

The time and the memory that it uses are bounded.
"""

import math
from collections.abc import Mapping

import trio

from ...errors import HostError
from ...host.datagrams import Datagrams
from ...host.seam import Host, MulticastGroup
from . import igd
from .defaults import (
    HTTP_S,
    LOCATIONS,
    PORT_TRIES,
    RANDOM_PORTS,
    SEARCH_S,
    SEARCH_TRIES,
)
from .http import Bad, GatewayResponse, ResponseReader, Url, encode_request
from .igd import IgdFault, IgdService
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

_READ_BYTES = 16 * 1024
_DESCRIPTION = "shoal"
_RETRY_FAULTS = (igd.CONFLICT, igd.OTHER_CONFLICT)
"""Faults after which another outer port may be granted."""


class IgdClient:
    """Client of the gateway's UPnP service.

    It implements `mapping.Client`, and never connects to another address than the gateway's.
    """

    name = "upnp"

    def __init__(self, host: Host, gateway: str, own: str, lease_s: int) -> None:
        self._host = host
        self._gateway = gateway
        self._own = own
        self._lease_s = lease_s
        self._endless = False  # whether the gateway accepts only mappings without an end
        self._service: IgdService | None = None  # the service that `probe` has chosen
        self._address: str | None = None  # the outer address that was reported last

    # Discovery.

    async def probe(self) -> ProbeAnswer:
        """Search for the gateway's service, and choose the first that has an outer address."""
        self._service, words = None, SILENT.words
        try:
            locations = await self._search()
        except HostError as error:
            return ProbeAnswer(False, f"cannot search: {error.message}")
        for location in locations:
            answer = await self._fetch(location, {}, b"")
            if isinstance(answer, Bad):
                words = f"found, but {answer}"
                continue
            words = "found, but it maps no ports"
            for service in igd.decode_description(answer.body, location):
                words = await self._try(service)
                if self._service is not None:
                    return ProbeAnswer(True, words)
        return ProbeAnswer(False, words)

    async def _try(self, service: IgdService) -> str:
        """Choose a service if it has a usable outer address. Return the result for the user."""
        found = await self._act(service, "GetExternalIPAddress", {})
        if isinstance(found, MappingRefused):
            return found.words
        if isinstance(found, IgdFault):
            return found.words
        if scope_of(found.get("NewExternalIPAddress", "")) is Scope.NOWHERE:
            return "has no outer address itself"
        self._service = service
        return "answers"

    async def _search(self) -> list[Url]:
        """Search for the gateway's device descriptions, and return their URLs.

        Ends early once a search has had a reply.
        """
        group = MulticastGroup(igd.GROUP[0], self._own)
        socket = await self._host.datagrams(self._own, 0, group=group)
        found: dict[Url, None] = {}
        try:
            for _ in range(SEARCH_TRIES):
                for target in igd.TARGETS:
                    search = igd.encode_search(target)
                    socket.send(search, igd.GROUP)
                    socket.send(search, (self._gateway, igd.GROUP[1]))
                with trio.move_on_after(SEARCH_S + 0.5):
                    await self._collect(socket, found)
                if found:
                    break
        finally:
            socket.close()
        return list(found)

    async def _collect(self, socket: Datagrams, found: dict[Url, None]) -> None:
        """Receive replies to a search, and add the URLs to `found`.

        Waits for the first reply, and then another 0.1 s for further ones.
        """
        while not found:
            await self._hear(socket, found)
        with trio.move_on_after(0.1):
            while len(found) < LOCATIONS:
                await self._hear(socket, found)

    async def _hear(self, socket: Datagrams, found: dict[Url, None]) -> None:
        """Receive datagrams once, and add the URLs in the gateway's replies to `found`."""
        for data, source in await socket.receive():
            url = igd.decode_answer(data, self._gateway) if source[0] == self._gateway else None
            if url is not None and len(found) < LOCATIONS:
                found[url] = None

    # Actions.

    async def address(self) -> str | None:
        found = await self._call("GetExternalIPAddress", {})
        if isinstance(found, IgdFault | MappingRefused):
            return None
        self._address = found.get("NewExternalIPAddress", "")
        return self._address if scope_of(self._address) is not Scope.NOWHERE else None

    async def map(self, proto: Proto, inside: int, wish: int) -> Granted | MappingRefused:
        service = self._service
        if service is None:
            return SILENT
        if service.any_port:
            granted = await self._add_any(proto, inside, wish)
            if granted is not None:
                return granted
        words = igd.WORDS[igd.CONFLICT]
        for port in (wish, *self._random_ports()):
            if await self._is_others(proto, port):
                continue
            found = await self._add("AddPortMapping", proto, inside, port)
            if isinstance(found, MappingRefused):
                return found
            if not isinstance(found, IgdFault):
                return await self._granted(proto, inside, port)
            words = found.words
            if found.code not in _RETRY_FAULTS:
                break
        return MappingRefused(words)

    async def _add_any(
        self, proto: Proto, inside: int, wish: int
    ) -> Granted | MappingRefused | None:
        """Map a port with the action AddAnyPortMapping (WANIPConnection:2, section 2.5.17).

        Returns None if the gateway does not know the action.
        """
        found = await self._add("AddAnyPortMapping", proto, inside, wish)
        if isinstance(found, MappingRefused):
            return found
        if isinstance(found, IgdFault):
            unknown = found.code in (igd.INVALID_ACTION, igd.OPTIONAL_ACTION)
            return None if unknown else MappingRefused(found.words)
        port = igd.number(found.get("NewReservedPort", ""), 65535)
        return (
            await self._granted(proto, inside, port) if port else MappingRefused(IgdFault(0).words)
        )

    async def _add(
        self, action: str, proto: Proto, inside: int, port: int
    ) -> dict[str, str] | IgdFault | MappingRefused:
        """Call an action that adds a mapping with a lease, and return its result.

        If the gateway accepts only mappings without an end, adds such a mapping.
        """
        while True:
            lease = 0 if self._endless else self._lease_s
            found = await self._call(
                action,
                _key(proto, port)
                | {
                    "NewInternalPort": str(inside),
                    "NewInternalClient": self._own,
                    "NewEnabled": "1",
                    "NewPortMappingDescription": _DESCRIPTION,
                    "NewLeaseDuration": str(lease),
                },
            )
            refused = isinstance(found, IgdFault) and found.code in _NO_LEASES
            if not refused or self._endless:
                return found
            self._endless = True

    async def _granted(self, proto: Proto, inside: int, port: int) -> Granted:
        """Return a mapping that was just added, with its real lease.

        The lease is read from the gateway's entry, because some routers shorten it without notice.
        """
        if self._endless:
            return Granted(proto, inside, port, math.inf)
        entry = await self._entry(proto, port)
        told = (
            igd.number(entry.get("NewLeaseDuration", ""), 2**32 - 1)
            if isinstance(entry, dict)
            else 0
        )
        return Granted(proto, inside, port, lease_of(told or self._lease_s, self._lease_s))

    async def unmap(self, granted: Granted) -> None:
        """Remove a mapping, unless another computer has the outer port by now."""
        if await self._is_others(granted.proto, granted.port):
            return
        await self._call("DeletePortMapping", _key(granted.proto, granted.port))

    async def check(self, held: list[Granted]) -> MappingHealth:
        before = self._address
        address = await self.address()
        if address is None:
            return MappingHealth.SILENT
        if address != before:
            return MappingHealth.LOST
        for granted in held:
            entry = await self._entry(granted.proto, granted.port)
            if isinstance(entry, MappingRefused):
                return MappingHealth.SILENT
            if isinstance(entry, IgdFault):  # other codes: some routers do not know the action
                if entry.code == igd.NO_SUCH_ENTRY:
                    return MappingHealth.LOST
            elif not self._is_mine(entry, granted.inside):
                return MappingHealth.LOST
        return MappingHealth.GOOD

    async def _is_others(self, proto: Proto, port: int) -> bool:
        """Return whether an outer port is mapped to another computer.

        Some routers would take it from that computer, and map it to us.
        """
        entry = await self._entry(proto, port)
        return isinstance(entry, dict) and entry.get("NewInternalClient", "") != self._own

    def _is_mine(self, entry: Mapping[str, str], inside: int) -> bool:
        """Return whether the gateway's entry of a mapping leads to our port `inside`."""
        port = igd.number(entry.get("NewInternalPort", ""), 65535)
        return entry.get("NewInternalClient", "") == self._own and port == inside

    async def _entry(self, proto: Proto, port: int) -> dict[str, str] | IgdFault | MappingRefused:
        """Return the gateway's entry of the mapping at an outer port."""
        return await self._call("GetSpecificPortMappingEntry", _key(proto, port))

    def _random_ports(self) -> list[int]:
        """Return random outer ports to try if the wished one is taken."""
        low, high = RANDOM_PORTS
        drawn = self._host.entropy(2 * PORT_TRIES)
        numbers = [int.from_bytes(drawn[at : at + 2]) for at in range(0, len(drawn), 2)]
        return [low + number % (high - low) for number in numbers]

    # The wire.

    async def _call(
        self, name: str, arguments: Mapping[str, str]
    ) -> dict[str, str] | IgdFault | MappingRefused:
        """Call an action of the chosen service. See `_act` for the result."""
        return await self._act(self._service, name, arguments) if self._service else SILENT

    async def _act(
        self, service: IgdService, name: str, arguments: Mapping[str, str]
    ) -> dict[str, str] | IgdFault | MappingRefused:
        """Call an action of a service.

        Returns its results by name, an IgdFault if the gateway refuses the action, or a
        MappingRefused if there is no valid response.
        """
        fields, body = igd.encode_action(service, name, arguments)
        answer = await self._fetch(service.control, fields, body)
        if isinstance(answer, Bad):
            return MappingRefused(f"found, but {answer}", silent=True)
        return igd.decode_result(name, answer)

    async def _fetch(
        self, url: Url, fields: Mapping[str, str], body: bytes
    ) -> GatewayResponse | Bad:
        """Send one HTTP request on a new connection. Return the response, or why there is none."""
        if url.address != self._gateway:
            return Bad.MALFORMED
        with trio.move_on_after(HTTP_S):
            try:
                stream = await self._host.connect(url.address, url.port)
            except OSError:
                return Bad.UNREACHABLE
            try:
                return await _exchange(stream, encode_request(url, fields, body))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return Bad.CUT_OFF
            finally:
                stream.socket.close()
        return Bad.LATE


_NO_LEASES = (igd.ONLY_PERMANENT, igd.INVALID_ARGS)
"""Faults with which a gateway refuses a mapping because of its lease."""


async def _exchange(stream: trio.SocketStream, request: bytes) -> GatewayResponse | Bad:
    """Send a request and read the response.

    Raises trio.BrokenResourceError if the connection breaks.
    """
    await stream.send_all(request)
    reader = ResponseReader()
    while data := await stream.receive_some(_READ_BYTES):
        found = reader.feed(data)
        if found is not None:
            return found
    return reader.end()


def _key(proto: Proto, port: int) -> dict[str, str]:
    """Return the arguments that identify a mapping, in the order that the service requires."""
    return {
        "NewRemoteHost": "",
        "NewExternalPort": str(port),
        "NewProtocol": proto.upper(),
    }
