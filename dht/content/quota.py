"""Disk quota of the library, and the order in which content is evicted.

Only fetched content is evicted, never what this node added itself or has in use. Content with
proven replicas on other nodes is evicted first, and among it the least recently used. Content that
may have no other replica in the swarm is evicted only if nothing else frees enough space. A peer's
claim to have a replica counts only after the peer has proven it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import trio

from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ..defaults import (
    DISK_KEPT,
    DISK_MOST,
    DISK_SHARE,
    FILES_MOST,
    PROOF_NETWORKS,
    PROOFS_S,
    QUOTA_SAVE,
)
from ..errors import ModelError, QuotaFull
from .library import Library


class QuotaInventory(Protocol):
    """Questions of the quota to its node about stored content."""

    async def claims(self, root: str) -> Collection[PeerId]:
        """Return the other peers that claim to have a root."""
        ...

    def in_use(self) -> Collection[str]:
        """Return the roots that must not be evicted now, besides those that are being fetched."""
        ...

    def evicted(self, root: str) -> None:
        """Called for each root that is evicted."""
        ...


class QuotaProving(Protocol):
    """The part of a `Proving` that the quota uses."""

    async def networks(self, root: str, claimed: Collection[PeerId]) -> int: ...
    def finish(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredRoot:
    """A root that may be evicted.

    `size` is the number of bytes that only this root needs, `used` the time of last use in seconds
    since 1970, and `replicas` the number of networks with a proven replica.
    """

    root: str
    size: int
    used: float
    replicas: int = 0


def _rank(item: StoredRoot) -> tuple[int, float, str]:
    """Return the sort key of the eviction order: more proven replicas first, then older use."""
    return -min(item.replicas, PROOF_NETWORKS), item.used, item.root


def order_of_eviction(stored: Iterable[StoredRoot], needed: int) -> list[str]:
    """Return the roots to evict to free `needed` bytes, in the order of eviction.

    Returns an empty list if evicting all of `stored` would not free enough.
    """
    chosen, room = [], 0
    for item in sorted(stored, key=_rank):
        if room >= needed:
            break
        chosen.append(item.root)
        room += item.size
    return chosen if room >= needed else []


@dataclass(frozen=True, slots=True)
class LibraryLimit:
    """Limit on the bytes of the library. A `limit` of None means that only the disk limits it.

    At least `kept` bytes of the disk stay free. A `firm` limit was set by the owner. Any other
    limit is a default, which content that the owner requests by name may exceed.
    """

    limit: int | None
    kept: int = 0
    firm: bool = True


def allowance_of(free: int, used: int, least: int) -> LibraryLimit:
    """Return the default limit from the disk's `free` bytes and the library's `used` bytes.

    The limit is a share of their sum, which does not change while the library grows. It is at least
    `least` bytes.
    """
    there = free + used
    kept = max(int(DISK_KEPT[0] * there), DISK_KEPT[1])
    limit = min(int(DISK_SHARE * there), DISK_MOST, there - kept)
    return LibraryLimit(max(limit, least), kept, firm=False)


class Quota:
    """Quota of `library`: evicts content, so that the library stays within its `allowance`.

    `inventory` tells what may be evicted, and `proof` challenges the peers that claim a replica.
    """

    def __init__(
        self,
        host: Host,
        library: Library,
        allowance: LibraryLimit,
        inventory: QuotaInventory,
        proof: QuotaProving,
    ) -> None:
        self._host = host
        self._library = library
        self._proof = proof
        self._inventory = inventory
        self._deciding = trio.Lock()
        self.allow(allowance)

    def allow(self, allowance: LibraryLimit) -> None:
        """Replace the allowance. Nothing is evicted until a later call needs space."""
        self.allowance = allowance
        self._library.store.limit = allowance.limit if allowance.firm else None

    async def run(self) -> None:
        """Save the times of last use every `QUOTA_SAVE` seconds, until cancelled."""
        while True:
            await trio.sleep(QUOTA_SAVE)
            await self._library.usage.save()

    async def evict_for(self, needed: int, *, asked: bool = False) -> list[str]:
        """Evict content so that `needed` more bytes fit, and return the evicted roots.

        Raises QuotaFull if not enough can be evicted, and then evicts nothing. If `asked`, the
        owner requested the new content by name; it may then exceed a default allowance.
        """
        async with self._deciding:
            used, limit = self._library.store.used_bytes, await self._limit()
            if limit is None or used + needed <= limit or not needed:
                return []
            try:
                return await self._evict_enough(used + needed - limit, needed, limit)
            except QuotaFull:
                if asked and not self.allowance.firm:
                    return []
                raise
            finally:
                self._proof.finish()

    async def shortage(self, needed: int) -> QuotaFull | None:
        """Return the error that `evict_for` would raise for `needed` bytes now, or None."""
        async with self._deciding:
            used, limit = self._library.store.used_bytes, await self._limit()
            if limit is None or used + needed <= limit:
                return None
            candidates = await self._candidates()
            enough = sum(item.size for item in candidates) >= used + needed - limit
            return None if enough else QuotaFull(limit, needed, used)

    async def _limit(self) -> int | None:
        """Return the bytes that the library may use now, None for no limit.

        Other programs fill the disk too, so the limit depends on the space that is free now.
        """
        allowed, store = self.allowance, self._library.store
        if allowed.limit is None or not allowed.kept:
            return allowed.limit
        free = await self._host.offload(store.free)
        return min(allowed.limit, max(0, store.used_bytes + free - allowed.kept))

    async def part(self, share: float) -> int:
        """Return the bytes of a share of the limit, or of the disk if there is no limit.

        Raises ModelError if the operating system does not report the free space.
        """
        limit, store = await self._limit(), self._library.store
        if limit is None:
            limit = store.used_bytes + await self._host.offload(store.free)
        return int(limit * share)

    async def pass_through(self, root: str, needed: int) -> None:
        """Free `needed` bytes for a model of which only the files that build prompts are fetched.

        Call this after fetching the model's manifest. All models of this kind together may have
        `FILES_MOST` bytes, and the least recently used ones are evicted. Raises QuotaFull if the
        model does not fit; its manifest is then evicted as well.
        """
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

    def _in_use(self) -> frozenset[str]:
        """Return the roots that are being fetched or used for something else."""
        return frozenset((*self._inventory.in_use(), *self._library.usage.fetching))

    def _passing(self) -> list[str]:
        """Return the models that are stored only to build prompts and may be evicted."""
        library, in_use = self._library, self._in_use()
        return [
            root
            for root in sorted(library.usage.passing)
            if root not in in_use and library.knows(root) and not library.is_named(root)
        ]

    async def _stored(self, root: str) -> StoredRoot:
        """Return a root with its size, including its manifest, and its time of last use."""
        used = self._library.usage.fetched.get(root, 0.0)
        own = await self._library.only_of(root)
        size = await self._host.offload(self._library.store.size_of, own)
        return StoredRoot(root, size + await self._library.manifest_size(root), used)

    async def drop(self, root: str) -> None:
        """Delete a fetched root and its chunks. Content that the owner added is not deleted.

        Called if the content has turned out to be invalid.
        """
        async with self._deciding:
            if root in self._library.usage.fetched and self._library.knows(root):
                await self._evict(root)

    async def _evict_enough(self, lacking: int, needed: int, limit: int) -> list[str]:
        """Evict content to free `lacking` bytes, and return the evicted roots.

        Raises QuotaFull if all candidates together have fewer than `lacking` bytes. `needed` and
        `limit` are only for the message of that error.
        """
        candidates = await self._candidates()
        if sum(item.size for item in candidates) < lacking:
            raise QuotaFull(limit, needed, self._library.store.used_bytes)
        going = order_of_eviction(await self._proven(candidates, lacking), lacking)
        for root in going:
            await self._evict(root)
        return going

    async def _candidates(self) -> list[StoredRoot]:
        """Return the roots that may be evicted now, without knowledge of their replicas."""
        library, in_use = self._library, self._in_use()
        found = []
        # A default limit evicts nothing that the owner requested by name. Such content may
        # exceed the limit, and the next small file would then evict it.
        asked = frozenset[str]() if self.allowance.firm else library.usage.asked
        for root, used in library.usage.fetched.items():
            if root in in_use or root in asked or not library.knows(root):
                continue
            own = await self._library.only_of(root)
            size = await self._host.offload(library.store.size_of, own)
            found.append(StoredRoot(root, size, used))
        return found

    async def _proven(self, candidates: Iterable[StoredRoot], lacking: int) -> list[StoredRoot]:
        """Challenge the peers that claim replicas, and set `replicas` of the returned candidates.

        The least recently used candidate is the first. Stops once candidates of `lacking` bytes
        have enough proven replicas, or after `PROOFS_S` seconds.
        """
        found = {item.root: item for item in candidates}
        with trio.move_on_after(PROOFS_S):
            for item in sorted(found.values(), key=_rank):
                if lacking <= 0:
                    break
                if claimed := await self._inventory.claims(item.root):
                    replicas = await self._proof.networks(item.root, claimed)
                    found[item.root] = replace(item, replicas=replicas)
                    lacking -= item.size if replicas >= PROOF_NETWORKS else 0
        return list(found.values())

    async def freed_by(self, root: str) -> int:
        """Return how many bytes removing a root would free on this disk.

        Raises ModelError if the manifest or tree of `root` is not on this disk.
        """
        return (await self._stored(root)).size

    async def remove(self, root: str) -> None:
        """Remove a root at the owner's request, whether it was fetched or added.

        Raises ModelError `in-use` if the root is being served or fetched.
        """
        async with self._deciding:
            if root in self._in_use():
                raise ModelError("in-use", f"{root[:16]} is being served or fetched")
            await self._evict(root)

    async def _evict(self, root: str) -> None:
        """Withdraw a root's announcement, and remove the root from the library."""
        self._inventory.evicted(root)
        await self._library.remove(root)
