"""Candidates: which addresses of a peer are trusted, and their encoding."""

from collections.abc import Callable
from typing import Any

import pytest

from shoal.transport.nat.punch import candidates
from shoal.transport.nat.punch.candidates import (
    Candidate,
    CandidateKind,
    CandidateTransport,
    SeenAddresses,
    decode,
    encode,
    gather,
    may_probe,
    probeable,
    unseen,
)

VICTIM, PEER = "93.184.216.34", "11.0.0.1"
ONE = Candidate((PEER, 4001), CandidateKind.OBSERVED, CandidateTransport.UDP)


def test_candidates_round_trip() -> None:
    found = [ONE, Candidate(("2600::1", 443), CandidateKind.PUBLIC, CandidateTransport.TCP)]
    assert decode(encode(found)) == found
    assert len(encode([ONE] * 40)) == 16


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        "list",
        [["11.0.0.1", 4001, "observed", "udp"]] * 17,
        [["11.0.0.1", 4001, "observed"]],
        [["11.0.0.1", "4001", "observed", "udp"]],
        [["11.0.0.1", True, "observed", "udp"]],
        [["11.0.0.1", 0, "observed", "udp"]],
        [["11.0.0.1", 65536, "observed", "udp"]],
        [["11.0.0.1", 4001, 3, "udp"]],
        [["11.0.0.1", 4001, "observed", None]],
        [[b"11.0.0.1", 4001, "observed", "udp"]],
        [["example.org", 4001, "observed", "udp"]],
        [["fe80::1%eth0", 4001, "lan", "udp"]],
        [["1" * 100_000, 4001, "lan", "udp"]],
        ["11.0.0.1"],
    ],
)
def test_malformed_candidates_are_refused(value: object) -> None:
    assert decode(value) is None


def test_an_offer_of_10_000_addresses_is_refused_unread() -> None:
    class Counting(list[Any]):
        read = 0

        def __iter__(self) -> Any:
            self.read += 1
            return super().__iter__()

    many = Counting([[PEER, port, "observed", "udp"] for port in range(1024, 11024)])
    assert decode(many) is None and many.read == 0


def test_unknown_kinds_and_duplicates_are_dropped() -> None:
    value = [[PEER, 4001, "teleported", "udp"], *[[PEER, 4001, "observed", "udp"]] * 2]
    assert decode(value) == [ONE]


def test_addresses_are_in_canonical_spelling() -> None:
    assert decode([["::ffff:11.0.0.1", 4001, "observed", "udp"]]) == [ONE]
    assert not may_probe("::ffff:11.0.0.1", SeenAddresses(["::ffff:11.0.0.1", PEER]))


@pytest.mark.parametrize(
    ("ip", "seen", "allowed"),
    [
        (PEER, SeenAddresses([PEER]), True),
        (VICTIM, SeenAddresses([PEER]), False),
        (VICTIM, SeenAddresses([PEER], same_site=True, found=[VICTIM]), False),
        ("192.168.1.9", SeenAddresses([PEER]), False),
        ("192.168.1.9", SeenAddresses([PEER], same_site=True), True),
        ("192.168.1.9", SeenAddresses(found=["192.168.1.9"]), True),
        ("192.168.1.8", SeenAddresses(found=["192.168.1.9"]), False),
        ("fd12::1", SeenAddresses(same_site=True), True),
        ("100.64.0.9", SeenAddresses(same_site=True), False),
        ("100.64.0.9", SeenAddresses(["100.64.0.9"]), True),
        ("127.0.0.1", SeenAddresses([PEER], same_site=True, found=["127.0.0.1"]), False),
        ("127.0.0.1", SeenAddresses(["127.0.0.1"]), True),
        ("169.254.169.254", SeenAddresses(["169.254.169.254"], same_site=True), False),
        ("100.100.100.200", SeenAddresses(["100.100.100.200"]), False),
        ("fd00:ec2::254", SeenAddresses(["fd00:ec2::254"], same_site=True), False),
        ("fe80::1", SeenAddresses(["fe80::1"], same_site=True), False),
        ("224.0.0.251", SeenAddresses(["224.0.0.251"]), False),
        ("255.255.255.255", SeenAddresses(["255.255.255.255"]), False),
        ("0.0.0.0", SeenAddresses(["0.0.0.0"]), False),
        ("::", SeenAddresses(["::"]), False),
        ("2002:0a00:0001::1", SeenAddresses(["2002:0a00:0001::1"]), False),
        ("64:ff9b::5db8:d822", SeenAddresses(["64:ff9b::5db8:d822"]), False),
        ("somewhere", SeenAddresses(["somewhere"]), False),
    ],
)
def test_addresses_that_may_be_probed(ip: str, seen: SeenAddresses, allowed: bool) -> None:
    assert may_probe(ip, seen) is allowed


