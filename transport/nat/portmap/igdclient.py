"""UPnP client for one gateway: search, description and actions, with bounded time and memory."""

import math
from collections.abc import Mapping

import trio

from ...errors import HostError
from ...host.datagrams import Datagrams
from ...host.seam import Group, Host
from . import igd
from .defaults import (
    HTTP_S,
    LOCATIONS,
    PORT_TRIES,
    RANDOM_PORTS,
    SEARCH_S,
    SEARCH_TRIES,
)
from .http import Bad, Response, ResponseReader, Url, encode_request
from .igd import Fault, Service
from .mapping import (
    SILENT,
    Answer,
    Granted,
    Health,
    Proto,
    Refused,
    Scope,
    lease_of,
    scope_of,
)

_READ_BYTES = 16 * 1024
_DESCRIPTION = "shoal"
_RETRY_FAULTS = (igd.CONFLICT, igd.OTHER_CONFLICT)


class IgdClient:
    """A client of the gateway's UPnP service. It connects to the gateway's own address only."""

    name = "upnp"

    def __init__(self, host: Host, gateway: str, own: str, lease_s: int) -> None:
        self._host = host
        self._gateway = gateway
        self._own = own
        self._lease_s = lease_s
        self._endless = False  # the gateway accepts only leases without an end
        self._service: Service | None = None
        self._address: str | None = None

    # Discovery.

    async def probe(self) -> Answer:
        """Search, read descriptions, and choose the first service that has an outer address."""
        self._service, words = None, SILENT.words
        try:
            locations = await self._search()
        except HostError as error:
            return Answer(False, f"cannot search: {error.message}")
        for location in locations:
            answer = await self._fetch(location, {}, b"")
            if isinstance(answer, Bad):
                words = f"found, but {answer}"
                continue
            words = "found, but it maps no ports"
            for service in igd.decode_description(answer.body, location):
                words = await self._try(service)
                if self._service is not None:
                    return Answer(True, words)
        return Answer(False, words)

    async def _try(self, service: Service) -> str:
        """Choose the service if it has a usable outer address; return words for the user."""
        found = await self._act(service, "GetExternalIPAddress", {})
        if isinstance(found, Refused):
            return found.words
        if isinstance(found, Fault):
            return found.words
        if scope_of(found.get("NewExternalIPAddress", "")) is Scope.NOWHERE:
            return "has no outer address itself"
        self._service = service
        return "answers"

    async def _search(self) -> list[Url]:
        """Return URLs of the gateway's descriptions; stop early when one is found."""
        group = Group(igd.GROUP[0], self._own)
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
        """Receive until a reply has arrived, and 0.1 s longer for further locations."""
        while not found:
            await self._hear(socket, found)
        with trio.move_on_after(0.1):
            while len(found) < LOCATIONS:
                await self._hear(socket, found)

    async def _hear(self, socket: Datagrams, found: dict[Url, None]) -> None:
        for data, source in await socket.receive():
            url = igd.decode_answer(data, self._gateway) if source[0] == self._gateway else None
            if url is not None and len(found) < LOCATIONS:
                found[url] = None

    # Actions.

    async def address(self) -> str | None:
        found = await self._call("GetExternalIPAddress", {})
        if isinstance(found, Fault | Refused):
            return None
        self._address = found.get("NewExternalIPAddress", "")
        return self._address if scope_of(self._address) is not Scope.NOWHERE else None

    async def map(self, proto: Proto, inside: int, wish: int) -> Granted | Refused:
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
            if isinstance(found, Refused):
                return found
            if not isinstance(found, Fault):
                return await self._granted(proto, inside, port)
            words = found.words
            if found.code not in _RETRY_FAULTS:
                break
        return Refused(words)

    async def _add_any(self, proto: Proto, inside: int, wish: int) -> Granted | Refused | None:
        """Map by AddAnyPortMapping (WANIPConnection:2, section 2.5.17); return None if the gateway
        does not know the action."""
        found = await self._add("AddAnyPortMapping", proto, inside, wish)
        if isinstance(found, Refused):
            return found
        if isinstance(found, Fault):
            unknown = found.code in (igd.INVALID_ACTION, igd.OPTIONAL_ACTION)
            return None if unknown else Refused(found.words)
        port = igd.number(found.get("NewReservedPort", ""), 65535)
        return await self._granted(proto, inside, port) if port else Refused(Fault(0).words)

    async def _add(
        self, action: str, proto: Proto, inside: int, port: int
    ) -> dict[str, str] | Fault | Refused:
        """Add a mapping with a lease, or without an end if the gateway accepts nothing else."""
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
            refused = isinstance(found, Fault) and found.code in _NO_LEASES
            if not refused or self._endless:
                return found
            self._endless = True

    async def _granted(self, proto: Proto, inside: int, port: int) -> Granted:
        """Read the lease from the router's entry: routers shorten leases without saying so."""
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
        """Remove the mapping, unless another computer has the port by now."""
        if await self._is_others(granted.proto, granted.port):
            return
        await self._call("DeletePortMapping", _key(granted.proto, granted.port))

    async def check(self, held: list[Granted]) -> Health:
        before = self._address
        address = await self.address()
        if address is None:
            return Health.SILENT
        if address != before:
            return Health.LOST
        for granted in held:
            entry = await self._entry(granted.proto, granted.port)
            if isinstance(entry, Refused):
                return Health.SILENT
            if isinstance(entry, Fault):  # some routers do not know the action
                if entry.code == igd.NO_SUCH_ENTRY:
                    return Health.LOST
            elif not self._is_mine(entry, granted.inside):
                return Health.LOST
        return Health.GOOD

    async def _is_others(self, proto: Proto, port: int) -> bool:
        """Return whether another computer has the port: some routers would take the port from that
        computer and give it to us."""
        entry = await self._entry(proto, port)
        return isinstance(entry, dict) and entry.get("NewInternalClient", "") != self._own

    def _is_mine(self, entry: Mapping[str, str], inside: int) -> bool:
        port = igd.number(entry.get("NewInternalPort", ""), 65535)
        return entry.get("NewInternalClient", "") == self._own and port == inside

    async def _entry(self, proto: Proto, port: int) -> dict[str, str] | Fault | Refused:
        return await self._call("GetSpecificPortMappingEntry", _key(proto, port))

    def _random_ports(self) -> list[int]:
        low, high = RANDOM_PORTS
        drawn = self._host.entropy(2 * PORT_TRIES)
        numbers = [int.from_bytes(drawn[at : at + 2]) for at in range(0, len(drawn), 2)]
        return [low + number % (high - low) for number in numbers]

    # The wire.

    async def _call(
        self, name: str, arguments: Mapping[str, str]
    ) -> dict[str, str] | Fault | Refused:
        return await self._act(self._service, name, arguments) if self._service else SILENT

    async def _act(
        self, service: Service, name: str, arguments: Mapping[str, str]
    ) -> dict[str, str] | Fault | Refused:
        fields, body = igd.encode_action(service, name, arguments)
        answer = await self._fetch(service.control, fields, body)
        if isinstance(answer, Bad):
            return Refused(f"found, but {answer}", silent=True)
        return igd.decode_result(name, answer)

    async def _fetch(self, url: Url, fields: Mapping[str, str], body: bytes) -> Response | Bad:
        """Send one request on its own connection; return the response or what went wrong."""
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


async def _exchange(stream: trio.SocketStream, request: bytes) -> Response | Bad:
    """Send a request and read the response. Raises trio.BrokenResourceError."""
    await stream.send_all(request)
    reader = ResponseReader()
    while data := await stream.receive_some(_READ_BYTES):
        found = reader.feed(data)
        if found is not None:
            return found
    return reader.end()


def _key(proto: Proto, port: int) -> dict[str, str]:
    """Return the arguments that identify a mapping, in the order of the service's description."""
    return {
        "NewRemoteHost": "",
        "NewExternalPort": str(port),
        "NewProtocol": proto.upper(),
    }
