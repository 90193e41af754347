"""Provides the models that this node's clients can use, whether or not it holds any layers of them.

A gateway needs a model's manifest, config and text files, which are a few megabytes. Missing ones
are fetched from members. Each model has one sandboxed text process while it is in use. A few idle
ones are cached if the memory that the owner offers allows it.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio
from trio import TaskStatus

from ...dht.content.library import Library
from ...dht.content.manifest import Manifest
from ...dht.errors import ChunkCorrupt, ModelError, model_mishap
from ...dht.exchange.exchange import Exchange
from ...dht.names import Meaning
from ...state.directory import Directory
from ...transport.errors import ShoalError
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ..defaults import ASK_PATIENCE, TEXT_MEMORY, TEXT_PROCESSES
from ..engine.families import Architecture, architecture
from ..errors import SessionError
from ..text.process import ModelFiles, TextInfo, TextProcess
from .generation import Model

Restore = Callable[[str, Sequence[str]], Awaitable[None]]
"""Restore chunks (by digest) of a model (by root) from this machine, as far as possible."""


Find = Callable[[str], Awaitable[Meaning]]
"""Resolve a model name beyond what this node and its members know. Raises ModelError."""


Pass = Callable[[str, int], Awaitable[None]]
"""Reserve disk space, in bytes, for a model that is here only for prompts. Raises ModelError."""


async def without_bound(_root: str, _needed: int) -> None:
    """Accept any size: the `Pass` of a library without a disk limit."""


async def no_other_copy(_root: str, _digests: Sequence[str]) -> None:
    """Restore nothing: the `Restore` of a machine without other copies."""


def resolve(text: str, library: Library, directory: Directory) -> str:
    """Return the root that a name or a prefix of a root means on this node and among its members.

    Raises ModelError `unknown-model` (with the nearest name) or `ambiguous-model`.
    """
    records = directory.members().values()
    return library.resolve(text, [(m.name, m.root) for record in records for m in record.models])


def holders(root: str, directory: Directory) -> list[PeerId]:
    """Return the other members that name, serve, or hold parts of the model."""
    own = directory.own().peer
    return [
        peer
        for peer, record in directory.members().items()
        if peer != own
        and (
            root in record.holdings
            or any(root == model.root for model in record.models)
            or any(root == shard.root for shard in record.shards)
        )
    ]


async def manifest_of(
    root: str,
    library: Library,
    exchange: Exchange,
    directory: Directory,
    *,
    patience: float = ASK_PATIENCE,
) -> Manifest:
    """Return a model's manifest from this disk or from a member. Raises ModelError.

    `patience`: seconds without progress before the fetch fails, because a user may be waiting.
    """
    if root in library.roots():
        try:
            return await library.manifest(root)
        except ModelError as error:  # reading has deleted a damaged manifest
            if error.code != "manifest-corrupt" or not holders(root, directory):
                raise
    return await exchange.fetch_manifest(root, lambda: holders(root, directory), patience=patience)


class _Loaded:
    """One model in use. It is the task status of its text process, to learn when that is ready."""

    def __init__(self, root: str, name: str) -> None:
        self.root = root
        self.name = name
        self.users = 0
        self.ready = trio.Event()
        self.scope = trio.CancelScope()  # ends the text process
        self.model: Model | None = None
        self.error: ShoalError | None = None
        self.checked: Architecture | None = None
        self.text: TextProcess | None = None

    def started(self, value: TextInfo | None = None) -> None:
        checked, text = self.checked, self.text
        assert checked is not None and text is not None
        self.model = Model(
            root=self.root,
            name=self.name,
            layers=checked.layers,
            hidden=checked.hidden,
            context=checked.context,
            vocabulary=checked.vocab,
            text=text,
        )
        self.ready.set()


class Models:
    """`ModelSource` over the library and the members' chunks. `run` must be running."""

    def __init__(
        self,
        host: Host,
        library: Library,
        exchange: Exchange,
        directory: Directory,
        *,
        kept: int = TEXT_PROCESSES,
        text_process: Callable[[Host, ModelFiles], TextProcess] = TextProcess,
        restore: Restore = no_other_copy,
        find: Find | None = None,
        guard: Guard | None = None,
        pass_through: Pass = without_bound,
        memory: Callable[[], int] = lambda: TEXT_PROCESSES * TEXT_MEMORY,
    ) -> None:
        """`memory`: bytes that all text processes may use now. One may always run."""
        self._host = host
        self._memory = memory
        self._pass_through = pass_through
        self._restore = restore
        self._find = find
        self._guard = guard or Guard()
        self._library = library
        self._exchange = exchange
        self._directory = directory
        self._kept = kept
        self._text_process = text_process
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()  # least recently used first
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run text processes until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def processes(self) -> dict[str, int]:
        """Return the text process id of each model, by the name that was first used for it."""
        found = ((each.name, each.text) for each in self._loaded.values())
        return {name: text.pid for name, text in found if text is not None and text.pid is not None}

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Model]:
        """Provide a model by name or root while the block lasts. Raises ModelError, TextError,
        SessionError."""
        root = await self._root(name)
        loaded = self._loaded.get(root) or self._begin(root, name)
        self._loaded.move_to_end(root)
        loaded.users += 1
        try:
            await loaded.ready.wait()
            if loaded.error is not None:
                raise loaded.error
            assert loaded.model is not None
            yield loaded.model
        finally:
            loaded.users -= 1
            self._evict()

    async def _root(self, name: str) -> str:
        if self._find is not None:
            return (await self._find(name)).root
        await trio.lowlevel.checkpoint()
        return resolve(name, self._library, self._directory)

    def _begin(self, root: str, name: str) -> _Loaded:
        if self._nursery is None:
            raise RuntimeError("Models.run is not running")
        self._make_memory()
        loaded = self._loaded[root] = _Loaded(root, name)
        self._nursery.start_soon(self._load, loaded)
        return loaded

    def _evict(self) -> None:
        idle = self._idle()
        for loaded in idle[: max(0, len(idle) - min(self._kept, self._most()))]:
            self._end(loaded)

    def _idle(self) -> list[_Loaded]:
        """Return the processes that are not in use, least recently used first."""
        return [loaded for loaded in self._loaded.values() if loaded.users == 0]

    def _end(self, loaded: _Loaded) -> None:
        loaded.scope.cancel()
        del self._loaded[loaded.root]

    def _most(self) -> int:
        """Return how many processes may run. Each is limited to `TEXT_MEMORY` bytes."""
        return max(1, self._memory() // TEXT_MEMORY)

    def _make_memory(self) -> None:
        """Evict idle processes until one more may run. Raises SessionError `no-memory`."""
        most = self._most()
        for loaded in self._idle()[: max(0, len(self._loaded) + 1 - most)]:
            self._end(loaded)
        if len(self._loaded) >= most:
            raise SessionError(
                "no-memory",
                f"text processes of {len(self._loaded)} models are running, and the memory "
                f"of this node has room for no more",
                hint="try again when their answers are there, or offer more: "
                "`shoal node --memory SIZE`",
            )

    async def _load(self, loaded: _Loaded) -> None:
        """Load a model in this object's own task, as the first request may be cancelled."""
        try:
            with loaded.scope, self._guard.around(loaded.name, instead=model_mishap):
                files = await self._files(loaded)
                loaded.text = self._text_process(self._host, files)
                await loaded.text.run(task_status=loaded)
        except ShoalError as error:
            loaded.error = error
            if self._loaded.get(loaded.root) is loaded:
                del self._loaded[loaded.root]
        finally:
            loaded.ready.set()

    async def _fetch(self, root: str, digests: Sequence[str]) -> None:
        await self._restore(root, digests)
        await self._exchange.fetch(
            root,
            digests,
            lambda: holders(root, self._directory),
            patience=ASK_PATIENCE,
            asked=True,  # files that are here only for prompts have a disk limit of their own
        )

    async def _files(self, loaded: _Loaded) -> ModelFiles:
        root = loaded.root
        known = root in self._library.roots()
        manifest = await manifest_of(root, self._library, self._exchange, self._directory)
        loaded.checked = architecture(manifest.config)
        digests = [digest for blob in manifest.files.values() for digest in blob.chunks]
        if not known:
            await self._pass_through(root, sum(blob.size for blob in manifest.files.values()))
        await self._fetch(root, digests)
        try:
            blobs = {key: await self._library.blob(root, key) for key in manifest.files}
        except ChunkCorrupt:  # reading has deleted the damaged chunk
            await self._host.offload(self._library.store.drop_damaged, digests)
            await self._fetch(root, digests)
            blobs = {key: await self._library.blob(root, key) for key in manifest.files}
        return ModelFiles(
            name=loaded.name,
            tokenizer=blobs["tokenizer"] or b"",
            config=manifest.config,
            tokenizer_config=blobs.get("tokenizer_config"),
            special_tokens=blobs.get("special_tokens"),
            generation_config=blobs.get("generation_config"),
            chat_template=blobs.get("chat_template"),
        )
