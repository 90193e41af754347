"""The shoal daemon as a program of a simulated host. `await host.start(Daemon())` starts a node."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import trio

from ...node.daemon.daemon import EngineFactory, ManagedEngine, Node, run_node
from ...node.errors import ControlError
from ...node.folder import disk_errors
from ...node.http.server import preload
from ...node.settings.config import NodeConfig
from ...node.settings.values import parse_memory
from ...tasks.hardware.defaults import RECORD_FILE
from ...tasks.hardware.record import store_report
from ...tasks.hardware.signs import look
from ...transport.address import Address
from ...transport.host.seam import Host as Seam
from ...transport.identity import PeerId
from ..host import Host
from .engine import SimulatedEngine, Tokens
from .host import SimulatedHost, connect_local
from .profile import Profile, profile_of

Peer: TypeAlias = "Address | str | DaemonHandle"
Reply = dict[str, Any]
"""A JSON object from the control socket (docs/spec/control.md)."""


class DaemonHandle:
    """A running daemon: its node, its control socket, and the lines that it has printed."""

    def __init__(self, host: Host, node: Node, said: list[str]) -> None:
        self.host = host
        self.node = node
        self.said = said

    @property
    def peer(self) -> PeerId:
        """The daemon's peer id."""
        return self.node.identity.peer

    @property
    def address(self) -> Address:
        """The address at which peers can reach the daemon, as far as the daemon knows."""
        return self.node.listening.addresses[0]

    @property
    def engine(self) -> SimulatedEngine:
        """The simulated engine of the daemon's first device. The daemon must have one."""
        return self.engines[0]

    @property
    def engines(self) -> list[SimulatedEngine]:
        """The simulated engines of the daemon's devices."""
        return [each for each in self.node.engines if isinstance(each, SimulatedEngine)]

    async def ask(self, op: str, **more: object) -> Reply:
        """Send one request to the control socket, as a command does, and return the reply.

        Raises ControlError with the daemon's own code, or with `not-running` if the daemon does not
        answer.
        """
        data = bytearray()
        try:
            await self._converse({"op": op, **more}, data)
        except (OSError, trio.BrokenResourceError):
            raise _not_running(self.host) from None
        answer: Reply = json.loads(data.splitlines()[-1]) if data else {}
        if "error" in answer:
            error = answer["error"]
            raise ControlError(error["code"], error["message"], hint=error.get("hint"))
        if "ok" not in answer:
            raise _not_running(self.host)
        found: Reply = answer["ok"]
        return found

    async def _converse(self, request: Mapping[str, object], data: bytearray) -> None:
        """Send a request and append all that the daemon replies to `data`."""
        path = self.node.config.folder.control_socket
        async with await connect_local(self.host, path) as stream:
            await stream.send_all(json.dumps(request).encode() + b"\n")
            while piece := await stream.receive_some(65536):
                data += piece

    async def status(self) -> Reply:
        """Return the status that `shoal status` shows."""
        return await self.ask("status")

    async def until(self, true: Callable[[Reply], object], *, every: float = 0.25) -> Reply:
        """Request the status every `every` seconds until `true(status)` is true. Return that
        status.
        """
        while True:
            status = await self.status()
            if true(status):
                return status
            await trio.sleep(every)

    async def serving(self) -> Reply:
        """Wait until the daemon serves a shard. Return the shard's entry in the status."""
        status = await self.until(lambda status: status["serving"]["phase"] == "serving")
        shard: Reply = status["serving"]["shard"]
        return shard

    async def generate(
        self, prompt: str, *, model: str = "tiny", max_tokens: int = 16, **more: object
    ) -> Reply:
        """Generate text as `shoal run` does. Return the final reply: `text`, `tokens`, `nodes`, ….

        Raises ControlError if the daemon refuses the request or fails.
        """
        return await self.ask("run", model=model, prompt=prompt, max_tokens=max_tokens, **more)

    async def answer_time(self, prompt: str, *, model: str, max_tokens: int) -> float | None:
        """Generate a text. Return the virtual seconds that this took, or None if it failed."""
        began = trio.current_time()
        try:
            await self.generate(prompt, model=model, max_tokens=max_tokens)
        except (ControlError, OSError, trio.BrokenResourceError, ValueError, IndexError):
            return None  # refused, or the daemon ended before the reply was complete
        return trio.current_time() - began

    async def stop(self) -> None:
        """Stop the daemon in an orderly way, and wait until it has ended."""
        self.node.stop()
        await self.host.ended()


