"""Prints, as JSON, where the installed shoal and its kernels are, and what the embedded model
writes: `installed_text.py`. `test_installing.py` runs it with packages that were just built."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Final

import torch
import trio

import shoal
from shoal.dht.content.library import Library
from shoal.dht.content.manifest import Manifest
from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.engine.compute.native import choice
from shoal.tasks.engine.compute.torchcompute import TorchCompute, computing
from shoal.tasks.engine.families import architecture, check_model
from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.kernels import library_path
from shoal.tasks.engine.kv.blocks import BlockPool, BlockTable
from shoal.tasks.engine.shard import Piece
from shoal.tasks.placement.shard import shard_of
from shoal.transport.host.real import RealHost

TOKENS: Final = 48


async def added(folder: Path) -> tuple[Library, Manifest]:
    library = Library(RealHost(), folder, check_config=check_model)
    await library.open()
    return library, (await library.add(embedded_folder(), "tiny"))[1]


def text(folder: Path) -> list[int]:
    """Return the most likely tokens after two, in float32."""
    library, manifest = trio.run(added, folder)
    arch = architecture(manifest.config)
    parts = Parts(True, 0, arch.layers, True)
    shard = shard_of(manifest, arch, parts, "float32", 1 << 30, library.store.path)
    compute = TorchCompute(arch, shard)
    compute.allocate(40, 0)
    table, tokens = BlockTable(BlockPool(40), TOKENS + 2), [0, 300]
    table.prepare(0, TOKENS + 2)
    with computing():
        for at in range(TOKENS):
            first = at and at + 1
            given = compute.fed_back(*tokens[first:])
            piece = Piece(table, given, 0, len(given), first, at > 0, None)
            rows = compute.forward([piece])[0]
            tokens.append(int(compute.logits(rows[-1:]).argmax()))
    return tokens


def main() -> None:
    torch.set_num_threads(1)
    found, library = choice.kernels(), library_path()
    with tempfile.TemporaryDirectory() as folder:
        written = text(Path(folder))
    result = {
        "shoal": str(shoal.__file__),
        "library": None if library is None else str(library),
        "kernels": None if found is None else found.name,
        "refused": sorted(set(choice.choice().refused.values())),
        "tokens": written,
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
