"""Liveness of members, in a swarm where a node has links to only a few of them.

A peer whose link answers is live. For other members a node relies on its peers: a *witness* of a
member has a link to it that answers. A witness cannot make a member live or dead. Its reports only
decide when to check the member, and through which peers. A *check* asks several peers at once for a
*proof*, which is the member's own signature over a random nonce of that check. Only a proof makes a
member live, and only a check without a proof makes it dead.

A *rival* of a member publishes an address of that member. When a machine comes back with a new
identity, its old and new identities are rivals, and the old one is dead. Therefore the rivals of a
member are checked before it counts as live. No I/O. Spec: docs/spec/liveness.md.
"""

from collections.abc import Collection, Iterable, Iterator, Set
from hashlib import sha256
from math import inf

from ...transport.identity import PeerId
from ...transport.rates import Rate, RateLimiter
from .. import defaults
from .agenda import Agenda
from .resting import Resting
from .watched import CALM, Urgency, Watched


class Liveness:
    """The liveness of the known members. `version` grows with each change."""

    def __init__(self, own: PeerId) -> None:
        self.version = 0
        self._own = own
        self._links: dict[PeerId, str] = {}  # network by peer with a live link
        self._answering: dict[PeerId, str] = {}  # those of them whose link has a working path
        self._said: dict[PeerId, set[PeerId]] = {}  # members by witness
        self.watched: dict[PeerId, Watched] = {}
        """The members that are watched, and what is known of their life."""
        self._members: Collection[PeerId] = ()  # see `watch`
        self._agenda = Agenda()
        self._changed: dict[PeerId, None] = {}  # members whose place in the agenda is out of date
        self._alarms: dict[PeerId, RateLimiter] = {}  # checks that a witness may cause
        self._budget = RateLimiter(Rate(*defaults.CHECKS), 0.0)
        self._calm = RateLimiter(Rate(*defaults.CALM_CHECKS), 0.0)  # for undoubted members
        self._rounds = RateLimiter(Rate(*defaults.CHECK_ROUNDS), 0.0)
        self.crowd = 1.0
        """How many times rarer than in a small swarm a member is proved whose end a peer reports.
        So what proofs cost does not grow with the swarm. At least 1."""
        # (since, rivals) of linked peers that wait for rivals
        self._waiting: dict[PeerId, tuple[float, list[PeerId]]] = {}
        self._missing: set[PeerId] = set()  # linked peers whose check has failed
        self._resting = Resting(own, answering=self._answering, said=self._said)
        self._questions = RateLimiter(Rate(*defaults.CALM_QUESTIONS), 0.0)

    # Results.

    def live(self) -> Iterator[PeerId]:
        """Yield the live members, those with a link first."""
        yield from filter(self.is_live, self._links)
        for peer, watched in self.watched.items():
            if watched.live and peer not in self._links:
                yield peer

    def is_live(self, peer: PeerId) -> bool:
        if peer in self._missing:
            return False
        if peer in self._links:
            return peer not in self._waiting or not self._unsure(*self._waiting[peer])
        watched = self.watched.get(peer)
        return watched is not None and watched.live

    def is_sure(self, members: Collection[PeerId]) -> bool:
        """Return whether each of these members has a link or has been checked."""
        return all(
            peer in self._links
            or ((watched := self.watched.get(peer)) and (watched.live or watched.tried > -inf))
            for peer in members
        )

    def has_unseen(self, now: float) -> bool:
        """Return whether a member may be live although no linked peer is a witness of it.

        A member that has just become known does not count, because reports of witnesses may follow.
        """
        self._note_changes(now)
        if self._agenda.alone:
            return True
        return any(
            peer not in self._links
            and not (watched := self.watched[peer]).networks
            and watched.tried == -inf
            and watched.since + defaults.UNSEEN_S <= now
            for peer in (*self._agenda.unseen.ready, *self._agenda.checking)
        )

    def answering(self) -> set[PeerId]:
        """Return the linked peers that this node is a witness of."""
        return self._answering.keys() - self._missing

    def resting(self) -> set[PeerId]:
        """Return the peers whose links may rest, because other linked peers watch them closely."""
        return self._resting.peers()

    def watchers(self, peer: PeerId) -> set[PeerId]:
        """Return the peers that watch `peer` closely and report its end to this node at once."""
        return self._resting.watchers(peer)

    def _answers(self, peer: PeerId, place: str | None) -> None:
        """Record that a peer's link answers in the network `place`, or that it does not (None).

        The peer's reports as a witness count only while its link answers. The number of witnesses
        of each member is updated here, because each round reads those of all members.
        """
        before = self._answering.pop(peer, None)
        if place is not None:
            self._answering[peer] = place
            self._missing.discard(peer)
        if place == before:
            return
        self._resting.changed()
        for other in sorted(self._said.get(peer, ())):
            if watched := self._change(other):
                if before is not None:
                    watched.uncount(before)
                if place is not None:
                    watched.count(place)

    # Members.

    def watch(self, members: Collection[PeerId], now: float = -inf) -> None:
        """Replace the set of known members. It must not change while it is the known set."""
        if members is self._members:
            return
        self._members = members
        for peer in sorted(self.watched.keys() - members):
            watched = self.watched.pop(peer)
            self.version += watched.live
            self._agenda.remove(peer, watched)
        for peer in sorted(members - self.watched.keys()):
            if peer != self._own:
                rank = sha256(f"{self._own} {peer}".encode()).digest()
                self.watched[peer] = watched = Watched(rank, now)
                self._changed[peer] = None
                for by, said in self._said.items():
                    if peer in said:
                        self._testify(by, watched)

    # Own links.

    def linked(self, peer: PeerId, place: str, now: float, rivals: Collection[PeerId] = ()) -> None:
        """Record a link that answers. Witnesses in one network, `place`, count as one.

        `rivals` are the members that publish the address of this peer. If any of them count as
        live, they are checked, and this peer does not count as live before these checks have ended.
        """
        self._links[peer] = place
        self._answers(peer, place)
        if self._wait_for(rivals, now):
            self._waiting[peer] = now, list(rivals)
        if watched := self._change(peer):
            watched.live, watched.proved, watched.doubted = False, -inf, inf
        self.version += 1

    def doubt(self, peer: PeerId, now: float) -> None:
        """Record that a peer's link has lost its path, so that the peer is checked.

        The check begins before the link counts as quiet.
        """
        self._answers(peer, None)
        if watched := self._change(peer):
            watched.doubted = min(watched.doubted, now)
        self._lose_reporter(peer, now)

    def sure(self, peer: PeerId) -> None:
        """Record that a peer's link has a path again."""
        self._answers(peer, self._links.get(peer))
        if watched := self._change(peer):
            watched.doubted = inf

    def unlinked(self, peer: PeerId, now: float) -> None:
        """Record that a link is quiet or has ended.

        Its peer is dead, unless it was proved live just before.
        """
        if self._links.pop(peer, None) is None:
            return
        self._answers(peer, None)
        self._waiting.pop(peer, None)
        self._missing.discard(peer)
        if watched := self._change(peer):
            watched.live = now - watched.proved < defaults.FRESH_S
            watched.tried, watched.pause = -inf, defaults.CHECK_PAUSE[0]
        self.version += 1
        self._lose_reporter(peer, now)
        # the peer may have been the last witness of these members
        for other in sorted(self._said.get(peer, ())):
            known = self._change(other)
            if known and known.live and not known.networks:
                known.doubted = min(known.doubted, now)

    # Reports of witnesses.

    def told(
        self, by: PeerId, has: Iterable[PeerId], lost: Iterable[PeerId], now: float, *, whole: bool
    ) -> None:
        """Process a peer's report on its links.

        `has` are peers to which the reporting peer has a live link, and `lost` are peers to which
        it no longer has one. A `whole` report replaces all earlier ones of the reporting peer.
        """
        said = self._said.setdefault(by, set())
        self._resting.reported(by)
        has = set(has)
        alarms = self._alarms.setdefault(by, RateLimiter(Rate(*defaults.ALARMS), now))
        for peer in sorted(said - has if whole else said.intersection(lost)):
            said.discard(peer)
            self._withdrawn(by, peer, alarms, now)
        for peer in sorted(has - said)[: defaults.TESTIMONIES - len(said)]:
            said.add(peer)
            if (watched := self._change(peer)) is None:
                continue
            self._testify(by, watched)
            if not watched.live and alarms.take(now):
                watched.tried, watched.pause = -inf, defaults.CHECK_PAUSE[0]

    def shown(self, peers: Set[PeerId]) -> None:
        """Record the peers in this node's own last report on its links."""
        self._resting.shown(peers)

    def to_tell(self, by: PeerId, lost: Iterable[PeerId]) -> dict[PeerId, list[PeerId]]:
        """Return which linked peers must hear that the reports of `by` name these peers no longer.

        Call it before `told`. Maps each linked peer to those of `lost` that concern it.
        """
        return self._resting.to_tell(by, sorted(self._said.get(by, set()).intersection(lost)))

    def rumoured(self, by: PeerId, peers: Iterable[PeerId], now: float) -> None:
        """Process a message of `by`: a watcher of each of these peers reports it no longer.

        Checks those of them whose links rest on this node, and those without a witness of which
        `by` brought the last proof.
        """
        alarms = self._alarms.setdefault(by, RateLimiter(Rate(*defaults.ALARMS), now))
        for peer in peers:
            watched = self._change(peer)
            if watched is not None and self._hears(by, peer, watched) and alarms.take(now):
                self._alarm(watched, now)

    def brought(self, peer: PeerId, by: PeerId) -> None:
        """Record that a linked peer has brought a valid proof of a member.

        If the member has no witness here, this peer reports its end from now on.
        """
        watched = self._change(peer)
        if watched is not None and peer not in self._links and by in self._answering:
            watched.through = None if watched.networks else by

    def _lose_reporter(self, by: PeerId, now: float) -> None:
        """Check the members without a witness whose end a peer would have reported, because its
        link does not answer."""
        for peer, watched in self._unlinked():
            if watched.through == by:
                watched.through = None
                self._changed[peer] = None
                if watched.live and not watched.networks:
                    self._alarm(watched, now)

    def _hears(self, by: PeerId, peer: PeerId, watched: Watched) -> bool:
        """Return whether this node relies on `by` to hear of the end of a member."""
        return self._rests(peer) or (
            peer not in self._links and watched.live and watched.through == by
        )

    def _rests(self, peer: PeerId) -> bool:
        """Return whether a link answers and rests, so that its end would be noticed late here."""
        return self._resting.rested(peer) and peer in self._answering

    def _alarm(self, watched: Watched, now: float) -> None:
        at = max(now, watched.proved + defaults.RECHECK_S)
        watched.doubted = min(watched.doubted, at)

    def _withdrawn(self, by: PeerId, peer: PeerId, alarms: RateLimiter, now: float) -> None:
        if (watched := self._change(peer)) is None:
            return
        self._withdraw(by, watched)
        if peer in self._links:
            # If the link does not rest, this node's own pings notice its end as soon.
            alarmed = self._rests(peer) and alarms.take(now)
        else:
            alarmed = watched.live and (alarms.take(now) or not watched.networks)
        if alarmed:
            self._alarm(watched, now)

    def forget(self, by: PeerId) -> None:
        """Drop the reports of a peer whose link has ended."""
        self._alarms.pop(by, None)
        self._resting.reported(by)
        for peer in sorted(self._said.pop(by, ())):
            if watched := self._change(peer):
                self._withdraw(by, watched)

    def _testify(self, by: PeerId, watched: Watched) -> None:
        watched.witnesses[by] = None
        if (place := self._answering.get(by)) is not None:
            watched.count(place)

    def _withdraw(self, by: PeerId, watched: Watched) -> None:
        del watched.witnesses[by]
        if (place := self._answering.get(by)) is not None:
            watched.uncount(place)

    def _witnesses(self, watched: Watched) -> list[PeerId]:
        """Return the witnesses of a member whose links answer: first one of each network, then the
        others."""
        there = [by for by in watched.witnesses if by in self._answering]
        first = {self._links[by]: by for by in reversed(there)}.values()
        return [*first, *(by for by in there if by not in first)]

    # Checks.

    def next_questions(self, now: float) -> dict[PeerId, list[PeerId]]:
        """Return the questions about many members that are due, as members by the witness to ask.

        Pass the outcome of each to `answered` or `unanswered`. The witness of the most members that
        are due is asked first. A question is either about members that are live or about others,
        because a witness hurries for a new member, and every member in the question has to sign.
        """
        due: dict[tuple[PeerId, bool], list[PeerId]] = {}
        if not self._questions.has(now):
            return {}
        self._note_changes(now)
        for peer in self._agenda.shared.ready:
            watched = self.watched[peer]
            for by in watched.witnesses:
                if by in self._answering:
                    due.setdefault((by, watched.live), []).append(peer)
        found: dict[PeerId, list[PeerId]] = {}
        while due and self._questions.take(now):
            first = max(due, key=lambda key: len(due[key]))
            some = found[first[0]] = due.pop(first)[: defaults.ASKED_FOR]
            for peer in some:
                self.watched[peer].asked = True
                self._changed[peer] = None
            due = {
                key: left
                for key, peers in due.items()
                if key[0] not in found
                and (left := [peer for peer in peers if not self.watched[peer].asked])
            }
        return found

    def answered(
        self,
        peer: PeerId,
        asked: float,
        now: float,
        *,
        proved: bool,
        rivals: Iterable[PeerId] = (),
    ) -> None:
        """Process what peers have answered when asked whether they hear a member.

        They were asked at the time `asked` (seconds). `proved` says whether one of them sent a
        fresh signature of the member. The answer is ignored if this node already doubts that the
        member lives, because the signature may be older than the doubt. Without a signature, this
        node itself checks a member that was live, at once.
        """
        if (watched := self._change(peer)) is None:
            return
        watched.asked = False
        stale = watched.doubted < inf or watched.checking or watched.tried > asked
        if stale or peer in self._links:
            return
        if proved:
            self.proved(peer, asked, rivals)
        elif watched.live:
            watched.doubted = now
        else:
            self.failed(peer, now)

    def unanswered(self, peers: Iterable[PeerId]) -> None:
        """Record that a question about these members got no reply.

        Their liveness does not change.
        """
        for peer in peers:
            if watched := self._change(peer):
                watched.asked = False

    def next_checks(self, now: float) -> list[PeerId]:
        """Begin the checks that are due, and return their members.

        End each check with `proved`, `failed` or `void`. In a partition, members come into doubt
        one by one. Therefore checks begin in rounds, so that one question to a peer asks about many
        members.
        """
        found = self._next_round(now)
        self._expire(now)  # afterwards, so that no member is dead because it waited for a round
        return found

    def _next_round(self, now: float) -> list[PeerId]:
        """Begin the checks that are due if a round may begin, and return their members."""
        if not self._rounds.has(now):
            return []
        self._note_changes(now)
        agenda = self._agenda
        self.crowd = max((len(self._links) + agenda.live) / defaults.CROWD, 1.0)
        alone, room = agenda.alone, defaults.CHECKS_AT_ONCE - len(agenda.checking)
        ready = [(peer, self.watched[peer]) for peer in agenda.to_check()]
        found: list[PeerId] = []
        for urgency, _, peer in sorted((one.urgency, one.rank, peer) for peer, one in ready):
            if len(found) >= room or (urgency is Urgency.UNSEEN and alone >= defaults.ALONE):
                break
            calm = urgency in CALM
            if not (self._calm if calm else self._budget).take(now):
                break
            alone += urgency == Urgency.UNSEEN
            found.append(peer)
            watched = self.watched[peer]
            watched.checking = True
            watched.turn += 1
            self._changed[peer] = None
        if found:
            self._rounds.take(now)
        return found

    def next_due(self, now: float) -> float:
        """Return the time at which `next_checks` may have work, or at which a doubt or a wait
        ends."""
        least = min((since for since, _ in self._waiting.values()), default=inf) + defaults.RIVAL_S
        calm_at = now if self._calm.has(now) else self._calm.due
        shared_at = now if self._questions.has(now) else self._questions.due
        round_at = now if self._rounds.has(now) else self._rounds.due
        self._note_changes(now)
        due = self._agenda.next_at(
            shared_at=shared_at,
            round_at=round_at,
            calm_at=calm_at,
            unseen=self._agenda.alone < defaults.ALONE,
        )
        return max(min(least, due), now + defaults.TURN_S)

    def _change(self, peer: PeerId) -> Watched | None:
        """Return a member in order to change it, or None if it is not watched.

        Its place in the agenda is determined again before the agenda is used.
        """
        watched = self.watched.get(peer)
        if watched is not None:
            self._changed[peer] = None
        return watched

    def _note_changes(self, now: float) -> None:
        """Bring the agenda up to date."""
        changed, self._changed = self._changed, {}
        for peer in changed:
            if (watched := self.watched.get(peer)) is not None:
                self._agenda.put(
                    peer,
                    watched,
                    linked=peer in self._links,
                    due=self._due(peer, watched),
                    ends=self._ends(peer, watched),
                )
        self._agenda.advance(now)

    def _unlinked(self) -> Iterator[tuple[PeerId, Watched]]:
        return ((p, w) for p, w in self.watched.items() if p not in self._links)

    def _due(self, peer: PeerId, watched: Watched) -> float:
        if watched.checking:
            return inf
        if watched.doubted < inf:
            return watched.doubted
        if watched.asked:
            return inf
        if peer in self._links:
            return watched.tried + watched.pause if peer in self._missing else inf
        return watched.due

    def _ends(self, peer: PeerId, watched: Watched) -> float:
        return inf if watched.checking or peer in self._links else watched.ends

    def _expire(self, now: float) -> None:
        self._end_waits(now)
        self._note_changes(now)
        for peer in self._agenda.ends.ready:
            if (watched := self._change(peer)) is not None and watched.ends < now:
                self._out(watched, now)

    def _end_waits(self, now: float) -> None:
        """After RIVAL_S seconds, stop waiting for the checks of rivals that have a link.

        A rival whose link still answers is live, whatever its check has found: two home networks
        may use the same private address.
        """
        for peer, (since, rivals) in list(self._waiting.items()):
            if now >= since + defaults.RIVAL_S:
                del self._waiting[peer]
                left = self._unsure(since, [each for each in rivals if each not in self._links])
                if left:
                    self._waiting[peer] = since, left
                self.version += left != rivals

    def _out(self, watched: Watched, now: float) -> None:
        self.version += watched.live
        watched.live, watched.doubted, watched.tried, watched.first = False, inf, now, inf

    def helpers(self, peer: PeerId) -> list[PeerId]:
        """Return the peers to ask for a proof that a member is live, best first.

        The member's witnesses come first, or else the peer that brought the last proof. Then come
        other linked peers, which may know a witness.
        """
        watched = self.watched.get(peer)
        if watched is None:
            return []
        witnesses = self._witnesses(watched)
        if not witnesses and watched.through in self._answering:
            witnesses = [watched.through]
        linked = self._answering or self._links
        others = [by for by in linked if by != peer and by not in witnesses]
        turn = watched.turn * defaults.ASKED % max(len(others), 1)
        hurried = watched.live or watched.doubted < inf  # checks of other members are not urgent
        most = defaults.ASKED_MOST if hurried else defaults.ASKED
        return [*witnesses[: defaults.ASKED], *others[turn:], *others[:turn]][:most]

    def witness(self, peer: PeerId, but: PeerId) -> PeerId | None:
        """Return a witness of a member, other than `but`, to ask for a proof.

        Return None if there is none.
        """
        watched = self.watched.get(peer)
        there = [] if watched is None else self._witnesses(watched)
        return next((by for by in there if by != but), None)

    def is_doubted(self, peer: PeerId) -> bool:
        """Return whether there is reason to believe that a member is dead."""
        watched = self.watched.get(peer)
        return watched is not None and watched.doubted < inf

    def is_answering(self, peer: PeerId) -> bool:
        """Return whether a peer's link answers, according to the link itself."""
        return peer in self._answering

    def has_failed(self, peer: PeerId) -> bool:
        """Return whether several checks of a member have failed."""
        watched = self.watched.get(peer)
        return watched is not None and watched.pause >= defaults.ASK_SELF_S

    def proved(self, peer: PeerId, now: float, rivals: Iterable[PeerId] = ()) -> None:
        """Record a proof that a member is live.

        `rivals` are members that publish one of its addresses.

        Rivals that count as live without a recent proof are checked first, and the member does not
        become live yet.
        """
        if (watched := self._change(peer)) is None:
            return
        watched.checking, watched.doubted = False, inf
        watched.pause = defaults.CHECK_PAUSE[0]
        watched.first = min(watched.first, now)
        if peer in self._links:
            # A peer that waits for this proof may become live.
            self.version += bool(self._waiting) or peer in self._missing
            self._missing.discard(peer)
        elif not watched.live and self._wait_for(rivals, now, watched.first):
            watched.tried = now
            return
        else:
            self.version += not watched.live or bool(self._waiting)
        watched.live, watched.proved, watched.crowd = True, now, self.crowd

    def _wait_for(self, rivals: Iterable[PeerId], now: float, since: float | None = None) -> bool:
        """Start checks of those rivals that count as live but have no proof since the time `since`.

        Without `since`, the proof must be newer than `now`. Returns whether there are any such
        rivals.
        """
        unsure = self._unsure(now if since is None else since, rivals)
        for peer in unsure:
            if (watched := self._change(peer)) is not None:
                watched.doubted = min(watched.doubted, now)
        return bool(unsure)

    def _unsure(self, since: float, rivals: Iterable[PeerId]) -> list[PeerId]:
        return [
            peer
            for peer in rivals
            if (watched := self.watched.get(peer)) is not None
            and (peer in self._links or watched.live)
            and watched.proved < since
        ]

    def failed(self, peer: PeerId, now: float, *, silent: bool = False) -> None:
        """Record the end of a check without a proof.

        A linked peer stays live while its link answers, unless the link rested and nothing arrived
        over it during the check (`silent`).
        """
        if watched := self._change(peer):
            watched.checking = False
            if peer in self._links:
                watched.doubted, watched.proved, watched.tried = inf, -inf, now
                if peer in self._missing:
                    watched.pause = min(2 * watched.pause, defaults.CHECK_PAUSE[1])
                elif silent and peer in self._answering:
                    self._missing.add(peer)
                    self.version += 1
                return
            if not watched.live:
                watched.pause = min(2 * watched.pause, defaults.CHECK_PAUSE[1])
            self._out(watched, now)

    def void(self, peers: Iterable[PeerId]) -> None:
        """End checks of these members without an outcome, because this node itself stalled during
        the check."""
        for peer in peers:
            if watched := self._change(peer):
                watched.checking = False
