"""UPnP's gateway device: searches, the description, actions and their errors."""

import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from shoal.netsim.nat.portmap.leases import Leases
from shoal.netsim.nat.portmap.upnp import (
    IgdDevice,
    UpnpRequest,
    WebServer,
    parse_search,
    search_answers,
)
from shoal.netsim.network.packet import TCP, UDP
from tests.netsim.nat.wire import GATE, INSIDE, OTHER, A, Wire

DEVICE = IgdDevice("5a34308c-1a2c-4546-ac5d-000000000001", "192.168.1.1")
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:"


class Bench:
    def __init__(self, *, permanent: bool = False, version: int = 1) -> None:
        self.wire = Wire("linux-drop")
        self.leases = Leases(self.wire.gate, longest=7200.0, works=True)
        device = IgdDevice(DEVICE.uuid, DEVICE.address, version)
        self.control = WebServer(self.leases, device, permanent=permanent, external=None)
        self.version = version

    def post(self, name: str, body: str, client: str = INSIDE[0]) -> str:
        fields = {"soapaction": f'"{SERVICE}{self.version}#{name}"'}
        request = UpnpRequest("POST", "/ctl/IPConn", fields, body.encode(), client)
        return self.control.answer(request).decode()

    def act(self, name: str, client: str = INSIDE[0], **arguments: Any) -> dict[str, str]:
        """Return the reply's arguments, or {"error": code}."""
        inner = "".join(f"<{key}>{value}</{key}>" for key, value in arguments.items())
        tag = f'<u:{name} xmlns:u="{SERVICE}{self.version}">{inner}</u:{name}>'
        envelope = '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/">'
        text = self.post(name, f"{envelope}<s:Body>{tag}</s:Body></s:Envelope>", client)
        head, _, content = text.partition("\r\n\r\n")
        error = re.search(r"<errorCode>(\d+)</errorCode>", content)
        if error is not None:
            assert head.startswith("HTTP/1.1 500 ")
            return {"error": error[1]}
        assert head.startswith("HTTP/1.1 200 ")
        answer = next(iter(next(iter(ElementTree.fromstring(content)))))
        return {child.tag: child.text or "" for child in answer}


def mapping(port: int = 9000, **changes: Any) -> dict[str, Any]:
    return {
        "NewRemoteHost": "",
        "NewExternalPort": port,
        "NewProtocol": "UDP",
        "NewInternalPort": INSIDE[1],
        "NewInternalClient": INSIDE[0],
        "NewEnabled": 1,
        "NewPortMappingDescription": "shoal",
        "NewLeaseDuration": 600,
    } | changes


def key(port: int = 9000, proto: str = "UDP") -> dict[str, Any]:
    return {"NewRemoteHost": "", "NewExternalPort": port, "NewProtocol": proto}


def search(target: str, *, man: str = '"ssdp:discover"', first: str = "M-SEARCH") -> bytes:
    lines = (f"{first} * HTTP/1.1", f"MAN: {man}", "MX: 2", f"ST: {target}", "", "")
    return "\r\n".join(lines).encode()


def test_search_finds_what_the_device_is() -> None:
    for target, count in (
        ("urn:schemas-upnp-org:device:InternetGatewayDevice:1", 1),
        ("upnp:rootdevice", 1),
        ("ssdp:all", 4),
        ("urn:schemas-upnp-org:device:MediaServer:1", 0),
    ):
        found = parse_search(search(target))
        assert found is not None and found.spread == 2.0
        answers = search_answers(DEVICE, found)
        assert len(answers) == count
        assert all(b"LOCATION: http://192.168.1.1:5000/rootDesc.xml\r\n" in a for a in answers)


def test_igd_2_is_found_as_1_too() -> None:
    newer = IgdDevice(DEVICE.uuid, DEVICE.address, 2)
    for version in 1, 2:
        found = parse_search(search(f"urn:schemas-upnp-org:device:InternetGatewayDevice:{version}"))
        assert found is not None and len(search_answers(newer, found)) == 1


@pytest.mark.parametrize(
    "data", [b"", b"\xff\x00", search("x", man="ssdp:discover"), search("x", first="NOTIFY")]
)
def test_no_search(data: bytes) -> None:
    assert parse_search(data) is None


