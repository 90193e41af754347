"""Reads a model of this node's library, and quantises it. Runs in the converting process."""

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from ...dht.content.chunkstore import chunk_path
from ...dht.content.folder import TEXT_FILES
from ...dht.content.manifest import EMBEDDING, Blob, Manifest, Tensor
from ...dht.defaults import CHUNK, ITEM_BYTES, MANIFEST_LIMIT
from ...dht.errors import ChunkCorrupt, ChunkMissing, ModelError, unreadable
from ..engine.families import architecture
from ..engine.families.shapes import layer_prefix
from ..engine.layouts import INT4, INT8, Layout, Precision
from .output import Converted, Output, floats_of, quantised_pieces, row_spans
from .quantise import Floats

TARGETS: Final[dict[Precision, Layout]] = {"int8": INT8, "int4": INT4}


def file_name(key: str) -> str:
    """Return the name of a file in a folder, by its key in a manifest."""
    return TEXT_FILES.get(key, "chat_template.jinja")


class StoredModel:
    """A model in a library folder: its manifest, and its chunks, which are verified when read."""

    def __init__(self, library: Path, root: str) -> None:
        """Read the manifest. Raises ModelError if it is missing or damaged."""
        path = library / "manifests" / root
        try:
            with open(path, "rb") as file:
                data = file.read(MANIFEST_LIMIT + 1)
        except OSError as error:
            raise unreadable(path, error) from None
        self.manifest = Manifest.decode(data)
        self._chunks = library / "chunks"
        self._cached = ("", b"")

    def text(self, key: str) -> bytes:
        """Return a file of the model, verified."""
        return b"".join(map(self._chunk, self.manifest.files[key].chunks))

    def read(self, item: Tensor | Blob, offset: int, size: int) -> bytes:
        """Return `size` bytes of a tensor from `offset`. Raises ChunkMissing or ChunkCorrupt."""
        found = b""
        while len(found) < size:
            index, skip = divmod(offset + len(found), CHUNK)
            found += self._chunk(item.chunks[index])[skip : skip + size - len(found)]
        return found

    def _chunk(self, digest: str) -> bytes:
        if self._cached[0] != digest:
            try:
                with open(chunk_path(self._chunks, digest), "rb") as file:
                    data = file.read(CHUNK + 1)
            except OSError:
                raise ChunkMissing(digest) from None
            if hashlib.sha256(data).hexdigest() != digest:
                raise ChunkCorrupt(digest, "on this disk")
            self._cached = (digest, data)
        return self._cached[1]

    def rows(self, tensor: Tensor) -> Iterator[Floats]:
        """Yield a float matrix, some rows at a time."""
        width = ITEM_BYTES[tensor.dtype] * (tensor.size // ITEM_BYTES[tensor.dtype])
        width //= tensor.shape[0]
        for first, end in row_spans(tensor.shape):
            data = self.read(tensor, first * width, (end - first) * width)
            yield floats_of(data, tensor.dtype).reshape(end - first, -1)


def quantised_model(library: Path, root: str, precision: Precision) -> Converted:
    """Return a model of the library with its matrices quantised to a precision.

    Raises ModelError `quantised` if the model is quantised already, and EngineError if this engine
    does not support it.
    """
    stored = StoredModel(library, root)
    manifest = stored.manifest
    arch = architecture(manifest.config)
    if arch.layouts.precision:
        raise ModelError(
            "quantised",
            "this model is quantised already, and each further rounding loses more",
            hint="quantise the model that it was made from: `shoal model list` shows all models",
        )
    layout = TARGETS[precision]
    # A router has few values, and decides which experts compute a row.
    routers = {
        f"{layer_prefix(number)}{kind.experts.names.router}.weight"
        for number, kind in enumerate(arch.kinds)
        if kind.experts is not None
    }
    outputs = [
        _output(stored, tensor, None if tensor.roles[0] in routers else layout)
        for tensor in manifest.tensors
    ]
    kept = sum(output.layout is None and len(output.shape) == 2 for output in outputs)
    kept -= len(routers)
    notes = [f"{kept} matrices stay in {manifest.tensors[0].dtype}: their columns are no groups of "
             f"{layout.group}"] if kept else []  # fmt: skip
    texts = {file_name(key): stored.text(key) for key in manifest.files}
    return Converted(manifest.config, texts, outputs, tuple(notes))


def _output(stored: StoredModel, tensor: Tensor, layout: Layout | None) -> Output:
    """Return how one tensor is stored. A tied table is written once, as the embedding."""
    role = tensor.roles[-1] if EMBEDDING in tensor.roles else tensor.roles[0]
    if layout is not None and role.endswith(".weight") and layout.fits(tensor.shape):
        pieces = partial(quantised_pieces, partial(stored.rows, tensor), layout)
        return Output(role, tensor.shape, layout, "", pieces)
    return Output(role, tensor.shape, None, tensor.dtype, partial(_copied, stored, tensor))


def _copied(stored: StoredModel, tensor: Tensor) -> Iterator[dict[str, bytes]]:
    for offset in range(0, tensor.size, CHUNK):
        yield {"": stored.read(tensor, offset, min(CHUNK, tensor.size - offset))}
