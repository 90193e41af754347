"""Writes a converted model as a Hugging Face folder, in bounded memory. Runs in the converting
process.

The sizes of all tensors are known from their shapes. So the header of the safetensors file is
written first, and then each tensor's values, some rows at a time.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ...dht.defaults import DISK_RESERVE, ITEM_BYTES
from ...dht.errors import ModelError, NotEnoughDisk, unwritable
from ..engine.layouts import Layout, Layouts
from .quantise import Floats, Parts, quantise

ROWS_VALUES: Final = 1 << 20  # values of the rows that are converted at a time
_SINGLE: Final = "model.safetensors"

Shape = tuple[int, ...]
Note = Callable[[int, int], None]
"""Called with the number of bytes done so far, and the total number of bytes."""


@dataclass(frozen=True)
class Output:
    """One parameter of the converted model.

    `layout` is None for floats, which are stored as `dtype`. `pieces` yields the tensors that
    store it, some rows at a time, by what follows the parameter's name in theirs.
    """

    role: str
    shape: Shape
    layout: Layout | None
    dtype: str
    pieces: Callable[[], Iterator[Parts | dict[str, bytes]]]

    def stored(self) -> Mapping[str, tuple[str, Shape]]:
        """Return dtype and shape of the tensors that store the parameter, by name."""
        if self.layout is None:
            return {self.role: (self.dtype, self.shape)}
        return self.layout.stored(self.role, self.shape)


@dataclass(frozen=True)
class Converted:
    """A model to write: its config without layouts, its texts by file name, its parameters."""

    config: Mapping[str, object]
    texts: Mapping[str, bytes]
    outputs: Sequence[Output]
    notes: tuple[str, ...] = ()


def write_folder(folder: Path, model: Converted, note: Note) -> None:
    """Write a model into an empty folder. Raises ModelError if the disk refuses, or lacks room."""
    config = {key: value for key, value in model.config.items() if key != "quantization_config"}
    layouts = layouts_for(model.outputs)
    if layouts.precision:
        config["quantization_config"] = layouts.config()
    try:
        (folder / "config.json").write_text(json.dumps(config))
        for name, data in model.texts.items():
            (folder / name).write_bytes(data)
        _write_weights(folder / _SINGLE, model.outputs, note)
    except OSError as error:
        raise unwritable(folder, error) from None


def layouts_for(outputs: Iterable[Output]) -> Layouts:
    """Return the layouts of the parameters: the commonest is that of all, others are exceptions."""
    found = {
        output.role.removesuffix(".weight"): output.layout
        for output in outputs
        if output.layout is not None or (len(output.shape) == 2 and output.role.endswith(".weight"))
    }
    layouts = list(found.values())
    used = sorted({each for each in layouts if each}, key=lambda each: each.name)
    if not used:
        return Layouts()
    default = max(used, key=layouts.count)
    return Layouts(default, {module: each for module, each in found.items() if each != default})


def quantised_pieces(rows: Callable[[], Iterator[Floats]], layout: Layout) -> Iterator[Parts]:
    """Quantise rows of float values, which arrive some at a time."""
    for some in rows():
        yield quantise(some, layout)


def floats_of(data: bytes | memoryview, dtype: str) -> Floats:
    """Return the float values of bytes in a float dtype of safetensors."""
    if dtype == "BF16":
        wide: Floats = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        return wide
    return np.frombuffer(data, "<f4" if dtype == "F32" else "<f2").astype(np.float32)


def row_spans(shape: Shape) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of the rows that are converted at a time."""
    rows, columns = shape[0], math.prod(shape[1:])
    step = max(1, ROWS_VALUES // columns)
    for first in range(0, rows, step):
        yield first, min(first + step, rows)


def _write_weights(path: Path, outputs: Sequence[Output], note: Note) -> None:
    header, places, at = dict[str, object](), dict[str, int](), 0
    for output in outputs:
        for name, (dtype, shape) in output.stored().items():
            size = math.prod(shape) * ITEM_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (at, at + size)}
            places[name] = at
            at += size
    data = json.dumps(header).encode()
    check_disk(path.parent, at + len(data))
    with open(path, "wb") as file:
        file.write(len(data).to_bytes(8, "little") + data)
        done = 0
        for output in outputs:
            ends = {name: places[name] + 8 + len(data) for name in output.stored()}
            for parts in output.pieces():
                for end, values in parts.items():
                    raw = values if isinstance(values, bytes) else values.tobytes()
                    os.pwrite(file.fileno(), raw, ends[output.role + end])
                    ends[output.role + end] += len(raw)
                    done += len(raw)
                note(done, at)
            _check_whole(output, ends, header, 8 + len(data))


def check_disk(folder: Path, needed: int) -> None:
    """Raise NotEnoughDisk unless `needed` bytes leave the disk its reserve. A sparse file claims
    terabytes in some kilobytes."""
    free = shutil.disk_usage(folder).free - DISK_RESERVE
    if needed > free:
        raise NotEnoughDisk(folder, needed, max(0, free), DISK_RESERVE)


def _check_whole(
    output: Output, ends: Mapping[str, int], header: Mapping[str, object], start: int
) -> None:
    """Raise ModelError `truncated` if not all values of a parameter were written."""
    for name, end in ends.items():
        entry = header[name]
        assert isinstance(entry, dict)
        if end != start + entry["data_offsets"][1]:
            raise ModelError(
                "truncated",
                f"the source lacks values of `{output.role}`",
                hint="download the model again; if the error stays, its publisher made a mistake",
            )
