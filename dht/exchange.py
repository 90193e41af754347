"""Models and blobs between peers: what this node has is served, what it lacks is fetched.

Methods and limits: docs/spec/blob.md. What arrives is verified before it is stored, what
is stored is verified before it is passed on, and a node that fetches serves what it has so
far.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, TypeVar

import trio

from ..transport.calls import Call, Reply
from ..transport.errors import CallRefused, LinkClosed
from ..transport.frame import Priority
from ..transport.guard import Guard
from ..transport.host import Host
from ..transport.identity import PeerId
from . import tree
from .announcing import Announcer
from .around import Around
from .chunkstore import Progress
from .defaults import (
    MANIFEST_LIMIT,
    MANIFEST_PIECE,
    MANIFEST_TIMEOUT,
    MANIFESTS_AT_ONCE,
    PATIENCE,
)
from .errors import DiskFull, FetchFailed, ModelError
from .fetch import Fetch, FetchReport
from .holder import Holder
from .library import Library
from .manifest import Manifest, is_digest
from .obtaining import Obtaining
from .quota import Quota
from .switchboard import Caller, Peers, Swarm, Switchboard
from .transfer import Transfer
from .tree import Tree

T = TypeVar("T")
_LIES: Final = ("bad-manifest", "bad-blob")
"""What is wrong with a content itself, whoever gives its chunks: nothing of it is kept."""


def _unreported(peer: PeerId, digest: str) -> None:
    """The `on_liar` of who does not ask."""


class Exchange:
    """Serves from `library` to the endpoint's peers from now on, and fetches into it.

    `on_liar(peer, digest)` is called when a peer sent other bytes than it was asked for. `swarm`
    knows holders beyond the linked peers, and tells them of this node.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Switchboard,
        library: Library,
        *,
        on_liar: Callable[[PeerId, str], None] = _unreported,
        swarm: Swarm | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`quota`, which may be set later, makes the room for what is fetched."""
        self._host = host
        self._endpoint = endpoint
        self._guard = guard or Guard()
        self._library = library
        self._on_liar = on_liar
        self.swarm = swarm or Swarm()
        self.quota: Quota | None = None
        self.holder = Holder(host, endpoint, library)
        self._fetches: dict[str, list[Fetch]] = {}
        endpoint.handle("blob.news", self._hear)
        self._obtaining: set[Obtaining] = set()  # manifests and trees
        endpoint.on_link_quiet(self._link_quiet)
        endpoint.on_link_back(self._link_back)

    def _hear(self, call: Call) -> Reply:
        """A peer that was asked to says what has come in."""
        for fetch in self._fetches.get(str(call.header.get("root")), ()):
            fetch.hear(call.peer, call.payload)
        return Reply()

    def fetching(self) -> frozenset[str]:
        """The roots of which something is being fetched."""
        return frozenset(self._fetches)

    async def announce(self, root: str) -> None:
        """Tell the swarm what is here of a root. Raises ModelError."""
        content = await self._library.content(root)
        await Announcer(self._host, self._library, content, self.swarm).announce()

    # What a root is made of.

    def _link_quiet(self, link: Caller) -> None:
        for fetch in self._running():
            fetch.quiet(link.peer)
        for obtaining in self._obtaining:
            obtaining.quiet(link.peer)

    def _link_back(self, link: Caller) -> None:
        for fetch in self._running():
            fetch.back(link.peer)

    def _running(self) -> list[Fetch]:
        return [fetch for fetches in self._fetches.values() for fetch in fetches]

    async def fetch_manifest(
        self, root: str, peers: Peers, *, patience: float = PATIENCE
    ) -> Manifest:
        """The manifest of `root`, from disk or else from a peer; it is kept.

        Asks again until `patience` seconds are over. Raises ModelError: `bad-digest`,
        FetchFailed `no-source`, or what is wrong with the model itself.
        """
        _check_root(root)
        if root in self._library.roots():
            return await self._library.manifest(root)

        async def find(obtaining: Obtaining) -> Manifest:
            gate = trio.Semaphore(MANIFESTS_AT_ONCE)
            ask = partial(_ask_manifest, gate=gate)
            found = await self._library.save(await obtaining.get(ask, root))
            await self._library.usage.note_fetched(root)
            return found

        what = f"the manifest of model {root[:16]}"
        return await self._patiently(root, peers, patience, find, what)

    async def fetch_tree(
        self, root: str, peers: Peers, *, patience: float = PATIENCE, most: int | None = None
    ) -> Tree:
        """The tree of the blob `root`, as `fetch_manifest`. Raises ModelError `bad-blob` too, and
        `too-large` where its top says that the blob has over `most` bytes: of 2 TB a tree takes
        64 MiB, and four times as much in memory."""
        _check_root(root)
        if root in self._library.blobs.roots():
            return await self._library.blobs.tree(root)

        async def find(obtaining: Obtaining) -> Tree:
            nodes = {root: await obtaining.get(_ask_node, root)}
            top = tree.read_top(root, nodes[root])
            if most is not None and top.size > most:
                raise ModelError("too-large", f"blob {root[:16]} has {top.size} bytes, not {most}")
            read = []
            for index, digest in enumerate(top.children if top.depth > 1 else ()):
                nodes[digest] = await obtaining.get(_ask_node, digest)
                read.append(tree.read_node(top, index, nodes[digest]))
            # Millions of digests take seconds.
            found = await self._host.offload(tree.whole, top, read)
            await self._library.blobs.keep(found, nodes)
            await self._library.usage.note_fetched(root)
            return found

        return await self._patiently(root, peers, patience, find, f"the tree of blob {root[:16]}")

    async def _patiently(
        self,
        root: str,
        peers: Peers,
        patience: float,
        find: Callable[[Obtaining], Awaitable[T]],
        what: str,
    ) -> T:
        around = Around(self.swarm, self._endpoint, root, peers, self._guard)
        obtaining = Obtaining(self._host, self._endpoint, around, self._on_liar, self._guard)
        self._obtaining.add(obtaining)
        failure: ModelError | None = None
        with trio.move_on_after(patience):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(around.run)
                try:
                    return await find(obtaining)
                except ModelError as error:
                    failure = error
                finally:
                    self._obtaining.discard(obtaining)
                    nursery.cancel_scope.cancel()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # else both stay, with 64 MiB of a manifest, until garbage is collected
        lied = f"; {obtaining.liars} sent something else" if obtaining.liars else ""
        raise FetchFailed(
            "no-source",
            f"no linked peer gave {what} for {patience:g} s{lied}",
            hint="`shoal peers` shows who is linked",
        )

    # Its chunks.

    async def fetch(
        self,
        root: str,
        digests: Sequence[str],
        peers: Peers,
        progress: Progress | None = None,
        *,
        patience: float = PATIENCE,
        on_full: Callable[[DiskFull], None] | None = None,
        asked: bool = False,
    ) -> FetchReport:
        """Store those chunks of a content that is known here; those on disk are not fetched.

        `peers` is called again and again; who has nothing yet is asked again. Raises DiskFull
        (what arrived is kept), FetchFailed `no-source` after `patience` seconds without a new
        chunk, ModelError `unknown-model`, `not-of-model`. With `on_full`, a disk that fills in
        the middle is told to it, and the fetch goes on once there is space. `asked`: by the
        owner, by name, so that it may go beyond a default limit.
        """
        content = await self._library.content(root)
        sizes = content.chunks
        if foreign := [digest for digest in digests if digest not in sizes]:
            raise ModelError(
                f"not-of-{content.kind}", f"{content.name} has no chunk {foreign[0][:16]}"
            )
        store = self._library.store
        missing = await self._host.offload(store.missing, digests)
        wanted = {digest: sizes[digest] for digest in missing}
        self._library.usage.note_used(root)
        if self.quota is not None:
            await self.quota.make_room(sum(wanted.values()), asked=asked)
        if on_full is None:
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
            self._library,
            content,
            transfer,
            wanted,
            swarm=self.swarm,
            tell=self.holder.tell,
            peers=peers,
            on_chunk=on_chunk,
            on_liar=self._on_liar,
            on_full=on_full,
            patience=patience,
            guard=self._guard,
        )
        self._fetches.setdefault(root, []).append(fetch)
        try:
            return await fetch.run()
        except ModelError as error:
            if error.code in _LIES and self.quota is not None:
                await self.quota.drop(root)
            raise
        finally:
            self._fetches[root].remove(fetch)
            if not self._fetches[root]:
                del self._fetches[root]

    async def fetch_blob(
        self,
        root: str,
        peers: Peers,
        progress: Progress | None = None,
        *,
        patience: float = PATIENCE,
        on_full: Callable[[DiskFull], None] | None = None,
        asked: bool = False,
    ) -> FetchReport:
        """The whole blob `root`: its tree, then its chunks. Raises as `fetch_tree`, `fetch`."""
        await self.fetch_tree(root, peers, patience=patience)
        content = await self._library.content(root)
        return await self.fetch(
            root,
            content.order,
            peers,
            progress,
            patience=patience,
            on_full=on_full,
            asked=asked,
        )


def _check_root(root: str) -> None:
    if not is_digest(root):
        raise ModelError("bad-digest", f"{ascii(root)[:80]} is no root")


async def _ask_node(link: Caller, digest: str) -> bytes | None:
    """A node of a tree, unverified; None where the peer does not give it."""
    try:
        header = {"digest": digest}
        reply = await link.call(
            "blob.chunk", header, priority=Priority.BULK, timeout=MANIFEST_TIMEOUT
        )
    except (CallRefused, LinkClosed):
        return None
    return bytes(reply.payload)


async def _ask_manifest(link: Caller, root: str, gate: trio.Semaphore) -> bytes | None:
    """All pieces of a manifest, unverified; None where the peer does not give them.

    Every piece is whole, so a peer cannot drip one, and answers that say otherwise give b"". As
    many peers as `gate` lets through give more than one piece: the whole may be 64 MiB.
    """
    pieces: list[bytes] = []
    length, size = 0, 1
    async with AsyncExitStack() as held:
        while length < size:
            if len(pieces) == 1:
                await held.enter_async_context(gate)
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
