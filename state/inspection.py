"""Read access to the state for commands: facts and history of feeds, and a check of the store."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import trio

from ..transport.decoding import decode
from ..transport.errors import Undecodable
from ..transport.host.seam import Host
from ..transport.identity import peer_id_of, public_key_of
from . import defaults
from .errors import BadUpdate, StateError
from .feeds.committer import Committer, Lost
from .feeds.entry import FORKED, Entry, FeedName, Head, client_of, read_stored
from .feeds.feed import Document
from .feeds.kinds import KINDS, all_parts
from .feeds.stored import StoredFeed, verify
from .replication.replica import Replica
from .replication.replication import Replication
from .views.view import StepCounter


@dataclass(frozen=True, slots=True)
class FeedView:
    """One feed as this node knows it: name, head, and size."""

    name: FeedName
    head: Head
    size: int  # bytes of its entries

    @property
    def forked(self) -> bool:
        """Whether the author has signed two different entries with one number.

        A feed that has forked stays empty for good.
        """
        return self.head == FORKED


@dataclass(frozen=True, slots=True)
class InspectedEntry:
    """One entry, with the facts that it changed in readable form.

    A deleted fact has the value None.
    """

    entry: Entry
    changes: Mapping[str, object]


@dataclass(slots=True)
class Verified:
    """The result of checking the whole store."""

    feeds: int = 0
    entries: int = 0
    bytes: int = 0
    # feeds that were dropped, and are fetched again
    damaged: list[FeedName] = field(default_factory=list)


class Inspection:
    """Reader of one node's feeds and store, for commands."""

    def __init__(
        self,
        host: Host,
        replica: Replica,
        replication: Replication,
        committer: Committer,
        lost: Lost,
    ) -> None:
        """Create the inspection.

        `lost` is called with damaged feeds, which are no longer stored.
        """
        self._host = host
        self._replica = replica
        self._replication = replication
        self._committer = committer
        self._lost = lost

    async def feeds(self) -> AsyncIterator[FeedView]:
        """Yield all feeds that have entries, author by author."""
        for key in dict.fromkeys((self._replica.own, *self._replica.authors.keys())):
            await trio.lowlevel.checkpoint()
            for plot in all_parts():
                feed = self._replica.feed(key, plot)
                if feed is not None and feed.head is not None:
                    yield FeedView(FeedName(peer_id_of(key), *plot), feed.head, feed.size)

    async def facts(self, name: FeedName) -> dict[str, object]:
        """Return the current facts of a feed in readable form.

        Raises StoreRefused if the disk refuses.
        """
        async with self._replication.turn():
            facts = await self._replica.facts(public_key_of(name.author), (name.kind, name.part))
        return await _readable(facts)

    async def history(self, view: FeedView) -> AsyncIterator[InspectedEntry]:
        """Yield the entries of a feed's current epoch, each with the facts that it changed.

        The first entry contains all facts that the feed had when the epoch began. Raises
        StoreRefused if the disk refuses.
        """
        name, head = view.name, view.head
        document = Document(KINDS[name.kind], client_of(name, head.epoch))
        seq = 0
        while not view.forked and seq <= head.seq:
            entries = await self._replica.archive.entries(
                name, head.epoch, seq, defaults.LOADED_BYTES
            )
            for entry in map(read_stored, entries):
                try:
                    changes = document.apply(entry.update)
                except BadUpdate:
                    return  # a new epoch has begun, or the feed is damaged
                yield InspectedEntry(entry, await _readable(changes))
                await trio.lowlevel.checkpoint()
            if not entries:
                return
            seq += len(entries)

    async def verified(self) -> Verified:
        """Read the whole store, and check every signature and every chain of entries.

        Raises StoreRefused if the disk refuses, and StateError `no-store` if the store could not be
        opened.
        """
        try:
            return await self._verified()
        except trio.ClosedResourceError:
            raise StateError("no-store", "the store of the state is not open") from None

    async def _verified(self) -> Verified:
        found = Verified()
        lost = list[FeedName]()
        async with aclosing(self._committer.load(lost)) as batches:
            async for batch in batches:
                for feed in batch:
                    found.feeds += 1
                    found.entries += len(feed.entries)
                    found.bytes += feed.size
                for name in await self._host.offload(_damaged, batch):
                    found.damaged.append(name)
        found.feeds += len(lost)  # they were dropped while loading
        found.damaged += lost
        if found.damaged:
            authors = {name.author for name in found.damaged}
            await self._committer.drop(sorted(authors))
            self._lost(found.damaged)
        return found


def _damaged(feeds: list[StoredFeed]) -> list[FeedName]:
    return [feed.name for feed in feeds if not verify(feed)]


async def _readable(facts: Mapping[str, bytes | None]) -> dict[str, object]:
    """Return facts in readable form. Lets other tasks run from time to time."""
    shown: dict[str, object] = {}
    steps = StepCounter()
    for key, value in facts.items():
        shown[key] = None if value is None else readable(value)
        if steps.ends_with(value):
            await trio.lowlevel.checkpoint()
    return shown


def readable(value: bytes) -> object:
    """Convert a fact's value to a form for display and JSON, with bytes in hex.

    A value that is not valid msgpack is returned in hex as a whole.
    """
    try:
        return _plain(decode(value, limit=defaults.FACT_BYTES))
    except Undecodable:
        return value.hex()


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_word(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float) and (value != value or value in (_INFINITE, -_INFINITE)):
        return str(value)  # JSON has no such numbers
    return value


def _word(key: object) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


_INFINITE = float("inf")
