"""Decode of 8 and 16 sessions with a model of 1.1 B parameters, against llama.cpp.

`value` is the smallest ratio of tokens per second, divided by its goal: 1.1 for bfloat16, 1.8 for
8 bits, 1.5 for 4 bits. The goals are for AVX-512; `instructions` says what was measured.
"""

import argparse
import json
import sys
from typing import Final

from worlds.kernels import compare

MEASURES = ("tasks/engine", "transport/host")

GOALS: Final = {
    f"{kind}_{batch}": goal
    for kind, goal in (("bf16", 1.1), ("int8", 1.8), ("int4", 1.5))
    for batch in (8, 16)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of few steps")
    args = parser.parse_args()
    found: dict[str, object] = {}
    for kind in ("bf16", "int8", "int4"):
        found |= compare(kind, (8, 16), args.quick)
    value = min(float(str(found[name])) / goal for name, goal in GOALS.items())
    head = {"name": "kernel_batch", "goal": 1.0, "value": round(value, 2), "ok": value >= 1}
    print(json.dumps(head | {"goals": GOALS} | found))
    return 0 if value >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
