"""The transport of a daemon alone on a simulated computer: its endpoint and its dialer.

Measurements of connecting run hundreds of these, which are much cheaper than whole daemons.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import Admission, OpenSwarm
from shoal.transport.identity import Identity, PeerId
from shoal.transport.limits import Limits
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.link import Link
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.strategies.dialer import ALL_STRATEGIES, Dialer, Strategies

T = TypeVar("T")


class TransportNode:
    """Program for a host (`Host.start`) that answers `echo` calls.

    `book` returns the addresses of a peer. `calls` counts the calls by the number in their header.
    """

    def __init__(
        self,
        computer: Host,
        seed: bytes,
        *,
        listen: str = "0.0.0.0",
        port: int = 4001,
        strategies: Strategies = ALL_STRATEGIES,
        relaying: RelayLimits | None = None,
        web_port: bool = True,
        further: tuple[tuple[str, int], ...] = (),
        book: Callable[[PeerId], Sequence[Address]] = lambda peer: (),
        admission: Admission | None = None,
        limits: Limits | None = None,
        foreign: Sequence[Address] = (),
    ) -> None:
        self.computer = computer
        self.identity = Identity.from_seed(seed)
        self.calls: dict[int, int] = {}
        self.links: list[Link] = []
        self.paths: list[tuple[float, PeerId, str, str]] = []
        """Every path that came up: time, peer, path kind, medium."""
        self.endpoint: Endpoint
        self.dialer: Dialer
        self._listen = listen
        self._port = port
        self._strategies = replace(strategies, libp2p=False, web_port=web_port)
        self._relaying = relaying
        self._further = further
        self._book = book
        self._admission = admission
        self._limits = limits
        self._foreign = foreign

    @property
    def peer(self) -> PeerId:
        return self.identity.peer

    @property
    def everywhere(self) -> bool:
        """Whether it also listens on TCP 443, which nearly every network lets through."""
        return any(port == 443 for _, port in self._further)

    async def run(self, computer: Host, *, task_status: "trio.TaskStatus[Any]") -> None:
        """Run until the computer stops; `started` is called once it listens."""
        async with trio.open_nursery() as nursery:
            host = SimulatedHost(computer, PROFILES["desktop"], nursery)
            self.endpoint = Endpoint(
                host,
                self.identity,
                admission=self._admission or OpenSwarm(),
                limits=self._limits,
            )
            self.endpoint.handle("echo", self._echo)
            self.endpoint.on_link(self.links.append)
            self.endpoint.on_path(self._path)
            self.dialer = Dialer(
                host,
                self.endpoint,
                strategies=self._strategies,
                relaying=self._relaying,
                key=self.identity.seed,
                book=self._book,
            )
            await nursery.start(
                lambda task_status: self.dialer.run(
                    self._listen,
                    self._port,
                    further=self._further,
                    libp2p_relays=self._foreign,
                    task_status=task_status,
                )
            )
            task_status.started(self)

    def _echo(self, call: Call) -> Reply:
        number = call.header.get("n")
        if isinstance(number, int):
            self.calls[number] = self.calls.get(number, 0) + 1
        return Reply(call.header, call.payload)

    def _path(self, link: Link, path_kind: Any, medium: str) -> None:
        self.paths.append((trio.current_time(), link.peer, str(path_kind), medium))

    def address(self, ip: str | None = None) -> Address:
        """Return its address as another node would dial it."""
        return Address(ip or self.computer.addresses()[0], self._port, self.peer)

    def addresses(self) -> list[Address]:
        """Return what it publishes, as a daemon does: its IPv4 addresses and those of its
        dialer.
        """
        own = [
            Address(address, self.endpoint.port, self.peer)
            for address in self.computer.addresses()
            if ":" not in address
        ]
        return list(dict.fromkeys([*own, *self.dialer.addresses()]))

    # Called from outside its tasks.

    async def within(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a function as a task of this computer."""
        found: T = await self.computer.run(function, *args)
        return found

    async def connect(
        self, peer: PeerId, addresses: Sequence[Address] = (), timeout: float = 15.0
    ) -> Link:
        """Connect to a peer with its `Dialer`. Raises DialFailed."""

        async def go() -> Link:
            return await self.dialer.connect(peer, addresses, timeout=timeout)

        return await self.within(go)

    async def call(
        self,
        link: Link,
        method: str = "echo",
        header: Mapping[str, Any] | None = None,
        payload: bytes = b"",
        timeout: float = 15.0,
    ) -> Reply:
        """Call `Link.call` within this computer."""

        async def go() -> Reply:
            return await link.call(method, header or {}, payload, timeout=timeout)

        return await self.within(go)
