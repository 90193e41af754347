"""A stranger's record never makes this node dial machines of its owner."""

import pytest

from shoal.state.membership.reach import dialable
from shoal.transport.identity import Identity
from shoal.transport.networks import Nearness

PEER = Identity.from_seed(b"a" * 32).peer
OTHER = Identity.from_seed(b"b" * 32).peer


@pytest.mark.parametrize(
    ("reach", "hosts"),
    [
        (Nearness.PUBLIC, ["8.8.8.8"]),
        (Nearness.PRIVATE, ["8.8.8.8", "192.168.1.1"]),
        (Nearness.LOOPBACK, ["8.8.8.8", "192.168.1.1", "127.0.0.1"]),
    ],
)
def test_an_address_is_trusted_only_as_far_as_its_source(reach: Nearness, hosts: list[str]) -> None:
    told = ["8.8.8.8", "192.168.1.1", "127.0.0.1", "169.254.169.254"]
    addresses = tuple(f"/ip4/{host}/tcp/4001" for host in told)
    found = dialable((*addresses, "/dns4/example.org/tcp/4001", "nonsense"), PEER, reach)
    assert [address.host for address in found] == hosts
    assert {address.peer for address in found} == {PEER}


def test_an_address_with_another_name_is_not_dialled() -> None:
    assert dialable((f"/ip4/8.8.8.8/tcp/4001/p2p/{OTHER}",), PEER, Nearness.PUBLIC) == []


def test_ports_of_system_services_are_never_dialled() -> None:
    ports = (1, 22, 80, 443, 999, 1023, 1024, 65535)
    addresses = tuple(f"/ip4/8.8.8.8/tcp/{port}" for port in ports)
    found = dialable((*addresses, "/ip4/8.8.8.8/udp/53/quic-v1"), PEER, Nearness.PUBLIC)
    assert [each.port for each in found] == [443, 1024, 65535]
