"""Daemons of homes that meet through one public node, all with their default options."""

from dataclasses import replace

import pytest
import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.host import Host
from shoal.netsim.population import latency
from shoal.netsim.population.mix import VolunteerKind, build, draw, load
from shoal.netsim.world import World


async def start(world: World, name: str, kinds: list[VolunteerKind], first: DaemonHandle | None
                ) -> tuple[DaemonHandle, VolunteerKind]:  # fmt: skip
    """Start a daemon at a home of one of these classes, with `first` as its bootstrap node."""
    whole = sum(kind.share for kind in kinds)
    shares = tuple(replace(kind, share=kind.share / whole) for kind in kinds)
    random = world.streams.get(name, "population")
    drawn = draw(replace(load(), kinds=shares), random, latency.matrix())
    host = build(world, name, drawn).host
    assert isinstance(host, Host)
    bootstrap = [first] if first is not None else []
    node: DaemonHandle = await host.start(Daemon(engine=False, bootstrap=bootstrap))
    return node, drawn.kind


def linked(nodes: list[DaemonHandle]) -> float:
    """Return the fraction of pairs that have a link with a path."""
    found = []
    for number, one in enumerate(nodes):
        for other in nodes[number + 1 :]:
            link = one.node.endpoint.link(other.peer)
            found.append(link is not None and link.connected)
    return sum(found) / len(found)


async def swarm(
    world: World, kinds: list[list[VolunteerKind]], seconds: float
) -> list[DaemonHandle]:
    by_name = {kind.name: kind for kind in load().kinds}
    first, _ = await start(world, "public", [by_name["public"]], None)
    homes = [(await start(world, f"v{n}", each, first))[0] for n, each in enumerate(kinds)]
    await trio.sleep(seconds)
    return [first, *homes]


async def test_homes_behind_routers_meet_including_one_limited_to_the_web(
    world: World,
) -> None:
    kinds = {kind.name: [kind] for kind in load().kinds}
    homes = ["port-restricted", "port-restricted", "udp-blocked"]
    nodes = await swarm(world, [kinds[name] for name in homes], 30)
    public, one, other, web = nodes
    assert linked(nodes) == 1.0
    link = one.node.endpoint.link(other.peer)
    assert link is not None and link.path_kind == "punched"
    assert ("0.0.0.0", 443) in public.node.endpoint.listening
    link = web.node.endpoint.link(one.peer)
    assert link is not None and link.path_kind == "relayed"
    relaying = (await public.status())["relaying"]
    assert relaying["on"] and relaying["rate"] == 64_000 and relaying["places"] == 3
    assert relaying["bytes"] < 64_000 * 32
    for home in (one, other, web):
        status = await home.status()
        assert not status["relaying"]["on"] and status["relaying"]["allowed"]
        assert [held["peer"] for held in status["relays"]] == [public.peer]


@pytest.mark.long
async def test_fourteen_homes_in_three_minutes(world: World) -> None:
    """Without relays 46 to 69 % of the pairs had a link."""
    homes = [kind for kind in load().kinds if kind.nat]
    assert linked(await swarm(world, [homes] * 14, 180)) >= 0.99
