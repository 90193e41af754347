"""The `Directory` of a node, which combines liveness, member records and feeds.

Liveness is measured. The addresses of a member come from its signed record. Its capacity, models
and shards are facts in its feeds, which also reach nodes without a link to it.

A feed outlives its author, and changes of a feed take a while to arrive. Therefore a shard counts
only while its author is live and the author's record names the same serving run as the shard. A
member that comes back serves nothing until it publishes a new run. A member that accepts no more
work publishes that in its record at once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import trio

from ..transport.address import Address
from ..transport.host.seam import Host
from ..transport.identity import PeerId
from . import defaults
from .directory import Directory
from .errors import BadRecord
from .feeds.entry import FeedName
from .feeds.kinds import part_of_root
from .feeds.writer import Place, Value, WrittenFacts
from .membership.membership import Membership
from .membership.record import MemberRecord, ShardRecord
from .service import State
from .views.members import (
    ABOUT,
    CAPACITY,
    LINKS,
    SHARED,
    capacity_fact,
    links_fact,
    shared_fact,
)
from .views.models import model_fact
from .views.placements import shard_fact, shard_key


class Listing(Directory):
    """The directory of one node, which combines its membership and its state."""

    def __init__(self, host: Host, membership: Membership, state: State) -> None:
        self._membership = membership
        self._state = state
        self._views = state.views
        self._host = host
        # the fields that are facts in the feeds
        self._said = MemberRecord(membership.own().peer, seq=0)
        self._own = self._said
        # (signed record, full record) by peer
        self._shown: dict[PeerId, tuple[MemberRecord, MemberRecord]] = {}
        self._version = 0
        self._news = trio.Event()
        self._own_news = trio.lowlevel.ParkingLot()
        self._say(self._said)
        membership.on_change.append(self._changed)
        state.views.on_change.append(self._heard)

    # Reading.

    @property
    def version(self) -> int:
        return self._version

    def own(self) -> MemberRecord:
        signed = self._membership.own()
        if self._own.seq != signed.seq:
            self._own = _with_facts_of(signed, self._said)
        return self._own

    def members(self) -> Mapping[PeerId, MemberRecord]:
        signed = self._membership.members()
        for gone in self._shown.keys() - signed.keys():
            del self._shown[gone]
        own = self.own()
        return {peer: own if peer == own.peer else self._show(r) for peer, r in signed.items()}

    def has_met(self) -> bool:
        """Return whether this node knows its peers.

        The result is True once at least one other member is live, the facts of all live members
        have arrived, and membership is sure which members are live.
        """
        if not self._membership.is_sure():  # cheap, and a node that joins asks ten times a second
            return False
        own, members = self._own.peer, self.members()
        told = all(record.version for peer, record in members.items() if peer != own)
        return len(members) > 1 and told

    def where(self, peer: PeerId) -> list[Address]:
        """Return the addresses that a peer publishes and that may be dialled."""
        return self._membership.where(peer)

    async def own_changed(self) -> None:
        await self._own_news.park()

    async def changed(self, version: int) -> int:
        while self._version <= version:
            await self._news.wait()
        return self._version

    def _show(self, signed: MemberRecord) -> MemberRecord:
        """Return a member's full record.

        Returns the same object as long as nothing in it changes.
        """
        known = self._shown.get(signed.peer)
        if known is None or known[0] is not signed:
            known = self._shown[signed.peer] = signed, self._together(signed)
        return known[1]

    def _together(self, signed: MemberRecord) -> MemberRecord:
        said = self._views.record(signed.peer)
        now = (shard for shard in said.shards if shard.run in signed.runs)
        return _with_facts_of(signed, replace(said, shards=tuple(islice(now, defaults.SHARDS))))

    # Changes.

    def _heard(self, peer: PeerId) -> None:
        """Handle a change in a peer's feeds.

        Changes of peers that are not live do not change the directory.
        """
        self._shown.pop(peer, None)
        if self._membership.is_live(peer):
            self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._news.set()
        self._news = trio.Event()

    # Publishing.

    def publish(self, **changes: Any) -> None:
        for field, most in _BOUNDS.items():
            if field in changes:
                changes[field] = tuple(changes[field])[:most]
        if "shards" in changes:
            changes["shards"], changes["runs"] = self._numbered(changes["shards"])
        signed = {field: changes.pop(field) for field in sorted(_SIGNED & changes.keys())}
        said = replace(self._said, **changes)
        if said != self._said:
            self._check(said)
        self._membership.publish(**signed)
        if said != self._said:
            self._said = said
            self._own = _with_facts_of(self._membership.own(), said)
            self._say(said)
            self._changed()
            self._own_news.unpark_all()

    def _numbered(
        self, shards: tuple[ShardRecord, ...]
    ) -> tuple[tuple[ShardRecord, ...], tuple[int, ...]]:
        """Return (shards with the numbers of their serving runs, these numbers).

        A shard that is published already keeps its number, and others get new ones.
        """
        runs = self._membership.own().runs
        known = {replace(shard, run=0): shard for shard in self._said.shards if shard.run in runs}
        numbered = []
        for shard in shards:
            plain = replace(shard, run=0)
            if plain not in known:
                number = 1 + int.from_bytes(self._host.entropy(8)) % (defaults.MAX_SEQ - 1)
                known[plain] = replace(shard, run=number)
            numbered.append(known[plain])
        return tuple(numbered), tuple({shard.run: None for shard in numbered})

    def _check(self, said: MemberRecord) -> None:
        for each in _all_said(said):
            for (part, key), value in each.facts.items():
                if not self._views.takes(FeedName(said.peer, each.kind, part), key, value):
                    raise BadRecord(f"this node's own fact `{key}` is out of bounds")

    def _say(self, said: MemberRecord) -> None:
        for each in _all_said(said):
            self._state.say(each)


def _with_facts_of(signed: MemberRecord, said: MemberRecord) -> MemberRecord:
    return replace(
        signed,
        version=said.version,
        capacity=said.capacity,
        models=said.models,
        shards=said.shards,
        shared=said.shared,
        links=said.links,
    )


def _all_said(said: MemberRecord) -> Iterator[WrittenFacts]:
    """Yield the facts that describe this record, grouped by kind.

    Each fact is in one group only.
    """
    about: dict[Place, Value] = {
        (0, ABOUT): {"version": said.version},
        (0, CAPACITY): capacity_fact(said.capacity),
    }
    if said.shared:
        about[0, SHARED] = shared_fact(said.shared)
    if said.links:
        about[0, LINKS] = links_fact(said.links)
    yield WrittenFacts("member", about, {ABOUT, CAPACITY, SHARED, LINKS}.__contains__)
    yield WrittenFacts(
        "models",
        {(0, m.name): model_fact(m) for m in said.models if m.name and m.layers},
    )
    shards: dict[Place, Value] = {}
    numbers: dict[str, int] = {}
    for shard in said.shards:
        number = numbers[shard.root] = numbers.get(shard.root, -1) + 1
        shards[part_of_root(shard.root), shard_key(shard.root, number)] = shard_fact(shard)
    yield WrittenFacts("shards", shards)


_SIGNED = {"addresses", "stored", "runs", "aims"}
_BOUNDS = {
    "addresses": defaults.ADDRESSES,
    "models": defaults.MODELS,
    "shards": defaults.SHARDS,
    "shared": defaults.SHARED,
    "links": defaults.LINKS,
    "stored": defaults.STORED,
}
