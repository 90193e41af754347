"""Exchange of models and blobs between peers: serves what this node has, fetches what it lacks.

Methods and limits: docs/spec/blob.md. Data is verified before it is stored and again before it is
served. A node that is still fetching a content already serves the chunks that it has.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, TypeVar

import trio

from ...transport.errors import CallRefused, LinkClosed
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ...transport.lane.frame import Priority
from ...transport.link.calls import Call, Reply
from ..content import tree
from ..content.chunkstore import Progress
from ..content.library import Library
from ..content.manifest import Manifest, is_digest
from ..content.quota import Quota
from ..content.tree import Tree
from ..defaults import MANIFEST_LIMIT, MANIFEST_PIECE, MANIFEST_TIMEOUT, MANIFESTS_AT_ONCE, PATIENCE
from ..errors import FetchFailed, ModelError
from .announcing import Announcer
from .fetch import DEFAULT_TERMS, Fetch, FetchGoal, FetchReport, FetchTerms
from .obtaining import Obtaining
from .parts import ExchangeParts
from .peersource import PeerSource
from .provider import Provider
from .switchboard import Caller, Peers, Swarm, Switchboard
from .transfer import Transfer

T = TypeVar("T")
_LIES: Final = ("bad-manifest", "bad-blob")
"""Errors that prove that the content itself is invalid, whichever peer sent it. The content is then
dropped."""


class ChunkExchange:
    """Server and client of content: serves `library` to peers, and fetches content into it.

    Requests of the peers of `endpoint` are answered as soon as the object is constructed.
    `swarm` finds providers beyond the linked peers, and announces this node as a provider. `quota`
    evicts content to make space for fetches; without it, nothing is evicted.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Switchboard,
        library: Library,
        *,
        swarm: Swarm | None = None,
        guard: Guard | None = None,
        quota: Quota | None = None,
    ) -> None:
        """Register the handlers of requests and link events at `endpoint`."""
        self._host = host
        self._library = library
        self._parts = ExchangeParts(host, endpoint, library, swarm or Swarm(), guard or Guard())
        self._quota = quota
        self.provider = Provider(host, endpoint, library)
        self._fetches: dict[str, list[Fetch]] = {}
        endpoint.handle("blob.news", self._on_news)
        self._obtaining: dict[Obtaining, None] = {}  # manifests and trees
        endpoint.on_link_quiet(self._link_quiet)
        endpoint.on_link_back(self._link_back)

    def _on_news(self, call: Call) -> Reply:
        """Handle `blob.news`, in which a peer says which new chunks it has."""
        for fetch in self._fetches.get(str(call.header.get("root")), ()):
            fetch.take_news(call.peer, call.payload)
        return Reply()

    def fetching(self) -> frozenset[str]:
        """Return the roots that are being fetched."""
        return frozenset(self._library.usage.fetching)

    async def announce(self, root: str) -> None:
        """Announce to the swarm which chunks of a root are stored here.

        Raises ModelError if the manifest or tree of the root is not on this disk.
        """
        content = await self._library.content(root)
        await Announcer(self._parts, content).announce()

    # Manifests and trees.

    def _link_quiet(self, link: Caller) -> None:
        """Stop requesting from a peer whose link has fallen silent."""
        for fetch in self._running():
            fetch.quiet(link.peer)
        for obtaining in self._obtaining:
            obtaining.quiet(link.peer)

    def _link_back(self, link: Caller) -> None:
        """Resume requests for chunks to a peer whose link was silent."""
        for fetch in self._running():
            fetch.back(link.peer)

    def _running(self) -> list[Fetch]:
        """Return all fetches that are in progress."""
        return [fetch for fetches in self._fetches.values() for fetch in fetches]

    async def fetch_manifest(
        self, root: str, peers: Peers, *, patience: float = PATIENCE
    ) -> Manifest:
        """Return the manifest of `root` from disk. If it is not there, fetch and store it first.

        Retries for `patience` seconds. Raises FetchFailed `no-source` if no peer sent the manifest,
        and ModelError: `bad-digest` if `root` is not a digest, or the error of `Library.save` if
        the manifest is invalid.
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
        """Return the tree of the blob `root`, from disk or else from `peers`.

        A fetched tree is stored. Retries for `patience` seconds. `most` limits the bytes of the
        blob, because the tree of a 2 TB blob takes 64 MiB on disk and four times that in memory;
        None means no limit. Raises FetchFailed `no-source` if no peer sent the tree, and
        ModelError: `bad-digest` if `root` is not a digest, `bad-blob` if the tree is invalid,
        `too-large` if the blob exceeds `most`.
        """
        found = await self._stage_tree(root, peers, patience, most)
        await self._host.offload(self._library.store.settle)
        return found

    async def _stage_tree(
        self, root: str, peers: Peers, patience: float, most: int | None = None
    ) -> Tree:
        """Return a tree as `fetch_tree`, and stage it if it was fetched. Raises its errors."""
        _check_root(root)
        if root in self._library.blobs.roots():
            return await self._library.blobs.tree(root)

        async def find(obtaining: Obtaining) -> Tree:
            nodes = {root: await obtaining.get(_ask_node, root)}
            top = tree.read_top(root, nodes[root])
            if most is not None and top.size > most:
                raise ModelError(
                    "too-large", f"blob {root[:16]} has {top.size} bytes, the limit is {most}"
                )
            read = []
            for index, digest in enumerate(top.children if top.depth > 1 else ()):
                nodes[digest] = await obtaining.get(_ask_node, digest)
                read.append(tree.read_node(top, index, nodes[digest]))
            # Hashing millions of digests takes seconds, too long for the event loop.
            found = await self._host.offload(tree.whole, top, read)
            await self._library.blobs.stage(found, nodes)
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
        """Run `find` for at most `patience` seconds, while further providers are looked up.

        Raises the error of `find`, or FetchFailed `no-source` after the time has passed. `what`
        names the object in the message.
        """
        source = PeerSource(self._parts, root, peers)
        obtaining = Obtaining(self._parts, source)
        self._obtaining[obtaining] = None
        failure: ModelError | None = None
        with trio.move_on_after(patience):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(source.run)
                try:
                    return await find(obtaining)
                except ModelError as error:
                    failure = error
                finally:
                    self._obtaining.pop(obtaining, None)
                    nursery.cancel_scope.cancel()
        if failure is not None:
            try:
                raise failure
            finally:
                # The exception and its traceback refer to each other, and would keep the 64 MiB
                # of a manifest in memory until the garbage collector runs.
                del failure
        lied = f"; {obtaining.liars} sent wrong data" if obtaining.liars else ""
        raise FetchFailed(
            "no-source",
            f"no linked peer sent {what} within {patience:g} s{lied}",
            hint="`shoal peers` lists the linked peers",
        )

    # Chunks.

    async def fetch(
        self,
        root: str,
        digests: Sequence[str],
        peers: Peers,
        progress: Progress | None = None,
        terms: FetchTerms = DEFAULT_TERMS,
    ) -> FetchReport:
        """Fetch and store those of `digests` that are not on disk.

        The manifest or tree of `root` must be on this disk. `peers` is called repeatedly. A peer
        that has no chunk yet is asked again later. If the disk fills up during the fetch,
        `terms.on_full` is called, and the fetch continues once there is space. `progress` receives
        the bytes that are here, and those of all `digests`.

        Raises QuotaFull if not enough can be evicted, NotEnoughDisk if the chunks do not fit on
        the disk (those that were stored stay), FetchFailed `no-source` after `terms.patience`
        seconds without a new chunk, and ModelError: `unknown-model` or `unknown-blob` if this node
        lacks the manifest or tree, `not-of-model` or `not-of-blob` if the root does not have one of
        the chunks.
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
        with self._library.usage.fetch(root):
            if self._quota is not None:
                await self._quota.evict_for(sum(wanted.values()), asked=terms.asked)
            if terms.on_full is None:
                await self._host.offload(store.require_space, sum(wanted.values()))
            total = sum(sizes[digest] for digest in dict.fromkeys(digests))
            done = total - sum(wanted.values())

            def on_chunk(size: int) -> None:
                nonlocal done
                done += size
                if progress is not None:
                    progress(done, total)

            on_chunk(0)
            # Hashing and sorting all digests would block the event loop.
            transfer = await self._host.offload(Transfer, wanted, self._host.entropy(16))
            goal = FetchGoal(content, wanted, peers, on_chunk, terms)
            fetch = Fetch(self._parts, goal, transfer, self.provider.notify)
            self._fetches.setdefault(root, []).append(fetch)
            try:
                return await fetch.run()
            except ModelError as error:
                if error.code in _LIES and self._quota is not None:
                    await self._quota.drop(root)
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
        terms: FetchTerms = DEFAULT_TERMS,
    ) -> FetchReport:
        """Fetch the tree of the blob `root`, then its chunks. They become durable together.

        Raises the errors of `fetch_tree` and `fetch`.
        """
        await self._stage_tree(root, peers, terms.patience)
        content = await self._library.content(root)
        return await self.fetch(root, content.order, peers, progress, terms)


