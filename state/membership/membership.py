"""Members of the swarm and their addresses, from signed records that nodes exchange over links.

The two ends of a new link exchange their own records, and compare checksums of all records to find
missing ones. A brief link (`Link.brief`) carries no records, and makes no member live. When an
author changes its record, it pushes the record over all its links, and other nodes announce it once
over each of theirs. A node dials members until it has enough links. `probing.py` finds out which
members without a link are live.

The capacity, models and shards of members are in their feeds; `listing.py` combines both. Wire
format: docs/spec/membership.md.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgpack
import trio

from ...transport.address import Address
from ...transport.dial.endpoint import Endpoint
from ...transport.errors import CallRefused, TransportError
from ...transport.host.seam import Host
from ...transport.identity import Identity, PeerId
from ...transport.lane.frame import Priority
from ...transport.link.calls import Answer, Call, Refusal, Reply
from ...transport.link.link import Link
from ...transport.networks import Nearness, nearness_at
from ...transport.rates import Rate, Rates
from .. import defaults
from ..errors import BadRecord
from ..views.view import StepCounter
from .memberdialer import Connect, MemberDialer
from .messages import Told, encode_digest, read_digest, read_sums, read_tags, read_told
from .ownrecord import OwnMemberRecord
from .probing import Probing
from .record import MemberRecord
from .recordnews import RecordNews
from .recordpulls import RecordPulls
from .roster import RecordOffer, Roster, Tag, mark_of, tag_of

_RATES: Final = {
    "member.push": defaults.PUSHES,
    "member.sums": defaults.DIGESTS,
    "member.digest": defaults.DIGESTS,
    "member.pull": defaults.PULLS_TAKEN,
}
"""How often a peer may call each method."""


class Membership:
    """The membership of one node.

    Messages are handled from the moment this object is created. `run` dials members.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        identity: Identity,
        *,
        links: int | None = None,
        connect: Connect | None = None,
    ) -> None:
        """Create the membership; call `run` next.

        `links` and `connect` are those of `MemberDialer`.
        """
        self._host = host
        self._endpoint = endpoint
        self.roster = Roster(identity.peer)
        """The known members."""
        self.probing = Probing(host, endpoint, identity, self.roster, changed=self._changed)
        liveness = self.probing.liveness
        self._dialer = MemberDialer(host, endpoint, self.roster, liveness, links, connect)
        self.own_record = OwnMemberRecord(host, identity)  # and when it is signed again
        self._begun: dict[Link, None] = {}  # links that records are exchanged over
        self._to_compare: list[Link] = []  # new links that this node dialled
        self._rates = {method: Rates(Rate(*rate)) for method, rate in _RATES.items()}
        self.pulls = RecordPulls(self._lacks, self._take)  # records that this node lacks
        self._record_news = RecordNews[Link]()
        self._version = 0
        self._shows: Callable[[PeerId], bool] = lambda peer: True
        self._news = trio.Event()
        self.on_change: list[Callable[[], None]] = []
        """Called whenever `version` has grown."""
        endpoint.handle("member.push", self._on_push)
        endpoint.handle("member.sums", self._on_sums)
        endpoint.handle("member.digest", self._on_digest)
        endpoint.handle("member.pull", self._on_pull)
        endpoint.on_link(self._link_up)
        endpoint.on_link_lasting(self._begin)
        endpoint.on_link_lost(self._link_lost)
        endpoint.on_link_quiet(self._link_quiet)
        endpoint.on_link_back(self._link_back)

    # Members and their records.

    @property
    def version(self) -> int:
        """A number that grows whenever the result of `members` changes."""
        return self._version

    def own(self) -> MemberRecord:
        """Return this node's own record."""
        return self.own_record.record

    @property
    def most_links(self) -> int | None:
        """The number of links up to which members are dialled, or None (see `MemberDialer`)."""
        return self._dialer.most_links

    def dial_up_to(self, links: int | None) -> None:
        """Set the number of links up to which members are dialled. Existing links stay."""
        self._dialer.most_links = links

    def is_live(self, peer: PeerId) -> bool:
        """Return whether a member is live, with or without a link."""
        return self.probing.liveness.is_live(peer)

    def is_sure(self) -> bool:
        """Return whether each member with a known record has a link or has been checked."""
        return self.probing.liveness.is_sure(self.roster.authors())

    def members(self) -> Mapping[PeerId, MemberRecord]:
        """Return the records of the live members, with or without a link, including this node's."""
        found = {self.own_record.record.peer: self.own_record.record}
        for peer in self.probing.liveness.live():
            if (known := self.roster.known(peer)) and self._shows(peer):
                found[peer] = known.record
        return found

    def screen(self, shows: Callable[[PeerId], bool]) -> None:
        """Set which peers count as members and are dialled.

        Call this again when `shows` changes.
        """
        self._shows = shows
        self.roster.count_only(shows)
        self._changed()

    def everybody(self) -> frozenset[PeerId]:
        """Return all members with a known record, with or without a link, live or not."""
        return self.roster.authors()

    async def changed(self, version: int) -> int:
        """Wait until the version is greater than `version`, and return it."""
        while self._version <= version:
            await self._news.wait()
        return self._version

    def publish(self, **changes: Any) -> None:
        """Replace fields of this node's own record, sign the record, and send it to peers.

        Raises BadRecord if a value is out of bounds. Then the old record stays.
        """
        if all(getattr(self.own_record.record, field) == value for field, value in changes.items()):
            return
        self._renew(**changes)

    def _renew(self, **changes: Any) -> None:
        self.own_record.renew(linked=bool(self._begun), **changes)
        self._spread_own()
        self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._wake()
        for told in self.on_change:
            told()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    # Links.

    def _link_up(self, link: Link) -> None:
        """Begin the exchange of records if this node dialled the link and wants to keep it.

        Until the exchange begins, the link is pinged only rarely. If the link is brief, only the
        node that dialled it has to notice its end.
        """
        link.rest(defaults.REST_S)
        if link.identities.dialled and not link.brief:
            self._begin(link)

    def _begin(self, link: Link) -> None:
        """Start to exchange records over a link. Its peer is a live member from now on."""
        if link in self._begun or not link.alive:
            return
        self._begun[link] = None
        link.keep()
        self.roster.linked(link.peer, _nearness(link))
        self._post(
            link, "member.push", msgpack.packb([(Nearness.LOOPBACK, 0, self.own_record.sealed)])
        )
        if link.identities.dialled:
            self._to_compare.append(link)
        self.probing.begin(link)
        self._changed()

    def _link_lost(self, link: Link, code: str) -> None:
        self._record_news.ended(link)
        self.probing.ended(link)
        if link not in self._begun:
            return
        del self._begun[link]
        other = self._endpoint.link(link.peer)
        if other is None or other.quiet or other not in self._begun:
            self.roster.unlinked(link.peer, self._host.now())
        self._changed()

    def _link_quiet(self, link: Link) -> None:
        """Stop treating a peer as live whose link does not answer, until the link is back.

        The link itself searches for a new path until it ends.
        """
        if link in self._begun:
            self.roster.unlinked(link.peer, self._host.now(), searched=True)
            self.probing.quiet(link)
            self._changed()

    def _link_back(self, link: Link) -> None:
        if link in self._begun:
            self.roster.linked(link.peer, _nearness(link))
            self.probing.back(link)
            self._changed()

    def _post(self, link: Link, method: str, payload: bytes, *, later: bool = False) -> None:
        with suppress(TransportError):  # the link just ended; a new one compares again
            link.post(method, payload=payload, priority=Priority.CONTROL, later=later)

    def _hand_on(self) -> float:
        """Announce new records over a few links. Return the seconds until the next batch.

        An announcement has only the author's tag and the sequence number of a record. A peer that
        lacks the record pulls it.
        """
        now = self._host.now()
        for link, authors, urgent in self._record_news.take(now):
            if told := self.roster.offers(now, authors):
                self._post(link, "member.digest", encode_digest(told), later=not urgent)
        return max(min(self._record_news.next_at() - now, defaults.MEMBERS_LOOK), _LEAST_WAIT)

    async def _compare(self, link: Link) -> None:
        """Find the records that either end of a new link lacks.

        Both ends list their records in the buckets whose checksums differ. A peer whose version
        does not support checksums gets a digest of all records.
        """
        sums = self._sums()
        try:
            reply = await link.call("member.sums", payload=sums, timeout=defaults.PULL_TIMEOUT)
        except CallRefused:
            offers = self.roster.offers(self._host.now())
            self._post(link, "member.digest", encode_digest(offers))
            return
        except TransportError:  # the link has ended
            return
        theirs, digest = reply.payload[: len(sums)], reply.payload[len(sums) :]
        try:
            differing = self.roster.differing(sums, read_sums(theirs))
            if differing:
                offers = self.roster.offers(self._host.now(), differing)
                self._post(link, "member.digest", encode_digest(offers))
            await self._offered(link, read_digest(digest))
        except BadRecord as error:
            self._blame(link, error)

    def _sums(self) -> bytes:
        return self.roster.sums(mark_of(self.own_record.sealed))

    def _spread_own(self) -> None:
        """Push this node's latest record over all links, if it has changed and it is time to.

        `run` calls this again for a change that has to wait.
        """
        if self._begun and (push := self.own_record.take(self._host.now())) is not None:
            sealed, urgent = push
            told = msgpack.packb([(Nearness.LOOPBACK, 0, sealed)])
            for link in list(self._begun):
                self._post(link, "member.push", told, later=not urgent)

    # Calls from peers.

    async def _on_push(self, call: Call) -> Answer:
        """Store pushed records.

        The first push starts the exchange over a link that the peer dialled.
        """
        link = self._asker(call, "member.push")
        if isinstance(link, Refusal):
            return link
        self._begin(link)
        try:
            await self._take(link, call.payload)
        except BadRecord as error:
            return self._blame(link, error)
        return Reply()

    def _on_sums(self, call: Call) -> Answer:
        """Reply to a comparison with this node's checksums, and a digest of the buckets that
        differ."""
        link, now = self._asker(call, "member.sums"), self._host.now()
        if isinstance(link, Refusal):
            return link
        try:
            theirs = read_sums(call.payload)
        except BadRecord as error:
            return self._blame(link, error)
        sums = self._sums()
        offers = self.roster.offers(now, self.roster.differing(sums, theirs))
        return Reply(payload=sums + encode_digest(offers))

    async def _on_digest(self, call: Call) -> Answer:
        """Pull the records in a peer's digest that this node lacks."""
        link = self._asker(call, "member.digest")
        if isinstance(link, Refusal):
            return link
        try:
            await self._offered(link, read_digest(call.payload))
        except BadRecord as error:
            return self._blame(link, error)
        return Reply()

    def _asker(self, call: Call, method: str) -> Link | Refusal:
        """Return the link of the calling peer, or a refusal if the peer calls too often or has no
        link."""
        link = self._endpoint.link(call.peer)
        if link is None:
            return Refusal("no-link", "the link has ended")
        if not self._rates[method].take(call.peer, self._host.now()):
            return Refusal("too-often", f"`{method}` comes too often")
        return link

    async def _offered(self, link: Link, offers: Mapping[Tag, RecordOffer]) -> None:
        """Pull the records that a peer offers and this node lacks.

        Raises BadRecord if the peer is at fault.
        """
        known = ((tag, self.roster.tagged(tag)) for tag in offers)
        late = [one.record.peer for tag, one in known if one and one.record.seq <= offers[tag].seq]
        self._record_news.heard(link, late)
        wanted = self.roster.lacking(
            offers, _nearness(link), self._host.now(), self.own_record.record.seq
        )
        await self.pulls.pull(link, {tag: offers[tag].seq for tag in wanted})

    def _lacks(self, author: Tag, seq: int) -> bool:
        if author == self.roster.tag:
            return seq > max(self.own_record.record.seq, self.roster.reclaimed or 0)
        return not self.roster.has(author, seq)

    def _on_pull(self, call: Call) -> Answer:
        """Reply with the known records of the authors whose tags the peer names."""
        link = self._asker(call, "member.pull")
        if isinstance(link, Refusal):
            return link
        try:
            tags = read_tags(call.payload)
        except BadRecord as error:
            return self._blame(link, error)
        told: list[Told] = []
        for tag in tags:
            if tag == self.roster.tag:
                told.append((Nearness.LOOPBACK, 0, self.own_record.sealed))
            elif (known := self.roster.tagged(tag)) is not None:
                offer = self.roster.offer(known.record.peer, self._host.now())
                told.append((offer.reach, offer.age, known.sealed))
        return Reply(payload=msgpack.packb(told))

    def _blame(self, link: Link, error: BadRecord) -> Refusal:
        """Close the link of a peer that wrote or forwarded an invalid record.

        Return a refusal as the reply.
        """
        self.roster.put_off(link.peer)
        link.close(error.code, error.message)
        return Refusal(error.code, error.message)

    async def _take(self, link: Link, payload: bytes | memoryview) -> None:
        """Store records that are signed and new, and queue them for announcement.

        Raises BadRecord if the sender is at fault.
        """
        near, steps = _nearness(link), StepCounter()
        for claimed, age, sealed in read_told(payload):
            reach = min(claimed, near)
            record = self.roster.receive(sealed, link.peer, reach, self._host.now(), age)
            if record is None:
                if steps.ends_with(sealed):
                    await trio.lowlevel.checkpoint()
                continue
            knowing = {link, *self.pulls.tellers(tag_of(record.peer))}
            others = [x for x in self._begun if x not in knowing]
            all_served = record.runs, record.stored, record.aims
            serves = all_served if any(all_served) else None
            new = record.peer == link.peer and serves is None
            self._record_news.add(record.peer, others, self._host.now(), serves=serves, new=new)
            if self.probing.liveness.is_live(record.peer):
                self._changed()
            self._wake()
            self.probing.wake()
            await trio.lowlevel.checkpoint()  # checking a signature takes 0.1 ms
        self._reclaim()
        if self.roster.reclaimed is not None:
            self._wake()  # `run` retries later, even if no message comes
        await trio.lowlevel.checkpoint()

    def _reclaim(self) -> None:
        """Publish a later record than one of this node's own key that came from a peer."""
        claimed, now = self.roster.reclaimed, self._host.now()
        if claimed is None or not self.own_record.may_reclaim(now):
            return
        self.roster.reclaimed = None
        if self.own_record.reclaim(claimed, now):
            self._renew()

    # Running.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Announce records and dial known members, until cancelled.

        The caller dials the first peer.
        """
        async with trio.open_nursery() as nursery:
            task_status.started()
            nursery.start_soon(self.probing.run)
            await self._endpoint.guard.repeat("members' records", self._rounds, nursery)

    async def _rounds(self, nursery: trio.Nursery) -> None:
        while True:
            while self._to_compare:
                link = self._to_compare.pop()
                self._endpoint.guard.start(nursery, link.peer, self._compare, link)
            self._reclaim()
            self._spread_own()
            wait = min(self._hand_on(), self._start_dials(nursery))
            if self.roster.reclaimed is not None:
                wait = min(wait, defaults.RECLAIM_PAUSE)
            with trio.move_on_after(wait):
                await self._news.wait()
            await trio.sleep(defaults.ROUND)

    def _start_dials(self, nursery: trio.Nursery) -> float:
        """Dial the members that are due. Return the seconds until the next dial or push may be due.

        News end this wait early.
        """
        wait = self._dialer.start_due(nursery, self._wake)
        wait = min(wait, self.own_record.next_at() - self._host.now())
        return min(max(wait, _LEAST_WAIT), defaults.MEMBERS_LOOK)

    def where(self, peer: PeerId) -> list[Address]:
        """Return the addresses that a peer publishes and that may be dialled."""
        return self.roster.where(peer)


_LEAST_WAIT = 0.01  # seconds; a shorter wait could round to 0 and spin on a stopped clock


def _nearness(link: Link) -> Nearness:
    return nearness_at(link.address[0])
