"""A DHT node alone on a simulated computer: its endpoint, optionally its dialer, and its `Dht`.

Measurements of look-ups run hundreds of these, which are much cheaper than whole daemons.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import trio

from shoal.dht.finding import FindingResult
from shoal.dht.kademlia.presence import Addressing
from shoal.dht.kv.index import KvIndex
from shoal.dht.publishing.publishing import PublishReport
from shoal.dht.records.key import Key
from shoal.dht.records.record import Body
from shoal.dht.service import Dht
from shoal.dht.settings import DhtSettings
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import DialFailed
from shoal.transport.handshake.hello import Admission, OpenSwarm
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link
from shoal.transport.networks import is_public
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.strategies.dialer import ALL_STRATEGIES, Dialer, Strategies

T = TypeVar("T")
_TIMEOUT = 5.0  # seconds for a dial
_PAUSE = 2.0  # seconds between two attempts to reach a bootstrap node
_FOLDER = Path("/shoal/dht")


class Finder:
    """Program for a host (`Host.start`) that keeps its disk across restarts.

    It dials addresses only directly, unless it has a `whole_dialer`.
    """

    def __init__(
        self,
        computer: Host,
        seed: bytes,
        *,
        bootstrap: Sequence[Address] = (),
        whole_dialer: bool = False,
        strategies: Strategies = ALL_STRATEGIES,
        relaying: RelayLimits | None = None,
        port: int = 4001,
        lasts: bool = False,
        settings: DhtSettings | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Set up the node. `lasts`: store contacts and its own records on its disk."""
        self.computer = computer
        self.identity = Identity.from_seed(seed)
        self.endpoint: Endpoint
        self.dht: Dht
        self.kv: KvIndex
        self.dialer: Dialer | None = None
        self.bootstrap = bootstrap
        self._whole = whole_dialer
        self._strategies = strategies
        self._relaying = relaying
        self._port = port
        self._settings = settings or DhtSettings(folder=_FOLDER if lasts else None)
        self._admission = admission
        self._lives = 0

    @property
    def peer(self) -> PeerId:
        return self.identity.peer

    @property
    def address(self) -> Address:
        """Return the address at which others dial it, if they can."""
        return Address(self.computer.addresses()[0], self._port, self.peer)

    async def run(self, computer: Host, *, task_status: "trio.TaskStatus[Any]") -> None:
        """Run until the computer stops; `started` is called once it listens and answers."""
        async with trio.open_nursery() as nursery:
            host = SimulatedHost(computer, PROFILES["desktop"], nursery, self._lives)
            self._lives += 1
            admission = self._admission or OpenSwarm()
            self.endpoint = Endpoint(host, self.identity, admission=admission)
            if self._whole:
                await self._climb(host, nursery)
            else:
                await nursery.start(self.endpoint.run, "0.0.0.0", self._port)
            self.dht = Dht(
                host,
                self.endpoint,
                Addressing(self._connect, self._addresses, self._reachable),
                settings=self._settings,
            )
            await nursery.start(self.dht.run)
            self.kv = KvIndex(host, self.endpoint, self.dht, connect=self._to)
            await nursery.start(self.kv.run)
            for address in self.bootstrap:
                nursery.start_soon(self._reach, address)
            task_status.started(self)

    async def _climb(self, host: SimulatedHost, nursery: trio.Nursery) -> None:
        self.dialer = dialer = Dialer(
            host,
            self.endpoint,
            strategies=self._strategies,
            relaying=self._relaying,
            key=self.identity.seed,
        )
        await nursery.start(
            lambda task_status: dialer.run("0.0.0.0", self._port, task_status=task_status)
        )

    async def _connect(self, peer: PeerId, addresses: Sequence[Address]) -> Link:
        if self.dialer is not None:
            return await self.dialer.ask(peer, addresses, timeout=_TIMEOUT)
        return await self.endpoint.ask(peer, addresses, timeout=_TIMEOUT)

    async def _to(self, peer: PeerId) -> Link:
        return await self._connect(peer, self.dht.where(peer))

    def _addresses(self) -> list[Address]:
        own = [
            Address(address, self.endpoint.port, self.peer)
            for address in self.computer.addresses()
            if ":" not in address
        ]
        found = self.dialer.addresses() if self.dialer is not None else []
        return list(dict.fromkeys([*own, *found]))

    def _reachable(self) -> bool:
        if self.dialer is not None:
            return self.dialer.whereabouts.reachable()
        return any(is_public(address) for address in self.computer.addresses())

    async def _reach(self, address: Address) -> None:
        """Connect to a bootstrap node, retrying until it succeeds."""
        while True:
            with suppress(DialFailed):
                if self.dialer is not None:
                    await self.dialer.dial(address, timeout=_TIMEOUT)
                else:
                    await self.endpoint.dial(address, timeout=_TIMEOUT)
                return
            await trio.sleep(_PAUSE)

    # Called from outside its tasks.

    async def within(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a function as a task of this computer."""
        found: T = await self.computer.run(function, *args)
        return found

    async def joined(self) -> None:
        """Wait until it knows other nodes."""
        await self.within(self.dht.joined)

    async def publish(self, *bodies: Body, timeout: float = 30.0, **how: Any) -> PublishReport:
        """Publish records and wait until they are announced."""

        async def go() -> PublishReport:
            for body in bodies:
                self.dht.publish(body, **how)
            return await self.dht.flushed(timeout)

        return await self.within(go)

    async def find(self, key: Key, **how: Any) -> FindingResult:
        """Call `Dht.find` within this computer."""

        async def go() -> FindingResult:
            return await self.dht.find(key, **how)

        return await self.within(go)
