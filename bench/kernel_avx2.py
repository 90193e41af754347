"""The AVX2 kernels against llama.cpp built for the same machine, with 8 and 4 bit weights.

The shape has 1.1 B parameters. `value` is the smallest ratio of tokens per second, divided by its
goal: 0.9 for one session, 1.2 for 8. On a machine with AVX-512, ours compute with AVX2 as well
(`SHOAL_KERNELS=avx2`), but llama.cpp does not.
"""

import argparse
import json
import os
import sys
from typing import Final

from worlds.kernels import compare

MEASURES = ("tasks/engine", "transport/host")

GOALS: Final = {"int8_1": 0.9, "int4_1": 0.9, "int8_8": 1.2, "int4_8": 1.2}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of few steps")
    args = parser.parse_args()
    os.environ["SHOAL_KERNELS"] = "avx2"
    found = compare("int8", (1, 8), args.quick) | compare("int4", (1, 8), args.quick)
    value = min(found[name] / goal for name, goal in GOALS.items())
    head = {"name": "kernel_avx2", "goal": 1.0, "value": round(value, 2), "ok": value >= 1}
    print(json.dumps(head | {"goals": GOALS} | found))
    return 0 if value >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
