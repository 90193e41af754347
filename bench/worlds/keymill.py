"""A malicious light node that invents authors: a tree of fresh keys, each vouching for 64 more.

It announces a voucher's 64 keys to a peer right after sending it that voucher, and signs what they
write when a peer asks for it. Like any author, each fresh key writes and vouches, so a peer that
stores it learns of the next keys. A full store refuses whole branches of the tree, so the node
announces others of its branches again from time to time.
"""

from functools import lru_cache, partial
from random import Random
from typing import Any, Final

import msgpack

from shoal.state import defaults
from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import NO_PARENT, Entry, FeedName, client_of, seal_entry
from shoal.state.feeds.feed import snapshot
from shoal.state.feeds.kinds import KINDS
from shoal.state.replication.gossip import (
    DIGEST,
    HEADS,
    NEWS,
    PULL,
    Compared,
    HeadsReply,
    Pulled,
    Told,
    decode_heads,
    encode_heads,
)
from shoal.state.replication.vouches import VOUCHES
from shoal.transport.identity import Identity, PeerId

from .replicanode import ReplicaNode

PLOT: Final[Plot] = ("member", 0)
MILLS: Final = 2_000_000_000
"""The first secret of the fresh keys; each mill has a range of its own."""
AGAIN_S: Final = (2.0, 10.0)
EACH: Final = 1_000_000_000
BRANCHES: Final = 100
"""Vouchers whose keys are announced again at once."""


class KeyMill(ReplicaNode):
    """Malicious node number `number`. Its own key is the root of the tree."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._base = MILLS + EACH * int.from_bytes(self.replica.own[:3])
        self._numbers: dict[bytes, int] = {self.replica.own: 0}
        self._served = list[int]()  # vouchers that a peer has pulled
        self._chance = Random(self._base)
        self.named = 0
        """Number of fresh keys that at least one peer has heard of."""
        self.quiet = False
        """Whether it has stopped: it announces and serves nothing any more."""

    def begin(self) -> None:
        """Do nothing: it never compares with a peer."""

    def lure(self, peer: PeerId) -> None:
        """Announce its own feed to a peer."""
        self._tell(peer, [self.replica.own])

    def resume(self, peer: PeerId) -> None:
        """Announce the keys of some vouchers that a peer may have stored."""
        for number in self._chance.sample(self._served, min(BRANCHES, len(self._served))):
            self._tell(peer, self._kids(number))

    def _tell(self, peer: PeerId, keys: list[bytes]) -> None:
        if self.quiet:
            return
        heads = [Told(key, *PLOT, 1, 0, bytes(16)) for key in keys]
        self.post(peer, NEWS, encode_heads(heads))

    async def serve(self, peer: PeerId, method: str, payload: bytes) -> bytes | None:
        if method == DIGEST:
            return Compared({}).encode()
        if method == HEADS:
            return HeadsReply(()).encode()
        assert method == PULL
        if self.quiet:
            return None
        items = []
        for asked in decode_heads(payload, defaults.PULL_FEEDS):
            if asked.key in self._numbers and asked.plot == PLOT and not asked.epoch:
                number = self._numbers[asked.key]
                self._served.append(number)
                items.append((self._entry(number).sealed,))
                kids = self._kids(number)
                for wait in AGAIN_S:  # by then the peer has stored their voucher
                    self.at(self.time + wait, partial(self._tell, peer, kids))
        return Pulled(items).encode()

    def _kids(self, number: int) -> list[bytes]:
        first = defaults.AUTHOR_VOUCHED * number + 1
        keys = []
        for kid in range(first, first + defaults.AUTHOR_VOUCHED):
            key = _fresh(self._base + kid).public_key
            if key not in self._numbers:
                self._numbers[key] = kid
                self.named += 1
            keys.append(key)
        return keys

    def _entry(self, number: int) -> Entry:
        identity = _fresh(self._base + number) if number else self.identity
        return _written(identity.seed, tuple(self._kids(number)))


@lru_cache(200_000)
def _fresh(secret: int) -> Identity:
    return Identity.from_seed(secret.to_bytes(32))


@lru_cache(50_000)
def _written(seed: bytes, kids: tuple[bytes, ...]) -> Entry:
    identity = Identity.from_seed(seed)
    name = FeedName(identity.peer, *PLOT)
    facts = {VOUCHES: msgpack.packb({"keys": kids}), "version": msgpack.packb({"v": "1.0"})}
    update = snapshot(KINDS[PLOT[0]], client_of(name, 1), facts)
    return seal_entry(identity, *PLOT, epoch=1, seq=0, parent=NO_PARENT, made=0, update=update)
