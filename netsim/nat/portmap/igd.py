"""Services with which a gateway forwards ports on request: UPnP, NAT-PMP and PCP.

The services run on a simulated host at the gateway's inner address, with ordinary sockets: one task
per protocol.
"""

import math
import socket as stdlib
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Final

import trio

from ...host import Host
from ...network.gateway import SubnetRouter, check
from ...network.packet import IP4_HEADER, UDP, UDP_HEADER, Addr, Packet
from ...sockets.factory import equip
from . import pcp, upnp
from .leases import Leases
from .upnp import IgdDevice, UpnpRequest, WebServer, response, search_answers

PROTOCOLS: Final = ("upnp", "nat-pmp", "pcp")
LEASE_S: Final = 7200.0  # RFC 6886 3.3

HEAD_BYTES: Final = 8192
BODY_BYTES: Final = 16384
PATIENCE_S: Final = 10.0
CONNECTIONS: Final = 8
SEARCHES: Final = 32  # maximum of replies in progress


@dataclass(frozen=True, slots=True)
class IgdSettings:
    """Settings of the services with which a gateway answers requests for port forwards.

    `protocols`: names of the protocols, True for all, False for none. `lease`: maximum lease in
    seconds; 0 means no limit. `permanent`: whether UPnP refuses leases that expire (error 725).
    `works`: False for a router that confirms requests but forwards nothing. `external`: the outer
    address to report; None means the real one. `version`: version of the UPnP device, 1 or 2.
    """

    protocols: Collection[str] | str | bool = True
    lease: float = LEASE_S
    permanent: bool = False
    works: bool = True
    external: str | None = None
    version: int = 1


KNOBS: Final = {
    "igd" if item.name == "protocols" else f"igd_{item.name}": item.name
    for item in fields(IgdSettings)
}
"""Name of the field of `IgdSettings` for each knob of a gateway, such as "igd_lease": "lease"."""


def add_igd(gateway: SubnetRouter, settings: IgdSettings) -> None:
    """Add the services that answer requests for ports to a gateway, unless `protocols` is empty.
    Raises ValueError if a setting is invalid.
    """
    names = _names(settings.protocols)
    check("igd_version", settings.version, (1, 2))
    if not names:
        return
    longest = settings.lease if settings.lease else math.inf
    leases = Leases(gateway, longest=longest, works=settings.works)
    box = Host(gateway.network, gateway.name, equip)
    box.attachments.append(gateway.lan)
    gateway.box = box
    gateway.service = Igd(
        leases,
        names,
        WebServer(
            leases,
            IgdDevice(_uuid(gateway), gateway.lan.addresses[0], settings.version),
            permanent=settings.permanent,
            external=settings.external,
        ),
        pcp.PortControlServer(
            leases, pmp="nat-pmp" in names, pcp="pcp" in names, external=settings.external
        ),
    )


def _uuid(gateway: SubnetRouter) -> str:
    """Return the permanent UPnP identifier of a gateway, a UUID drawn from its random stream."""
    text = f"{gateway.network.streams.get(gateway.name, 'uuid').getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"  # RFC 9562 5.4


def _names(igd: Collection[str] | str | bool) -> tuple[str, ...]:
    if isinstance(igd, bool):
        return PROTOCOLS if igd else ()
    names = tuple(igd.split(",")) if isinstance(igd, str) else tuple(igd)
    for name in names:
        check("igd", name, PROTOCOLS)
    return names


