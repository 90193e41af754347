"""Whole nodes whose paths die: failover, and the fate of calls in flight.

`bench/connect_failover.py` does the same in a thousand simulated worlds.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from bench.worlds.town import Town
from bench.worlds.transportnode import TransportNode
from shoal.netsim.faults import Faults
from shoal.netsim.world import World
from shoal.transport import defaults
from shoal.transport.bytestream import PathKind
from shoal.transport.errors import LinkClosed
from shoal.transport.lane.connection import LaneConnection
from shoal.transport.limits import Limits
from shoal.transport.link.link import Link
from shoal.transport.link.paths import LinkPaths
from shoal.transport.strategies.dialer import Strategies

RELAYED = Strategies(lan=False, punch_tcp=False, punch_udp=False)
PUNCHED = Strategies(lan=False)


class Homes:
    """Two homes behind routers, with a record of the events of the link between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = Faults(world)
        self.town = Town(world)
        self.told: list[str] = []

    async def meet(
        self, strategies: Strategies, relays: int = 3, limits: Limits | None = None
    ) -> Link:
        """The link of `a` to `b`, ten seconds old."""
        for number in range(relays):
            await self.town.relay(self.world.host(f"relay{number}"))
        self.a, self.b = [await self._home(name, strategies, limits) for name in "ab"]
        for home in (self.a, self.b):
            await self.town.introduce(home, self.town.relays)
        await trio.sleep(10)
        found = await self.a.connect(self.b.peer)
        await trio.sleep(10)
        self._hear(self.a, self.b)
        return found

    async def _home(
        self, name: str, strategies: Strategies, limits: Limits | None
    ) -> TransportNode:
        router = self.world.gateway(f"{name}-router", "linux-drop")
        host = self.world.host(name, behind=router)
        return await self.town.node(host, strategies=strategies, limits=limits)

    def _hear(self, home: TransportNode, other: TransportNode) -> None:
        def note(what: str) -> Callable[..., None]:
            return lambda link, *rest: self.told.append(what) if link.peer == other.peer else None

        home.endpoint.on_link_quiet(note("quiet"))
        home.endpoint.on_link_back(note("back"))
        home.endpoint.on_link_lost(note("lost"))

    def used_relay(self, link: Link) -> TransportNode:
        path = next(path for path in link.paths if path.path_kind is PathKind.RELAYED)
        return self.town.nodes[path.secured._byte_stream.relay]  # type: ignore[attr-defined]

    async def ask(self, link: Link, number: int, timeout: float) -> float:
        """Return the seconds until the reply. Raises the errors of `Link.call`."""
        began = trio.current_time()
        reply = await self.a.call(link, header={"n": number}, timeout=timeout)
        assert reply.header == {"n": number}
        assert self.b.calls[number] == 1
        return trio.current_time() - began


async def test_a_dead_relay_is_replaced_before_its_path_is_dropped(world: World) -> None:
    homes = Homes(world)
    link = await homes.meet(RELAYED)
    assert link.path_kind is PathKind.RELAYED
    await homes.faults.crash(homes.used_relay(link).computer)
    assert await homes.ask(link, 1, timeout=15) < 2.5
    assert not homes.told


async def test_without_suspicion_it_takes_until_the_path_is_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinkPaths, "is_suspect", lambda paths, now: False)
    homes = Homes(world)
    found = await homes.meet(RELAYED)
    await homes.faults.crash(homes.used_relay(found).computer)
    assert await homes.ask(found, 1, timeout=15) > 3


async def test_a_dead_direct_path_is_replaced_by_the_relayed_one(world: World) -> None:
    homes = Homes(world)
    link = await homes.meet(PUNCHED)
    assert link.path_kind is PathKind.PUNCHED
    homes.faults.partition(["a"], ["b"])
    assert await homes.ask(link, 1, timeout=15) < 3
    assert link.status.path == "relayed" and not homes.told


