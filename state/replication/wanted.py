"""Scheduler of pulls: missing entries, the peers that offer them, and which peer to ask next.

A feed is pulled from one peer at a time. If that pull fails or is slow, two other peers are asked,
because over far links each useless pull costs a second. The number of concurrent pulls is limited.
The peer with the fewest pulls in flight comes first, then the one asked least recently, so a liar
that offers everything delays no other peer. A link may have further pulls, which hide the latency
of far peers, but capacity stays reserved for first pulls. Authors that recently sent many entries
wait, which only delays them. No I/O.

Feeds of patient kinds, which all members write when they join, are pulled within a budget: a number
at once, enough for a small swarm, and then a few every few seconds. Each feed counts as one,
whatever its size. If bytes counted, a few peers with large feeds could spend the budget for
minutes. A feed whose pull brought nothing does not count.
"""

from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from ...transport.identity import PeerId
from ...transport.rates import Bucket, Rate
from .. import defaults
from ..feeds.digest import Plot
from .gossip import Told

Place = tuple[bytes, Plot]
"""A feed by its author's public key, its kind and part."""


@dataclass(frozen=True, slots=True)
class Pull:
    """One request to a peer for several feeds."""

    peer: PeerId
    places: tuple[Place, ...]
    since: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """The latest request for a feed."""

    since: float
    beside: bool  # another peer may be asked as well

    def late(self, now: float, patience: float) -> bool:
        return now - self.since >= patience


@dataclass(slots=True)
class _Teller:
    told: dict[Place, Told] = field(default_factory=dict)  # offers that were missing here
    patient: dict[Place, Told] = field(default_factory=dict)  # the same of patient kinds
    vain: dict[Told, float] = field(default_factory=dict)  # until when not to ask again
    asked: float = -inf  # time of the last request
    busy: int = 0  # pulls under way
    rests: float = -inf  # until when not to ask for patient kinds
    asking: set[Place] = field(default_factory=set)
    """Feeds in flight from this peer. A second request over the same link would be no faster."""

    def lot(self, place: Place) -> dict[Place, Told]:
        """Return the table that contains this peer's offers of a feed."""
        return self.patient if is_patient(place[1]) else self.told

    @property
    def count(self) -> int:
        return len(self.told) + len(self.patient)


def is_patient(plot: Plot) -> bool:
    """Whether all members write this kind when they join, and no user request waits for it."""
    return plot[0] in defaults.NEWS_PATIENT


