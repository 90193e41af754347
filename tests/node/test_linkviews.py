"""Views of links: paths, rates, and why a link is not direct."""

from types import MappingProxyType

import pytest

from shoal.node.linkviews import SYMMETRIC, link_view, look, relaying_view, why_relayed
from shoal.transport.endpoint import Endpoint
from shoal.transport.hello import OpenSwarm
from shoal.transport.identity import Identity, PeerId
from shoal.transport.ladder import ALL_RUNGS, Ladder, Rungs
from shoal.transport.pipe import Way
from shoal.transport.punch.outcome import Outcome, Result, RungOutcome, failed
from shoal.transport.realhost import RealHost
from shoal.transport.relay.defaults import RelayLimits
from tests.transport.fleet import make_node, running

PEER = PeerId("12D3KooWPeer")
SILENT = RungOutcome(Result.NO_ANSWER)
BOTH_DRAW = RungOutcome(Result.NOT_POSSIBLE, "symmetric-both")
SPARED = RungOutcome(Result.NOT_POSSIBLE, "search-spared")
NO_UDP = RungOutcome(Result.NOT_POSSIBLE, "no-udp")


def outcome(rounds: int = 1, **rungs: RungOutcome) -> Outcome:
    return Outcome(PEER, MappingProxyType(rungs), rounds)


@pytest.mark.parametrize("way", [None, *(way for way in Way if way is not Way.RELAYED)])
def test_direct_link_needs_no_reason(way: Way | None) -> None:
    assert why_relayed(way, None, ALL_RUNGS) is None


@pytest.mark.parametrize(
    ("came", "words"),
    [
        (None, "has not been tried yet"),
        (outcome(tcp=RungOutcome(Result.WORKED)), "was lost"),
        (
            outcome(tcp=SILENT, udp=SILENT, prediction=BOTH_DRAW),
            SYMMETRIC,
        ),
        (
            outcome(tcp=SILENT, udp=SILENT, prediction=SPARED),
            "this link carries too little traffic",
        ),
        (
            outcome(3, tcp=RungOutcome(Result.REFUSED, "reset"), udp=SILENT, prediction=SILENT),
            "failed in 3 rounds: over TCP a router answered with resets; "
            "UDP got no reply",
        ),
        (
            outcome(tcp=SILENT, udp=RungOutcome(Result.NOT_POSSIBLE, "udp-blocked")),
            "TCP got no reply; one of the two networks blocks outgoing UDP",
        ),
        (outcome(tcp=SILENT, udp=NO_UDP), "this node has no UDP"),
        (
            outcome(tcp=SILENT, udp=SILENT, prediction=RungOutcome(Result.NOT_POSSIBLE, "busy")),
            "waits for another search to end",
        ),
        (failed(PEER, Result.REFUSED, "busy"), "one of the two nodes was busy"),
        (failed(PEER, Result.REFUSED, "unknown-method"), "cannot punch holes"),
        (failed(PEER, Result.REFUSED, "\x1b[31m" + "x" * 99), r"(code '\x1b[31mxxx"),
    ],
)  # fmt: skip
def test_why_a_link_is_relayed(came: Outcome | None, words: str) -> None:
    why = why_relayed(Way.RELAYED, came, ALL_RUNGS)
    assert why is not None and words in why
    assert why.isascii() and why.isprintable() and len(why) < 200


def test_reason_when_hole_punching_is_switched_off() -> None:
    rungs = Rungs(punch_tcp=False, udp=False)
    assert why_relayed(Way.RELAYED, None, rungs) == "hole punching is switched off on this node"


@pytest.mark.trio
async def test_rates_cover_the_time_between_two_samples() -> None:
    a, b = make_node(1), make_node(2)
    ladder = Ladder(RealHost(), a.endpoint)
    async with running(a, b):
        link = await a.endpoint.dial(b.address, timeout=5)
        before = look(a.endpoint.links())
        await link.call("echo", payload=bytes(100_000), timeout=5)
        view = link_view(link, ladder, before, 2.0, 100.0)
        assert (view["path"], view["medium"], view["why_relayed"]) == ("loopback", "tcp", None)
        assert 50_000 < view["rate_out"] < 60_000 and 50_000 < view["rate_in"] < 60_000
        assert [leg["used"] for leg in view["legs"]] == [True]
        fresh = link_view(link, ladder, {}, 2.0, 100.0)
        assert fresh["rate_in"] is None, "a link that began since then has no rate yet"
        other = {b.endpoint.peer: (b"another life", 0, 0)}
        assert link_view(link, ladder, other, 2.0, 100.0)["rate_in"] is None


@pytest.mark.trio
async def test_relaying() -> None:
    host = RealHost()
    endpoint = Endpoint(host, Identity.from_seed(b"r" * 32), admission=OpenSwarm(), libp2p=False)
    assert relaying_view(Ladder(host, endpoint)) == {
        "on": False, "allowed": True, "rate": 0, "places": 0, "circuits": 0, "strangers": 0,
        "bytes": 0, "refused": {},
    }  # fmt: skip
    limits = RelayLimits(volunteer=True, rate=5_000)
    ladder = Ladder(host, endpoint, relaying=limits)
    ladder.relaying.book.reserve("peer", "5.5.5.5", 0.0, member=True)
    view = relaying_view(ladder)
    assert (view["on"], view["rate"], view["places"]) == (True, 5_000, 1)
