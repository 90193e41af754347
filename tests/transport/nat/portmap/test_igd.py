"""Descriptions and actions of gateways."""

import pytest

from shoal.transport.nat.portmap import igd
from shoal.transport.nat.portmap.http import GatewayResponse, Url
from shoal.transport.nat.portmap.igd import KINDS, IgdFault, IgdService

BASE = Url("192.168.1.1", 5000, "/rootDesc.xml")


def service(kind: str, control: str) -> str:
    return f"<service><serviceType>{kind}</serviceType><controlURL>{control}</controlURL></service>"


def description(*services: str, before: str = "") -> bytes:
    listed = "".join(services)
    return (
        f'<root xmlns="urn:schemas-upnp-org:device-1-0">{before}<device><deviceList><device>'
        f"<serviceList>{listed}</serviceList></device></deviceList></device></root>"
    ).encode()


def test_services_best_first() -> None:
    body = description(*(service(kind, f"/{at}") for at, kind in enumerate(reversed(KINDS))))
    found = igd.decode_description(body, BASE)
    assert [each.kind for each in found] == list(KINDS)
    assert [each.control.path for each in found] == ["/2", "/1", "/0"]
    assert found[0].any_port and not found[1].any_port


def test_a_stated_base_is_used_and_one_elsewhere_is_not() -> None:
    one = service(KINDS[1], "ctl")
    here = description(one, before="<URLBase>http://192.168.1.1:49000/igd/x</URLBase>")
    assert igd.decode_description(here, BASE)[0].control == Url("192.168.1.1", 49000, "/igd/ctl")
    away = description(one, before="<URLBase>http://203.0.113.9/</URLBase>")
    assert igd.decode_description(away, BASE) == []
    away = description(service(KINDS[1], "http://203.0.113.9:80/ctl"))
    assert igd.decode_description(away, BASE) == []


def test_descriptions_without_such_a_service() -> None:
    for body in b"", b"<root/>", description(service("urn:x:service:Layer3Forwarding:1", "/c")):
        assert igd.decode_description(body, BASE) == []
    many = [service(KINDS[1], f"/{n}") for n in range(100)]
    assert len(igd.decode_description(description(*many), BASE)) == 4


def test_an_action_is_escaped() -> None:
    fields, body = igd.encode_action(IgdService(KINDS[1], BASE), "Do", {"NewX": "<a>&"})
    assert fields["SOAPAction"] == f'"{KINDS[1]}#Do"'
    assert b"<NewX>&lt;a&gt;&amp;</NewX>" in body


def envelope(inner: str) -> bytes:
    return (
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>'
        f"{inner}</s:Body></s:Envelope>"
    ).encode()


def test_results_and_faults() -> None:
    said = envelope(f'<u:DoResponse xmlns:u="{KINDS[1]}"><NewX> 1 </NewX></u:DoResponse>')
    assert igd.decode_result("Do", GatewayResponse(200, said)) == {"NewX": "1"}
    assert igd.decode_result("Other", GatewayResponse(200, said)) == IgdFault(0)
    fault = envelope(
        "<s:Fault><detail><UPnPError><errorCode>718</errorCode></UPnPError></detail></s:Fault>"
    )
    assert igd.decode_result("Do", GatewayResponse(500, fault)) == IgdFault(igd.CONFLICT)
    assert "another computer" in IgdFault(igd.CONFLICT).words
    assert igd.decode_result("Do", GatewayResponse(200, b"<a")) == IgdFault(0)
    long = envelope(f"<DoResponse><NewX>{'y' * 9999}</NewX></DoResponse>")
    found = igd.decode_result("Do", GatewayResponse(200, long))
    assert isinstance(found, dict) and len(found["NewX"]) == 256


def test_what_a_router_writes_never_reaches_the_owner() -> None:
    text = envelope("<errorCode>\x1b[31m99</errorCode>".replace("\x1b", "?"))
    found = igd.decode_result("Do", GatewayResponse(500, text))
    assert found == IgdFault(0) and "?" not in found.words


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("65535", 65535), ("65536", 0), ("-1", 0), ("٣", 0), ("9" * 5000, 0), ("", 0)],
)
def test_numbers(text: str, number: int) -> None:
    assert igd.number(text, 65535) == number
