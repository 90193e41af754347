"""Access of simulated daemons to real files.

Daemons read real files in only two cases: the models in the package, and weights that torch loads
from a folder.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from functools import lru_cache
from pathlib import Path

from ..disk.file import File, InstalledFile


@lru_cache(maxsize=1)
def packaged(folder: Path) -> dict[str, dict[str, File]]:
    """Return the files of each model in the package, by the model's name and the file's name."""
    return {
        model.name: {path.name: _as_installed(path) for path in sorted(model.iterdir())}
        for model in sorted(folder.iterdir())
        if model.is_dir()
    }


def _as_installed(path: Path) -> File:
    """Return a simulated file with the content of a real file, which is read on first use."""
    context = Context()  # it belongs to no host; the tasks of a host cannot access the real disk

    def load(offset: int, size: int) -> bytes:
        return context.run(_part, path, offset, size)

    return InstalledFile(path.stat().st_size, load, 0o644)


def _part(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


@contextmanager
def beside(contents: Mapping[str, bytes]) -> Iterator[dict[str, str]]:
    """Write `contents`, by simulated path, to real files while the context lasts.

    Yields a dictionary from each simulated path to the real path.
    """
    # An empty context belongs to no host. The tasks of a host cannot access the real disk.
    folder = Context().run(tempfile.mkdtemp)
    try:
        yield Context().run(_written, Path(folder), contents)
    finally:
        Context().run(shutil.rmtree, folder)


def _written(folder: Path, contents: Mapping[str, bytes]) -> dict[str, str]:
    """Write the files into `folder`. Return the real path of each simulated path."""
    real = {path: folder / str(number) for number, path in enumerate(contents)}
    for path, data in contents.items():
        real[path].write_bytes(data)
    return {path: str(where) for path, where in real.items()}
