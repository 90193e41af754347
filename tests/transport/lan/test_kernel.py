"""Multicast DNS on this machine's kernel, over cables between namespaces that the test makes.

Skipped, with the reason, where there is no root or no such kernel. In real time.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.netsim.netns.namespaces import KernelRefused, Namespace, Namespaces
from shoal.transport.identity import Identity

NODE = Path(__file__).with_name("kernel_node.py")
ROOT = Path(__file__).parents[3]
ALICE, BOB, CAROL = (Identity.from_seed(bytes([seed]) * 32).peer for seed in (1, 2, 3))

pytestmark = pytest.mark.ci


@pytest.fixture
def spaces() -> Iterator[Namespaces]:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("network namespaces need root on Linux")
    for tool in ("ip", "nsenter", "setpriv"):
        if shutil.which(tool) is None:
            pytest.skip(f"network namespaces need `{tool}`")
    try:
        with Namespaces() as made:
            yield made
    except KernelRefused as error:
        pytest.skip(f"this kernel does not let us: {error}")


def join(spaces: Namespaces, a: Namespace, b: Namespace, net: int, device: str = "eth0") -> None:
    """A cable: `a` gets 10.9.NET.1 on `device`, `b` 10.9.NET.2."""
    spaces.connect(a, device, b, "eth0")
    a.ip(f"addr add 10.9.{net}.1/24 dev {device}")
    b.ip(f"addr add 10.9.{net}.2/24 dev eth0")


def start(space: Namespace, seed: int, seconds: float = 2.0) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(NODE), str(seed), str(4000 + seed), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return space.start(command, stdout=subprocess.PIPE, env=environment)


def lines(process: "subprocess.Popen[bytes]") -> list[dict[str, object]]:
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def test_two_across_a_cable(spaces: Namespaces) -> None:
    a, b = spaces.add("a"), spaces.add("b")
    join(spaces, a, b, 1)
    first, second = start(a, 1), start(b, 2)
    assert lines(first) == [{"peer": BOB, "place": ["10.9.1.2", 4002]}, {"condition": None}]
    assert lines(second) == [{"peer": ALICE, "place": ["10.9.1.1", 4001]}, {"condition": None}]


def test_two_interfaces_get_copies_and_each_peer_is_told_of_once(spaces: Namespaces) -> None:
    a, b, c = (spaces.add(name) for name in "abc")
    join(spaces, a, b, 1, "eth1")
    join(spaces, a, c, 2, "eth2")
    both, left, right = start(a, 1), start(b, 2), start(c, 3)
    told = lines(both)
    found = sorted((each["peer"], each["place"]) for each in told[:-1])
    assert found == sorted([(BOB, ["10.9.1.2", 4002]), (CAROL, ["10.9.2.2", 4003])])
    assert lines(left)[:-1] == [{"peer": ALICE, "place": ["10.9.1.1", 4001]}]
    assert lines(right)[:-1] == [{"peer": ALICE, "place": ["10.9.2.1", 4001]}]


def test_two_of_one_machine(spaces: Namespaces) -> None:
    a, b = spaces.add("a"), spaces.add("b")
    join(spaces, a, b, 1)
    first, second = start(a, 1), start(a, 2)
    assert lines(first)[:-1] == [{"peer": BOB, "place": ["10.9.1.1", 4002]}]
    assert lines(second)[:-1] == [{"peer": ALICE, "place": ["10.9.1.1", 4001]}]


def test_where_the_port_is_taken_it_says_so(spaces: Namespaces) -> None:
    a, b = spaces.add("a"), spaces.add("b")
    join(spaces, a, b, 1)
    with a.socket() as taken:
        taken.bind(("0.0.0.0", 5353))
        (said,) = lines(start(a, 1, 1.0))
    assert "another program uses port 5353 exclusively" in str(said["condition"])


def test_another_program_of_the_port_loses_nothing(spaces: Namespaces) -> None:
    """A datagram to that program alone is not taken from it: we are bound to the group. The
    group's own come to both."""
    import socket

    a, b = spaces.add("a"), spaces.add("b")
    join(spaces, a, b, 1)
    with a.socket() as other, b.socket() as sender:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("0.0.0.0", 5353))
        member = socket.inet_aton("224.0.0.251") + socket.inet_aton("10.9.1.1")
        other.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        other.settimeout(5)
        node = start(a, 1, 2.0)
        heard = other.recv(2000)
        assert ALICE.encode() in heard
        for number in range(20):
            sender.sendto(b"unicast %d" % number, ("10.9.1.1", 5353))
        got = 0
        while got < 20:
            got += other.recv(2000).startswith(b"unicast")
        assert lines(node)[-1] == {"condition": None}


BROWSER = """
import sys, time
from zeroconf import ServiceBrowser, Zeroconf

class Listener:
    def add_service(self, zc, kind, name):
        info = zc.get_service_info(kind, name, timeout=1500)
        print(info.port, info.parsed_addresses(), sorted(info.properties), flush=True)
        sys.stdout.close()
    def update_service(self, *args): pass
    remove_service = update_service

zc = Zeroconf(interfaces=["10.9.1.2"])
ServiceBrowser(zc, "_shoal._udp.local.", Listener())
time.sleep(2.5)
zc.close()
"""


def test_another_implementation_finds_us(spaces: Namespaces) -> None:
    pytest.importorskip("zeroconf")
    a, b = spaces.add("a"), spaces.add("b")
    join(spaces, a, b, 1)
    node = start(a, 1, 4.0)
    browser = b.start([sys.executable, "-c", BROWSER], stdout=subprocess.PIPE)
    out, _ = browser.communicate(timeout=30)
    assert out.decode() == "4001 ['10.9.1.1'] [b'p', b's', b'v']\n"
    lines(node)
