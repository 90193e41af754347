"""Two homes, their relays, their calls to each other, and the faults on them."""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

import trio

from shoal.netsim.faults import Faults
from shoal.netsim.network.gateway import SubnetRouter
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.bytestream import PathKind
from shoal.transport.errors import CallRefused, DialFailed, LinkClosed
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream
from shoal.transport.link.stream import Stream
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.strategies.dialer import Strategies

from .transportnode import TransportNode

TIMEOUT_S = 15.0
READY_S = 5.0
CALLS_PER_S = 3.0
SIZES = ((128, 88), (4 * 1024, 11), (64 * 1024, 1))
BLOCK = 200
BLOCK_S = 0.2
PUBLISH_S = 3.0
RELAY_RATE = 1_000_000  # bytes/s that the relays' owners lend; the marks hold for that
KINDS = (
    "linux-drop", "linux-random", "full-cone", "port-restricted", "address-restricted",
    "eim-apdf", "adm-adf", "apdm-apdf", "udp-blocked", "public",
)  # fmt: skip
OPEN = ("public", "full-cone")  # can be dialled
LASTS_S = {
    "interface down": 12.0, "slept": 60.0, "moved": 4.0, "mapping gone": 2.0,
    "one way": 6.0, "silent": 6.0,
}  # fmt: skip
"""Seconds of a fault that calls have to wait for, because nothing can be done meanwhile."""


@dataclass
class Home:
    """A volunteer: its program, and its router if it has one."""

    node: TransportNode
    router: SubnetRouter | None
    kind: str
    numbers: Iterator[int]
    bytes_in: int = 0


@dataclass
class Town:
    """One world, its tasks, and its measurements."""

    world: World
    faults: Faults
    rng: random.Random
    misfortune: str
    homes: list[Home] = field(default_factory=list)
    relays: list[TransportNode] = field(default_factory=list)
    calls: list[tuple[float, float, str]] = field(default_factory=list)
    """Start, end, and the code of the error."""
    stalls: list[float] = field(default_factory=list)
    began: float = 0.0  # time of the failure
    base: float = 0.0  # when a recovery can begin
    patience: float = TIMEOUT_S  # the timeout of a call that is made now
    published: dict[str, list[tuple[float, Sequence[Address]]]] = field(default_factory=dict)
    quiet: set[Link] = field(default_factory=set)
    # times that a link became quiet twice, or came back without having been quiet
    unpaired: int = 0
    stop: bool = False
    say: Callable[[str], None] = lambda line: None

    def book(self, peer: str) -> Sequence[Address]:
        """Return the addresses that a peer publishes, which reach others a few seconds late."""
        known = self.published.get(peer, [])
        old = [addresses for when, addresses in known if when <= trio.current_time() - PUBLISH_S]
        return old[-1] if old else known[0][1] if known else ()

    async def publish(self) -> None:
        """Record what the nodes would publish, as long as they have a connected link."""
        while True:
            for node in [*self.relays, *(home.node for home in self.homes)]:
                if not any(link.connected for link in node.endpoint.links()):
                    continue
                known = self.published.setdefault(node.peer, [])
                if not known or known[-1][1] != node.addresses():
                    known.append((trio.current_time(), node.addresses()))
            await trio.sleep(0.25)

    def link(self) -> Link | None:
        one, other = (home.node for home in self.homes)
        return one.endpoint.link(other.peer)


def link_spec(rng: random.Random) -> LinkSpec:
    """Return a home's access link: 2 to 15 ms, up to 1 % loss."""
    delay, loss = rng.uniform(0.002, 0.015), rng.choice((0.0, 0.001, 0.005, 0.01))
    return LinkSpec(
        PipeSpec(delay=delay, rate=rng.choice((5e5, 1e6, 5e6)), loss=loss),
        PipeSpec(delay=delay, rate=rng.choice((2e6, 5e6, 2e7)), loss=loss),
    )


