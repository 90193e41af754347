"""Judgement of NATs from views."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.host.datagrams import Place
from shoal.transport.nat.reach.judging import (
    View,
    allocation_of,
    consensus,
    filtering_of,
    mapping_of,
    public_ip_of,
)
from shoal.transport.nat.reach.reachability import Allocation, Behaviour, Pattern

EI = Behaviour.ENDPOINT_INDEPENDENT
AD = Behaviour.ADDRESS_DEPENDENT
APD = Behaviour.ADDRESS_AND_PORT_DEPENDENT
A, B, C, D = (("5.5.5.5", port) for port in (1, 2, 3, 4))
OWN = "10.0.0.2", 9


@pytest.mark.parametrize(
    ("views", "mapping"),
    [
        ([], Behaviour.UNKNOWN),
        ([(None, None)], Behaviour.UNKNOWN),
        ([(A, None)], Behaviour.UNKNOWN),
        ([(A, A)], Behaviour.UNKNOWN),
        ([(A, B)], APD),
        ([(OWN, OWN)], Behaviour.NONE),
        ([(OWN, None), (OWN, None)], Behaviour.NONE),
        ([(A, A), (A, A)], EI),
        ([(A, None), (A, None), (None, None)], EI),
        ([(A, A), (B, B)], AD),
        ([(A, B), (C, D)], APD),
        ([(A, None), (B, None)], APD),  # unknown, so the stricter one
        ([(A, A), (B, B), (C, D)], AD),
        ([(A, B), (C, D), (D, D)], APD),
        ([(A, A), (A, A), (B, C)], EI),
    ],
)
def test_mapping(views: list[View], mapping: Behaviour) -> None:
    by_ip = {f"11.0.{n}.1": view for n, view in enumerate(views)}
    assert mapping_of(by_ip, [OWN]) is mapping


def test_consensus_is_more_than_half() -> None:
    assert consensus([]) is None
    assert consensus([A]) == A
    assert consensus([A, B]) is None
    assert consensus([A, B, A]) == A
    assert consensus([A, A, B, B]) is None
    assert public_ip_of([A, B, C]) == "5.5.5.5"
    assert public_ip_of([A, ("6.6.6.6", 1)]) is None


@pytest.mark.parametrize(
    ("strangers", "known", "filtering"),
    [
        ([], [], Behaviour.UNKNOWN),
        ([True], [], EI),
        ([False, True], [False], EI),
        ([False], [True], AD),
        ([False], [False], APD),
        ([], [False], APD),
        ([], [True], Behaviour.UNKNOWN),
        ([False], [], Behaviour.UNKNOWN),
    ],
)
def test_filtering(strangers: list[bool], known: list[bool], filtering: Behaviour) -> None:
    assert filtering_of(strangers, known) is filtering


@pytest.mark.parametrize(
    ("ports", "allocation"),
    [
        ([], Allocation()),
        ([7], Allocation()),
        ([7, 8], Allocation()),
        ([100, 101, 102], Allocation(Pattern.SEQUENTIAL, 1)),
        ([100, 102, 104, 106], Allocation(Pattern.SEQUENTIAL, 2)),
        ([106, 104, 102, 100], Allocation(Pattern.SEQUENTIAL, -2)),
        ([65534, 65535, 0, 1], Allocation(Pattern.SEQUENTIAL, 1)),
        ([100, 40000, 102, 103, 104], Allocation(Pattern.SEQUENTIAL, 1)),  # a liar
        ([100, 30000, 50000], Allocation(Pattern.RANDOM)),
        ([1217, 1261, 1186, 1163], Allocation(Pattern.RANDOM)),  # of a carrier's block
        ([100, 101, 50000, 9000, 20000], Allocation(Pattern.RANDOM)),
    ],
)
def test_allocation(ports: list[int], allocation: Allocation) -> None:
    assert allocation_of([(5, port) for port in ports]) == allocation


def test_preserved_ports() -> None:
    assert allocation_of([(5, 5)]).pattern is Pattern.PRESERVING
    assert allocation_of([(5, 5), (6, 6), (7, 40000)]).pattern is Pattern.PRESERVING
    assert allocation_of([(5, 5), (6, 9000)]).pattern is Pattern.UNKNOWN


SHARES = [  # which views one of three observers has, in the order of asking: by port, by address
    (9, (0, 3, 6)), (9, (1, 4, 7)), (9, (2, 5, 8)), (6, (0, 3)), (6, (1, 4)), (6, (2, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("count", "share"), SHARES)
@given(lies=st.lists(st.integers(1, 65535), min_size=9, max_size=9))
def test_one_liar_of_three_cannot_move_a_counting_nat(
    count: int, share: tuple[int, ...], lies: list[int]
) -> None:
    told = [lies[n] if n in share else 30000 + 3 * n for n in range(count)]
    found = allocation_of([(5, port) for port in told])
    assert found.pattern is Pattern.SEQUENTIAL
    assert 1 <= found.delta <= 6


def test_an_address_and_its_port_belong_together() -> None:
    """One port at two addresses gives two views: a NAT with an address pool is not easy."""
    views: dict[str, View] = {"1": (("5.5.5.5", 1), None), "2": (("6.6.6.6", 1), None)}
    place: Place = OWN
    assert mapping_of(views, [place]) is APD
