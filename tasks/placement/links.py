"""Links between members as shared facts: what a node reports, and what it believes. Pure functions.

Round trips are rounded to steps of a tenth, and a report changes only if one has moved by half, so
that noise reaches no other node. A link counts as near only if both ends say so.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from math import inf
from typing import Final, NamedTuple

from ...state.defaults import LINKS
from ...state.membership.record import LinkSpeed, MemberRecord
from ...state.membership.roster import tag_of
from ...transport.identity import PeerId
from ..costs.links import between
from ..costs.rates import LinkRates
from .fleet import FAR, Pair, pair

STEPS_MS: Final = tuple(float(f"{0.25 * 1.1**step:.3g}") for step in range(105))
"""Milliseconds to which round trips are rounded, always up."""
_MOVED: Final = 5
"""Steps: a round trip is reported again when it has changed by a factor of 1.5 to 1.6."""
_RATE_MOVED: Final = 2.5
_MEETINGS: Final = 32
"""Members among which links that no end reports are estimated."""
_REPORTS: Final = 4096
"""Members whose reports are remembered."""


def report(
    links: Mapping[PeerId, LinkRates], counted: Collection[PeerId], said: tuple[LinkSpeed, ...]
) -> tuple[LinkSpeed, ...]:
    """Return the links to report to the other members.

    `links` has the measured ones by linked peer, `counted` the peers whose links count, and `said`
    is the report that others have. It stays as it is while all links have hardly changed, and is
    new in all links if one has changed, which costs no more.
    """
    new = tuple(
        LinkSpeed(tag_of(peer), _rounded(links[peer]), float(f"{links[peer].rate:.0e}"))
        for peer in sorted(counted & links.keys())[:LINKS]
    )
    old = {link.tag: link for link in said}
    same = len(new) == len(old) and all(link.tag in old for link in new)
    return said if same and not any(_has_moved(old[link.tag], link) for link in new) else new


def _rounded(link: LinkRates) -> float:
    """Return the milliseconds of a round trip, rounded up to a step."""
    return STEPS_MS[_step(1000 * link.round_trip_s)]


def _has_moved(old: LinkSpeed, new: LinkSpeed) -> bool:
    steps = abs(_step(old.round_trip_ms) - _step(new.round_trip_ms))
    low, high = sorted((old.rate, new.rate))
    return steps >= _MOVED or high > _RATE_MOVED * low


def _step(milliseconds: float) -> int:
    return min(bisect_left(STEPS_MS, milliseconds), len(STEPS_MS) - 1)


class _Report(NamedTuple):
    """The links that a member reports. `trips` are round trips in seconds, and `rates` byte/s, by
    the tags of peers."""

    links: tuple[LinkSpeed, ...]
    tag: bytes
    trips: dict[bytes, float]
    rates: dict[bytes, float]


class ReportedTrips:
    """Round trips between members as both ends report them, for many questions in a row."""

    def __init__(self) -> None:
        self._reports: OrderedDict[PeerId, _Report] = OrderedDict()
        self._tagged: dict[bytes, _Report] = {}

    def between(self, one: MemberRecord, other: MemberRecord) -> float:
        """Return a round trip in seconds, 0 if not both ends report it: a member that claims to be
        near all others gains nothing. If they differ, the longer one counts."""
        mine, theirs = self._of(one), self._of(other)
        there, back = mine.trips.get(theirs.tag, 0.0), theirs.trips.get(mine.tag, 0.0)
        return max(there, back) if there and back else 0.0

    def bounds(self, one: MemberRecord, other: MemberRecord) -> tuple[float, float]:
        """Return the shortest and the longest round trip in seconds that two members can have, by
        those that both have with third ones: (0, infinity) if there are none.

        Third ones are members that these questions were about before.
        """
        mine, theirs = self._of(one), self._of(other)
        low, high = 0.0, inf
        for tag in sorted(mine.trips.keys() & theirs.trips.keys()):
            third = self._tagged.get(tag)
            if third and mine.tag in third.trips and theirs.tag in third.trips:
                there = max(mine.trips[tag], third.trips[mine.tag])
                back = max(theirs.trips[tag], third.trips[theirs.tag])
                low, high = max(low, abs(there - back)), min(high, there + back)
        return low, high

    def rate(self, one: MemberRecord, other: MemberRecord) -> float:
        """Return the byte/s of a link, 0 if not both ends report them. The lower ones count."""
        mine, theirs = self._of(one), self._of(other)
        there, back = mine.rates.get(theirs.tag, 0.0), theirs.rates.get(mine.tag, 0.0)
        return min(there, back)

    def _of(self, record: MemberRecord) -> _Report:
        found = self._reports.get(record.peer)
        if found is None or found.links is not record.links:
            trips = {link.tag: link.round_trip_ms / 1000 for link in record.links}
            rates = {link.tag: link.rate for link in record.links}
            tag = tag_of(record.peer)
            found = self._reports[record.peer] = _Report(record.links, tag, trips, rates)
            self._tagged[tag] = found
            if len(self._reports) > _REPORTS:
                _, old = self._reports.popitem(last=False)
                self._tagged.pop(old.tag, None)
        return found


def links_between(members: Iterable[MemberRecord]) -> dict[Pair, LinkRates]:
    """Return the links between members as far as they are believed.

    Of two ends that differ the longer round trip and the lower rate count. A report of one end
    alone counts only if it makes the link worse than an unmeasured one: a member that claims to be
    near all others gains nothing. Other links are estimated over the nearest third member.
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
    peers = sorted(record.peer for record in known.values())[:_MEETINGS]
    return dict(sorted((_estimated(found, peers) | found).items()))


def _estimated(links: Mapping[Pair, LinkRates], peers: Sequence[PeerId]) -> dict[Pair, LinkRates]:
    """Return estimates of the links that are missing between peers with links to a common one."""
    found: dict[Pair, LinkRates] = {}
    for one, two in combinations(peers, 2):
        if (one, two) in links:
            continue
        ways = [
            (a.round_trip_s + b.round_trip_s, third, a, b)
            for third in peers
            if (a := links.get(pair(one, third))) and (b := links.get(pair(third, two)))
        ]
        if ways:
            _, _, a, b = min(ways, key=lambda way: way[:2])
            found[one, two] = between(a, b)
    return found


def _rates(link: LinkSpeed) -> LinkRates:
    return LinkRates(link.round_trip_ms / 1000, link.rate or FAR.rate)


def _worse(one: LinkRates, two: LinkRates) -> LinkRates:
    return LinkRates(max(one.round_trip_s, two.round_trip_s), min(one.rate, two.rate))
