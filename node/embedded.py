"""The embedded model: what a first node serves, so that a fresh swarm answers at once."""

import json
from importlib import resources
from pathlib import Path

from ..dht.library import Library
from ..transport.host import Host
from . import defaults

CONFIG_LIMIT = 1 << 20  # bytes of config.json


def embedded_folder() -> Path:
    """The Hugging Face folder that is shipped inside the package."""
    return Path(str(resources.files("shoal"))) / "models" / defaults.EMBEDDED_MODEL


def embedded_layers(host: Host) -> int:
    """How many layers the embedded model has."""
    config = json.loads(host.files.read(embedded_folder() / "config.json", limit=CONFIG_LIMIT))
    return int(config["num_hidden_layers"])


async def import_embedded(library: Library) -> str:
    """Take the embedded model into the library under its name; returns its root."""
    _, manifest = await library.add(embedded_folder(), defaults.EMBEDDED_MODEL)
    return manifest.root
