"""The limit on the library, and what goes when it is reached: the owner's, or one by what is free.

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
from .defaults import (
    DISK_KEPT,
    DISK_MOST,
    DISK_SHARE,
    FILES_MOST,
    PROOF_NETWORKS,
    PROOFS_S,
    QUOTA_SAVE,
)
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


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many bytes the library may take; None: no limit but the disk's. `kept` bytes of the disk
    stay free. A default allowance (not `firm`) holds for what a node fetches by itself;
    what its owner asks for by name may go beyond it."""

    limit: int | None
    kept: int = 0
    firm: bool = True


def allowance_of(free: int, used: int, least: int) -> Allowance:
    """The allowance where the owner sets none: a share of the disk's `free` bytes and of the `used`
    ones, so that it does not grow with what is taken."""
    there = free + used
    kept = max(int(DISK_KEPT[0] * there), DISK_KEPT[1])
    limit = min(int(DISK_SHARE * there), DISK_MOST, there - kept)
    return Allowance(max(limit, least), kept, firm=False)


class Quota:
    """Keeps `library` within an `allowance`.

    `in_use` are roots that must stay now; `withdraw(root)` is told of each that went.
    """

    def __init__(
        self,
        host: Host,
        library: Library,
        allowance: Allowance,
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
        self.allowance = allowance
        library.store.limit = allowance.limit if allowance.firm else None

    async def run(self) -> None:
        """Keep when things were used, so that the next start knows."""
        while True:
            await trio.sleep(QUOTA_SAVE)
            await self._library.usage.save()

    async def make_room(self, needed: int, *, asked: bool = False) -> list[str]:
        """Room for `needed` bytes more; the roots that went. Raises QuotaFull, and then nothing
        has gone. `asked`: the owner asked for this by name."""
        async with self._deciding:
            used, limit = self._library.store.used_bytes, await self._limit()
            if limit is None or used + needed <= limit or not needed:
                return []
            try:
                return await self._go(used + needed - limit, needed, limit)
            except QuotaFull:
                if asked and not self.allowance.firm:
                    return []
                raise
            finally:
                self._proof.over()

    async def _limit(self) -> int | None:
        """Bytes that the library may take now: others fill the disk as well."""
        allowed, store = self.allowance, self._library.store
        if allowed.limit is None or not allowed.kept:
            return allowed.limit
        free = await self._host.offload(store.free)
        return min(allowed.limit, max(0, store.used_bytes + free - allowed.kept))

    async def pass_through(self, root: str, needed: int) -> None:
        """Expect `needed` bytes of this model, whose manifest was just fetched, for prompts
        alone. Evicts the least recently used models of this kind. Raises QuotaFull."""
        async with self._deciding:
            await self._library.usage.note_passing(root)
            found = [await self._stored(each) for each in self._passing()]
            lacking = sum(item.size for item in found) + needed - FILES_MOST
            others = sorted((i for i in found if i.root != root), key=lambda item: item.used)
            for item in others:
                if lacking <= 0:
                    return
                await self._evict(item.root)
                lacking -= item.size
            if lacking > 0:
                await self._evict(root)
                raise QuotaFull(FILES_MOST, needed, FILES_MOST - needed + lacking)

    def _passing(self) -> list[str]:
        """Models that are here for prompts alone, and may go."""
        library, in_use = self._library, self._in_use()
        return [
            root
            for root in sorted(library.usage.passing)
            if root not in in_use and library.knows(root) and not library.is_named(root)
        ]

    async def _stored(self, root: str) -> Stored:
        used = self._library.usage.fetched.get(root, 0.0)
        own = await self._library.only_of(root)
        size = await self._host.offload(self._library.store.size_of, own)
        return Stored(root, size + await self._library.manifest_size(root), used)

    async def drop(self, root: str) -> None:
        """A content that was fetched and is no good: nothing of it stays. What the owner added
        does."""
        async with self._deciding:
            if root in self._library.usage.fetched and self._library.knows(root):
                await self._evict(root)

    async def _go(self, lacking: int, needed: int, limit: int) -> list[str]:
        candidates = await self._candidates()
        if sum(item.size for item in candidates) < lacking:
            raise QuotaFull(limit, needed, self._library.store.used_bytes)
        going = order_of_eviction(await self._proven(candidates, lacking), lacking)
        for root in going:
            await self._evict(root)
        return going

    async def _candidates(self) -> list[Stored]:
        library, in_use = self._library, self._in_use()
        found = []
        # A default limit evicts nothing that the owner asked for: that may exceed the limit,
        # and then the next small file would evict it.
        asked = frozenset[str]() if self.allowance.firm else library.usage.asked
        for root, used in library.usage.fetched.items():
            if root in in_use or root in asked or not library.knows(root):
                continue
            own = await self._library.only_of(root)
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

    async def freed_by(self, root: str) -> int:
        """Return the bytes of this disk that come free when a root goes. Raises ModelError."""
        return (await self._stored(root)).size

    async def remove(self, root: str) -> None:
        """Remove a root for its owner, whether it was fetched or added. Raises ModelError
        `in-use`."""
        async with self._deciding:
            if root in self._in_use():
                raise ModelError("in-use", f"{root[:16]} is being served or fetched")
            await self._evict(root)

    async def _evict(self, root: str) -> None:
        self._withdraw(root)
        await self._library.remove(root)
