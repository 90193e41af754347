"""Views of links: paths, rates, and why a link is not direct."""

from types import MappingProxyType

import pytest

from shoal.node.control.links import SYMMETRIC, link_view, look, relaying_view, why_relayed
from shoal.node.control.messages.encoding import encode
from shoal.transport.bytestream import PathKind
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.nat.punch.outcome import PunchOutcome, StrategyOutcome, StrategyResult, failed
from shoal.transport.relay.book import Asker
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.strategies.dialer import ALL_STRATEGIES, Dialer, Strategies
from tests.transport.fleet import make_node, running

PEER = PeerId("12D3KooWPeer")
SILENT = StrategyOutcome(StrategyResult.NO_ANSWER)
BOTH_DRAW = StrategyOutcome(StrategyResult.NOT_POSSIBLE, "symmetric-both")
SPARED = StrategyOutcome(StrategyResult.NOT_POSSIBLE, "search-spared")
BUSY = StrategyOutcome(StrategyResult.NOT_POSSIBLE, "busy")
NO_UDP = StrategyOutcome(StrategyResult.NOT_POSSIBLE, "no-udp")


def outcome(rounds: int = 1, **strategies: StrategyOutcome) -> PunchOutcome:
    return PunchOutcome(PEER, MappingProxyType(strategies), rounds)


@pytest.mark.parametrize(
    "path_kind", [None, *(path_kind for path_kind in PathKind if path_kind is not PathKind.RELAYED)]
)
def test_direct_link_needs_no_reason(path_kind: PathKind | None) -> None:
    assert why_relayed(path_kind, None, ALL_STRATEGIES) is None


@pytest.mark.parametrize(
    ("came", "words"),
    [
        (None, "has not been tried yet"),
        (outcome(tcp=StrategyOutcome(StrategyResult.WORKED)), "was lost"),
        (
            outcome(tcp=SILENT, udp=SILENT, prediction=BOTH_DRAW),
            SYMMETRIC,
        ),
        (
            outcome(tcp=SILENT, udp=SILENT, prediction=SPARED),
            "this link carries too little traffic",
        ),
        (
            outcome(
                3,
                tcp=StrategyOutcome(StrategyResult.REFUSED, "reset"),
                udp=SILENT,
                prediction=SILENT,
            ),
            "failed in 3 rounds: over TCP a router answered with resets; "
            "UDP got no reply",
        ),
        (
            outcome(tcp=SILENT, udp=StrategyOutcome(StrategyResult.NOT_POSSIBLE, "udp-blocked")),
            "TCP got no reply; one of the two networks blocks outgoing UDP",
        ),
        (outcome(tcp=SILENT, udp=NO_UDP), "this node has no UDP"),
        (
            outcome(tcp=SILENT, udp=SILENT, prediction=BUSY),
            "waits for another search to end",
        ),
        (failed(PEER, StrategyResult.REFUSED, "busy"), "one of the two nodes was busy"),
        (failed(PEER, StrategyResult.REFUSED, "unknown-method"), "cannot punch holes"),
        (failed(PEER, StrategyResult.REFUSED, "\x1b[31m" + "x" * 99), r"(code '\x1b[31mxxx"),
    ],
)  # fmt: skip
def test_why_a_link_is_relayed(came: PunchOutcome | None, words: str) -> None:
    why = why_relayed(PathKind.RELAYED, came, ALL_STRATEGIES)
    assert why is not None and words in why
    assert why.isascii() and why.isprintable() and len(why) < 200


def test_reason_when_hole_punching_is_switched_off() -> None:
    strategies = Strategies(punch_tcp=False, udp=False)
    assert (
        why_relayed(PathKind.RELAYED, None, strategies)
        == "hole punching is switched off on this node"
    )


@pytest.mark.trio
async def test_rates_cover_the_time_between_two_samples() -> None:
    a, b = make_node(1), make_node(2)
    dialer = Dialer(RealHost(), a.endpoint)
    async with running(a, b):
        link = await a.endpoint.dial(b.address, timeout=5)
        before = look(a.endpoint.links())
        await link.call("echo", payload=bytes(100_000), timeout=5)
        view = link_view(link, dialer, before, 2.0, 100.0)
        assert (view.path, view.medium, view.why_relayed) == ("loopback", "tcp", None)
        assert view.rate_out is not None and view.rate_in is not None
        assert 50_000 < view.rate_out < 60_000 and 50_000 < view.rate_in < 60_000
        assert [path.used for path in view.paths] == [True]
        fresh = link_view(link, dialer, {}, 2.0, 100.0)
        assert fresh.rate_in is None, "a link that began since then has no rate yet"
        other = {b.endpoint.peer: (b"another life", 0, 0)}
        assert link_view(link, dialer, other, 2.0, 100.0).rate_in is None


@pytest.mark.trio
async def test_relaying() -> None:
    host = RealHost()
    endpoint = Endpoint(host, Identity.from_seed(b"r" * 32), admission=OpenSwarm())
    assert encode(relaying_view(Dialer(host, endpoint))) == {
        "on": False, "allowed": True, "rate": 0, "places": 0, "circuits": 0, "strangers": 0,
        "bytes": 0, "refused": {},
    }  # fmt: skip
    limits = RelayLimits(volunteer=True, rate=5_000)
    dialer = Dialer(host, endpoint, relaying=limits)
    dialer.relaying.book.reserve(Asker("peer", "5.5.5.5", 0.0), 0.0)
    view = relaying_view(dialer)
    assert (view.on, view.rate, view.places) == (True, 5_000, 1)
