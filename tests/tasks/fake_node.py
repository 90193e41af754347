"""Fakes of a node's directory, library and exchange."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from shoal.dht.content.manifest import Manifest
from shoal.dht.content.modelnames import resolve
from shoal.dht.errors import ModelError
from shoal.state.membership.record import Capacity, MemberRecord
from shoal.transport.identity import PeerId
from tests.tasks.fake_swarm import peer_of

OTHER = peer_of(2)


def record_of(peer: PeerId, **changes: Any) -> MemberRecord:
    capacity = Capacity(2, 2**30, True)
    return replace(MemberRecord(peer, 1, (), "0", capacity, (), (), ()), **changes)


class FakeDirectory:
    def __init__(self) -> None:
        self.version = 1
        self.records = {peer_of(1): record_of(peer_of(1))}
        self.published: list[dict[str, Any]] = []
        self._changed = trio.Event()

    def members(self) -> Mapping[PeerId, MemberRecord]:
        return dict(self.records)

    def own(self) -> MemberRecord:
        return self.records[peer_of(1)]

    def publish(self, **changes: Any) -> None:
        self.published.append(changes)
        self.put(replace(self.own(), **changes))

    def put(self, record: MemberRecord) -> None:
        self.records[record.peer] = record
        self.version += 1
        self._changed.set()
        self._changed = trio.Event()

    async def own_changed(self) -> None:
        await self._changed.wait()

    async def changed(self, version: int) -> int:
        while self.version <= version:
            await self._changed.wait()
        return self.version


class FakeUsage:
    """Roots of the models that the owner named."""

    def __init__(self) -> None:
        self.asked = set[str]()

    def note_asked(self, root: str) -> None:
        self.asked.add(root)


class FakeLibrary:
    """Manifests by root; the exchange puts them in."""

    def __init__(self) -> None:
        self.usage = FakeUsage()
        self.kept: dict[str, Manifest] = {}
        self.named: dict[str, str] = {}
        self.store = self

    def path(self, digest: str) -> Path:
        return Path("/chunks") / digest

    def names(self) -> dict[str, str]:
        return self.named

    async def set_name(self, name: str, root: str) -> None:
        await trio.lowlevel.checkpoint()
        self.named[name] = root

    def roots(self) -> frozenset[str]:
        return frozenset(self.kept)

    def resolve(self, text: str, others: Sequence[tuple[str, str]] = ()) -> str:
        return resolve(text, [*self.named.items(), *others])

    async def manifest(self, root: str) -> Manifest:
        return self.kept[root]

    async def blob(self, root: str, key: str) -> bytes | None:
        await trio.lowlevel.checkpoint()
        return key.encode() if key in self.kept[root].files else None


class FakeExchange:
    def __init__(self, library: FakeLibrary, manifest: Manifest) -> None:
        self._library = library
        self._manifest = manifest
        self.fetched: list[str] = []
        self.asked: list[PeerId] = []
        self.errors: list[ModelError] = []
        self.hold: trio.Event | None = None

    async def fetch_manifest(self, root: str, peers: Any, **_: Any) -> Manifest:
        await trio.lowlevel.checkpoint()
        self._library.kept[root] = self._manifest
        return self._manifest

    async def fetch(
        self,
        root: str,
        digests: Sequence[str],
        peers: Callable[[], Sequence[PeerId]],
        progress: Callable[[int, int], None] | None = None,
        _terms: object = None,
    ) -> None:
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop(0)
        self.asked += peers()
        if progress:
            progress(1, 3)
        if self.hold is not None:
            await self.hold.wait()
        self.fetched += digests
