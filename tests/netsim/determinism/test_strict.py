"""Inside a host the real machine does not show; outside, and afterwards, it does."""

import _thread
import datetime
import gc
import importlib
import logging
import os
import random
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from os import urandom as early_urandom
from pathlib import Path
from time import monotonic as early_monotonic
from time import time as early_time
from typing import Any

import numpy.random
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

from shoal.netsim import defaults
from shoal.netsim.errors import NotSimulated
from shoal.netsim.host import CURRENT
from shoal.netsim.world import World


def in_host(function: Callable[[], Any], *, seed: int = 1, name: str = "alice") -> Any:
    """Return the result of `function` run as code of a host, one virtual second after the start."""
    world = World(seed)
    host = world.host(name)

    async def program() -> Any:
        result = function()
        return await result if isinstance(result, Awaitable) else result

    async def main() -> Any:
        await trio.sleep(1)
        return await host.run(program)

    return world.run(main)


WALL = defaults.EPOCH + 1


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        (lambda: time.time(), WALL),
        (lambda: time.time_ns(), WALL * 10**9),
        (lambda: time.monotonic(), 1.0),
        (lambda: time.monotonic_ns(), 10**9),
        (lambda: time.perf_counter(), 1.0),
        (lambda: time.process_time(), 1.0),
        (lambda: time.clock_gettime(time.CLOCK_REALTIME), WALL),
        (lambda: time.clock_gettime(time.CLOCK_MONOTONIC), 1.0),
        (lambda: time.gmtime()[:6], time.gmtime(WALL)[:6]),
        (lambda: time.gmtime(0)[:3], (1970, 1, 1)),
        (lambda: time.ctime(), time.ctime(WALL)),
        (lambda: time.strftime("%H:%M:%S"), time.strftime("%H:%M:%S", time.localtime(WALL))),
        (lambda: datetime.datetime.now(datetime.UTC).timestamp(), WALL),
        (lambda: datetime.datetime.now().timestamp(), WALL),
        (lambda: type(datetime.datetime.now()), datetime.datetime),
        (lambda: datetime.date.today(), datetime.date.fromtimestamp(WALL)),
        (lambda: logging.makeLogRecord({}).created, WALL),
        (lambda: early_time(), WALL),
        (lambda: early_monotonic(), 1.0),
    ],
)
def test_clocks(clock: Callable[[], Any], expected: Any) -> None:
    before = clock()
    assert in_host(clock) == expected
    if before != expected:  # outside, the real one again
        assert clock() != expected


def test_each_host_has_a_wall_clock_of_its_own() -> None:
    world = World()
    alice, bob = world.host("alice"), world.host("bob")
    alice.wall_offset, alice.wall_drift = -3600.0, 1e-3

    async def read() -> float:
        return time.time()

    async def main() -> None:
        await trio.sleep(100)
        assert await bob.run(read) == defaults.EPOCH + 100
        assert await alice.run(read) == pytest.approx(defaults.EPOCH + 100 - 3600 + 0.1)
        assert abs(time.time() - defaults.EPOCH) > 1000  # the test itself is outside every host

    world.run(main)


