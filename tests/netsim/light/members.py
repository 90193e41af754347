"""Membership on light hosts: the core of `state/` on datagrams, driven as by `Membership`.

Instead of a lane there is an exchange with as many round trips as TCP, TLS 1.3 and the hello, and
datagrams that begin with the sender's name instead of an authenticated link. Both ends of a new
link send all that they know, whereas daemons compare sums first. No light host looks for proofs of
members without a link. Rounds, rates, limits and rules for accepting records are those of the whole
daemon.
"""

from collections.abc import Iterable, Iterator
from math import inf
from random import Random
from typing import Any, NamedTuple

import msgpack

from shoal.netsim.light import Sends
from shoal.netsim.network.packet import Addr
from shoal.state import defaults
from shoal.state.membership.record import MemberRecord, seal_record
from shoal.state.membership.recordnews import RecordNews
from shoal.state.membership.roster import RecordOffer, Roster, Tag
from shoal.transport.identity import Identity, PeerId
from shoal.transport.networks import Nearness

ROUND_TRIPS = 3  # per dial
DATAGRAM_BYTES = 1200


class LightLink(NamedTuple):
    """Stands for a link."""

    peer: PeerId
    address: Addr


class LightMember:
    """One node's roster, and its messages."""

    def __init__(
        self,
        random: Random,
        own: Addr,
        wall_ms: int,
        start: float,
        known: Iterable[Addr],
        links: int = defaults.MEMBER_LINKS,
    ) -> None:
        self.identity = Identity.from_seed(random.randbytes(32))
        self.roster = Roster(self.identity.peer)
        self.wake_at = start
        self._random = random
        self._most = links
        self._next_dial = -inf  # when there are more than the first few links
        self._known = list(known)
        record = MemberRecord(
            self.identity.peer, seq=wall_ms, addresses=(f"/ip4/{own[0]}/tcp/{own[1]}",)
        )
        self._seq = wall_ms
        self._sealed = seal_record(self.identity, record)
        self._links: dict[PeerId, LightLink] = {}
        self._dials: dict[Addr, tuple[PeerId | None, float]] = {}  # peer, and until when
        self._news = RecordNews[LightLink]()
        self._out: list[tuple[bytes, Addr]] = []

    @property
    def peer(self) -> PeerId:
        return self.identity.peer

    def members(self) -> set[PeerId]:
        """Return the linked peers whose record is stored, and this node."""
        return {self.peer, *self.roster.members()}

    # Called by the light host.

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        kind, sender, body = msgpack.unpackb(data)
        getattr(self, f"_on_{kind}")(now, PeerId(sender), source, body)
        return self._flush()

    def on_time(self, now: float) -> Sends:
        """Run a round: forward news, dial members."""
        for address in self._known:
            self._dial(address, None, now)
        self._known = []
        self._end_dials(now)
        for link, authors, _ in self._news.take(now):
            self._tell(link.address, self.roster.offers(now, authors))
        for peer, addresses in self.roster.next_dials(now, self._room(now)):
            self._next_dial = now + self._jitter(defaults.LINK_PAUSE)
            self._dial((addresses[0].host, addresses[0].port), peer, now)
        ends = min((end for _, end in self._dials.values()), default=inf)
        due = min(self._news.next_at(), self._next_dial_at())
        self.wake_at = min(ends, max(due, now + defaults.ROUND))
        return self._flush()

    def _room(self, now: float) -> int:
        """Return how many members to dial now, as in `Membership`."""
        first, links = min(self._most, defaults.FIRST_LINKS), len(self._links) + len(self._dials)
        if links >= first:
            return int(links < self._most and now >= self._next_dial)
        return min(first - links, defaults.DIALS - len(self._dials))

    def _next_dial_at(self) -> float:
        links = len(self._links) + len(self._dials)
        if len(self._dials) >= defaults.DIALS or links >= self._most:
            return inf
        first = links < defaults.FIRST_LINKS
        return max(self.roster.next_due(), -inf if first else self._next_dial)

    def _jitter(self, seconds: float) -> float:
        return seconds * self._random.uniform(0.75, 1.25)

    # Links.

    def _dial(self, address: Addr, peer: PeerId | None, now: float) -> None:
        self._dials[address] = peer, now + defaults.DIAL_TIMEOUT
        self._say(address, "dial", 1)

    def _end_dials(self, now: float) -> None:
        for address, (peer, end) in list(self._dials.items()):
            if end <= now:
                self._ended(address, peer, now)

    def _ended(self, address: Addr, peer: PeerId | None, now: float) -> None:
        self._dials.pop(address, None)
        if peer is not None:
            self.roster.dialled(peer, now, self._jitter)
        self._soon(now)

    def _on_dial(self, now: float, sender: PeerId, source: Addr, step: int) -> None:
        self._say(source, "answer", step)
        if step == ROUND_TRIPS:
            self._linked(now, sender, source)

    def _on_answer(self, now: float, sender: PeerId, source: Addr, step: int) -> None:
        if step < ROUND_TRIPS:
            self._say(source, "dial", step + 1)
        else:
            self._linked(now, sender, source)
            self._ended(source, sender, now)

    def _linked(self, now: float, peer: PeerId, address: Addr) -> None:
        if peer in self._links:
            return
        self._links[peer] = LightLink(peer, address)
        self.roster.linked(peer, Nearness.PUBLIC)
        self._push(address, [self._sealed])
        self._tell(address, self.roster.offers(now))

    # Records.

    def _on_push(self, now: float, sender: PeerId, source: Addr, body: list[bytes]) -> None:
        for sealed in body:
            record = self.roster.receive(sealed, sender, Nearness.PUBLIC, now)
            if record is not None:
                others = [x for x in self._links.values() if x.peer != sender]
                self._news.add(record.peer, others, now)
                self._soon(now)

    def _tell(self, to: Addr, offers: dict[Tag, RecordOffer]) -> None:
        """Send a digest, in as many datagrams as it takes."""
        for part in _parts(list(offers.items()), 16):
            self._say(to, "digest", dict(part))

    def _on_digest(
        self, now: float, sender: PeerId, source: Addr, body: dict[Tag, tuple[int, int, int]]
    ) -> None:
        offers = {
            tag: RecordOffer(seq, Nearness(reach), age) for tag, (seq, reach, age) in body.items()
        }
        if link := self._links.get(sender):
            known = ((tag, self.roster.tagged(tag)) for tag in offers)
            late = [
                one.record.peer for tag, one in known if one and one.record.seq <= offers[tag].seq
            ]
            self._news.heard(link, late)
        wanted = self.roster.lacking(offers, Nearness.PUBLIC, now, self._seq)
        if wanted:
            self._say(source, "pull", wanted)

    def _on_pull(self, now: float, sender: PeerId, source: Addr, body: list[Tag]) -> None:
        known = map(self.roster.tagged, body)
        self._push(source, [item.sealed for item in known if item is not None])

    def _push(self, to: Addr, sealed: list[bytes]) -> None:
        """Send records, as many per datagram as fit."""
        size = 0
        batch: list[bytes] = []
        for item in sealed:
            if batch and size + len(item) > DATAGRAM_BYTES:
                self._say(to, "push", batch)
                size, batch = 0, []
            batch.append(item)
            size += len(item)
        if batch:
            self._say(to, "push", batch)

    # Sending.

    def _soon(self, now: float) -> None:
        """Schedule the next round as the daemon does: news that arrive before it travel
        together.
        """
        self.wake_at = min(self.wake_at, now + defaults.ROUND)

    def _say(self, to: Addr, kind: str, body: Any) -> None:
        self._out.append((msgpack.packb((kind, self.peer, body)), to))

    def _flush(self) -> Sends:
        out, self._out = self._out, []
        return out


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
