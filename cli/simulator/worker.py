"""Worker process of a sweep: reads a scenario and then seeds from standard input, one on each line.

It replies with a line of JSON for each seed, and ends when its input ends.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from ...netsim.determinism.reexec import reexec
from ...netsim.errors import SimError
from ...netsim.scenario.format.parse import parse
from ...netsim.scenario.run import Run
from .run import versions

STRICT = "--strict"
KEPT = ("seed", "ended", "virtual", "real", "digest", "records", "metrics")


def run_seed(
    task: dict[str, Any], seed: int, progress: Callable[[float], None] | None = None
) -> dict[str, Any]:
    """Return the line of a seed: figures and verdicts, or why there are none."""
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
    """Run a seed as `run_seed` does, and add this node's versions."""
    return run_seed(task, seed) | {"versions": versions()}


def main() -> None:
    """Reply to seeds until the input ends."""
    if STRICT in sys.argv:
        reexec()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the input
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keeps other output from mixing with the replies
    parent = os.getppid()

    def with_parent(_: float) -> None:
        """Exit if the parent process was killed, because nothing reads the replies then."""
        if os.getppid() != parent:
            os._exit(1)

    task = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        answer = run_seed(task, int(line), with_parent)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