def test_description_leads_to_the_control_url() -> None:
    answer = (
        Bench().control.answer(UpnpRequest("GET", "/rootDesc.xml", {}, b"", INSIDE[0])).decode()
    )
    root = ElementTree.fromstring(answer.partition("\r\n\r\n")[2])
    space = "{urn:schemas-upnp-org:device-1-0}"
    (service,) = root.iter(f"{space}service")
    assert service.findtext(f"{space}serviceType") == f"{SERVICE}1"
    assert service.findtext(f"{space}controlURL") == "/ctl/IPConn"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/ctl/IPConn", 405), ("POST", "/rootDesc.xml", 404)],
)
def test_other_requests(method: str, path: str, status: int) -> None:
    answer = Bench().control.answer(UpnpRequest(method, path, {}, b"", INSIDE[0]))
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_address_and_status() -> None:
    bench = Bench()
    assert bench.act("GetExternalIPAddress") == {"NewExternalIPAddress": GATE}
    assert bench.act("GetStatusInfo")["NewConnectionStatus"] == "Connected"


def test_mapping_opens_shows_and_closes_a_port() -> None:
    bench = Bench()
    assert bench.act("AddPortMapping", **mapping()) == {}
    assert bench.wire.back(A, (GATE, 9000)) == INSIDE
    bench.wire.at(100.0)
    entry = bench.act("GetSpecificPortMappingEntry", **key())
    assert entry["NewInternalClient"] == INSIDE[0] and entry["NewInternalPort"] == "4001"
    assert entry["NewLeaseDuration"] == "500" and entry["NewPortMappingDescription"] == "shoal"
    assert bench.act("GetGenericPortMappingEntry", NewPortMappingIndex=0) == {
        **key(),
        "NewExternalPort": "9000",
        **entry,
    }
    assert bench.act("DeletePortMapping", **key()) == {}
    assert bench.wire.back((A[0], 1), (GATE, 9000)) is None


def test_conflict_is_of_another_host_only() -> None:
    bench = Bench()
    other = mapping(NewInternalClient=OTHER[0])
    assert bench.act("AddPortMapping", OTHER[0], **other) == {}
    assert bench.act("AddPortMapping", **mapping()) == {"error": "718"}
    assert bench.act("AddPortMapping", **mapping(NewProtocol="TCP")) == {}
    assert bench.act("AddPortMapping", OTHER[0], **other) == {}


def test_any_port_is_of_igd_2() -> None:
    assert Bench().act("AddAnyPortMapping", **mapping()) == {"error": "401"}
    bench = Bench(version=2)
    assert bench.act("AddAnyPortMapping", **mapping()) == {"NewReservedPort": "9000"}
    other = mapping(NewInternalClient=OTHER[0])
    reserved = bench.act("AddAnyPortMapping", OTHER[0], **other)["NewReservedPort"]
    assert bench.leases.at_port(UDP, int(reserved)) is not None and reserved != "9000"


def test_lease_zero_means_forever_or_a_week() -> None:
    for bench, expected in (Bench(), math.inf), (Bench(version=2), 604800.0):
        bench.act("AddPortMapping", **mapping(NewLeaseDuration=0))
        lease = bench.leases.at_port(UDP, 9000)
        assert lease is not None and lease.expires == expected


def test_router_of_permanent_leases_only() -> None:
    bench = Bench(permanent=True)
    assert bench.act("AddPortMapping", **mapping()) == {"error": "725"}
    assert bench.act("AddPortMapping", **mapping(NewLeaseDuration=0)) == {}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"NewInternalClient": OTHER[0]}, "606"),
        ({"NewExternalPort": 0}, "716"),
        ({"NewExternalPort": 65536}, "402"),
        ({"NewExternalPort": "٣"}, "402"),
        ({"NewInternalPort": 0}, "402"),
        ({"NewProtocol": "SCTP"}, "402"),
        ({"NewLeaseDuration": "soon"}, "402"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], error: str) -> None:
    bench = Bench()
    assert bench.act("AddPortMapping", **mapping(**changes)) == {"error": error}
    assert len(bench.leases) == 0


def test_errors_of_the_other_actions() -> None:
    bench = Bench()
    assert bench.act("DeletePortMapping", **key()) == {"error": "714"}
    assert bench.act("GetSpecificPortMappingEntry", **key()) == {"error": "714"}
    assert bench.act("GetGenericPortMappingEntry", NewPortMappingIndex=0) == {"error": "713"}
    assert bench.act("FormatDisk") == {"error": "401"}
    bench.leases.add(TCP, 1, OTHER, 60.0)
    assert bench.act("DeletePortMapping", **key(1, "TCP")) == {"error": "606"}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("", "402"),
        ("<a", "402"),
        ("<a/>", "402"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "401"),
    ],
)
def test_bad_envelope(body: str, error: str) -> None:
    assert f"<errorCode>{error}</errorCode>" in Bench().post("GetStatusInfo", body)
