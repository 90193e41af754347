"""Findings for every kind of connection to the internet."""

from dataclasses import replace

import pytest

from shoal.transport.identity import PeerId
from shoal.transport.nat.reach.findings import (
    Hope,
    PortMap,
    ReachFinding,
    Situation,
    Strategy,
    dialer,
    findings,
)
from shoal.transport.nat.reach.reachability import (
    Allocation,
    Behaviour,
    DialBackResult,
    Dialled,
    Ipv6,
    Pattern,
    Reachability,
    UdpKind,
)

EI = Behaviour.ENDPOINT_INDEPENDENT
AD = Behaviour.ADDRESS_DEPENDENT
APD = Behaviour.ADDRESS_AND_PORT_DEPENDENT
KEEPS = Allocation(Pattern.PRESERVING)
PORT = 4001


def dialled(answer: DialBackResult, *transports: str) -> tuple[Dialled, ...]:
    return tuple(Dialled(each, ("5.5.5.5", PORT), answer, 2) for each in transports)


HOME = Reachability(
    udp=UdpKind(EI, APD, KEEPS, blocked=False, asked=3, answered=3),
    tcp_mapping=EI,
    dialled=dialled(DialBackResult.NOT_REACHED, "tcp", "udp"),
    ipv6=Ipv6.NONE,
)
PUBLIC = replace(
    HOME,
    udp=replace(HOME.udp, mapping=Behaviour.NONE, filtering=EI),
    tcp_mapping=Behaviour.NONE,
    dialled=dialled(DialBackResult.REACHED, "tcp", "udp"),
)
SYMMETRIC = replace(
    HOME,
    udp=replace(HOME.udp, mapping=APD, allocation=Allocation(Pattern.RANDOM)),
    tcp_mapping=APD,
    dialled=(),
)
COUNTING = replace(
    SYMMETRIC, udp=replace(SYMMETRIC.udp, allocation=Allocation(Pattern.SEQUENTIAL, 2))
)
BLOCKED = replace(HOME, udp=UdpKind(blocked=True, asked=3))
NOTHING = Reachability()


def told(reach: Reachability, **more: object) -> dict[str, ReachFinding]:
    found = findings(Situation(reach, PORT, **more))  # type: ignore[arg-type]
    by_code = {each.code: each for each in found}
    assert len(by_code) == len(found), "a code comes once"
    return by_code


def hopes(reach: Reachability, **more: object) -> dict[Strategy, Hope]:
    return dialer(Situation(reach, PORT, **more))  # type: ignore[arg-type]


def test_a_home_router() -> None:
    found = told(HOME, portmap=PortMap())
    assert "punch through" in found["nat-easy"].sentence
    assert "(endpoint-independent mapping)" in found["nat-easy"].sentence
    assert "port-restricted" in found["nat-filter"].sentence
    assert "(port preservation)" in found["nat-ports"].sentence
    assert "UPnP" in found["no-map"].hint and str(PORT) in found["no-map"].hint
    assert "IPv6" in found["ipv6-none"].hint
    assert "public" not in found and "too-few-peers" not in found


def test_a_public_machine() -> None:
    found = told(PUBLIC, portmap=PortMap())
    assert found["public"].sentence == (
        "strangers can connect to this node by TCP and UDP without help"
    )
    assert "no-nat" in found
    assert not {"no-map", "nat-easy", "half-open", "ipv6-none"} & found.keys()


@pytest.mark.parametrize(("open_one", "other"), [("tcp", "UDP"), ("udp", "TCP")])
def test_half_open(open_one: str, other: str) -> None:
    found = told(replace(PUBLIC, dialled=dialled(DialBackResult.REACHED, open_one)))
    assert found["half-open"].hint == f"open {other} port {PORT} to this machine as well"


def test_a_firewall_without_nat() -> None:
    reach = replace(PUBLIC, dialled=dialled(DialBackResult.NOT_REACHED, "tcp", "udp"))
    assert str(PORT) in told(reach)["firewalled"].hint


def test_a_symmetric_nat() -> None:
    found = told(SYMMETRIC)
    assert '"symmetric"' in found["nat-symmetric"].sentence
    assert f"forward TCP and UDP port {PORT}" in found["nat-symmetric"].hint
    assert "cannot be foreseen" in found["nat-ports"].sentence
    assert "by about 2" in told(COUNTING)["nat-ports"].sentence


def test_udp_blocked() -> None:
    found = told(BLOCKED)
    assert "UDP" in found["udp-blocked"].sentence and found["udp-blocked"].hint
    assert not {"too-few-peers", "two-witnesses"} & found.keys()


@pytest.mark.parametrize(
    ("peers", "words"), [(0, "two more peers are needed"), (1, "one more peer is needed")]
)
def test_too_few_peers(peers: int, words: str) -> None:
    found = told(replace(NOTHING, udp=UdpKind(asked=peers, answered=peers, blocked=False)))
    assert found["too-few-peers"].sentence.startswith(words)
    assert "no central service" in found["too-few-peers"].sentence


