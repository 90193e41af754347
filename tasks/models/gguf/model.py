"""Converts a GGUF file to a model with the layouts of docs/spec/quantised.md."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ....dht.defaults import TENSORS_LIMIT
from ....dht.errors import ModelError, unreadable
from ..output import Converted, Output, row_spans
from ..quantise import Parts
from .blocks import EXACT, LAYOUTS, float_values, stored_parts
from .config import VECTORS, RowOrder, config_of, order_of, role_of, split_experts
from .families import GgufFamily, Vectors, experts_of, family_of
from .header import AGAIN, GgufTensor, Header, read_header
from .metadata import Metadata
from .tokenizer import text_files


def gguf_model(path: Path) -> Converted:
    """Return the model in a GGUF file. Raises ModelError if the file is invalid or unsupported."""
    header = read_header(path)
    meta = Metadata(header)
    if meta.integer("split.count", 1 << 16, 1) > 1:
        raise ModelError(
            "split-gguf",
            f"`{path.name}` is one of several parts of a model",
            hint="join them: `llama-gguf-split --merge FIRST-PART.gguf model.gguf`",
        )
    family, experts = family_of(meta), experts_of(meta)
    config = config_of(meta, family, header, _vectors(path, header))
    vocabulary, head_dim = config["vocab_size"], config["head_dim"]
    assert isinstance(vocabulary, int) and isinstance(head_dim, int)
    _check_count(header)
    texts = text_files(meta, vocabulary)
    outputs = [
        _output(path, each, family, head_dim)
        for tensor in header.tensors.values()
        if tensor.name not in VECTORS
        for each in split_experts(tensor, experts)
    ]
    outputs.sort(key=lambda output: output.role)
    return Converted(config, texts, outputs, tuple(_notes(header)))


def _check_count(header: Header) -> None:
    """Raise ModelError `bad-gguf` if the file has too many tensors, with each expert's counted."""
    shapes = [tensor.shape for tensor in header.tensors.values()]
    count = sum(shape[0] if len(shape) == 3 else 1 for shape in shapes)
    if count > TENSORS_LIMIT:
        raise ModelError("bad-gguf", f"the file has {count} tensors with its experts'", hint=AGAIN)


def _vectors(path: Path, header: Header) -> Vectors:
    """Return the tensors that become a part of the config."""
    found = {}
    for name in VECTORS:
        if (tensor := header.tensors.get(name)) is None:
            continue
        if tensor.kind.name != "F32" or len(tensor.shape) != 1 or tensor.size > 1 << 16:
            raise ModelError("bad-gguf", f"`{name}` is no short list of F32", hint=AGAIN)
        found[name] = float_values(_read(path, tensor, 0, 1), tensor.kind)
    return found


def _output(path: Path, tensor: GgufTensor, family: GgufFamily, head_dim: int) -> Output:
    role, order = role_of(family, tensor), order_of(family, tensor, head_dim)
    layout = LAYOUTS.get(tensor.kind.name)
    if layout is not None and (len(tensor.shape) != 2 or not role.endswith(".weight")):
        raise ModelError(
            "unsupported-tensor",
            f"`{tensor.name}` is quantised and no matrix",
            hint="use a file of another publisher, or the model's Hugging Face folder",
        )
    offset = family.norm_offset if role.endswith("norm.weight") else 0.0
    if offset and tensor.kind.name != "F32":
        raise ModelError(
            "unsupported-tensor",
            f"`{tensor.name}` has the type {tensor.kind.name}, and norms have F32",
            hint="use a file of another publisher, or the model's Hugging Face folder",
        )
    pieces = partial(_pieces, path, tensor, order, offset)
    return Output(role, tensor.shape, layout, tensor.kind.name, pieces)


def _pieces(
    path: Path, tensor: GgufTensor, order: RowOrder | None, offset: float
) -> Iterator[Parts | dict[str, bytes]]:
    """Yield what stores the tensor, some rows at a time, or a head where its rows move.

    `offset` was added to the values of a vector.
    """
    if len(tensor.shape) == 1:
        data = _vector(path, tensor, order)
        if offset:
            data = (np.frombuffer(data, "<f4") - np.float32(offset)).tobytes()
        yield {"": data}
        return
    for first, end in _spans(tensor, order):
        data = _read(path, tensor, first, end)
        if order is not None:
            heads = np.frombuffer(data, np.uint8).reshape(-1, order.head_dim, tensor.row_bytes)
            data = heads[:, order.indices()].tobytes()
        if tensor.kind.name not in LAYOUTS:
            yield {"": data}
            continue
        parts = stored_parts(data, tensor.kind, end - first)
        for end_of_name, part in parts.items():
            if end_of_name and not np.isfinite(part).all():
                raise ModelError(
                    "bad-tensor",
                    f"`{tensor.name}` has scales that are not finite",
                    hint=AGAIN,
                )
        yield parts


def _vector(path: Path, tensor: GgufTensor, order: RowOrder | None) -> bytes:
    data = _read(path, tensor, 0, 1)
    if order is None:
        return data
    values = np.frombuffer(data, np.uint8).reshape(-1, order.head_dim, tensor.kind.size)
    return values[:, order.indices()].tobytes()


def _spans(tensor: GgufTensor, order: RowOrder | None) -> Iterator[tuple[int, int]]:
    if order is None:
        yield from row_spans(tensor.shape)
        return
    step = order.head_dim
    for first in range(0, tensor.shape[0], step):
        yield first, first + step


def _read(path: Path, tensor: GgufTensor, first: int, end: int) -> bytes:
    """Return the bytes of some rows. Raises ModelError if the file has shrunk."""
    size = (end - first) * tensor.row_bytes
    try:
        with open(path, "rb") as file:
            data = os.pread(file.fileno(), size, tensor.offset + first * tensor.row_bytes)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) != size:
        raise ModelError("truncated", f"`{path}` shrank while it was read", hint=AGAIN)
    return data


def _notes(header: Header) -> Sequence[str]:
    """Return one sentence for each type of matrices: how it is computed."""
    counts = Counter(each.kind.name for each in header.tensors.values() if len(each.shape) > 1)
    notes = []
    for name, count in counts.most_common():
        matrices = f"{count} matrices" if count > 1 else "1 matrix"
        if name not in LAYOUTS:
            notes.append(f"{name}: {matrices}, stored as they are")
        elif name in EXACT:
            notes.append(f"{name}: {matrices}, computed natively as {LAYOUTS[name].name}")
        else:
            notes.append(f"{name}: {matrices}, converted to {LAYOUTS[name].name}")
    return notes
