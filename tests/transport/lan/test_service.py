"""Tests of the service: its announcements, and which parts of others' announcements it trusts."""

from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.identity import Identity
from shoal.transport.lan import dns
from shoal.transport.lan.defaults import SERVICE
from shoal.transport.lan.dns import DnsMessage, DnsQuestion, DnsRecord, Type
from shoal.transport.lan.service import Announcement, FoundPeer, query, tag_of

ALICE, BOB = (Identity.from_seed(bytes([seed]) * 32).peer for seed in (1, 2))
OURS = Announcement(ALICE, b"swarm", "192.168.1.2", 4001, bytes(range(8)))
THEIRS = Announcement(BOB, b"swarm", "192.168.1.3", 4002, bytes(range(8, 16)))
FOUND = FoundPeer(BOB, ("192.168.1.3", 4002), 120, b"08090a0b0c0d0e0f")


def message(data: bytes) -> DnsMessage:
    found = dns.decode(data)
    assert found is not None
    return found


def asks(name: dns.Name, kind: int, known: list[DnsRecord] | None = None) -> DnsMessage:
    return DnsMessage(False, [DnsQuestion(name, kind)], known or [])


def test_an_announcement_is_understood() -> None:
    assert OURS.read(message(THEIRS.encode()), "192.168.1.3") == [FOUND]
    goodbye = OURS.read(message(THEIRS.encode(ttl=0)), "192.168.1.3")
    assert goodbye == [replace(FOUND, ttl=0)]
    assert len(THEIRS.encode()) < 400


def test_our_own_comes_back_and_is_left_out() -> None:
    assert OURS.read(message(OURS.encode()), "192.168.1.2") == []


def test_nothing_but_a_random_name_a_peer_id_and_a_tag_is_told() -> None:
    said = OURS.encode()
    assert b"0001020304050607" in said and ALICE.encode() in said
    assert b"swarm" not in said and tag_of(b"swarm") in said


def test_other_swarms_are_not_seen() -> None:
    other = Announcement(BOB, b"another", "192.168.1.3", 4002, bytes(8))
    assert OURS.read(message(other.encode()), "192.168.1.3") == []
    assert tag_of(b"swarm") != tag_of(b"another")


def test_only_the_senders_own_address_is_believed() -> None:
    """A message about Bob counts only if Bob's own address sent it, like the second one here."""
    said = message(THEIRS.encode())
    assert OURS.read(said, "192.168.1.66") == []
    assert OURS.read(said, "192.168.1.3") == [FOUND]


def changed(kind: Type, **changes: object) -> DnsMessage:
    records = [
        replace(each, **changes) if each.type is kind else each  # type: ignore[arg-type]
        for each in THEIRS.records()
    ]
    return DnsMessage(True, [], records)


@pytest.mark.parametrize(
    "said",
    [
        DnsMessage(True),
        DnsMessage(True, [], THEIRS.records()[:1]),
        DnsMessage(True, [], THEIRS.records()[:3]),  # no address
        changed(Type.SRV, data=dns.SrvData(0, (b"08090a0b0c0d0e0f", b"local"))),
        changed(Type.SRV, data=dns.SrvData(4002, (b"elsewhere", b"local"))),
        changed(Type.SRV, name=(b"x", b"_http", b"_tcp", b"local")),
        changed(Type.TXT, data=(b"s=" + tag_of(b"swarm"),)),  # no peer id
        changed(Type.TXT, data=(b"p=me", b"s=" + tag_of(b"swarm"))),
        changed(Type.TXT, data=(b"p=" + b"1" * 52, b"s=" + tag_of(b"swarm"))),
        changed(Type.TXT, data=(b"p=\xff\x1b[31m", b"s=" + tag_of(b"swarm"))),
        changed(Type.A, data=IPv4Address("203.0.113.9")),
        changed(Type.A, data=IPv4Address("127.0.0.1")),
    ],
)
def test_what_is_not_believed(said: DnsMessage) -> None:
    assert OURS.read(said, "192.168.1.3") == []


def test_a_ttl_is_believed_within_bounds() -> None:
    said = DnsMessage(True, [], THEIRS.records(ttl=2**32 - 1))
    assert OURS.read(said, "192.168.1.3")[0].ttl == 4500


def test_many_at_once() -> None:
    records = [
        each
        for seed in range(3, 6)
        for each in Announcement(
            Identity.from_seed(bytes([seed]) * 32).peer,
            b"swarm",
            "192.168.1.3",
            seed,
            bytes([seed] * 8),
        ).records()
    ]
    found = OURS.read(DnsMessage(True, [], records), "192.168.1.3")
    assert [each.place[1] for each in found] == [3, 4, 5]


NAME = (OURS.instance, *SERVICE)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (asks(SERVICE, Type.PTR), True),
        (asks(SERVICE, Type.ANY), True),
        (asks(NAME, Type.SRV), True),
        (asks(NAME, Type.TXT), True),
        (asks((OURS.instance, b"local"), Type.A), True),
        (asks(SERVICE, Type.A), False),
        (asks((b"_http", b"_tcp", b"local"), Type.PTR), False),
        (asks((), Type.ANY), False),
        (asks(SERVICE, Type.PTR, [DnsRecord(SERVICE, Type.PTR, NAME, 60, True)]), False),
        (asks(SERVICE, Type.PTR, [DnsRecord(SERVICE, Type.PTR, NAME, 59, True)]), True),
        (asks(SERVICE, Type.PTR, [DnsRecord(SERVICE, Type.PTR, (b"x", *SERVICE), 99, True)]), True),
        (DnsMessage(False), False),
    ],
)
def test_queries_for_our_service(asked: DnsMessage, expected: bool) -> None:
    assert OURS.is_asked(asked) is expected


def test_the_kind_of_service_is_told() -> None:
    kinds = (b"_services", b"_dns-sd", b"_udp", b"local")
    assert OURS.asks_for_kinds(asks(kinds, Type.PTR)) and not OURS.asks_for_kinds(asks(SERVICE, 12))
    assert [each.data for each in message(OURS.encode_service()).records] == [SERVICE]


def test_our_query_lists_known_answers() -> None:
    said = message(query([(THEIRS.instance, 100)]))
    assert OURS.is_asked(said) and not THEIRS.is_asked(said)
    assert len(query([(b"0" * 16, 100)] * 16)) < 1400


@given(st.binary(max_size=300), st.integers(0, 330), st.integers(1, 255))
def test_anything_is_read_without_harm(data: bytes, at: int, flip: int) -> None:
    said = bytearray(THEIRS.encode())
    said[at % len(said)] ^= flip
    for each in (bytes(said), bytes(said[:at]) + data):
        found = dns.decode(each)
        if found is not None:
            OURS.read(found, "192.168.1.3")
            OURS.is_asked(found)
