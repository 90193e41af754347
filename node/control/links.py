"""Describes links in messages of the control socket: their paths, their rates, and why a link is
not direct."""

from collections.abc import Mapping
from typing import Final

from ...transport.bytestream import PathKind
from ...transport.identity import PeerId
from ...transport.link.link import Link
from ...transport.link.status import PathStatus
from ...transport.nat.punch.outcome import PunchOutcome, StrategyOutcome, StrategyResult
from ...transport.strategies.dialer import Dialer, Strategies
from .messages.reach import HeldRelay, LinkView, PathView, Relaying

Looked = Mapping[PeerId, tuple[bytes, int, int]]
"""By peer: (incarnation of the peer, bytes received, bytes sent) at one moment."""

SYMMETRIC: Final = (
    "both routers use another port for every peer, in no predictable order (symmetric NAT), so no "
    "direct path is possible"
)
SPARED: Final = (
    "one of the two routers uses another port for every peer, and this link carries too little "
    "traffic to search for it"
)
_REFUSALS: Final = {
    "busy": "one of the two nodes was busy with other attempts; it is retried later",
    "too-often": "it was tried often lately; it is retried later",
    "glare": "both sides began at once; it is retried later",
    "timeout": "the peer did not reply to the request to try",
    "unknown-method": "the peer cannot punch holes: it may be of an older version",
    "not-running": "one of the two nodes was starting or stopping; it is retried later",
}
_TCP: Final = {
    "reset": "over TCP a router answered with resets",
    "budget": "TCP has used up its attempts for now",
    "no-address": "no address of the peer is known that TCP could dial",
}
_UDP: Final = {
    "quic": "UDP came through, but QUIC on it got no reply",
    "no-udp": "this node has no UDP port",
    "udp-blocked": "one of the two networks blocks outgoing UDP",
}
SHOWN_CODE: Final = 32  # characters shown of a code that a peer sent


def look(links: list[Link]) -> Looked:
    """Return the current byte counts of the links. The rates follow from two such samples."""
    found = {}
    for link in links:
        status = link.status
        found[link.peer] = (status.peer_incarnation, status.bytes_in, status.bytes_out)
    return found


def link_view(link: Link, dialer: Dialer, before: Looked, span: float, now: float) -> LinkView:
    """Describe a link.

    `before` is a sample of byte counts that was made `span` seconds ago. The rates are the averages
    since then, in bytes per second. `now` is in seconds on the host's clock.
    """
    status = link.status
    name, was_in, was_out = before.get(link.peer, (b"", 0, 0))
    known = name == status.peer_incarnation and span > 0
    used = next((path for path in status.paths if path.used), None)
    return LinkView(
        peer=link.peer,
        path=status.path,
        medium=used.medium if used is not None else None,
        rtt_ms=_ms(status.rtt),
        rate_in=(status.bytes_in - was_in) / span if known else None,
        rate_out=(status.bytes_out - was_out) / span if known else None,
        bytes_in=status.bytes_in,
        bytes_out=status.bytes_out,
        linked_s=now - status.since,
        paths=tuple(_path_view(path) for path in status.paths),
        why_relayed=why_relayed(link.path_kind, dialer.outcome(link.peer), dialer.strategies),
    )


def _path_view(path: PathStatus) -> PathView:
    return PathView(
        path=path.path_kind.value,
        medium=path.medium,
        address=f"{path.address[0]} port {path.address[1]}" if path.address[0] else None,
        rtt_ms=_ms(path.rtt),
        used=path.used,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def why_relayed(
    path_kind: PathKind | None, outcome: PunchOutcome | None, strategies: Strategies
) -> str | None:
    """Return a sentence that explains why a link goes through a relay. Returns None if the link is
    not relayed."""
    if path_kind is not PathKind.RELAYED:
        return None
    if not (strategies.punch_tcp or (strategies.punch_udp and strategies.udp)):
        return "hole punching is switched off on this node"
    if outcome is None:
        return "a direct path has not been tried yet"
    if outcome.worked:
        return "the direct path was lost; another one is being tried"
    tcp, udp, prediction = (
        outcome.strategies.get(name, StrategyOutcome(StrategyResult.NOT_NEEDED))
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
    words = [_TCP.get(tcp.reason, "TCP got no reply"), _UDP.get(udp.reason, "UDP got no reply")]
    if prediction.reason == "busy":
        words.append("the search for the router's port waits for another search to end")
    return f"hole punching failed{rounds}: {'; '.join(words)}"


def relay_views(dialer: Dialer, now: float) -> tuple[HeldRelay, ...]:
    """Describe the relays at which this node has a reservation, in the order of their round-trip
    times, shortest first."""
    return tuple(
        HeldRelay(held.relay, held.rtt * 1000, held.expires - now) for held in dialer.relays.relays
    )


def relaying_view(dialer: Dialer) -> Relaying:
    """Describe the traffic that this node relays for others. The `rate` of the result is the limit,
    in bytes per second."""
    book = dialer.relaying.book
    figures = book.figures()
    return Relaying(
        on=book.lends,
        allowed=book.limits.rate > 0,
        rate=book.limits.rate if book.lends else 0,
        places=figures.reservations,
        circuits=figures.circuits,
        strangers=figures.stranger_circuits,
        bytes=figures.relayed,
        refused=figures.refused,
    )
