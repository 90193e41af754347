"""A small world of real daemons in network namespaces, with nftables gateways and links in user
space.

    with KernelWorld() as world:
        world.host("public", link=fibre)
        world.gateway("home", "linux-drop", link=dsl)
        world.host("alice", behind="home")
        world.start("public")
        world.start("alice", "--bootstrap", world.where("public"))
        world.wait(lambda: world.peers("alice"))

The methods are those of the simulator's `World`, but time is real.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

from ..errors import SimError
from ..network.link import LinkSpec
from .gateway import QUIET, KernelGateway
from .namespaces import KernelRefused, Namespace, Namespaces, available
from .programs import KernelProgram
from .switch import SwitchProcess

PORT: Final = 4001
"""Port of every daemon."""
STOP_S: Final = 12.0
"""Seconds that a daemon may take to stop before it is killed."""
ANSWER_S: Final = 10.0
"""Seconds to wait for a reply on the control socket."""
POLL_S: Final = 0.05
"""Seconds between two calls of a condition that `wait` waits for."""

Reply = dict[str, Any]
"""A JSON object from a daemon's control socket (docs/spec/control.md)."""

COMMAND: Final = ["-P", "-m", "shoal.cli.main", "node"]
COMMAND_WITHOUT_TORCH: Final = [
    "-P", "-c",
    "import sys; sys.modules['torch'] = None; from shoal.cli.main import main; main()", "node",
]  # fmt: skip
"""Command of a daemon without an engine, which starts faster because it does not import torch."""

# nftables rules that drop every packet that a namespace sends.
MUTE: Final = """table ip mute {
chain output {
type filter hook output priority filter; policy drop;
}
}
"""


