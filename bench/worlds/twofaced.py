"""A malicious light node with one key and two faces, which does whatever its key and links allow.

Each half of its peers sees another history of its feeds. It signs forks, entries with other ids,
entries beyond all limits, deletions and floods. As a relay it withholds and replays entries,
promises entries that do not exist, claims that nothing differs, and forges signatures.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from shoal.netsim.network.packet import Addr
from shoal.state.feeds.archive import MemoryArchive
from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import (
    MAX_EPOCH,
    NO_PARENT,
    Entry,
    FeedName,
    Head,
    client_of,
    seal_entry,
)
from shoal.state.feeds.feed import Document, snapshot
from shoal.state.feeds.kinds import KINDS, all_parts
from shoal.state.replication.exchange import FeedExchange
from shoal.state.replication.gossip import (
    DIGEST,
    HAVE,
    HEADS,
    NEWS,
    PULL,
    Compared,
    HeadsReply,
    Item,
    Pulled,
    Told,
    decode_heads,
    encode_heads,
    told,
)
from shoal.state.replication.replica import Replica, Taken
from shoal.transport.identity import Identity, PeerId

from .replicanode import ReplicaNode, SharedReplica, at_once
from .ringnode import WALL

PLOTS: Final[tuple[Plot, ...]] = (("member", 0), ("claims", 0), ("shards", 3))
ACTS: Final = (
    "write",
    "equivocate",
    "fork",
    "reuse",
    "garbage",
    "delete",
    "flood",
    "oversize",
    "restart",
)
MOODS: Final = (
    "relay",
    "keep back",
    "replay",
    "promise",
    "same",
    "forge",
    "garbage",
    "pretend",
)
_BOUNDLESS: Final = {
    name: replace(kind, epoch_bytes=2**40, live_bytes=2**40, update_bytes=2**40, keys=2**40)
    for name, kind in KINDS.items()
}


class _History:
    """The feeds of the liar's key as one face shows them."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._feeds: dict[Plot, tuple[Document, Head]] = {}

    def _name(self, plot: Plot) -> FeedName:
        return FeedName(self._identity.peer, *plot)

    def begin(self, plot: Plot, epoch: int, facts: dict[str, bytes]) -> Entry:
        client = client_of(self._name(plot), epoch)
        document = Document(_BOUNDLESS[plot[0]], client)
        return self._seal(
            plot, document, Head(epoch, -1, NO_PARENT), snapshot(document.kind, client, facts)
        )

    def write(self, plot: Plot, changes: dict[str, bytes | None]) -> Entry:
        document, head = self._feeds[plot]
        return self._seal(plot, document, head, document.write(changes))

    def bend(self, plot: Plot, update: bytes) -> Entry:
        """Return an invalid update for this document, as the next entry of the feed."""
        document, head = self._feeds[plot]
        entry = self._sealed(plot, head, update)
        self._feeds[plot] = document, entry.head
        return entry

    def _seal(self, plot: Plot, document: Document, after: Head, update: bytes) -> Entry:
        entry = self._sealed(plot, after, update)
        document.apply(update)
        self._feeds[plot] = document, entry.head
        return entry

    def _sealed(self, plot: Plot, after: Head, update: bytes) -> Entry:
        return seal_entry(
            self._identity,
            *plot,
            epoch=after.epoch,
            seq=after.seq + 1,
            parent=after.hash,
            made=0,
            update=update,
        )

    def epoch(self, plot: Plot) -> int:
        """Return the epoch of a feed; 0 if there is none."""
        return self._feeds[plot][1].epoch if plot in self._feeds else 0

    def keys(self, plot: Plot) -> list[str]:
        return list(self._feeds[plot][0].facts())


class _Shameless(SharedReplica):
    """Replica that keeps its own feeds whatever others have proven about them."""

    def lacks(self, head: Told) -> bool:
        return head.key != self.own and super().lacks(head)

    async def take(self, items: Sequence[Item]) -> Taken:
        others = [item for item in items if self.own not in item[0][:64]]
        return await super().take(others)


