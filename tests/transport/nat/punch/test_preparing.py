"""Preparation of a round: where this side is seen now."""

import pytest
import trio

from shoal.transport.nat.punch.candidates import Candidate, CandidateKind, CandidateTransport
from shoal.transport.nat.punch.defaults import COMB, PunchLimits
from shoal.transport.nat.punch.needs import OwnNat
from shoal.transport.nat.punch.offer import Counting
from shoal.transport.nat.punch.predict import NatProfile
from shoal.transport.nat.punch.preparing import PreparedRound, is_stale, prepare, renewed, set_aside
from shoal.transport.nat.punch.sockets import Sockets
from shoal.transport.nat.reach.reachability import Behaviour
from tests.transport.nat.punch.street import APD, EI, Street

OLD = Candidate(("11.0.0.1", 4000), CandidateKind.OBSERVED, CandidateTransport.UDP)
TCP = Candidate(("11.0.0.1", 4001), CandidateKind.OBSERVED, CandidateTransport.TCP)
LAN = Candidate(("192.168.1.2", 4001), CandidateKind.LAN, CandidateTransport.UDP)


def own(nat: NatProfile, seen_at: float | None = 0.0) -> OwnNat:
    return OwnNat(nat, [OLD, TCP, LAN], [("11.0.9.1", 4001)], seen_at)


@pytest.mark.parametrize(
    ("nat", "seen_at", "stale"),
    [
        (NatProfile(EI, APD, preserves=True), None, False),
        (NatProfile(Behaviour.NONE, EI), None, False),
        (NatProfile(EI, EI), 95.0, False),
        (NatProfile(EI, EI), 50.0, True),
        (NatProfile(EI, EI), None, True),
        (NatProfile(APD, APD, counts=True), 99.9, True),
        (NatProfile(), 99.9, True),
        (NatProfile(udp=False), None, False),  # no observer would hear of it
    ],
)
def test_when_a_port_has_to_be_observed_again(
    nat: NatProfile, seen_at: float | None, stale: bool
) -> None:
    assert is_stale(own(nat, seen_at), 100.0, PunchLimits()) is stale


def test_new_views_replace_old_ones() -> None:
    found = renewed(own(NatProfile()), [("11.0.0.1", 5000)] * 3)
    new = Candidate(("11.0.0.1", 5000), CandidateKind.OBSERVED, CandidateTransport.UDP)
    assert found.candidates == [new, TCP, LAN]
    assert found.nat.mapping is EI
    assert renewed(own(NatProfile()), []) == PreparedRound(NatProfile(), [OLD, TCP, LAN])


def test_different_views_make_a_side_hard() -> None:
    views = [("11.0.0.1", 5000), ("11.0.0.1", 9000)]
    found = renewed(own(NatProfile()), views, [("11.0.0.1", 700), ("11.0.0.1", 60000)])
    assert found.nat.hard and not found.nat.counts and found.counting is None


def test_a_single_different_view_does_not_make_a_side_hard() -> None:
    """A router may redirect a single flow, and a single observer may lie."""
    views = [("11.0.0.1", 9000), *[("11.0.0.1", 5000)] * 2]
    found = renewed(own(NatProfile(EI, APD, preserves=True)), views)
    assert not found.nat.hard and found.nat.preserves
    assert [each.place[1] for each in found.candidates[:2]] == [5000, 9000]


def test_a_fresh_socket_shows_the_state_of_a_counting_nat() -> None:
    views = [("11.0.0.1", 5000), ("11.0.0.1", 5002)]  # of earlier times
    latest = [("11.0.0.1", 5100 + i) for i in range(3)]
    found = renewed(own(NatProfile(APD, APD, counts=True)), views, latest)
    assert found.nat.counts and found.counting == Counting("11.0.0.1", 5102, 1)
    alone = renewed(own(NatProfile(APD, APD, counts=True)), views[:1], latest[:1])
    assert not alone.nat.counts and alone.counting is None


def test_over_the_network_with_a_comb() -> None:
    async def body(street: Street) -> PreparedRound:
        side = street.a
        sockets = Sockets(side.puncher.tools, side.udp)
        mine = side.own(street.b.endpoint.peer)
        found: PreparedRound = await side.computer.run(
            prepare_both, mine, side.puncher.observing, sockets
        )
        assert len(side.puncher.tools.extra) == COMB
        sockets.close(keep=found.fresh[0])
        assert side.puncher.tools.extra == {found.fresh[0]}
        return found

    async def prepare_both(mine: OwnNat, observing: object, sockets: Sockets) -> PreparedRound:
        return await prepare(mine, observing, sockets, look=True, comb=True)  # type: ignore[arg-type]

    street = Street(("linux-drop", "public"))
    found = street.run(body)
    assert found.comb == [(street.a.gate.address, socket.port) for socket in found.fresh]  # type: ignore[union-attr]
    assert len(found.comb) == COMB


def test_silent_observers_cost_only_a_moment() -> None:
    async def body(street: Street) -> float:
        street.a.observers = [("11.99.0.1", 1)]
        side = street.a
        began = trio.current_time()
        mine = side.own(street.b.endpoint.peer)

        async def go() -> PreparedRound:
            sockets = Sockets(side.puncher.tools, side.udp)
            return await prepare(mine, side.puncher.observing, sockets, look=True, comb=False)

        found = await side.computer.run(go)
        assert found.candidates == mine.candidates
        return trio.current_time() - began

    assert Street(("linux-drop", "public")).run(body) < 1.0


def test_without_udp_or_observers_the_known_state_is_offered() -> None:
    mine = own(NatProfile())
    found = trio.run(lambda: prepare(mine, None, None, look=True, comb=True))
    assert found == PreparedRound(NatProfile(), mine.candidates)


@pytest.mark.parametrize(
    ("nat", "aside"),
    [
        (NatProfile(EI, APD, preserves=True), True),
        (NatProfile(EI, Behaviour.UNKNOWN, preserves=True), True),
        (NatProfile(EI, APD), False),  # its port outside would be unknown
        (NatProfile(EI, EI, preserves=True), False),  # nothing is searched from there
        (NatProfile(APD, APD, preserves=True), False),
        (NatProfile(Behaviour.NONE, EI, preserves=True), False),
    ],
)
def test_a_search_has_a_socket_of_its_own_where_ports_are_kept(
    nat: NatProfile, aside: bool
) -> None:
    async def body(street: Street) -> None:
        side = street.a

        async def go() -> PreparedRound:
            sockets = Sockets(side.puncher.tools, side.udp)
            return await set_aside(PreparedRound(nat, [LAN, TCP, OLD]), sockets)

        found = await side.computer.run(go)
        assert (found.aside is not None) is aside
        port = found.aside.port if found.aside is not None else 0
        assert found.search == (("11.0.0.1", port) if aside else None)
        assert port != side.udp.port

    Street(("linux-drop", "public")).run(body)
