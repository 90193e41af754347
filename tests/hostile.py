"""A hostile peer as a process of its own: it speaks our transport, has a fresh identity, and lies.

    python -m tests.hostile

Reads commands from standard input, one JSON object per line, and answers each with one: `Liar` has
a method for each. It ends with its standard input. `Hostile` starts one, for tests.
"""

import contextlib
import hashlib
import inspect
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgpack
import trio

from shoal.dht.kademlia.messages import (
    Aged,
    Find,
    FindReply,
    StoreRequest,
    decode_codes,
    encode_codes,
)
from shoal.dht.records.contact import Contact
from shoal.dht.records.key import parse_key
from shoal.state.feeds.archive import MemoryArchive
from shoal.state.membership.record import MemberRecord, ModelName, seal_record
from shoal.state.replication.replica import Replica
from shoal.state.replication.replication import Replication
from shoal.state.views.models import model_fact
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import CallRefused, TransportError
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.lane.frame import Priority
from shoal.transport.lane.shaper import Cap, Caps, Shaper
from shoal.transport.link.calls import Answer, Call, Handler, Refusal, Reply
from shoal.transport.link.link import Link
from tests.program import Program, say
from tests.state.fake_feeds import Writer

HOST = RealHost()
LOOPBACK = "127.0.0.1"
PIECE = 4 << 20  # bytes of a manifest per reply, as from honest nodes
GHOSTS = 20  # contacts that a reply may name per key


class Liar:
    """Hostile peer whose replies are set by commands."""

    def __init__(self, seed: bytes, rate: float | None) -> None:
        caps = None if rate is None else Shaper(Caps(up=Cap(bulk=rate)), HOST.now())
        self.identity = Identity.from_seed(seed)
        self.endpoint = Endpoint(HOST, self.identity, admission=OpenSwarm(), shaper=caps)
        self.asked: Counter[str] = Counter()
        self._manifests: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        self._chunks: dict[str, bytes] = {}
        self._held: dict[str, int] = {}
        self._twist = ""
        self._find, self._store = "honest", "keep"
        self._forged: list[Aged] = []
        self._links: dict[str, Link] = {}
        self._seq = 0
        self._writer = Writer(int.from_bytes(seed))
        self.replication = Replication(
            HOST, self.endpoint, Replica(self.endpoint.peer, MemoryArchive())
        )
        self._ghosts = 0
        handlers: dict[str, Handler] = {
            "model.manifest": self._on_manifest,
            "blob.have": self._on_have,
            "blob.chunk": self._on_chunk,
            "dht.find": self._on_find,
            "dht.store": self._on_store,
        }
        for method, handler in handlers.items():
            self.endpoint.handle(method, handler)

    # Commands.

    async def link(self, to: str) -> dict[str, Any]:
        """Open a lasting link and announce that it serves, so that it is asked."""
        address = Address.parse(to)
        link = await self.endpoint.dial(address, timeout=10)
        self._links[link.peer] = link
        find = Find((), (), serves=self._contact().packed)
        await link.call("dht.find", payload=find.encode(), priority=Priority.CONTROL, timeout=10)
        return {"peer": link.peer}

    async def members(self, names: dict[str, str], holds: list[str]) -> dict[str, Any]:
        """Claim in its feed that these names are these models, and in its record that it provides
        them.
        """
        self._seq += 1
        facts = {
            name: model_fact(ModelName(name, root, 6, 1 << 20)) for name, root in names.items()
        }
        await self.replication.write([self._writer.write(("models", 0), **facts)])
        record = MemberRecord(self.endpoint.peer, seq=self._seq, stored=tuple(holds))
        pushed = msgpack.packb([[2, 0, seal_record(self.identity, record)]])
        for link in self._links.values():
            link.post("member.push", payload=pushed, priority=Priority.CONTROL)
        return {}

    def serve(
        self,
        manifests: dict[str, str],
        sizes: dict[str, int] | None = None,
        chunks: str = "",
        held: dict[str, int] | None = None,
        twist: str = "",
    ) -> dict[str, Any]:
        """Serve these files as the manifests of these roots. `sizes` are the lengths that it claims
        for them. `chunks` is a folder of chunks; `held` is the number of chunks that it claims to
        have of each root. `twist` is applied to each chunk: `flip` a bit, or `refuse`.
        """
        self._manifests = {root: Path(path).read_bytes() for root, path in manifests.items()}
        self._sizes = sizes or {}
        files = Path(chunks).glob("[0-9a-f]*") if chunks else []
        self._chunks = {path.name: path.read_bytes() for path in files}
        self._held = held or {}
        self._twist = twist
        return {}

    def answer(
        self, find: str = "honest", store: str = "keep", forged: list[str] | None = None
    ) -> dict[str, Any]:
        """Set its replies from now on.

        `find`: `honest` (it knows nothing), `silent`, `ghosts`, `crowd` (ten thousand of them at
        once), `forged` records, or `junk`. `store`: `silent`, or `keep`, which acknowledges records
        and stores nothing.
        """
        self._find, self._store = find, store
        self._forged = [Aged(0, bytes.fromhex(each)) for each in forged or []]
        return {}

    async def store(self, to: str, records: list[str], age: int = 0) -> dict[str, Any]:
        """Send sealed records to a node; return the code of each, or that of the refusal of all."""
        store = StoreRequest(tuple(Aged(age, bytes.fromhex(each)) for each in records))
        return await self.raw(to, "dht.store", store.encode().hex(), len(records))

    async def raw(self, to: str, method: str, payload: str, count: int = 0) -> dict[str, Any]:
        """Make a call with these bytes; `count` is the number of records for which codes are
        expected.
        """
        try:
            reply = await self._links[to].call(
                method, payload=bytes.fromhex(payload), priority=Priority.CONTROL, timeout=20
            )
        except CallRefused as refused:
            return {"refused": refused.code}
        except TransportError as error:
            return {"failed": error.code}
        return {"codes": decode_codes(bytes(reply.payload), count) if count else []}

    async def look(self, to: str, key: str) -> dict[str, Any]:
        """Return the authors whose records one node itself has under a key."""
        find = Find((parse_key(key),), (), most=64)
        reply = await self._links[to].call(
            "dht.find", payload=find.encode(), priority=Priority.CONTROL, timeout=10
        )
        found = FindReply.decode(bytes(reply.payload), find)
        return {"sealed": [aged.sealed.hex() for aged in found.records[0]]}

    def counts(self) -> dict[str, Any]:
        """Return how often each method was called on it."""
        return dict(self.asked)

    # Replies.

    def _contact(self) -> Contact:
        return Contact(
            self.endpoint.peer, [Address(LOOPBACK, self.endpoint.port, self.endpoint.peer)]
        )

    def _on_manifest(self, call: Call) -> Answer:
        self.asked["manifest"] += 1
        root, offset = str(call.header.get("root")), cast(int, call.header.get("offset", 0))
        data = self._manifests.get(root)
        if data is None:
            return Refusal("unknown-model", "it is not here")
        return Reply({"size": self._sizes.get(root, len(data))}, data[offset : offset + PIECE])

    def _on_have(self, call: Call) -> Answer:
        self.asked["have"] += 1
        count = self._held.get(str(call.header.get("root")))
        if count is None:
            return Refusal("unknown-root", "it is not here")
        return Reply({"watching": False}, bytes(4) + count.to_bytes(4))

    def _on_chunk(self, call: Call) -> Answer:
        self.asked["chunk"] += 1
        data = self._chunks.get(str(call.header.get("digest")))
        if data is None or self._twist == "refuse":
            return Refusal("not-held", "it is not here")
        if self._twist == "flip":
            data = data[:-1] + bytes([data[-1] ^ 1])
        return Reply({}, data, Priority.BULK)

    async def _on_find(self, call: Call) -> Answer:
        self.asked["find"] += 1
        await trio.lowlevel.checkpoint()
        find = Find.decode(bytes(call.payload))
        places = len(find.keys) + len(find.near)
        match self._find:
            case "silent":
                await trio.sleep_forever()
            case "junk":
                return Reply(payload=hashlib.sha256(call.payload).digest() * 4_000)
            case "crowd":
                return Reply(payload=self._crowd(places))
            case "ghosts":
                ghosts = [tuple(self._ghost() for _ in range(GHOSTS)) for _ in range(places)]
                return Reply(payload=FindReply(((),) * len(find.keys), tuple(ghosts)).encode())
            case "forged":
                records = (tuple(self._forged),) * len(find.keys)
                return Reply(payload=FindReply(records, ((),) * places).encode())
        return Reply(payload=FindReply(((),) * len(find.keys), ((),) * places).encode())

    def _ghost(self) -> Contact:
        """Return a contact of a node that does not exist, at a port without a listener."""
        self._ghosts += 1
        peer = Identity.from_seed(hashlib.sha256(self._ghosts.to_bytes(8)).digest()).peer
        return Contact(peer, [Address(LOOPBACK, 1 + self._ghosts % 1000, peer)])

    def _crowd(self, places: int) -> bytes:
        contacts = [[self._ghosts.to_bytes(32), []] for self._ghosts in range(10_000)]
        nearest = [list(range(10_000)) for _ in range(places)]
        packed: bytes = msgpack.packb({"records": [[]], "contacts": contacts, "nearest": nearest})
        return packed

    async def _on_store(self, call: Call) -> Answer:
        self.asked["store"] += 1
        await trio.lowlevel.checkpoint()
        if self._store == "silent":
            await trio.sleep_forever()
        count = len(StoreRequest.decode(bytes(call.payload)).records)
        return Reply(payload=encode_codes([""] * count))


