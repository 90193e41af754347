"""What the converting process can convert, by the kind that the daemon names."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from ...dht.errors import ModelError
from ..engine.layouts import Precision
from .output import Converted, Note, write_folder

Result = tuple[Path, Sequence[str]]
"""The folder to import, and notes for the owner."""

Work = Callable[[argparse.Namespace, Path, Note], Result]
"""Converts a source into a folder."""


def _quantise(arguments: argparse.Namespace, folder: Path, note: Note) -> Result:
    """Quantise the model with the root `source` of the library and the precision in `options`."""
    from .library import quantised_model

    library, precision = arguments.options
    if precision not in get_args(Precision):
        raise ModelError("bad-precision", f"`{precision}` is none of {get_args(Precision)}")
    return _written(quantised_model(Path(library), arguments.source, precision), folder, note)


def _gguf(arguments: argparse.Namespace, folder: Path, note: Note) -> Result:
    """Convert the GGUF file at the path `source`."""
    from .gguf.model import gguf_model

    return _written(gguf_model(Path(arguments.source)), folder, note)


def _written(model: Converted, folder: Path, note: Note) -> Result:
    write_folder(folder, model, note)
    return folder, model.notes


KINDS: Final[Mapping[str, Work]] = {"gguf": _gguf, "quantise": _quantise}