def _check_root(root: str) -> None:
    """Raise ModelError `bad-digest` if `root` is not a digest."""
    if not is_digest(root):
        raise ModelError("bad-digest", f"expected 64 hex digits, got {ascii(root)[:80]}")


async def _ask_node(link: Caller, digest: str) -> bytes | None:
    """Request a tree node. Return its unverified bytes, or None if the peer does not send it."""
    try:
        header = {"digest": digest}
        reply = await link.call(
            "blob.chunk", header, priority=Priority.BULK, timeout=MANIFEST_TIMEOUT
        )
    except (CallRefused, LinkClosed):
        return None
    return bytes(reply.payload)


async def _ask_manifest(link: Caller, root: str, gate: trio.Semaphore) -> bytes | None:
    """Request all pieces of a manifest, and return the unverified bytes.

    Returns None if the peer refuses. Returns b"", which matches no digest, if the size that the
    peer claims is invalid or a piece does not have its full size: tiny pieces would delay the
    fetch. `gate` limits how many peers send more than one piece at the same time, because a whole
    manifest can take 64 MiB of memory.
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
            told = reply.header.get("size", 0)
            if type(told) is not int or not length < told <= MANIFEST_LIMIT:
                return b""
            size = told
            if len(reply.payload) != min(MANIFEST_PIECE, size - length):
                return b""
            pieces.append(bytes(reply.payload))
            length += len(reply.payload)
    return b"".join(pieces)
