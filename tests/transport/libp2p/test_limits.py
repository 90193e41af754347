"""Connections are counted in all and by network."""

from shoal.transport.libp2p.limits import Crowd, Libp2pLimits, subnet_of


def test_places_are_taken_and_given_back() -> None:
    crowd = Crowd(Libp2pLimits(connections=4, connections_per_subnet=2, connections_loopback=3))
    first = crowd.enter("192.0.2.1")
    assert first is not None and crowd.enter("192.0.2.200") == first
    assert crowd.enter("192.0.2.3") is None
    assert crowd.enter("127.0.0.1") == crowd.enter("::1") == ""
    assert crowd.enter("127.0.0.1") is None  # four are in
    crowd.leave(first)
    assert crowd.enter("198.51.100.1") is not None


def test_networks() -> None:
    assert subnet_of("192.0.2.77") == "192.0.2.0/24" == subnet_of("::ffff:192.0.2.1")
    assert subnet_of("2001:db8:0:1:2::3") == "2001:db8:0:1::/64"
    assert subnet_of("") == "unknown" == subnet_of("nonsense")
