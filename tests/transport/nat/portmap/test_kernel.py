"""The mapper and a router that homes really have: miniupnpd, in namespaces that the test makes.

Skipped, with the reason, where there is no root, no miniupnpd (Debian: `apt-get install
miniupnpd-nftables nftables`), or no such kernel. In real time.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.netsim.netns.namespaces import KernelRefused, Namespace, Namespaces

NODE = Path(__file__).with_name("kernel_node.py")
ROOT = Path(__file__).parents[4]
RULES = """
table inet filter {
    chain forward { type filter hook forward priority 0; policy accept; jump miniupnpd; }
    chain miniupnpd { }
    chain prerouting { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }
    chain postrouting { type nat hook postrouting priority 100; jump postrouting_miniupnpd;
        oifname "wan" masquerade; }
    chain prerouting_miniupnpd { }
    chain postrouting_miniupnpd { }
}
"""
SETTINGS = """
ext_ifname=wan
listening_ip=lan
http_port={http_port}
enable_natpmp={pmp}
enable_upnp={upnp}
secure_mode=yes
system_uptime=no
min_lifetime=120
max_lifetime=86400
lease_file={folder}/leases
uuid=5a34308c-1a2c-4546-ac5d-000000000001
{force}
allow 1024-65535 10.9.1.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""

pytestmark = pytest.mark.ci


@dataclass
class Street:
    """A computer behind a router, and one outside."""

    inside: Namespace
    router: Namespace
    outside: Namespace


@pytest.fixture
def street() -> Iterator[Street]:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("network namespaces need root on Linux")
    for tool in ("ip", "nsenter", "setpriv", "nft", "miniupnpd"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no `{tool}`")
    try:
        with Namespaces() as spaces:
            made = Street(*(spaces.add(name) for name in ("inside", "router", "outside")))
            spaces.connect(made.inside, "eth0", made.router, "lan")
            spaces.connect(made.outside, "eth0", made.router, "wan")
            made.inside.ip("addr add 10.9.1.2/24 dev eth0", "route add default via 10.9.1.1")
            made.router.ip("addr add 10.9.1.1/24 dev lan", "addr add 11.0.0.1/24 dev wan")
            made.outside.ip("addr add 11.0.0.2/24 dev eth0")
            made.router.sysctl({"net.ipv4.ip_forward": 1})
            made.router.nft(RULES)
            yield made
    except KernelRefused as error:
        pytest.skip(f"this kernel does not let us: {error}")


@contextmanager
def miniupnpd(street: Street, folder: Path, protocols: str, *, version: int = 2) -> Iterator[None]:
    upnp, pmp = ("yes" if name in protocols else "no" for name in ("upnp", "p"))
    if protocols == "upnp":
        pmp = "no"
    settings = folder / "miniupnpd.conf"
    force = "force_igd_desc_v1=yes" if version == 1 else ""
    text = SETTINGS.format(folder=folder, upnp=upnp, pmp=pmp, http_port=5555, force=force)
    settings.write_text(text)
    (folder / "leases").touch()
    command = ["miniupnpd", "-d", "-f", str(settings), "-P", str(folder / "pid")]
    with (folder / "log").open("wb") as log:
        daemon = street.router.start(command, stdout=log, stderr=log)
        try:
            time.sleep(0.7)
            assert daemon.poll() is None, (folder / "log").read_text()
            yield
        finally:
            daemon.terminate()
            daemon.wait(10)


@contextmanager
def node(street: Street, protocols: str, seconds: float) -> "Iterator[subprocess.Popen[bytes]]":
    """The mapper inside, ended with the block."""
    command = [sys.executable, str(NODE), protocols, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with street.inside.start(command, stdout=subprocess.PIPE, env=environment) as made:
        try:
            yield made
        finally:
            made.kill()


def calls(street: Street, port: int) -> bool:
    """Return whether a host outside can connect."""
    with street.outside.socket(kind=socket.SOCK_STREAM) as sock:
        sock.settimeout(2)
        try:
            sock.connect(("11.0.0.1", port))
        except OSError:
            return False
        return True


def rest(mapper: "subprocess.Popen[bytes]") -> list[Any]:
    """What else it prints."""
    return [json.loads(line) for line in mapper.communicate(timeout=30)[0].splitlines()]


def rules(street: Street) -> str:
    return street.router.read(["nft", "list", "ruleset"])


@pytest.mark.parametrize(
    ("protocol", "version"), [("pcp", 2), ("nat-pmp", 2), ("upnp", 1), ("upnp", 2)]
)
def test_ports_open_and_close(street: Street, tmp_path: Path, protocol: str, version: int) -> None:
    served = "upnp" if protocol == "upnp" else "pmp"
    with miniupnpd(street, tmp_path, served, version=version):
        with node(street, protocol, 8.0) as mapper:
            assert mapper.stdout is not None
            said = json.loads(mapper.stdout.readline())
            assert said["mapping"] == ["11.0.0.1", 4001, 4001, protocol]
            assert 3500 < said["seconds"] <= 3600
            assert calls(street, 4001)
            assert "dport 4001 dnat ip to 10.9.1.2:4001" in rules(street)
            assert rest(mapper) == [
                {"accepted": "11.0.0.2"},
                {"answers": {protocol: "answers and maps the ports"}},
            ]
        time.sleep(0.3)
        assert "dport 4001" not in rules(street) and not calls(street, 4001)


def test_all_at_once(street: Street, tmp_path: Path) -> None:
    with miniupnpd(street, tmp_path, "upnp pmp"):
        with node(street, "pcp,nat-pmp,upnp", 6.0) as mapper:
            said = rest(mapper)
        assert said[0]["mapping"] == ["11.0.0.1", 4001, 4001, "pcp"] and len(said) == 2
        answers = said[1]["answers"]
        assert answers["nat-pmp"] == answers["upnp"] == "answers"


def test_without_the_daemon_nothing_opens(street: Street) -> None:
    """The twin."""
    with node(street, "pcp,nat-pmp,upnp", 5.0) as mapper:
        time.sleep(3)
        assert not calls(street, 4001)
        (said,) = rest(mapper)
    assert said["answers"]["pcp"] == said["answers"]["nat-pmp"] == "no answer"
