"""Namespaces: separate from the machine's own, and removed in every case."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.netsim.netns import namespaces
from shoal.netsim.netns.namespaces import KernelRefused, Namespaces, available


def own_network() -> str:
    """Return all that the machine's own namespace shows."""
    commands = ["ip -o link", "ip -o addr", "ip route", "nft list ruleset", "ip netns list"]
    shown = [subprocess.run(c.split(), capture_output=True, text=True).stdout for c in commands]
    return "\n".join([*shown, Path("/proc/sys/net/ipv4/ip_forward").read_text()])


@pytest.fixture
def spaces(kernel: None) -> Iterator[Namespaces]:
    with Namespaces() as made:
        yield made


def test_a_cable_carries_packets_between_two_namespaces(spaces: Namespaces) -> None:
    a, b = spaces.add("a"), spaces.add("b")
    spaces.connect(a, "eth0", b, "eth0")
    a.ip("addr add 10.1.0.1/24 dev eth0")
    b.ip("addr add 10.1.0.2/24 dev eth0")
    with a.socket() as one, b.socket() as two:
        two.bind(("10.1.0.2", 7))
        two.settimeout(2)
        one.sendto(b"hello", ("10.1.0.2", 7))
        assert two.recvfrom(10)[0] == b"hello"


def test_the_machine_s_own_namespace_is_unchanged(kernel: None) -> None:
    before = own_network()
    with Namespaces() as spaces:
        a = spaces.add("a")
        a.ip("link add br0 type bridge", "addr add 10.1.0.1/24 dev br0")
        a.nft(namespaces.TRIAL)
        a.sysctl({"net.ipv4.ip_forward": 1})
        os.close(a.tun("wan"))
        assert own_network() == before
        assert a.read(["sysctl", "-n", "net.ipv4.ip_forward"]) == "1\n"
    assert own_network() == before


def test_a_refusal_names_place_and_reason(spaces: Namespaces) -> None:
    space = spaces.add("router")
    with pytest.raises(KernelRefused, match=r"in router: .*eth7"):
        space.ip("link set eth7 up")
    with pytest.raises(KernelRefused, match="`nft -f -` in router"):
        space.nft("table ip {")
    with pytest.raises(KernelRefused, match=r"sysctl in router: .*No such file"):
        space.sysctl({"net.ipv4.no_such_thing": 1})
    with pytest.raises(KernelRefused, match="`ip link show eth7` in router"):
        space.read(["ip", "link", "show", "eth7"])


def test_the_broker_does_not_stay_in_a_namespace(spaces: Namespaces) -> None:
    """The broker returns to its own namespace after each request, also after a failed one."""
    a = spaces.add("a")
    with pytest.raises(KernelRefused):
        a.sysctl({"net.ipv4.no_such_thing": 1})
    b = spaces.add("b")
    assert os.stat(a.path).st_ino != os.stat(b.path).st_ino != os.stat("/proc/self/ns/net").st_ino


CHILD = """
import os, sys, time
from shoal.netsim.netns.namespaces import Namespaces
spaces = Namespaces()
space = spaces.add("a")
inside = space.start(["sleep", "600"])
print(os.stat(space.path).st_ino, flush=True)
time.sleep(600)
"""


def users(inode: int) -> list[int]:
    """Return the processes in a network namespace."""
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if path.stat().st_ino == inode:
                found.append(int(path.parts[2]))
        except OSError:
            continue  # it has just ended
    return found


def holders(inode: int) -> list[int]:
    """Return the processes with a descriptor of a network namespace."""
    found = []
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(path) == f"net:[{inode}]":
                found.append(int(path.parts[2]))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_process_that_was_killed(kernel: None, number: int) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        inode = int(child.stdout.readline())
        wait_until(lambda: bool(users(inode)))  # the twin: while it lives, there is one
        inside, held = set(users(inode)), set(holders(inode))
        assert child.pid in held
        child.send_signal(number)
    # Compare the processes, because the namespace's number may be reused by now.
    wait_until(lambda: not inside & set(users(inode)) and not held & set(holders(inode)))


def wait_until(true: object, seconds: float = 60.0) -> None:
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_ends_though_a_forked_process_has_its_descriptors(kernel: None) -> None:
    before = set(os.listdir("/proc/self/fd"))
    spaces = Namespaces()
    ours = {int(number) for number in os.listdir("/proc/self/fd") if number not in before}
    held = tuple(number for number in ours if os.path.exists(f"/proc/self/fd/{number}"))
    with subprocess.Popen(["sleep", "600"], pass_fds=held) as other:
        spaces.close()
        other.kill()


def test_an_exception_takes_everything_away(kernel: None) -> None:
    inode = 0
    with pytest.raises(ZeroDivisionError):
        with Namespaces() as spaces:
            inode = os.stat(spaces.add("a").path).st_ino
            assert os.getpid() in holders(inode)
            raise ZeroDivisionError
    assert os.getpid() not in holders(inode)  # the number may be reused by now


def test_it_reports_why_a_machine_is_unsuitable(monkeypatch: pytest.MonkeyPatch) -> None:
    why = available.__wrapped__
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why() == "the kernel backend needs Linux"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why() == "the kernel backend needs root (network namespaces, nftables)"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "nft" else tool)
    assert "needs `nft` (on Debian: apt-get install nftables)" in str(why())


def test_it_reports_what_the_kernel_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Namespaces, request: object, inside: object = None) -> int:
        raise KernelRefused("new: [Errno 1] Operation not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    monkeypatch.setattr(Namespaces, "ask", refuse)
    said = available.__wrapped__()
    assert said == "this kernel does not permit it: new: [Errno 1] Operation not permitted"
