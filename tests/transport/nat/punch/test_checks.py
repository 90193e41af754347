"""Connectivity checks, without any network: datagrams are carried by hand."""

from dataclasses import replace
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.transport.host.datagrams import Place
from shoal.transport.nat.punch.checks import Checks, Send
from shoal.transport.nat.punch.defaults import PunchLimits
from shoal.transport.nat.reach.stun import MessageClass, StunMessage, decode, encode

A, B, VICTIM = ("11.0.0.1", 4001), ("11.0.0.2", 4001), ("93.184.216.34", 4001)
KEYS = b"a" * 20, b"b" * 20
NAME = b"attempt!"


def side(client: bool, **changed: Any) -> Checks[str]:
    permits: dict[str, Any] = {
        "may_check": lambda ip: ip.startswith("11."),
        "spend": lambda ip, now: True,
    }
    settings: dict[str, Any] = {
        "controlling": client,
        "entropy": Random(int(client)).randbytes,
        "limits": PunchLimits(),
    }
    for name, value in changed.items():
        (permits if name in permits else settings)[name] = value
    allowed: Any = SimpleNamespace(**permits)
    checks: Checks[str] = Checks(NAME, KEYS[not client], allowed, **settings)
    checks.theirs = KEYS[client]
    return checks


def take(
    checks: Checks[str], send: Send[str], source: Place, now: float, socket: str = "main"
) -> bool:
    message = decode(send.data)
    assert message is not None
    return checks.receive(message, send.data, source, socket, now)


class Wire:
    """Two sides and the network between them. `lost(source, to)` says what is lost."""

    def __init__(self, a: Checks[str], b: Checks[str], delay: float = 0.03) -> None:
        self.sides = {A: a, B: b}
        self.lost: Any = lambda source, to: False
        self.delay = delay
        self.sent: list[tuple[float, Place, Send[str]]] = []
        self.now = 0.0

    def run(self, until: float) -> None:
        """Run in steps of a millisecond."""
        while self.now < until:
            self.now = round(self.now + 0.001, 6)
            for place, checks in self.sides.items():
                if checks.due <= self.now:
                    self.sent += [(self.now, place, send) for send in checks.take(self.now)]
            for at, source, send in self.sent:
                if abs(at + self.delay - self.now) < 1e-6 and not self.lost(source, send.to):
                    receiver = self.sides.get(send.to)
                    if receiver is not None:
                        take(receiver, send, source, self.now)


def both(**changed: Any) -> Wire:
    return Wire(side(True, **changed), side(False, **changed))


def test_both_choose_the_pair_that_works() -> None:
    wire = both()
    wire.sides[A].pair("main", B, at=0.01)
    wire.sides[B].pair("main", A, at=0.01)
    wire.run(0.5)
    for checks, place in ((wire.sides[A], B), (wire.sides[B], A)):
        assert checks.chosen is not None
        assert (checks.chosen.socket, checks.chosen.place) == ("main", place)
        assert checks.chosen.rtt == pytest.approx(0.06, abs=0.003)
        assert checks.refused == 0 and checks.due == inf


def test_a_pair_has_to_work_in_both_directions() -> None:
    wire = both()
    wire.lost = lambda source, to: to == A
    wire.sides[A].pair("main", B, at=0.0)
    wire.sides[B].pair("main", A, at=0.0)
    wire.run(4.0)
    assert wire.sides[A].chosen is None and wire.sides[B].chosen is None
    assert wire.sides[B].heard > 5 and wire.sides[A].heard == 0


def test_the_source_of_a_check_is_checked_too() -> None:
    """A symmetric NAT's port is learnt from its packets."""
    wire = both()
    hard = ("11.0.0.2", 50123)
    checks = wire.sides[A]
    message = StunMessage(MessageClass.REQUEST, b"t" * 12, username=NAME)
    take(checks, Send("main", encode(message, KEYS[0]), A), hard, 1.0)
    answer, check = checks.take(1.0)
    assert answer.to == check.to == hard
    found = decode(check.data)
    assert found is not None and found.kind is MessageClass.REQUEST


def test_the_peer_may_be_much_too_early() -> None:
    """Early requests are answered, but checks wait for the peer's secret."""
    checks = side(True)
    checks.theirs = None
    early = StunMessage(MessageClass.REQUEST, b"t" * 12, username=NAME)
    take(checks, Send("main", encode(early, KEYS[0]), A), B, 0.0)
    checks.pair("main", B, at=0.1)
    assert [decode(send.data).kind for send in checks.take(0.0)] == [MessageClass.SUCCESS]  # type: ignore[union-attr]
    assert checks.due == inf
    checks.theirs = KEYS[1]
    assert len(checks.take(0.2)) == 1


