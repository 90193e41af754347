"""Many seeds of a scenario: on the cores of this machine, or on a Ray cluster.

`sweep.jsonl` gets a line for each seed as it ends, after a first line that says of what; a sweep
that was cut short goes on where it stopped.
"""

import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import render
from .errors import CommandError
from .simrun import versions

if TYPE_CHECKING:
    from ..netsim.scenario.tables import Scenario

STRICT = "--strict"  # of a worker
LINES, SUMMARY = "sweep.jsonl", "sweep.json"
Line = dict[str, Any]


class SweepFile:
    """The lines of a sweep on disk."""

    def __init__(self, folder: Path, scenario: "Scenario", hosts: int | None) -> None:
        self.path = folder / LINES
        digest = hashlib.sha256(scenario.text.encode()).hexdigest()
        self._head = {"scenario": digest, "hosts": hosts, "versions": versions()}
        folder.mkdir(parents=True, exist_ok=True)
        self.lines = self._read()

    def _read(self) -> dict[int, Line]:
        """What an earlier call has done; a line that was cut short is cut off."""
        if not self.path.exists():
            self.path.write_text(json.dumps(self._head) + "\n", encoding="utf-8")
            return {}
        whole, _, rest = self.path.read_text(encoding="utf-8").rpartition("\n")
        if rest:
            self.path.write_text(whole + "\n" if whole else "", encoding="utf-8")
        try:
            head, *lines = [json.loads(line) for line in whole.splitlines()] or [None]
            if head != self._head:
                raise CommandError(
                    "failed", f"`{self.path}` is of another scenario, or of another version",
                    hint="choose another folder with `--out DIR`, or delete that one",
                )  # fmt: skip
            return {line["seed"]: line for line in lines}
        except (ValueError, TypeError, KeyError):
            raise CommandError(
                "failed", f"`{self.path}` is damaged", hint="delete it to begin anew"
            ) from None

    def add(self, line: Line) -> None:
        """Keep a seed's line."""
        self.lines[line["seed"]] = line
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class _Worker:
    """A process that runs one seed after the other."""

    def __init__(self, scenario: "Scenario", hosts: int | None) -> None:
        self._task = json.dumps({"text": scenario.text, "hosts": hosts}) + "\n"
        self._args = ["-m", "shoal.cli.simworker", *([STRICT] if scenario.sim.strict else [])]
        self._process: subprocess.Popen[str] | None = None

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, *self._args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(self._task)
        return process

    def run(self, seed: int) -> Line:
        """The line of a seed; a process that dies under it is a line as well."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        if answer:
            line: Line = json.loads(answer)
            return line
        code = self._end(process)
        return {"seed": seed, "met": False, "ended": f"failed: its process ended with {code}"}

    def close(self) -> None:
        """End the process, in the middle of a seed if need be."""
        if self._process is not None:
            self._process.kill()  # who reads its answer sees their end

    def _end(self, process: "subprocess.Popen[str]") -> int:
        """What a process that has died ended with."""
        assert process.stdin is not None and process.stdout is not None
        self._process = None
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        return process.wait()

    def finish(self) -> None:
        """After the last seed: end the process and let go of its pipes."""
        if self._process is not None:
            self._process.kill()
            self._end(self._process)


def here(
    scenario: "Scenario", hosts: int | None, seeds: Sequence[int], jobs: int
) -> Iterator[Line]:
    """The lines of these seeds, as they end, from `jobs` processes of this machine."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in seeds:
        waiting.put(seed)
    done: queue.SimpleQueue[Line] = queue.SimpleQueue()
    stopped = threading.Event()

    def work(worker: _Worker) -> None:
        while not stopped.is_set():
            try:
                seed = waiting.get_nowait()
            except queue.Empty:
                return
            line = worker.run(seed)
            if not stopped.is_set():
                done.put(line)

    with ExitStack() as stack:
        workers = [_Worker(scenario, hosts) for _ in range(min(jobs, len(seeds)))]
        threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
        for worker, thread in zip(workers, threads, strict=True):
            stack.callback(worker.finish)
            stack.callback(thread.join)
            stack.callback(worker.close)
            thread.start()
        stack.callback(stopped.set)
        for _ in seeds:
            yield done.get()


def on_ray(address: str, text: str, hosts: int | None, seeds: Sequence[int]) -> Iterator[Line]:
    """The lines of these seeds, as they end, from a Ray cluster that has shoal installed."""
    import importlib

    from .simworker import run_seed

    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise CommandError(
            "cannot-simulate", "ray is not installed", hint="`pip install 'shoal[ray]'`"
        ) from None
    try:
        ray.init(address=address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CommandError(
            "cannot-simulate", f"no Ray cluster answers at `{address}`: {error}",
            hint="`ray start --head` starts one here; its address is then `auto`",
        ) from None  # fmt: skip
    try:
        task = ray.remote(run_seed)
        pending = [task.remote(text, hosts, seed) for seed in seeds]
        while pending:
            done, pending = ray.wait(pending, num_returns=1)
            yield from ray.get(done)
    finally:
        ray.shutdown()


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """Quantiles of each figure over the seeds, and the seeds that failed."""
    from ..netsim.scenario.metrics import summary as statistics

    reasons = sorted({key for line in lines for key in line.get("metrics", {}).get("drops", {})})
    values: dict[str, list[float]] = {}
    for line in lines:
        for name, value in _flat(line.get("metrics", {}), reasons):
            values.setdefault(name, []).append(value)
    failed = sorted(line["seed"] for line in lines if not line["met"])
    keys = ("count", "min", "p5", "p50", "p95", "max")
    return {
        "seeds": len(lines),
        "failed": failed,
        "metrics": {
            name: {key: found[key] for key in keys}
            for name, found in ((name, statistics(items)) for name, items in values.items())
        },
    }


def _flat(metrics: dict[str, Any], reasons: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Figures by name; of distributions the median and the 95th percentile."""
    for name, value in metrics.items():
        if name == "drops":
            yield from ((f"drops.{reason}", value.get(reason, 0)) for reason in reasons)
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", value[key]) for key in ("p50", "p95") if key in value)
        elif value is not None:
            yield name, value


def print_line(line: Line, done: int, total: int, say: Callable[[str], None]) -> None:
    """A seed has ended."""
    failed = [item["text"] for item in line.get("verdicts", ()) if not item["met"]]
    why = "" if line["ended"] == "done" else render.safe(line["ended"], 200)
    word = "met" if line["met"] else "failed"
    real = f"{line['real']:.1f} s" if "real" in line else ""
    say("  ".join(filter(None, (f"{done}/{total}", f"seed {line['seed']}", word, real,
                                ", ".join(failed), why))))  # fmt: skip


def print_summary(found: dict[str, Any]) -> str:
    """The summary for a person."""
    rows = [
        [name, *(f"{values[key]:.4g}" for key in ("p5", "p50", "p95"))]
        for name, values in found["metrics"].items()
    ]
    text = render.table(["over the seeds", "p5", "p50", "p95"], rows)
    met = found["seeds"] - len(found["failed"])
    text += f"\n\n{met} of {found['seeds']} seeds met every expectation"
    if found["failed"]:
        text += f"; failed: {' '.join(map(str, found['failed'][:50]))}"
    return text
