"""Addresses that a node publishes."""

from shoal.node.daemon.listening import own_addresses
from shoal.transport.host.seam import Interface
from shoal.transport.identity import Identity

PEER = Identity.from_seed(bytes(32)).peer
LOOPBACK = Interface("lo", "127.0.0.1", 8)
HOME = Interface("eth0", "192.168.1.7", 24)
PUBLIC = Interface("eth1", "93.184.216.34", 24)
BRIDGE = Interface("docker0", "172.17.0.1", 16)
LINK_LOCAL = Interface("eth0", "169.254.3.3", 16)
IPV6 = Interface("eth0", "2606:4700::1", 64)


def hosts(listen: str, *interfaces: Interface) -> list[str]:
    found = own_addresses(listen, 4001, PEER, interfaces)
    assert all(address.port == 4001 and address.peer == PEER for address in found)
    return [address.host for address in found]


def test_a_given_address_is_the_only_one() -> None:
    assert hosts("127.0.0.1", HOME, PUBLIC) == ["127.0.0.1"]


def test_wildcard_listener_publishes_all_addresses_best_first() -> None:
    everything = (LOOPBACK, BRIDGE, LINK_LOCAL, HOME, IPV6, PUBLIC)
    assert hosts("0.0.0.0", *everything) == ["93.184.216.34", "192.168.1.7", "172.17.0.1"]
    assert hosts("::", *everything) == ["2606:4700::1"]


def test_loopback_is_published_only_alone() -> None:
    assert hosts("0.0.0.0", LOOPBACK) == ["127.0.0.1"]


def test_addresses_are_bounded() -> None:
    many = [Interface(f"eth{n}", f"10.0.0.{n}", 24) for n in range(1, 100)]
    assert len(hosts("0.0.0.0", *many)) == 8
