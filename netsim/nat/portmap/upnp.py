"""UPnP Internet Gateway Device (IGD) of a home router, without I/O: it gets requests and returns
replies.

It implements SSDP and the device description (UPnP Device Architecture 1.1, "UDA"), and SOAP
actions (WANIPConnection:1 and 2). The caller limits the size of requests. XML with declarations,
such as entities, is refused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from ...network.packet import TCP, UDP, Addr
from .leases import Full, Lease, Leases

SSDP: Final[Addr] = ("239.255.255.250", 1900)
HTTP_PORT: Final = 5000
SERVER: Final = "Linux UPnP/1.1 IGD/2.0"
LONGEST_LEASE_S: Final = 604800  # WANIPConnection:2, AddPortMapping
ENVELOPE: Final = "http://schemas.xmlsoap.org/soap/envelope/"

Arguments = Mapping[str, str]

_ERRORS: Final = {
    401: "Invalid Action",
    402: "Invalid Args",
    501: "Action Failed",
    606: "Action not authorized",
    713: "SpecifiedArrayIndexInvalid",
    714: "NoSuchEntryInArray",
    716: "WildCardNotPermittedInExtPort",
    718: "ConflictInMappingEntry",
    725: "OnlyPermanentLeasesSupported",
    728: "NoPortMapsAvailable",
}


class UpnpFault(Exception):
    """A UPnP action fails. `code` is the UPnP error code for the reply."""

    def __init__(self, code: int) -> None:
        super().__init__(_ERRORS[code])
        self.code = code


@dataclass(frozen=True, slots=True)
class IgdDevice:
    """Identity of the router in UPnP. `address` is its inner IPv4 address, and `version` the
    version of IGD: 1 or 2.
    """

    uuid: str
    address: str
    version: int = 1

    @property
    def location(self) -> str:
        return f"http://{self.address}:{HTTP_PORT}/rootDesc.xml"

    @property
    def service(self) -> str:
        return f"urn:schemas-upnp-org:service:WANIPConnection:{self.version}"

    @property
    def targets(self) -> list[str]:
        """Return the search targets that the device answers. An IGD 2 also answers for an IGD 1."""
        kinds = ["device:InternetGatewayDevice", "service:WANIPConnection"]
        return ["upnp:rootdevice", f"uuid:{self.uuid}"] + [
            f"urn:schemas-upnp-org:{kind}:{version}"
            for kind in kinds
            for version in range(1, self.version + 1)
        ]

    def description(self) -> str:
        kind = f"urn:schemas-upnp-org:device:%s:{self.version}"
        inner = (
            f"<serviceList><service><serviceType>{self.service}</serviceType>"
            "<serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>"
            "<SCPDURL>/WANIPCn.xml</SCPDURL><controlURL>/ctl/IPConn</controlURL>"
            "<eventSubURL>/evt/IPConn</eventSubURL></service></serviceList>"
        )
        names = ("WANConnectionDevice", "WANDevice", "InternetGatewayDevice")
        for depth, name in enumerate(names):
            listed = f"<deviceList>{inner}</deviceList>" if depth else inner
            inner = (
                f"<device><deviceType>{kind % name}</deviceType><friendlyName>{name}</friendlyName>"
                f"<manufacturer>simulated</manufacturer><modelName>{name}</modelName>"
                f"<UDN>uuid:{self.uuid}</UDN>{listed}</device>"
            )
        return (
            '<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">'
            f"<specVersion><major>1</major><minor>1</minor></specVersion>{inner}</root>"
        )


# SSDP.


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """M-SEARCH request. `target` is the kind of device wanted; replies are sent at a random time
    within `spread` seconds.
    """

    target: str
    spread: float


def parse_search(data: bytes) -> SearchRequest | None:
    """Parse a datagram. Return the search request, or None if the datagram is not an M-SEARCH (UDA
    1.1, section 1.3.2).
    """
    lines = data.decode("latin-1").split("\r\n")
    if lines[0].split(" ")[0] != "M-SEARCH":
        return None
    fields = headers(lines[1:])
    if fields.get("man") != '"ssdp:discover"' or "st" not in fields:
        return None
    spread = fields.get("mx", "0")
    return SearchRequest(fields["st"], min(float(spread), 5.0) if spread.isdecimal() else 0.0)


def search_answers(device: IgdDevice, search: SearchRequest) -> list[bytes]:
    """Return a datagram for each target of the device that the search matches."""
    wanted = [t for t in device.targets if search.target in (t, "ssdp:all")]
    return [_search_answer(device, target).encode() for target in wanted]


def _search_answer(device: IgdDevice, target: str) -> str:
    uuid = f"uuid:{device.uuid}"
    name = uuid if target == uuid else f"{uuid}::{target}"
    return (
        "HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\n"
        f"ST: {target}\r\nUSN: {name}\r\nEXT:\r\nSERVER: {SERVER}\r\n"
        f"LOCATION: {device.location}\r\n\r\n"
    )


def headers(lines: list[str]) -> dict[str, str]:
    """Return HTTP header fields by lower-case name."""
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


# HTTP and SOAP.


@dataclass(frozen=True, slots=True)
class UpnpRequest:
    method: str
    path: str
    fields: dict[str, str]
    body: bytes
    client: str  # IP address


class WebServer:
    """The router's web server, without I/O.

    If `permanent` is True, requests for leases that expire fail with error 725. `external` is the
    outer address to report; None means the real one.
    """

    def __init__(
        self, leases: Leases, device: IgdDevice, *, permanent: bool, external: str | None
    ) -> None:
        self.device = device
        self._leases = leases
        self._permanent = permanent
        self._external = external
        self.actions: dict[str, Callable[[Arguments, str], dict[str, str]]] = {
            "GetExternalIPAddress": self._external_address,
            "GetStatusInfo": self._status,
            "AddPortMapping": self._add,
            "DeletePortMapping": self._delete,
            "GetSpecificPortMappingEntry": self._specific,
            "GetGenericPortMappingEntry": self._generic,
        }
        if device.version > 1:
            self.actions["AddAnyPortMapping"] = self._add_any

    def answer(self, request: UpnpRequest) -> bytes:
        """Return the whole response to a request."""
        if request.method == "GET" and request.path == "/rootDesc.xml":
            return response(200, self.device.description())
        if request.path != "/ctl/IPConn":
            return response(404, "")
        if request.method != "POST":
            return response(405, "")
        try:
            name, arguments = _action(request, self.device.service)
            if name not in self.actions:
                raise UpnpFault(401)
            found = self.actions[name](arguments, request.client)
        except UpnpFault as fault:
            return response(500, _fault(fault.code))
        inner = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in found.items())
        tag = f"u:{name}Response"
        return response(200, _soap(f'<{tag} xmlns:u="{self.device.service}">{inner}</{tag}>'))

    def _external_address(self, arguments: Arguments, client: str) -> dict[str, str]:
        return {"NewExternalIPAddress": self._external or self._leases.gateway.address}

    def _status(self, arguments: Arguments, client: str) -> dict[str, str]:
        return {
            "NewConnectionStatus": "Connected",
            "NewLastConnectionError": "ERROR_NONE",
            "NewUptime": str(self._leases.epoch),
        }

    def _add(self, arguments: Arguments, client: str) -> dict[str, str]:
        """Forward the requested outer port to the client. Raises UpnpFault (718) if the port is
        forwarded to another host.
        """
        proto, port, inner, seconds = self._mapping(arguments, client)
        held = self._leases.at_port(proto, port)
        if held is not None and held.inner[0] != inner[0]:
            raise UpnpFault(718)
        self._lease(proto, port, inner, seconds, arguments)
        return {}

    def _add_any(self, arguments: Arguments, client: str) -> dict[str, str]:
        """Forward the requested outer port or, if it is in use, another port (WANIPConnection:2).
        Return the port in the reply's arguments. Raises UpnpFault (728) if no port is free.
        """
        proto, port, inner, seconds = self._mapping(arguments, client)
        held = self._leases.at_port(proto, port)
        if held is not None and held.inner != inner:
            try:
                port = self._leases.free_port(proto, 0)
            except Full:
                raise UpnpFault(728) from None
        self._lease(proto, port, inner, seconds, arguments)
        return {"NewReservedPort": str(port)}

    def _mapping(self, arguments: Arguments, client: str) -> tuple[int, int, Addr, float]:
        proto, port = _proto(arguments), _port(arguments, "NewExternalPort")
        inside = _port(arguments, "NewInternalPort")
        to = arguments.get("NewInternalClient", "")
        if to != client:  # only for the client itself, as in secure routers
            raise UpnpFault(606)
        seconds = _number(arguments, "NewLeaseDuration", 2**32 - 1)
        if not port:
            raise UpnpFault(716)
        if not inside:
            raise UpnpFault(402)
        if self._permanent and seconds:
            raise UpnpFault(725)
        if not seconds:  # forever in IGD 1, a week in IGD 2
            endless = self.device.version == 1 or self._permanent
            return proto, port, (to, inside), math.inf if endless else LONGEST_LEASE_S
        return proto, port, (to, inside), min(seconds, self._leases.longest, LONGEST_LEASE_S)

    def _lease(
        self, proto: int, port: int, inner: Addr, seconds: float, arguments: Arguments
    ) -> None:
        try:
            lease = self._leases.add(proto, port, inner, seconds)
        except Full:
            raise UpnpFault(728 if self.device.version > 1 else 501) from None
        lease.description = arguments.get("NewPortMappingDescription", "")[:64]

    def _delete(self, arguments: Arguments, client: str) -> dict[str, str]:
        lease = self._held(arguments)
        if lease.inner[0] != client:
            raise UpnpFault(606)
        self._leases.remove(lease)
        return {}

    def _specific(self, arguments: Arguments, client: str) -> dict[str, str]:
        return self._shown(self._held(arguments))

    def _generic(self, arguments: Arguments, client: str) -> dict[str, str]:
        every = list(self._leases)
        index = _number(arguments, "NewPortMappingIndex", 65535)
        if index >= len(every):
            raise UpnpFault(713)
        lease = every[index]
        return {
            "NewRemoteHost": "",
            "NewExternalPort": str(lease.port),
            "NewProtocol": "TCP" if lease.proto == TCP else "UDP",
        } | self._shown(lease)

    def _held(self, arguments: Arguments) -> Lease:
        lease = self._leases.at_port(_proto(arguments), _port(arguments, "NewExternalPort"))
        if lease is None:
            raise UpnpFault(714)
        return lease

    def _shown(self, lease: Lease) -> dict[str, str]:
        left = 0 if lease.expires == math.inf else round(lease.expires - self._leases.now)
        return {
            "NewInternalPort": str(lease.inner[1]),
            "NewInternalClient": lease.inner[0],
            "NewEnabled": "1",
            "NewPortMappingDescription": lease.description,
            "NewLeaseDuration": str(left),
        }


def _action(request: UpnpRequest, service: str) -> tuple[str, dict[str, str]]:
    """Return the name and the arguments of a SOAP action. Raises UpnpFault if the request is
    malformed or for another service.
    """
    urn, _, name = request.fields.get("soapaction", "").strip('"').partition("#")
    if b"<!" in request.body or not urn.startswith(service[:-1]):
        raise UpnpFault(401)
    try:
        body = ElementTree.fromstring(request.body).find(f"{{{ENVELOPE}}}Body")
    except ElementTree.ParseError:
        raise UpnpFault(402) from None
    if body is None or not len(body) or body[0].tag != f"{{{urn}}}{name}":
        raise UpnpFault(402)
    return name, {child.tag: (child.text or "").strip() for child in body[0]}


def _proto(arguments: Arguments) -> int:
    proto = {"TCP": TCP, "UDP": UDP}.get(arguments.get("NewProtocol", ""))
    if proto is None:
        raise UpnpFault(402)
    return proto


def _port(arguments: Arguments, name: str) -> int:
    return _number(arguments, name, 65535)


def _number(arguments: Arguments, name: str, most: int) -> int:
    text = arguments.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= most):
        raise UpnpFault(402)
    return int(text)


def _soap(inner: str) -> str:
    style = "http://schemas.xmlsoap.org/soap/encoding/"
    return (
        f'<?xml version="1.0"?><s:Envelope xmlns:s="{ENVELOPE}" s:encodingStyle="{style}">'
        f"<s:Body>{inner}</s:Body></s:Envelope>"
    )


def _fault(code: int) -> str:
    return _soap(
        "<s:Fault><faultcode>s:Client</faultcode><faultstring>UPnPError</faultstring><detail>"
        '<UPnPError xmlns="urn:schemas-upnp-org:control-1-0">'
        f"<errorCode>{code}</errorCode><errorDescription>{_ERRORS[code]}</errorDescription>"
        "</UPnPError></detail></s:Fault>"
    )


_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Payload Too Large",
    500: "Internal Server Error",
}


def response(status: int, body: str) -> bytes:
    """Return an HTTP/1.1 response with the header `Connection: close`."""
    content = body.encode()
    head = (
        f'HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/xml; charset="utf-8"\r\n'
        f"Connection: close\r\nContent-Length: {len(content)}\r\nServer: {SERVER}\r\nExt:\r\n\r\n"
    )
    return head.encode() + content