async def test_a_direct_path_that_is_cut_one_way_is_not_used_again(world: World) -> None:
    homes = Homes(world)
    link = await homes.meet(PUNCHED)
    homes.faults.partition(["a"], ["b"], oneway=True)
    assert await homes.ask(link, 1, timeout=15) < 4
    for number in range(2, 12):
        assert await homes.ask(link, number, timeout=15) < 1
        await trio.sleep(0.5)


async def deaf(world: World) -> float:
    """Return how long a call of `a` waits if nothing from `b` arrives directly, in seconds."""
    homes = Homes(world)
    link = await homes.meet(PUNCHED)
    await trio.sleep(5)  # until no ping of the introduction is under way
    homes.faults.partition(["b"], ["a"], oneway=True)
    return await homes.ask(link, 1, timeout=15)


async def test_a_path_is_left_sooner_if_another_one_gets_replies(world: World) -> None:
    assert await deaf(world) < 1


@pytest.mark.parametrize(
    ("name", "off"),
    [("is_outrun", lambda connection, other: False), ("hint", LaneConnection.ping_soon)],
)
async def test_without_hints_a_path_gets_all_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, off: Callable[..., object]
) -> None:
    monkeypatch.setattr(LaneConnection, name, off)
    assert await deaf(world) > 1


async def test_a_standby_path_outlives_a_slow_pong(world: World) -> None:
    """A standby path is pinged less often than the silence that ends a path in use."""
    homes = Homes(world)
    link = await homes.meet(PUNCHED)
    relay = homes.used_relay(link).computer
    homes.faults.delay(["a", "b", relay.name], ["a", "b", relay.name], 0.2)
    await trio.sleep(40)
    assert PathKind.RELAYED in {path.path_kind for path in link.status.paths}


async def sleep(homes: Homes, link: Link, seconds: float, timeout: float) -> None:
    """Make a call from `a` while `b` sleeps."""
    homes.faults.sleep(homes.b.computer)

    async def wake() -> None:
        await trio.sleep(seconds)
        homes.faults.resume(homes.b.computer)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wake)
        assert await homes.ask(link, 1, timeout) < seconds + 5


async def test_a_call_under_way_survives_a_laptops_sleep(world: World) -> None:
    homes = Homes(world)
    link = await homes.meet(PUNCHED)
    await sleep(homes, link, 60, timeout=90)
    assert homes.told == ["quiet", "back"]


async def test_a_call_does_not_survive_if_links_are_not_held(world: World) -> None:
    homes = Homes(world)
    link = await homes.meet(PUNCHED, limits=replace(Limits(), hold_s=defaults.GRACE_S))
    with pytest.RaisesGroup(LinkClosed):
        await sleep(homes, link, 60, timeout=90)
    await trio.sleep(1)
    assert homes.told == ["quiet", "lost"]


async def test_a_call_does_not_survive_a_sleep_longer_than_links_are_held(world: World) -> None:
    homes = Homes(world)
    link = await homes.meet(PUNCHED)
    with pytest.RaisesGroup(LinkClosed):
        await sleep(homes, link, 150, timeout=200)


async def test_paths_are_back_soon_after_the_network(world: World) -> None:
    """Dials that hang since the cut do not delay those that work."""
    homes = Homes(world)
    link = await homes.meet(RELAYED)
    router = world.gateways["a-router"]
    homes.faults.link_down(router)
    await trio.sleep(11)
    homes.faults.link_up(router)
    assert await homes.ask(link, 1, timeout=15) < 4
    assert homes.told == ["quiet", "back"]


async def test_a_link_survives_a_change_of_address(world: World) -> None:
    homes = Homes(world)
    link = await homes.meet(PUNCHED)
    homes.faults.redial("a-router")
    assert await homes.ask(link, 1, timeout=15) < 5
    assert not homes.told


