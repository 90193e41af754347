"""Worker process of a sweep: reads a scenario and then seeds from standard input, one on each line.

It replies with a line of JSON for each seed, and ends when its input ends.
"""

import json
import os
import signal
import sys
import time
from typing import TypedDict

from ..determinism.reexec import reexec
from ..errors import SimError
from ..scenario.format.parse import parse
from ..scenario.format.tables import Scenario
from ..scenario.run import Progress, Run
from .execute import versions
from .sweepfile import SeedLine, VerdictLine

STRICT = "--strict"


class Task(TypedDict):
    """A scenario in the form that another process receives."""

    text: str
    hosts: int | None
    files: dict[str, str]


def task_of(scenario: Scenario, hosts: int | None) -> Task:
    """Return a scenario in the form that another process receives."""
    return {"text": scenario.text, "hosts": hosts, "files": scenario.files}


def run_seed(task: Task, seed: int, progress: Progress | None = None) -> SeedLine:
    """Return the line of a seed: figures and verdicts, or why there are none."""
    began = time.perf_counter()
    try:
        scenario = parse(task["text"], hosts=task["hosts"], beside=task["files"].__getitem__)
        result = Run(scenario, seed, clock=time.perf_counter, progress=progress).go()
    except (SimError, OSError, ExceptionGroup) as error:
        real = time.perf_counter() - began
        return {"seed": seed, "met": False, "ended": f"failed: {error!r}", "real": real}
    verdicts: list[VerdictLine] = [
        {"text": item.text, "met": item.met, "found": item.found, "line": item.line,
         "shown": item.shown}
        for item in result.verdicts
    ]  # fmt: skip
    return {
        "seed": result.seed, "ended": result.ended, "virtual": result.virtual, "real": result.real,
        "digest": result.digest, "records": result.records, "metrics": result.metrics,
        "met": result.met, "verdicts": verdicts,
    }  # fmt: skip


def run_on_node(task: Task, seed: int) -> SeedLine:
    """Run a seed as `run_seed` does, and add this node's versions."""
    line = run_seed(task, seed)
    line["versions"] = versions()
    return line


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

    task: Task = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        answer = run_seed(task, int(line), with_parent)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
