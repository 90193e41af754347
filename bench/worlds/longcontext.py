"""The embedded model with a longer context, for simulated daemons. Simulated engines compute
numbers, so the text does not need to make sense."""

import json
from collections.abc import Callable
from pathlib import Path

from shoal.netsim.daemons import host as simulated
from shoal.netsim.daemons.realfiles import packaged
from shoal.netsim.disk.file import File, InstalledFile


def part_of(data: bytes) -> Callable[[int, int], bytes]:
    """Return what reads a part of `data`, by its offset and size."""
    return lambda offset, size: data[offset : offset + size]


def lengthen(context: int) -> None:
    """Give the embedded model of all simulated computers a context of that many tokens from now
    on."""

    def changed(folder: Path) -> dict[str, dict[str, File]]:
        models = packaged(folder)
        config = json.loads((folder / "tiny" / "config.json").read_bytes())
        data = json.dumps(config | {"max_position_embeddings": context}).encode()
        models["tiny"]["config.json"] = InstalledFile(len(data), part_of(data), 0o644)
        return models

    simulated._models.cache_clear()
    setattr(simulated, "packaged", changed)  # noqa: B010  (the simulator installs what it returns)
