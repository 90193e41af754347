"""A node with a real library, exchange and quota, whose shelf stores blobs of jobs."""

import os
from pathlib import Path

from shoal.dht.content.quota import LibraryLimit, Quota
from shoal.tasks.jobs.shelf import Shelf, Storage
from tests.dht.exchange.test_exchange import Member, Swarm
from tests.tasks.jobs.fake_state import AUTHOR, ME

MIB = 2**20


def quota_of(member: Member, limit: int | None = None, *, firm: bool = True) -> Quota:
    """Return the quota of a member that evicts, with this limit in bytes."""
    assert member.quota is not None
    member.quota.allow(LibraryLimit(limit, 0, firm=firm))
    return member.quota


class ShelfNode:
    """A node with a shelf and a disk limit, and another one from which it fetches."""

    def __init__(self, folder: Path, swarm: Swarm, other: Member, node: Member) -> None:
        self.folder, self.swarm, self.other, self.node = folder, swarm, other, node

    def limit(self, size: int | None, *, firm: bool = False) -> None:
        """Begin a run with a disk limit."""
        self.quota = quota_of(self.node, size, firm=firm)
        self.shelf = Shelf(
            self.node.host,
            Storage(self.node.library, self.quota, lambda root: None),
            self.node.exchange,
            self.folder / "shelf",
            own=ME,
            linked=self.swarm.network.peers,
        )

    def author_s_shelf(self) -> Shelf:
        """Return a shelf of the other node, without a disk limit."""
        return Shelf(
            self.other.host,
            Storage(self.other.library, quota_of(self.other), lambda root: None),
            self.other.exchange,
            self.folder / "other shelf",
            own=AUTHOR,
            linked=list,
        )

    async def made(self, size: int, *, here: bool = False) -> str:
        """Return the root of a blob at the other node, or of one that was added `here`."""
        path = self.folder / "made"
        path.write_bytes(os.urandom(size))
        return await (self.node if here else self.other).library.add_blob(path)

    @property
    def roots(self) -> frozenset[str]:
        return self.node.library.blobs.roots()

    @property
    def used(self) -> float:
        """MiB in the node's library."""
        return self.node.library.store.used_bytes / MIB


async def shelf_node(folder: Path, size: int | None, *, firm: bool = False) -> ShelfNode:
    """Return a node with a disk limit of `size` bytes."""
    swarm = Swarm(folder)
    other, node = (
        await swarm.member("other", evicts=True),
        await swarm.member("node", evicts=True),
    )
    made = ShelfNode(folder, swarm, other, node)
    made.limit(size, firm=firm)
    return made
