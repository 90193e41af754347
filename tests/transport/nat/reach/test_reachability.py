"""Conclusions from a measurement."""

import pytest

from shoal.transport.nat.reach.reachability import (
    Behaviour,
    DialBackResult,
    Dialled,
    Reachability,
    UdpKind,
)

TCP, UDP = ("11.0.0.1", 4001), ("11.0.0.1", 4002)


def dialled(*answers: DialBackResult) -> tuple[Dialled, ...]:
    return tuple(Dialled("tcp", TCP, answer, 3) for answer in answers)


@pytest.mark.parametrize(
    ("answers", "public"),
    [
        ((DialBackResult.REACHED, DialBackResult.NOT_REACHED), True),
        ((DialBackResult.NOT_REACHED, DialBackResult.UNKNOWN), False),
        ((DialBackResult.REACHED_BY_KNOWN,), False),
        ((DialBackResult.UNKNOWN,), None),
        ((), None),
    ],
)
def test_a_node_that_strangers_reach_is_public(
    answers: tuple[DialBackResult, ...], public: bool | None
) -> None:
    assert Reachability(dialled=dialled(*answers)).public is public


def test_a_symmetric_nat_leaves_no_address_to_try() -> None:
    symmetric = UdpKind(Behaviour.ADDRESS_DEPENDENT)
    assert Reachability(udp=symmetric).public is False
    assert Reachability(udp=symmetric, dialled=dialled(DialBackResult.REACHED)).public is True


def test_where_strangers_got_in() -> None:
    known = Reachability(
        dialled=(
            Dialled("udp", UDP, DialBackResult.REACHED, 3),
            Dialled("tcp", TCP, DialBackResult.REACHED_BY_KNOWN, 3),
        )
    )
    assert known.reached("udp") == (UDP,) and known.reached("tcp") == ()


def test_which_mappings_are_symmetric() -> None:
    assert {each for each in Behaviour if each.symmetric} == {
        Behaviour.ADDRESS_DEPENDENT,
        Behaviour.ADDRESS_AND_PORT_DEPENDENT,
    }
