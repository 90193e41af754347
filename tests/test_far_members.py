"""Layers of members without a link: they count while the member answers, and only in the run that
announced them.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.tasks.engine.families import architecture
from shoal.tasks.placement.holes import needed_bytes, parts_of
from shoal.transport.identity import PeerId

LISTED_S = 5.0  # maximum of seconds for which a dead member is listed


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let members be linked only when they are needed, not because they are known."""
    monkeypatch.setattr("shoal.state.membership.roster.Roster.next_dials", lambda *_: [])


def run(body: Callable[[World], Awaitable[Any]]) -> Any:
    world = World(seed=1)

    async def main() -> Any:
        with trio.fail_after(400):
            return await body(world)

    return world.run(main)


async def line(world: World) -> tuple[DaemonHandle, DaemonHandle]:
    """Start a node that serves the first half of `tiny`, and a hub that is linked with it."""
    hub = await world.host("hub").start(engine=False)
    # A node that looks for a relay would link with this one, which has to stay without a link.
    far = await world.host("far").start(bootstrap=[hub], model="tiny", layers=(0, 3), relay=0)
    await far.serving()
    await trio.sleep(20)
    return far, hub


async def half(world: World, hub: DaemonHandle, name: str) -> DaemonHandle:
    """Start a node that has memory for half of the model, and chooses the half itself."""
    manifest = await hub.node.library.manifest(hub.node.library.names()["tiny"])
    arch = architecture(manifest.config)
    halves = [needed_bytes(arch, parts_of(start, start + 3, 6), "float32") for start in (0, 3)]
    found: DaemonHandle = await world.host(name).start(
        bootstrap=[hub], model="tiny", memory=max(halves)
    )
    return found


def shards(node: DaemonHandle, peer: PeerId) -> list[tuple[int, int]]:
    record = node.node.directory.members().get(peer)
    return [] if record is None else [(shard.start, shard.stop) for shard in record.shards]


def test_a_member_without_a_link_counts_for_placement_and_routing() -> None:
    """Otherwise all nodes of a large swarm would take the same layers, and no chain would have the
    others.
    """

    async def body(world: World) -> None:
        far, hub = await line(world)
        near = await half(world, hub, "near")
        assert (await near.serving())["layers"] == "3:6"
        assert far.peer not in near.node.state.replication.exchange.peers
        answer = await near.generate("Once", max_tokens=4)
        assert [node["peer"] for node in answer["nodes"]] == [far.peer, near.peer]

    run(body)


def test_a_dead_member_is_neither_routed_to_nor_counted() -> None:
    """Its feed still says what it served."""

    async def body(world: World) -> None:
        far, hub = await line(world)
        near = await half(world, hub, "near")
        await near.serving()
        await far.host.crash()
        await trio.sleep(LISTED_S)
        assert near.node.state.views.placements.of(far.peer)
        assert shards(near, far.peer) == [] and shards(hub, far.peer) == []
        assert far.peer not in [peer["peer"] for peer in (await near.ask("peers"))["peers"]]
        with pytest.raises(ControlError, match=r"layers 0:3 .* served by no node that answers"):
            await near.generate("Once", max_tokens=4)
        other = await half(world, hub, "other")
        assert (await other.serving())["layers"] == "0:3"
        await trio.sleep(
            2
        )  # its feed, and that of the hub that vouches for it, are written and announced
        assert (await near.generate("Once", max_tokens=4))["tokens"] == 4

    run(body)


def test_a_returned_member_serves_nothing_until_it_says_so() -> None:
    """Its old feed does not count. Twin: the view shows the old feed."""

    async def body(world: World) -> None:
        far, hub = await line(world)
        near = await half(world, hub, "near")
        await near.serving()
        said, listed = 0.0, 0.0
        await far.host.crash()
        far.host.program = Daemon(bootstrap=[hub], engine=False)
        back = await far.host.restart()
        for _ in range(1000):
            await trio.sleep(0.01)
            alive = back.peer in near.node.directory.members()
            said += 0.01 * (alive and bool(near.node.state.views.placements.of(back.peer)))
            if hub.node.endpoint.link(back.peer) is not None:
                listed += 0.01 * bool(shards(near, back.peer))
        assert alive and not near.node.state.views.placements.of(back.peer)
        assert listed <= 0.3 and said > 0

    run(body)


def test_a_member_that_ends_says_so_at_once() -> None:
    async def body(world: World) -> None:
        far, hub = await line(world)
        near = await half(world, hub, "near")
        await near.serving()
        far.node.stop()
        await trio.sleep(0.2)
        assert shards(hub, far.peer) == []

    run(body)
