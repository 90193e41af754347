"""Updates and states in memory, and their transfer between peers.

They live for a few rounds, so they are not written to the disk. A parcel is named by the root of
the blob with its bytes (docs/spec/blob.md), so it does not matter which peer it comes from. Each
MiB is verified as it arrives. Spec: docs/spec/averaging.md, Transfer.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import trio

from ....dht.content.tree import Top, build, count_chunks, digest_of, read_top
from ....dht.defaults import CHUNK
from ....dht.errors import ModelError
from ....transport.dial.endpoint import Endpoint
from ....transport.errors import CallRefused, TransportError
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.link.link import Link
from ....transport.link.serving import IncomingStream
from ....transport.link.stream import Stream
from .defaults import FETCHES, IDLE_SECONDS, LEAST_RATE, SENDS, SENDS_PER_PEER
from .errors import AveragingError, BadUpdate
from .memory import SpareMemory

METHOD: Final = "averaging.get"
_HEAD: Final = 32  # bytes of a top node before the digests
_DIGEST: Final = 32
_PIECE: Final = 1 << 17  # bytes that are given to a stream at a time
_TOP_BYTES: Final = 1 << 20  # of a top node. Nothing here needs a deeper tree
Connect = Callable[[PeerId], Awaitable[Link]]


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """Bytes with their root. `top` is the top node of the tree. The bytes may be in several parts,
    so that the arrays of a state need not be copied."""

    root: str
    top: bytes
    parts: tuple[memoryview, ...]  # read-only

    def whole(self) -> memoryview:
        """Return all bytes. Several parts are copied."""
        return self.parts[0] if len(self.parts) == 1 else memoryview(b"".join(self.parts))


class Size(NamedTuple):
    """Fewest and most bytes of a parcel."""

    least: int
    most: int


class Parcels:
    """The parcels of one node. `connect` opens a link to a peer, or raises TransportError."""

    def __init__(self, host: Host, endpoint: Endpoint, connect: Connect) -> None:
        """Register the handler of requests."""
        self._host = host
        self._connect = connect
        self.stored: dict[str, Parcel] = {}
        self.memory = defaultdict[str, SpareMemory](SpareMemory)
        """Memory that is used again, by run."""
        self._wanted: dict[str, set[str]] = {}  # by run: roots
        self.serving: Counter[PeerId] = Counter()
        """Transfers to peers in progress, a count for each."""
        self._room = trio.Semaphore(FETCHES)
        self.sent = 0
        """Bytes of parcels that were sent to peers."""
        self.received = 0
        """Bytes of parcels that were received from peers."""
        endpoint.handle_stream(METHOD, self._serve)

    def __contains__(self, root: str) -> bool:
        return root in self.stored

    async def put(self, run: str, *parts: bytes | memoryview) -> str:
        """Hold some bytes of a run for peers, and return their root. Nothing may change them."""
        parcel = await self._host.offload(parcel_of, *parts)
        self._hold(run, parcel)
        return parcel.root

    def keep(self, run: str, roots: Collection[str]) -> None:
        """Drop all parcels of a run but these."""
        self._wanted[run] = self._wanted.get(run, set()) & set(roots)
        if not self._wanted[run]:
            del self._wanted[run]
            self.memory.pop(run, None)
        wanted = set[str]().union(*self._wanted.values())
        self.stored = {root: each for root, each in self.stored.items() if root in wanted}

    def _hold(self, run: str, parcel: Parcel) -> None:
        self.stored[parcel.root] = parcel
        self._wanted.setdefault(run, set()).add(parcel.root)

    async def get(self, run: str, root: str, size: Size, peers: Sequence[PeerId]) -> memoryview:
        """Return a parcel of a run from here or from one of `peers`, the first that delivers.

        A fetched parcel is held and served from then on. Raises AveragingError `no-source`, and
        BadUpdate `wrong-size` if the parcel has another size, whichever peer it comes from.
        """
        if root in self.stored:
            return self.stored[root].whole()
        async with self._room:
            for peer in peers:
                try:
                    with trio.fail_after(IDLE_SECONDS + size.most / LEAST_RATE):
                        parcel = await self._from(peer, root, size, self.memory[run])
                except (TransportError, trio.TooSlowError, ModelError):
                    continue
                self._hold(run, parcel)
                return parcel.whole()
        raise AveragingError("no-source", f"no peer delivered the update or state {root[:16]}")

    # This side asks.

    async def _from(self, peer: PeerId, root: str, size: Size, memory: SpareMemory) -> Parcel:
        link = await self._connect(peer)
        stream = await link.open_stream(METHOD, {"root": root})
        try:
            top_bytes = await _receive_top(stream)
            top = read_top(root, top_bytes)
            if not size.least <= top.size <= size.most:
                raise BadUpdate("wrong-size", f"an update or state has {top.size} bytes")
            # Memory waits to be used again only for the one size that all updates of a run have.
            # Else a peer chooses how much waits.
            usual = top.size == size.most
            data = (memory.octets(top.size) if usual else np.empty(top.size, np.uint8)).data
            await self._receive_chunks(stream, top, data)
            await stream.finish()
        finally:
            stream.reset("closed")
        return Parcel(root, top_bytes, (data.toreadonly(),))

    async def _receive_chunks(self, stream: Stream, top: Top, view: memoryview) -> None:
        """Receive and verify the content. Raises ModelError `bad-digest` or `bad-blob`."""
        for index, digest in enumerate(top.children):
            chunk = view[index * CHUNK : (index + 1) * CHUNK]
            await _receive_into(stream, chunk)
            self.received += len(chunk)
            if digest_of(chunk) != digest:  # 0.6 ms: less than a worker thread may keep it waiting
                raise ModelError("bad-digest", f"a part of {top.root[:16]} has other bytes")

    # This side serves.

    async def _serve(self, incoming: IncomingStream) -> None:
        parcel = self.stored.get(str(incoming.header.get("root")))
        if parcel is None:
            raise CallRefused("not-held", "this node does not hold that update or state")
        if self.serving.total() >= SENDS or self.serving[incoming.peer] >= SENDS_PER_PEER:
            raise CallRefused("busy", "this node sends as many updates as it may")
        self.serving[incoming.peer] += 1
        try:
            await self._send(incoming.stream, parcel)
        finally:
            self.serving[incoming.peer] -= 1
            if not self.serving[incoming.peer]:
                del self.serving[incoming.peer]

    async def _send(self, stream: Stream, parcel: Parcel) -> None:
        with trio.fail_after(IDLE_SECONDS + sum(map(len, parcel.parts)) / LEAST_RATE):
            await stream.send(parcel.top)
            for part in parcel.parts:
                at = 0
                while at < len(part):
                    await stream.wait_sendable()
                    took = stream.send_ready(part[at : at + _PIECE])
                    at += took
                    self.sent += took
            await stream.finish()
            await stream.receive(1)  # until the peer has everything


def parcel_of(*parts: bytes | memoryview) -> Parcel:
    """Return bytes, which may be in several parts, with their root. Hashing takes 0.6 ms per
    MiB."""
    views = tuple(memoryview(part).toreadonly() for part in parts)
    leaves, hashed, room = [], hashlib.sha256(), CHUNK
    for view in views:
        at = 0
        while at < len(view):
            piece = view[at : at + room]
            hashed.update(piece)
            at, room = at + len(piece), room - len(piece)
            if not room:
                leaves.append(hashed.hexdigest())
                hashed, room = hashlib.sha256(), CHUNK
    if room < CHUNK:
        leaves.append(hashed.hexdigest())
    tree, nodes = build(sum(map(len, views)), leaves)
    assert not tree.nodes, "the values of a run are bounded (MAX_VALUES)"
    return Parcel(tree.root, nodes[tree.root], views)


async def _receive_top(stream: Stream) -> bytes:
    """Return the top node of a parcel, which is not verified yet.

    Raises ModelError `bad-blob` for one that would be longer than any is, before it is received.
    """
    head = bytearray(_HEAD)
    await _receive_into(stream, memoryview(head))
    length = _DIGEST * count_chunks(int.from_bytes(head[16:24]))
    if length > _TOP_BYTES - _HEAD:
        raise ModelError("bad-blob", "a peer announced more than any update or state has")
    digests = bytearray(length)
    await _receive_into(stream, memoryview(digests))
    return bytes(head + digests)


async def _receive_into(stream: Stream, target: memoryview) -> None:
    """Fill `target`. Raises ModelError `bad-blob` if the stream ends before."""
    at = 0
    while at < len(target):
        with trio.fail_after(IDLE_SECONDS):
            size = await stream.receive_into(target[at : at + CHUNK])
        if not size:
            raise ModelError("bad-blob", "a peer sent less than it announced")
        at += size
