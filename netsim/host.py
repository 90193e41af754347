"""Simulated computer: its addresses, clock, protocol stack and tasks.

A context variable holds the host to which a task belongs, and child tasks inherit it. A socket is
created on the host of the task that requests it.
"""

import errno
import os
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, TypeVarTuple, overload

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT

from . import defaults
from .clock import Events
from .errors import SimError
from .network.network import Attachment, Network
from .network.packet import TCP, Packet
from .streams import RandomStreams

if TYPE_CHECKING:
    from .daemons.daemon import DaemonHandle
    from .disk.disk import Disk
    from .sockets.local import LocalStack

CURRENT: ContextVar["Host"] = ContextVar("simulated host")


class Transport(Protocol):
    """One transport protocol of a host's stack, such as UDP."""

    def receive(self, packet: Packet) -> None: ...


class Interface(NamedTuple):
    """One address of a host: the name of the interface, an IP address, and its prefix length in
    bits.
    """

    name: str
    address: str
    prefix: int


def cause(host: "Host") -> str:
    """Return the name of the running task with the host's name in front, or "" if a timer of the
    protocol stack runs.
    """
    task = getattr(GLOBAL_RUN_CONTEXT, "task", None)
    if task is None:
        return ""
    name = task.name
    found = host.causes.get(name)
    if found is None:
        own = f"{host.name}:"
        found = host.causes[name] = name if name.startswith(own) else own + name
    return found


def error(number: int) -> OSError:
    """Return the OSError that the operating system would raise for this errno."""
    return OSError(number, os.strerror(number))


T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Started = TypeVar("Started", covariant=True)


class Program(Protocol[Started]):
    """Program that a host runs, and runs again after a restart. When it is ready, it calls
    `task_status.started` with a value.
    """

    async def run(self, host: "Host", *, task_status: "trio.TaskStatus[Started]") -> None: ...