def test_linked_peers_that_see_nothing_are_mentioned() -> None:
    """Three peers were linked when it once said that two more were needed."""
    few = replace(NOTHING, udp=UdpKind(asked=1, answered=1, blocked=False))
    for reach, have in ((NOTHING, "none"), (few, "1")):
        found = told(reach, linked=3)["too-few-peers"]
        assert found.sentence.startswith(f"3 peers are linked, but {have} of them can say")
        assert "two such peers are needed" in found.sentence and "other networks" in found.hint
    assert told(few, linked=1)["too-few-peers"].sentence.startswith("one more peer")


def test_two_witnesses_and_dissent() -> None:
    assert "two-witnesses" in told(replace(HOME, udp=replace(HOME.udp, answered=2)))
    lied = replace(HOME, udp=replace(HOME.udp, dissenters=(PeerId("x"),)))
    assert told(lied)["dissent"].sentence.startswith("1 of 3 peers")


def test_port_mapping() -> None:
    assert "map-refused" in told(HOME, portmap=PortMap(refused="not authorised"))
    assert (
        "not authorised"
        in told(HOME, portmap=PortMap(refused="not authorised"))["map-refused"].sentence
    )
    mapped = told(HOME, portmap=PortMap("NAT-PMP"))
    assert "NAT-PMP" in mapped["mapped"].sentence and "mapped-in-vain" in mapped
    assert "mapped-in-vain" not in told(PUBLIC_BY_MAP, portmap=PortMap("UPnP"))
    assert not [code for code in told(HOME) if "map" in code and not code.startswith("strategy")]


PUBLIC_BY_MAP = replace(HOME, dialled=dialled(DialBackResult.REACHED, "tcp", "udp"))


def test_a_second_router() -> None:
    found = told(replace(HOME, cgn=True))
    assert "(carrier-grade NAT)" in found["double-nat"].sentence
    assert "IPv6" in found["double-nat"].hint


def test_ipv6() -> None:
    assert "ipv6-open" in told(replace(HOME, ipv6=Ipv6.OPEN))
    assert str(PORT) in told(replace(HOME, ipv6=Ipv6.FILTERED))["ipv6-filtered"].hint


W, L, U, N, Q = Hope.WORKS, Hope.LIKELY, Hope.UNLIKELY, Hope.NO, Hope.UNKNOWN


@pytest.mark.parametrize(
    ("reach", "portmap", "expected"),
    [
        # public, mapped, TCP punch, UDP punch, prediction
        (PUBLIC, None, (W, Q, L, L, L)),
        (HOME, PortMap(), (N, N, L, L, L)),
        (HOME, PortMap("UPnP"), (N, N, L, L, L)),
        (PUBLIC_BY_MAP, PortMap("UPnP"), (N, W, L, L, L)),
        (replace(HOME, cgn=True), PortMap("UPnP"), (N, N, L, L, L)),
        (SYMMETRIC, PortMap(refused="no"), (N, N, U, U, U)),
        (COUNTING, None, (N, Q, U, U, L)),
        (BLOCKED, None, (N, Q, L, N, N)),
        (NOTHING, None, (Q, Q, Q, Q, Q)),
    ],
)
def test_the_prospects_of_each_strategy(
    reach: Reachability, portmap: PortMap | None, expected: tuple[Hope, ...]
) -> None:
    found = hopes(reach, portmap=portmap)
    shown = (
        Strategy.PUBLIC,
        Strategy.MAPPED,
        Strategy.TCP_PUNCH,
        Strategy.UDP_PUNCH,
        Strategy.PREDICTION,
    )
    assert tuple(found[strategy] for strategy in shown) == expected
    assert found[Strategy.RELAY] is found[Strategy.TCP_443] is Hope.NOBODY


def test_relays_are_likely_only_if_some_are_known() -> None:
    sentences = told(BLOCKED)
    assert sentences["strategy-relay"].sentence == "relays: none is known yet"
    assert sentences["strategy-tcp-443"].sentence == "relays on TCP port 443: none is known yet"
    found = hopes(BLOCKED, relays=2)
    assert (found[Strategy.RELAY], found[Strategy.TCP_443]) == (L, Hope.NOBODY)
    assert hopes(BLOCKED, relays=2, relays_443=1)[Strategy.TCP_443] is L


def test_experience_counts_more_than_predictions() -> None:
    found = hopes(SYMMETRIC, worked={Strategy.UDP_PUNCH, Strategy.RELAY}, failed={Strategy.TCP_443})
    assert found[Strategy.UDP_PUNCH] is found[Strategy.RELAY] is W
    assert found[Strategy.TCP_443] is U
    sentence = told(SYMMETRIC, worked={Strategy.RELAY})["strategy-relay"].sentence
    assert sentence == "relays: works"


@pytest.mark.parametrize("reach", [HOME, PUBLIC, SYMMETRIC, COUNTING, BLOCKED, NOTHING])
def test_sentences_follow_the_style(reach: Reachability) -> None:
    for finding in told(replace(reach, cgn=True, ipv6=Ipv6.FILTERED), portmap=PortMap()).values():
        for text in finding.sentence, finding.hint:
            assert not text.endswith(".") and "  " not in text
            assert not text or not text[0].isupper() or text.split()[0] in ("TCP", "UDP")
    codes = [f"strategy-{strategy}" for strategy in Strategy]
    assert [code for code in told(reach) if code.startswith("strategy")] == codes
