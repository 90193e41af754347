"""Worker process of a sweep.

It reads a scenario (one line of JSON) and then seeds, one on each line, from standard input. For
each seed it writes a result line of JSON. It ends when its input ends.
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
from ..scenario.run import Progress, ScenarioRun
from .execute import versions
from .sweepfile import SeedLine, VerdictLine

STRICT = "--strict"  # argument of the process for scenarios that are `strict`


class ScenarioTask(TypedDict):
    """A scenario in the form in which it is sent to another process."""

    text: str
    hosts: int | None
    files: dict[str, str]


def task_of(scenario: Scenario, hosts: int | None) -> ScenarioTask:
    """Convert a scenario to the form in which it is sent to another process.

    `hosts` is the value of `--hosts`.
    """
    return {"text": scenario.text, "hosts": hosts, "files": scenario.files}


def run_seed(task: ScenarioTask, seed: int, progress: Progress | None = None) -> SeedLine:
    """Run a seed and return its result line: figures and verdicts, or the reason for a failure."""
    began = time.perf_counter()
    try:
        scenario = parse(task["text"], hosts=task["hosts"], beside=task["files"].__getitem__)
        result = ScenarioRun(scenario, seed, clock=time.perf_counter, progress=progress).go()
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


def run_on_node(task: ScenarioTask, seed: int) -> SeedLine:
    """Run a seed on a node of a cluster. Return its result line, with the versions on that node."""
    line = run_seed(task, seed)
    line["versions"] = versions()
    return line


def main() -> None:
    """Run seeds and write their result lines, until the input ends."""
    if STRICT in sys.argv:
        reexec()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the input
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keeps other output from mixing with the replies
    parent = os.getppid()

    def with_parent(_: float) -> None:
        """Exit if the parent process has ended, because then no process reads the replies."""
        if os.getppid() != parent:
            os._exit(1)

    task: ScenarioTask = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        answer = run_seed(task, int(line), with_parent)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
