"""The embedded model, which the first node of a swarm serves, so that a new swarm can answer at
once."""

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import trio

from ...dht.content.library import Library
from ...dht.errors import ModelError
from ...state.directory import Directory
from ...tasks.inference.sources import providers
from ...transport.host.seam import Host
from .. import defaults
from ..health import Health
from ..models.inventory import Inventory

CONFIG_LIMIT = 1 << 20  # bytes of config.json


def embedded_folder() -> Path:
    """Return the folder of the embedded model inside the package. It has the Hugging Face
    format."""
    return Path(str(resources.files("shoal"))) / "models" / defaults.EMBEDDED_MODEL


def embedded_layers(host: Host) -> int:
    """Return the number of layers of the embedded model."""
    config = json.loads(host.files.read(embedded_folder() / "config.json", limit=CONFIG_LIMIT))
    return int(config["num_hidden_layers"])


async def import_embedded(library: Library) -> str:
    """Import the embedded model into the library under its name, and return its root."""
    _, manifest = await library.add(embedded_folder(), defaults.EMBEDDED_MODEL)
    return manifest.root


class EmbeddedModel:
    """Imports the embedded model into a node's library, and repairs it there."""

    def __init__(
        self,
        host: Host,
        library: Library,
        directory: Directory,
        inventory: Inventory,
        health: Health,
    ) -> None:
        self._host = host
        self._library = library
        self._directory = directory
        self._inventory = inventory
        self._health = health

    def is_needed(self, *, fresh: bool) -> bool:
        """Return whether the model must be imported.

        This is the case if the library is empty and this is the first node of a new swarm
        (`fresh`), or if the library's manifest of the model is missing.
        """
        names = self._library.names()
        known = names.get(defaults.EMBEDDED_MODEL, "")
        return (fresh and not names) or known not in {"", *self._library.roots()}

    async def bring(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Import the model, and retry until this succeeds. `nursery.start` returns after the first
        attempt."""
        root = self._library.names().get(defaults.EMBEDDED_MODEL)
        while True:
            try:
                if root is None:
                    await import_embedded(self._library)
                else:  # its manifest was damaged
                    await self._library.restore(embedded_folder(), root)
                await self._inventory.announce()
                await self._inventory.announce_chunks()
            except ModelError as error:
                self._health.report("embedded-model", error.message, hint=error.hint)
            else:
                self._health.clear("embedded-model")
                task_status.started()
                return
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(defaults.EMBEDDED_PAUSE)

    async def restore(self, root: str, digests: Sequence[str]) -> None:
        """Restore chunks of the embedded model from the package, unless another member claims to
        have them.

        Does nothing if `root` is another model or no chunk is missing.
        """
        if self._library.names().get(defaults.EMBEDDED_MODEL) != root:
            return
        if providers(root, self._directory):
            return
        if await self._host.offload(self._library.store.missing, digests):
            await self._library.restore(embedded_folder(), root)