class TwoFaced(ReplicaNode):
    """The malicious node. `act` does something with its key; its mood as a relay changes at
    times.
    """

    def __init__(
        self,
        identity: Identity,
        random: Random,
        where: dict[PeerId, Addr],
        names: dict[Addr, PeerId],
        *,
        archive: MemoryArchive,
        replica: Callable[..., Replica],
    ) -> None:
        super().__init__(identity, random, where, names, archive=archive, replica=_Shameless)
        other = _Shameless(identity.peer, MemoryArchive())
        self._faces = [self.exchange, FeedExchange(other, self, random.randrange)]
        self._archives = [face.replica.archive for face in self._faces]
        self._histories = [_History(identity), _History(identity)]
        self._heard: list[Item] = []
        self.mood = "relay"

    def face(self, peer: PeerId) -> FeedExchange:
        return self._faces[sum(peer.encode()) % 2]

    def faces(self) -> list[FeedExchange]:
        return self._faces

    # With its key.

    def act(self, what: str, now: float) -> None:
        """Sign something and show it: each half of the peers sees its own version."""
        random, plot = self._random, self._random.choice(PLOTS)
        if what == "restart" or not self._histories[0].epoch(plot):
            epoch = int((WALL + now) * 1000) + random.randrange(5)
            facts = {f"k{n}": random.randbytes(30) for n in range(random.randrange(4))}
            for number, history in enumerate(self._histories):
                if number == 0 or random.random() < 0.5:
                    self._show(number, [history.begin(plot, epoch, facts)])
                else:
                    self._show(number, [history.begin(plot, epoch, {"other": b"half"})])
            return
        if what == "delete":
            for number, history in enumerate(self._histories):
                changes: dict[str, bytes | None] = dict.fromkeys(history.keys(plot))
                self._write(number, plot, changes)
        elif what == "reuse":
            document = Document(_BOUNDLESS[plot[0]], random.getrandbits(31) + 1)
            update = document.write({"stolen": random.randbytes(20)})
            number = random.randrange(2)
            self._show(number, [self._histories[number].bend(plot, update)])
        elif what == "garbage":
            number = random.randrange(2)
            update = random.randbytes(random.randrange(1, 60))
            self._show(number, [self._histories[number].bend(plot, update)])
        else:
            count, size = {"flood": (40, 900), "oversize": (6, 12_000)}.get(what, (1, 50))
            apart = what in ("equivocate", "fork")
            for _ in range(4 if what == "fork" else count):
                value = random.randbytes(size)
                for number in range(2):
                    mine = random.randbytes(size) if apart else value
                    self._write(number, plot, {f"k{random.randrange(9) if apart else 0}": mine})

    def _write(self, number: int, plot: Plot, changes: dict[str, bytes | None]) -> None:
        history = self._histories[number]
        if history.epoch(plot) and changes:
            self._show(number, [history.write(plot, changes)])

    def _show(self, number: int, entries: list[Entry]) -> None:
        """Give a face these entries and announce them to every peer that sees it."""
        face = self._faces[number]
        for entry in entries:
            plot = entry.name.kind, entry.name.part
            at_once(self._archives[number].put([entry]))
            face.replica.digest.set(face.replica.own, plot, entry.head)
            news = told(face.replica.own, plot, entry.head)
            for peer in list(face.peers):
                self.post(peer, NEWS, encode_heads([news]))

    # As a relay.

    async def serve(self, peer: PeerId, method: str, payload: bytes) -> bytes | None:
        random, mood = self._random, self.mood
        if mood == "keep back" and random.random() < 0.5:
            return None
        if mood == "garbage" and random.random() < 0.05:
            return random.randbytes(random.randrange(200))
        if mood == "same" and method == DIGEST:
            return Compared({}).encode()
        answer = await super().serve(peer, method, payload)
        if answer is None:
            return None
        if method == DIGEST and mood == "pretend":
            keeps = frozenset(random.sample(list(all_parts()), random.randrange(5)))
            return replace(Compared.decode(answer), keeps=keeps).encode()
        if method == HAVE and mood in ("promise", "pretend"):
            high = [head._replace(epoch=MAX_EPOCH) for head in decode_heads(answer)]
            return encode_heads(high)
        if method == HEADS and mood == "promise":
            heads = HeadsReply.decode(answer)
            high = [head._replace(epoch=MAX_EPOCH, seq=7) for head in heads.heads]
            return HeadsReply(high, heads.more).encode()
        if method == PULL:
            return self._pulled(Pulled.decode(answer)).encode()
        return answer

    def _pulled(self, pulled: Pulled) -> Pulled:
        self._heard = [*self._heard, *pulled.items][-50:]
        some = self._random.sample(self._heard, min(5, len(self._heard)))
        if self.mood in ("keep back", "promise"):
            return Pulled(())
        if self.mood == "replay":
            return Pulled(some, more=True)
        if self.mood == "forge" and self._random.random() < 0.2:
            return Pulled([(_forged(item[0]),) for item in some])
        return pulled


def _forged(sealed: bytes) -> bytes:
    """Return the same entry with a wrong signature."""
    return sealed[:60] + bytes((sealed[60] ^ 1,)) + sealed[61:]