class KernelHost:
    """One computer: a network namespace with an address, in which a daemon can run."""

    def __init__(self, name: str, space: Namespace, address: str, folder: Path) -> None:
        self.name = name
        self.space = space
        self.address = address
        self.data = folder / name
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1  # closing it makes the daemon stop
        self._mute = False  # whether the rules `MUTE` are loaded

    def start(self, args: tuple[str, ...], *, engine: bool) -> None:
        """Start `shoal node` with more arguments.

        Raises SimError if the host runs a daemon already. Without `engine`, the daemon finds no
        torch and computes nothing.
        """
        if self._process is not None:
            raise SimError(f"{self.name} already runs a daemon")
        if self._mute:
            self.space.nft("delete table ip mute\n")
            self._mute = False
        theirs, self._pipe = os.pipe()
        words = COMMAND if engine else COMMAND_WITHOUT_TORCH
        try:
            with self.log.open("ab") as log:
                self._process = self.space.start(
                    [sys.executable, *words, "--data", str(self.data), "--listen",
                     f"{self.address}:{PORT}", "--parent-fd", str(theirs), *args],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(theirs,),
                    start_new_session=True,
                )  # fmt: skip
        finally:
            os.close(theirs)

    def check_running(self) -> None:
        """Raise KernelRefused, with the daemon's output, unless the daemon is running."""
        if self._process is None or self._process.poll() is not None:
            said = self.log.read_text(errors="replace").strip() if self.log.exists() else "nothing"
            raise KernelRefused(f"the daemon on {self.name} has ended; it said: {said[-1000:]}")

    def ask(self, op: str, **more: object) -> Reply | None:
        """Send a request to the daemon's control socket (docs/spec/control.md), and return the
        reply.

        Returns None while the daemon has no control socket yet. Raises KernelRefused if the daemon
        has ended or refuses the request.
        """
        self.check_running()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(ANSWER_S)
            try:
                self._connect(channel)
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            try:
                with channel.makefile("rwb") as stream:
                    stream.write(json.dumps({"op": op, **more}).encode() + b"\n")
                    stream.flush()
                    return self._answer(op, stream)
            except OSError as error:
                raise KernelRefused(f"`{op}` on {self.name}: {error}") from None

    def _connect(self, channel: socket.socket) -> None:
        """Connect to the control socket through a descriptor of its folder.

        The full path may be too long for the address of a Unix socket.
        """
        folder = os.open(self.data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            channel.connect(f"/proc/self/fd/{folder}/control.sock")
        finally:
            os.close(folder)

    def _answer(self, op: str, lines: Iterable[bytes]) -> Reply:
        """Return the final reply to a request.

        Raises KernelRefused if there is an error or no reply.
        """
        for line in lines:
            message = json.loads(line)
            if "error" in message:
                raise KernelRefused(f"`{op}` on {self.name}: {message['error']['message']}")
            if "ok" in message:
                answer: Reply = message["ok"]
                return answer
        raise KernelRefused(f"`{op}` on {self.name}: the daemon ended before it had answered")

    def tell_to_stop(self) -> None:
        """Make the daemon stop in an orderly way, without waiting for it."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def crash(self) -> None:
        """Cut the power: end the daemon and its children without letting them send anything.

        The daemon can be started again later.
        """
        if self._process is not None:
            # Without this, the kernel would close the daemon's TCP connections with FIN or RST.
            self.space.nft(MUTE)
            self._mute = True
            os.killpg(self._process.pid, signal.SIGKILL)
        self.stop(STOP_S)

    def stop(self, patience: float = STOP_S) -> None:
        """Stop the daemon. If it still runs after `patience` seconds, kill it and its children."""
        self.tell_to_stop()
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None


class KernelWorld:
    """Hosts and gateways of one run. Use it as a context manager, which removes them at its end.

    `latency` is the one-way latency, in seconds, between any two attachments to the internet,
    without access links. Raises KernelRefused if this machine does not support the backend.
    """

    def __init__(self, *, latency: float = 0.0, seed: int = 0) -> None:
        reason = available()
        if reason is not None:
            raise KernelRefused(reason)
        self.hosts: dict[str, KernelHost] = {}
        self.gateways: dict[str, KernelGateway] = {}
        self.programs: list[KernelProgram] = []
        self._addresses = 0
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-netns-"))
        with ExitStack() as parts:
            parts.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._spaces = parts.enter_context(Namespaces())
            self.internet = parts.enter_context(SwitchProcess(latency=latency, seed=seed))
            self._parts = parts.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all daemons and programs, then remove the processes, namespaces and files."""
        try:
            for program in self.programs:
                program.tell_to_stop()
            for host in self.hosts.values():
                host.tell_to_stop()
            deadline = time.monotonic() + STOP_S
            for host in self.hosts.values():
                host.stop(max(0.0, deadline - time.monotonic()))
            for program in self.programs:
                program.stop()
        finally:
            for program in self.programs:
                program.stop(0.0)
            for host in self.hosts.values():
                host.stop(0.0)  # for daemons that still run because the waiting was interrupted
            self._parts.close()

    # Building.

    def gateway(
        self, name: str, kind: str = "linux-drop", *, behind: str | None = None,
        link: LinkSpec | None = None, timers: dict[str, float] | None = None,
    ) -> KernelGateway:  # fmt: skip
        """Add a gateway whose `kind` is one of `nft.KINDS`, on the internet or behind another
        gateway.

        A gateway that is `behind` another shares the other's link. `timers` are those of the NAT's
        connection tracking, in seconds.
        """
        self._new(name)
        address = self._address(behind)
        depth = 1 if behind is None else self.gateways[behind].depth + 1
        inside = f"192.168.{depth}.0/24"  # differs from that of the gateway outside
        gate = KernelGateway(self._spaces, name, kind, address, inside, depth)
        self.gateways[name] = gate
        self._connect(gate.space, "wan", address, behind, link)
        gate.guard(timers)
        return gate

    def host(
        self, name: str, *, behind: str | None = None, link: LinkSpec | None = None
    ) -> KernelHost:
        """Add a computer to the internet, or to the LAN of the gateway `behind`, whose link it then
        shares.
        """
        self._new(name)
        address = self._address(behind)
        space = self._spaces.add(name)
        space.sysctl(QUIET)
        self._connect(space, "eth0", address, behind, link)
        host = self.hosts[name] = KernelHost(name, space, address, self.folder)
        return host

    def _new(self, name: str) -> None:
        """Raise SimError if the name is already used."""
        if name in self.hosts or name in self.gateways:
            raise SimError(f"`{name}` already exists")

    def _address(self, behind: str | None) -> str:
        """Return a new address on the internet or in the network behind a gateway."""
        if behind is not None:
            return self.gateways[behind].free_address()
        self._addresses += 1  # the same numbering as in the simulator's `World`
        number = self._addresses
        return f"{11 + (number >> 16)}.{number >> 8 & 255}.{number & 255}.1"

    def _connect(
        self, space: Namespace, device: str, address: str, behind: str | None, link: LinkSpec | None
    ) -> None:
        """Connect a namespace to the internet through `link`, or to the LAN of the gateway
        `behind`.

        Raises SimError if both `behind` and `link` are given.
        """
        if behind is None:
            self.internet.plug(space, device, address, link or LinkSpec())
        elif link is not None:
            raise SimError(f"{space.name} is behind `{behind}` and shares its link")
        else:
            self.gateways[behind].join(space, device, address)

    def change(self, name: str, link: LinkSpec) -> None:
        """Replace the link of a host or gateway that is directly on the internet."""
        self.internet.change(self._port(name), link)

    def cut(self, name: str, *, up: bool = True, down: bool = True) -> None:
        """Cut each direction of an internet link whose argument is True. Restore a direction whose
        argument is False.
        """
        self.internet.cut(self._port(name), up=up, down=down)

    def _port(self, name: str) -> str:
        """Return the name of the switch port to which a host or gateway is connected."""
        return f"{name}/wan" if name in self.gateways else f"{name}/eth0"

    # Running.

    def start(self, name: str, *args: str, engine: bool = False) -> None:
        """Start a host's daemon with more arguments for `shoal node`.

        Without `engine`, the daemon finds no torch: it is a member that computes nothing.
        """
        self.hosts[name].start(args, engine=engine)

    def run(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> KernelProgram:
        """Start a program other than shoal on a host, which the end of the world stops.

        `environment` is added to that of this process. `KernelProgram.finish` waits for its end.
        """
        log = self.folder / f"{name}-{len(self.programs)}.log"
        program = KernelProgram(self.hosts[name].space, command, log, environment)
        self.programs.append(program)
        return program

    def where(self, name: str) -> str:
        """Return the address of a host's daemon, in the form that `--bootstrap` expects."""
        return f"{self.hosts[name].address}:{PORT}"

    def status(self, name: str) -> Reply | None:
        """Return the status of a host's daemon, or None while the daemon does not reply yet."""
        return self.hosts[name].ask("status")

    def peers(self, name: str) -> list[Reply]:
        """Return the members that a host's daemon knows. None are known while it does not reply."""
        answer = self.hosts[name].ask("peers")
        return [] if answer is None else list(answer["peers"])

    def wait(
        self, true: Callable[[], object], seconds: float = 30.0, what: str = "what was awaited"
    ) -> float:
        """Wait until `true()` holds. Return the seconds that this took.

        Raises KernelRefused if it does not hold within `seconds`. `what` describes it in the
        message.
        """
        began = time.monotonic()
        while not true():
            if time.monotonic() - began > seconds:
                raise KernelRefused(f"{what} did not happen within {seconds:g} s")
            time.sleep(POLL_S)
        return time.monotonic() - began
