"""Real endpoints, real processes killed with SIGKILL, and a real full disk."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest
import trio

from shoal.dht.content.library import Library
from shoal.dht.content.manifest import Manifest
from shoal.dht.errors import NotEnoughDisk
from shoal.dht.exchange.exchange import ChunkExchange
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.calls import Answer, Call, Reply

from .models import FakeHost, open_library, weights, write_folder

pytestmark = pytest.mark.trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
CHILD = Path(__file__).with_name("child.py")
LAYERS = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a model of 111 chunks."""
    return write_folder(tmp_path / "model", weights(LAYERS, hidden=64), num_hidden_layers=LAYERS)


async def run_child(
    *args: str, kill_after: int | None, pause: float = 0.0, got: Counter[str] | None = None
) -> str:
    """Run the child, and return its last line, "" if it was killed.

    Kills it `pause` seconds after it printed `kill_after` lines. Counts the chunks that it received
    in `got`.
    """
    process = await trio.lowlevel.open_process(
        [sys.executable, str(CHILD), *args], stdout=subprocess.PIPE, stderr=None
    )
    assert process.stdout is not None
    text = b""
    try:
        with trio.fail_after(60):
            while piece := await process.stdout.receive_some():
                text += piece
                if kill_after is not None and text.count(b"\n") >= kill_after:
                    await trio.sleep(pause)
                    process.kill()
            await process.wait()
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()
    if got is not None:  # the last line may be incomplete
        got.update(line[4:] for line in text.decode().split("\n")[:-1] if line[:3] == "got")
    last = text.decode().splitlines()[-1:]
    return last[0] if process.returncode == 0 and last else ""


def check_store(data: Path) -> int:
    """Check that every chunk on disk is whole after recovery; return their number."""
    store = Library(FakeHost(), data).store
    store.open()
    names = [path.name for path in (data / "chunks").iterdir() if path.name[0] != "."]
    for name in names:
        store.get(name)
    return len(names)


def leftovers(data: Path) -> list[Path]:
    return list(data.rglob("*.tmp"))


async def check_whole(data: Path, manifest: Manifest) -> None:
    library = await open_library(data)
    assert (await library.stored_parts(manifest.root)).complete
    assert check_store(data) == len(manifest.chunks)
    assert leftovers(data) == []


async def kill_imports(folder: Path, data: Path, kills: int, seed: int) -> None:
    numbers, counts = random.Random(seed), [0]
    for _ in range(kills):
        lines = numbers.randint(1, 9 * LAYERS)
        if await run_child("import", str(data), str(folder), kill_after=lines):
            break
        counts.append(check_store(data))
        for root in (await open_library(data)).names().values():
            assert (await (await open_library(data)).stored_parts(root)).complete
    assert counts == sorted(counts)
    last = await run_child("import", str(data), str(folder), kill_after=None)
    library = await open_library(data)
    assert last == f"done {library.resolve('model')}"
    await check_whole(data, await library.manifest(library.resolve("model")))


async def test_an_import_resumes_after_a_kill(tmp_path: Path, folder: Path) -> None:
    await kill_imports(folder, tmp_path / "data", kills=2, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
async def test_an_import_survives_many_kills(tmp_path: Path, folder: Path, seed: int) -> None:
    await kill_imports(folder, tmp_path / "data", kills=15, seed=seed)


class CountingExchange(ChunkExchange):
    """Counts the chunks that it sent."""

    def __init__(self, host: FakeHost, endpoint: Endpoint, library: Library) -> None:
        super().__init__(host, endpoint, library)
        self.served: Counter[str] = Counter()
        endpoint.handle("blob.chunk", self._count)

    async def _count(self, call: Call) -> Answer:
        answer = await self.provider.serve_chunk(call)
        self.served[str(call.header["digest"])] += isinstance(answer, Reply)
        return answer


class SlowHost(FakeHost):
    """Host on which each offloaded call takes 5 ms longer, so that kills come midway."""

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.sleep(0.005)
        return await super().offload(work, *args)


class Seed:
    """Real endpoint that serves a model."""

    def __init__(self, host: FakeHost, library: Library) -> None:
        identity = Identity.generate(RealHost())
        self.endpoint = Endpoint(host, identity, admission=OpenSwarm())
        self.library = library
        self.exchange = CountingExchange(host, self.endpoint, library)
        self.peer: PeerId = identity.peer

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.endpoint.port, self.peer)


