"""provider: each chunk is sent once before any twice, watchers are notified, all is limited."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shoal.dht.content.library import Library
from shoal.dht.content.ranges import pack_ranges, read_ranges
from shoal.dht.defaults import (
    CHUNK,
    GIVEN_FOR,
    GIVEN_ROOTS,
    HAVE_RATE,
    NEWS_CHUNKS,
    NEWS_PER_S,
    WATCH_FOR,
    WATCHERS,
    WATCHES_OF_PEER,
)
from shoal.dht.errors import ModelError
from shoal.dht.exchange import fetch as fetch_module
from shoal.dht.exchange import provider as provider_module
from shoal.dht.exchange.exchange import ChunkExchange
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Answer, Call, Refusal, Reply

from ..models import FakeHost, open_library
from ..network import Network, Node

pytestmark = pytest.mark.trio

A, B = PeerId("a"), PeerId("b")


class Member:
    """A node with a library and an exchange, whose host does not wait."""

    def __init__(self, network: Network, name: str, folder: Path, rate: float) -> None:
        self.node: Node = network.node(name, rate=rate)
        self.host = FakeHost(inline=True, seed=len(network.nodes))
        self.folder = folder / name
        self.given: list[str] = []  # digests, in the order in which they were sent

    async def open(self) -> "Member":
        self.library: Library = await open_library(self.folder, self.host)
        self.exchange = ChunkExchange(self.host, self.node, self.library)
        self.node.handle("blob.chunk", self._count)
        return self

    async def _count(self, call: Call) -> Answer:
        answer = await self.exchange.provider.serve_chunk(call)
        if isinstance(answer, Reply):
            self.given.append(str(call.header["digest"]))
        return answer

    async def ask(self, method: str, peer: PeerId, **header: Any) -> Answer:
        handler = self.node.handlers[method]
        return await cast(Awaitable[Answer], handler(Call(peer, header, b"")))


async def member(network: Network, name: str, folder: Path, rate: float = 10e6) -> Member:
    return await Member(network, name, folder, rate).open()


async def seeded(folder: Path, chunks: int, rate: float = 10e6) -> tuple[Network, Member, str]:
    network = Network()
    seed = await member(network, "seed", folder, rate)
    path = folder / "file"
    path.write_bytes(b"".join(n.to_bytes(4) * (CHUNK // 4) for n in range(chunks)))
    return network, seed, await seed.library.add_blob(path)


async def spread(folder: Path, chunks: int = 32, getters: int = 6) -> float:
    """Let several nodes fetch from a lone seeder; return the share of distinct chunks among the
    first ones that it sent, as many as there are chunks."""
    network, seed, root = await seeded(folder, chunks, rate=2e6)
    others = [await member(network, f"getter{n}", folder, rate=4e6) for n in range(getters)]
    async with trio.open_nursery() as nursery:
        for other in others:
            nursery.start_soon(other.exchange.fetch_blob, root, network.peers)
    tree = await seed.library.blobs.tree(root)
    for other in others:
        assert not other.library.store.missing(tree.leaves)
    given = [digest for digest in seed.given if digest in tree.leaves]
    return len(set(given[:chunks])) / chunks


async def test_a_lone_seeder_sends_each_chunk_once_before_any_twice(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    assert await spread(tmp_path) >= 0.95


async def test_without_sparing_it_sends_many_chunks_twice(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the test above."""
    monkeypatch.setattr(provider_module, "GIVEN_FOR", 0.0)
    assert await spread(tmp_path) < 0.9


async def test_a_chunk_is_sent_to_a_second_peer_only_once_all_were_sent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    _, seed, root = await seeded(tmp_path, 2)
    first, second = (await seed.library.content(root)).order

    async def code(peer: PeerId, digest: str, **spare: Any) -> str:
        answer = await seed.ask("blob.chunk", peer, digest=digest, **spare)
        return answer.code if isinstance(answer, Refusal) else "ok"

    assert await code(A, first, spare=root) == "ok"
    assert await code(A, first, spare=root) == "ok"  # the same peer may ask again
    assert await code(B, first, spare=root) == "given"
    assert await code(B, first) == "ok"  # it does not offer to wait
    assert await code(B, second, spare=root) == "ok"
    assert await code(A, second, spare=root) == "ok"  # all have been sent
    for wrong in (7, "x", True, b"", ["f" * 64]):
        assert await code(B, first, spare=wrong) == "bad-request"
    assert await code(B, first, spare="f" * 64) == "ok"


