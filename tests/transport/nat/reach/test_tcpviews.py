"""The NAT's TCP mappings, as derived from peers' hellos."""

import pytest

from shoal.transport.identity import PeerId
from shoal.transport.nat.reach import defaults
from shoal.transport.nat.reach.reachability import Behaviour
from shoal.transport.nat.reach.tcpviews import TcpViews

PORT = 4001
OWN = ["192.168.1.5", "127.0.0.1"]
PEERS = [PeerId(str(n)) for n in range(100)]


def views(*places: tuple[str, int], port: int = PORT) -> TcpViews:
    found = TcpViews()
    for number, place in enumerate(places):
        found.add(PEERS[number], f"11.0.{number}.1", place, port, 0.0)
    return found


OUTER = "5.5.5.5"


@pytest.mark.parametrize(
    ("places", "mapping", "place"),
    [
        ([], Behaviour.UNKNOWN, None),
        ([(OUTER, 1)], Behaviour.UNKNOWN, (OUTER, 1)),
        ([(OUTER, PORT)] * 2, Behaviour.ENDPOINT_INDEPENDENT, (OUTER, PORT)),
        ([(OUTER, 1), (OUTER, 2)], Behaviour.ADDRESS_AND_PORT_DEPENDENT, None),
        ([(OUTER, 9), (OUTER, 9), ("6.6.6.6", 1)], Behaviour.ENDPOINT_INDEPENDENT, (OUTER, 9)),
        ([(OWN[0], PORT)] * 2, Behaviour.NONE, (OWN[0], PORT)),
    ],
)
def test_mapping(
    places: list[tuple[str, int]], mapping: Behaviour, place: tuple[str, int] | None
) -> None:
    found = views(*places)
    assert found.mapping(PORT, OWN, 0.0) is mapping
    assert found.place(PORT, 0.0) == place


def test_other_local_ports_show_only_whether_ports_are_preserved() -> None:
    found = views((OUTER, 50000), (OUTER, 50000), port=50000)
    assert found.mapping(PORT, OWN, 0.0) is Behaviour.UNKNOWN
    assert found.place(PORT, 0.0) is None
    assert found.preserves(0.0) is True
    assert views((OUTER, 1), (OUTER, 2)).preserves(0.0) is False
    assert views().preserves(0.0) is None


def test_views_get_old() -> None:
    found = views((OUTER, PORT), (OUTER, PORT))
    assert found.place(PORT, defaults.TCP_VIEW_S) == (OUTER, PORT)
    assert found.place(PORT, defaults.TCP_VIEW_S + 1) is None


def test_one_observer_address_has_one_vote() -> None:
    found = views((OUTER, PORT))
    for peer in PEERS:
        found.add(peer, "66.0.0.1", ("66.6.6.6", 6), PORT, 1.0)
    found.add(PEERS[0], "11.0.9.1", (OUTER, PORT), PORT, 1.0)
    assert found.place(PORT, 1.0) == (OUTER, PORT)


@pytest.mark.parametrize(
    ("ip", "place"),
    [
        ("192.168.1.7", ("192.168.1.5", PORT)),  # a neighbour
        ("127.0.0.1", ("127.0.0.1", PORT)),
        ("2600::1", ("2600::2", PORT)),
        ("11.0.0.1", (OUTER, 0)),
        ("11.0.0.1", (OUTER, 65536)),
    ],
)
def test_views_that_say_nothing_about_the_nat(ip: str, place: tuple[str, int]) -> None:
    found = TcpViews()
    found.add(PEERS[0], ip, place, PORT, 0.0)
    assert found.place(place[1], 0.0) is None and found.preserves(0.0) is None


def test_bounded() -> None:
    found = views(*[(OUTER, n) for n in range(1, 100)])
    assert len(found.seen) == defaults.TCP_VIEWS