DRAWS: list[Callable[[], Any]] = [
    lambda: os.urandom(16),
    lambda: os.getrandom(16),
    lambda: early_urandom(16),
    lambda: secrets.token_hex(8),
    lambda: secrets.randbelow(2**64),
    lambda: uuid.uuid4(),
    lambda: random.random(),
    lambda: random.Random().random(),
    lambda: random.SystemRandom().random(),
    lambda: random.shuffle(items := list(range(99))) or items,
    lambda: numpy.random.default_rng().random(),
    lambda: ed25519.Ed25519PrivateKey.generate().private_bytes_raw(),
    lambda: x25519.X25519PrivateKey.generate().private_bytes_raw(),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_randomness(draw: Callable[[], Any]) -> None:
    """Randomness is the host's own: the same for a seed, different for each seed and each host."""
    assert in_host(draw) == in_host(draw)
    assert in_host(draw, seed=2) != in_host(draw)
    assert in_host(draw, name="bob") != in_host(draw)
    assert draw() != draw()


@pytest.mark.parametrize(
    ("reach", "what"),
    [
        (lambda: socket.socket(), "a real socket"),
        (lambda: socket.socketpair(), "a real socket"),
        (lambda: socket.create_connection(("127.0.0.1", 1)), "a real socket"),
        (lambda: trio.socket.socketpair(), "a real socket pair"),
        (lambda: trio.socket.fromfd(0, 1, 1), "a real socket"),
        (lambda: threading.Thread(target=print).start(), "a thread"),
        (lambda: _thread.start_new_thread(print, ()), "a thread"),
        (lambda: trio.to_thread.run_sync(print), "a thread"),
        (lambda: trio.Path("/").exists(), "a thread"),
        (lambda: trio.run_process(["true"]), "a child process"),  # noqa: ASYNC105
        (lambda: trio.lowlevel.open_process(["true"]), "a child process"),  # noqa: ASYNC105
        (lambda: subprocess.run(["true"]), "a child process"),
        (lambda: os.fork(), "a child process"),
        (lambda: os.posix_spawn("/bin/true", ["true"], {}), "a child process"),
        (lambda: os.system("true"), "a child process"),
        (lambda: time.sleep(0), "`time.sleep`"),
        (lambda: uuid.uuid1(), "`uuid.uuid1`"),
        (lambda: Path("made").write_text("here"), "writing to the real disk"),
        (lambda: os.open("made", os.O_CREAT | os.O_WRONLY), "writing to the real disk"),
        (lambda: tempfile.mkstemp(), "writing to the real disk"),
        (lambda: os.mkdir("made"), "writing to the real disk"),
        (lambda: os.rename("made", "other"), "writing to the real disk"),
        (lambda: os.remove("made"), "writing to the real disk"),
        (lambda: os.rmdir("made"), "writing to the real disk"),
        (lambda: os.symlink("/", "made"), "writing to the real disk"),
        (lambda: os.link("made", "other"), "writing to the real disk"),
        (lambda: os.truncate("made", 0), "writing to the real disk"),
        (lambda: os.chmod("made", 0), "writing to the real disk"),
        (lambda: sqlite3.connect(":memory:"), "a real file"),
        (lambda: os.kill(os.getpid(), 0), "a signal to a process"),
        (lambda: socket.getaddrinfo("localhost", 80), "the machine's resolver"),
        (lambda: socket.gethostbyname("localhost"), "the machine's resolver"),
    ],
)
def test_tripwires(reach: Callable[[], Any], what: str) -> None:
    with pytest.raises(NotSimulated, match=f"alice: {what}"):
        in_host(reach)


def test_a_host_may_import_a_module_that_is_not_compiled_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "never_compiled.py").write_text("value = 7")
    assert in_host(lambda: importlib.import_module("never_compiled").value) == 7
    assert list(tmp_path.glob("__pycache__/never_compiled.*"))


def test_the_machine_s_name_is_the_host_s() -> None:
    assert in_host(lambda: socket.gethostname()) == "alice" != socket.gethostname()


def test_a_thread_is_refused_outside_hosts_too() -> None:
    """Virtual time would run on without it."""
    with pytest.raises(NotSimulated, match="outside every host: a thread"):
        World().run(trio.to_thread.run_sync, print)


@pytest.mark.parametrize("failing", [False, True])
def test_all_replacements_are_undone(failing: bool) -> None:
    kept = dict(vars(time)), dict(vars(random)), dict(vars(os)), dict(vars(uuid))
    seen = gc.isenabled(), signal.getsignal(signal.SIGALRM), random.getstate()

    async def main() -> None:
        assert not gc.isenabled()
        if failing:
            raise KeyError("x")

    if failing:
        with pytest.raises(KeyError):
            World().run(main)
    else:
        World().run(main)
    assert kept == (vars(time), vars(random), vars(os), vars(uuid))
    assert seen == (gc.isenabled(), signal.getsignal(signal.SIGALRM), random.getstate())
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    thread.join()
    assert abs(datetime.datetime.now().timestamp() - time.time()) < 5
    socket.socket().close()


def test_system_tasks_stay_with_their_host() -> None:
    world = World()
    host = world.host("alice")
    names: list[str] = []

    async def task() -> None:
        names.append(CURRENT.get().name)

    async def program() -> None:
        trio.lowlevel.spawn_system_task(task)
        await trio.sleep(1)

    world.run(host.run, program)
    assert names == ["alice"]


def test_system_tasks_end_with_their_program() -> None:
    world = World()
    host = world.host("alice")
    ended: list[float] = []

    async def task() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(trio.current_time())

    class Program:
        async def run(self, host: Any, *, task_status: Any) -> None:
            trio.lowlevel.spawn_system_task(task)
            task_status.started()
            await trio.sleep_forever()

    async def main() -> None:
        await host.start(Program())
        await trio.sleep(2)
        await host.crash()
        await trio.sleep(1)

    world.run(main)
    assert ended == [2.0]
