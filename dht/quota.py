"""The owner's limit on the library, and what goes when it is reached.

Only what was fetched goes, never what this node added itself nor what is in use: first what others
hold as well, least recently used first, and the last known replica in the swarm only where nothing
else makes the room. That others say they hold it is not enough: they are asked to prove it.
"""

from collections.abc import Awaitable, Callable, Collection, Container, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import trio

from ..transport.host import Host
from ..transport.identity import PeerId
from .defaults import PROOF_NETWORKS, PROOFS_S, QUOTA_SAVE
from .errors import ModelError, QuotaFull
from .library import Library

Claims = Callable[[str], Awaitable[Collection[PeerId]]]
"""Others that say they hold a root."""


class Proof(Protocol):
    """What is needed of a `Proving`."""

    async def networks(self, root: str, claimed: Collection[PeerId]) -> int: ...
    def over(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Stored:
    """A root that may go: the bytes that only it needs, when it was last used (seconds since
    1970), and in how many networks others hold it."""

    root: str
    size: int
    used: float
    replicas: int = 0


def _rank(item: Stored) -> tuple[int, float, str]:
    return -min(item.replicas, PROOF_NETWORKS), item.used, item.root


def order_of_eviction(stored: Iterable[Stored], needed: int) -> list[str]:
    """What goes so that `needed` bytes come free, in order; empty where all of it is not enough."""
    chosen, room = [], 0
    for item in sorted(stored, key=_rank):
        if room >= needed:
            break
        chosen.append(item.root)
        room += item.size
    return chosen if room >= needed else []


class Quota:
    """Keeps `library` within `limit` bytes; None: no limit but the disk's.

    `in_use` are roots that must stay now; `withdraw(root)` is told of each that went.
    """

    def __init__(
        self,
        host: Host,
        library: Library,
        limit: int | None,
        *,
        claims: Claims,
        proof: Proof,
        in_use: Callable[[], Container[str]],
        withdraw: Callable[[str], None],
    ) -> None:
        self._host = host
        self._library = library
        self._claims = claims
        self._proof = proof
        self._in_use = in_use
        self._withdraw = withdraw
        self._deciding = trio.Lock()
        self.limit = library.store.limit = limit

    async def run(self) -> None:
        """Keep when things were used, so that the next start knows."""
        while True:
            await trio.sleep(QUOTA_SAVE)
            await self._library.usage.save()

    async def make_room(self, needed: int) -> list[str]:
        """Room for `needed` bytes more; the roots that went. Raises QuotaFull, and then nothing
        has gone."""
        async with self._deciding:
            used = self._library.store.used_bytes
            if self.limit is None or used + needed <= self.limit:
                return []
            try:
                return await self._go(used + needed - self.limit, needed)
            finally:
                self._proof.over()

    async def drop(self, root: str) -> None:
        """A content that was fetched and is no good: nothing of it stays. What the owner added
        does."""
        async with self._deciding:
            if root in self._library.usage.fetched and self._library.knows(root):
                await self._evict(root)

    async def _go(self, lacking: int, needed: int) -> list[str]:
        assert self.limit is not None
        candidates = await self._candidates()
        if sum(item.size for item in candidates) < lacking:
            raise QuotaFull(self.limit, needed, self._library.store.used_bytes)
        going = order_of_eviction(await self._proven(candidates, lacking), lacking)
        for root in going:
            await self._evict(root)
        return going

    async def _candidates(self) -> list[Stored]:
        library, in_use = self._library, self._in_use()
        found = []
        for root, used in library.usage.fetched.items():
            if root in in_use or not library.knows(root):
                continue
            own = await self._only_of(root)
            size = await self._host.offload(library.store.size_of, own)
            found.append(Stored(root, size, used))
        return found

    async def _proven(self, candidates: Iterable[Stored], lacking: int) -> list[Stored]:
        """Those that may go with what others have proven to hold of them, the least recently used
        first, until those that are safe elsewhere make the room."""
        found = {item.root: item for item in candidates}
        with trio.move_on_after(PROOFS_S):
            for item in sorted(found.values(), key=_rank):
                if lacking <= 0:
                    break
                if claimed := await self._claims(item.root):
                    replicas = await self._proof.networks(item.root, claimed)
                    found[item.root] = replace(item, replicas=replicas)
                    lacking -= item.size if replicas >= PROOF_NETWORKS else 0
        return list(found.values())

    async def _only_of(self, root: str) -> set[str]:
        """The chunks of a root, and its nodes, that no other root here has."""
        own = await self._library.parts(root)
        for other in self._library.everything() - {root}:
            try:
                own -= await self._library.parts(other)
            except ModelError:
                continue  # damaged: there is nothing of it to keep
        return own

    async def _evict(self, root: str) -> None:
        own = await self._only_of(root)
        self._withdraw(root)
        await self._library.forget(root)
        await self._host.offload(self._remove, own)

    def _remove(self, digests: set[str]) -> None:
        for digest in digests:
            self._library.store.remove(digest)