async def obey(seed: str, rate: str) -> None:
    """Execute the commands of standard input until it ends."""
    liar = Liar(bytes.fromhex(seed), float(rate) if rate else None)
    async with trio.open_nursery() as nursery:
        await nursery.start(liar.endpoint.run, LOOPBACK, 0)
        await nursery.start(liar.replication.run)
        say({"peer": liar.endpoint.peer, "port": liar.endpoint.port})
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            command = json.loads(line)
            answer = getattr(liar, command.pop("do"))(**command)
            say(await answer if inspect.isawaitable(answer) else answer)
        nursery.cancel_scope.cancel()


class Hostile(Program):
    """A hostile process: `hostile.do("link", to=…)`."""

    def __init__(self, seed: int = 1, rate: float | None = None) -> None:
        super().__init__("tests.hostile", f"{seed:064x}", *([] if rate is None else [str(rate)]))
        self.seed = seed.to_bytes(32)
        self.port = int(self.told["port"])

    @property
    def address(self) -> str:
        return f"/ip4/{LOOPBACK}/tcp/{self.port}/p2p/{self.peer}"


@contextlib.contextmanager
def hostile(seed: int = 1, rate: float | None = None) -> Iterator[Hostile]:
    """Run a hostile process until the end of the block; with `rate` it sends chunks at that many
    bytes per second.
    """
    one = Hostile(seed, rate)
    try:
        yield one
    finally:
        one.kill()


if __name__ == "__main__":
    trio.run(obey, sys.argv[1], "".join(sys.argv[2:]))
