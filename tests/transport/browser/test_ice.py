"""Tests of the ICE-lite agent: replies, accepted datagrams, moves of a session."""

from shoal.transport.browser import defaults
from shoal.transport.browser.ice import IceSession, LiteAgent
from shoal.transport.host.datagrams import Place
from shoal.transport.nat.reach.stun import MessageClass, StunMessage, decode, encode

HERE: Place = ("192.0.2.7", 1000)
SAME_IP: Place = ("192.0.2.7", 2000)
ELSEWHERE: Place = ("198.51.100.1", 1000)
DTLS = b"\x16" + bytes(20)


def check(
    *, username: str = "node:visi", password: str = "secret", use_candidate: bool = True
) -> bytes:
    message = StunMessage(
        MessageClass.REQUEST,
        bytes(12),
        username=username.encode(),
        priority=1,
        use_candidate=use_candidate,
        controlling=1,
    )
    return encode(message, password.encode(), sha256=False)


def agent(rate: float = 1000.0) -> tuple[LiteAgent, IceSession, list[bytes]]:
    taken: list[bytes] = []
    made = LiteAgent(rate, 0.0)
    session = made.open(
        ufrag="node", password="secret", peer_ufrag="visi", take=taken.append, now=0.0
    )
    return made, session, taken


def test_a_check_is_answered_and_its_source_becomes_the_session_s_place() -> None:
    made, session, taken = agent()
    reply = made.receive(check(), HERE, 0.0)
    assert reply is not None
    message = decode(reply)
    assert message is not None and message.mapped == HERE
    assert session.place == HERE
    made.receive(DTLS, HERE, 0.0)
    assert taken == [DTLS]


def test_a_check_that_nominates_nothing_moves_nothing() -> None:
    made, session, _ = agent()
    assert made.receive(check(use_candidate=False), HERE, 0.0) is not None
    assert session.place is None


def test_strangers_get_no_answer_and_are_not_heard() -> None:
    made, session, taken = agent()
    for data in (
        check(password="guessed"),
        check(username="node:other"),
        check(username="other:visi"),
        check(username="node"),
        check(username="é"),
        encode(
            StunMessage(MessageClass.REQUEST, bytes(12), username=b"node:visi")
        ),  # no mac at all
        encode(StunMessage(MessageClass.INDICATION, bytes(12))),
        b"",
        b"\0",
        DTLS,
        b"\x80" * 100,
        check()[:-4],
    ):
        assert made.receive(data, ELSEWHERE, 0.0) is None
    assert session.place is None and not taken


def test_a_session_moves_freely_until_dtls_has_proven_its_place() -> None:
    """After that it moves only to another port of the same address: a check alone may be forged,
    and the node would flood a third party."""
    made, session, taken = agent()
    made.receive(check(), ELSEWHERE, 0.0)
    made.receive(check(), HERE, 0.0)
    assert session.place == HERE
    made.receive(DTLS, ELSEWHERE, 0.0)
    assert not taken
    session.settled = True
    assert made.receive(check(), ELSEWHERE, 0.0) is None
    assert session.place == HERE
    assert made.receive(check(), SAME_IP, 0.0) is not None
    assert session.place == SAME_IP


def test_twin_without_settling_the_session_would_follow_a_forged_check() -> None:
    made, session, _ = agent()
    made.receive(check(), HERE, 0.0)
    made.receive(check(), ELSEWHERE, 0.0)
    assert session.place == ELSEWHERE


def test_two_sessions_never_share_a_place() -> None:
    made, _, _ = agent()
    second = made.open(ufrag="nod2", password="secre2", peer_ufrag="vis2", take=print, now=0.0)
    made.receive(check(), HERE, 0.0)
    assert made.receive(check(username="nod2:vis2", password="secre2"), HERE, 0.0) is None
    assert second.place is None


def test_a_closed_session_is_forgotten() -> None:
    made, session, taken = agent()
    made.receive(check(), HERE, 0.0)
    made.close(session)
    made.receive(DTLS, HERE, 0.0)
    assert made.receive(check(), HERE, 0.0) is None
    assert not taken


def test_a_flood_is_cut_to_the_rate() -> None:
    made, session, taken = agent(rate=100.0)
    made.receive(check(), HERE, 0.0)
    for _ in range(1000):
        made.receive(DTLS, HERE, 0.0)
    assert len(taken) == 25 and session.dropped == 975  # a quarter of a second's worth at once
    for _ in range(1000):
        made.receive(DTLS, HERE, 1.0)
    assert len(taken) == 50


def test_strangers_together_are_looked_at_so_often_and_no_more() -> None:
    made, session, _ = agent()
    for number in range(2 * defaults.STRANGERS_RATE):
        made.receive(b"\0" * 20, (f"198.51.100.{number % 250}", number), 0.0)
    assert made.receive(check(), HERE, 0.0) is None  # drowned
    assert made.receive(check(), HERE, 0.1) is not None  # and a moment later heard
    assert session.place == HERE


def test_datagrams_that_are_too_large_are_lost() -> None:
    made, _, taken = agent()
    made.receive(check(), HERE, 0.0)
    made.receive(b"\x17" + bytes(defaults.PACKET_BYTES), HERE, 0.0)
    assert not taken
