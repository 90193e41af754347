"""Files of adapters that sessions use: fetched from peers, checked, and described for the engine.

Whatever is fetched for sessions of other nodes has the same disk limit as the text files of models
that this node only answers prompts of; the least recently used is evicted.
"""

from collections.abc import Callable, Sequence

import numpy as np
import trio
from numpy.typing import NDArray

from ...dht.content.tree import Tree
from ...dht.defaults import CHUNK
from ...dht.errors import ModelError
from ...dht.exchange.exchange import ChunkExchange
from ...dht.exchange.fetch import FetchTerms
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ..engine.adapters import AdapterTerms, LoadAdapter
from ..engine.families import Architecture, architecture
from ..errors import SessionError
from ..inference.generation import Model
from ..inference.sources import ModelSources
from ..placement.shard import ShardProperties
from .adapters import Adapters
from .defaults import ADAPTER_BYTES, FETCH_PATIENCE, FETCHES, SCORED_BYTES
from .file import AdapterHead, bad, read_head, read_values


class AdapterFiles:
    """Delivery of adapters to this node's gateway and stage. `linked` returns the linked peers."""

    def __init__(
        self,
        host: Host,
        adapters: Adapters,
        exchange: ChunkExchange,
        sources: ModelSources,
        *,
        linked: Callable[[], list[PeerId]],
    ) -> None:
        self._host = host
        self._adapters = adapters
        self._exchange = exchange
        self._sources = sources
        self._library = sources.library
        self._linked = linked
        self._gates: dict[PeerId, trio.CapacityLimiter] = {}  # of gateways that wait

    async def named(self, text: str, model: Model) -> str:
        """Return the root of the adapter that a request names, as `of_model`."""
        return await self.of_model(text, model.root)

    async def of_model(self, text: str, model: str) -> str:
        """Return the root of the adapter with a name or root, after checking that it is one of the
        model with the root `model`.

        Raises SessionError: `no-adapter` if it is not found, `bad-adapter` if it does not fit.
        """
        try:
            _, root = await self._adapters.resolve(text)
            _, head = await self._head(root)
            head.check_fits(model, await self._arch(model))
        except ModelError as error:
            raise _coded(error) from None
        return root

    async def read(self, text: str, model: Model) -> tuple[AdapterTerms, NDArray[np.float32]]:
        """Return the terms of an adapter that a request names, and the values of all its tensors in
        the order of its file, after fetching what is missing.

        Raises SessionError: `no-adapter` if it is not found, `bad-adapter` if it does not fit or is
        larger than SCORED_BYTES.
        """
        root = await self.named(text, model)
        try:
            tree, head = await self._head(root)
            if tree.size > SCORED_BYTES:
                raise bad(
                    f"it has over {SCORED_BYTES >> 20} MiB, so texts cannot be scored with it"
                )
            await self._fetch(root, tree, tree.leaves)
            return head.terms, await self._host.offload(self._values, head, tree.leaves)
        except ModelError as error:
            raise _coded(error) from None

    def _values(self, head: AdapterHead, leaves: Sequence[str]) -> NDArray[np.float32]:
        data = b"".join(map(self._library.store.get, leaves))[head.start :]
        return read_values(data, head.terms.dtype)

    async def for_shard(self, root: str, held: ShardProperties, gateway: PeerId) -> LoadAdapter:
        """Return the command that loads the layers of a shard, after fetching what is missing.

        A gateway that asks for many adapters waits, and delays no other. Raises SessionError:
        `no-adapter` if it cannot be fetched, `bad-adapter` if it does not fit.
        """
        gate = self._gates.setdefault(gateway, trio.CapacityLimiter(FETCHES))
        try:
            async with gate:
                return await self._for_shard(root, held)
        except ModelError as error:
            raise _coded(error) from None
        finally:
            waiting = gate.statistics()
            if not (waiting.borrowed_tokens or waiting.tasks_waiting):
                self._gates.pop(gateway, None)

    async def drop_damaged(self, adapter: LoadAdapter) -> None:
        """Delete the damaged chunks of an adapter from the disk, so that they are fetched again."""
        digests = [digest.hex() for digest in adapter.digests]
        await self._host.offload(self._library.store.drop_damaged, digests)

    async def _for_shard(self, root: str, held: ShardProperties) -> LoadAdapter:
        tree, head = await self._head(root)
        arch = await self._arch(held.root)
        head.check_fits(held.root, arch)
        first, end = head.range_of(arch, held.parts.start, held.parts.stop)
        leaves = tree.leaves[first // CHUNK : -(-end // CHUNK)] if first < end else ()
        await self._fetch(root, tree, leaves)
        path = self._library.store.path
        return LoadAdapter(
            root,
            head.terms,
            first % CHUNK,
            tuple(str(path(leaf)) for leaf in leaves),
            tuple(bytes.fromhex(leaf) for leaf in leaves),
        )

    async def _head(self, root: str) -> tuple[Tree, AdapterHead]:
        """Return the tree and the head of an adapter, after fetching them if necessary."""
        tree = await self._exchange.fetch_tree(
            root, self._linked, patience=FETCH_PATIENCE, most=ADAPTER_BYTES
        )
        if not tree.leaves:
            raise bad("it is empty")
        await self._fetch(root, tree, tree.leaves[:1])
        data = await self._host.offload(self._library.store.get, tree.leaves[0])
        return tree, await self._host.offload(read_head, data, tree.size)

    async def _fetch(self, root: str, tree: Tree, leaves: Sequence[str]) -> None:
        """Fetch the chunks that are missing."""
        missing = await self._host.offload(self._library.store.missing, leaves)
        self._library.usage.note_used(root)
        if not missing:
            return
        usage, sizes = self._library.usage, tree.sizes()
        if root in usage.fetched and root not in usage.asked:  # its owner did not ask for it
            await self._sources.reserve(root, sum(sizes[leaf] for leaf in missing))
        terms = FetchTerms(FETCH_PATIENCE, asked=True)
        await self._exchange.fetch(root, missing, self._linked, terms=terms)

    async def _arch(self, root: str) -> Architecture:
        return architecture((await self._sources.manifest(root)).config)


def _coded(error: ModelError) -> SessionError:
    """Return the error of a request for an adapter that cannot be used."""
    if error.code in ("bad-adapter", "bad-blob"):
        return SessionError("bad-adapter", error.message, hint=error.hint)
    if error.code == "no-adapter":
        return SessionError(error.code, error.message, hint=error.hint)
    if error.code == "too-large":
        return SessionError("bad-adapter", f"the adapter is too large: {error.message}")
    hint = error.hint or "`shoal adapter list` shows the adapters here"
    return SessionError("no-adapter", f"the adapter is not there: {error.message}", hint=hint)
