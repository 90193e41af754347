"""Tests of protocol negotiation: in any fragmentation, and with a peer that never agrees."""

import random

import pytest

from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p import defaults
from shoal.transport.libp2p.multistream import VERSION, ProtocolChoice, ProtocolOffer, line


def test_two_sides_agree() -> None:
    offer, choice = ProtocolOffer("/b"), ProtocolChoice(("/a", "/b"))
    offer.receive(choice.receive(offer.opening() + b"early"))
    assert offer.chosen == choice.chosen == "/b"
    assert choice.rest() == b"early"


def test_what_is_not_offered_is_refused_and_the_next_may_be_taken() -> None:
    choice = ProtocolChoice(("/noise",))
    answer = choice.receive(line(VERSION) + line("/plaintext/2.0.0") + line("ls") + line("/noise"))
    assert answer == line(VERSION) + line("na") + line("na") + line("/noise")
    with pytest.raises(Fault, match="no-protocol"):
        ProtocolOffer("/plaintext/2.0.0").receive(answer)


def test_any_fragmentation_will_do() -> None:
    draw = random.Random(1)
    for _ in range(50):
        choice, answer, data = ProtocolChoice(("/x",)), b"", line(VERSION) + line("/y") + line("/x")
        while data:
            cut = draw.randrange(1, 6)
            answer += choice.receive(data[:cut])
            data = data[cut:]
        assert choice.chosen == "/x" and answer.endswith(line("/x"))


@pytest.mark.parametrize(
    "data",
    [
        line("/multistream/9.0.0"),
        b"\x00",
        b"\x04abcd",  # no newline
        b"\x04\xff\xfe\xfd\n",
        b"\xff\xff\xff\xff\x7f",  # a line of 34 GB
        b"\xff" * 10,
        b"\x81\x02",  # 257 bytes
    ],
)
def test_lines_that_are_none_are_faults(data: bytes) -> None:
    for side in (ProtocolChoice(("/x",)), ProtocolOffer("/x")):
        with pytest.raises(Fault):
            side.receive(data)


def test_proposals_are_counted() -> None:
    with pytest.raises(Fault, match="no-protocol"):
        ProtocolChoice(("/x",)).receive(line(VERSION) + line("/y") * (defaults.LINES + 1))


def test_an_answer_that_was_not_asked_for_is_a_fault() -> None:
    with pytest.raises(Fault, match="bad-multistream"):
        ProtocolOffer("/x").receive(line(VERSION) + line("/y"))
