"""Process to be killed by tests: imports a folder, or fetches a model from an address.

    python child.py import DATA FOLDER
    python child.py fetch DATA ADDRESS ROOT

Prints a line for every step, then `done ROOT`.
"""

import sys
from functools import partial
from pathlib import Path

import trio

from shoal.dht.content.chunkstore import ChunkStore
from shoal.dht.content.library import Library
from shoal.dht.exchange.exchange import ChunkExchange
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity


def step(done: int, total: int) -> None:
    print(f"{done} {total}\n", end="", flush=True)


async def take(data: Path, folder: str) -> str:
    library = Library(RealHost(), data)
    await library.open()
    _, manifest = await library.add(Path(folder), "model", step)
    return manifest.root


class TellingStore(ChunkStore):
    """Prints which chunk has arrived before it stores the chunk."""

    def stage(self, digest: str, data: bytes | memoryview, now: float) -> bool:
        print(f"got {digest}\n", end="", flush=True)  # a single write, as threads print too
        return super().stage(digest, data, now)


async def fetch(data: Path, address: str, root: str) -> str:
    host = RealHost()
    library = Library(host, data)
    library.store = TellingStore(host, data / "chunks")
    await library.open()
    endpoint = Endpoint(host, Identity.generate(host), admission=OpenSwarm())
    exchange = ChunkExchange(host, endpoint, library)
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, "127.0.0.1", 0)
        link = await endpoint.dial(Address.parse(address), timeout=10)
        manifest = await exchange.fetch_manifest(root, lambda: [link.peer])
        await exchange.fetch(root, list(manifest.chunks), lambda: [link.peer], step)
        nursery.cancel_scope.cancel()
    return root


def main() -> None:
    mode, data, *rest = sys.argv[1:]
    work = partial(take if mode == "import" else fetch, Path(data), *rest)
    print("done", trio.run(work), flush=True)


if __name__ == "__main__":
    main()
