"""Network namespaces without names, so that nothing can be left behind.

A namespace lives as long as this process has its descriptor or a process runs in it. When this
process ends, by any signal, the kernel ends the processes inside and removes the namespace with its
devices, addresses, rules and conntrack tables. The caller's own namespace is never changed; another
process (`broker.py`) does the work inside.

    with Namespaces() as spaces:
        router = spaces.add("router")
        router.ip("link set lo up")
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

from ..errors import SimError

TOOLS = {"ip": "iproute2", "nft": "nftables", "nsenter": "util-linux", "setpriv": "util-linux"}
"""Programs that are needed, and the Debian packages that contain them."""
BROKER = Path(__file__).with_name("broker.py")
MESSAGE = 65536
"""Bytes of the broker's longest reply."""
TRIAL = "table ip trial {\nchain post {\ntype nat hook postrouting priority 100\n}\n}\n"


class KernelRefused(SimError):
    """The kernel, or a tool that talks to it, did not do what was asked."""


def hint_of(error: KernelRefused) -> str:
    """Return what a person can do about it."""
    if "needs root" in error.message or "not permitted" in error.message:
        return "run it as root, or in a container with NET_ADMIN and SYS_ADMIN"
    return "the simulated backend (`--backend sim`) works without the kernel"


class Namespace:
    """One namespace: a computer, a router or a switch. `path` opens it, from any process."""

    def __init__(self, spaces: "Namespaces", name: str, descriptor: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self._spaces = spaces

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def ip(self, *lines: str) -> None:
        """Run commands of `ip`, all in one batch. Raises KernelRefused."""
        self._feed(["ip", "-batch", "-"], "\n".join(lines) + "\n")

    def nft(self, rules: str) -> None:
        """Load a file of nftables rules, all or none of it. Raises KernelRefused."""
        self._feed(["nft", "-f", "-"], rules)

    def _feed(self, command: Sequence[str], text: str) -> None:
        done = subprocess.run(
            self.entering(command), input=text, text=True, capture_output=True, check=False
        )
        if done.returncode:
            said = done.stderr.strip() or f"exit {done.returncode}"
            raise KernelRefused(f"`{' '.join(command)}` in {self.name}: {said}\n{text}")

    def entering(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command in the namespace. The kernel kills the
        command when the thread that started it ends.
        """
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={self.path}", *command]

    def read(self, command: Sequence[str]) -> str:
        """Return what a command prints in this namespace. Raises KernelRefused."""
        done = subprocess.run(self.entering(command), text=True, capture_output=True, check=False)
        if done.returncode:
            raise KernelRefused(f"`{' '.join(command)}` in {self.name}: {done.stderr.strip()}")
        return done.stdout

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a process in the namespace. The caller has to end it.

        If the caller ends first, the kernel ends the process.
        """
        return subprocess.Popen(self.entering(command), **options)

    def socket(
        self,
        family: int = socket.AF_INET,
        kind: int = socket.SOCK_DGRAM,
        proto: int = 0,
    ) -> socket.socket:
        """Return a socket of this namespace, for use in this process."""
        made = self._ask(op="socket", family=int(family), kind=int(kind), proto=proto)
        assert made is not None
        return socket.socket(fileno=made)

    def tun(self, name: str) -> int:
        """Create a TUN device; return its non-blocking descriptor."""
        made = self._ask(op="tun", name=name)
        assert made is not None
        return made

    def sysctl(self, settings: Mapping[str, int]) -> None:
        """Set kernel settings of this namespace, by their dotted names."""
        self._ask(op="sysctl", settings=dict(settings))

    def _ask(self, **request: object) -> int | None:
        return self._spaces.ask(request, self)


class Namespaces:
    """All namespaces of one run, and the broker; a context manager."""

    def __init__(self) -> None:
        self._all: list[Namespace] = []
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._broker = subprocess.Popen(
                [sys.executable, "-I", "-S", str(BROKER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, name: str) -> Namespace:
        """Create a namespace with only its loopback; `name` is for messages only."""
        made = self.ask({"op": "new"})
        assert made is not None
        space = Namespace(self, name, made)
        self._all.append(space)
        space.ip("link set lo up")
        return space

    def connect(self, a: Namespace, device: str, b: Namespace, other: str) -> None:
        """Connect `device` in `a` and `other` in `b` with a cable (veth); both are up."""
        a.ip(
            f"link add {device} type veth peer name {other} netns {b.path}", f"link set {device} up"
        )
        b.ip(f"link set {other} up")

    def ask(self, request: Mapping[str, object], inside: Namespace | None = None) -> int | None:
        """Send the broker a request; return the descriptor that it made. Raises KernelRefused."""
        carried = [] if inside is None else [inside.descriptor]
        data, made = b"", list[int]()
        with suppress(ConnectionError):
            socket.send_fds(self._channel, [json.dumps(request).encode()], carried)
            data, made, _, _ = socket.recv_fds(self._channel, MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise KernelRefused("the broker process has ended")
        answer = json.loads(data)
        if "errno" in answer:
            where = f" in {inside.name}" if inside is not None else ""
            raise KernelRefused(f"{request['op']}{where}: {answer['message']}")
        return made[0] if made else None

    def close(self) -> None:
        """Release everything. Processes inside must have been ended before."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # even if a fork has the socket too
        self._channel.close()
        self._broker.wait()
        for space in self._all:
            os.close(space.descriptor)
        self._all.clear()


@cache
def available() -> str | None:
    """Return why this machine cannot run the kernel backend; None if it can."""
    if not sys.platform.startswith("linux"):
        return "the kernel backend needs Linux"
    if os.geteuid() != 0:
        return "the kernel backend needs root (network namespaces, nftables)"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"the kernel backend needs `{tool}` (on Debian: apt-get install {package})"
    return _tried()


def _tried() -> str | None:
    try:
        with Namespaces() as spaces:
            space = spaces.add("trial")
            os.close(space.tun("wan"))
            space.nft(TRIAL)
    except (KernelRefused, OSError) as error:
        return f"this kernel does not permit it: {str(error).splitlines()[0]}"
    return None