async def build(town: Town) -> None:
    """Build the relays and the two homes, linked and working."""
    world, rng = town.world, town.rng
    for number in range(rng.randint(2, 4)):
        relay = TransportNode(
            world.host(f"relay{number}"),
            bytes([number + 1]) * 32,
            relaying=RelayLimits(volunteer=True, rate=RELAY_RATE),
            further=(("0.0.0.0", 443),),
            book=town.book,
        )
        town.relays.append(relay)
        await relay.computer.start(relay)
    relayed = town.misfortune == "relay killed"
    for number, name in enumerate("ab"):
        kind = rng.choice([kind for kind in KINDS if not (relayed and kind in OPEN)])
        router = None
        if kind != "public":
            router = world.gateway(f"{name}-router", kind, link=link_spec(rng))
        host = world.host(name, behind=router, link=None if router else link_spec(rng))
        strategies = Strategies(punch_tcp=not relayed, punch_udp=not relayed)
        node = TransportNode(host, bytes([9 + number]) * 32, strategies=strategies, book=town.book)
        town.homes.append(Home(node, router, kind, iter(range(1, 1 << 30))))
        await host.start(node)
    async with trio.open_nursery() as nursery:
        for home in town.homes:
            nursery.start_soon(settle, town, home)


async def settle(town: Town, home: Home) -> None:
    """Connect a home to the relays, and wait for a reservation if it needs one."""
    for relay in town.relays:
        ip = relay.computer.addresses()[0]
        at = [relay.address(), type(relay.address())(ip, 443, relay.peer)]
        await home.node.connect(relay.peer, at)
    with trio.move_on_after(30):
        relays = home.node.dialer.relays
        while not relays.reachable and not relays.relays:  # noqa: ASYNC110
            await trio.sleep(0.05)


# Work.


async def work(town: Town, nursery: trio.Nursery) -> None:
    """Start calls and a stream from each home to the other, as tasks of their computers."""
    for index, home in enumerate(town.homes):
        other = town.homes[1 - index]
        home.node.endpoint.handle_stream("pour", partial(pour_in, town, home))
        rng = random.Random(town.rng.random())
        home.node.computer.start_soon(nursery, ask, town, home, other, rng, nursery)
        home.node.computer.start_soon(nursery, pour, town, home, other)


async def ask(
    town: Town, home: Home, other: Home, rng: random.Random, nursery: trio.Nursery
) -> None:
    while not town.stop:
        await trio.sleep(rng.expovariate(CALLS_PER_S))
        size = rng.choices([size for size, _ in SIZES], [weight for _, weight in SIZES])[0]
        home.node.computer.start_soon(nursery, call, town, home, other, next(home.numbers), size)


