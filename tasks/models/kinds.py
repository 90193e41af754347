"""Kinds of sources that the converting process can convert."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from ...dht.content.folder import json_file
from ...dht.defaults import CONFIG_LIMIT
from ...dht.errors import ModelError
from ..engine.layouts import Precision
from .frames import TOKEN
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
        names = ", ".join(get_args(Precision))
        raise ModelError("bad-precision", f"`{precision}` is no precision", hint=f"use {names}")
    return _written(quantised_model(Path(library), arguments.source, precision), folder, note)


def _gguf(arguments: argparse.Namespace, folder: Path, note: Note) -> Result:
    """Convert the GGUF file at the path `source`."""
    from .gguf.model import gguf_model

    return _written(gguf_model(Path(arguments.source)), folder, note)


def _packed(arguments: argparse.Namespace, folder: Path, note: Note) -> Result:
    """Convert the AWQ or GPTQ folder at the path `source`."""
    from ...transport.host.real import RealHost
    from .packed import packed_model

    return _written(packed_model(RealHost().files, Path(arguments.source)), folder, note)


def _ollama(arguments: argparse.Namespace, folder: Path, note: Note) -> Result:
    """Convert the model with the name `source` of the Ollama store in `options`."""
    from .gguf.model import gguf_model
    from .ollama import ollama_file

    (store,) = arguments.options
    return _written(gguf_model(ollama_file(Path(store), arguments.source, note)), folder, note)


def _hub(arguments: argparse.Namespace, folder: Path, note: Note) -> Result:
    """Download the model `source` from the hub in `options`, and convert it if necessary."""
    from ...transport.host.real import RealHost
    from .hub import Hub, download_folder
    from .packed import packed_model, quantised_by

    (endpoint,) = arguments.options
    downloaded = download_folder(arguments.folder, endpoint, arguments.source)
    Hub(endpoint, os.environ.get(TOKEN, "")).download(arguments.source, downloaded, note)
    files = RealHost().files
    config = json_file(files, downloaded / "config.json", CONFIG_LIMIT)
    if quantised_by(config):
        return _written(packed_model(files, downloaded), folder, note)
    return downloaded, ()


def _written(model: Converted, folder: Path, note: Note) -> Result:
    write_folder(folder, model, note)
    return folder, model.notes


KINDS: Final[Mapping[str, Work]] = {
    "gguf": _gguf,
    "hub": _hub,
    "ollama": _ollama,
    "packed": _packed,
    "quantise": _quantise,
}