@pytest.mark.parametrize(("port", "allowed"), [(22, 0), (53, 0), (443, 1), (1023, 0), (1024, 1)])
def test_ports_of_system_services_are_not_probed(port: int, allowed: int) -> None:
    one = Candidate((PEER, port), CandidateKind.OBSERVED, CandidateTransport.TCP)
    assert len(probeable([one], SeenAddresses([PEER]))) == allowed


def test_without_the_filter_a_victim_would_be_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    aimed = [Candidate((VICTIM, 4001), CandidateKind.OBSERVED, CandidateTransport.UDP)]
    assert probeable(aimed, SeenAddresses([PEER])) == []
    anybody: Callable[[str, SeenAddresses], bool] = lambda ip, seen: True  # noqa: E731
    monkeypatch.setattr(candidates, "may_probe", anybody)
    assert probeable(aimed, SeenAddresses([PEER])) == aimed


def test_this_node_s_candidates() -> None:
    here = ["127.0.0.1", "::1", "192.168.1.2", "fe80::5%eth0", "fe80::5", "2600::2"]
    found = gather(
        CandidateTransport.UDP,
        4001,
        here,
        observed=[(PEER, 5000)],
        mapped=[(PEER, 4001), (PEER, 5000)],
    )
    assert [(each.place, each.kind) for each in found] == [
        ((PEER, 5000), CandidateKind.OBSERVED),
        ((PEER, 4001), CandidateKind.MAPPED),
        (("192.168.1.2", 4001), CandidateKind.LAN),
        (("2600::2", 4001), CandidateKind.PUBLIC),
    ]


def test_loopback_is_named_where_others_see_us_there() -> None:
    found = gather(CandidateTransport.TCP, 4001, ["127.0.0.1"], observed=[("127.0.0.1", 4001)])
    assert found == [Candidate(("127.0.0.1", 4001), CandidateKind.LAN, CandidateTransport.TCP)]


@pytest.mark.parametrize(
    ("ip", "port", "transport", "checked"),
    [
        ("2600::7", 4001, CandidateTransport.UDP, True),
        ("2600::7", 4001, CandidateTransport.TCP, False),
        ("2600::7", 53, CandidateTransport.UDP, False),
        ("2600::8", 4001, CandidateTransport.UDP, False),  # a third node has seen the peer there
        (VICTIM, 4001, CandidateTransport.UDP, False),  # IPv4
        ("fd12::1", 4001, CandidateTransport.UDP, False),
        ("fe80::1", 4001, CandidateTransport.UDP, False),
        ("::1", 4001, CandidateTransport.UDP, False),
        ("64:ff9b::5db8:d822", 4001, CandidateTransport.UDP, False),
        ("::ffff:11.0.0.1", 4001, CandidateTransport.UDP, False),
    ],
)
def test_unvouched_candidates_that_are_checked(
    ip: str, port: int, transport: CandidateTransport, checked: bool
) -> None:
    one = Candidate((ip, port), CandidateKind.PUBLIC, transport)
    assert unseen([one], SeenAddresses([PEER, "2600::8"])) == [one] * checked


def test_only_the_first_few_unvouched_candidates_are_checked() -> None:
    many = [
        Candidate((f"2600::{n}", 4001), CandidateKind.PUBLIC, CandidateTransport.UDP)
        for n in range(1, 9)
    ]
    assert unseen(many, SeenAddresses([PEER])) == many[:2]
