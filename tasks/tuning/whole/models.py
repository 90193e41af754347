"""Models of this node that are trained whole: whether they can be, and what becomes of the result.

The result is a model of its own: a folder that `transformers` loads, imported into the library.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from ....dht.content.folder import TEXT_FILES
from ....dht.content.library import Library
from ....dht.content.manifest import Manifest
from ....transport.host.seam import Files, Host
from ...engine.families import Architecture, architecture, weight_bytes
from ...engine.interface import Parts
from ..interface import LearnedTensors, WeightName
from ..trainer.errors import TuningError
from ..trainer.folder import safetensors
from ..trainer.settings import no_backward, parts_without_backward
from . import defaults
from .process import NetworkProcess
from .subject import WholeSubject, WholeTensors, value_count
from .weights import FLOATS, StoredWeights

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """What full training needs of its node's content. `fetch` returns the manifest of a model whose
    chunks are then all on this disk, `make_room` frees some bytes of the disk limit, and `announce`
    tells other nodes of a model."""

    library: Library
    fetch: Callable[[str], Awaitable[Manifest]]
    make_room: Callable[[int], Awaitable[None]]
    announce: Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Computer:
    """Means of this node: threads, the bytes of offered memory that are free, and the reason why it
    cannot compute at all, or None. `reserve` takes some of these bytes, or gives them back if they
    are negative, so that no layers are loaded there."""

    threads: int
    memory: Callable[[], int]
    why_not: Callable[[], str | None]
    reserve: Callable[[int], None]


class WholeModels:
    """Trains models of this node as a whole."""

    def __init__(self, host: Host, content: Content, computer: Computer) -> None:
        self._host = host
        self._content = content
        self._computer = computer

    async def named(self) -> set[str]:
        """Return the names that models have on this node."""
        await trio.lowlevel.checkpoint()
        return set(self._content.library.names())

    async def check(self, root: str, arch: Architecture, length: int, *, together: bool) -> None:
        """Raise TuningError if this node cannot train a model with rows of `length` tokens."""
        manifest = await self._content.fetch(root)
        check_family(manifest, arch)
        if (why := self._computer.why_not()) is not None:
            raise TuningError(
                "no-engine", f"this node computes nothing: {why}",
                hint="`shoal doctor` says what is missing",
            )  # fmt: skip
        self._fitting(arch, length, together=together)

    def _fitting(self, arch: Architecture, length: int, *, together: bool) -> int:
        """Return the bytes that a training takes. Raises TuningError `no-memory` if fewer are
        free."""
        needed, free = memory_needed(arch, length, together=together), self._computer.memory()
        if needed > free:
            raise TuningError(
                "no-memory",
                f"training all {value_count(arch):,} weights takes {-(-needed // MIB):,} MiB of "
                f"memory, and {max(0, free) // MIB:,} MiB of what this node offers are free",
                hint="offer more with `--memory`, serve fewer layers with `--layers A:B`, end "
                "another training, or train an adapter: leave out `--full`",
            )
        return needed

    @asynccontextmanager
    async def subject(
        self, root: str, length: int, *, together: bool
    ) -> AsyncIterator[WholeSubject]:
        """Provide a model until the block ends, with the memory for rows of `length` tokens
        reserved. The process starts with the first step.

        Raises TuningError `no-memory` if too little of it is free by now.
        """
        manifest = await self._content.fetch(root)
        arch = architecture(manifest.config)
        stored = StoredWeights(self._host, self._content.library, manifest, arch)
        needed = self._fitting(arch, length, together=together)
        process = NetworkProcess(self._host, self._computer.threads)
        self._computer.reserve(needed)
        try:
            yield WholeSubject(process, manifest.config, stored)
        finally:
            try:
                await process.aclose()
            finally:
                self._computer.reserve(-needed)

    async def write(self, folder: Path, root: str, tensors: LearnedTensors) -> None:
        """Write a trained model as a folder. Raises OSError if the disk fails."""
        manifest = await self._content.fetch(root)
        texts = {
            TEXT_FILES.get(key, "chat_template.jinja"): await self._content.library.blob(root, key)
            or b""
            for key in manifest.files
        }
        config = float32_config(manifest.config)
        await self._host.offload(write_model, self._host.files, folder, config, texts, tensors)

    async def publish(self, folder: Path, name: str) -> str:
        """Add a folder to the library under a name, and announce it. Return the root of the model.

        Raises ModelError if the disk is full.
        """
        content = self._content
        size = await self._host.offload(self._host.files.size, folder / "model.safetensors")
        await content.make_room(size or 0)
        _, manifest = await content.library.add(folder, name)
        await content.announce(manifest.root)
        return manifest.root

    def averaged(self, name: str, root: str, arch: Architecture, every: int) -> WholeTensors:
        """Return the weights of a model as they are averaged with others."""
        return WholeTensors(name, root, arch, every)


def check_family(manifest: Manifest, arch: Architecture) -> None:
    """Raise TuningError if a model has weights or layers without derivatives."""
    dtypes = {tensor.dtype for tensor in manifest.tensors}
    if arch.layouts.precision or "quantization_config" in manifest.config or dtypes - {*FLOATS}:
        raise TuningError(
            "quantised",
            "the weights of this model are quantised, so they cannot be trained",
            hint="train the model that it was made from, or an adapter: leave out `--full`",
        )
    if parts_without_backward(arch):
        raise no_backward(arch)


def memory_needed(arch: Architecture, length: int, *, together: bool) -> int:
    """Return the bytes that training all weights of a model takes, in both processes."""
    copies = defaults.COPIES + (defaults.COPIES_TOGETHER if together else 0)
    weights = weight_bytes(arch, Parts(True, 0, arch.layers, True), "float32")
    positions = max(defaults.PART_POSITIONS, length)
    heads = (arch.heads + 2 * arch.kv_heads) * arch.head_dim
    kept = arch.layers * (10 * arch.hidden + 6 * heads + 6 * arch.intermediate)
    logits = 4 * max(defaults.LOGITS, defaults.LEAST_ROWS * arch.vocab)
    return copies * weights + defaults.FLOAT * (positions * kept + logits)


def float32_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return the config.json of a model whose weights are in float32."""
    key = "dtype" if "dtype" in config else "torch_dtype"
    return {**config, key: "float32"}


def write_model(
    files: Files,
    folder: Path,
    config: Mapping[str, object],
    texts: Mapping[str, bytes],
    tensors: LearnedTensors,
) -> None:
    """Write a model as `transformers` would. Blocking. Raises OSError if the disk fails."""
    named = {name.role: each for name, each in tensors.items() if isinstance(name, WeightName)}
    files.make_folder(folder, mode=0o755)
    files.write_pieces(folder / "model.safetensors", safetensors(named), mode=0o644)
    for name, data in texts.items():
        files.write(folder / name, data, mode=0o644)
    text = json.dumps(dict(config), indent=2, ensure_ascii=True) + "\n"
    files.write(folder / "config.json", text.encode(), mode=0o644)