class Wanted:
    """The missing feeds of one node.

    `lacks` returns whether an offer is still news. `draw(n)` returns a random number below n.
    """

    def __init__(self, lacks: Callable[[Told], bool], draw: Callable[[int], int]) -> None:
        self._lacks = lacks
        self._draw = draw
        self._tellers: dict[PeerId, _Teller] = {}
        self._telling: dict[PeerId, _Teller] = {}  # peers that may offer something missing
        self._pulls: list[Pull] = []  # under way
        self._asked: dict[Place, _Asked] = {}  # under way
        self._free_at: dict[bytes, float] = {}  # by author: when its rate allows more
        self._look_at = inf  # when to choose again, because some offers were not looked at
        self._took = defaults.PULL_PATIENCE[1]  # recent duration of a successful pull, seconds
        self._paced: dict[bytes, None] = {}  # authors that wait for their rate
        self._budget = Bucket(Rate(*defaults.PATIENT_LOTS), 0.0)  # for feeds of patient kinds

    def tellers(self, place: Place) -> dict[PeerId, Told]:
        """Return the peers that offer missing entries of a feed, with their offers."""
        return {
            peer: teller.lot(place)[place]
            for peer, teller in self._tellers.items()
            if place in teller.lot(place)
        }

    def lacks_of(self, peer: PeerId, key: bytes) -> bool:
        """Whether a peer offers entries by this author that are missing here."""
        teller = self._tellers.get(peer)
        return teller is not None and any(
            place[0] == key and self._lacks(told)
            for lot in (teller.told, teller.patient)
            for place, told in lot.items()
        )

    def spent(self, now: float) -> bool:
        """Whether the budget for feeds of patient kinds is used up."""
        return not self._budget.has(now)

    def waits(self, peer: PeerId, now: float, turn: bool) -> bool:
        """Whether to skip patient kinds in a comparison with a peer.

        They are skipped if the budget is used up, unless it is the peer's `turn` and it offers none
        so far.
        """
        teller = self._tellers.get(peer)
        return self.spent(now) and not (turn and (teller is None or not teller.patient))

    def room(self, peer: PeerId) -> int:
        """Return how many more offers of this peer are remembered."""
        teller = self._tellers.get(peer)
        return defaults.TOLD if teller is None else defaults.TOLD - teller.count

    def heard(self, peer: PeerId, heads: Iterable[Told], now: float) -> None:
        """Note a peer's heads that this node lacks, in random order.

        So the nodes that it told each pull a different part first, and get the rest from each
        other.
        """
        teller = self._tellers.setdefault(peer, _Teller())
        lacking = [told for told in heads if self._lacks(told)]
        for left in range(len(lacking), 0, -1):
            told = lacking.pop(self._draw(left))
            if teller.vain.get(told, now) <= now:
                lot = teller.lot((told.key, told.plot))
                lot[told.key, told.plot] = told
                if teller.count > defaults.TOLD:
                    del lot[next(iter(lot))]
        if teller.count:
            self._telling[peer] = teller

    def next(self, now: float) -> list[Pull]:
        """Return the pulls to start now. Call `ended` at the end of each."""
        self._look_at = inf
        self._telling = {peer: teller for peer, teller in self._telling.items() if teller.count}
        idle = [item for item in self._telling.items() if item[1].busy < defaults.PULLS_OF_ONE]
        if not idle:
            return []
        found: list[Pull] = []
        under_way = self._under_way(now)
        looks = max(defaults.LOOKED_AT // 2 // len(idle), defaults.PULL_FEEDS)
        patient = self._patient_room(now)
        for peer, teller in sorted(idle, key=lambda item: (item[1].busy, item[1].asked)):
            most = defaults.PULLS_MORE if teller.busy else defaults.PULLS
            if under_way + len(found) >= most:
                break
            places = self._choose(teller, teller.told, looks, defaults.PULL_FEEDS, now)
            room = min(patient, defaults.PULL_FEEDS - len(places))
            some: list[Place] = []
            if room and now >= teller.rests:
                some = self._choose(teller, teller.patient, looks, room, now)
            patient -= len(some)
            self._budget.take(now, len(some) / defaults.PATIENT_LOT)
            places += some
            waiting = teller.count if patient else len(teller.told)
            if len(places) == defaults.PULL_FEEDS or (not places and waiting >= looks):
                self._look_at = now + defaults.LOOK_AGAIN
            if places:
                found.append(self._begin(Pull(peer, tuple(places), now), teller))
        return found

    def _begin(self, pull: Pull, teller: _Teller) -> Pull:
        self._pulls.append(pull)
        teller.busy += 1
        teller.asking.update(pull.places)
        teller.asked = pull.since
        patience = self._patience()
        for place in pull.places:
            before = self._asked.get(place)
            beside = before is not None and before.late(pull.since, patience)
            self._asked[place] = _Asked(pull.since, beside)
        return pull

    def _under_way(self, now: float) -> int:
        """Return the number of pulls in flight, without those that take too long."""
        late = now - self._patience()
        return sum(pull.since > late for pull in self._pulls)

    def _patient_room(self, now: float) -> int:
        """Return how many feeds of patient kinds may be asked for now: none, or at least
        PATIENT_LOT."""
        level = self._budget.level(now)
        return int(level * defaults.PATIENT_LOT) if level >= 1 else 0

    def _choose(
        self, teller: _Teller, lot: dict[Place, Told], looks: int, most: int, now: float
    ) -> list[Place]:
        """Return the feeds to ask a peer for, at most `most`.

        At most `looks` offers are checked. They move to the end, so that the next call checks
        others.
        """
        places: list[Place] = []
        patience = self._patience()
        for place in list(islice(lot, looks)):
            told = lot.pop(place)
            if not self._lacks(told):
                continue
            lot[place] = told
            if place in teller.asking:
                continue
            asked = self._asked.get(place)
            if self._free_at.get(place[0], now) - now <= defaults.AUTHOR_BURST_S and (
                asked is None or asked.beside or asked.late(now, patience)
            ):
                places.append(place)
                if len(places) == most:
                    break
        return places

    def _patience(self) -> float:
        least, most = defaults.PULL_PATIENCE
        return min(max(defaults.PULL_TIMES * self._took, least), most)

    def next_at(self, now: float) -> float:
        """Return when `next` may find more than now, if nothing else happens."""
        budget = now if self._budget.has(now) else self._budget.due
        patient = (max(budget, one.rests) for one in self._telling.values() if one.patient)
        lots = min((when for when in patient if when > now), default=inf)
        if not self._asked and not self._paced:
            return min(self._look_at, lots)
        patience = self._patience()
        late = (asked.since + patience for asked in self._asked.values())
        over = now + defaults.AUTHOR_BURST_S
        self._paced = {key: None for key in self._paced if self._free_at[key] > over}
        paced = (self._free_at[key] - defaults.AUTHOR_BURST_S for key in self._paced)
        return min(
            (when for when in (*late, *paced, lots, self._look_at) if when > now), default=inf
        )

    def came(self, key: bytes, size: int, now: float) -> None:
        """Count `size` bytes of entries from an author against its rate."""
        when = max(self._free_at.pop(key, 0.0), now) + size / defaults.AUTHOR_RATE
        self._free_at[key] = when
        if when - now > defaults.AUTHOR_BURST_S:
            self._paced[key] = None
        if len(self._free_at) > defaults.PACED:
            oldest = next(iter(self._free_at))
            del self._free_at[oldest]
            self._paced.pop(oldest, None)

    def ended(
        self, pull: Pull, vain: Container[Place], now: float, left: Collection[Place] = ()
    ) -> None:
        """End a pull.

        Feeds in `vain` are not asked of this peer again soon. Those in `left` did not fit into the
        reply. If all are left, the peer has used up its budget for giving.
        """
        for place in pull.places:
            self._asked.pop(place, None)
        back = sum(is_patient(at[1]) and (at in vain or at in left) for at in pull.places)
        self._budget.give(now, back / defaults.PATIENT_LOT)
        if pull not in self._pulls:
            return  # its link has ended
        self._pulls.remove(pull)
        teller = self._tellers[pull.peer]
        teller.busy -= 1
        teller.asking.difference_update(pull.places)
        if len(left) == len(pull.places):
            teller.rests = now + defaults.VAIN_S
        if not all(place in vain or place in left for place in pull.places):
            self._took += (now - pull.since - self._took) / defaults.PULLS_TOOK
        for place in pull.places:
            told = teller.lot(place).get(place)
            if told is None or not (place in vain and self._lacks(told)):
                continue
            del teller.lot(place)[place]
            teller.vain[told] = now + defaults.VAIN_S
            if len(teller.vain) > defaults.TOLD:
                del teller.vain[next(iter(teller.vain))]

    def settle(self, place: Place) -> None:
        """Remove the offers of a feed that are no longer missing, after entries arrived."""
        for teller in self._tellers.values():
            lot = teller.lot(place)
            told = lot.get(place)
            if told is not None and not self._lacks(told):
                del lot[place]

    def lost(self, peer: PeerId) -> None:
        """Forget a peer whose link has ended."""
        self._tellers.pop(peer, None)
        self._telling.pop(peer, None)
        self._pulls = [pull for pull in self._pulls if pull.peer != peer]
