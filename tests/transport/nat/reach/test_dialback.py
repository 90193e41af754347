"""Rules for dial-backs, so that no node is a reflector."""

from typing import Any

import pytest

from shoal.transport.host.datagrams import Place
from shoal.transport.identity import PeerId
from shoal.transport.nat.reach import defaults
from shoal.transport.nat.reach.dialback import (
    Awaited,
    DialBackGate,
    Go,
    No,
    Pay,
    WantedDialBack,
    parse_wanted,
)

ASKER = PeerId("asker")
SEEN = "11.0.0.9"
VICTIM = "93.184.216.34"
NONCE = b"n" * 16
FREE: dict[str, Any] = {"seen": [SEEN], "own": ["11.0.1.1", "2a00:1::1"], "paid": 0, "now": 0.0}


def gate() -> DialBackGate:
    return DialBackGate(lambda size: b"\x07" * size)


def wanted(ip: str = SEEN, port: int = 4001, transport: str = "tcp") -> WantedDialBack:
    return WantedDialBack(transport, (ip, port), NONCE)


def ask(
    at: DialBackGate, what: WantedDialBack, peer: PeerId = ASKER, **changes: Any
) -> Go | Pay | No:
    return at.ask(peer, what, **(FREE | changes))


def test_header() -> None:
    assert parse_wanted(wanted().header) == wanted()


@pytest.mark.parametrize(
    "change",
    [
        {"transport": "sctp"},
        {"transport": None},
        {"ip": "example.org"},
        {"ip": 7},
        {"ip": "011.0.0.9"},
        {"ip": "fe80::1%eth0"},
        {"ip": "2001:DB8::1"},
        {"ip": "1" * 10**6},
        {"port": 0},
        {"port": 65536},
        {"port": True},
        {"port": "4001"},
        {"nonce": b"short"},
        {"nonce": "n" * 16},
        {"nonce": None},
    ],
)
def test_malformed(change: dict[str, Any]) -> None:
    assert parse_wanted(wanted().header | change) is None


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_an_address_where_the_asker_is_seen_is_dialled_at_once(transport: str) -> None:
    assert ask(gate(), wanted(transport=transport)) == Go()


def test_an_address_seen_by_another_path_of_the_link_is_free() -> None:
    seen = [SEEN, "2a00:2::9"]
    assert [ask(gate(), wanted(ip), seen=seen) for ip in seen] == [Go(), Go()]


def test_a_server_without_a_route_demands_no_payment() -> None:
    """A server without IPv6 once took 65 kB and then reported that it had sent nothing."""
    answer = ask(gate(), wanted("2a00:2::9"), own=["11.0.1.1", "::1", "fe80::1"])
    assert isinstance(answer, No) and answer.code == "no-way"


@pytest.mark.parametrize("ip", ["127.0.0.1", "192.168.1.7", "100.64.0.9", "fd00::1", "::1"])
def test_private_addresses_are_dialled_only_where_the_asker_is_seen(ip: str) -> None:
    assert isinstance(ask(gate(), wanted(ip)), No)
    assert isinstance(ask(gate(), wanted(ip), seen=[]), No)
    assert isinstance(ask(gate(), wanted(ip), paid=10**6), No)
    assert ask(gate(), wanted(ip), seen=[ip]) == Go()


@pytest.mark.parametrize(
    "ip",
    [
        "0.0.0.0",
        "169.254.169.254",
        "224.0.0.251",
        "255.255.255.255",
        "240.0.0.1",
        "ff02::fb",
        "fe80::1",
        "::",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "2001:0:a00:1::",
        "11.0.1.1",  # this node itself
    ],
)
def test_forbidden_addresses_are_never_dialled(ip: str) -> None:
    assert isinstance(ask(gate(), wanted(ip)), No)


@pytest.mark.parametrize("port", [1, 22, 25, 53, 80, 1023])
def test_ports_that_are_not_dialled(port: int) -> None:
    assert isinstance(ask(gate(), wanted(port=port)), No)
    assert ask(gate(), wanted(port=443)) == Go()


def test_other_addresses_cost_a_payment_first() -> None:
    at = gate()
    demand = ask(at, wanted(VICTIM))
    assert isinstance(demand, Pay)
    least, most = defaults.PAYMENT_BYTES
    assert least <= demand.size <= most
    again = ask(at, wanted(VICTIM), paid=demand.size - 1)
    assert isinstance(again, Pay)
    assert ask(at, wanted(VICTIM), paid=again.size) == Go()
    assert isinstance(ask(at, wanted(VICTIM), paid=again.size), Pay)  # one payment, one dial


def test_an_asker_may_pay_for_several_addresses_at_once() -> None:
    at = gate()
    places = [f"93.184.{number}.34" for number in range(defaults.OWN_PLACES)]
    demands = [ask(at, wanted(place)) for place in places]
    for place, demand in reversed(list(zip(places, demands, strict=True))):
        assert isinstance(demand, Pay)
        assert ask(at, wanted(place), paid=demand.size) == Go()
    first = ask(at, wanted(VICTIM))
    assert isinstance(first, Pay)
    for place in places:  # one too many at a time: the oldest is forgotten
        ask(at, wanted(place))
    assert isinstance(ask(at, wanted(VICTIM), paid=first.size), Pay)


