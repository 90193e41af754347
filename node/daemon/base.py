"""The parts of a daemon that need no peer: settings, keys, library and engine."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Protocol

import trio
from trio import TaskStatus

from ...dht.content.library import Library
from ...state.membership.record import Capacity
from ...tasks.defaults import MEMORY_SHARE
from ...tasks.engine.families import check_model
from ...tasks.engine.process import EngineProcess
from ...tasks.hardware.facts import Device
from ...tasks.hardware.hardware import Hardware
from ...tasks.serving.interface import NO_TORCH, RestartingEngine
from ...transport.host.seam import Host, MachineFigures
from ...transport.identity import IDENTITY_FILE, Identity, load_or_create_identity
from .. import defaults
from ..errors import ControlError
from ..folder import disk_errors
from ..health import Condition, Health
from ..settings.applying import LiveSettings
from ..settings.config import NodeConfig
from ..swarm.credentials import Credentials
from ..swarm.remembering import Inviter
from .stall import StallGuard


class ManagedEngine(RestartingEngine, Protocol):
    """An engine that runs as a task: a worker process, or the engine of the simulator."""

    @property
    def pid(self) -> int | None:
        """Process id of the worker, or None while it is not running."""
        ...

    async def run(self, *, task_status: TaskStatus[None] = ...) -> None: ...


EngineFactory = Callable[[Host, int, int], ManagedEngine | None]  # host, threads, bytes of memory
Say = Callable[[str], None]
NO_ENGINE = "this node has no engine, as its owner chose: it serves no layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The parts of one daemon that need no peer. `began` is the time of the start, in seconds on
    the host's clock."""

    host: Host
    settings: LiveSettings
    identity: Identity
    new: bool
    """Whether this start created the identity."""
    credentials: Credentials
    inviter: Inviter
    library: Library
    hardware: Hardware
    engine: ManagedEngine | None
    no_engine: str
    """Reason to report if this node has no engine."""
    health: Health
    stalls: StallGuard
    say: Say
    """Prints a line for a person."""
    began: float
    stopped: trio.Event
    """Set when the daemon has been told to stop."""

    @property
    def config(self) -> NodeConfig:
        """The configuration in force."""
        return self.settings.config

    @property
    def capacity(self) -> Capacity:
        """The capacity that this node offers, with its measured speed as far as it is known."""
        return self.hardware.capacity

    @property
    def threads(self) -> int:
        """The number of threads that the engine computes with."""
        return self.config.threads or self.capacity.cores

    @property
    def works(self) -> bool:
        """Whether the owner lets this node work on jobs of other nodes. Without a setting, a node
        with an engine does. Clients of a private group never work on jobs, which `Working`
        checks."""
        wanted = self.config.jobs
        return self.engine is not None if wanted is None else wanted

    def refuse_when_stopping(self) -> None:
        """Raise ControlError `stopping` if the daemon is shutting down. A client that waits for a
        reply would delay the shutdown."""
        if self.stopped.is_set():
            raise ControlError("stopping", "the daemon is stopping", hint="`shoal node`")


async def prepare(
    host: Host, settings: LiveSettings, factory: EngineFactory | None, say: Say
) -> Base:
    """Load or create the contents of the data folder, and create the engine.

    If `factory` is None, the engine is a worker process, provided torch is installed. If the
    factory returns None, this node has no engine. Raises NodeError if the data folder is invalid or
    the disk fails, and TransportError if the identity is invalid.
    """
    config = settings.config
    with disk_errors(config.folder):
        known = await host.offload(host.files.size, config.data / IDENTITY_FILE)
        identity = await load_or_create_identity(host, config.data)
        credentials = await Credentials.load(host, config.folder, identity, private=config.private)
        library = Library(host, config.folder.library, check_config=check_model)
        await library.open()
        inviter = await Inviter.load(host, config.folder)
    hardware = await Hardware.load(host, config.data)
    device, why_not = await hardware.choose(config.device if factory is None else "cpu")
    offered = _offered(host.machine(), device, config.memory)
    engine = (
        _engine(host, config, offered, device.name)
        if factory is None
        else (factory(host, config.threads or offered.cores, offered.memory_bytes))
    )
    hardware.offer(replace(offered, engine=engine is not None))
    health = Health(partial(_tell, say))
    if why_not and engine is not None:
        health.report("device", why_not, hint="`shoal doctor` shows the devices")
    return Base(
        host=host,
        settings=settings,
        identity=identity,
        new=known is None,
        credentials=credentials,
        inviter=inviter,
        library=library,
        hardware=hardware,
        engine=engine,
        no_engine=NO_TORCH if factory is None else NO_ENGINE,
        health=health,
        stalls=StallGuard(host, defaults.STALL),
        say=say,
        began=host.now(),
        stopped=trio.Event(),
    )


def _offered(machine: MachineFigures, device: Device, memory: int | None) -> Capacity:
    """Return what this machine offers. `memory` is what its owner offers in bytes; None: half of
    the free memory, or of an accelerator's memory."""
    on_cpu = device.name == "cpu"
    free = machine.memory_available if on_cpu else device.memory_bytes
    most = machine.memory_total if on_cpu else device.memory_bytes
    size = min(int(free * MEMORY_SHARE) if memory is None else memory, most)
    return Capacity(machine.cores, size, engine=False)


def _engine(host: Host, config: NodeConfig, offered: Capacity, device: str) -> ManagedEngine | None:
    """Return an engine with a worker process, or None if torch is not installed."""
    if find_spec("torch") is None:
        return None
    threads, memory = config.threads or offered.cores, offered.memory_bytes
    return EngineProcess(host, threads=threads, memory_bytes=memory, device=device)


def _tell(say: Say, condition: Condition) -> None:
    """Print a condition and its hint."""
    say(f"warning: {condition.sentence}")
    if condition.hint:
        say(f"hint: {condition.hint}")
