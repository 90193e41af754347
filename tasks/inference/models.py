"""Provides models to this node's clients, whether or not this node holds any layers of them.

A gateway needs a model's manifest, config and text files, which are a few megabytes. Missing files
are fetched from members. Each model in use has one sandboxed text process. A few idle processes are
cached if the memory that the owner offers allows it.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio
from trio import TaskStatus

from ...dht.errors import ChunkCorrupt
from ...transport.errors import ShoalError
from ...transport.host.seam import Host
from ..defaults import ASK_PATIENCE, TEXT_MEMORY, TEXT_PROCESSES
from ..engine.families import Architecture, architecture
from ..errors import SessionError
from ..text.frames import TextInfo
from ..text.process import ModelFiles, TextProcess
from .generation import Model, TextCodec
from .sources import ModelSources

PAIRS: Final = 256  # pairs of models of which it is known whether they have the same tokenizer


class _Loaded:
    """One model with its text process.

    The process receives this object as its task status: it calls `started` when it is ready.
    """

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
        self.model = _model(self.root, self.name, checked, text)
        self.ready.set()


def _model(root: str, name: str, arch: Architecture, text: TextCodec) -> Model:
    return Model(
        root=root,
        name=name,
        layers=arch.layers,
        hidden=arch.hidden,
        context=arch.context,
        vocabulary=arch.vocab,
        text=text,
        family=arch.family,
        arch=arch,
    )


class Models:
    """`ModelSource` that loads models from a node's sources. `run` must be running."""

    def __init__(
        self,
        host: Host,
        sources: ModelSources,
        *,
        kept: int = TEXT_PROCESSES,
        text_process: Callable[[Host, ModelFiles], TextProcess] = TextProcess,
        memory: Callable[[], int] = lambda: TEXT_PROCESSES * TEXT_MEMORY,
    ) -> None:
        """Create the source.

        `kept` is the number of idle text processes to cache. `memory` returns the bytes that all
        text processes may use now; one process may run in any case.
        """
        self._host = host
        self._memory = memory
        self._sources = sources
        self._kept = kept
        self._text_process = text_process
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()  # least recently used first
        self._nursery: trio.Nursery | None = None
        # The second model of a pair, or None if its tokenizer is another one.
        self._alike: dict[tuple[str, str], Architecture | None] = {}

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the text processes of models in use, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def processes(self) -> dict[str, int]:
        """Return the pid of each model's text process, by the name that was first used for the
        model."""
        found = ((each.name, each.text) for each in self._loaded.values())
        return {name: text.pid for name, text in found if text is not None and text.pid is not None}

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Model]:
        """Provide a model by name or root until the block ends, loading it if necessary.

        Raises ModelError or TextError if it cannot be found, fetched or loaded, and SessionError if
        there is no memory for its text process.
        """
        root = (await self._sources.find(name)).root
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

    async def alike(self, model: Model, root: str) -> Model | None:
        """Return the model with that root if it has the tokenizer of `model`, whose text process it
        then shares. Raises ModelError if its manifest cannot be read."""
        pair = model.root, root
        if pair not in self._alike:
            found = await self._sources.manifest(root)
            theirs = await self._sources.manifest(model.root)
            same = found.files["tokenizer"] == theirs.files["tokenizer"]
            self._alike[pair] = architecture(found.config) if same else None
            while len(self._alike) > PAIRS:
                del self._alike[next(iter(self._alike))]
        arch = self._alike[pair]
        return None if arch is None else _model(root, model.name, arch, model.text)

    def _begin(self, root: str, name: str) -> _Loaded:
        if self._nursery is None:
            raise RuntimeError("Models.run is not running")
        self._make_memory()
        loaded = self._loaded[root] = _Loaded(root, name)
        self._nursery.start_soon(self._load, loaded)
        return loaded

    def _evict(self) -> None:
        """End idle processes beyond the number to cache."""
        idle = self._idle()
        for loaded in idle[: max(0, len(idle) - min(self._kept, self._most()))]:
            self._end(loaded)

    def _idle(self) -> list[_Loaded]:
        """Return the models that are not in use, least recently used first."""
        return [loaded for loaded in self._loaded.values() if loaded.users == 0]

    def _end(self, loaded: _Loaded) -> None:
        loaded.scope.cancel()
        del self._loaded[loaded.root]

    def _most(self) -> int:
        """Return how many processes may run. Each may use up to TEXT_MEMORY bytes."""
        return max(1, self._memory() // TEXT_MEMORY)

    def _make_memory(self) -> None:
        """End idle processes until one more process may run.

        Raises SessionError `no-memory` if that is impossible.
        """
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
        """Fetch a model's files and run its text process.

        Runs in a task of its own, because the request that started it may be cancelled.
        """
        try:
            with loaded.scope, self._sources.reading(loaded.name):
                files = await self._files(loaded)
                loaded.text = self._text_process(self._host, files)
                await loaded.text.run(task_status=loaded)
        except ShoalError as error:
            loaded.error = error
            if self._loaded.get(loaded.root) is loaded:
                del self._loaded[loaded.root]
        finally:
            loaded.ready.set()

    async def _files(self, loaded: _Loaded) -> ModelFiles:
        """Return the model's files, fetching those that are missing or damaged."""
        sources, library, root = self._sources, self._sources.library, loaded.root
        # Files that are stored only to answer prompts have a separate disk limit.
        fetch = partial(sources.fetch, patience=ASK_PATIENCE, asked=True)
        known = root in library.roots()
        manifest = await sources.manifest(root)
        loaded.checked = architecture(manifest.config)
        digests = [digest for blob in manifest.files.values() for digest in blob.chunks]
        if not known:
            await sources.reserve(root, sum(blob.size for blob in manifest.files.values()))
        await fetch(root, digests)
        try:
            blobs = {key: await library.blob(root, key) for key in manifest.files}
        except ChunkCorrupt:  # reading has deleted the damaged chunk
            await self._host.offload(library.store.drop_damaged, digests)
            await fetch(root, digests)
            blobs = {key: await library.blob(root, key) for key in manifest.files}
        return ModelFiles(
            name=loaded.name,
            tokenizer=blobs["tokenizer"] or b"",
            config=manifest.config,
            tokenizer_config=blobs.get("tokenizer_config"),
            special_tokens=blobs.get("special_tokens"),
            generation_config=blobs.get("generation_config"),
            chat_template=blobs.get("chat_template"),
        )
