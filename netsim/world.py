"""A world: hosts, segments and gateways of one simulation, and the run of it.

world = World(seed=7)
alice, bob = world.host("alice"), world.host("bob")

async def main() -> None:
    async with trio.open_nursery() as nursery:
        alice.start_soon(nursery, talk, bob)

world.run(main)
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio
from trio._core import _run

from .clock import Events, SimClock
from .errors import NothingLeft
from .gateway import Gateway
from .host import Host
from .link import LinkSpec
from .nat.kinds import build
from .network import Network, Segment
from .sockets.factory import Resolver, SocketFactory, equip
from .streams import Streams
from .trace import Trace


class World:
    """One simulated internet. The same seed and the same program give the same packets."""

    def __init__(self, seed: int = 0, *, trace: Trace | None = None, latency: Any = 0.01) -> None:
        self.seed = seed
        self.trace = trace
        self.events = Events()
        self.streams = Streams(seed)
        self.network = Network(self.events, self.streams, trace)
        self.internet = Segment(self.network, "internet", latency)
        self.names: dict[str, list[str]] = {}  # DNS
        self.hosts: dict[str, Host] = {}
        self.gateways: dict[str, Gateway] = {}
        self._nursery: trio.Nursery | None = None
        self._addresses = 0
        self._scope: trio.CancelScope | None = None

    # Building.

    def host(
        self,
        name: str,
        *,
        address: str | None = None,
        behind: Gateway | None = None,
        link: LinkSpec | None = None,
        site: int = 0,
    ) -> Host:
        """A new host on the internet, or on the inside of a gateway.

        A host behind a gateway shares that one's `link`; its own is the LAN's.
        """
        if name in self.hosts:
            raise ValueError(f"there is a host `{name}` already")
        host = Host(self.network, name, equip)
        segment = behind.inside if behind is not None else self.internet
        attachment = segment.attach(host, link=link, site=site)
        host.attachments.append(attachment)
        if address is None:
            address = behind.free_address() if behind is not None else self.public_address()
        segment.assign(attachment, address)
        host.nursery = self._nursery
        self.hosts[name] = host
        self.names[name] = host.addresses()
        return host

    def gateway(
        self,
        name: str,
        kind: str = "linux-drop",
        *,
        behind: Gateway | None = None,
        address: str | None = None,
        link: LinkSpec | None = None,
        site: int = 0,
        **knobs: Any,
    ) -> Gateway:
        """A NAT or firewall (`nat/kinds.py` lists them) on the internet, or behind another."""
        if address is None:
            address = behind.free_address() if behind is not None else self.public_address()
        outside = behind.inside if behind is not None else self.internet
        gateway = build(kind, self.network, name, outside, address, link=link, site=site, **knobs)
        self.gateways[name] = gateway
        return gateway

    def public_address(self) -> str:
        """An unused public IPv4 address."""
        self._addresses += 1
        number = self._addresses
        return f"{11 + (number >> 16)}.{number >> 8 & 255}.{number & 255}.1"

    # Running.

    def run(self, main: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Run `main` in virtual time until it returns. Raises NothingLeft where it never would."""
        with _deterministic():
            return trio.run(self._main, main, args, clock=SimClock(self.events, self._on_idle))

    async def _main(self, main: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> Any:
        trio.socket.set_custom_socket_factory(SocketFactory())
        trio.socket.set_custom_hostname_resolver(Resolver(self.names))
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as self._nursery:
                for host in self.hosts.values():
                    host.nursery = self._nursery
                result = await main(*args)
                self._nursery.cancel_scope.cancel()
            return result
        raise NothingLeft("every task waits, and nothing is left that could wake one")

    def _on_idle(self) -> None:
        if self._scope is not None:
            self._scope.cancel()


class _InOrder:
    """Trio's scheduler asks this instead of a random generator: tasks run in order of age."""

    def shuffle(self, batch: list[Any]) -> None:
        batch.reverse()

    def random(self) -> float:
        return 1.0


@contextmanager
def _deterministic() -> Iterator[None]:
    """Make trio's scheduling a function of the program alone, for the time of a run."""
    scheduler: Any = _run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = True, _InOrder()
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = before
