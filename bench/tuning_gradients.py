"""Gradients of an adapter through three real daemons against one process with torch's autograd.

The daemons serve the embedded model on loopback, two layers each, in float32 and in bfloat16; the
reference has the same weights. `value` is the relative error (L2, over all tensors) in float32;
goal 1e-5, and 2e-2 in bfloat16.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Final

import torch
import trio
from worlds import tuners

MEASURES = ("tasks/tuning", "tasks/engine/compute/backward", "tasks/engine/training.py")

GOALS: Final = {"float32": 1e-5, "bfloat16": 2e-2}
LAYERS: Final = ("0:2", "2:4", "4:6")


async def error(dtype: str, rows: int, length: int) -> float:
    """Return the relative error of all derivatives of one batch."""
    given, batch = tuners.adapter(), tuners.batch(rows, length)
    wanted = tuners.LocalModel(given, getattr(torch, dtype)).gradients(batch)[1]
    with tempfile.TemporaryDirectory() as folder:
        async with tuners.trainer(Path(folder), LAYERS, dtype) as node:
            chain = node.compute.tuning.chain(tuners.ROOT, tuners.ARCH)
            got = (await chain.gradients(batch, given)).tensors
            assert len(chain.peers) == len(LAYERS)
            await chain.aclose()
    off = sum(float(((got[name] - wanted[name]) ** 2).sum()) for name in wanted)
    return math.sqrt(off / sum(float((each**2).sum()) for each in wanted.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="8 rows of 64 tokens, not 32 of 256")
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = (8, 64) if args.quick else (32, 256)
    found = {dtype: trio.run(error, dtype, *size) for dtype in GOALS}
    ok = all(found[dtype] < goal for dtype, goal in GOALS.items())
    line = {"name": "tuning_gradients", "value": found["float32"], "goal": GOALS["float32"]}
    print(json.dumps({**line, "ok": ok, "errors": found, "goals": GOALS}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