class Host:
    """One simulated computer.

    `attachments` are its network interfaces. `wall_offset` (seconds) and `wall_drift` (seconds per
    second) make its wall clock differ from those of other hosts. Trio's time is the same for all
    hosts.
    """

    def __init__(self, network: Network, name: str, equip: "Callable[[Host], None]") -> None:
        self.network = network
        self.equip = equip  # creates the protocol stack, at each start of the computer
        self.name = name
        self.up = True
        self.wall_offset = 0.0
        self.wall_drift = 0.0
        self.attachments: list[Attachment] = []
        self.protocols: dict[int, Transport] = {}  # by IP protocol number; filled by `equip`
        self.local: LocalStack  # Unix sockets; made by `equip`
        self.disk: Disk | None = None  # set when a program needs one
        self.program: Program[object] | None = None
        self.nursery: trio.Nursery | None = None  # the world's, while it runs
        self._life: trio.CancelScope | None = None  # scope of the running program
        self._system: dict[trio.CancelScope, None] = {}  # scopes of the system tasks it has started
        self._ended: trio.Event | None = None
        # Cache of `source` by destination. It is replaced by a new object when an address changes.
        self.routes: dict[str, tuple[Attachment | None, str]] = {}
        self.causes: dict[str, str] = {}  # cache of `cause` by the name of the task
        equip(self)

    @property
    def events(self) -> Events:
        return self.network.events

    @property
    def streams(self) -> RandomStreams:
        return self.network.streams

    def addresses(self) -> list[str]:
        """Return the addresses of all interfaces, without the loopback."""
        return [address for item in self.attachments for address in item.addresses]

    def interfaces(self) -> list[Interface]:
        """Return all addresses with their prefix lengths, the loopback first."""
        found = [Interface("lo", "127.0.0.1", 8), Interface("lo", "::1", 128)]
        for item in self.attachments:
            for address in item.addresses:
                prefix = item.subnet.prefix6 if ":" in address else item.subnet.prefix
                found.append(Interface(item.name, address, prefix))
        return found

    def default_gateway(self, *, six: bool = False) -> str | None:
        """Return the address of the default router, of IPv6 if `six` is True. Return None if there
        is no router.
        """
        for item in self.attachments:
            gateway = item.subnet.gateway
            for address in gateway.addresses if gateway is not None else ():
                if (":" in address) == six:
                    return address
        return None

    def wall(self) -> float:
        """Return the Unix time in seconds by this host's wall clock."""
        now = self.events.now
        return defaults.EPOCH + now + self.wall_offset + now * self.wall_drift

    # Packets.

    def source(self, destination: str) -> tuple[Attachment | None, str]:
        """Return (interface, source address) for packets to a destination. The interface is None
        for the loopback.

        Raises OSError (ENETUNREACH) if no interface has an address of the destination's family.
        """
        found = self.routes.get(destination)
        if found is None:
            found = self.routes[destination] = self._choose_source(destination)
        return found

    def _choose_source(self, destination: str) -> tuple[Attachment | None, str]:
        """Compute the result of `source`."""
        if destination.startswith("127.") or destination == "::1":
            return None, destination
        six = ":" in destination
        usable = []
        for item in self.attachments:
            for address in item.addresses:
                if address == destination:
                    return None, destination
                if (":" in address) == six:
                    usable.append((item, address))
        for item, address in usable:  # a neighbour is reached directly
            if destination in item.subnet.members:
                return item, address
        if not usable:
            raise error(errno.ENETUNREACH)
        return usable[0]

    def has(self, address: str) -> bool:
        """Return whether an address belongs to this host."""
        if address.startswith("127.") or address == "::1":
            return True
        return any(address in item.addresses for item in self.attachments)

    def addresses_changed(self) -> None:
        """Clear the cache of routes, because an address has changed."""
        self.routes = {}

    def send(self, packet: Packet, via: Attachment | None) -> None:
        """Send a packet through an interface, or through the loopback if `via` is None. Do nothing
        if the power is off.
        """
        if not self.up:
            return
        if via is not None:
            via.send(packet)
        else:
            self.network.events.at(self.network.events.now + defaults.LOOPBACK_S, self.take, packet)

    def receive(self, packet: Packet, at: Attachment) -> None:
        """Receive a packet from an interface, unless an injected fault drops or delays it."""
        network = self.network
        if network.interfere is not None and network.intercept(packet, self.name, self.take):
            return
        self.take(packet)

    def take(self, packet: Packet) -> None:
        """Pass a packet to its protocol, or drop it if the power is off."""
        network = self.network
        if not self.up:
            network.drop("down", self.name, packet)
            return
        network.delivered += 1
        if network.trace is not None:
            network.note("received", self.name, packet)
        protocol = self.protocols.get(packet.proto)
        if protocol is not None:
            protocol.receive(packet)

    # Tasks.

    def start_soon(
        self, nursery: trio.Nursery, function: Callable[[*Ts], Awaitable[object]], *args: *Ts
    ) -> None:
        """Start a task that belongs to this host."""
        context = copy_context()
        context.run(CURRENT.set, self)
        name = f"{self.name}:{getattr(function, '__qualname__', function)}"
        context.run(lambda: nursery.start_soon(function, *args, name=name))

    async def run(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call an async function as code of this host, in the current task. Return its result."""
        token = CURRENT.set(self)
        try:
            return await function(*args)
        finally:
            CURRENT.reset(token)

    # The program.

    @overload
    async def start(self, program: Program[T]) -> T: ...

    @overload
    async def start(self, program: None = None, **settings: Any) -> "DaemonHandle": ...

    async def start(self, program: Program[object] | None = None, **settings: Any) -> object:
        """Start a program, and return the value with which it calls `started`.

        Without a program, start the shoal daemon (`daemons/`) with `settings`. An exception of the
        program ends the simulation. Raises SimError if the host is off or already runs a program,
        or if the world is not running.
        """
        if program is None:
            from .daemons.daemon import Daemon

            program = Daemon(**settings)
        if self.nursery is None:
            raise SimError(f"{self.name}: the world is not running")
        if self.running:
            raise SimError(f"{self.name} already runs a program")
        if not self.up:
            raise SimError(f"{self.name} has no power: `restart` switches it on")
        self.program = program
        name = f"{self.name}:{type(program).__name__}"
        started: object = await self.nursery.start(self._live, program, name=name)
        return started

    @property
    def running(self) -> bool:
        """Whether the host's program runs."""
        return self._life is not None

    async def ended(self) -> None:
        """Wait until the host's program has ended."""
        if self._ended is not None:
            await self._ended.wait()

    async def _live(
        self, program: Program[object], *, task_status: trio.TaskStatus[object]
    ) -> None:
        """Run a program as a task of this host until the program or the host ends."""
        CURRENT.set(self)  # for this task and the tasks that it starts
        self._ended = trio.Event()
        try:
            with trio.CancelScope() as self._life:
                await program.run(self, task_status=task_status)
        except Exception:
            if self.up:
                raise  # errors of a program that dies in a crash are ignored
        finally:
            self._life = None
            for scope in list(self._system):
                scope.cancel()
            self._ended.set()

    async def as_its_own(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run `function` in the current trio system task, and cancel it when the host's program
        ends.
        """
        with trio.CancelScope() as scope:
            self._system[scope] = None
            try:
                await function(*args)
            finally:
                del self._system[scope]

    async def crash(self) -> None:
        """Cut the power, so that nothing more is sent or written. Return once the program has
        ended.
        """
        self.up = False
        if self.disk is not None:
            self.disk.crash()
        if self._life is not None:
            self._life.cancel()
        self._disconnect()
        await self.ended()
        self.protocols.clear()
        for item in self.attachments:
            item.subnet.leave_all(item)

    def _disconnect(self) -> None:
        """End every connection of this host, so that no remaining task waits for one."""
        self.local.power_off()
        tcp: Any = self.protocols.get(TCP)
        if tcp is not None:
            tcp.power_off()

    async def restart(self) -> Any:
        """Switch the power on, and start the same program with the same disk. Return the value with
        which the program calls `started`. Raises SimError if there is no program, or if it still
        runs.
        """
        if self.program is None:
            raise SimError(f"{self.name} has no program to restart")
        if self.running:
            raise SimError(f"{self.name} is still running: call `crash` first")
        self.equip(self)
        self.up = True
        return await self.start(self.program)

    def __repr__(self) -> str:
        return f"<host {self.name} {', '.join(self.addresses())}>"
