"""Endpoints and links in memory, for membership without sockets."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, cast

import trio

from shoal.state.membership.membership import Membership
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import CallRefused, DialFailed, LinkClosed
from shoal.transport.guard import Guard
from shoal.transport.handshake.hello import Admitted
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity, PeerId
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Answer, Call, Handler, Refusal, Reply
from shoal.transport.link.link import Link

WALL = 1_700_000_000.0


class FakeHost:
    """A clock, and entropy that repeats."""

    def __init__(self, name: str = "", ahead: float = 0.0) -> None:
        self._name = name
        self._made = 0
        self._ahead = ahead

    def now(self) -> float:
        return trio.current_time()

    def wall(self) -> float:
        return WALL + self._ahead

    def entropy(self, size: int) -> bytes:
        self._made += 1
        return hashlib.sha256(f"{self._name} {self._made}".encode()).digest()[:size]


@dataclass
class FakeIdentities:
    dialled: bool
    port: int = 0


@dataclass
class FakeStatus:
    address: tuple[str, int]
    admitted: Admitted = field(default_factory=lambda: Admitted("open"))
    bytes_in: int = 0


class FakeLink:
    """One end of a link. Messages arrive in order; one task handles each direction."""

    def __init__(
        self, own: "FakeEndpoint", other: "FakeEndpoint", *, dialled: bool, brief: bool
    ) -> None:
        self.peer = other.peer
        self.identities = FakeIdentities(dialled, other.port)
        self.brief = brief
        self.address = (other.ip, 4001)
        self.status = FakeStatus(self.address)
        self.closed: str | None = None
        self.quiet = False
        self.connected = True
        self.rests = 0.0
        self._own, self._other = own, other
        self._send, self._receive = trio.open_memory_channel[Callable[[], Any]](1000)

    async def run(self) -> None:
        async for work in self._receive:
            answer = work()
            if isawaitable(answer):
                await answer
            await trio.lowlevel.checkpoint()

    def post(
        self, method: str, header: Mapping[str, Any] | None = None, payload: bytes = b"", *,
        priority: Priority, later: bool = False,
    ) -> None:  # fmt: skip
        if self.closed is not None:
            raise LinkClosed(self.closed, "closed")
        self._own.net.sent.append((self._own.peer, self.peer, method, payload))
        self._send.send_nowait(lambda: self._other.serve(self._own.peer, method, payload))

    async def call(
        self, method: str, header: Mapping[str, Any] | None = None, payload: bytes = b"", *,
        priority: Priority = Priority.CONTROL, timeout: float, within: float = 0.0,
    ) -> Reply:  # fmt: skip
        if self.closed is not None:
            raise LinkClosed(self.closed, "closed")
        answer = None
        with trio.move_on_after(timeout):
            while not self.connected:  # noqa: ASYNC110
                await trio.sleep(0.1)
            await trio.sleep(0.01)
            answer = self._other.serve(self._own.peer, method, payload)
            if isawaitable(answer):
                answer = await answer
            await trio.sleep(0.01)  # so that earlier posts arrive before the reply
            self.status.bytes_in += 1
        if answer is None:
            raise CallRefused("timeout", "no answer")
        if isinstance(answer, Refusal):
            raise CallRefused(answer.code, answer.message)
        return cast(Reply, answer)

    def keep(self) -> None:
        self.brief = False
        for callback in self._own.kept:
            callback(cast(Link, self))

    def rest(self, seconds: float) -> None:
        self.rests = seconds

    @property
    def alive(self) -> bool:
        return self.closed is None

    def close(self, code: str = "closed", message: str = "") -> None:
        self._own.cut(self.peer, code)


class FakeEndpoint:
    def __init__(self, net: "FakeNet", peer: PeerId, ip: str, port: int = 0) -> None:
        self.net = net
        self.port = port
        self.peer = peer
        self.ip = ip
        self.dials: list[Address] = []
        self.guard = Guard()
        self.all_links: dict[PeerId, FakeLink] = {}
        self.handlers: dict[str, Handler] = {}
        self._up: list[Callable[[Link], None]] = []
        self.kept: list[Callable[[Link], None]] = []
        self._lost: list[Callable[[Link, str], None]] = []
        self.quiet: list[Callable[[Link], None]] = []
        self.back: list[Callable[[Link], None]] = []
        self.doubt: list[Callable[[Link, bool], None]] = []

    def handle(self, method: str, handler: Handler) -> None:
        self.handlers[method] = handler

    def on_link(self, callback: Callable[[Link], None]) -> None:
        self._up.append(callback)

    def on_link_lost(self, callback: Callable[[Link, str], None]) -> None:
        self._lost.append(callback)

    def on_link_lasting(self, callback: Callable[[Link], None]) -> None:
        self.kept.append(callback)

    def on_link_quiet(self, callback: Callable[[Link], None]) -> None:
        self.quiet.append(callback)

    def on_link_back(self, callback: Callable[[Link], None]) -> None:
        self.back.append(callback)

    def on_link_doubt(self, callback: Callable[[Link, bool], None]) -> None:
        self.doubt.append(callback)

    def link(self, peer: PeerId) -> Link | None:
        return cast(Link | None, self.all_links.get(peer))

    def links(self) -> list[Link]:
        return cast(list[Link], list(self.all_links.values()))

    def serve(self, peer: PeerId, method: str, payload: bytes) -> Any:
        return self.handlers[method](Call(peer, {}, payload))

    async def dial(self, address: Address, *, timeout: float) -> Link:
        self.dials.append(address)
        await trio.sleep(0.01)
        other = self.net.at.get((address.host, address.port))
        if other is None or address.peer not in (None, other.peer):
            raise DialFailed("refused", "nobody there")
        if other.peer not in self.all_links:
            self.net.connect(self, other)
        link = self.all_links[other.peer]
        link.keep()
        return cast(Link, link)

    async def ask(self, peer: PeerId, addresses: Sequence[Address], *, timeout: float) -> Link:
        for address in addresses:
            other = self.net.at.get((address.host, address.port))
            if other is not None and other.peer == peer:
                self.net.connect(self, other, brief=True)
                await trio.sleep(0.01)
                return cast(Link, self.all_links[peer])
        raise DialFailed("refused", "nobody there")

    def cut(self, peer: PeerId, code: str) -> None:
        """End the link to a peer, on both sides."""
        other = self.net.by_peer[peer]
        for one, two in ((self, other), (other, self)):
            if (link := one.all_links.pop(two.peer, None)) is not None:
                link.closed = code
                for callback in one._lost:
                    callback(cast(Link, link), code)

    def add(self, other: "FakeEndpoint", *, dialled: bool, brief: bool = False) -> None:
        link = FakeLink(self, other, dialled=dialled, brief=brief)
        self.all_links[other.peer] = link
        self.net.nursery.start_soon(link.run)

    def announce(self, peer: PeerId) -> None:
        for callback in self._up:
            callback(cast(Link, self.all_links[peer]))


class FakeNet:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.at: dict[tuple[str, int], FakeEndpoint] = {}
        self.by_peer: dict[PeerId, FakeEndpoint] = {}
        self.sent: list[tuple[PeerId, PeerId, str, bytes]] = []

    def connect(self, one: FakeEndpoint, two: FakeEndpoint, *, brief: bool = False) -> None:
        """Make a link that `one` has dialled; a `brief` one is only for a few calls."""
        one.add(two, dialled=True, brief=brief)
        two.add(one, dialled=False)
        one.announce(two.peer)
        two.announce(one.peer)


@dataclass
class FakeNode:
    """A member with its own address, published unless `silent`."""

    net: FakeNet
    number: int
    ip: str = "127.0.0.1"
    silent: bool = False
    ahead: float = 0.0  # seconds of the wall clock
    links: int | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def __post_init__(self) -> None:
        self.identity = Identity.from_seed(self.number.to_bytes(32))
        self.peer = self.identity.peer
        self.address = Address(self.ip, 4000 + self.number, self.peer)
        self.endpoint = FakeEndpoint(self.net, self.peer, self.ip, 4000 + self.number)
        self.net.by_peer[self.peer] = self.endpoint
        self.net.at[self.ip, 4000 + self.number] = self.endpoint
        host = FakeHost(str(self.number), self.ahead)
        self.directory = Membership(
            cast(Host, host), cast(Endpoint, self.endpoint), self.identity, links=self.links
        )
        if not self.silent:
            self.directory.publish(addresses=(str(self.address),))

    async def run(self, *bootstrap: "FakeNode") -> None:
        """Run a member that reaches each of `bootstrap` once."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.directory.run)
                for node in bootstrap:
                    nursery.start_soon(self._reach, node)

    async def _reach(self, node: "FakeNode") -> None:
        while self.endpoint.link(node.peer) is None:
            with suppress(DialFailed):
                await self.endpoint.dial(node.address, timeout=5)
                return
            await trio.sleep(0.5)

    def die(self) -> None:
        self.scope.cancel()
        del self.net.at[self.ip, 4000 + self.number]
        for peer in list(self.endpoint.all_links):
            self.endpoint.cut(peer, "peer-gone")

    @property
    def members(self) -> set[PeerId]:
        return set(self.directory.members())


__all__ = ["Answer", "FakeEndpoint", "FakeHost", "FakeNet", "FakeNode"]
