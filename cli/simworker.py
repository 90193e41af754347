"""A process of a sweep: told a scenario and then seeds on standard input, a line each; answers
with a line of JSON for each seed. It ends with its input.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from ..netsim.errors import SimError
from ..netsim.reexec import reexec
from ..netsim.scenario.parse import parse
from ..netsim.scenario.run import Run
from .simrun import versions

STRICT = "--strict"
KEPT = ("seed", "ended", "virtual", "real", "digest", "records", "metrics")


def run_seed(
    task: dict[str, Any], seed: int, progress: Callable[[float], None] | None = None
) -> dict[str, Any]:
    """One seed's line: figures and verdicts, or why there are none."""
    began = time.perf_counter()
    try:
        scenario = parse(task["text"], hosts=task["hosts"], beside=task["files"].__getitem__)
        result = Run(scenario, seed, clock=time.perf_counter, progress=progress).go()
    except (SimError, OSError, ExceptionGroup) as error:
        real = time.perf_counter() - began
        return {"seed": seed, "met": False, "ended": f"failed: {error!r}", "real": real}
    verdicts = [
        {"text": item.text, "met": item.met, "found": item.found, "line": item.line,
         "shown": item.shown}
        for item in result.verdicts
    ]  # fmt: skip
    line = {name: getattr(result, name) for name in KEPT}
    return line | {"met": result.met, "verdicts": verdicts}


def run_on_node(task: dict[str, Any], seed: int) -> dict[str, Any]:
    """As `run_seed`, with what this node runs it with."""
    return run_seed(task, seed) | {"versions": versions()}


def main() -> None:
    """Answer until the input ends."""
    if STRICT in sys.argv:
        reexec()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then closes
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints does not come between the answers
    parent = os.getppid()

    def with_parent(_: float) -> None:
        """End where nobody is left to tell: who started us was killed."""
        if os.getppid() != parent:
            os._exit(1)

    task = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        answer = run_seed(task, int(line), with_parent)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
