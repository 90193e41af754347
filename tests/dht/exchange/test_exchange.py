"""exchange: chunks from several peers, liars, full disks; all in virtual time."""

import dataclasses
import hashlib
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import MockClock

from shoal.dht.content.chunkstore import ChunkStore
from shoal.dht.content.library import Library
from shoal.dht.content.manifest import Manifest
from shoal.dht.content.quota import LibraryLimit, Quota
from shoal.dht.content.ranges import pack_ranges
from shoal.dht.defaults import (
    CHUNK,
    CHUNK_TIMEOUT,
    FAILED_LIMIT,
    PEERS_AT_ONCE,
    SERVE_AT_ONCE,
    SERVE_WAITING,
)
from shoal.dht.errors import ChunkCorrupt, FetchFailed, ModelError, NotEnoughDisk
from shoal.dht.exchange import exchange as exchange_module
from shoal.dht.exchange import provider as provider_module
from shoal.dht.exchange import transfer
from shoal.dht.exchange.exchange import ChunkExchange
from shoal.dht.exchange.fetch import Fetch, FetchReport, FetchTerms
from shoal.dht.exchange.switchboard import Swarm as Providers
from shoal.transport.errors import DialFailed
from shoal.transport.guard import Mishap
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Answer, Call, Refusal, Reply

from ..models import FakeHost, open_library, weights, write_folder
from ..network import Network, Node, Twist, honest

pytestmark = pytest.mark.trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclasses.dataclass
class Member:
    """A node of the swarm and its library."""

    node: Node
    host: FakeHost
    library: Library
    exchange: ChunkExchange
    liars: list[PeerId]
    quota: Quota | None = None

    @property
    def peer(self) -> PeerId:
        return self.node.peer

    async def get(self, manifest: Manifest, **options: Any) -> FetchReport:
        peers = self.node.network.peers
        await self.exchange.fetch_manifest(manifest.root, peers)
        digests = options.pop("digests", list(manifest.chunks))
        progress = options.pop("progress", None)
        terms = FetchTerms(**options)
        return await self.exchange.fetch(manifest.root, digests, peers, progress, terms)

    def holds(self, manifest: Manifest) -> bool:
        store = self.library.store
        return all(store.get(digest) for digest in manifest.chunks)


class Alone:
    """A node of which no other has a replica, as its quota sees it."""

    async def claims(self, root: str) -> Collection[PeerId]:
        return ()

    def in_use(self) -> Collection[str]:
        return ()

    def evicted(self, root: str) -> None:
        pass

    async def networks(self, root: str, claimed: Collection[PeerId]) -> int:
        return 0

    def finish(self) -> None:
        pass


class Swarm:
    """Members of one network, and a model of 26 chunks in a folder."""

    def __init__(self, folder: Path) -> None:
        self.network = Network()
        self.folder = folder

    async def member(
        self, name: str, *, rate: float = 10e6, twist: Twist = honest, evicts: bool = False
    ) -> Member:
        node = self.network.node(name, rate=rate, twist=twist)
        host = FakeHost(inline=True, seed=len(self.network.nodes))
        library = await open_library(self.folder / name, host)
        liars: list[PeerId] = []
        quota = Quota(host, library, LibraryLimit(None), Alone(), Alone()) if evicts else None
        told = Providers(on_liar=lambda peer, _: liars.append(peer))
        exchange = ChunkExchange(host, node, library, swarm=told, quota=quota)
        return Member(node, host, library, exchange, liars, quota)

    async def seed(self, name: str, **options: Any) -> tuple[Member, Manifest]:
        member = await self.member(name, **options)
        model = self.folder / "model"
        if not model.exists():
            write_folder(model, weights(2, hidden=600), num_hidden_layers=2)
        _, manifest = await member.library.add(model)
        return member, manifest


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    return Swarm(tmp_path)


def of_chunk(change: Callable[[bytes], Answer]) -> Twist:
    def twist(method: str, answer: Answer) -> Answer:
        if method == "blob.chunk" and isinstance(answer, Reply):
            return change(bytes(answer.payload))
        return answer

    return twist


async def test_fetching_a_model(swarm: Swarm, autojump_clock: MockClock) -> None:
    _, manifest = await swarm.seed("seed")
    getter = await swarm.member("getter")
    seen: list[tuple[int, int]] = []
    report = await getter.get(manifest, progress=lambda *step: seen.append(step))
    assert getter.holds(manifest)
    assert report.chunks == len(manifest.chunks)
    assert report.by_peer == {"seed": manifest.size}
    assert seen[0] == (0, manifest.size)
    assert seen[-1] == (manifest.size, manifest.size)
    assert (await getter.library.stored_parts(manifest.root)).complete