class Igd:
    """Program that runs a gateway's services, with one task per protocol and one per UPnP
    connection.
    """

    def __init__(
        self,
        leases: Leases,
        protocols: Collection[str],
        control: WebServer,
        ports: pcp.PortControlServer,
    ) -> None:
        self.leases = leases
        """The ports that are open on the router."""
        self._protocols = protocols
        self.control = control
        """What answers the requests of hosts."""
        self._ports = ports
        self._searches = 0
        self._connections = 0

    def rebooted(self) -> None:
        """Delete all leases, because the gateway has rebooted."""
        self.leases.forget()

    def announce(self) -> None:
        """Announce to the LAN by NAT-PMP and PCP that leases are lost or that the outer address has
        changed.
        """
        gateway = self.leases.gateway
        source = self._address, pcp.PORT
        for data in self._ports.announcements():
            size = IP4_HEADER + UDP_HEADER + len(data)
            gateway.lan.spread(
                Packet(UDP, source, pcp.CLIENTS, size, data, gateway.name, "announcement")
            )

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve requests. `started` is called once every socket listens."""
        async with trio.open_nursery() as nursery:
            if "nat-pmp" in self._protocols or "pcp" in self._protocols:
                await nursery.start(self._serve_ports)
            if "upnp" in self._protocols:
                await nursery.start(self._serve_searches, host)
                await nursery.start(self._serve_web)
            task_status.started()

    @property
    def _address(self) -> str:
        return self.control.device.address

    async def _serve_ports(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve NAT-PMP and PCP. Both use the same port; the first byte of a message says which of
        the two it belongs to.
        """
        with trio.socket.socket(stdlib.AF_INET, stdlib.SOCK_DGRAM) as sock:
            await sock.bind((self._address, pcp.PORT))
            task_status.started()
            while True:
                data, source = await sock.recvfrom(pcp.MOST_BYTES + 1)
                answer = self._ports.answer(data, source)
                if answer is not None:
                    await sock.sendto(answer, source)

    async def _serve_searches(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        group = stdlib.inet_aton(upnp.SSDP[0]) + stdlib.inet_aton(self._address)
        with trio.socket.socket(stdlib.AF_INET, stdlib.SOCK_DGRAM) as sock:
            await sock.bind(("0.0.0.0", upnp.SSDP[1]))
            sock.setsockopt(stdlib.IPPROTO_IP, stdlib.IP_ADD_MEMBERSHIP, group)
            task_status.started()
            luck = host.streams.get(host.name, "ssdp")
            async with trio.open_nursery() as nursery:
                while True:
                    data, source = await sock.recvfrom(2048)
                    search = upnp.parse_search(data)
                    if search is None or self._searches >= SEARCHES:
                        continue
                    # Spread over MX, so that not all devices answer at once (UDA 1.1, 1.3.3).
                    delay = luck.random() * search.spread
                    answers = search_answers(self.control.device, search)
                    nursery.start_soon(self._answer_search, sock, source, delay, answers)

    async def _answer_search(
        self, sock: trio.socket.SocketType, to: Addr, delay: float, answers: list[bytes]
    ) -> None:
        self._searches += 1
        await trio.sleep(delay)
        for answer in answers:
            await sock.sendto(answer, to)
        self._searches -= 1

    async def _serve_web(self, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.socket.socket(stdlib.AF_INET, stdlib.SOCK_STREAM) as sock:
            await sock.bind((self._address, upnp.HTTP_PORT))
            sock.listen(CONNECTIONS)
            task_status.started()
            await trio.serve_listeners(self._serve_connection, [trio.SocketListener(sock)])

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        """Read one HTTP request and send one reply, within `PATIENCE_S` seconds. Close at once if
        too many connections are open.
        """
        if self._connections >= CONNECTIONS:
            return
        self._connections += 1
        try:
            with trio.move_on_after(PATIENCE_S):
                client = str(stream.socket.getpeername()[0])
                request = await read_request(stream, client)
                if isinstance(request, UpnpRequest):
                    await stream.send_all(self.control.answer(request))
                else:
                    await stream.send_all(response(request, ""))
                await stream.send_eof()
        except trio.BrokenResourceError:
            return  # the client has gone
        finally:
            self._connections -= 1


async def read_request(stream: trio.abc.ReceiveStream, client: str) -> UpnpRequest | int:
    """Read an HTTP request. Return the request, or the HTTP status (400 or 413) with which to
    refuse it.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > HEAD_BYTES:
            return 413
        more = await stream.receive_some(4096)
        if not more:
            return 400
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    first = lines[0].split(" ")
    if len(first) != 3:
        return 400
    fields = upnp.headers(lines[1:])
    length = fields.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        return 400
    if len(length) > 6 or int(length) > BODY_BYTES:
        return 413
    while len(body) < int(length):
        more = await stream.receive_some(4096)
        if not more:
            return 400
        body += more
    return UpnpRequest(first[0], first[1], fields, body[: int(length)], client)
