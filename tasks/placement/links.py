"""Links between members as shared facts: what a node reports, and what it believes. Pure functions.

Round trips are rounded to a few steps, and a report changes only if one has moved by two of them,
so that noise reaches no other node. A link counts as near only if both ends say so.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from ...state.defaults import LINKS
from ...state.membership.record import LinkSpeed, MemberRecord
from ...state.membership.roster import tag_of
from ...transport.identity import PeerId
from ..costs.rates import LinkRates
from .fleet import FAR, Pair, pair

STEPS_MS: Final = (
    0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 70.0, 100.0, 150.0,
    200.0, 300.0, 500.0, 1000.0, 2000.0, 5000.0,
)  # fmt: skip
"""Milliseconds to which round trips are rounded, always up."""
_MOVED: Final = 2


def report(
    trips: Mapping[PeerId, float], counted: Collection[PeerId], said: tuple[LinkSpeed, ...]
) -> tuple[LinkSpeed, ...]:
    """Return the links to report to the other members.

    `trips` has the round trips in seconds by linked peer, `counted` the peers whose links count,
    and `said` is the report that others have. Steps that have hardly moved stay as they are.
    """
    old = {link.tag: link for link in said}
    found = []
    for peer in sorted(counted & trips.keys())[:LINKS]:
        step = _step(1000 * trips[peer])
        before = old.get(tag_of(peer))
        if before is not None and abs(_step(before.round_trip_ms) - step) < _MOVED:
            found.append(before)
        else:
            found.append(LinkSpeed(tag_of(peer), STEPS_MS[step]))
    return tuple(found)


def _step(milliseconds: float) -> int:
    return min(bisect_left(STEPS_MS, milliseconds), len(STEPS_MS) - 1)


def links_between(members: Iterable[MemberRecord]) -> dict[Pair, LinkRates]:
    """Return the links between members as far as they are believed.

    Of two ends that differ the longer round trip and the lower rate count. A report of one end
    alone counts only if it makes the link worse than an unmeasured one: a member that claims to be
    near all others gains nothing.
    """
    known = {tag_of(record.peer): record for record in members}
    said = {
        (mine, link.tag): _rates(link) for mine, record in known.items() for link in record.links
    }
    found = {
        pair(known[mine].peer, known[theirs].peer): _worse(rates, said.get((theirs, mine), FAR))
        for (mine, theirs), rates in said.items()
        if theirs in known and theirs != mine
    }
    return dict(sorted(found.items()))


def _rates(link: LinkSpeed) -> LinkRates:
    return LinkRates(link.round_trip_ms / 1000, link.rate or FAR.rate)


def _worse(one: LinkRates, two: LinkRates) -> LinkRates:
    return LinkRates(max(one.round_trip_s, two.round_trip_s), min(one.rate, two.rate))
