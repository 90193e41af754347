"""Two nodes in two homes of the simulated internet, observers, and a link that joins the nodes."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgpack
import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.network.gateway import SubnetRouter
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.bytestream import ByteStream, PathKind, TcpByteStream
from shoal.transport.errors import CallRefused
from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Call, Handler, Refusal, Reply
from shoal.transport.nat.punch.budget import PunchBudget
from shoal.transport.nat.punch.candidates import CandidateTransport, SeenAddresses, gather
from shoal.transport.nat.punch.defaults import PunchLimits
from shoal.transport.nat.punch.needs import OwnNat, Tools
from shoal.transport.nat.punch.outcome import PunchOutcome
from shoal.transport.nat.punch.predict import NatProfile
from shoal.transport.nat.punch.puncher import Puncher
from shoal.transport.nat.reach.reachability import Behaviour
from shoal.transport.nat.reach.stun import MessageClass, StunMessage, decode, encode
from shoal.transport.nat.reach.volunteer import Responder
from shoal.transport.udp.port import UdpPort
from shoal.transport.udp.quic import QuicByteStream

HOME = LinkSpec(up=PipeSpec(delay=0.01), down=PipeSpec(delay=0.01))
PORT = 4001
EI, AD, APD = (
    Behaviour.ENDPOINT_INDEPENDENT,
    Behaviour.ADDRESS_DEPENDENT,
    Behaviour.ADDRESS_AND_PORT_DEPENDENT,
)
_SHORT = {"ei": EI, "ad": AD, "apd": APD}
NATS: Mapping[str, NatProfile] = {
    "public": NatProfile(Behaviour.NONE, EI, preserves=True),
    "public-firewall": NatProfile(Behaviour.NONE, APD, preserves=True),
    "linux-drop": NatProfile(EI, APD, preserves=True),
    "linux-accept": NatProfile(EI, APD, preserves=True),
    "linux-reject": NatProfile(EI, APD, preserves=True),
    "linux-random": NatProfile(APD, APD),
    "linux-fully-random": NatProfile(APD, APD),
    "linux-persistent": NatProfile(EI, APD, preserves=True),
    "full-cone": NatProfile(EI, EI, preserves=True),
    "address-restricted": NatProfile(EI, AD, preserves=True),
    "port-restricted": NatProfile(EI, APD, preserves=True),
    "full-cone-hairpin": NatProfile(EI, EI, preserves=True),
    "cgn": NatProfile(EI, EI),
    "udp-blocked": NatProfile(udp=False),
    **{
        f"{m}m-{f}f": NatProfile(_SHORT[m], _SHORT[f], preserves=m == "ei")
        for m in _SHORT
        for f in _SHORT
    },
}
"""The result of `reach` for each kind of NAT."""


class FakeEndpoint:
    """An endpoint: its peer id, and its call handlers."""

    def __init__(self, peer: str, port: int = PORT) -> None:
        self.peer = PeerId(peer)
        self.port = port
        self.handlers: dict[str, Any] = {}

    def handle(self, method: str, handler: Handler) -> None:
        self.handlers[method] = handler


@dataclass
class FakeLink:
    """Calls to another endpoint. `there` and `back` are the delays in seconds."""

    mine: PeerId
    other: FakeEndpoint
    computer: Host  # the other's
    there: float = 0.04
    back: float = 0.04
    tamper: Callable[[dict[str, Any]], None] | None = None
    calls: int = 0

    @property
    def peer(self) -> PeerId:
        return self.other.peer

    async def call(
        self,
        method: str,
        header: Mapping[str, Any] | None = None,
        payload: bytes = b"",
        *,
        timeout: float,
    ) -> Reply:
        self.calls += 1
        sent = dict(header or {})
        if self.tamper is not None:
            self.tamper(sent)
        with trio.move_on_after(timeout):
            await trio.sleep(self.there)
            call = Call(self.mine, msgpack.unpackb(msgpack.packb(sent)), payload)
            handler = self.other.handlers[method]
            found: Reply | Refusal = await self.computer.run(handler, call)
            await trio.sleep(self.back)
            if isinstance(found, Refusal):
                raise CallRefused(found.code, found.message)
            return found
        raise CallRefused("timeout", "no answer")


@dataclass
class Got:
    """A byte stream that resulted from punching."""

    byte_stream: ByteStream
    client: bool
    path_kind: PathKind
    at: float
    words: list[bytes] = field(default_factory=list)


class Side:
    """One node: its home, ports and puncher. It is its own `knowledge`."""

    def __init__(self, world: World, name: str, kind: str, link: LinkSpec, **knobs: Any) -> None:
        self.gate: SubnetRouter | None = None
        if kind == "public":
            self.computer: Host = world.host(name, link=link)
        else:
            self.gate = world.gateway(f"{name}-gate", kind, link=link, **knobs)
            self.computer = world.host(name, behind=self.gate)
        self.endpoint = FakeEndpoint(name)
        self.nat = NATS.get(kind, NatProfile())
        self.other: Side
        self.link: FakeLink
        self.got: list[Got] = []
        self.observers: list[Place] = []
        self.udp_seen: list[Place] = []
        self.tcp_seen: list[Place] = []
        self.claims_rtt: float | None = None
        self.udp_works = True
        self.tcp_works = True
        self.vouched: set[str] | None = None
        self.same_site = False
        self.puncher: Puncher
        self.host: SimulatedHost
        self._nursery: trio.Nursery

    # Knowledge.

    def own(self, peer: PeerId) -> OwnNat:
        found = []
        here = self.computer.addresses()
        if self.udp_works:
            found += gather(CandidateTransport.UDP, PORT, here, observed=self.udp_seen)
        if self.tcp_works:
            found += gather(CandidateTransport.TCP, PORT, here, observed=self.tcp_seen)
        return OwnNat(self.nat, found[:16], self.observers if self.udp_works else (), 0.0)

    def seen(self, peer: PeerId) -> SeenAddresses:
        vouched = self.vouched
        if vouched is None:
            vouched = {ip for ip, _ in [*self.other.udp_seen, *self.other.tcp_seen]}
        return SeenAddresses(frozenset(vouched), same_site=self.same_site)

    def rtt(self, peer: PeerId) -> float | None:
        return self.claims_rtt

    # Running.

    async def start(self, nursery: trio.Nursery, limits: PunchLimits | None) -> None:
        self._nursery = nursery
        self.host = SimulatedHost(self.computer, PROFILES["desktop"], nursery)
        await self.computer.run(self._start, nursery, limits)

    async def _start(self, nursery: trio.Nursery, limits: PunchLimits | None) -> None:
        self.udp = UdpPort(self.host)
        await nursery.start(self.udp.run, ["0.0.0.0", "::"], PORT)
        self.listener = await self.host.listen("0.0.0.0", PORT)
        udp, limits = self.udp if self.udp_works else None, limits or PunchLimits()
        port = self.endpoint.port
        tools = Tools(
            self.host, udp, lambda: port, PunchBudget(limits), limits, self._on_byte_stream
        )
        self.puncher = Puncher(self.endpoint, tools, self)
        self.udp.on_stun(self._on_stun)
        self.udp.on_byte_stream(self._on_quic)
        await nursery.start(self.puncher.run)
        nursery.start_soon(self._accept)
        self._seen: dict[bytes, Place] = {}
        await self._look(nursery)

    async def _look(self, nursery: trio.Nursery) -> None:
        """Ask the observers like `reach`: over UDP and TCP, from the listen ports."""
        for number, place in enumerate(self.observers):
            data = encode(StunMessage(MessageClass.REQUEST, bytes([number] * 12), padding=64))
            for _ in range(8):
                if bytes([number] * 12) in self._seen or not self.udp_works:
                    break
                self.udp.send(data, place)
                await trio.sleep(0.3)
            with trio.move_on_after(5):
                with suppress(OSError):
                    stream = await self.host.connect(place[0], PORT, source_port=PORT)
                    said = (await stream.receive_some(100)).decode().split()
                    self.tcp_seen.append((said[0], int(said[1])))
        self.udp_seen = list(dict.fromkeys(self._seen.values()))
        if self.tcp_works:
            self.tcp_seen = list(dict.fromkeys(self.tcp_seen))

    def _on_stun(self, data: bytes, source: Place, socket: Datagrams) -> None:
        if self.puncher.on_stun(data, source, socket):
            return
        message = decode(data)
        if (
            message is not None
            and message.kind is MessageClass.SUCCESS
            and message.mapped is not None
        ):
            self._seen[message.transaction] = message.mapped

    # Pipes.

    def _on_byte_stream(
        self, byte_stream: ByteStream, peer: PeerId, client: bool, path_kind: PathKind
    ) -> None:
        assert peer == self.other.endpoint.peer
        self._take(byte_stream, client, path_kind)

    def _take(self, byte_stream: ByteStream, client: bool, path_kind: PathKind) -> None:
        got = Got(byte_stream, client, path_kind, trio.current_time())
        self.got.append(got)
        self.computer.start_soon(self._nursery, self._talk, got)

    def _on_quic(self, byte_stream: QuicByteStream) -> None:
        assert self.puncher.arrived(byte_stream) in (self.other.endpoint.peer, None)
        self._take(byte_stream, False, PathKind.PUNCHED)

    async def _accept(self) -> None:
        while True:
            stream = await self.listener.accept()
            self.computer.start_soon(self._nursery, self._greet, stream)

    async def _greet(self, stream: trio.SocketStream) -> None:
        byte_stream = TcpByteStream(stream)
        with suppress(OSError, trio.ClosedResourceError):
            client = await self.puncher.is_client(byte_stream)
            self._take(byte_stream, client, PathKind.PUNCHED)

    async def _talk(self, got: Got) -> None:
        """Let the client speak first and the server reply, like TLS."""
        with suppress(OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            if got.client:
                got.byte_stream.write_ready(memoryview(b"ping"))
            await got.byte_stream.wait_readable()
            got.words.append(got.byte_stream.read_ready(100))
            if not got.client:
                got.byte_stream.write_ready(memoryview(b"pong"))
            if got.words[0]:
                self.puncher.met(self.other.endpoint.peer, got.byte_stream.medium)

    @property
    def worked(self) -> list[Got]:
        return [got for got in self.got if got.words and got.words[0] in (b"ping", b"pong")]


class Street:
    """Both sides, and the observers that both know."""

    def __init__(
        self,
        kinds: tuple[str, str],
        *,
        seed: int = 1,
        links: tuple[LinkSpec, LinkSpec] = (HOME, HOME),
        skew: float = 0.0,
        udp: bool = True,
        tcp: bool = True,
        limits: PunchLimits | None = None,
        knobs: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
        names: tuple[str, str] = ("anna", "bert"),
    ) -> None:
        """`skew` is how much later than the first side the second begins, in seconds."""
        self.world = World(seed=seed)
        self.limits = limits
        self.a = Side(self.world, names[0], kinds[0], links[0], **knobs[0])
        self.b = Side(self.world, names[1], kinds[1], links[1], **knobs[1])
        self._watchers = [self.world.host(f"watcher{i}", link=HOME) for i in range(3)]
        for side, other in ((self.a, self.b), (self.b, self.a)):
            side.other = other
            side.udp_works, side.tcp_works = udp, tcp
            side.link = FakeLink(side.endpoint.peer, other.endpoint, other.computer)
            side.observers = [(host.addresses()[0], PORT) for host in self._watchers]
        # The answering side waits for half of the round trip that the offer states.
        self.a.claims_rtt = self.b.claims_rtt = 0.08 + 2 * max(skew, 0.0)
        self.a.link.back += max(-skew, 0.0)

    def run(self, body: Callable[["Street"], Awaitable[Any]]) -> Any:
        """Run `body` once both sides know where they are seen."""

        async def main() -> Any:
            async with trio.open_nursery() as nursery:
                for host in self._watchers:
                    await host.run(self._watch, host, nursery)
                await self.a.start(nursery, self.limits)
                await self.b.start(nursery, self.limits)
                result = await body(self)
                nursery.cancel_scope.cancel()
            return result

        return self.world.run(main)

    async def _watch(self, computer: Host, nursery: trio.Nursery) -> None:
        """A peer that answers Binding requests, and tells TCP callers where it sees them."""
        host = SimulatedHost(computer, PROFILES["desktop"], nursery)
        port = UdpPort(host)
        responder = Responder()

        def answer(data: bytes, source: Place, socket: Datagrams) -> None:
            message = decode(data)
            found = message and responder.answer(data, message, source, host.now())
            if found:
                port.send(found, source, socket)

        port.on_stun(answer)
        await nursery.start(port.run, ["0.0.0.0"], PORT)
        listener = await host.listen("0.0.0.0", PORT)

        async def accept() -> None:
            while True:
                stream = await listener.accept()
                name = stream.socket.getpeername()
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(f"{name[0]} {name[1]}".encode())
                await stream.aclose()

        nursery.start_soon(accept)


@dataclass
class Met:
    """Result of `meet`: the offering side's outcome, whether both can talk, and the duration."""

    outcome: PunchOutcome
    connected: bool
    seconds: float | None
    street: Street


def meet(kinds: tuple[str, str], **settings: Any) -> Met:
    """Let the first side offer. Return whether both ends of a byte stream can then talk."""

    async def body(street: Street) -> Met:
        began = trio.current_time()
        outcome = await street.a.computer.run(street.a.puncher.punch, street.a.link)
        with trio.move_on_after(8.0 if outcome.worked else 1.0):
            while not (street.a.worked and street.b.worked):  # noqa: ASYNC110
                await trio.sleep(0.05)
        worked = bool(street.a.worked and street.b.worked)
        first = min((got.at for got in street.a.worked), default=began)
        return Met(outcome, worked, first - began if worked else None, street)

    found: Met = Street(kinds, **settings).run(body)
    return found


def increasing(numbers: list[float]) -> bool:
    return all(a <= b for a, b in pairwise(numbers))
