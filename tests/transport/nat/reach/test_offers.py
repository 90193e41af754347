"""Offers: their encoding, and the order of peers."""

from shoal.transport.identity import PeerId
from shoal.transport.nat.reach.offers import (
    LinkedPeer,
    ObserverOffer,
    observers,
    parse_offer,
    spread,
)


def linked(ip: str, *ports: int) -> LinkedPeer:
    return LinkedPeer(PeerId(ip), ip, ObserverOffer(ports, dials=True))


def test_the_wire_form() -> None:
    offer = ObserverOffer((4001, 50000), dials=True)
    assert parse_offer(offer.header) == offer
    assert parse_offer({}) == ObserverOffer()


def test_distant_peers_come_first() -> None:
    ips = ["11.0.1.1", "11.0.2.1", "11.0.3.1", "12.0.0.1", "12.0.0.2", "13.0.0.1"]
    found = [each.ip for each in spread([linked(ip, 1) for ip in ips])]
    assert found == ["11.0.1.1", "12.0.0.1", "13.0.0.1", "11.0.2.1", "12.0.0.2", "11.0.3.1"]


def test_peers_that_can_observe() -> None:
    able = linked("11.0.0.1", 1, 2)
    others = [
        linked("12.0.0.1"),
        linked("192.168.1.3", 1),
        linked("100.64.0.9", 1),
        linked("127.0.0.1", 1),
        linked("2600::1", 1),
    ]
    assert observers([*others, able]) == [able.observer]
    assert able.observer.places == (("11.0.0.1", 1), ("11.0.0.1", 2))
