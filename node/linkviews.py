"""What the control socket shows of links: their paths, their rates, and why one is not direct."""

from collections.abc import Mapping
from typing import Any, Final

from ..transport.identity import PeerId
from ..transport.ladder import Ladder, Rungs
from ..transport.link import Link
from ..transport.linkstatus import LegStatus
from ..transport.pipe import Way
from ..transport.punch.outcome import Outcome, Result, RungOutcome
from ..transport.relay.defaults import RelayLimits

Looked = Mapping[PeerId, tuple[bytes, int, int]]
"""At one moment, by peer: the peer's incarnation, bytes in, bytes out."""

SYMMETRIC: Final = (
    "both routers give every peer another port, which cannot be foreseen (symmetric NAT): it "
    "cannot be direct"
)
SPARED: Final = (
    "one of the two routers gives every peer another port, and nothing uses this link enough to "
    "search for it"
)
_REFUSALS: Final = {
    "busy": "one of the two was busy with other attempts; it is tried again later",
    "too-often": "it was tried often lately; it is tried again later",
    "glare": "both sides began at once; it is tried again later",
    "timeout": "the peer did not answer when it was asked to try",
    "unknown-method": "the peer cannot punch holes: it may be of an older version",
    "not-running": "one of the two was only starting, or ending; it is tried again later",
}
_TCP: Final = {
    "reset": "over TCP a router answered with resets",
    "budget": "TCP was tried often enough for now",
    "no-address": "no address of the peer is known that TCP could dial",
}
_UDP: Final = {
    "quic": "UDP came through, QUIC on it had no answer",
    "no-udp": "this node has no UDP port",
    "udp-blocked": "UDP does not get out of one of the two networks",
}
SHOWN_CODE: Final = 32  # characters of a peer's own code


def look(links: list[Link]) -> Looked:
    """What the rates are made of; taken twice."""
    found = {}
    for link in links:
        status = link.status
        found[link.peer] = (status.peer_incarnation, status.bytes_in, status.bytes_out)
    return found


def link_view(link: Link, ladder: Ladder, before: Looked, span: float, now: float
              ) -> dict[str, Any]:  # fmt: skip
    """One link; rates in bytes per second over the last `span` seconds."""
    status = link.status
    name, was_in, was_out = before.get(link.peer, (b"", 0, 0))
    known = name == status.peer_incarnation and span > 0
    used = next((leg for leg in status.legs if leg.used), None)
    return {
        "peer": link.peer,
        "path": status.path,
        "medium": used.medium if used is not None else None,
        "rtt_ms": _ms(status.rtt),
        "rate_in": (status.bytes_in - was_in) / span if known else None,
        "rate_out": (status.bytes_out - was_out) / span if known else None,
        "bytes_in": status.bytes_in,
        "bytes_out": status.bytes_out,
        "linked_s": now - status.since,
        "legs": [_leg_view(leg) for leg in status.legs],
        "why_relayed": why_relayed(link.way, ladder.outcome(link.peer), ladder.rungs),
    }


def _leg_view(leg: LegStatus) -> dict[str, Any]:
    return {
        "path": leg.way.value,
        "medium": leg.medium,
        "address": f"{leg.address[0]} port {leg.address[1]}" if leg.address[0] else None,
        "rtt_ms": _ms(leg.rtt),
        "used": leg.used,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def why_relayed(way: Way | None, outcome: Outcome | None, rungs: Rungs) -> str | None:
    """Why a link goes through a relay, in a sentence; None where it does not."""
    if way is not Way.RELAYED:
        return None
    if not (rungs.punch_tcp or (rungs.punch_udp and rungs.udp)):
        return "hole punching is switched off on this node"
    if outcome is None:
        return "a direct path has not been tried yet"
    if outcome.worked:
        return "a direct path was there and is lost; another one is tried for"
    tcp, udp, prediction = (
        outcome.rungs.get(name, RungOutcome(Result.NOT_NEEDED))
        for name in ("tcp", "udp", "prediction")
    )
    if tcp == udp == prediction and tcp.reason:
        code = tcp.reason[:SHOWN_CODE]
        return _REFUSALS.get(code, f"the peer did not take part (code {code!a})")
    if prediction.reason == "symmetric-both":
        return SYMMETRIC
    if prediction.reason == "search-spared":
        return SPARED
    rounds = f" in {outcome.rounds} rounds" if outcome.rounds > 1 else ""
    words = [_TCP.get(tcp.reason, "TCP had no answer"), _UDP.get(udp.reason, "UDP had no answer")]
    if prediction.reason == "busy":
        words.append("the search for the router's port waits for another one to end")
    return f"hole punching did not come through{rounds}: {'; '.join(words)}"


def relay_views(ladder: Ladder, now: float) -> list[dict[str, Any]]:
    """The relays at which this node holds a place, the nearest first."""
    return [
        {"peer": held.relay, "rtt_ms": held.rtt * 1000, "expires_s": held.expires - now}
        for held in ladder.relays.relays
    ]


def relaying_view(ladder: Ladder) -> dict[str, Any]:
    """What this node carries for others; `rate` is what it lends, in bytes per second."""
    book = ladder.relaying.book
    limits: RelayLimits = book.limits
    figures = book.figures()
    return {
        "on": book.lends,
        "allowed": limits.rate > 0,
        "rate": limits.rate if book.lends else 0,
        "places": figures.reservations,
        "circuits": figures.circuits,
        "strangers": figures.stranger_circuits,
        "bytes": figures.relayed,
        "refused": figures.refused,
    }