def test_a_peer_that_is_seen_nowhere_pays() -> None:
    """It came through a relay, whose address is not the peer's."""
    assert isinstance(ask(gate(), wanted(), seen=[]), Pay)


def test_unsolicited_wrong_or_late_payments_do_not_count() -> None:
    at = gate()
    demand = ask(at, wanted(VICTIM), paid=100_000)
    assert isinstance(demand, Pay)
    other = ask(at, wanted("93.184.216.35"), paid=demand.size)
    assert isinstance(other, Pay)
    assert isinstance(ask(at, wanted(VICTIM), paid=100_000, now=100.0), Pay)
    assert isinstance(ask(at, wanted(VICTIM), PeerId("other"), paid=100_000), Pay)


def test_the_price_is_random_within_its_bounds() -> None:
    least, most = defaults.PAYMENT_BYTES
    for draw in b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\2\3\4":
        demand = ask(DialBackGate(lambda _, draw=draw: draw), wanted(VICTIM))  # type: ignore[misc]
        assert isinstance(demand, Pay)
        assert least <= demand.size <= most


def hit_without_paying(victim: str = VICTIM) -> int:
    """Return how many dials reach a victim if 100 askers make 10,000 requests without paying."""
    at = gate()
    return sum(
        ask(at, wanted(victim), PeerId(str(n % 100)), now=n / 100) == Go() for n in range(10000)
    )


def test_a_server_is_no_reflector() -> None:
    assert hit_without_paying() == 0


def test_without_payment_a_server_is_a_reflector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DialBackGate, "_has_paid", lambda *_: True)
    assert hit_without_paying() > 0


def hit_with_paying(spread: int = 1) -> int:
    """Return how many dials reach victims in `spread` subnets if all askers pay."""
    at, hits = gate(), 0
    for n in range(1000):
        what, peer, now = wanted(f"93.{n % spread}.216.34"), PeerId(str(n % 100)), n / 10
        demand = ask(at, what, peer, now=now)
        assert not isinstance(demand, Go)
        if isinstance(demand, Pay):
            hits += ask(at, what, peer, paid=demand.size, now=now) == Go()
    return hits


def test_paid_dials_to_a_victim_are_few() -> None:
    """They take 100 s and cost at least 30 MB."""
    assert hit_with_paying() <= defaults.FOREIGN_BURST + 100 * defaults.FOREIGN_PER_S


def test_without_rate_limiters_paid_dials_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "FOREIGN_BURST", 10**9)
    monkeypatch.setattr(defaults, "ASKER_BURST", 10**9)
    monkeypatch.setattr(defaults, "ALL_BURST", 10**9)
    assert hit_with_paying() == 1000


def test_all_dials_together_are_bounded() -> None:
    at = gate()
    went = 0
    for n in range(1000):
        ip = f"11.{n >> 8}.{n & 255}.9"
        went += ask(at, wanted(ip), PeerId(str(n)), seen=[ip], now=n / 100) == Go()
    assert went <= defaults.ALL_BURST + 10 * defaults.ALL_PER_S


def test_dial_backs_of_one_asker_are_bounded() -> None:
    at = gate()
    went = sum(ask(at, wanted(), now=n / 100) == Go() for n in range(1000))
    assert went <= defaults.ASKER_BURST + 1


def test_demands_are_forgotten() -> None:
    at = gate()
    for n in range(10000):
        ask(at, wanted(VICTIM), PeerId(str(n)))
    assert len(at._demands) == defaults.PAYMENTS


def test_one_asker_may_ask_for_several_at_once() -> None:
    """Each is paid for separately. Too many demands of one asker replace only its own."""
    at = gate()
    both = [(each, ask(at, wanted(VICTIM, transport=each))) for each in ("tcp", "udp")]
    ask(at, wanted(VICTIM), PeerId("other"))
    for each, demand in both:
        assert isinstance(demand, Pay)
        assert ask(at, wanted(VICTIM, transport=each), paid=demand.size) == Go()
    for port in range(2000, 2100):
        ask(at, wanted(VICTIM, port=port))
    assert len(at._demands) == defaults.PAYMENTS_PER_ASKER + 1


def test_a_nonce_arrives_once_it_is_awaited() -> None:
    awaited = Awaited()
    arrived: list[Place] = []
    first = defaults.DIALBACK_BYTE + NONCE
    source: Place = ("11.0.5.5", 1)
    assert not awaited.on_connection(first, source)
    awaited.expect(NONCE, arrived.append)
    for wrong in b"", b"\x01", b"\x16" + NONCE, first[:-1], b"\x01" + b"m" * 16:
        assert not awaited.on_connection(wrong, source)
    assert awaited.on_connection(first + b"and more", source)
    assert arrived == [source]
    awaited.forget(NONCE)
    assert not awaited.on_connection(first, source)


def test_awaited_is_bounded() -> None:
    awaited = Awaited()
    for n in range(1000):
        awaited.expect(n.to_bytes(16), lambda _: None)
    assert len(awaited._arrived) == defaults.AWAITED
