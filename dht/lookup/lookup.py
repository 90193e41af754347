"""One iterative look-up: finds the records under keys of one region, or the region's nodes.

Several disjoint paths approach the region (Baumgart and Mies, "S/Kademlia", ICPADS 2007, section
4.4). No contact belongs to two paths, so a liar spoils only one of them.

Inside the region, nodes are queried in random order, and not the nearest first. Each query also
asks for the contacts near a random position in the region. If an attacker has generated identities
next to the key, they are therefore not queried first, and do not fill all replies. Contacts whose
referrers have named dead contacts are queried last. A liar that invents nodes next to the key
therefore delays the look-up by only one or two queries.

No I/O: `next` returns the queries to send, and their results are passed to `answered` and `failed`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import inf
from typing import Final

from ...transport.identity import PeerId
from ...transport.rates import DialLimiter
from .. import defaults
from ..kademlia.messages import Find, FindReply
from ..kademlia.table import random_rank
from ..records.contact import Contact, merged
from ..records.key import SPACE, Key, key_at, point
from .candidate import LookupCandidate, LookupPath, LookupStep
from .foundrecords import FoundRecord, FoundRecords
from .query import LookupGoal, LookupSettings, Querier, Query

_THERE: Final = ("busy", "not-serving", "unknown-method", "bad-message")
"""Error codes that prove that the contact was reached at its address."""


class Lookup:
    """Look-up of one `goal` by the node `querier`."""

    def __init__(
        self,
        goal: LookupGoal,
        start: Iterable[Contact],
        querier: Querier,
        *,
        settings: LookupSettings | None = None,
        limiter: DialLimiter | None = None,
    ) -> None:
        """Prepare a look-up that begins with the contacts in `start`, nearest first.

        A background look-up has a `limiter`: it queries linked nodes at once, and dials other nodes
        only when the limiter allows it.
        """
        self.keys = tuple(goal.keys)
        self.settings = settings or LookupSettings()
        self.radius = goal.radius
        self.steps: list[LookupStep] = []
        self._at = point(self.keys[0])
        self._goal = goal
        self._querier = querier
        self._linked = querier.linked
        self._nonce = querier.entropy(16)
        self._limiter = limiter
        self._dials = 0  # dials of a background look-up
        self._paths = [LookupPath() for _ in range(self.settings.paths)]
        self.known: dict[PeerId, LookupCandidate] = {}
        self._networks: Counter[str] = Counter()  # network -> queries sent into it
        self._records = FoundRecords(self.keys)
        self._answered: list[LookupCandidate] = []
        self._inside = 0  # replies from nodes of the region
        self._named = 0  # nodes of the region known so far
        self._quiet = 0  # replies in a row without a new node of the region
        self._now = 0.0
        self._slowest = inf  # seconds that the slowest reply so far took
        for index, contact in enumerate(start):
            self._hear(contact, index % len(self._paths), 1, None)

    # Results.

    @property
    def done(self) -> bool:
        """Whether the look-up has ended.

        It ends when it has found enough, or when there is no candidate left and each pending reply
        is overdue.
        """
        return self._satisfied() or (not self._awaited() and self._exhausted())

    def found(self, key: Key) -> list[FoundRecord]:
        """Return the latest record of each author and slot under a key, without withdrawals."""
        return self._records.of(key)

    def gone(self, key: Key) -> list[FoundRecord]:
        """Return the withdrawals under a key."""
        return self._records.gone(key)

    def region(self) -> list[Contact]:
        """Return the live nodes of the region, nearest first, and at least the `K` nearest known.

        A node counts as live if it answered, is in the own table, or was named by several referrers
        of which one is trusted. If these are fewer than `K`, the least doubtful other candidates
        are added.
        """
        alive = [each for each in self.known.values() if not each.dead]
        alive.sort(key=lambda each: each.distance)
        if self.settings.doubt:
            sure = [each for each in alive if each.sure]
            rest = [each for each in alive if not each.sure]
            rest.sort(key=lambda each: each.doubt)
            alive = sure + rest[: max(defaults.K - len(sure), 0)]
        alive.sort(key=lambda each: each.distance)
        return [
            each.contact
            for index, each in enumerate(alive)
            if index < defaults.K or each.distance <= self.radius
        ]

    def answerers(self) -> list[Contact]:
        """Return the contacts that answered, nearest first."""
        return [each.contact for each in sorted(self._answered, key=lambda each: each.distance)]

    # Queries.

    def next(self, now: float) -> list[Query]:
        """Return the queries to send now. They count as sent.

        Call this at the start, after each reply or failure, and at the time that `wake_at` returns.
        """
        queries: list[Query] = []
        self._now = now
        if self._satisfied():
            return queries
        self._mark_late(now)
        for path in self._paths:
            while self._prompt(path, now) < (1 if path.sure else self.settings.at_once):
                chosen = self._choose(path)
                if chosen is None or not self._may_ask(chosen, now):
                    break
                queries.append(self._ask(path, chosen, now))
        return queries

    def wake_at(self, now: float) -> float:
        """Return the time at which to call `next` even if no reply arrives.

        At this time, a reply becomes late or overdue, or a dial is allowed. Infinity means that
        there is no such time.
        """
        due = (
            each.step.asked + wait
            for path in self._paths
            for each in path.asked
            if each.step is not None
            for wait in (self.settings.hedge, self._patience())
        )
        dial = inf if self._limiter is None or self._exhausted() else self._limiter.at
        return min((when for when in (dial, *due) if when > now), default=inf)

    def _patience(self) -> float:
        """Return for how many seconds a reply is awaited if no candidate is left."""
        least, most = defaults.LATE_S
        return min(max(defaults.LATE_FACTOR * self._slowest, least), most)

    def _prompt(self, path: LookupPath, now: float) -> int:
        """Return the number of pending queries of a path that are not late."""
        return sum(not each.older(self.settings.hedge, now) for each in path.asked)

    def _mark_late(self, now: float) -> None:
        """Mark the candidates whose reply is late, which counts against their referrers."""
        for path in self._paths:
            for each in path.asked:
                if not each.late and each.older(self.settings.hedge, now):
                    each.mark_failed()
                    path.sure = False

    def _ask(self, path: LookupPath, chosen: LookupCandidate, now: float) -> Query:
        """Register a query to a candidate as sent, and return it."""
        path.waiting.remove(chosen)
        path.asked.append(chosen)
        path.queries += 1
        self._networks.update(chosen.contact.networks)
        chosen.step = LookupStep(chosen.contact, chosen.path, chosen.hop, now)
        path.sure = not path.begun and self._should_do(chosen)
        path.begun = True
        self.steps.append(chosen.step)
        near = (self.own_place(),) if self.settings.random_order else ()
        goal, serves = self._goal, self._querier.serves
        most = goal.most if goal.enough else 0
        by = tuple(one.contact.peer for one in chosen.by)
        return Query(chosen.contact, Find(self.keys, near, most, goal.kinds, serves), by)

    def _should_do(self, one: LookupCandidate) -> bool:
        """Return whether a candidate very likely has the records.

        If so, its path sends no second query while the first is pending.
        """
        inside = one.distance <= self.radius
        return bool(self._goal.enough) and inside and self._linked(one.contact.peer)

    def own_place(self) -> Key:
        """Return a random key in the region."""
        drawn = int.from_bytes(self._querier.entropy(32))
        offset = drawn % max(min(int(self.radius), SPACE - 1), 1)
        return key_at(self._at ^ offset)

    def _choose(self, path: LookupPath) -> LookupCandidate | None:
        """Return the candidate of a path to query next, or None if there is none."""
        if not path.waiting or not self._affordable(path) or self._settled():
            return None
        if self._limiter is None:
            return self._best(path.waiting)
        linked = [each for each in path.waiting if self._linked(each.contact.peer)]
        return self._best(linked) or self._best(self._worth_a_dial(path))

    def _best(self, waiting: Sequence[LookupCandidate]) -> LookupCandidate | None:
        """Return the best of several candidates, or None if none is worth a query."""
        if not waiting:
            return None
        if self.settings.random_order:
            inside = [each for each in waiting if each.distance <= self.radius]
            if inside:
                return self._credible(min(inside, key=self._by_rank))
            return None if self._closed() else min(waiting, key=self._nearness)
        promising = filter(self._promising, waiting)
        chosen = min(promising, key=self._nearness, default=None)
        return None if chosen is None else self._credible(chosen)

    def _worth_a_dial(self, path: LookupPath) -> list[LookupCandidate]:
        """Return the candidates that a background look-up may dial.

        It never dials through a relay. Once some nodes of the region have answered, it does not
        dial any more, because their replies name the other nodes.
        """
        named = self.settings.random_order and self._inside >= defaults.PATIENT_INSIDE
        if named or self._dials >= defaults.PATIENT_DIALS:
            return []
        return [each for each in path.waiting if each.contact.direct]

    def _may_ask(self, chosen: LookupCandidate, now: float) -> bool:
        """Return whether a candidate needs no dial or may be dialled now. A dial is counted."""
        if self._limiter is None or self._linked(chosen.contact.peer):
            return True
        taken = self._limiter.take(now)
        self._dials += taken
        return taken

    def _affordable(self, path: LookupPath) -> bool:
        """Return whether a path may send another query.

        The budget must still suffice for the queries that are reserved for the other paths.
        """
        share = self.settings.queries // len(self._paths) if self.settings.shares else 0
        kept = sum(
            max(share - other.queries, 0)
            for other in self._paths
            if other is not path and (other.waiting or other.asked)
        )
        return len(self.steps) + kept < self.settings.queries

    def _credible(self, each: LookupCandidate) -> LookupCandidate | None:
        """Return the candidate, or None if it is doubtful and enough nodes have answered."""
        if self.settings.random_order:
            left = self._inside >= self._thin() and self._doubt(each) > 0
        else:
            left = len(self._answered) >= defaults.K and self._doubt(each) > defaults.DOUBT_MOST
        return None if left else each

    def _by_rank(self, each: LookupCandidate) -> tuple[int, int, int, int]:
        """Return the sort key of candidates in the region: doubt, crowding, cost, then chance.

        The cost comes before chance, because a link through a relay costs ten times as much as a
        direct dial.
        """
        linked = self._linked(each.contact.peer)
        way = 0 if linked else 1 if each.contact.direct else 2
        return self._doubt(each), self._crowd(each), way, each.rank

    def _nearness(self, each: LookupCandidate) -> tuple[int, int, int, int]:
        """Return the sort key of candidates outside the region: doubt, crowding, then distance.

        Linked candidates count as nearer than they are, because they need no dial.
        """
        bonus = defaults.LINKED_BITS if self._linked(each.contact.peer) else 0
        bits = each.distance.bit_length() - bonus
        return self._doubt(each), self._crowd(each), bits, each.distance

    def _doubt(self, each: LookupCandidate) -> int:
        """Return the doubt about a candidate, 0 if this defence is off."""
        return each.doubt if self.settings.doubt else 0

    def _crowd(self, each: LookupCandidate) -> int:
        """Return by how many queries the networks of a candidate exceed the usual limit."""
        if not self.settings.subnet_limits:
            return 0
        asked = max((self._networks[name] for name in each.contact.networks), default=0)
        return max(asked - defaults.SUBNET_ASKED + 1, 0)

    def _promising(self, each: LookupCandidate) -> bool:
        """Return whether fewer than `K` nearer nodes have answered."""
        return sum(other.distance < each.distance for other in self._answered) < defaults.K

    def _closed(self) -> bool:
        """Return whether it is useless to query nodes outside the region.

        This is so if as many nodes of the region have answered as can be expected, and many replies
        in a row named no other node of the region.
        """
        return self._inside >= self._thin() and self._quiet >= defaults.CLOSED_QUIET

    @staticmethod
    def _thin() -> float:
        """Return the number of replies from the region after which the region counts as covered."""
        return defaults.REGION_NODES * defaults.REGION_THIN

    def _settled(self) -> bool:
        """Return whether a look-up for nodes has found the nodes of the region."""
        if self._goal.enough or not self.settings.random_order:
            return False
        known = self._inside >= defaults.SETTLED_ASKED and self._quiet >= defaults.SETTLED_QUIET
        return known or self._inside >= defaults.SETTLED_MOST

    def _satisfied(self) -> bool:
        """Return whether the look-up has found enough."""
        if not self._goal.enough:
            return self._settled()
        return self._records.enough(self._goal.enough, witnesses=self.settings.witnesses)

    def _awaited(self) -> bool:
        """Return whether there is a pending reply that is not overdue."""
        patience = self._patience()
        return any(
            not each.older(patience, self._now) for path in self._paths for each in path.asked
        )

    def _exhausted(self) -> bool:
        """Return whether no path has a candidate to query."""
        return all(self._choose(path) is None for path in self._paths)

    # Replies.

    def answered(self, contact: Contact, found: FindReply, now: float, wall: float) -> str:
        """Process the reply of a contact. Return "", or an error code if it has an invalid record.

        `now` is the host's monotonic time in seconds, and `wall` its wall clock in seconds since
        1970.
        """
        one = self._close(contact, now)
        if one is None or one.step is None:
            return ""
        code = self._records.take(contact.peer, found, wall)
        if code:
            one.step.outcome = code
            one.mark_failed()
            return code
        self._answered.append(one)
        one.mark_answered()
        took = now - one.step.asked
        self._slowest = took if self._slowest == inf else max(self._slowest, took)
        self._inside += one.distance <= self.radius
        before, inside = len(self.known), self._named
        for each in _in_turn(found.nearest):
            if len(self.known) - before < defaults.ANSWER_CONTACTS or each.peer in self.known:
                self._hear(each, one.path, one.hop + 1, one)
        self._quiet = 0 if self._named > inside else self._quiet + 1
        one.step.contacts = len(self.known) - before
        one.step.handed = {
            key: len(listed) for key, listed in zip(self.keys, found.records, strict=True)
        }
        one.step.outcome = (
            "records" if one.step.records else "contacts" if one.step.contacts else "nothing"
        )
        return ""

    def failed(self, contact: Contact, now: float, outcome: str = "failed") -> None:
        """Record that a query failed. `outcome` may be the error code of the contact's refusal."""
        one = self._close(contact, now)
        if one is not None and one.step is not None:
            one.step.outcome = outcome
            if outcome != "busy":
                one.mark_failed()
            one.lost = outcome not in _THERE
            self._elsewhere(one)

    def _close(self, contact: Contact, now: float) -> LookupCandidate | None:
        """Close the pending query to a contact.

        Return its candidate, or None if there is no such query.
        """
        one = self.known.get(contact.peer)
        if one is None or one.step is None or one.step.answered is not None:
            return None
        one.step.answered = now
        path = self._paths[one.path]
        path.asked.remove(one)
        path.sure = False
        return one

    def _hear(self, contact: Contact, path: int, hop: int, by: LookupCandidate | None) -> None:
        """Register a contact that was named on a path.

        If it is new, it becomes a candidate of this path. `by` is the referrer, or None for a
        contact of the own table.
        """
        known = self.known.get(contact.peer)
        if known is not None:
            known.add_referrer(by)
            self._hear_where(known, contact, path)
            return
        heard = self._paths[path].heard if self.settings.shares else len(self.known)
        share = len(self._paths) if self.settings.shares else 1
        if contact.peer == self._querier.peer or heard >= defaults.LOOKUP_CONTACTS // share:
            return
        candidate = LookupCandidate(
            contact,
            path,
            hop,
            contact.point ^ self._at,
            random_rank(self._nonce, contact.key),
            {path: contact},
        )
        if by is not None:
            candidate.by.append(by)
        self.known[contact.peer] = candidate
        self._named += candidate.distance <= self.radius
        self._paths[path].heard += 1
        self._paths[path].waiting.append(candidate)

    def _hear_where(self, one: LookupCandidate, contact: Contact, path: int) -> None:
        """Record the addresses that another path names for a known candidate.

        Otherwise a liar could make all paths dial dead addresses of a contact by naming the contact
        first.
        """
        if path in one.accounts or not self.settings.accounts:
            return
        one.accounts[path] = contact
        if one.step is None:
            one.contact = merged(list(one.accounts.values()))
        else:
            self._elsewhere(one)

    def _elsewhere(self, one: LookupCandidate) -> None:
        """Queue an unreachable candidate again, with the addresses that another path has named."""
        tried = one.tried | set(one.contact.addresses)
        for path, account in one.accounts.items():
            if one.lost and not tried.issuperset(account.addresses):
                again = replace(one, contact=account, path=path, step=None, tried=tried, lost=False)
                self.known[account.peer] = again
                self._paths[path].waiting.append(again)
                return


def _in_turn(lists: Sequence[Sequence[Contact]]) -> list[Contact]:
    """Merge lists of contacts: the first of each list, then the second, and so on.

    Duplicates are left out.
    """
    rows = zip_longest(*lists)
    return list(dict.fromkeys(each for row in rows for each in row if each is not None))
