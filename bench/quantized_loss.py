"""Loss of the embedded model in 8 and 4 bits, against its own weights in bfloat16.

`shoal model quantize` makes the models, embedding and head included, and the engine's core computes
them on docstrings of modules of the standard library that were held out from training (`--quick`:
the first 8,192 tokens, otherwise 32,768). All sides compute each row of 512 tokens in turn, with
activations in the dtype that a node chooses. `value` is the increase of the loss in per cent by
precision; goals 0.1 (int8) and 2 (int4). Rounding the int4 model's values once more may be better
or worse on one row, so `rows_worse` says on how many rows each precision loses.
"""

import argparse
import ast
import importlib.util
import json
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Final

import numpy as np
import torch
import trio
from tokenizers import Tokenizer

from shoal.dht.content.library import Library
from shoal.dht.content.manifest import Manifest
from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.engine.core import Core
from shoal.tasks.engine.families import architecture, check_model
from shoal.tasks.engine.interface import Parts, Span
from shoal.tasks.engine.layouts import Precision
from shoal.tasks.engine.messages import load_payload, span_frame
from shoal.tasks.engine.spans.answers import FrameOutput
from shoal.tasks.engine.wire import Buffer, Header
from shoal.tasks.models.adding import quantise
from shoal.tasks.placement.shard import choose_dtype, shard_of
from shoal.transport.host.real import RealHost

MEASURES = (
    "tasks/models",
    "tasks/engine",
    "tasks/placement",
    "dht/content",
    "shoal/models",
    "node",
    "transport/host",
)

GOALS: Final[dict[Precision, float]] = {"int8": 0.1, "int4": 2.0}  # per cent
ROW: Final = 512  # tokens
MEMORY: Final = 1 << 30


def corpus() -> ModuleType:
    """The module that chose the texts that the model was trained on."""
    path = Path(__file__).parent.parent / "examples" / "tiny" / "corpus.py"
    spec = importlib.util.spec_from_file_location("tiny_corpus", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def held_out(count: int) -> list[tuple[int, ...]]:
    """Rows of `count` tokens in all, of docstrings that the model was never trained on."""
    module = corpus()
    tokenizer = Tokenizer.from_file(str(embedded_folder() / "tokenizer.json"))
    files = dict(module.library_files(Path(sysconfig.get_paths()["stdlib"])))
    ids: list[int] = []
    for name in (name for name in files if module.is_held_out_module(name, set(files))):
        with suppress(SyntaxError):  # templates and deliberately broken files
            for _, _, text in module.docstring_nodes(name, ast.parse(files[name].read_bytes())):
                ids += tokenizer.encode(text).ids if module.is_prose(text) else []
        if len(ids) >= count:
            return [tuple(ids[at : at + ROW]) for at in range(0, count, ROW)]
    raise SystemExit(f"only {len(ids)} tokens of text are held out")


class Side:
    """One model in the engine's core."""

    def __init__(self, library: Library, manifest: Manifest) -> None:
        arch = architecture(manifest.config)
        parts = Parts(True, 0, arch.layers, True)
        dtype = choose_dtype(manifest, "auto")
        shard = shard_of(manifest, arch, parts, dtype, MEMORY, library.store.path)
        self._frames: list[tuple[Header, bytes]] = []
        self._core = Core(FrameOutput(self._keep))
        self._core.handle(("load", 1, 0), memoryview(bytearray(load_payload(shard))))
        header = self._frames.pop()[0]
        assert header[0] == "ok", header
        self.bytes = int(header[2][0])  # type: ignore[index]
        self.seconds = 0.0  # of CPU time

    def _keep(self, header: Header, payload: Buffer) -> None:
        self._frames.append((header, bytes(payload)))

    def losses(self, tokens: tuple[int, ...]) -> np.ndarray:
        """Nats of each token of a row after the first."""
        name, began = b"row".ljust(16, b"."), time.process_time()
        core = self._core
        empty = memoryview(b"")
        core.handle(
            (
                "open",
                1,
                name,
                len(tokens),
                "me",
                False,
                b"",
                0,
                None,
                "",
                False,
                False,
                True,
                None,
                "",
            ),
            empty,
        )
        header, payload = span_frame(Span(name, 1, 0, len(tokens), tokens=tokens, want="logits"))
        core.handle(tuple(header), memoryview(bytearray(payload)))
        while core.busy:
            core.step()
        core.handle(("close", 1, name), empty)
        self.seconds += time.process_time() - began
        data = next(data for header, data in self._frames if header[0] == "hidden")
        self._frames.clear()
        logits = np.frombuffer(data, np.float32).reshape(len(tokens), -1).astype(np.float64)[:-1]
        top = logits.max(-1)
        total = np.log(np.exp(logits - top[:, None]).sum(-1)) + top
        found: np.ndarray = total - logits[np.arange(len(logits)), list(tokens[1:])]
        return found


def measure(sides: dict[str, Side], rows: list[tuple[int, ...]]) -> Iterator[dict[str, float]]:
    """Yield the mean loss of each side for each row, all sides in turn."""
    for row in rows:
        yield {name: float(side.losses(row).mean()) for name, side in sides.items()}


async def models(folder: Path) -> tuple[Library, dict[str, Manifest]]:
    """Import the embedded model, and quantise it."""
    host = RealHost()
    library = Library(host, folder, check_config=check_model)
    await library.open()
    _, manifest = await library.add(embedded_folder(), "tiny")
    found = {"bf16": manifest}
    for to in GOALS:
        added = await quantise(host, library, manifest.root, to, f"tiny-{to}", lambda *_: None)
        found[to] = added.manifest
    return library, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="8,192 tokens")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = held_out(8192 if args.quick else 32_768)
    with tempfile.TemporaryDirectory() as folder:
        library, manifests = trio.run(models, Path(folder))
        sides = {name: Side(library, manifest) for name, manifest in manifests.items()}
        found = list(measure(sides, rows))
    losses = {name: float(np.mean([each[name] for each in found])) for name in sides}
    value = {to: round(100 * (losses[to] / losses["bf16"] - 1), 3) for to in GOALS}
    ok = all(value[to] <= goal for to, goal in GOALS.items())
    result = {
        "name": "quantized_loss",
        "value": value,
        "goal": GOALS,
        "ok": ok,
        "tokens": len(rows) * ROW,
        "nats": {name: round(loss, 4) for name, loss in losses.items()},
        "rows_worse": {to: sum(each[to] > each["bf16"] for each in found) for to in GOALS},
        "rows": len(rows),
        "weight_mib": {name: round(side.bytes / 2**20, 2) for name, side in sides.items()},
        "cpu_s": {name: round(side.seconds, 1) for name, side in sides.items()},
    }
    print(json.dumps(result))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
