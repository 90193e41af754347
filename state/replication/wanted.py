"""Scheduler of pulls: which entries are missing, which peers offer them, and which to ask next.

A feed is pulled from one peer at a time. If that pull fails or is slow, two other peers are asked;
not more, because over long distances each useless pull costs a second.

The number of concurrent pulls is limited. The peer with the fewest pulls in flight is asked first,
and of equal peers the one asked least recently, so that a liar that offers everything delays no
other peer. One link may have several pulls in flight, which hide the latency of distant peers, but
some capacity is reserved for peers without a pull. Feeds of authors that recently sent many entries
wait, which delays them but loses nothing. No I/O.

Patient kinds are kinds of feeds that no user request waits for, and that all members write when
they join. Feeds of these kinds are pulled within a budget: a number at once, enough for a small
swarm, and then a few every few seconds. Once half of the budget is used up, less than a lot of
feeds waits some seconds for more, because news of joining members come one by one. Each feed counts
as one, whatever its size. If bytes counted, a few peers with large feeds could use up the budget
for minutes. A feed whose pull brought
nothing does not count.
"""

from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from ...transport.identity import PeerId
from ...transport.rates import Rate, RateLimiter
from .. import defaults
from ..feeds.digest import Plot
from .gossip import Told

Place = tuple[bytes, Plot]
"""A feed: (author's public key, plot). A plot is a kind and one of its parts."""


@dataclass(frozen=True, slots=True)
class Pull:
    """One request to a peer for entries of several feeds."""

    peer: PeerId
    places: tuple[Place, ...]
    since: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """The latest pull in flight for a feed."""

    since: float
    beside: bool  # another peer may be asked as well

    def late(self, now: float, patience: float) -> bool:
        return now - self.since >= patience


@dataclass(slots=True)
class _Teller:
    """The offers of one peer, and the pulls from it."""

    told: dict[Place, Told] = field(default_factory=dict)  # offers of missing entries
    patient: dict[Place, Told] = field(default_factory=dict)  # such offers of patient kinds
    # offers that brought nothing, and until when not to ask for them
    vain: dict[Told, float] = field(default_factory=dict)
    asked: float = -inf  # time of the last request
    busy: int = 0  # pulls under way
    rests: float = -inf  # until when the peer is not asked for patient kinds
    gives: RateLimiter = field(
        default_factory=lambda: RateLimiter(Rate(*defaults.PATIENT_GIVEN[0]), 0.0)
    )
    """Feeds of patient kinds that the peer gives this node by its own budget."""
    asking: set[Place] = field(default_factory=set)
    """Feeds in flight from this peer. A second request over the same link would be no faster."""

    def lot(self, place: Place) -> dict[Place, Told]:
        """Return the table in which this peer's offer of a feed is stored."""
        return self.patient if is_patient(place[1]) else self.told

    @property
    def count(self) -> int:
        return len(self.told) + len(self.patient)

    def spend(self, feeds: int, now: float) -> None:
        """Record that the peer has given feeds of patient kinds.

        Those beyond its budget for this node came from its budget for all nodes.
        """
        self.gives.spend(now, min(feeds, self.gives.level(now)))


def is_patient(plot: Plot) -> bool:
    """Return whether all members write this kind when they join, and no user request waits for
    it."""
    return plot[0] in defaults.NEWS_PATIENT


