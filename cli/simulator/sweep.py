"""Runs many seeds of a scenario, on the cores of this machine or on a Ray cluster.

`sweep.jsonl` starts with a line that identifies the sweep and gets a line for each seed that ends.
An interrupted sweep continues where it stopped.
"""

import hashlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CommandError
from .folder import free, unwritable, write_text
from .run import versions

if TYPE_CHECKING:
    from ...netsim.scenario.format.tables import Scenario

KNOCK_S = 5.0
RAY_CLIENT_PORT = "10001"
STRICT = "--strict"  # of a worker
LINES, SUMMARY = "sweep.jsonl", "sweep.json"
Line = dict[str, Any]


class SweepFile:
    """The lines of a sweep on disk."""

    def __init__(
        self, folder: Path, scenario: "Scenario", hosts: int | None, *, force: bool = False
    ) -> None:
        """Open or create the file; `force` replaces another sweep. Raises CommandError."""
        self.path = folder / LINES
        digest = hashlib.sha256(scenario.text.encode())
        for name, text in sorted(scenario.files.items()):
            digest.update(f"\0{name}\0{text}".encode())
        self._head = {"scenario": digest.hexdigest(), "hosts": hosts, "versions": versions()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from None
        try:
            self.lines = self._read()
        except CommandError:
            if not force:
                raise
            self.lines = self._begin()

    def _begin(self) -> dict[int, Line]:
        write_text(self.path, json.dumps(self._head) + "\n")
        return {}

    def _read(self) -> dict[int, Line]:
        """Return the lines of earlier calls; drop an incomplete last line."""
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and (json.dumps(self._head) + "\n").encode().startswith(data):
            return self._begin()
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        try:
            head, *lines = [json.loads(line) for line in whole.splitlines()]
            if other := self._other(head):
                raise CommandError(
                    "failed", f"`{self.path}` holds another sweep: {other}",
                    hint=f"`--out {free(self.path.parent)}` keeps both, `--force` replaces it",
                )  # fmt: skip
            return {line["seed"]: line for line in lines}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise CommandError(
                "failed", f"`{self.path}` is damaged", hint="`--force` replaces it"
            ) from None

    def _other(self, head: dict[str, Any]) -> str:
        """Say how the sweep on disk differs; empty if it is this one."""
        if head["scenario"] != self._head["scenario"]:
            return "its scenario, or a file of that scenario, differs"
        if head["hosts"] != self._head["hosts"]:
            return f"its `--hosts` is {head['hosts'] or 'not given'}"
        for name, ours in versions().items():
            if head["versions"].get(name) != ours:
                return f"it ran with {name} {head['versions'].get(name)}, here is {ours}"
        return ""

    def add(self, line: Line) -> None:
        """Store the line of a seed. Raises CommandError."""
        self.lines[line["seed"]] = line
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise unwritable(self.path, error) from None


def lines_of(path: Path) -> list[Line]:
    """Read the lines of a sweep on disk, sorted by seed. Raises CommandError."""
    try:
        data = path.read_bytes()
        _, *lines = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
        return sorted({line["seed"]: line for line in lines}.values(), key=lambda one: one["seed"])
    except (ValueError, TypeError, KeyError):
        raise CommandError(
            "failed", f"`{path}` is damaged", hint="`shoal sim sweep FILE --force` makes it again"
        ) from None


def task_of(scenario: "Scenario", hosts: int | None) -> dict[str, Any]:
    """Return a scenario in the form that another process receives."""
    return {"text": scenario.text, "hosts": hosts, "files": scenario.files}


class _Worker:
    """A process that runs one seed after another."""

    def __init__(self, scenario: "Scenario", hosts: int | None) -> None:
        self._task = json.dumps(task_of(scenario, hosts)) + "\n"
        self._args = [
            "-m",
            "shoal.cli.simulator.worker",
            *([STRICT] if scenario.sim.strict else []),
        ]
        self._process: subprocess.Popen[str] | None = None
        self._closed = False
        self._lock = threading.Lock()  # serialises starting and ending the process

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, *self._args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
            env={**os.environ, "PYTHONHASHSEED": "0"},
            process_group=0,  # keeps Ctrl-C from them; this process ends them
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(self._task)
        return process

    def run(self, seed: int) -> Line:
        """Run a seed and return its line, also if the process dies meanwhile."""
        with self._lock:
            if self._closed:
                return {"seed": seed, "met": False, "ended": "interrupted"}
            if self._process is None:
                try:
                    self._process = self._start()
                except OSError as error:
                    return {"seed": seed, "met": False, "ended": f"failed: {error}"}
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
        """Kill the process, even in the middle of a seed."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()  # the thread that reads its reply sees the end of the stream

    def _end(self, process: "subprocess.Popen[str]") -> int:
        """Close the pipes of an ended process and return its exit code."""
        assert process.stdin is not None and process.stdout is not None
        self._process = None
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        return process.wait()

    def finish(self) -> None:
        """End the process after the last seed, and close its pipes."""
        if self._process is not None:
            self._process.kill()
            self._end(self._process)


def here(
    scenario: "Scenario", hosts: int | None, seeds: Sequence[int], jobs: int
) -> Iterator[Line]:
    """Yield the lines of these seeds as they end, from `jobs` processes of this machine."""
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

    def join(thread: threading.Thread) -> None:
        if thread.ident is not None:  # None: interrupted before the thread started
            thread.join()

    with ExitStack() as stack:
        workers = [_Worker(scenario, hosts) for _ in range(min(jobs, len(seeds)))]
        threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
        for worker, thread in zip(workers, threads, strict=True):
            stack.callback(worker.finish)
            stack.callback(join, thread)
            stack.callback(worker.close)
            stack.callback(stopped.set)
            thread.start()
        for _ in seeds:
            yield done.get()


def on_ray(
    address: str, scenario: "Scenario", hosts: int | None, seeds: Sequence[int]
) -> Iterator[Line]:
    """Yield the lines of these seeds as they end, from a Ray cluster that has shoal installed."""
    from .worker import run_on_node

    ray = _cluster(address)
    try:
        work = ray.remote(run_on_node)
        task = ray.put(task_of(scenario, hosts))
        pending = {work.remote(task, seed): seed for seed in seeds}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            yield _answer(ray, done, pending.pop(done))
    finally:
        ray.shutdown()


def _cluster(address: str) -> Any:
    """Return the connected `ray` module. Raises CommandError."""
    import importlib
    import logging
    import warnings

    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise CommandError(
            "cannot-simulate", "ray is not installed", hint="`pip install 'shoal[ray]'`"
        ) from None
    try:
        _knock(address)
        with warnings.catch_warnings(action="ignore"):
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise CommandError(
            "cannot-simulate", f"no Ray cluster answers at `{address}`: {error}",
            hint="`ray start --head` starts one here; its address is then `auto`",
        ) from None  # fmt: skip
    return ray


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at an address: Ray itself tries for more than a minute."""
    scheme, _, rest = address.rpartition("://")
    host, colon, port = rest.rpartition(":")
    if not colon and scheme == "ray":
        host, port = rest, RAY_CLIENT_PORT
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()


def _answer(ray: Any, done: Any, seed: int) -> Line:
    """Return a seed's line from a cluster, also if its node dies meanwhile."""
    try:
        line: Line = ray.get(done)
    except ray.exceptions.RayError as error:
        why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        return {"seed": seed, "met": False, "ended": f"failed: {why[0]}"}
    theirs = line.pop("versions")
    for name, ours in versions().items():
        if theirs.get(name) != ours:
            raise CommandError(
                "cannot-simulate",
                f"a node of the cluster has {name} {theirs.get(name)}, and this machine {ours}",
                hint="install the same everywhere: other versions may give other packets",
            )
    return line
