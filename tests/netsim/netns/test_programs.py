"""Programs other than shoal in namespaces: they reach each other over delayed links, and all end
with the world."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from shoal.netsim.netns.backend import KernelWorld
from shoal.netsim.netns.namespaces import KernelRefused

ECHO = """
import socket
with socket.create_server(("0.0.0.0", 7)) as server:
    while True:
        peer, _ = server.accept()
        peer.sendall(peer.recv(9))
"""
ASK = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7)) as peer:
    began = time.monotonic()
    peer.sendall(b"?")
    assert peer.recv(9) == b"?"
    print(time.monotonic() - began)
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
INTERRUPTED = """
import sys, time
from shoal.netsim.netns.backend import KernelWorld
with KernelWorld() as world:
    world.host("a")
    program = world.run("a", "sleep", "600")
    print(program.pid, world.folder, flush=True)
    time.sleep(600)
"""


def runs(pid: int) -> bool:
    """Return whether a process runs. A process that ended but was not waited for does not run."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def answers(world: KernelWorld) -> str:
    """Return the output of a client on `a` that asks a server on `b` until it answers."""
    deadline = time.monotonic() + 20
    while True:
        try:
            where = world.hosts["b"].address
            return world.run("a", sys.executable, "-c", ASK, where).finish(20)
        except KernelRefused as error:
            if "ConnectionRefused" not in error.message or time.monotonic() > deadline:
                raise


def test_programs_talk_over_a_delayed_link(kernel: None) -> None:
    with KernelWorld(latency=0.02) as world:
        world.host("a")
        world.host("b")
        world.run("b", sys.executable, "-c", ECHO)
        assert 0.04 <= float(answers(world)) < 0.5


def test_a_program_that_fails_or_takes_too_long_is_quoted(kernel: None) -> None:
    with KernelWorld() as world:
        world.host("a")
        failing = world.run("a", "sh", "-c", "echo $WORD; exit 3", environment={"WORD": "oh"})
        with pytest.raises(KernelRefused, match=r"sh on a ended with status 3; it said: oh"):
            failing.finish(20)
        with pytest.raises(KernelRefused, match="ended with status 3"):
            failing.check_running()
        slow = world.run("a", "sleep", "600")
        slow.check_running()
        with pytest.raises(KernelRefused, match=r"sleep on a did not end within 0\.1 s"):
            slow.finish(0.1)
        assert not slow.running


def test_the_end_of_the_world_ends_stubborn_programs_and_their_children(kernel: None) -> None:
    with KernelWorld() as world:
        world.host("a")
        program = world.run("a", sys.executable, "-c", STUBBORN)
        world.wait(program.output, what="the child's id")
        pids = program.pid, int(program.output())
        assert all(map(runs, pids))
    assert not any(map(runs, pids))
    assert not world.folder.exists()


def test_ctrl_c_removes_everything(kernel: None) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        assert runs(int(pid))
        os.kill(process.pid, signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    assert not runs(int(pid))
    assert not Path(folder).exists()