async def test_sent_chunks_are_forgotten_after_a_while(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    _, seed, root = await seeded(tmp_path, 2)
    first = (await seed.library.content(root)).order[0]
    await seed.ask("blob.chunk", A, digest=first, spare=root)
    assert isinstance(await seed.ask("blob.chunk", B, digest=first, spare=root), Refusal)
    await trio.sleep(GIVEN_FOR)
    assert isinstance(await seed.ask("blob.chunk", B, digest=first, spare=root), Reply)
    for number in range(GIVEN_ROOTS):
        seed.exchange.provider.given[f"{number}"] = {}
    other = (await seed.library.content(root)).order[1]
    await seed.ask("blob.chunk", A, digest=other, spare=root)
    assert len(seed.exchange.provider.given) == GIVEN_ROOTS


async def test_watchers_are_notified_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    network, _, root = await seeded(tmp_path, 8, rate=1e6)
    getter = await member(network, "getter", tmp_path)
    listener = network.node("listener")
    heard: list[tuple[float, list[str]]] = []
    content = await network_content(getter, root, network)

    def on_news(call: Call) -> Reply:
        assert call.header == {"root": root}
        heard.append((trio.current_time(), read_ranges(call.payload, content.order) or []))
        return Reply()

    listener.handle("blob.news", on_news)
    answer = await getter.ask("blob.have", PeerId("listener"), root=root, watch=True)
    assert isinstance(answer, Reply) and answer.header == {"watching": True}
    await getter.exchange.fetch_blob(root, network.peers)
    assert sorted(d for _, digests in heard for d in digests) == sorted(content.order)
    assert heard[0][0] < heard[-1][0] - 4  # during the fetch, not at its end


async def network_content(getter: Member, root: str, network: Network) -> Any:
    await getter.exchange.fetch_tree(root, network.peers)
    return await getter.library.content(root)


async def test_watchers_are_limited_in_number_and_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    _, seed, root = await seeded(tmp_path, 1)

    async def watching(peer: str) -> bool:
        answer = await seed.ask("blob.have", PeerId(peer), root=root, watch=True)
        assert isinstance(answer, Reply)
        return bool(answer.header["watching"])

    assert [await watching(f"p{n}") for n in range(WATCHERS + 1)] == [True] * WATCHERS + [False]
    assert await watching("p0")
    await trio.sleep(WATCH_FOR)
    assert await watching("late")
    assert list(seed.exchange.provider.watchers[root]) == ["late"]
    provider = seed.exchange.provider
    for number in range(WATCHES_OF_PEER):
        provider.watchers[f"{number}"] = {PeerId("greedy"): 1e9}
    assert not await watching("greedy")
    assert not isinstance(await seed.ask("blob.have", A, root=root, watch=1), Reply)


async def test_a_peer_that_left_is_not_notified(tmp_path: Path, autojump_clock: MockClock) -> None:
    network, seed, root = await seeded(tmp_path, 1)
    network.node("gone")
    await seed.ask("blob.have", PeerId("gone"), root=root, watch=True)
    network.down.add(PeerId("gone"))
    content = await seed.library.content(root)
    seed.exchange.provider.notify(content, content.order)
    assert seed.exchange.provider.watchers == {}


@pytest.mark.parametrize("payload", [b"x", b"\0" * 8, b"\xff" * 8, b"\0" * 3, b"\0" * 10**6])
async def test_unrequested_and_malformed_notifications(
    tmp_path: Path, autojump_clock: MockClock, payload: bytes
) -> None:
    network, _, root = await seeded(tmp_path, 4, rate=1e6)
    getter = await member(network, "getter", tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(getter.exchange.fetch_blob, root, network.peers)
        await trio.sleep(1)
        for peer in ("seed", "stranger"):
            for header in ({"root": root}, {"root": 7}, {}, {"root": "f" * 64}):
                call = Call(PeerId(peer), dict(header), payload)
                assert getter.node.handlers["blob.news"](call) == Reply()
    assert getter.library.knows(root)


async def test_a_blob_whose_tree_lies_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its bytes match the root, so the peer is not the liar."""
    network, seed, _ = await seeded(tmp_path, 1)
    top = b"shoal-blob/1".ljust(16, b"\0") + (10_000_000 * CHUNK).to_bytes(8) + bytes(40)
    root = seed.library.store.add(top)
    getter = await member(network, "getter", tmp_path)
    with pytest.raises(ModelError) as error:
        await getter.exchange.fetch_blob(root, network.peers)
    assert error.value.code == "bad-blob"
    assert not getter.library.knows(root)


async def test_too_many_or_too_large_notifications_are_not_read(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, _, root = await seeded(tmp_path, 4, rate=0.3e6)
    getter = await member(network, "getter", tmp_path)
    reads: list[int | None] = []

    def reading(payload: Any, order: Any, most: int | None = None) -> list[str] | None:
        reads.append(most)
        return read_ranges(payload, order, most)

    monkeypatch.setattr(fetch_module, "read_ranges", reading)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(getter.exchange.fetch_blob, root, network.peers)
        await trio.sleep(5.5)
        reads.clear()
        news = Call(PeerId("seed"), {"root": root}, b"\0" * 7 + b"\1")
        for _ in range(1000):
            getter.node.handlers["blob.news"](news)
        assert reads == [NEWS_CHUNKS] * NEWS_PER_S
        await trio.sleep(1)
        getter.node.handlers["blob.news"](news)
        assert len(reads) == NEWS_PER_S + 1
    order = [f"{n:064x}" for n in range(2 * NEWS_CHUNKS)]
    assert read_ranges(pack_ranges([True] * NEWS_CHUNKS), order, NEWS_CHUNKS)
    assert read_ranges(pack_ranges([True] * (NEWS_CHUNKS + 1)), order, NEWS_CHUNKS) is None


async def answered(folder: Path, asked: int) -> tuple[int, Member, str]:
    """Send `asked` requests of one peer at once; return how many were answered."""
    _, seed, root = await seeded(folder, 2)
    answers = [await seed.ask("blob.have", A, root=root) for _ in range(asked)]
    return sum(isinstance(answer, Reply) for answer in answers), seed, root


async def test_requests_for_the_chunk_list_are_limited(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    burst, per_s = HAVE_RATE
    told, seed, root = await answered(tmp_path, 4 * burst)
    assert told == burst
    answer = await seed.ask("blob.have", A, root=root)
    assert isinstance(answer, Refusal)
    assert answer.code == "busy"
    assert isinstance(await seed.ask("blob.have", B, root=root), Reply)
    await trio.sleep(1 / per_s)
    assert isinstance(await seed.ask("blob.have", A, root=root), Reply)


async def test_without_that_limit_all_requests_are_answered(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the test above."""
    monkeypatch.setattr(provider_module, "HAVE_RATE", (1e9, 1e9))
    assert (await answered(tmp_path, 4 * HAVE_RATE[0]))[0] == 4 * HAVE_RATE[0]
