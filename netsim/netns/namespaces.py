"""Network namespaces without names, which the kernel removes when this process ends.

A namespace exists as long as this process has its descriptor open or a process runs in it. When
this process ends, by whatever signal, the kernel ends the processes inside and removes the
namespace with its devices, addresses, rules and conntrack tables. This process never changes its
own namespace. Another process (`broker.py`) does the work inside.

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
"""Programs that are needed, with the Debian packages that contain them."""
BROKER = Path(__file__).with_name("broker.py")
MESSAGE = 65536
"""Maximum size of a reply of the broker, in bytes."""
# nftables rules that are loaded to test whether the kernel permits it.
TRIAL = "table ip trial {\nchain post {\ntype nat hook postrouting priority 100\n}\n}\n"


class KernelRefused(SimError):
    """The kernel, or a tool that controls it, refused a request."""


def hint_of(error: KernelRefused) -> str:
    """Return what the user can do about the error."""
    if "needs root" in error.message or "not permitted" in error.message:
        return "run it as root, or in a container with NET_ADMIN and SYS_ADMIN"
    return "the simulated backend (`--backend sim`) works without the kernel"


class Namespace:
    """One namespace: a computer, a router or a switch."""

    def __init__(self, spaces: "Namespaces", name: str, descriptor: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self._spaces = spaces

    @property
    def path(self) -> str:
        """Path with which any process can open the namespace."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def ip(self, *lines: str) -> None:
        """Execute commands of `ip` in one batch. Raises KernelRefused if one fails."""
        self._feed(["ip", "-batch", "-"], "\n".join(lines) + "\n")

    def nft(self, rules: str) -> None:
        """Load a file of nftables rules, either completely or not at all.

        Raises KernelRefused if the file is refused.
        """
        self._feed(["nft", "-f", "-"], rules)

    def _feed(self, command: Sequence[str], text: str) -> None:
        """Run a command in the namespace with `text` as its input.

        Raises KernelRefused if it fails.
        """
        done = subprocess.run(
            self.entering(command), input=text, text=True, capture_output=True, check=False
        )
        if done.returncode:
            said = done.stderr.strip() or f"exit {done.returncode}"
            raise KernelRefused(f"`{' '.join(command)}` in {self.name}: {said}\n{text}")

    def entering(self, command: Sequence[str]) -> list[str]:
        """Return a command line that runs `command` in the namespace.

        The kernel kills the process when the thread that started it ends.
        """
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={self.path}", *command]

    def read(self, command: Sequence[str]) -> str:
        """Return the output of a command that runs in the namespace.

        Raises KernelRefused if the command fails.
        """
        done = subprocess.run(self.entering(command), text=True, capture_output=True, check=False)
        if done.returncode:
            raise KernelRefused(f"`{' '.join(command)}` in {self.name}: {done.stderr.strip()}")
        return done.stdout

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a process in the namespace. The caller has to end the process.

        If the caller ends first, the kernel kills the process.
        """
        return subprocess.Popen(self.entering(command), **options)

    def socket(
        self,
        family: int = socket.AF_INET,
        kind: int = socket.SOCK_DGRAM,
        proto: int = 0,
    ) -> socket.socket:
        """Open a socket in this namespace, for use in this process."""
        made = self._ask(op="socket", family=int(family), kind=int(kind), proto=proto)
        assert made is not None
        return socket.socket(fileno=made)

    def tun(self, name: str) -> int:
        """Create a TUN device in this namespace. Return its non-blocking descriptor."""
        made = self._ask(op="tun", name=name)
        assert made is not None
        return made

    def sysctl(self, settings: Mapping[str, int]) -> None:
        """Set kernel settings of this namespace, given by their dotted names."""
        self._ask(op="sysctl", settings=dict(settings))

    def _ask(self, **request: object) -> int | None:
        """Send the broker a request for this namespace.

        Return the new descriptor, or None if the request creates none.
        """
        return self._spaces.ask(request, self)


class Namespaces:
    """All namespaces of one run, and the broker process.

    This class is a context manager, which removes them at its end.
    """

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
        """Create a namespace that has only a loopback device. `name` is used in messages only."""
        made = self.ask({"op": "new"})
        assert made is not None
        space = Namespace(self, name, made)
        self._all.append(space)
        space.ip("link set lo up")
        return space

    def connect(self, a: Namespace, device: str, b: Namespace, other: str) -> None:
        """Connect `device` in `a` and `other` in `b` with a virtual cable (veth), and bring both
        up.
        """
        a.ip(
            f"link add {device} type veth peer name {other} netns {b.path}", f"link set {device} up"
        )
        b.ip(f"link set {other} up")

    def ask(self, request: Mapping[str, object], inside: Namespace | None = None) -> int | None:
        """Send the broker a request for the namespace `inside`.

        Return the descriptor that the broker has created, if any. Raises KernelRefused if the
        request fails.
        """
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
        """End the broker and close all namespaces. All processes inside must have ended before."""
        with suppress(OSError):
            # A forked process may have the socket open, too; closing it here is then not enough.
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self._broker.wait()
        for space in self._all:
            os.close(space.descriptor)
        self._all.clear()


@cache
def available() -> str | None:
    """Return the reason why this machine does not support the kernel backend, or None if it
    does.
    """
    if not sys.platform.startswith("linux"):
        return "the kernel backend needs Linux"
    if os.geteuid() != 0:
        return "the kernel backend needs root (network namespaces, nftables)"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"the kernel backend needs `{tool}` (on Debian: apt-get install {package})"
    return _tried()


def _tried() -> str | None:
    """Try to create a namespace, a TUN device and nftables rules. Return the reason if the kernel
    refuses, otherwise None.
    """
    try:
        with Namespaces() as spaces:
            space = spaces.add("trial")
            os.close(space.tun("wan"))
            space.nft(TRIAL)
    except (KernelRefused, OSError) as error:
        return f"this kernel does not permit it: {str(error).splitlines()[0]}"
    return None