async def test_own_sleep_does_not_use_up_the_grace_period(world: World) -> None:
    homes = Homes(world)
    link = await homes.meet(PUNCHED)
    back = homes.b.endpoint.link(homes.a.peer)
    assert back is not None
    homes.faults.link_down("b")
    await trio.sleep(8)
    assert back.quiet and not back.connected
    homes.faults.link_up("b")
    await sleep(homes, link, 60, timeout=90)
    assert homes.b.endpoint.link(homes.a.peer) is back


@pytest.mark.seeds(4)
async def test_dials_that_cross_do_not_end_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both homes search for a path at the same moment, over relays that are equally far."""
    monkeypatch.setattr(LinkPaths, "is_suspect", lambda paths, now: False)
    homes = Homes(world)
    found = await homes.meet(RELAYED)
    await homes.faults.crash(homes.used_relay(found).computer)
    assert await homes.ask(found, 1, timeout=15) < 5


async def test_a_link_is_in_doubt_before_it_is_quiet(world: World) -> None:
    homes = Homes(world)
    await homes.meet(RELAYED)
    doubts: list[tuple[bool, list[str]]] = []
    homes.a.endpoint.on_link_doubt(lambda link, doubt: doubts.append((doubt, list(homes.told))))
    router = world.gateways["a-router"]
    homes.faults.link_down(router)
    await trio.sleep(11)
    homes.faults.link_up(router)
    await trio.sleep(10)
    assert doubts[0] == (True, []) and doubts[-1] == (False, ["quiet", "back"])


@pytest.mark.parametrize(("seconds", "doubted"), [(2.2, False), (8.0, True)])
async def test_a_short_silence_of_a_relayed_path_does_not_put_its_peer_in_doubt(
    world: World, seconds: float, doubted: bool
) -> None:
    """The node searches for another path meanwhile, but tells a doubt to all peers."""
    homes = Homes(world)
    link = await homes.meet(RELAYED)
    doubts: list[float] = []
    began = trio.current_time()

    def note(link: Link, doubt: bool) -> None:
        if doubt and link.peer in (homes.a.peer, homes.b.peer):
            doubts.append(trio.current_time() - began)

    for home in (homes.a, homes.b):
        home.endpoint.on_link_doubt(note)
    router = world.gateways["a-router"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(homes.ask, link, 1, 30)
        await trio.sleep(0.01)
        homes.faults.link_down(router)
        await trio.sleep(seconds)
        homes.faults.link_up(router)
    assert bool(doubts) == doubted
    assert not doubts or defaults.SILENT_S - 0.5 <= doubts[0] <= defaults.SILENT_S + 1.0


@pytest.mark.parametrize("patience", [0.0, defaults.LAPSED_S])
async def test_an_exhausted_circuit_does_not_put_its_peer_in_doubt(
    world: World, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """Relays end circuits every two minutes, and each doubt is reported to all peers."""
    monkeypatch.setattr(defaults, "LAPSED_S", patience)
    homes = Homes(world)
    link = await homes.meet(RELAYED)
    doubts: list[bool] = []
    for home in (homes.a, homes.b):
        home.endpoint.on_link_doubt(lambda link, doubt: doubts.append(doubt))
    for circuit in homes.used_relay(link).dialer.relaying.book.circuits():
        circuit.cut()
    await trio.sleep(1)
    assert await homes.ask(link, 1, timeout=15) < 1
    assert bool(doubts) == (patience == 0.0)


async def test_a_dead_peer_behind_an_exhausted_circuit_is_in_doubt(world: World) -> None:
    homes = Homes(world)
    link = await homes.meet(RELAYED)
    doubts: list[bool] = []
    homes.a.endpoint.on_link_doubt(lambda link, doubt: doubts.append(doubt))
    relay = homes.used_relay(link)
    homes.faults.link_down(world.gateways["b-router"])
    for circuit in relay.dialer.relaying.book.circuits():
        circuit.cut()
    await trio.sleep(defaults.LAPSED_S + 0.5)
    assert doubts == [True]
