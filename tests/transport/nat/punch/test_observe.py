"""Asking where a socket is seen."""

from math import inf
from random import Random

from shoal.transport.host.datagrams import Place
from shoal.transport.nat.punch.checks import Send
from shoal.transport.nat.punch.observe import ObserverQuestions
from shoal.transport.nat.reach.stun import MessageClass, StunMessage, decode, encode
from shoal.transport.nat.reach.volunteer import Responder

X, Y = ("11.0.1.1", 4001), ("11.0.2.1", 4001)


def asking(*questions: tuple[str, Place]) -> ObserverQuestions[str]:
    return ObserverQuestions(questions, now=0.0, entropy=Random(1).randbytes)


def answer(
    asked: ObserverQuestions[str], send: Send[str], mapped: Place, source: Place | None = None
) -> bool:
    message = decode(send.data)
    assert message is not None
    reply = decode(encode(StunMessage(MessageClass.SUCCESS, message.transaction, mapped=mapped)))
    assert reply is not None
    return asked.receive(reply, source or send.to, send.socket)


def test_views_come_in_the_order_of_the_questions() -> None:
    asked = asking(("main", X), ("main", Y), ("other", X))
    sent = asked.take(0.0)
    assert [(send.socket, send.to) for send in sent] == [("main", X), ("main", Y), ("other", X)]
    for send, port in reversed(list(zip(sent, (1, 2, 3), strict=True))):
        assert answer(asked, send, ("11.0.0.1", port))
    assert asked.done
    assert asked.seen("main") == [("11.0.0.1", 1), ("11.0.0.1", 2)]
    assert asked.seen("other") == [("11.0.0.1", 3)]


def test_unanswered_questions_are_repeated_twice() -> None:
    asked = asking(("main", X), ("main", Y))
    first = asked.take(0.0)
    answer(asked, first[0], ("11.0.0.1", 1))
    assert asked.take(0.1) == [] and [send.to for send in asked.take(asked.due)] == [Y]
    assert [send.data for send in asked.take(asked.due)] == [first[1].data]
    assert asked.take(asked.due) == [] and asked.done and asked.due == inf
    assert asked.seen("main") == [("11.0.0.1", 1)]


def test_only_the_first_reply_of_the_observer_itself_counts() -> None:
    asked = asking(("main", X))
    (send,) = asked.take(0.0)
    answer(asked, send, ("66.6.6.6", 6), source=Y)
    assert asked.seen("main") == [] and not asked.done
    answer(asked, send, ("11.0.0.1", 1))
    answer(asked, send, ("11.0.0.1", 2))
    assert asked.seen("main") == [("11.0.0.1", 1)]
    stranger = decode(encode(StunMessage(MessageClass.SUCCESS, b"?" * 12, mapped=X)))
    assert stranger is not None and not asked.receive(stranger, X, "main")


def test_an_observer_of_ours_answers_such_a_question() -> None:
    (send,) = asking(("main", X)).take(0.0)
    message = decode(send.data)
    assert message is not None
    found = Responder().answer(send.data, message, ("11.0.0.1", 7), 0.0)
    assert found is not None and len(found) <= len(send.data)


def test_without_questions_there_is_nothing_to_do() -> None:
    asked = asking()
    assert asked.done and asked.take(0.0) == [] and asked.due == inf