class Daemon:
    """`Program` that runs one shoal daemon. The host keeps its disk across crashes and restarts.

    `bootstrap` has the daemons to join, as addresses, addresses as text, or handles. `memory` is
    in bytes or a text such as "4GiB"; if it is None, the daemon offers as much as the profile says.
    `engine` is True for a simulated engine, False for none, or a factory. `tokens` selects how
    tokens are computed: "numbers", or "model" with the real weights. `config` has further fields of
    `NodeConfig`. By default, the daemon listens on port 4001 of every address.
    """

    def __init__(
        self,
        *,
        bootstrap: Iterable[Peer] = (),
        memory: int | str | None = None,
        profile: str | Profile = "desktop",
        engine: bool | EngineFactory = True,
        tokens: Tokens = "numbers",
        loud: bool = True,
        **config: Any,
    ) -> None:
        """Create the configuration of the daemon.

        `loud` decides what happens if a peer's message triggers a bug in this daemon. If True, the
        error ends the daemon and the simulation; otherwise it only ends the connection to that peer
        (`transport/guard.py`).
        """
        self.profile = profile_of(profile) if isinstance(profile, str) else profile
        offered = parse_memory(memory) if isinstance(memory, str) else memory
        self.config = NodeConfig(
            data=Path("/shoal"),
            bootstrap=tuple(map(_address, bootstrap)),
            memory=self.profile.offered if offered is None else offered,
            **{"listen": "0.0.0.0", "port": 4001, **config},
        )
        if self.config.api is not None:
            preload()  # within the run, the imports would draw from the host's random numbers
        self._engine = engine
        self._loud = loud
        self._tokens: Tokens = tokens
        self._lives = 0

    async def run(self, host: Host, *, task_status: "trio.TaskStatus[DaemonHandle]") -> None:
        """Run the daemon until it is stopped. Raises what `run_node` raises."""
        said: list[str] = []
        async with trio.open_nursery() as nursery:
            world = SimulatedHost(host, self.profile, nursery, self._lives)
            self._lives += 1
            with disk_errors(self.config.folder):
                await world.offload(self._measured, world)
            start = partial(
                run_node, world, self.config, engine_factory=self._make, say=said.append
            )
            ended = trio.Event()
            node = await nursery.start(_until_it_ends, start, ended)
            if self._loud:
                node.endpoint.guard.let_through()
            task_status.started(DaemonHandle(host, node, said))
            await ended.wait()
            nursery.cancel_scope.cancel()

    def _measured(self, world: SimulatedHost) -> None:
        """Store the speed of the profile, as if the daemon had measured this machine before."""
        if world.files.size(self.config.data / RECORD_FILE) is None:
            world.files.make_folder(self.config.data, mode=0o700)
            fingerprint = look(world).fingerprint
            store_report(world, self.config.data, fingerprint, self.profile.report)

    def _make(self, host: Seam, threads: int, memory: int) -> ManagedEngine | None:
        """Create the daemon's engine; None for a daemon without one."""
        if not isinstance(self._engine, bool):
            return self._engine(host, threads, memory)
        if not self._engine:
            return None
        assert isinstance(host, SimulatedHost)
        return SimulatedEngine(host, threads, memory, self._tokens)


async def _until_it_ends(
    start: Callable[..., Awaitable[None]],
    ended: trio.Event,
    *,
    task_status: "trio.TaskStatus[Node]",
) -> None:
    """Run `start` and set `ended` when it returns."""
    await start(task_status=task_status)
    ended.set()


def _not_running(host: Host) -> ControlError:
    """Return the error for a daemon that does not answer."""
    return ControlError("not-running", f"the daemon on {host.name} does not answer or has ended")


def _address(given: Peer) -> Address:
    """Return the address of a daemon that is given as an address, as text, or as a handle."""
    if isinstance(given, DaemonHandle):
        return given.address
    return given if isinstance(given, Address) else Address.parse(given)
