"""One node's state without a store or links: facts are in the views a moment after they are set.
Also a shelf in memory."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio

from shoal.dht.errors import ModelError, NotEnoughDisk
from shoal.state.errors import FeedFull
from shoal.state.feeds.entry import FeedName
from shoal.state.service import State
from shoal.state.views.jobs import Job, Jobs, job_fact, job_id
from shoal.state.views.members import Members
from shoal.state.views.usage import Usage
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.spec import BlobPart
from shoal.transport.identity import Identity, PeerId

ME, AUTHOR, OTHER = [Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2, 3)]
STORE = 0.25  # seconds until a fact is on disk


class FakeHost:
    """The clocks of trio, and entropy that counts."""

    def __init__(self) -> None:
        self._drawn = 0
        self.computed = 0.0  # seconds for which code has kept the event loop

    def now(self) -> float:
        return trio.current_time() + self.computed

    def wall(self) -> float:
        return 1e9 + trio.current_time()

    def entropy(self, size: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(size)


class FakeState:
    def __init__(self, nursery: trio.Nursery, own: PeerId = ME) -> None:
        self.views = SimpleNamespace(jobs=Jobs(), members=Members(), usage=Usage())
        self.replication = SimpleNamespace(exchange=SimpleNamespace(peers=()))
        self.shown = trio.Event()
        self.shown.set()
        self.full = ""  # the kind whose feed takes nothing
        self.stored = True  # whether the disk takes anything
        self.facts: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.log: list[tuple[str, str, Mapping[str, Any] | None]] = []
        self._own = own
        self._nursery = nursery

    @property
    def state(self) -> State:
        return cast(State, self)

    def set(self, kind: str, key: str, value: Mapping[str, Any] | None) -> None:
        if kind == self.full and value is not None:
            raise FeedFull("feed-full", "no room")
        self.log.append((kind, key, value))
        if value is None:
            self.facts.pop((kind, key), None)
        else:
            self.facts[kind, key] = value
        self._nursery.start_soon(self._show, kind, key)

    def get(self, kind: str, key: str) -> Mapping[str, Any] | None:
        return self.facts.get((kind, key))

    def keys(self, kind: str) -> Collection[str]:
        return [key for of, key in self.facts if of == kind]

    async def _show(self, kind: str, key: str) -> None:
        await trio.sleep(STORE)
        if self.stored:
            self.hear(self._own, kind, key, self.facts.get((kind, key)))

    def hear(self, peer: PeerId, kind: str, key: str, value: Mapping[str, Any] | None) -> None:
        """Put a fact into the views."""
        views = {"member": self.views.members, "usage": self.views.usage}
        view = views.get(kind, self.views.jobs)
        view.changed(FeedName(peer, kind, 0), key, value)

    @staticmethod
    def job(number: int) -> str:
        """Return the id of the job that `submit` makes."""
        return job_id(AUTHOR, number.to_bytes(4))

    def submit(self, number: int, author: PeerId = AUTHOR, **fields: Any) -> str:
        """Create a job of another author."""
        nonce = number.to_bytes(4)
        job = Job(job_id(author, nonce), author, **{"kind": "sum", **fields})
        self.hear(author, "jobs", job.id, job_fact(job, nonce))
        return job.id

    def withdraw(self, job: str, author: PeerId = AUTHOR) -> None:
        self.hear(author, "jobs", job, None)

    def said(self, kind: str, key: str) -> list[Mapping[str, Any] | None]:
        """Return all values that this node ever set for a key."""
        return [value for of, about, value in self.log if (of, about) == (kind, key)]


class FakeShelf:
    """Results of this node and of others, by root. `get` takes 1 s."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.kept: dict[str, str] = {}  # the author of each blob that is kept
        self.asked = self.fetched = 0
        self.full = False  # whether the disk takes anything

    async def put(self, data: bytes, author: str = "", *, announced: bool = True) -> str:
        await trio.lowlevel.checkpoint()
        if self.full:
            raise NotEnoughDisk(Path("/jobs"), len(data), 0)
        root = f"{len(self.blobs):064x}"
        self.blobs[root] = data
        return root

    async def get(self, root: str, size: int, *, own: bool = True) -> bytes:
        self.asked += 1
        await trio.sleep(1)
        if self.full:
            raise NotEnoughDisk(Path("/jobs"), size, 0)
        if root not in self.blobs:
            await trio.sleep(defaults.FETCH_PATIENCE)
            raise ModelError("no-source", "no node has it")
        return self.blobs[root]

    async def keep(self, root: str, size: int, author: str) -> None:
        await self.get(root, size)
        self.kept[root] = author

    async def check_room(self, sizes: Mapping[str, int], author: str) -> None:
        await trio.lowlevel.checkpoint()

    async def pin(self, roots: Iterable[str], author: str, *, for_peer: bool) -> None:
        await trio.lowlevel.checkpoint()

    async def read(self, part: BlobPart, author: str, *, for_peer: bool = False) -> bytes:
        return (await self.get(part.root, part.size))[part.start : part.stop]

    async def tidy_kept(self, authors: Callable[[str], bool]) -> None:
        await trio.lowlevel.checkpoint()

    async def drop(self, root: str) -> None:
        await trio.lowlevel.checkpoint()
        self.blobs.pop(root, None)

    async def tidy(self, wanted: Collection[str]) -> None:
        for root in self.blobs.keys() - set(wanted):
            await self.drop(root)
