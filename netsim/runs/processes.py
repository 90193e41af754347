"""Runs the seeds of a sweep in worker processes on this machine."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from ..scenario.format.tables import Scenario
from .sweepfile import SeedLine, failed_line
from .worker import STRICT, task_of

INTERRUPT_S: Final = 0.5  # most seconds until a sweep notices Ctrl-C


class WorkerProcess:
    """A process that runs one seed after another. `run` starts it for the first seed.

    An object belongs to one thread. Other threads may call only `close`.
    """

    def __init__(self, scenario: Scenario, hosts: int | None) -> None:
        self._task = json.dumps(task_of(scenario, hosts)) + "\n"
        self._args = [
            "-m",
            "shoal.netsim.runs.worker",
            *([STRICT] if scenario.sim.strict else []),
        ]
        self._process: subprocess.Popen[str] | None = None
        self._closed = False
        self._lock = threading.Lock()  # so that `close` cannot miss a process that is starting

    def _start(self) -> "subprocess.Popen[str]":
        """Start the process and send it the scenario."""
        process = subprocess.Popen(
            [sys.executable, *self._args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
            env={**os.environ, "PYTHONHASHSEED": "0"},
            process_group=0,  # Ctrl-C does not reach them; this process ends them instead
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(self._task)
        return process

    def run(self, seed: int) -> SeedLine:
        """Run a seed and return its result line.

        If the process dies, the line reports the failure.
        """
        with self._lock:
            if self._closed:
                return failed_line(seed, "interrupted")
            if self._process is None:
                try:
                    self._process = self._start()
                except OSError as error:
                    return failed_line(seed, f"failed: {error}")
            process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        if answer:
            line: SeedLine = json.loads(answer)
            return line
        code = self._end(process)
        return failed_line(seed, f"failed: its process ended with {code}")

    def close(self) -> None:
        """Kill the process, even in the middle of a seed. Later seeds are not run."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()  # the thread that waits for its reply then reads EOF

    def _end(self, process: "subprocess.Popen[str]") -> int:
        """Close the pipes of a process that has ended, and return its exit code."""
        assert process.stdin is not None and process.stdout is not None
        self._process = None
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        return process.wait()

    def finish(self) -> None:
        """Kill the process after the last seed, and close its pipes."""
        if self._process is not None:
            self._process.kill()
            self._end(self._process)


def on_this_machine(
    scenario: Scenario, hosts: int | None, seeds: Sequence[int], jobs: int
) -> Iterator[SeedLine]:
    """Run these seeds in `jobs` processes. Yield the result line of each run when it ends.

    `hosts` is the value of `--hosts`.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in seeds:
        waiting.put(seed)
    done: queue.SimpleQueue[SeedLine] = queue.SimpleQueue()
    stopped = threading.Event()

    def work(worker: WorkerProcess) -> None:
        """Run seeds with one worker until none are left."""
        while not stopped.is_set():
            try:
                seed = waiting.get_nowait()
            except queue.Empty:
                return
            line = worker.run(seed)
            if not stopped.is_set():
                done.put(line)

    def join(thread: threading.Thread) -> None:
        """Wait until a thread ends, if it was started."""
        if thread.ident is not None:  # it is None if Ctrl-C came before the thread started
            thread.join()

    with ExitStack() as stack:
        workers = [WorkerProcess(scenario, hosts) for _ in range(min(jobs, len(seeds)))]
        threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
        for worker, thread in zip(workers, threads, strict=True):
            stack.callback(worker.finish)
            stack.callback(join, thread)
            stack.callback(worker.close)
            stack.callback(stopped.set)
            thread.start()
        for _ in seeds:
            yield _next(done)


def _next(done: "queue.SimpleQueue[SeedLine]") -> SeedLine:
    """Wait for the next result line.

    Python handles a signal between two steps of the main thread. One that arrives while this thread
    hands the interpreter lock to another, just before it waits, does not end that wait. So it wakes
    up from time to time.
    """
    while True:
        with suppress(queue.Empty):
            return done.get(timeout=INTERRUPT_S)
