"""Comparison of two nodes' feeds, which finds the entries that each of them lacks.

The nodes compare the roots of their hash trees first, then the hashes of the buckets, and then the
heads in buckets that differ.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadMessage
from ..feeds.digest import Plot, bucket_of
from .gossip import (
    DIGEST,
    HAVE,
    HEADS,
    Compare,
    Compared,
    HeadsQuestion,
    HeadsReply,
    ReplicationPeers,
    Told,
    Unanswered,
    decode_heads,
    encode_heads,
    told,
)
from .interest import BucketAt, Neighbour, Neighbours, Pair, both
from .replica import Replica
from .wanted import Place, Wanted, is_patient

_BUCKETS_AT_ONCE = 16  # searched between two pauses: tens of microseconds


class Comparison:
    """The side of a comparison that asks.

    `tell` sends heads to a peer as news. `draw(n)` returns a random number below n.
    """

    def __init__(
        self,
        replica: Replica,
        network: ReplicationPeers,
        neighbours: Neighbours,
        wanted: Wanted,
        tell: Callable[[PeerId, list[Told]], None],
        draw: Callable[[int], int],
    ) -> None:
        self.replica = replica
        self.wanted = wanted
        self.on_reported: list[Callable[[PeerId], None]] = []
        """Called after each comparison with a peer that has no entry of this node's own feeds which
        is missing here (see `FeedWriter.reported`)."""
        self._network = network
        self._neighbours = neighbours
        self._tell = tell
        self._draw = draw

    async def compare(self, peer: PeerId) -> None:
        """Compare feeds with a peer, to find the entries that one of the two nodes lacks.

        Entries that this node lacks are added to `wanted`, and are pulled later. The peer gets news
        of those that it lacks.
        """
        known = self._neighbours.get(peer)
        if known is None or known.comparing:
            return
        known.comparing = True
        try:
            unasked = await self._compare(peer, known)
            await self._ask_own(peer, known)
            own, own_bucket = self.replica.own, bucket_of(self.replica.own)
            if not self.wanted.lacks_of(peer, own) and own_bucket not in {at[1] for at in unasked}:
                for callback in self.on_reported:
                    callback(peer)
        except Unanswered:
            pass
        except BadMessage as error:
            self._network.blame(peer, error)
        finally:
            known.comparing = False

    async def _compare(self, peer: PeerId, known: Neighbour) -> Collection[BucketAt]:
        """Compare the feeds of this node with those of a peer. Return the buckets whose digests
        differ, but whose heads were not compared this time."""
        waits = self.wanted.waits(peer, self._network.now(), known.turn)
        known.turn = False
        answer = await self._ask_digest(peer, known, roots=known.differed and not waits)
        known.differed = bool(answer.roots)
        later: dict[Plot, bytes] = {}  # roots of plots that are compared later
        if answer.roots and answer.buckets is None:
            if waits:
                later = {plot: answer.roots[plot] for plot in answer.roots if is_patient(plot)}
            answer = await self._ask_digest(peer, known, roots=True, same=later)
        pairs = dict(self._differing(known, answer.buckets or {}))
        chosen = self._chosen(pairs)
        theirs, unasked = await self._ask_heads(peer, chosen)
        if self._neighbours.get(peer) is not known:
            raise Unanswered  # as in `_ask_own`
        self.wanted.heard(peer, theirs.values(), self._network.now())
        asked = {at: pair for at, pair in chosen.items() if at not in unasked}
        self._tell(peer, await self._beyond(asked, theirs))
        lacking = {
            (head.plot, bucket_of(head.key)) for head in theirs.values() if self.replica.lacks(head)
        }
        known.pairs |= {at: pair for at, pair in asked.items() if at not in lacking}
        while len(known.pairs) > defaults.SAME_PAIRS:
            del known.pairs[next(iter(known.pairs))]
        unasked |= pairs.keys() - chosen.keys()
        return unasked | {(plot, bucket_of(self.replica.own)) for plot in later}

    def _chosen(self, pairs: Mapping[BucketAt, Pair]) -> Mapping[BucketAt, Pair]:
        """Return the buckets of which to compare heads now.

        While the budget for patient kinds is used up, most buckets of these kinds are left out. A
        random range of PATIENT_BUCKETS bucket numbers remains.
        """
        if not self.wanted.spent(self._network.now()):
            return pairs
        first, most = self._draw(256), defaults.PATIENT_BUCKETS
        return {
            at: pair
            for at, pair in pairs.items()
            if not is_patient(at[0]) or (at[1] - first) % 256 < most
        }

    async def _ask_digest(
        self,
        peer: PeerId,
        known: Neighbour,
        *,
        roots: bool,
        same: Mapping[Plot, bytes] = MappingProxyType({}),
    ) -> Compared:
        """Compare the roots of the hash trees with a peer's, and return its reply.

        For the plots in `same`, the given roots are sent instead of this node's, so that these
        plots count as equal. If `roots` is False, only the hash over all roots is compared.
        """
        digest, mine = self.replica.digest, self.replica.interest.stored
        shared = both(mine, known.keeps)
        ask = Compare(digest.top(shared), {**digest.roots(shared), **same} if roots else None, mine)
        answer = Compared.decode(await self._network.call(peer, DIGEST, ask.encode()))
        known.keeps = answer.keeps
        return answer

    async def _ask_own(self, peer: PeerId, known: Neighbour) -> None:
        """Ask a peer for its heads of this node's own feeds that comparisons leave out.

        Comparisons leave out plots of which this node stores no other author's feeds.
        """
        plots = [plot for plot in self.replica.interest.aside() if known.shares(plot)]
        now = self._network.now()
        if not plots or now < known.own_at:
            return
        known.own_at = now + defaults.OWN_AGAIN
        own = self.replica.own
        asked = encode_heads(self.replica.told((own, plot) for plot in plots))
        heads = decode_heads(await self._network.call(peer, HAVE, asked), defaults.HAVE_FEEDS)
        if self._neighbours.get(peer) is not known:
            raise Unanswered  # the link has ended: store nothing about the peer
        self.wanted.heard(peer, [head for head in heads if head.key == own], self._network.now())

    def _differing(
        self, known: Neighbour, buckets: Mapping[Plot, Mapping[int, bytes]]
    ) -> Iterable[tuple[BucketAt, Pair]]:
        """Yield the buckets that differ, without those that are known to have nothing that this
        node lacks."""
        for plot, theirs in buckets.items():
            if not self.replica.interest(plot):
                continue
            mine = self.replica.digest.tree(plot).buckets()
            for number in sorted(mine.keys() | theirs.keys()):
                pair = mine.get(number), theirs.get(number)
                if pair[0] != pair[1] and known.pairs.get((plot, number)) != pair:
                    yield (plot, number), pair

    async def _ask_heads(
        self, peer: PeerId, pairs: Mapping[BucketAt, Pair]
    ) -> tuple[dict[Place, Told], set[BucketAt]]:
        """Return (the peer's heads in these buckets, buckets in which it may have more).

        Stops early if the peer has more heads than this node stores as offers of one peer. The
        other buckets are compared after entries of the first ones have been pulled.
        """
        wanted: dict[Plot, bytes] = {}
        for (plot, number), (_, theirs) in pairs.items():
            if theirs is not None:
                wanted[plot] = wanted.get(plot, b"") + bytes((number,))
        found: dict[Place, Told] = {}
        ask, room = HeadsQuestion(wanted), self.wanted.room(peer)
        while any(ask.buckets.values()):
            payload = await self._network.call(peer, HEADS, ask.encode())
            heads = HeadsReply.decode(payload)
            before = len(found)
            found |= {(head.key, head.plot): head for head in heads.heads}
            if not heads.more:
                return found, set()
            ask = ask.rest(heads.heads[-1], bucket_of(heads.heads[-1].key)) if heads.heads else ask
            if len(found) == before or len(found) > room:
                break
        return found, {(plot, number) for plot in ask.buckets for number in ask.buckets[plot]}

    async def _beyond(
        self, buckets: Iterable[BucketAt], theirs: Mapping[Place, Told]
    ) -> list[Told]:
        """Return heads of this node in these buckets that the peer lacks.

        Returns at most TOLD of them, because a peer stores no more. The peer finds the rest when it
        compares.
        """
        found: list[Told] = []
        for looked, (plot, number) in enumerate(buckets):
            for key, mine in self.replica.digest.tree(plot).heads(number).items():
                his = theirs.get((key, plot))
                if his is None or (mine[:2] >= his[3:5] and not his.same(mine)):
                    found.append(told(key, plot, mine))
            if len(found) >= defaults.TOLD:
                break
            if looked % _BUCKETS_AT_ONCE == _BUCKETS_AT_ONCE - 1:
                await self._network.pause()
        return found[: defaults.TOLD]