async def make_seed(data: Path, folder: Path) -> tuple[Seed, Manifest]:
    host = SlowHost()
    library = await open_library(data, FakeHost())
    _, manifest = await library.add(folder)
    return Seed(host, library), manifest


async def kill_fetches(folder: Path, base: Path, kills: int, seed: int) -> None:
    numbers, counts, got = random.Random(seed), [0], Counter[str]()
    server, manifest = await make_seed(base / "seed", folder)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.endpoint.run, "127.0.0.1", 0)
        args = ("fetch", str(base / "data"), str(server.address), manifest.root)
        for _ in range(kills):
            lines, pause = numbers.randint(4, 20), numbers.random() * 0.003
            if await run_child(*args, kill_after=lines, pause=pause, got=got):
                break
            counts.append(check_store(base / "data"))
        assert await run_child(*args, kill_after=None, got=got) == f"done {manifest.root}"
        nursery.cancel_scope.cancel()
    assert counts == sorted(counts)
    assert counts[1] > 0
    assert len(counts) - 1 >= 0.8 * kills, "most kills came before the fetch was done"
    await check_whole(base / "data", manifest)
    # At each kill at most one received chunk was lost, and at most a window of requests.
    assert got.total() - len(got) <= len(counts) - 1
    assert set(got) == set(manifest.chunks)
    assert server.exchange.served.total() <= len(manifest.chunks) + 10 * len(counts)


async def test_a_fetch_resumes_after_a_kill(tmp_path: Path, folder: Path) -> None:
    await kill_fetches(folder, tmp_path, kills=2, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(25))
async def test_a_fetch_survives_many_kills(tmp_path: Path, folder: Path, seed: int) -> None:
    """At least 200 kills over all seeds."""
    await kill_fetches(folder, tmp_path, kills=10, seed=seed)


async def test_three_real_endpoints(tmp_path: Path, folder: Path) -> None:
    """Two nodes hold the model, and a third fetches from both."""
    one, manifest = await make_seed(tmp_path / "one", folder)
    two, _ = await make_seed(tmp_path / "two", folder)
    getter = Seed(FakeHost(), await open_library(tmp_path / "three", FakeHost()))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for node in (one, two, getter):
                await nursery.start(node.endpoint.run, "127.0.0.1", 0)
            for node in (one, two):
                await getter.endpoint.dial(node.address, timeout=10)

            def peers() -> list[PeerId]:
                return [link.peer for link in getter.endpoint.links()]

            await getter.exchange.fetch_manifest(manifest.root, peers)
            report = await getter.exchange.fetch(manifest.root, list(manifest.chunks), peers)
            nursery.cancel_scope.cancel()
    assert set(report.by_peer) == {one.peer, two.peer}
    assert sum(report.by_peer.values()) == manifest.size
    await check_whole(tmp_path / "three", manifest)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "shoal-test", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let tests mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


async def test_a_real_full_disk(tiny_disk: Path, tmp_path: Path) -> None:
    big = write_folder(tmp_path / "big", weights(1, hidden=1000), num_hidden_layers=1)
    host = FakeHost()
    library = Library(host, tiny_disk / "data")
    library.store = type(library.store)(host, tiny_disk / "data" / "chunks", reserve=0)
    await library.open()
    with pytest.raises(NotEnoughDisk) as early:
        await library.add(big)
    assert not host.files.writes
    assert early.value.free <= 4 * 2**20
    host.files.free = 2**40  # as if another program took the space after the check
    with pytest.raises(NotEnoughDisk):
        await library.add(big)
    assert host.files.writes
    assert check_store(tiny_disk / "data") == len(host.files.writes)
    assert library.names() == {}