def test_the_lan_comes_before_ipv6_and_that_before_the_fastest() -> None:
    checks = side(True, may_check=lambda ip: True)
    near, six, fast = ("192.168.1.9", 4001), ("2600::1", 4001), ("11.0.0.2", 4001)

    def answer(place: Place, at: float, lan: bool = False) -> None:
        checks.pair("main", place, at=at, lan=lan)
        sent = next(send for send in checks.take(at) if send.to == place)
        asked = decode(sent.data)
        assert asked is not None
        data = encode(StunMessage(MessageClass.SUCCESS, asked.transaction, mapped=A), KEYS[1])
        take(checks, Send("main", data, A), place, at + (0.01 if place == fast else 0.02))

    answer(fast, 0.0)
    assert checks.take(0.05) == [], "what works is not checked again"
    assert checks.due == pytest.approx(0.01 + PunchLimits().settle_s)
    answer(six, 0.052)
    answer(near, 0.06, lan=True)
    assert checks.due <= 0.08, "the own network is not waited for anything better"
    assert checks.take(0.08)[0].to == near
    assert checks.mapped["main"] == A


def test_the_choice_is_repeated_until_confirmed_or_replaced() -> None:
    wire = both(limits=replace(PunchLimits(), nominations=3))
    second = ("11.0.0.3", 4001)
    wire.sides[second] = wire.sides[B]  # the same computer at another address
    a = wire.sides[A]
    a.pair("main", B, at=0.0)
    wire.run(0.1)
    a.pair("main", second, at=wire.now)
    wire.lost = lambda source, to: to == B or source == B
    wire.run(1.2)
    assert a.chosen is None or a.chosen.place == second
    told = [send for _, _, send in wire.sent if _uses(send)]
    assert len([send for send in told if send.to == B]) == 3


def _uses(send: Send[str]) -> bool:
    message = decode(send.data)
    return message is not None and message.use_candidate


def test_only_one_side_chooses() -> None:
    checks = side(True)
    message = StunMessage(MessageClass.REQUEST, b"t" * 12, username=NAME, use_candidate=True)
    take(checks, Send("main", encode(message, KEYS[0]), A), B, 0.0)
    assert checks.chosen is None
    served = side(False)
    take(served, Send("main", encode(message, KEYS[1]), B), A, 0.0)
    assert served.chosen is not None and served.chosen.rtt is None


def test_checks_keep_the_pace() -> None:
    checks = side(True)
    for port in range(5000, 5060):
        checks.pair("main", ("11.0.0.2", port), at=0.0)
    assert len(checks.take(0.0)) == 1
    sent, now = 1, 0.0
    while now < 0.5:
        now = checks.due
        sent += len(checks.take(now))
    assert 40 < sent < 24 + 0.5 / 0.02 + 2


def test_shots_ignore_the_pace() -> None:
    checks = side(True)
    for i in range(1400):
        checks.shot("main", ("11.0.0.2", 2000 + i), at=i * 0.001)
    assert len(checks.take(0.7001)) == 701 and len(checks.take(2.0)) == 699
    assert checks.due == inf


def test_a_search_ends_when_the_peer_is_heard() -> None:
    checks = side(False)
    for i in range(1400):
        checks.shot("main", ("11.0.0.2", 2000 + i), at=1.0 + i * 0.001)
    data = request(KEYS[1])
    message = decode(data)
    assert message is not None
    checks.receive(message, data, B, "main", 0.5)
    assert len(checks.take(5.0)) == 2, "the answer, and a check of that pair"


# Hostile peers, and others.


def request(key: bytes, transaction: bytes = b"t" * 12, **fields: Any) -> bytes:
    return encode(StunMessage(MessageClass.REQUEST, transaction, username=NAME, **fields), key)


@pytest.mark.parametrize("key", [b"wrong" * 4, None])
def test_requests_with_a_wrong_key_get_no_reply(key: bytes | None) -> None:
    checks = side(False)
    data = encode(
        StunMessage(MessageClass.REQUEST, b"t" * 12, username=NAME, use_candidate=True), key
    )
    assert take(checks, Send("main", data, B), A, 0.0)
    assert checks.take(0.0) == [] and checks.chosen is None and checks.refused == 1


def test_a_request_with_the_right_key_gets_a_reply() -> None:
    checks = side(False)
    take(checks, Send("main", request(KEYS[1]), B), A, 0.0)
    assert len(checks.take(0.0)) == 2


def test_our_own_checks_sent_back_to_us_are_ignored() -> None:
    checks = side(True)
    checks.pair("main", B, at=0.0)
    sent = checks.take(0.0)[0]
    take(checks, sent, B, 0.01)
    assert checks.take(0.01) == [] and checks.refused == 1