class Wanted:
    """The feeds that have entries which this node lacks, with the peers that offer them.

    `lacks` returns whether an offer still contains entries that are missing here. `draw(n)` returns
    a random number below n.
    """

    def __init__(self, lacks: Callable[[Told], bool], draw: Callable[[int], int]) -> None:
        self.lacks = lacks
        self._draw = draw
        self.all_tellers: dict[PeerId, _Teller] = {}
        """What each linked peer offers."""
        self._telling: dict[PeerId, _Teller] = {}  # peers that may offer something missing
        self._pulls: list[Pull] = []  # under way
        self._asked: dict[Place, _Asked] = {}  # under way
        self.free_at: dict[bytes, float] = {}  # by author: when its rate allows more
        self._look_at = inf  # when to choose again, because some offers were not checked
        self._took = defaults.PULL_PATIENCE[1]  # recent duration of a successful pull, seconds
        self._paced: dict[bytes, None] = {}  # authors that wait for their rate
        self._budget = RateLimiter(Rate(*defaults.PATIENT_LOTS), 0.0)  # for feeds of patient kinds
        self._patient_at = -inf  # earliest next pull of less than a lot of these

    def tellers(self, place: Place) -> dict[PeerId, Told]:
        """Return the peers that offer missing entries of a feed, each with its offer."""
        return {
            peer: teller.lot(place)[place]
            for peer, teller in self.all_tellers.items()
            if place in teller.lot(place)
        }

    def lacks_of(self, peer: PeerId, key: bytes) -> bool:
        """Return whether a peer offers entries by this author that are missing here."""
        teller = self.all_tellers.get(peer)
        return teller is not None and any(
            place[0] == key and self.lacks(told)
            for lot in (teller.told, teller.patient)
            for place, told in lot.items()
        )

    def spent(self, now: float) -> bool:
        """Return whether the budget for feeds of patient kinds is used up."""
        return not self._budget.has(now)

    def waits(self, peer: PeerId, now: float, turn: bool) -> bool:
        """Return whether to leave out patient kinds in a comparison with a peer.

        Patient kinds are left out while their budget is used up. They are compared all the same if
        it is the peer's `turn` and the peer has offered none so far.
        """
        teller = self.all_tellers.get(peer)
        return self.spent(now) and not (turn and (teller is None or not teller.patient))

    def room(self, peer: PeerId) -> int:
        """Return how many more offers of this peer would be stored."""
        teller = self.all_tellers.get(peer)
        return defaults.TOLD if teller is None else defaults.TOLD - teller.count

    def heard(self, peer: PeerId, heads: Iterable[Told], now: float) -> None:
        """Store the heads of a peer as offers if they have entries that this node lacks.

        The offers are stored in random order. Several nodes with the same offers therefore each
        pull a different part first, and get the rest from each other.
        """
        teller = self.all_tellers.setdefault(peer, _Teller())
        lacking = [told for told in heads if self.lacks(told)]
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
                if len(some) < defaults.PATIENT_LOT and now < self._patient_at:
                    some = []
            patient -= len(some)
            self._spend(len(some), now)
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

    def _spend(self, feeds: int, now: float) -> None:
        """Charge pulls of patient kinds to their budget.

        If little of it is left, the next small pulls are delayed.
        """
        self._budget.take(now, feeds / defaults.PATIENT_LOT)
        if feeds and self._budget.level(now) < defaults.PATIENT_LOTS[0] / 2:
            self._patient_at = now + defaults.PATIENT_PAUSE

    def _patient_room(self, now: float) -> int:
        """Return how many feeds of patient kinds may be pulled now: 0, or at least PATIENT_LOT."""
        level = self._budget.level(now)
        return int(level * defaults.PATIENT_LOT) if level >= 1 else 0

    def _choose(
        self, teller: _Teller, lot: dict[Place, Told], looks: int, most: int, now: float
    ) -> list[Place]:
        """Return at most `most` feeds to ask a peer for, from its offers in `lot`.

        At most `looks` offers are checked. Checked offers move to the end of the table, so that the
        next call checks others. Offers without missing entries are removed.
        """
        places: list[Place] = []
        patience = self._patience()
        for place in list(islice(lot, looks)):
            told = lot.pop(place)
            if not self.lacks(told):
                continue
            lot[place] = told
            if place in teller.asking:
                continue
            asked = self._asked.get(place)
            if self.free_at.get(place[0], now) - now <= defaults.AUTHOR_BURST_S and (
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
        """Return the time at which `next` may return further pulls if nothing else happens.

        Returns infinity if it cannot.
        """
        budget = now if self._budget.has(now) else self._budget.due
        patient = [max(budget, one.rests) for one in self._telling.values() if one.patient]
        patient += [max(at, self._patient_at) for at in patient]
        lots = min((when for when in patient if when > now), default=inf)
        if not self._asked and not self._paced:
            return min(self._look_at, lots)
        patience = self._patience()
        late = (asked.since + patience for asked in self._asked.values())
        over = now + defaults.AUTHOR_BURST_S
        self._paced = {key: None for key in self._paced if self.free_at[key] > over}
        paced = (self.free_at[key] - defaults.AUTHOR_BURST_S for key in self._paced)
        return min(
            (when for when in (*late, *paced, lots, self._look_at) if when > now), default=inf
        )

    def came(self, key: bytes, size: int, now: float) -> None:
        """Charge `size` bytes of received entries to their author's rate."""
        when = max(self.free_at.pop(key, 0.0), now) + size / defaults.AUTHOR_RATE
        self.free_at[key] = when
        if when - now > defaults.AUTHOR_BURST_S:
            self._paced[key] = None
        if len(self.free_at) > defaults.PACED:
            oldest = next(iter(self.free_at))
            del self.free_at[oldest]
            self._paced.pop(oldest, None)

    def ended(
        self, pull: Pull, vain: Container[Place], now: float, left: Collection[Place] = ()
    ) -> None:
        """Record the end of a pull.

        Feeds in `vain` brought nothing. This peer is not asked for them again for a while. Feeds in
        `left` did not fit into the reply.

        A peer has a budget for the feeds of patient kinds that it gives to one peer. The budget is
        used up if all feeds of the pull are in `left`, or if some are and this node has counted as
        many as the budget allows. The peer is then not asked for such feeds for a while.
        """
        for place in pull.places:
            self._asked.pop(place, None)
        back = sum(is_patient(at[1]) and (at in vain or at in left) for at in pull.places)
        self._budget.give(now, back / defaults.PATIENT_LOT)
        if pull not in self._pulls:
            return  # its link has ended
        self._pulls.remove(pull)
        teller = self.all_tellers[pull.peer]
        teller.busy -= 1
        teller.asking.difference_update(pull.places)
        if len(left) == len(pull.places):
            teller.rests = now + defaults.VAIN_S
        else:
            teller.spend(sum(is_patient(at[1]) for at in pull.places) - back, now)
            if left and not teller.gives.has(now):
                teller.rests = teller.gives.when(now, defaults.PATIENT_WORTH)
        if not all(place in vain or place in left for place in pull.places):
            self._took += (now - pull.since - self._took) / defaults.PULLS_TOOK
        for place in pull.places:
            told = teller.lot(place).get(place)
            if told is None or not (place in vain and self.lacks(told)):
                continue
            del teller.lot(place)[place]
            teller.vain[told] = now + defaults.VAIN_S
            if len(teller.vain) > defaults.TOLD:
                del teller.vain[next(iter(teller.vain))]

    def settle(self, place: Place) -> None:
        """Remove the offers of a feed that contain no missing entries any more.

        Call this after entries of the feed have arrived.
        """
        for teller in self.all_tellers.values():
            lot = teller.lot(place)
            told = lot.get(place)
            if told is not None and not self.lacks(told):
                del lot[place]

    def lost(self, peer: PeerId) -> None:
        """Remove a peer whose link has ended, with its offers and pulls."""
        self.all_tellers.pop(peer, None)
        self._telling.pop(peer, None)
        self._pulls = [pull for pull in self._pulls if pull.peer != peer]