async def call(town: Town, home: Home, other: Home, number: int, size: int) -> None:
    began, code = trio.current_time(), ""
    payload = number.to_bytes(8, "big") * (size // 8)
    try:
        link = home.node.endpoint.link(other.node.peer) or await home.node.dialer.connect(
            other.node.peer, timeout=town.patience
        )
        left = began + town.patience - trio.current_time()
        reply = await link.call("echo", {"n": number}, payload, timeout=left)
        if reply.header != {"n": number} or bytes(reply.payload) != payload:
            code = "wrong-answer"
    except (CallRefused, LinkClosed, DialFailed) as error:
        code = error.code
        town.say(f"call {number} of {home.node.computer.name} from {began:.2f}: {code}")
    town.calls.append((began, trio.current_time(), code))


async def pour(town: Town, home: Home, other: Home) -> None:
    """Send a block every 0.2 s that contains the time when it was due."""
    link = await home.node.dialer.connect(other.node.peer, timeout=TIMEOUT_S)
    try:
        stream: Stream = await link.open_stream("pour", {})
        while not town.stop:
            await stream.send(int(trio.current_time() * 1e6).to_bytes(8, "big") * (BLOCK // 8))
            await trio.sleep(BLOCK_S)
        await stream.finish()
        if await stream.receive(1) != b"":
            raise CallRefused("wrong-answer", "more came than should")
        code = ""
    except (CallRefused, LinkClosed) as error:
        code = error.code
        town.say(f"the stream of {home.node.computer.name}: {code}")
    town.calls.append((inf, trio.current_time(), code))  # its blocks tell how late it was


async def pour_in(town: Town, home: Home, incoming: IncomingStream) -> None:
    data, last = bytearray(), 0
    while piece := await incoming.stream.receive(1 << 16):
        data += piece
        while len(data) >= BLOCK:
            sent = int.from_bytes(data[:8], "big")
            if data[:BLOCK] != sent.to_bytes(8, "big") * (BLOCK // 8) or sent <= last:
                incoming.stream.reset("wrong-bytes")
                return
            if town.began and sent / 1e6 < town.base + READY_S:
                town.stalls.append(trio.current_time() - max(sent / 1e6, town.base))
            last = sent
            del data[:BLOCK]
    await incoming.stream.finish()


# Faults. Each returns once recovery can begin.


async def relay_killed(town: Town) -> bool:
    """Cut the power of the relay that carries the link. No other circuit is ready."""
    link = town.link()
    assert link is not None
    used = used_relay(town)
    await town.faults.crash(used.computer)
    return False


async def relay_killed_beside(town: Town) -> bool:
    link = town.link()
    ready = link is not None and link.path_kind is not PathKind.RELAYED
    await town.faults.crash(used_relay(town).computer)
    return ready


def used_relay(town: Town) -> TransportNode:
    """Return the relay that the link uses or used; any relay if none is known."""
    one, other = (home.node for home in town.homes)
    for side, peer in ((one, other), (other, one)):
        link = side.endpoint.link(peer.peer)
        for path in link.paths if link is not None else ():
            relay = getattr(path.secured._byte_stream, "relay", None)
            found = [each for each in town.relays if each.peer == relay]
            if found:
                return found[0]
    return town.rng.choice(town.relays)


async def nat_gone(town: Town) -> bool:
    return await at_router(town, lambda router, off: town.faults.reboot(router, seconds=off))


async def ip_changed(town: Town) -> bool:
    return await at_router(town, lambda router, off: town.faults.redial(router))


async def at_router(town: Town, deed: Callable[[SubnetRouter, float], None]) -> bool:
    routers = [home.router for home in town.homes if home.router is not None]
    if not routers:
        return True
    off = town.rng.choice((0.0, 0.0, 2.0))
    deed(town.rng.choice(routers), off)
    await trio.sleep(off)
    return one_is_open(town)


def one_is_open(town: Town) -> bool:
    """Whether the same address can be dialled again."""
    return any(home.kind in OPEN for home in town.homes)


async def moved(town: Town) -> bool:
    """Move a laptop from one network to another, with no network in between for a while."""
    home = town.rng.choice(town.homes)
    host, world = home.node.computer, town.world
    router = world.gateway("new-router", town.rng.choice(KINDS[:-2]), link=link_spec(town.rng))
    plug = host.attachments.pop()
    for address in list(plug.addresses):
        plug.subnet.release(plug, address)
    plug.up.cut = plug.down.cut = True
    host.addresses_changed()
    away = town.rng.choice((0.0, 1.0, 4.0))
    await trio.sleep(away)
    world.plug(host, behind=router)
    return False


async def interface_down(town: Town) -> bool:
    home = town.rng.choice(town.homes)
    what = town.rng.choice((home.router, home.node.computer)) or home.node.computer
    return await for_a_while(
        town,
        town.rng.uniform(1, 12),
        lambda: town.faults.link_down(what),
        lambda: town.faults.link_up(what),
    )


async def slept(town: Town) -> bool:
    computer = town.rng.choice(town.homes).node.computer
    await for_a_while(
        town,
        town.rng.uniform(5, 60),
        lambda: town.faults.sleep(computer),
        lambda: town.faults.resume(computer),
    )
    return one_is_open(town)


async def for_a_while(
    town: Town, seconds: float, begin: Callable[[], None], end: Callable[[], None]
) -> bool:
    begin()
    await trio.sleep(seconds)
    end()
    return True


async def one_way(town: Town) -> bool:
    names = [home.node.computer.name for home in town.homes]
    town.rng.shuffle(names)
    return await cut_between(town, names, oneway=True)


async def silent(town: Town) -> bool:
    return await cut_between(town, [home.node.computer.name for home in town.homes])


async def cut_between(town: Town, names: list[str], *, oneway: bool = False) -> bool:
    """Cut the direct path, or a relayed one between the second home and its relay.

    A home that can be dialled has no reservation at a relay. Between two such homes there is no
    other path, and theirs comes back.
    """
    link = town.link()
    direct = link is not None and link.path_kind is not PathKind.RELAYED
    if not direct:
        names = [names[0], used_relay(town).computer.name]
    rules = town.faults.partition(names[:1], names[1:], oneway=oneway)
    if all(home.kind in OPEN for home in town.homes):
        await trio.sleep(LASTS_S[town.misfortune])
        town.faults.heal(*rules)
        return True
    return direct and link is not None and len(link.status.paths) > 1


MISFORTUNES: dict[str, Callable[[Town], Awaitable[bool]]] = {
    "relay killed": relay_killed,
    "relay killed beside": relay_killed_beside,
    "mapping gone": nat_gone,
    "ip changed": ip_changed,
    "moved": moved,
    "interface down": interface_down,
    "slept": slept,
    "one way": one_way,
    "silent": silent,
}
