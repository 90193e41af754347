"""A volunteer's replies, and the rules that keep them from hitting others."""

import pytest

from shoal.transport.host.datagrams import Place
from shoal.transport.nat.reach import defaults, stun
from shoal.transport.nat.reach.stun import MessageClass, StunMessage, request
from shoal.transport.nat.reach.volunteer import Responder
from shoal.transport.rates import Rate, SourceRates

ID = bytes(12)
HERE = "11.0.0.9", 4567


def ask(
    responder: Responder, data: bytes, source: Place = HERE, now: float = 0.0
) -> StunMessage | None:
    message = stun.decode(data)
    assert message is not None
    answer = responder.answer(data, message, source, now)
    assert answer is None or len(answer) <= len(data)
    return stun.decode(answer) if answer is not None else None


@pytest.mark.parametrize("source", [HERE, ("2600::1", 65535)])
def test_a_reply_contains_the_source(source: Place) -> None:
    answer = ask(Responder(), request(ID), source)
    assert answer is not None
    assert (answer.kind, answer.transaction, answer.mapped) == (MessageClass.SUCCESS, ID, source)


@pytest.mark.parametrize(
    "message",
    [
        StunMessage(
            MessageClass.REQUEST, ID, username=b"a:b", padding=36
        ),  # a check of hole punching
        StunMessage(MessageClass.SUCCESS, ID, mapped=HERE, padding=36),
        StunMessage(MessageClass.INDICATION, ID, padding=36),
        StunMessage(MessageClass.ERROR, ID, error=(420, ""), padding=36),
        StunMessage(MessageClass.REQUEST, ID),  # the answer would be larger
    ],
)
def test_messages_without_a_reply(message: StunMessage) -> None:
    """Replies above all: two observers would talk to each other forever."""
    assert ask(Responder(), stun.encode(message)) is None


def test_a_check_with_integrity_gets_no_reply() -> None:
    data = stun.encode(StunMessage(MessageClass.REQUEST, ID, padding=36), b"key")
    assert ask(Responder(), data) is None


def test_a_reply_is_never_larger_than_its_request() -> None:
    """Checked for every size of request."""
    for padding in range(0, 60, 4):
        for source in HERE, ("2600::1", 1):
            ask(
                Responder(),
                stun.encode(StunMessage(MessageClass.REQUEST, ID, padding=padding)),
                source,
            )


def test_without_the_check_a_reply_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.transport.nat.reach.volunteer.is_larger", lambda *_: False)
    monkeypatch.setattr(defaults, "SMALLEST_ANSWER_BYTES", 0)
    data = stun.encode(StunMessage(MessageClass.REQUEST, ID))
    answer = Responder().answer(data, StunMessage(MessageClass.REQUEST, ID), HERE, 0.0)
    assert answer is not None
    assert len(answer) > len(data)


def test_unknown_attributes_are_named() -> None:
    extra = bytes.fromhex("70010000")
    plain = stun.encode(StunMessage(MessageClass.REQUEST, ID, padding=36))[:-8]
    data = plain[:2] + (len(plain) + 4 - 20).to_bytes(2) + plain[4:] + extra
    answer = ask(Responder(), data)
    assert answer is not None
    assert (answer.kind, answer.unknown) == (MessageClass.ERROR, (0x7001,))


def flood(responder: Responder) -> int:
    """Return the number of replies to 1,000 requests in 10 s from one subnet."""
    return sum(
        ask(responder, request(ID), (f"11.0.0.{n % 250}", 1 + n), n / 100) is not None
        for n in range(1000)
    )


def test_replies_to_one_subnet_are_bounded() -> None:
    responder = Responder()
    assert flood(responder) <= defaults.ANSWER_BURST + 10 * defaults.ANSWERS_PER_S
    assert ask(responder, request(ID), ("12.0.0.1", 1), 10.0) is not None
    assert responder.refused > 900


def test_without_rate_limiters_a_subnet_gets_all_replies() -> None:
    free = Rate(1e9, 1e9)
    assert flood(Responder(SourceRates(free, free))) == 1000


def test_replies_in_all_are_bounded() -> None:
    """With spoofed sources from any number of subnets."""
    responder = Responder()
    answered = sum(
        ask(responder, request(ID), (f"11.{n >> 8}.{n & 255}.1", 1), n / 1000) is not None
        for n in range(3000)
    )
    assert answered <= defaults.ALL_ANSWERS_BURST + 3 * defaults.ALL_ANSWERS_PER_S


def test_port_zero_gets_no_reply() -> None:
    assert ask(Responder(), request(ID), ("11.0.0.1", 0)) is None
