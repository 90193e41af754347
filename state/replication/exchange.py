"""The gossip protocol that replicates feeds between nodes: news, comparisons and pulls.

A node sends news of changed feeds to a few neighbours at once. From time to time two nodes compare
their digests: roots first, then the hashes of buckets, then the heads in buckets that differ. Each
of them then knows which entries it lacks, and pulls them. Only the authors' own signed bytes are
sent. All calls go through `ReplicationPeers`; the code here awaits nothing but the network and the
archive.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

from ...transport.identity import PeerId, public_key_of
from ...transport.rates import Rate, RateLimiter, Rates
from .. import defaults
from ..errors import BadEntry, BadMessage, StateError
from ..feeds.digest import Plot, bucket_of
from ..feeds.entry import Entry, Head, parse_entry
from ..feeds.kinds import all_parts
from .comparison import Comparison
from .gossip import (
    DIGEST,
    HAVE,
    HEADS,
    NEWS,
    PULL,
    Compare,
    Compared,
    HeadsQuestion,
    HeadsReply,
    Item,
    Pulled,
    ReplicationPeers,
    Told,
    Unanswered,
    decode_heads,
    encode_heads,
    told,
)
from .interest import Neighbours, both
from .replica import BLAMED, Admit, Replica
from .replicafeeds import plot_of
from .wanted import Place, Pull, Wanted, is_patient


class FeedExchange:
    """One node's side of the exchange. `draw(n)` returns a random number below n."""

    def __init__(
        self, replica: Replica, network: ReplicationPeers, draw: Callable[[int], int]
    ) -> None:
        self.replica = replica
        self.wanted = Wanted(replica.lacks, draw)
        self.on_peer: list[Callable[[PeerId], None]] = []
        """Called with each peer that had no link and has one now."""
        self.rechecks: dict[PeerId, None] = {}
        """Peers to compare feeds with soon, for example because they sent a vouch for new
        authors."""
        replica.interest.on_gained.append(self._regain)
        self._network = network
        self._neighbours = Neighbours(draw)
        self._comparison = Comparison(
            replica, network, self._neighbours, self.wanted, self._post, draw
        )
        self.on_reported = self._comparison.on_reported
        # feeds with news, each with the peers that have it already
        self._news: dict[Place, set[PeerId]] = {}
        self._told_at = -inf
        self._news_since = -inf  # when the oldest of the pending news arrived
        self._patience = RateLimiter(Rate(*defaults.NEWS_PATIENCE), 0.0)
        self._round_at = 0.0
        self._round_s = defaults.GOSSIP_ROUND
        self._draw = draw
        self._rechecked = -inf
        self._rechecking = RateLimiter(Rate(*defaults.RECHECKS), 0.0)
        each, everybody = defaults.PATIENT_GIVEN
        self._shares = Rates(Rate(*each))
        self._giving = RateLimiter(Rate(*everybody), 0.0)
        self._rates = {
            NEWS: Rates(Rate(*defaults.FEED_NEWS)),
            PULL: Rates(Rate(*defaults.FEED_PULLS)),
            **{method: Rates(Rate(*defaults.FEED_ASKS)) for method in (DIGEST, HEADS, HAVE)},
        }

    # Peers.

    @property
    def peers(self) -> Iterable[PeerId]:
        return self._neighbours

    def link_up(self, peer: PeerId) -> None:
        if peer not in self._neighbours:
            self._neighbours.add(peer)
            self._stirred(defaults.GOSSIP_PATIENT)  # the node that dialled compares at once
            for callback in self.on_peer:
                callback(peer)

    def link_lost(self, peer: PeerId) -> None:
        """Forget what a peer has told, because the link to it has ended."""
        self._neighbours.remove(peer)
        self.rechecks.pop(peer, None)
        self.wanted.lost(peer)

    def round_at(self) -> float:
        """Return the time of the next comparison with a random peer.

        The time is soon after news. Without news, the pause between comparisons doubles up to
        GOSSIP_CALM.
        """
        return self._round_at

    def next_round(self) -> PeerId | None:
        """Start a round: set the time of the next one, and return the peer to compare with, or
        None."""
        now = self._network.now()
        jitter = 0.75 + self._draw(2**16) / 2**17
        self._round_at = now + self._round_s * jitter
        self._round_s = min(2 * self._round_s, defaults.GOSSIP_CALM)
        peer = self.somebody()
        if peer is not None and (known := self._neighbours.get(peer)) is not None:
            known.turn = True
        return peer

    def _stirred(self, pause: float = defaults.GOSSIP_ROUND) -> None:
        """Bring the next comparison forward, because something is new."""
        self._round_s = min(self._round_s, pause)
        self._round_at = min(self._round_at, self._network.now() + self._round_s)

    def somebody(self) -> PeerId | None:
        """Return a random peer to compare with, or None if there is none."""
        return self._neighbours.somebody(self.replica.interest.stored)

    def uncovered(self) -> list[Plot]:
        """Return the plots that this node stores but no linked peer does, as far as is known."""
        interest, peers = self.replica.interest, self._neighbours
        return [plot for plot in all_parts() if interest(plot) and not peers.sharing((plot,))]

    def _regain(self, plots: frozenset[Plot]) -> None:
        """Schedule comparisons with a few peers that store these plots, which this node stores from
        now on."""
        self._neighbours.forget_pairs()
        sharing = self._neighbours.sharing(plots)
        self.rechecks |= dict.fromkeys(self._neighbours.some(sharing, defaults.REGAINED))

    # News.

    async def write(self, entries: Sequence[Entry], admit: Admit | None = None) -> None:
        """Store entries of this node's own feeds in the archive, then send news of them."""
        async with self._network.turn():
            taken = await self.replica.write(entries, admit)
        self._note(taken.news, None)

    def _note(self, news: Mapping[Place, Head], source: PeerId | None) -> None:
        """Queue news of these heads for peers that are not known to have the entries.

        `source` is the peer that sent the entries, or None for this node.
        """
        if news:
            patient = all(kind in defaults.NEWS_PATIENT for _, (kind, _) in news)
            self._stirred(defaults.GOSSIP_PATIENT if patient else defaults.GOSSIP_ROUND)
            if not self._news:
                self._news_since = self._network.now()
        for place, head in news.items():
            having = {peer for peer, head_told in self.wanted.tellers(place).items()
                      if head_told.same(head)}  # fmt: skip
            if source is not None:
                having.add(source)
            self._news.pop(place, None)
            self._news[place] = having
            self.wanted.settle(place)
        while len(self._news) > defaults.NEWS_WAITING:
            del self._news[next(iter(self._news))]

    def due_at(self) -> float:
        """Return the time at which `tell`, `next_pulls` or `due_rechecks` may have work.

        Events such as messages may give them work earlier. Returns infinity if they have none.
        """
        waiting = self.rechecks or self.replica.newcomers
        rechecks = self._recheck_at() if waiting else inf
        return min(self._tell_at(), rechecks, self.wanted.next_at(self._network.now()))

    def _tell_at(self) -> float:
        if not self._news:
            return inf
        soon = self._told_at + defaults.NEWS_PAUSE
        patient = all(kind in defaults.NEWS_PATIENT for _, (kind, _) in self._news)
        return max(soon, self._patience.due) if patient else soon

    def tell(self) -> None:
        """Send the pending news to neighbours, if it is time to."""
        now = self._network.now()
        if not self._news or now < self._tell_at():
            return
        self._told_at = now
        self._patience.take(now)
        news, self._news = self._news, {}
        self._neighbours.turn(now)
        plots = dict.fromkeys(plot for _, plot in news)
        keepers = {
            plot: self._neighbours.keepers(plot, self._told(plot, len(news), now)) for plot in plots
        }
        lots: dict[PeerId, list[Place]] = {}
        for place, having in news.items():
            for peer in keepers[place[1]]:
                if peer not in having:
                    lots.setdefault(peer, []).append(place)
        for peer, places in lots.items():
            self._post(peer, self.replica.told(places))

    def _told(self, plot: Plot, feeds: int, now: float) -> int:
        """Return the number of neighbours that get news of a plot in a batch of news of `feeds`
        feeds."""
        if now - self._news_since <= defaults.NEWS_GATHERED:
            many = feeds >= defaults.NEWS_MANY  # a partition has healed
            return defaults.NEIGHBOURS_MOST if many else defaults.NEIGHBOURS
        return defaults.NEIGHBOURS_FEW if plot[0] in defaults.NEWS_PATIENT else defaults.NEIGHBOURS

    def _post(self, peer: PeerId, heads: list[Told]) -> None:
        for start in range(0, len(heads), defaults.NEWS_HEADS):
            some = heads[start : start + defaults.NEWS_HEADS]
            patient = all(head.kind in defaults.NEWS_PATIENT for head in some)
            self._network.post(peer, NEWS, encode_heads(some), later=patient)

    def heard(self, peer: PeerId, payload: bytes) -> None:
        """Process news from a peer. Entries that this node lacks are pulled later."""
        now = self._network.now()
        if peer not in self._neighbours or not self._rates[NEWS].take(peer, now):
            return
        try:
            heads = decode_heads(payload)
            for head in heads:  # a peer that sent this node a head does not need news of it
                having = self._news.get((head.key, head.plot))
                if having is not None and head.same(self.replica.head(head.key, head.plot)):
                    having.add(peer)
            self.wanted.heard(peer, heads, now)
        except BadMessage as error:
            self._network.blame(peer, error)

    # Pulling.

    def next_pulls(self) -> list[Pull]:
        """Return the pulls to start now. Call `pull` for each."""
        return self.wanted.next(self._network.now())

    async def pull(self, pull: Pull) -> None:
        """Pull missing entries of feeds from a peer, as many as one reply holds."""
        peer, places = pull.peer, pull.places
        vain, left = set(places), set[Place]()
        before = {place: self.replica.head(*place) for place in places}
        try:
            asked = encode_heads(self.replica.told(places))
            pulled = Pulled.decode(await self._network.call(peer, PULL, asked))
            seen = await self._take(pull, pulled)
            vain = {place for place in places if self.replica.head(*place) == before[place]}
            if pulled.more:  # the reply was cut off after its last feed
                left = vain & set(places[places.index(seen[-1]) + 1 if seen else 0 :])
                vain -= left
        except Unanswered:
            pass
        except (BadMessage, BadEntry) as error:
            self._network.blame(peer, error)
        except StateError:
            pass  # the archive refuses writes now, and has reported it
        finally:
            self.wanted.ended(pull, vain, self._network.now(), left)

    async def _take(self, pull: Pull, pulled: Pulled) -> list[Place]:
        """Add the entries in a peer's reply to the replica.

        A few feeds are added at a time, so that other tasks run in between. Returns the feeds of
        which the reply had entries, in the order of the request.
        """
        news: dict[Place, Head] = {}
        lots = by_feed(pulled.items, pull.places)
        try:
            for items in _turns(lots.values()):
                async with self._network.turn():
                    taken = await self.replica.take(items)
                for key, size in taken.bytes.items():
                    self.wanted.came(key, size, self._network.now())
                news |= taken.news
                if taken.blame is not None:
                    raise taken.blame
        finally:
            self._note(news, pull.peer)  # together, because news of many feeds goes to more peers
        if self.replica.newcomers and pull.peer in self._neighbours:
            self.rechecks[pull.peer] = None  # it sent entries of an author that vouches for them
        return [place for place, items in lots.items() if items]

    # Comparing.

    def due_rechecks(self) -> list[PeerId]:
        """Return peers whose feeds must be compared again now. Call `compare` for each.

        The reason is that this node stores feeds which earlier comparisons did not include.
        """
        now = self._network.now()
        newcomers = self.replica.newcomers
        if not (self.rechecks or newcomers) or now < self._recheck_at():
            return []
        if newcomers:
            # Earlier comparisons did not include these authors.
            self._neighbours.forget_pairs({bucket_of(key) for key in newcomers})
            newcomers.clear()
            if not self.rechecks and (peer := self.somebody()) is not None:
                self.rechecks[peer] = None
        self._rechecked = now
        self._rechecking.take(now)
        peers, self.rechecks = list(self.rechecks), {}
        return self._neighbours.some(peers, defaults.RECHECKED)

    async def compare(self, peer: PeerId) -> None:
        """Compare feeds with a peer, to find the entries that one of the two nodes lacks."""
        await self._comparison.compare(peer)

    def _recheck_at(self) -> float:
        return max(self._rechecked + defaults.RECHECK, self._rechecking.due)

    # Answering.

    async def answer(self, peer: PeerId, method: str, payload: bytes) -> bytes:
        """Return the reply to a peer's call.

        Raises BadMessage if the call is malformed, and StateError `too-often` if the peer calls too
        often.
        """
        if method == PULL:
            return await self.give(peer, payload)
        return self.answer_at_once(peer, method, payload)

    def answer_at_once(self, peer: PeerId, method: str, payload: bytes) -> bytes:
        """Return the reply to a call of any method but PULL. Raises the same errors as `answer`.

        PULL is the only method whose reply may need the disk.
        """
        self._admit(peer, method)
        if method == DIGEST:
            return self._compared(peer, Compare.decode(payload)).encode()
        if method == HEADS:
            return self._heads(HeadsQuestion.decode(payload)).encode()
        heads = decode_heads(payload, defaults.HAVE_FEEDS)
        if peer in self._neighbours:
            self.wanted.heard(peer, heads, self._network.now())
        return encode_heads(self.replica.told((head.key, head.plot) for head in heads))

    async def give(self, peer: PeerId, payload: bytes) -> bytes:
        """Return the reply to a PULL, perhaps from the disk. Raises the same errors as `answer`.

        Feeds of patient kinds are given within a budget. If some are left out because of it, the
        reply says that there is more, and the caller pulls them from other peers.
        """
        self._admit(peer, PULL)
        asked, now = decode_heads(payload, defaults.PULL_FEEDS), self._network.now()
        patient = [head for head in asked if is_patient(head.plot)]
        room = sum(self._shares.take(peer, now) or self._giving.take(now) for _ in patient)
        held = patient[room:]
        pulled = await self.replica.give([head for head in asked if head not in held])
        return Pulled(pulled.items, more=pulled.more or bool(held)).encode()

    def _admit(self, peer: PeerId, method: str) -> None:
        if not self._rates[method].take(peer, self._network.now()):
            raise StateError("too-often", f"`{method}` is called too often")

    def _compared(self, peer: PeerId, asked: Compare) -> Compared:
        digest, keeps = self.replica.digest, self.replica.interest.stored
        if (known := self._neighbours.get(peer)) is not None:
            known.keeps = asked.keeps
        shared = both(keeps, asked.keeps)
        if asked.top == digest.top(shared):
            return Compared({}, keeps=keeps)
        mine = digest.roots(shared)
        if asked.roots is None:
            return Compared(mine, keeps=keeps)
        plots = [
            plot
            for plot in dict.fromkeys((*mine, *asked.roots))
            if shared is None or plot in shared
        ]
        roots = {plot: digest.tree(plot).root() for plot in plots}
        differing = {plot: root for plot, root in roots.items() if asked.roots.get(plot) != root}
        buckets = {plot: digest.tree(plot).buckets() for plot in differing}
        return Compared(differing, buckets, keeps)

    def _heads(self, asked: HeadsQuestion) -> HeadsReply:
        found: list[Told] = []
        after = asked.after
        for plot, numbers in asked.buckets.items():
            tree = self.replica.digest.tree(plot)
            for number in numbers:
                heads = tree.heads(number)
                keys = [key for key in sorted(heads) if key > after]
                if len(found) + len(keys) > defaults.HEADS:
                    keys = keys[: defaults.HEADS - len(found)]
                    found += (told(key, plot, heads[key]) for key in keys)
                    return HeadsReply(found, more=True)
                found += (told(key, plot, heads[key]) for key in keys)
                after = b""
        return HeadsReply(found)


def _turns(lots: Iterable[Sequence[Item]]) -> Iterator[list[Item]]:
    """Join the items of several feeds into batches of some KiB.

    Each batch is one transaction of the archive. Most feeds have only a few hundred bytes.
    """
    turn: list[Item] = []
    for items in filter(None, lots):
        turn += items
        if sum(len(sealed) for item in turn for sealed in item) >= defaults.TURN_BYTES:
            yield turn
            turn = []
    if turn:
        yield turn


def by_feed(items: Iterable[Item], places: Iterable[Place]) -> dict[Place, list[Item]]:
    """Group items by their feed, in order. Items of feeds that are not in `places` are skipped.

    Raises BadEntry if an item is malformed in a way that only the peer that sent it can have
    caused.
    """
    found: dict[Place, list[Item]] = {place: [] for place in places}
    for item in items:
        try:
            name = parse_entry(item[0]).entry.name
        except BadEntry as error:
            if error.code in BLAMED:
                raise
            continue
        place = public_key_of(name.author), plot_of(name)
        if place in found:
            found[place].append(item)
    return found
