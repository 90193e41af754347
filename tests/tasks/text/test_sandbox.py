"""Calls that succeed and fail in a confined process."""

import json
import platform
import struct
import subprocess
import sys

import pytest

from shoal.tasks.text import sandbox

LINUX = sys.platform.startswith("linux") and platform.machine() in ("x86_64", "aarch64")
needs_linux = pytest.mark.skipif(not LINUX, reason="needs Linux on x86-64 or AArch64")

DEEDS = """
import ctypes, json, os, resource, signal, socket, sys, threading
from shoal.tasks.text.sandbox import confine

libc = ctypes.CDLL(None, use_errno=True)
lacking = confine() if sys.argv[1] == "confined" else "left out"
refused = {}


def attempt(name, deed):
    try:
        deed()
        refused[name] = False
    except OSError as error:
        refused[name] = error.errno == 1


def fork():
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def ptrace():  # PTRACE_ATTACH, to a process that does not exist
    if libc.ptrace(16, 0x3FFFFF, 0, 0):
        raise OSError(ctypes.get_errno(), "")


def remains(make, control):  # what would outlive the process
    if (made := make()) < 0:
        raise OSError(ctypes.get_errno(), "")
    control(made, 0, None)  # IPC_RMID


def thread():
    done = []
    one = threading.Thread(target=done.append, args=(1,))
    one.start()
    one.join()
    assert done


attempt("socket", lambda: socket.socket().close())
attempt("pair", lambda: [each.close() for each in socket.socketpair()])
attempt("read", lambda: open("/dev/null", "rb").close())
attempt("write", lambda: open("/dev/null", "wb").close())
attempt("unlink", lambda: os.unlink("/does/not/exist"))
attempt("fork", fork)
attempt("kill", lambda: os.kill(os.getppid(), 0))
attempt("limits of another", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE))
attempt("own limits", lambda: resource.getrlimit(resource.RLIMIT_NOFILE))
attempt("thread", thread)
attempt("signal to itself", lambda: signal.raise_signal(signal.SIGURG))
attempt("ptrace", ptrace)
attempt("times", lambda: os.utime("/does/not/exist", (1, 1)))
attempt("attributes", lambda: os.setxattr("/does/not/exist", "user.x", b""))
attempt("shared memory", lambda: remains(lambda: libc.shmget(0, 4096, 0o600), libc.shmctl))
attempt("queue", lambda: remains(lambda: libc.msgget(0, 0o600), libc.msgctl))
print(json.dumps([lacking, refused]), flush=True)
os.execv("/bin/echo", ["echo", "executed"])
"""


def deeds(how: str) -> tuple[str, dict[str, bool], bool]:
    """Return why there is no filter, the refused deeds, and whether a program could be started."""
    done = subprocess.run(
        [sys.executable, "-c", DEEDS, how], check=False, capture_output=True, text=True, timeout=60
    )
    first, *rest = done.stdout.splitlines()
    lacking, refused = json.loads(first)
    return lacking, refused, rest == ["executed"]


@needs_linux
def test_a_confined_process_may_compute_and_no_more() -> None:
    lacking, refused, executed = deeds("confined")
    assert lacking == "" and not executed
    allowed = {"own limits", "thread", "signal to itself"}
    assert refused == {name: name not in allowed for name in refused}


@needs_linux
def test_without_a_filter_everything_is_allowed() -> None:
    _, refused, executed = deeds("free")
    assert executed and not any(refused.values())


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_of_the_program_lands_in_it(machine: str) -> None:
    code = list(struct.iter_unpack("=HBBI", sandbox.program(machine, 7)))
    assert len(code) < 4096  # the kernel's bound
    ends = [
        at + 1 + max(then, otherwise)
        for at, (kind, then, otherwise, _) in enumerate(code[:-1])
        if kind != 0x06
    ]
    assert max(ends) < len(code)
    assert code[-1] == (0x06, 0, 0, 0x7FFF0000)


@pytest.mark.parametrize(
    ("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64"), ("win32", "AMD64")]
)
def test_other_platforms_report_that_there_is_no_filter(
    system: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert "no system call filter" in sandbox.confine()
