"""One interface: when it asks and answers, and whose datagrams it takes."""

import struct

import pytest

from shoal.transport.host.seam import Interface
from shoal.transport.identity import Identity
from shoal.transport.lan import dns
from shoal.transport.lan.defaults import SERVICE, LanLimits
from shoal.transport.lan.dns import DnsMessage, DnsQuestion, Type
from shoal.transport.lan.responder import MdnsResponder
from shoal.transport.lan.service import Announcement, query

ETH0 = Interface("eth0", "192.168.1.2", 24)
FROM_BOB = ("192.168.1.3", 5353)


def announcement(seed: int, address: str) -> Announcement:
    peer = Identity.from_seed(bytes([seed]) * 32).peer
    return Announcement(peer, b"swarm", address, 4000 + seed, bytes([seed]) * 8)


PEERS = [announcement(3, f"192.168.1.{number}") for number in range(3, 253)]
BOB = announcement(2, "192.168.1.3")


def make(**limits: int) -> MdnsResponder:
    ours = announcement(1, ETH0.address)
    return MdnsResponder(ours, ETH0, LanLimits(**limits), lambda: 0.5, 0.0)


def run(responder: MdnsResponder, until: float) -> list[tuple[float, bool]]:
    """Everything it sends by then: when, and whether it is a response."""
    sent = []
    while (now := responder.due()) <= until:
        for data in responder.poll(now):
            message = dns.decode(data)
            assert message is not None
            sent.append((round(now, 3), message.response))
    return sent


def test_it_announces_twice_and_asks_less_and_less_often() -> None:
    sent = run(make(), 10000.0)
    assert [at for at, response in sent if response] == [0.0, 1.0]
    asked = [at for at, response in sent if not response]
    assert asked[:6] == [0.07, 1.07, 3.07, 7.07, 15.07, 31.07]
    assert asked[-2:] == [4095.07, 7695.07], "after an hour, hourly"


def test_an_answer_waits_a_moment_and_is_not_repeated_within_a_second() -> None:
    responder = make()
    run(responder, 100.0)
    for at in 200.0, 200.01, 200.2, 200.3:
        run(responder, at)
        assert responder.receive(query([]), FROM_BOB, at) == []
    sent = [at for at, response in run(responder, 210.0) if response]
    assert sent == [201.07], "the first two were answered together at 200.07"
    responder.receive(query([]), FROM_BOB, 300.0)
    assert [at for at, response in run(responder, 301.0) if response] == [300.07]


def test_a_flood_of_questions_is_answered_once_a_second() -> None:
    responder = make()
    run(responder, 100.0)
    answers = 0
    for step in range(1000):
        now = 200.0 + step / 100
        responder.receive(query([]), FROM_BOB, now)
        answers += sum(1 for _, response in run(responder, now) if response)
    assert 9 <= answers <= 11


def test_kinds_of_services_are_answered_apart() -> None:
    responder = make()
    run(responder, 200.0)
    kinds = (b"_services", b"_dns-sd", b"_udp", b"local")
    asked = dns.encode(DnsMessage(False, [DnsQuestion(kinds, Type.PTR)]))
    for _ in range(5):
        responder.receive(asked, FROM_BOB, 200.0)
    (data,) = responder.poll(200.1)
    message = dns.decode(data)
    assert message is not None and [each.data for each in message.records] == [SERVICE]
    responder.receive(asked, FROM_BOB, 200.2)
    assert responder.due() == pytest.approx(201.1)


def test_a_peer_is_found_kept_and_asked_for_again() -> None:
    responder = make()
    run(responder, 50.0)
    (found,) = responder.receive(BOB.encode(), FROM_BOB, 50.0)
    assert found.place == ("192.168.1.3", 4002)
    assert responder.receive(BOB.encode(), FROM_BOB, 51.0) == []
    asked = [at for at, _ in run(responder, 300.0)]
    assert [at for at in asked if at > 130] == [148.2, 154.2, 160.2, 166.2] or len(asked) >= 4
    assert len(responder.neighbours) == 0


@pytest.mark.parametrize(
    "source",
    [
        ("192.168.2.3", 5353),  # another network's, which this socket gets as well
        ("203.0.113.9", 5353),
        ("192.168.1.3", 4000),  # not from the port of multicast DNS
    ],
)
def test_what_does_not_come_from_the_own_network_is_not_looked_at(source: tuple[str, int]) -> None:
    responder = make()
    there = announcement(2, source[0])
    assert responder.receive(there.encode(), source, 0.0) == []
    run(responder, 100.0)
    responder.receive(query([]), source, 100.0)
    assert responder.due() > 101, "nor answered"


def test_a_flood_is_not_read_and_what_is_new_is_told_slowly() -> None:
    """Forged senders cost 300 readings and 128 dials at once, then 100 and 2 a second. The twin
    has no limits."""
    for limited in (True, False):
        limits = {} if limited else {"taken_burst": 10**6, "news_burst": 10**6, "peers": 10**6}
        responder = make(**limits)
        told = 0
        for number in range(1000):
            source = f"192.168.1.{number % 250 + 3}"
            said = PEERS[number % 250].encode()
            port = 5000 + number // 250
            data = said.replace(struct.pack("!H", 4003), struct.pack("!H", port))
            told += len(responder.receive(data, (source, 5353), 0.0))
        assert (told, responder.dropped) == ((128, 700) if limited else (1000, 0))
        assert len(responder.neighbours) == told


def test_nonsense_is_dropped() -> None:
    responder = make()
    for data in b"", b"\0" * 12, bytes(9001), BOB.encode()[:-1]:
        assert responder.receive(data, FROM_BOB, 0.0) == []


def test_goodbye() -> None:
    message = dns.decode(make().goodbye())
    assert message is not None and {each.ttl for each in message.records} == {0}