def test_checks_of_another_attempt_are_ignored() -> None:
    checks = side(False)
    data = encode(StunMessage(MessageClass.REQUEST, b"t" * 12, username=b"other..."), KEYS[1])
    assert not take(checks, Send("main", data, B), A, 0.0)


def test_a_replayed_request_is_not_answered_again() -> None:
    checks = side(False)
    for source in (A, A, ("11.0.0.9", 4001)):
        take(checks, Send("main", request(KEYS[1]), B), source, 0.0)
    assert {send.to for send in checks.take(0.0)} == {A}
    assert checks.refused == 2


def test_a_request_from_where_the_peer_cannot_be_is_not_answered() -> None:
    """Otherwise an eavesdropper could aim our replies and checks at a victim."""
    checks = side(False)
    take(checks, Send("main", request(KEYS[1]), B), VICTIM, 0.0)
    assert checks.take(0.0) == [] and checks.refused == 1
    open_ = side(False, may_check=lambda ip: True)  # the twin without the filter
    take(open_, Send("main", request(KEYS[1]), B), VICTIM, 0.0)
    assert {send.to for send in open_.take(0.0)} == {VICTIM}


def test_no_pair_or_shot_goes_where_the_peer_cannot_be() -> None:
    checks = side(True)
    checks.pair("main", VICTIM, at=0.0)
    checks.shot("main", VICTIM, at=0.0)
    assert checks.take(1.0) == []


@pytest.mark.parametrize(
    ("key", "source", "socket"),
    [(b"wrong" * 4, B, "main"), (KEYS[1], VICTIM, "main"), (KEYS[1], B, "other")],
)
def test_a_reply_needs_the_right_source_and_key(key: bytes, source: Place, socket: str) -> None:
    checks = side(True)
    checks.pair("main", B, at=0.0)
    asked = decode(checks.take(0.0)[0].data)
    assert asked is not None
    data = encode(StunMessage(MessageClass.SUCCESS, asked.transaction, mapped=A), key)
    take(checks, Send("main", data, A), source, 0.02, socket)
    assert checks.due == 0.05, "the next check, and no choice"
    assert checks.refused == 1
    right = encode(StunMessage(MessageClass.SUCCESS, asked.transaction, mapped=A), KEYS[1])
    take(checks, Send("main", right, A), B, 0.03)
    checks.take(0.05)
    assert checks.take(0.1)[0].to == B


def test_all_datagrams_count_and_a_spent_budget_stops_them() -> None:
    spent: list[str] = []

    def spend(ip: str, now: float) -> bool:
        spent.append(ip)
        return len(spent) <= 2

    checks = side(False, spend=spend)
    checks.pair("main", A, at=0.0)
    for i in range(50):
        take(checks, Send("main", request(KEYS[1], bytes([i]) * 12), B), A, 0.0)
    assert len(checks.take(0.0)) == 2 and set(spent) == {A[0]}


def test_memory_is_bounded() -> None:
    limits = PunchLimits(pairs=8, pending=16, heard=16)
    checks = side(False, limits=limits)
    for i in range(2000):
        source = ("11.0.0.1", 2000 + i)
        data = request(KEYS[1], i.to_bytes(12))
        take(checks, Send("main", data, B), source, i * 0.1)
        checks.take(i * 0.1)
    assert len(checks._pairs) == 8
    assert len(checks._pending) <= 16 and len(checks._requests) == 16
    assert len(checks._queue) < 200


def test_an_error_response_and_strange_messages_do_nothing() -> None:
    checks = side(True)
    checks.pair("main", B, at=0.0)
    asked = decode(checks.take(0.0)[0].data)
    assert asked is not None
    for kind in (MessageClass.ERROR, MessageClass.INDICATION):
        error = (400, "no") if kind is MessageClass.ERROR else None
        data = encode(StunMessage(kind, asked.transaction, error=error), KEYS[1])
        take(checks, Send("main", data, A), B, 0.01)
    assert checks.chosen is None and checks.due == 0.05


def test_only_a_reply_proves_where_the_peer_is() -> None:
    """The peer can forge a request's source, but cannot reply to a check it never received."""
    wire = both()
    wire.lost = lambda source, to: to == A
    wire.sides[A].pair("main", B, at=0.0)
    wire.run(1.0)
    assert wire.sides[B].heard and not wire.sides[B].proven
    wire.lost = lambda source, to: False
    wire.run(2.0)
    assert wire.sides[B].proven == {A[0]} and wire.sides[A].proven == {B[0]}
