"""Tests of the sentences for the user."""

from shoal.transport.nat.portmap.mapping import PortMapping
from shoal.transport.nat.portmap.outcome import PortmapOutcome


def test_nothing_was_asked() -> None:
    assert PortmapOutcome(note="no router").sentences() == ["no router"]
    assert "(not asked yet)" in PortmapOutcome("192.168.1.1").sentences()[0]


def test_no_protocol_maps() -> None:
    said = PortmapOutcome("192.168.1.1", answers={"pcp": "no answer", "upnp": "found, but late"})
    assert said.sentences()[0] == (
        "the router 192.168.1.1 maps no ports (PCP: no answer; UPnP: found, but late)"
    )


def test_a_mapping_and_two_kinds_of_double_nat() -> None:
    for address, word in (("8.8.8.8", ""), ("100.64.0.9", "carrier"), ("10.0.0.9", "bridge")):
        mapping = PortMapping(address, 4001, 4002, "nat-pmp", 0.0, "192.168.1.1")
        first, *rest = PortmapOutcome("192.168.1.1", mapping=mapping).sentences()
        assert first == (
            f"the router 192.168.1.1 leads TCP port 4001 and UDP port 4002 of {address} "
            "to this computer (NAT-PMP)"
        )
        assert bool(rest) == bool(word) and all(word in each for each in rest)
