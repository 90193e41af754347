"""The parts of a daemon that need no peer: settings, keys, library and engine."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Protocol

import trio
from trio import TaskStatus

from ...dht.content.library import Library
from ...state.membership.record import Capacity
from ...tasks.defaults import MEMORY_SHARE
from ...tasks.engine.connection.devices import DeviceEngines
from ...tasks.engine.families import check_model
from ...tasks.engine.interface import Engine
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
    engine: Engine | None
    """The engines of all devices as one, or None if this node has none."""
    engines: tuple[ManagedEngine, ...]
    """The engines of the devices."""
    shares: tuple[int, ...]
    """The memory in bytes that this node offers on each of them."""
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
    wanted = config.device if factory is None else ("cpu",) * len(config.device)
    devices, why_not = await hardware.choose(wanted)
    machine = host.machine()
    shares = _shares(machine, devices, config.memory)
    threads = _threads(config.threads or machine.cores, devices)
    engines = tuple(
        engine
        for device, size in zip(devices, shares, strict=True)
        if (
            engine := factory(host, threads, size)
            if factory
            else _engine(host, threads, size, device.name)
        )
    )
    hardware.offer(Capacity(machine.cores, sum(shares), engine=bool(engines)))
    health = Health(partial(_tell, say))
    if why_not and engines:
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
        engine=DeviceEngines(engines) if len(engines) > 1 else next(iter(engines), None),
        engines=engines,
        shares=shares if engines else (),
        no_engine=NO_TORCH if factory is None else NO_ENGINE,
        health=health,
        stalls=StallGuard(host, defaults.STALL),
        say=say,
        began=host.now(),
        stopped=trio.Event(),
    )


def _shares(
    machine: MachineFigures, devices: Sequence[Device], memory: int | None
) -> tuple[int, ...]:
    """Return the memory in bytes that this node offers on each device.

    `memory` is what its owner offers in all; None: half of the free memory, and of accelerators'
    memory. Engines on one device get equal parts of it.
    """
    counts = Counter(device.name for device in devices)
    shares = list[int]()
    mosts = [_most(machine, device) // counts[device.name] for device in devices]
    for device, most in zip(devices, mosts, strict=True):
        if memory is not None:
            part = memory * most // max(1, sum(mosts))
        else:
            free = machine.memory_available if device.name == "cpu" else device.memory_bytes
            part = int(free * MEMORY_SHARE) // counts[device.name]
        shares.append(min(part, most))
    return tuple(shares)


def _most(machine: MachineFigures, device: Device) -> int:
    """Return the memory of a device in bytes."""
    return machine.memory_total if device.name == "cpu" else device.memory_bytes


def _threads(threads: int, devices: Sequence[Device]) -> int:
    """Return the threads of each engine: engines on the CPU share them."""
    return max(1, threads // max(1, sum(device.name == "cpu" for device in devices)))


def _engine(host: Host, threads: int, memory: int, device: str) -> ManagedEngine | None:
    """Return an engine with a worker process, or None if torch is not installed."""
    if find_spec("torch") is None:
        return None
    return EngineProcess(host, threads=threads, memory_bytes=memory, device=device)


def _tell(say: Say, condition: Condition) -> None:
    """Print a condition and its hint."""
    say(f"warning: {condition.sentence}")
    if condition.hint:
        say(f"hint: {condition.hint}")
