"""Tasks that report this node's links and check members. `liveness.py` decides without I/O.

Questions are sent over existing links. A member is dialled, for a brief link, only after several
failed checks. Spec: docs/spec/liveness.md.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgpack
import trio

from ...transport.defaults import PATIENCE_S
from ...transport.dial.endpoint import Endpoint
from ...transport.errors import DialFailed, TransportError
from ...transport.host.seam import Host
from ...transport.identity import Identity, PeerId, verify
from ...transport.lane.frame import Priority
from ...transport.link.calls import Answer, Call, Refusal, Reply
from ...transport.link.link import Link
from ...transport.networks import is_public, owner
from ...transport.rates import Rate, RateLimiter, Rates
from .. import defaults
from ..errors import BadRecord
from .finding import Finding, Found, ask_itself, blame
from .following import Followers
from .gathering import Gathered, WitnessQuestions, merkle_root
from .liveness import Liveness
from .messages import read_gather, read_gathered, read_links, read_lost
from .roster import Roster

DOMAIN = "shoal/alive/1"


class ProbingRates:
    """Limits on what one peer may send to the tasks that check members.

    They count by peer and not by link, so that a peer that connects again does not get a new
    budget.
    """

    def __init__(self) -> None:
        self.reports = Rates(Rate(*defaults.LINKS_TOLD))
        self.alarms = Rates(Rate(*defaults.ALARMS))
        """Limits the reports of each peer that a member is dead."""
        self.finds = Rates(Rate(*defaults.FINDS))
        """Limits the requests of each peer to find a member."""
        self.forwarded = Rates(Rate(*defaults.FINDS))
        """Limits the requests that peers pass on for others."""
        self.gathers = Rates(Rate(*defaults.QUESTIONS))
        self.proofs = Rates(Rate(*defaults.PROOFS))


class Probing:
    """Tasks that keep the `liveness` of one node up to date. `Membership` reports links to it."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        identity: Identity,
        roster: Roster,
        *,
        changed: Callable[[], None],
    ) -> None:
        """Create the tasks without starting them.

        `changed` is called when the set of live members has changed.
        """
        self.liveness = Liveness(identity.peer)
        """Which members are live, as far as this node knows."""
        self._host = host
        self._endpoint = endpoint
        self._identity = identity
        self._roster = roster
        self._changed = changed
        self._links: dict[PeerId, Link] = {}
        self._resting: set[PeerId] = set()  # peers whose links rest, because other peers watch them
        self._told: set[PeerId] = set()  # peers in our last report
        self._told_at = -defaults.TELL_S
        self._gained_pace = RateLimiter(Rate(*defaults.TELL_GAINED), 0.0)
        self.rates = ProbingRates()
        self._news = trio.Event()
        self._dialling = trio.CapacityLimiter(1)
        self._followers = Followers()
        self._finding = Finding(
            endpoint, self.liveness, self._links, self._allows_finds, self._follows
        )
        self._gathering = WitnessQuestions()
        endpoint.handle("live.links", self._on_links)
        endpoint.handle("live.lost", self._on_lost)
        endpoint.handle("live.gather", self._on_gather)
        endpoint.handle("live.prove", self._on_prove)
        endpoint.on_link_doubt(self._doubt)

    # This node's links.

    def begin(self, link: Link) -> None:
        """Add a link over which records are exchanged."""
        self._links[link.peer] = link
        self._post(link, whole=True, has=self._told - {link.peer}, lost=set())
        host, port = link.address[0], link.identities.port
        rivals = [peer for peer in self._roster.at(host, port) if peer != link.peer]
        self.liveness.linked(link.peer, _place(link), self._host.now(), rivals)
        self._resting = set()  # so that `_let_rest` includes this link
        self.wake()

    def back(self, link: Link) -> None:
        """Record that a quiet link answers again."""
        if self._links.get(link.peer) is link:
            self.liveness.linked(link.peer, _place(link), self._host.now())
            self.wake()

    def quiet(self, link: Link) -> None:
        """Record that a link has not answered for a while."""
        if self._links.get(link.peer) is link:
            self.liveness.unlinked(link.peer, self._host.now())
            self._tell_followers(link.peer)
            self.wake()

    def ended(self, link: Link) -> None:
        """Remove a link that has ended."""
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self.liveness.unlinked(link.peer, self._host.now())
            self._tell_followers(link.peer)
        if link.peer not in self._links:
            self.liveness.forget(link.peer)
            self._followers.forget(link.peer)
            self._gathering.forget(link.peer)
            self.wake()

    def _doubt(self, link: Link, doubt: bool) -> None:
        if self._links.get(link.peer) is not link:
            return
        if doubt:
            self.liveness.doubt(link.peer, self._host.now())
            self._tell_followers(link.peer)
        else:
            self.liveness.sure(link.peer)
        self.wake()

    # Running.

    async def run(self) -> None:
        """Report links, and check the members that are due, until cancelled."""
        async with trio.open_nursery() as nursery:
            await self._endpoint.guard.repeat("members to check", self._turns, nursery)

    async def _turns(self, nursery: trio.Nursery) -> None:
        version = self.liveness.version
        while True:
            now = self._host.now()
            self.liveness.watch(self._roster.authors(), now)
            if checked := self.liveness.next_checks(now):
                void = partial(self.liveness.void, checked)
                self._endpoint.guard.start(nursery, "checks", self.check, checked, end=void)
            for by, peers in self.liveness.next_questions(now).items():
                void = partial(self.liveness.unanswered, peers)
                self._endpoint.guard.start(nursery, by, self._ask_for, by, peers, end=void)
            while gathered := self._gathering.take(now):  # two may be due
                end = gathered.done.set
                self._endpoint.guard.start(nursery, "lot", self._gather, gathered, end=end)
            if self.liveness.version != version:
                version = self.liveness.version
                self._changed()
            self._let_rest()
            due = min(self._tell(now), self.liveness.next_due(now), self._gathering.due)
            with trio.move_on_after(max(due - now, 0.0)):
                await self._news.wait()
            pause = defaults.TURN_MEMBER_S * len(self.liveness.watched)
            await trio.sleep(min(max(defaults.TURN_S, pause), defaults.TURN_MOST_S))

    def _let_rest(self) -> None:
        """Let links rest, which are then pinged only rarely.

        The links to peers that depend on this node to notice their end do not rest.
        """
        resting = self.liveness.resting()
        if resting is self._resting:
            return
        self._resting = resting
        for peer, link in self._links.items():
            link.rest(defaults.REST_S if peer in resting else 0.0)

    def wake(self) -> None:
        """Wake the loop, because members or links may have changed."""
        self._news.set()
        self._news = trio.Event()

    # Reporting.

    def _tell(self, now: float) -> float:
        """Report the peers whose links answer, if it is time to.

        Return the time to call this again.

        There is a minimum time between reports. A link that has stopped answering is reported
        sooner than a new one.
        """
        there = self.liveness.answering()
        has, lost = there - self._told, self._told - there
        if not has and not lost:
            return now + _LONG_S
        at = self._told_at + defaults.TELL_S
        if not lost:
            at = max(at, self._gained_pace.due)
        if at > now:
            return at
        self._gained_pace.take(now)
        self._told, self._told_at = there, now
        self.liveness.shown(there)
        for link in self._links.values():
            self._post(link, whole=False, has=has - {link.peer}, lost=lost - {link.peer})
        return now + _LONG_S

    def _post(self, link: Link, *, whole: bool, has: set[PeerId], lost: set[PeerId]) -> None:
        if not (whole or has or lost):
            return
        body = msgpack.packb([whole, sorted(has), sorted(lost)])
        with suppress(TransportError):  # the link just ended
            link.post("live.links", payload=body, priority=Priority.CONTROL, later=not lost)

    def _on_links(self, call: Call) -> Answer:
        link, now = self._endpoint.link(call.peer), self._host.now()
        if link is None or not self.rates.reports.take(call.peer, now):
            return Refusal("too-often", "reports on links come too often")
        try:
            whole, has, lost = read_links(call.payload)
        except BadRecord as error:
            return blame(link, error)
        self._pass_on(call.peer, lost, now)
        self.liveness.told(call.peer, has, lost, now, whole=whole)
        self.wake()
        return Reply()

    def _pass_on(self, by: PeerId, lost: Sequence[PeerId], now: float) -> None:
        """Tell linked peers that a watcher has lost a peer with which they have a link, too."""
        told = self.liveness.to_tell(by, lost)
        for peer, peers in self._followers.lost(by, now, set(lost)).items() if lost else ():
            told[peer] = [*dict.fromkeys((*told.get(peer, ()), *peers))]
        for peer, peers in told.items():
            if self.rates.alarms.take(by, now):
                self._tell_lost(peer, peers)

    def _follows(self, peer: PeerId, member: PeerId, source: PeerId) -> None:
        if peer in self._links:  # others would not be told, and would only fill the table
            self._followers.add(peer, member, source, self._host.now())

    def _tell_followers(self, source: PeerId) -> None:
        """Tell the peers that follow members by proofs of `source`, whose link does not answer."""
        for peer, peers in self._followers.lost(source, self._host.now()).items():
            self._tell_lost(peer, peers)

    def _tell_lost(self, peer: PeerId, peers: Sequence[PeerId]) -> None:
        if (link := self._links.get(peer)) is not None:
            with suppress(TransportError):  # the link just ended
                body = msgpack.packb([peers])
                link.post("live.lost", payload=body, priority=Priority.CONTROL)

    def _on_lost(self, call: Call) -> Answer:
        """Take note of members whose watchers have lost them, as a peer has heard from those."""
        link, now = self._endpoint.link(call.peer), self._host.now()
        if link is None or not self.rates.reports.take(call.peer, now):
            return Refusal("too-often", "reports on links come too often")
        try:
            peers = read_lost(call.payload)
        except BadRecord as error:
            return blame(link, error)
        self.liveness.rumoured(call.peer, peers, now)
        self.wake()
        return Reply()

    def _allows_finds(self, peer: PeerId, members: int, further: bool) -> bool:
        rates = self.rates.finds if further else self.rates.forwarded
        return rates.take(peer, self._host.now(), members)

    # Checks.

    async def check(self, peers: Sequence[PeerId]) -> None:
        """Check members by asking peers for proofs that they are live.

        Each proof counts as soon as it comes.
        """
        number, began = self._host.entropy(defaults.NONCE_BYTES), self._host.now()
        resting = [peer for peer in peers if peer in self._resting and peer in self._links]
        before = {peer: self._links[peer].status.bytes_in for peer in resting}
        left = dict.fromkeys(peers)

        def take(peer: PeerId, proof: bytes) -> bool:
            valid = peer in left and verify(peer, DOMAIN, number, proof)
            if valid:
                del left[peer]
                now = self._host.now()
                self._roster.answered(peer, now)
                self.liveness.proved(peer, now, self._roster.neighbours(peer))
                self.wake()
                if not left:
                    scope.cancel()
            return valid

        with trio.move_on_after(defaults.CHECK_S) as scope:
            async with trio.open_nursery() as nursery:
                for peer in peers:
                    nursery.start_soon(self._ask_itself, peer, number, take)
                await self._finding.ask_around(peers, number, left, take)
        now = self._host.now()
        if now - began > defaults.CHECK_S + defaults.STALL_S:
            self.liveness.void(left)
        else:
            for peer in left:
                link = self._links.get(peer)
                silent = link is not None and link.status.bytes_in == before.get(peer)
                self.liveness.failed(peer, now, silent=silent)
        self.wake()

    async def _ask_itself(self, peer: PeerId, number: bytes, take: Found) -> None:
        """Ask a member for a proof over its link, or over a brief link if several checks have
        failed."""
        link = self._links.get(peer)
        if link is not None and link.connected:
            await ask_itself(link, number, take)
        if self.liveness.has_failed(peer):
            async with self._dialling:
                with suppress(DialFailed):
                    where = self._roster.where(peer)
                    link = await self._endpoint.ask(peer, where, timeout=defaults.CHECK_S)
                    await ask_itself(link, number, take)

    # Questions about many members.

    async def _ask_for(self, by: PeerId, peers: list[PeerId]) -> None:
        """Ask a witness for proofs of many members that are not in doubt."""
        nonce, asked = self._host.entropy(defaults.NONCE_BYTES), self._host.now()
        signed, proofs = nonce, list[bytes]()
        if (link := self._links.get(by)) is not None:
            question = msgpack.packb([nonce, peers])
            with suppress(TransportError):
                reply = await link.call(
                    "live.gather",
                    payload=question,
                    timeout=defaults.ANSWER_S,
                    within=PATIENCE_S,
                )
                try:
                    path, proofs = read_gathered(reply.payload)
                    signed = merkle_root(nonce, path)
                except BadRecord as error:
                    blame(link, error)
        missing = [b""] * (len(peers) - len(proofs))
        for peer, proof in zip(peers, proofs + missing, strict=False):
            proved = bool(proof) and verify(peer, DOMAIN, signed, proof)
            now = self._host.now()
            if proved:
                self._roster.answered(peer, now)
            rivals = self._roster.neighbours(peer)
            self.liveness.answered(peer, asked, now, proved=proved, rivals=rivals)
            await trio.lowlevel.checkpoint()  # checking a signature takes 0.1 ms
        self.wake()

    async def _on_gather(self, call: Call) -> Answer:
        """Gather proofs of linked members for a peer.

        The questions that other peers ask soon afterwards are answered by the same signatures.
        """
        asker, now = self._endpoint.link(call.peer), self._host.now()
        if asker is None or not self.rates.gathers.take(call.peer, now):
            return Refusal("too-often", "such questions come too often")
        try:
            nonce, peers = read_gather(call.payload)
        except BadRecord as error:
            return blame(asker, error)
        if not (linked := [peer for peer in peers if peer in self._links]):
            return Refusal("no-proof", "none of these members answers here")
        if (added := self._gathering.add(nonce, linked, now)) is None:
            return Refusal("too-often", "too many such questions wait")
        self.wake()
        gathered, place = added
        await gathered.done.wait()
        proofs = [gathered.peers.get(peer, b"") for peer in peers]
        return Reply(payload=msgpack.packb([gathered.paths[place], proofs]), within=PATIENCE_S)

    async def _gather(self, gathered: Gathered) -> None:
        """Ask each member in a batch to sign the batch's root."""
        number = gathered.close()

        async with trio.open_nursery() as nursery:
            for peer in gathered.peers:
                if (link := self._links.get(peer)) is not None:
                    nursery.start_soon(ask_itself, link, number, gathered.peers.__setitem__)
        gathered.done.set()

    def _on_prove(self, call: Call) -> Answer:
        """Reply to a peer with this node's signature over the peer's nonce, which proves that it is
        live."""
        asker = self._endpoint.link(call.peer)
        if asker is None or not self.rates.proofs.take(call.peer, self._host.now()):
            return Refusal("too-often", "such questions come too often")
        if len(call.payload) != defaults.NONCE_BYTES:
            return blame(asker, BadRecord("a nonce to sign has a wrong size"))
        return Reply(payload=self._identity.sign(DOMAIN, bytes(call.payload)))


_LONG_S = 60.0


def _place(link: Link) -> str:
    """Return the network of a peer, in which all witnesses count as one.

    A peer with a private address counts as a network of its own.
    """
    ip = link.address[0]
    return owner(ip) if is_public(ip) else link.peer