async def test_only_requested_and_missing_chunks_are_fetched(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    seed, manifest = await swarm.seed("seed")
    getter = await swarm.member("getter")
    shard = manifest.digests_of(True, 0, 1, False)
    await getter.get(manifest, digests=shard)
    assert seed.node.served["blob.chunk"] == len(shard) < len(manifest.chunks)
    parts = await getter.library.stored_parts(manifest.root)
    assert (parts.embedding, parts.layers, parts.head) == (True, (0,), False)
    await getter.get(manifest)
    assert seed.node.served["blob.chunk"] == len(manifest.chunks)
    await getter.get(manifest)
    assert seed.node.served["blob.chunk"] == len(manifest.chunks)


async def test_peers_share_the_work_by_their_speed(swarm: Swarm, autojump_clock: MockClock) -> None:
    _, manifest = await swarm.seed("fast", rate=8e6)
    await swarm.seed("slow", rate=1e6)
    getter = await swarm.member("getter")
    report = await getter.get(manifest)
    fast, slow = PeerId("fast"), PeerId("slow")
    assert report.by_peer[fast] > 2 * report.by_peer[slow] > 0
    assert report.seconds < 1.5 * manifest.size / 9e6 + 1


async def test_a_peer_that_stalls_at_the_end_does_not_delay_the_fetch(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    _, manifest = await swarm.seed("fast")
    await swarm.seed("stuck", rate=1.0)
    getter = await swarm.member("getter")
    report = await getter.get(manifest)
    assert report.seconds < 5


async def test_a_half_dead_peer_times_out_and_is_replaced(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    _, manifest = await swarm.seed("stuck", rate=1e-3, twist=honest)
    swarm.network.nodes[PeerId("stuck")].rate = 10e6
    getter = await swarm.member("getter")
    await getter.exchange.fetch_manifest(manifest.root, swarm.network.peers)

    def stall(data: bytes) -> Answer:
        swarm.network.nodes[PeerId("stuck")].rate = 1e-3
        return Reply({}, data)

    swarm.network.nodes[PeerId("stuck")].twist = of_chunk(stall)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(getter.get, manifest)
        await trio.sleep(20)
        await swarm.seed("late")
    assert getter.holds(manifest)


async def silence(swarm: Swarm, *, back: float | None = None) -> tuple[Member, FetchReport]:
    """Fetch while two of three providers, which hold all open requests, fall silent.

    Their links become quiet after 4.5 s. With `back` they reply again that much later, and there
    is no third provider.
    """
    dead = [PeerId("one"), PeerId("two")]
    for peer in dead:
        _, manifest = await swarm.seed(peer)
    getter = await swarm.member("getter")
    await getter.exchange.fetch_manifest(manifest.root, swarm.network.peers)
    for peer in dead:
        swarm.network.hush(peer, "blob.chunk")
    found: list[FetchReport] = []

    async def get() -> None:
        found.append(await getter.get(manifest))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(get)
        await trio.sleep(0.5)
        if back is None:
            await swarm.seed("three")
        await trio.sleep(4)
        for peer in dead:
            getter.node.miss(peer)
        if back is not None:
            await trio.sleep(back)
            for peer in dead:
                swarm.network.hear(peer)
                getter.node.find(peer)
    assert getter.holds(manifest)
    return getter, found[0]


async def test_quiet_providers_do_not_delay_the_fetch(
    swarm: Swarm, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "IN_FLIGHT", 4)
    _, report = await silence(swarm)
    assert 4.5 < report.seconds < 9
    assert set(report.by_peer) == {"three"}


async def test_without_quiet_links_their_chunks_have_to_time_out(
    swarm: Swarm, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "IN_FLIGHT", 4)
    monkeypatch.setattr(ChunkExchange, "_link_quiet", lambda exchange, link: None)
    _, report = await silence(swarm)
    assert report.seconds > CHUNK_TIMEOUT


async def test_a_quiet_peer_is_used_at_once_when_it_is_back(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    getter, report = await silence(swarm, back=10)
    assert 14.5 < report.seconds < 17
    assert set(report.by_peer) == {"one", "two"} and not getter.liars


async def test_a_manifest_request_to_a_quiet_peer_is_cancelled(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    _, manifest = await swarm.seed("dead")
    await swarm.seed("well")
    getter = await swarm.member("getter")
    swarm.network.hush(PeerId("dead"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(getter.exchange.fetch_manifest, manifest.root, swarm.network.peers)
        await trio.sleep(0.5)
        assert manifest.root not in getter.library.roots()
        getter.node.miss(PeerId("dead"))
    assert trio.current_time() < 0.9  # before the request would be hedged
    assert manifest.root in getter.library.roots()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: Reply({}, bytes(len(data))),
        lambda data: Reply({}, data[:-1]),
        lambda data: Reply({}, data + b"\x00"),
        lambda data: Reply({}, b""),
        lambda data: Reply({}, bytes([data[0] ^ 1]) + data[1:]),
        lambda data: Reply({}, data * 3),
    ],
)
async def test_a_liar_is_dropped_and_reported(
    swarm: Swarm, autojump_clock: MockClock, change: Callable[[bytes], Answer]
) -> None:
    _, manifest = await swarm.seed("honest", rate=2e6)
    liar, _ = await swarm.seed("liar", twist=of_chunk(change))
    getter = await swarm.member("getter")
    report = await getter.get(manifest)
    assert getter.holds(manifest)
    assert report.liars == ("liar",)
    assert getter.liars == ["liar"]
    assert liar.node.served["blob.chunk"] <= 2
    assert set(report.by_peer) == {"honest"}


async def test_unverified_bytes_would_be_stored_without_the_check(
    swarm: Swarm, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: a store that trusts its peers takes the liar's bytes."""

    def believing(store: ChunkStore, digest: str, data: bytes, now: float) -> bool:
        return store._stage(digest, data, now)

    _, manifest = await swarm.seed("liar", twist=of_chunk(lambda data: Reply({}, bytes(len(data)))))
    getter = await swarm.member("getter")
    monkeypatch.setattr(ChunkStore, "stage", believing)
    report = await getter.get(manifest)
    assert report.liars == ()
    with pytest.raises(ModelError):
        getter.holds(manifest)


async def test_a_manifest_with_wrong_sizes_is_not_the_servers_fault(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    seed, honest_one = await swarm.seed("seed")
    tokenizer = honest_one.files["tokenizer"]
    files = {"tokenizer": dataclasses.replace(tokenizer, size=tokenizer.size + 1)}
    lying = await seed.library.save(dataclasses.replace(honest_one, files=files).encode())
    getter = await swarm.member("getter")
    with pytest.raises(ModelError) as error:
        await getter.get(lying)
    assert error.value.code == "bad-manifest" and error.value.hint
    assert getter.liars == []


@pytest.mark.parametrize("defended", [True, False])
async def test_nothing_is_kept_of_a_manifest_with_wrong_sizes(
    swarm: Swarm, autojump_clock: MockClock, defended: bool
) -> None:
    """Twin: without a quota to drop it, the content is offered to other peers."""
    seed, honest_one = await swarm.seed("seed")
    tokenizer = honest_one.files["tokenizer"]
    files = {"tokenizer": dataclasses.replace(tokenizer, size=tokenizer.size + 1)}
    lying = await seed.library.save(dataclasses.replace(honest_one, files=files).encode())
    getter = await swarm.member("getter", evicts=defended)
    with pytest.raises(ModelError):
        await getter.get(lying)
    assert getter.library.knows(lying.root) is not defended
    assert any(map(getter.library.store.has, lying.chunks)) is not defended
    if defended:
        await getter.get(honest_one)


async def test_only_liars(swarm: Swarm, autojump_clock: MockClock) -> None:
    _, manifest = await swarm.seed("liar", twist=of_chunk(lambda data: Reply({}, b"x" * len(data))))
    getter = await swarm.member("getter")
    with pytest.raises(FetchFailed, match="1 peers sent wrong bytes") as error:
        await getter.get(manifest, patience=30.0)
    assert error.value.code == "no-source"
    assert not [digest for digest in manifest.chunks if getter.library.store.has(digest)]


@pytest.mark.parametrize("ranges", [b"x", b"\x00" * 8, b"\xff" * 8, b"\x00" * 7 + b"\x01" * 9])
async def test_malformed_ranges_are_ignored(
    swarm: Swarm, autojump_clock: MockClock, ranges: bytes
) -> None:
    def twist(method: str, answer: Answer) -> Answer:
        return Reply({}, ranges) if method == "blob.have" else answer

    _, manifest = await swarm.seed("odd", twist=twist)
    getter = await swarm.member("getter")
    with pytest.raises(FetchFailed):
        await getter.get(manifest, patience=5.0)
    await swarm.seed("good")
    await getter.get(manifest)


@pytest.mark.parametrize("defended", [True, False])
async def test_a_peer_that_never_delivers_is_polled_rarely(
    swarm: Swarm, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """It offers different chunks each time and sends none; reading its offers takes long. Twin: if
    any news count, it is polled once a second."""
    if not defended:
        monkeypatch.setattr(transfer.Transfer, "delivered", lambda self, peer: True)
    seed, manifest = await swarm.seed("seed")
    getter = await swarm.member("getter")
    asked = 0

    def lie(method: str, answer: Answer) -> Answer:
        nonlocal asked
        if method == "blob.have":
            asked += 1
            return Reply({}, pack_ranges(number % 2 == asked % 2 for number in range(20)))
        return Refusal("not-held", "not here") if method == "blob.chunk" else answer

    seed.node.twist = lie
    with pytest.raises(FetchFailed):
        await getter.get(manifest, patience=60)
    assert (asked < 12) is defended


async def test_a_peer_that_offers_and_refuses(swarm: Swarm, autojump_clock: MockClock) -> None:
    for code in ("not-held", "busy", "nonsense"):
        refusal = Refusal(code, "no")
        await swarm.seed(code, twist=of_chunk(lambda data, r=refusal: r))  # type: ignore[misc]
    getter = await swarm.member("getter")
    _, manifest = await swarm.seed("good", rate=1e6)
    report = await getter.get(manifest)
    assert set(report.by_peer) == {"good"}
    assert report.liars == ()
    assert sum(getter.node.asked_of.values()) < 4 * len(manifest.chunks)


def promise(swarm: Swarm, name: str, chunks: int, answer: Answer | None) -> Node:
    """Add a peer that offers all chunks, and answers requests with `answer`; None for never."""
    node = swarm.network.node(name)

    async def on_chunk(call: Call) -> Answer:
        if answer is not None:
            return answer
        node.served["waiting"] += 1
        try:
            await trio.sleep_forever()
        finally:
            node.served["waiting"] -= 1

    node.handle("blob.have", lambda call: Reply({}, pack_ranges([True] * chunks)))
    node.handle("blob.chunk", on_chunk)
    return node


async def behind_false_ones(
    swarm: Swarm, count: int, answer: Answer | None
) -> tuple[Member, Manifest, list[Node]]:
    """Return a getter that knows a model and meets `count` false peers before an honest one."""
    _, manifest = await swarm.seed("good")
    getter = await swarm.member("getter")
    await getter.exchange.fetch_manifest(manifest.root, swarm.network.peers)
    chunks = len(manifest.chunks)
    false = [promise(swarm, f"false{n}", chunks, answer) for n in range(count)]
    swarm.network.nodes[PeerId("good")] = swarm.network.nodes.pop(PeerId("good"))
    return getter, manifest, false


@pytest.mark.parametrize("answer", [Refusal("busy", "no"), Refusal("not-held", "no"), None])
async def test_peers_that_offer_and_never_deliver_are_replaced(
    swarm: Swarm, autojump_clock: MockClock, answer: Answer | None
) -> None:
    getter, manifest, _ = await behind_false_ones(swarm, PEERS_AT_ONCE, answer)
    report = await getter.get(manifest)
    assert set(report.by_peer) == {"good"}
    assert report.seconds < 45


async def test_peers_that_trigger_an_internal_error_are_replaced(
    swarm: Swarm, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    getter, manifest, false = await behind_false_ones(swarm, PEERS_AT_ONCE, None)
    told, takes = list[Mishap](), Fetch._takes
    getter.exchange._parts.guard.report = told.append

    async def fail(self: Fetch, peer: PeerId, has: list[str]) -> bool:
        if peer.startswith("false"):
            swarm.network.nodes.pop(peer)  # the guard closes the link
            raise KeyError(peer)
        return await takes(self, peer, has)

    monkeypatch.setattr(Fetch, "_takes", fail)
    report = await getter.get(manifest)
    assert set(report.by_peer) == {"good"} and len(told) == len(false)


async def test_peers_that_offer_nothing_are_replaced(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    getter, manifest, false = await behind_false_ones(swarm, PEERS_AT_ONCE, None)
    for node in false:
        node.handle("blob.have", lambda call: Reply({}, b""))
    assert (await getter.get(manifest)).seconds < 10


async def test_replaced_peers_come_after_untried_ones(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    getter, manifest, _ = await behind_false_ones(swarm, 3 * PEERS_AT_ONCE, None)
    report = await getter.get(manifest, patience=400.0)
    assert report.seconds < 5 * CHUNK_TIMEOUT


async def test_open_requests_of_a_replaced_peer_are_cancelled(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    getter, manifest, false = await behind_false_ones(swarm, PEERS_AT_ONCE, None)
    swarm.network.down.add(PeerId("good"))
    swarm.network.nodes[PeerId("good")].rate = 1.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(getter.get, manifest)
        await trio.sleep(1.5 * CHUNK_TIMEOUT)
        before = sum(node.served["waiting"] for node in false)
        swarm.network.down.clear()
        await trio.sleep(1)
        assert sum(node.served["waiting"] for node in false) == before - 1
        nursery.cancel_scope.cancel()


async def test_a_replaced_peer_waits_longer_each_time(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    count = 4 * PEERS_AT_ONCE
    getter, manifest, false = await behind_false_ones(swarm, count, Refusal("busy", "no"))
    swarm.network.down.add(PeerId("good"))
    with trio.move_on_after(600):
        await getter.get(manifest, patience=1000.0)
    asked = [getter.node.asked_of[node.peer] for node in false]
    assert min(asked) >= FAILED_LIMIT
    assert sum(asked) < 20 * count  # one attempt per 15 s would give 24 times
    swarm.network.down.clear()
    assert (await getter.get(manifest)).seconds < 15


async def test_links_that_break_and_come_back(swarm: Swarm, autojump_clock: MockClock) -> None:
    _, manifest = await swarm.seed("seed", rate=4e6)
    getter = await swarm.member("getter")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(getter.get, manifest)
        for _ in range(4):
            await trio.sleep(1.1)
            swarm.network.down.add(PeerId("seed"))
            await trio.sleep(3)
            swarm.network.down.clear()
    assert getter.holds(manifest)


async def test_a_getter_serves_what_it_has_so_far(swarm: Swarm, autojump_clock: MockClock) -> None:
    """Three getters at once cost the seed far less than three copies of the model."""
    seed, manifest = await swarm.seed("seed", rate=1e6)
    getters = [await swarm.member(f"getter{n}") for n in range(3)]
    async with trio.open_nursery() as nursery:
        for getter in getters:
            nursery.start_soon(getter.get, manifest)
    for getter in getters:
        assert getter.holds(manifest)
    assert seed.node.served["blob.chunk"] < 2 * len(manifest.chunks)


async def test_a_fetch_waits_until_a_peer_has_the_content(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    _, manifest = await swarm.seed("seed")
    swarm.network.down.add(PeerId("seed"))
    getter = await swarm.member("getter")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(getter.get, manifest)
        await trio.sleep(60)
        swarm.network.down.clear()
    assert getter.holds(manifest)


async def test_a_fetch_gives_up_after_its_patience(swarm: Swarm, autojump_clock: MockClock) -> None:
    seed, manifest = await swarm.seed("seed")
    getter = await swarm.member("getter")
    await getter.exchange.fetch_manifest(manifest.root, swarm.network.peers)
    gone = seed.library.store.path(manifest.tensors[0].chunks[0])
    gone.unlink()
    start = trio.current_time()
    with pytest.raises(FetchFailed, match="1 missing chunk") as error:
        await getter.get(manifest, patience=20.0)
    assert 20 < trio.current_time() - start < 25
    assert error.value.hint
    assert len(getter.library.store.missing(manifest.chunks)) == 1


async def test_a_chunk_that_rots_on_a_peers_disk_is_not_passed_on(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    seed, manifest = await swarm.seed("seed")
    await swarm.seed("other", rate=1e6)
    for digest, size in manifest.chunks.items():
        seed.library.store.path(digest).write_bytes(bytes(size))
    getter = await swarm.member("getter")
    report = await getter.get(manifest)
    assert report.liars == ()
    assert set(report.by_peer) == {"other"}
    assert getter.holds(manifest)
    removed = len(seed.library.store.missing(manifest.chunks))
    assert removed == getter.node.asked_of[seed.peer] > 0


async def test_a_bit_that_flips_on_the_own_disk_is_fetched_again(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    _, manifest = await swarm.seed("seed")
    getter = await swarm.member("getter")
    await getter.get(manifest)
    digest = manifest.tensors[0].chunks[0]
    path = getter.library.store.path(digest)
    data = bytearray(path.read_bytes())
    data[7] ^= 4
    path.write_bytes(data)
    with pytest.raises(ModelError):
        getter.library.store.get(digest)
    assert (await getter.get(manifest)).chunks == 1
    assert getter.holds(manifest)


# --- a full disk -------------------------------------------------------------------------


async def test_a_full_disk_is_reported_before_anything_is_requested(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    seed, manifest = await swarm.seed("seed")
    getter = await swarm.member("getter")
    await getter.exchange.fetch_manifest(manifest.root, swarm.network.peers)
    getter.host.files.free = manifest.size - 1
    with pytest.raises(NotEnoughDisk) as error:
        await getter.get(manifest)
    assert error.value.needed == manifest.size
    assert seed.node.served["blob.chunk"] == 0


@pytest.mark.parametrize("writes", [0, 1, 5, 20])
async def test_a_disk_that_fills_midway_loses_nothing(
    swarm: Swarm, autojump_clock: MockClock, writes: int
) -> None:
    seed, manifest = await swarm.seed("seed")
    getter = await swarm.member("getter")
    await getter.exchange.fetch_manifest(manifest.root, swarm.network.peers)
    getter.host.files.fail_at = len(getter.host.files.writes) + writes
    with pytest.raises(NotEnoughDisk) as error:
        await getter.get(manifest)
    assert error.value.hint
    getter.host.files.fail_at = None
    missing = getter.library.store.missing(manifest.chunks)
    assert len(missing) == len(manifest.chunks) - writes
    assert (await getter.get(manifest)).chunks == len(missing)
    assert getter.holds(manifest)
    assert seed.library.names()


# --- manifests ---------------------------------------------------------------------------


async def test_big_manifests_come_in_pieces(
    swarm: Swarm, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "MANIFEST_PIECE", 100)
    monkeypatch.setattr(exchange_module, "MANIFEST_PIECE", 100)
    seed, manifest = await swarm.seed("seed")
    getter = await swarm.member("getter")
    found = await getter.exchange.fetch_manifest(manifest.root, swarm.network.peers)
    assert found == manifest
    assert seed.node.served["model.manifest"] == -(-len(manifest.encode()) // 100)
    await getter.exchange.fetch_manifest(manifest.root, list)  # from disk
    assert getter.library.roots() == {manifest.root}


MANIFEST_LIES: list[Callable[[Reply], Answer]] = [
    lambda reply: Reply(reply.header, bytes(len(reply.payload))),
    lambda reply: Reply(reply.header, b""),
    lambda reply: Reply({"size": 2**40}, reply.payload),
    lambda reply: Reply({"size": "1"}, reply.payload),
    lambda reply: Reply({"size": 0}, b""),
    lambda reply: Reply({}, reply.payload),
    lambda reply: Reply({"size": 10**6}, bytes(reply.payload)[:1]),
]


@pytest.mark.parametrize("lie", MANIFEST_LIES)
async def test_a_forged_manifest(
    swarm: Swarm, autojump_clock: MockClock, lie: Callable[[Reply], Answer]
) -> None:
    def twist(method: str, answer: Answer) -> Answer:
        return lie(answer) if method == "model.manifest" and isinstance(answer, Reply) else answer

    await swarm.seed("liar", twist=twist)
    _, manifest = await swarm.seed("honest")
    getter = await swarm.member("getter")
    assert await getter.exchange.fetch_manifest(manifest.root, swarm.network.peers) == manifest
    assert getter.liars == ["liar"]
    other = await swarm.member("other")
    with pytest.raises(FetchFailed):
        await other.exchange.fetch_manifest(manifest.root, lambda: [PeerId("liar")], patience=9.0)
    assert other.library.roots() == frozenset()


async def test_no_peer_has_the_manifest(swarm: Swarm, autojump_clock: MockClock) -> None:
    getter = await swarm.member("getter")
    with pytest.raises(FetchFailed) as error:
        await getter.exchange.fetch_manifest("f" * 64, swarm.network.peers, patience=9.0)
    assert error.value.code == "no-source"
    with pytest.raises(ModelError) as bad:
        await getter.exchange.fetch_manifest("../../etc", swarm.network.peers)
    assert bad.value.code == "bad-digest"


async def test_chunks_of_other_models_are_not_asked_for(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    seed, manifest = await swarm.seed("seed")
    with pytest.raises(ModelError) as error:
        await seed.exchange.fetch(manifest.root, ["f" * 64], swarm.network.peers)
    assert error.value.code == "not-of-model"
    with pytest.raises(ModelError) as unknown:
        await seed.exchange.fetch("f" * 64, [], swarm.network.peers)
    assert unknown.value.code == "unknown-model"


# --- serving -----------------------------------------------------------------------------

HOSTILE: list[Any] = [None, 7, -1, 1.5, b"x", "x", [], {}, "../" * 20, "F" * 64, "f" * 65, True]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    ("method", "field"),
    [("blob.chunk", "digest"), ("blob.have", "root"), ("model.manifest", "root")],
)
async def test_hostile_headers_are_refused(
    swarm: Swarm, autojump_clock: MockClock, method: str, field: str, value: object
) -> None:
    seed, _ = await swarm.seed("seed")
    answer: Any = seed.node.handlers[method](Call(PeerId("x"), {field: value}, b""))
    assert (await answer).code == "bad-request"


@pytest.mark.parametrize("offset", [-1, 2**64, 1.0, "0", None, True])
async def test_hostile_offsets_are_refused(
    swarm: Swarm, autojump_clock: MockClock, offset: object
) -> None:
    seed, manifest = await swarm.seed("seed")
    header = {"root": manifest.root, "offset": offset}
    answer: Any = seed.node.handlers["model.manifest"](Call(PeerId("x"), header, b""))
    assert (await answer).code == "bad-request"


async def test_unknown_roots_and_chunks_are_refused(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    seed, _ = await swarm.seed("seed")
    for method, code in (
        ("blob.chunk", "not-held"),
        ("blob.have", "unknown-root"),
        ("model.manifest", "unknown-model"),
    ):
        header: dict[str, object] = {"root": "f" * 64, "digest": "f" * 64}
        answer: Any = seed.node.handlers[method](Call(PeerId("x"), header, b""))
        assert (await answer).code == code


class SlowHost(FakeHost):
    """Host whose offloaded work takes a second and is counted."""

    def __init__(self) -> None:
        super().__init__(inline=True)
        self.running = self.most = 0

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        self.running += 1
        self.most = max(self.most, self.running)
        await trio.sleep(1)
        self.running -= 1
        return work(*args)


async def test_concurrent_reads_and_the_queue_of_one_peer_are_limited(
    swarm: Swarm, autojump_clock: MockClock, tmp_path: Path
) -> None:
    seed, manifest = await swarm.seed("seed")
    host = SlowHost()
    exchange = ChunkExchange(host, swarm.network.node("slow"), seed.library)
    digest = next(iter(manifest.chunks))
    answers: list[Answer] = []

    async def ask(peer: str) -> None:
        call = Call(PeerId(peer), {"digest": digest}, b"")
        answers.append(await exchange.provider.serve_chunk(call))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask, "greedy")
        await trio.sleep(0.5)
        assert host.most == SERVE_AT_ONCE
        nursery.start_soon(ask, "modest")
        await trio.sleep(1)
        assert any(isinstance(answer, Reply) for answer in answers)
    refused = [answer for answer in answers if isinstance(answer, Refusal)]
    assert len(refused) == 50 - SERVE_WAITING
    assert {answer.code for answer in refused} == {"busy"}
    assert exchange.provider._guests == {}


async def test_cancelling_a_fetch_keeps_stored_chunks(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    _, manifest = await swarm.seed("seed", rate=1e6)
    getter = await swarm.member("getter")
    for _ in range(30):
        with trio.move_on_after(0.7):
            await getter.get(manifest)
    await getter.get(manifest)
    assert getter.holds(manifest)
    assert all(size <= CHUNK for size in manifest.chunks.values())


# --- blobs, and a disk that has space again ----------------------------------------------


async def seed_blob(swarm: Swarm, name: str, chunks: int, **options: Any) -> tuple[Member, str]:
    member = await swarm.member(name, **options)
    path = swarm.folder / "file"
    path.write_bytes(b"".join(n.to_bytes(4) * (CHUNK // 4) for n in range(chunks)) + b"end")
    return member, await member.library.add_blob(path)


async def test_fetching_a_blob(swarm: Swarm, autojump_clock: MockClock) -> None:
    _, root = await seed_blob(swarm, "seed", 5)
    getter = await swarm.member("getter")
    report = await getter.exchange.fetch_blob(root, swarm.network.peers)
    assert (report.chunks, report.size) == (6, 5 * CHUNK + 3)
    assert await getter.library.blobs.write_out(root, swarm.folder / "out") == report.size
    assert (swarm.folder / "out").read_bytes() == (swarm.folder / "file").read_bytes()
    assert (await getter.exchange.fetch_blob(root, list)).chunks == 0
    assert getter.library.usage.fetched.keys() == {root}


async def test_a_full_disk_is_reported_and_the_fetch_continues_by_itself(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    _, root = await seed_blob(swarm, "seed", 12, rate=2e6)
    getter = await swarm.member("getter")
    await getter.exchange.fetch_tree(root, swarm.network.peers)
    files, said = getter.host.files, list[str]()
    files.fail_at = len(files.writes) + 4
    done = trio.Event()

    async def fetch() -> None:
        await getter.exchange.fetch_blob(
            root,
            swarm.network.peers,
            terms=FetchTerms(on_full=lambda error: said.append(error.code)),
        )
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch)
        await trio.sleep(400)  # longer than its patience
        assert said == ["disk-full"]
        assert not done.is_set()
        content = await getter.library.content(root)
        kept = 13 - len(getter.library.store.missing(content.order))
        assert kept == 4, "nothing that was acknowledged is lost"
        files.fail_at, files.free = None, 0  # no requests are sent before there is space
        await trio.sleep(10)  # open requests still finish
        asked = sum(getter.node.asked_of.values())
        await trio.sleep(60)
        assert sum(getter.node.asked_of.values()) == asked
        files.free = None
        await trio.sleep(10)
        assert len(getter.library.store.missing(content.order)) < 13 - kept
        await done.wait()
    assert said == ["disk-full"]
    assert await getter.library.blobs.write_out(root, swarm.folder / "out")


async def test_providers_are_looked_up_dialled_and_asked(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    seed, root = await seed_blob(swarm, "seed", 9)
    swarm.network.down.add(seed.peer)  # no link to it yet
    dialled: list[PeerId] = []
    said: list[tuple[str, int, int, bytes | None]] = []

    async def providers(wanted: str) -> list[PeerId]:
        return [PeerId("dead"), seed.peer] if wanted == root else []

    async def connect(peer: PeerId) -> None:
        dialled.append(peer)
        if peer != seed.peer:
            raise DialFailed("unreachable", "no reply")
        swarm.network.down.clear()

    node = swarm.network.node("getter")
    host = FakeHost(inline=True)
    library = await open_library(swarm.folder / "getter", host)
    found = Providers(providers, connect, lambda *what: said.append(what))
    exchange = ChunkExchange(host, node, library, swarm=found)
    await exchange.fetch_blob(root, list, terms=FetchTerms(60.0))
    assert {"dead", "seed"} <= set(dialled)
    content = await library.content(root)
    assert not library.store.missing(content.order)
    size = 9 * CHUNK + 3
    assert said[-1] == (root, size, 10, None)
    assert all((r, s, n) == (root, size, 10) for r, s, n, _ in said)
    assert 2 <= len(said) <= 7


FLIPS = 10_000


async def test_ten_thousand_flipped_bits_are_caught(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    """Half on the wire, half on disk, at random positions of a small chunk: each is detected."""
    numbers = random.Random(7)
    member = await swarm.member("getter")
    store = member.library.store
    data = numbers.randbytes(4096)
    digest = hashlib.sha256(data).hexdigest()
    caught = 0
    for number in range(FLIPS):
        bad = bytearray(data)
        bad[numbers.randrange(len(bad))] ^= 1 << numbers.randrange(8)
        if number % 2:
            with pytest.raises(ChunkCorrupt):
                store.stage(digest, bytes(bad), 0.0)
            assert not store.has(digest)
        else:
            store.stage(digest, data, 0.0)
            path = store.staged[digest]
            path.write_bytes(bad)
            with pytest.raises(ChunkCorrupt):
                store.get_to_serve(digest, 1.0)
            assert not store.has(digest)
        caught += 1
    assert caught == FLIPS


@pytest.mark.parametrize("seed", range(5))
async def test_bits_flipped_on_the_wire_ban_the_liar_and_harm_nothing_else(
    swarm: Swarm, autojump_clock: MockClock, seed: int
) -> None:
    numbers = random.Random(seed)
    flips = 0

    def flip(data: bytes) -> Answer:
        nonlocal flips
        if numbers.random() < 0.3:
            flips += 1
            bad = bytearray(data)
            bad[numbers.randrange(len(bad))] ^= 1 << numbers.randrange(8)
            return Reply({}, bytes(bad))
        return Reply({}, data)

    _, root = await seed_blob(swarm, "liar", 12, twist=of_chunk(flip))
    await seed_blob(swarm, "honest", 12, rate=3e6)
    getter = await swarm.member("getter")
    report = await getter.exchange.fetch_blob(root, swarm.network.peers)
    assert await getter.library.blobs.write_out(root, swarm.folder / "out")
    assert (swarm.folder / "out").read_bytes() == (swarm.folder / "file").read_bytes()
    assert set(getter.liars) == ({"liar"} if flips else set())
    assert set(report.liars) <= {"liar"}
