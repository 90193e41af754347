"""Models between peers: serves manifests and chunks, and fetches them.

Methods and limits: docs/spec/model.md. What arrives is verified before it is stored, what
is stored is verified before it is passed on, and a node that fetches serves what it has so
far.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from ..transport.calls import Answer, Call, Refusal, Reply
from ..transport.errors import CallRefused, LinkClosed
from ..transport.host import Host
from ..transport.identity import PeerId
from .chunkstore import Progress
from .defaults import (
    BACKOFF_MAX,
    BACKOFF_START,
    HAVE_AGE,
    MANIFEST_LIMIT,
    MANIFEST_PIECE,
    MANIFEST_TIMEOUT,
    PATIENCE,
    SERVE_AT_ONCE,
    SERVE_WAITING,
)
from .errors import ChunkCorrupt, ChunkMissing, FetchFailed, ModelError
from .fetch import Caller, Fetch, FetchReport, Peers, Switchboard, pack_ranges
from .library import Library
from .manifest import Manifest, is_digest
from .transfer import Transfer


@dataclass(slots=True)
class _Guest:
    """A peer that asks for chunks: its open requests, and how many may read at once."""

    requests: int = 0
    gate: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(SERVE_AT_ONCE))


def _unreported(peer: PeerId, digest: str) -> None:
    """The `on_liar` of who does not ask."""


class Exchange:
    """Serves from `library` to the endpoint's peers from now on, and fetches into it.

    `on_liar(peer, digest)` is called when a peer sent other bytes than it was asked for.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Switchboard,
        library: Library,
        *,
        on_liar: Callable[[PeerId, str], None] = _unreported,
    ) -> None:
        self._host = host
        self._endpoint = endpoint
        self._library = library
        self._on_liar = on_liar
        self._guests: dict[PeerId, _Guest] = {}
        self._have: dict[str, tuple[float, bytes]] = {}
        self._counting = trio.Lock()  # one look through a store at a time, however many ask
        self._fetches: set[Fetch] = set()
        self._asking: dict[trio.CancelScope, PeerId] = {}  # for manifests
        endpoint.on_link_quiet(self._link_quiet)
        endpoint.on_link_back(self._link_back)
        endpoint.handle("model.manifest", self._serve_manifest)
        endpoint.handle("model.have", self._serve_have)
        endpoint.handle("model.chunk", self._serve_chunk)

    # Serving.

    async def _serve_manifest(self, call: Call) -> Answer:
        root, offset = call.header.get("root"), call.header.get("offset", 0)
        if not is_digest(root) or type(offset) is not int or not 0 <= offset <= MANIFEST_LIMIT:
            return Refusal("bad-request", "a root and an offset are needed")
        if root not in self._library.roots():
            return Refusal("unknown-model", "no such model is here")
        piece, size = await self._library.manifest_piece(str(root), offset, MANIFEST_PIECE)
        return Reply({"size": size}, piece)

    async def _serve_have(self, call: Call) -> Answer:
        root = call.header.get("root")
        if not is_digest(root):
            return Refusal("bad-request", "a root is needed")
        if root not in self._library.roots():
            return Refusal("unknown-model", "no such model is here")
        return Reply({}, await self._held(str(root)))

    async def _held(self, root: str) -> bytes:
        """The ranges of a model held here, at most `HAVE_AGE` old."""
        async with self._counting:
            known = self._have.get(root)
            if known is None or self._host.now() - known[0] > HAVE_AGE:
                manifest = await self._library.manifest(root)
                ranges = await self._host.offload(self._ranges, manifest)
                self._have[root] = known = self._host.now(), ranges
            return known[1]

    def _ranges(self, manifest: Manifest) -> bytes:
        return pack_ranges([self._library.store.has(digest) for digest in manifest.chunks])

    async def _serve_chunk(self, call: Call) -> Answer:
        digest = call.header.get("digest")
        if not is_digest(digest):
            return Refusal("bad-request", "a digest is needed")
        guest = self._guests.setdefault(call.peer, _Guest())
        if guest.requests >= SERVE_WAITING:
            return Refusal("busy", "too many chunk requests are open")
        guest.requests += 1
        try:
            async with guest.gate:
                data = await self._host.offload(self._library.store.get, str(digest))
        except (ChunkMissing, ChunkCorrupt):
            return Refusal("not-held", "no such chunk is here")
        finally:
            guest.requests -= 1
            if not guest.requests:
                self._guests.pop(call.peer, None)
        return Reply({}, data)

    # Fetching.

    def _link_quiet(self, link: Caller) -> None:
        for fetch in self._fetches:
            fetch.quiet(link.peer)
        for scope, peer in self._asking.items():
            if peer == link.peer:
                scope.cancel()

    def _link_back(self, link: Caller) -> None:
        for fetch in self._fetches:
            fetch.back(link.peer)

    async def fetch_manifest(
        self, root: str, peers: Peers, *, patience: float = PATIENCE
    ) -> Manifest:
        """The manifest of `root`, from disk or else from a peer; it is kept.

        Asks again until `patience` seconds are over. Raises ModelError: `bad-digest`,
        FetchFailed `no-source`, or what is wrong with the model itself.
        """
        if not is_digest(root):
            raise ModelError("bad-digest", f"{ascii(root)[:80]} is no root")
        if root in self._library.roots():
            return await self._library.manifest(root)
        with trio.move_on_after(patience):
            return await self._library.save(await self._find_manifest(root, peers))
        raise FetchFailed(
            "no-source",
            f"no linked peer gave the manifest of model {root[:16]} for {patience:g} s",
            hint="see who is linked and what they hold: shoal peers",
        )

    async def _find_manifest(self, root: str, peers: Peers) -> bytes:
        liars: set[PeerId] = set()
        pause = BACKOFF_START
        while (data := await self._manifest_from(root, peers(), liars)) is None:
            await trio.sleep(pause)
            pause = min(2 * pause, BACKOFF_MAX)
        return data

    async def _manifest_from(
        self, root: str, peers: Sequence[PeerId], liars: set[PeerId]
    ) -> bytes | None:
        for peer in peers:
            link = self._endpoint.link(peer)
            if link is None or link.quiet or peer in liars:
                continue
            data = None
            with trio.CancelScope() as scope:
                self._asking[scope] = peer
                try:
                    data = await _ask_manifest(link, root)
                finally:
                    del self._asking[scope]
            if data is not None and await self._host.offload(_has_digest, data, root):
                return data
            if data is not None:
                liars.add(peer)
                self._on_liar(peer, root)
        return None

    async def fetch(
        self,
        root: str,
        digests: Sequence[str],
        peers: Peers,
        progress: Progress | None = None,
        *,
        patience: float = PATIENCE,
    ) -> FetchReport:
        """Store those chunks of a model whose manifest is here; those on disk are not fetched.

        `peers` is called again and again; who has nothing yet is asked again. Raises DiskFull
        (what arrived is kept), FetchFailed `no-source` after `patience` seconds without a new
        chunk, ModelError `unknown-model`, `not-of-model`.
        """
        manifest = await self._library.manifest(root)
        sizes = manifest.chunks
        if foreign := [digest for digest in digests if digest not in sizes]:
            raise ModelError("not-of-model", f"model {root[:16]} has no chunk {foreign[0][:16]}")
        store = self._library.store
        missing = await self._host.offload(store.missing, digests)
        wanted = {digest: sizes[digest] for digest in missing}
        await self._host.offload(store.require_space, sum(wanted.values()))
        total = sum(sizes[digest] for digest in set(digests))
        done = total - sum(wanted.values())

        def on_chunk(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(done, total)

        on_chunk(0)
        # It hashes and sorts all digests: too long for the event loop.
        transfer = await self._host.offload(Transfer, wanted, self._host.entropy(16))
        fetch = Fetch(
            self._host,
            self._endpoint,
            store,
            manifest,
            transfer,
            wanted,
            peers=peers,
            on_chunk=on_chunk,
            on_liar=self._on_liar,
            patience=patience,
        )
        self._fetches.add(fetch)
        try:
            return await fetch.run()
        finally:
            self._fetches.discard(fetch)


def _has_digest(data: bytes, digest: str) -> bool:
    return hashlib.sha256(data).hexdigest() == digest


async def _ask_manifest(link: Caller, root: str) -> bytes | None:
    """All pieces of a manifest, unverified; None where the peer does not give them.

    Every piece is whole, so a peer cannot drip one, and answers that say otherwise give b"".
    """
    pieces: list[bytes] = []
    length, size = 0, 1
    while length < size:
        try:
            header = {"root": root, "offset": length}
            reply = await link.call("model.manifest", header, timeout=MANIFEST_TIMEOUT)
        except (CallRefused, LinkClosed):
            return None
        size = reply.header.get("size", 0)
        if type(size) is not int or not length < size <= MANIFEST_LIMIT:
            return b""
        if len(reply.payload) != min(MANIFEST_PIECE, size - length):
            return b""
        pieces.append(bytes(reply.payload))
        length += len(reply.payload)
    return b"".join(pieces)
