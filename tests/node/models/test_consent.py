"""Which models daemons on simulated hosts serve without being told to."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.daemon.daemon import Node
from shoal.node.defaults import EMBEDDED_ROOT
from shoal.node.invite import decode
from shoal.node.models.consent import Witnesses, backing_of
from shoal.state.group.facts import Role
from shoal.state.membership.record import ModelName
from shoal.tasks.defaults import DEMAND_NETWORKS
from shoal.tasks.placement.demand import Backing
from shoal.transport.bytestream import PathKind
from shoal.transport.identity import PeerId
from shoal.transport.link.status import PathStatus
from shoal.transport.networks import owner

Body = Callable[[World], Awaitable[Any]]


def run(body: Body, *, seed: int = 1) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(1000):
            return await body(world)

    return world.run(main)


async def has_another(node: DaemonHandle) -> str:
    """Give a node another model: the embedded one under another root."""
    await node.until(lambda status: status["models"])
    library = node.node.library
    real = await library.manifest(EMBEDDED_ROOT)
    made = replace(real, config={**real.config, "max_position_embeddings": 77})
    root = (await library.save(made.encode())).root
    await library.set_name("other", root)
    node.node.directory.publish(models=(ModelName("other", root, real.layers, 9),), stored=(root,))
    return root


def test_invitation_is_consent_and_a_stranger_is_not() -> None:
    async def body(world: World) -> None:
        first = await world.host("first").start(engine=False)
        root = await has_another(first)
        stranger = await world.host("stranger").start(bootstrap=[first])
        await trio.sleep(120)
        status = (await stranger.ask("status"))["serving"]
        assert (status["phase"], status["why"]) == ("choosing", None)
        assert "`other` is wanted in 1 of the 3 networks" in status["state"]
        assert not stranger.node.library.roots()

        code = (await first.ask("invite"))["code"]
        guest = await world.host("guest").start(invitation=decode(code))
        shard = await guest.serving()
        assert shard["root"] == root
        why = f"other: {first.peer}, which invited this node, names or serves it"
        assert (await guest.ask("status"))["serving"]["why"] == why
        assert f"chose {why}" in guest.said

    run(body)


def test_new_nodes_serve_a_model_that_several_networks_serve() -> None:
    """A swarm of volunteers grows by itself."""

    async def body(world: World) -> None:
        first = await world.host("first").start(engine=False)
        root = await has_another(first)
        some = [
            await world.host(f"server{n}").start(bootstrap=[first], model="other")
            for n in range(DEMAND_NETWORKS - 1)
        ]
        for node in some:
            assert (await node.serving())["root"] == root
        newcomer = await world.host("newcomer").start(bootstrap=[first])
        assert (await newcomer.serving())["root"] == root
        assert newcomer.node.serving.status().why == (
            f"other: members in {DEMAND_NETWORKS} networks name, serve or ask for it"
        )

    run(body)


def test_the_inviter_is_trusted_after_a_restart() -> None:
    async def body(world: World) -> None:
        first = await world.host("first").start(engine=False)
        code = (await first.ask("invite"))["code"]
        host = world.host("guest")
        guest = await host.start(invitation=decode(code), engine=False)
        await guest.until(lambda status: status["peers"] == 1)
        assert evidence(guest.node).trusted == {first.peer: "which invited this node"}
        await guest.stop()
        guest = await host.start(engine=False)
        assert evidence(guest.node).trusted == {first.peer: "which invited this node"}

    run(body)


def test_neighbours_are_trusted_and_other_peers_count_by_network() -> None:
    async def body(world: World) -> None:
        home = world.gateway("home")
        a = await world.host("a", behind=home).start(engine=False)
        b = await world.host("b", behind=home).start(engine=False, bootstrap=[a])
        far = await world.host("far").start(engine=False)
        c = await world.host("c").start(engine=False, bootstrap=[far])
        await b.until(lambda status: status["peers"] == 1)
        await trio.sleep(10)  # until they have heard each other's multicasts
        await c.until(lambda status: status["peers"] == 1)
        assert evidence(b.node).trusted == {a.peer: "on the same network"}
        found = evidence(c.node)
        assert found.links.keys() == {far.peer}
        assert found == Backing(
            embedded=EMBEDDED_ROOT,
            networks={far.peer: owner(world.names["far"][0])},
            links=found.links,
        )

    run(body)


def test_jobs_of_linked_peers_are_demand() -> None:
    async def body(world: World) -> None:
        first = await world.host("first").start(engine=False)
        other = await world.host("other").start(engine=False, bootstrap=[first])
        await other.until(lambda status: status["peers"] == 1)
        await first.until(lambda status: status["models"])
        await first.ask("job_submit", prompts=["x"], model="tiny")
        await trio.sleep(20)
        assert evidence(other.node).asked == {EMBEDDED_ROOT: {first.peer}}

    run(body)


def test_the_embedded_models_root_is_the_one_that_is_imported() -> None:
    async def body(world: World) -> None:
        first = await world.host("first").start(engine=False)
        await first.until(lambda status: status["models"])
        assert first.node.library.names() == {"tiny": EMBEDDED_ROOT}

    run(body)


def evidence(node: Node) -> Backing:
    parts = Witnesses(node.endpoint, node.dialer, node.library, node.state, node.inviter)
    return backing_of(parts)


class FakeLink:
    """A link with `further`, a path that the peer added or that is not over TCP."""

    def __init__(
        self,
        name: str,
        path_kind: PathKind,
        *,
        dialled: bool = False,
        ip: str = "10.0.0.7",
        further: PathStatus | None = None,
    ) -> None:
        self.peer = PeerId(name)
        self.address = (ip, 4001)
        paths = [PathStatus(path_kind, "tcp", self.address, None, further is None, dialled)]
        paths += [] if further is None else [further]
        self.path_kind = paths[-1].path_kind
        self.status = SimpleNamespace(dialled=dialled, paths=tuple(paths), rtt=None)
        self.identities = self.status


def fake_node(*links: FakeLink, found: str = "", roles: Mapping[str, Role] | None = None) -> Any:
    """A node with only the parts that `backing_of` reads."""
    standings = [SimpleNamespace(peer=peer, role=role) for peer, role in (roles or {}).items()]
    order = SimpleNamespace(members=lambda: iter(standings))
    upkeep = None if roles is None else SimpleNamespace(group=SimpleNamespace(order=order))
    seen = SimpleNamespace(found_at=lambda peer: ["10.0.0.9"] if peer == found else [])
    return SimpleNamespace(
        endpoint=SimpleNamespace(links=lambda: list(links)),
        library=SimpleNamespace(names=dict),
        inviter=SimpleNamespace(peer=None),
        state=SimpleNamespace(
            upkeep=upkeep, views=SimpleNamespace(jobs=SimpleNamespace(waiting={}))
        ),
        dialer=SimpleNamespace(knowledge=seen),
    )


def test_incoming_link_from_a_local_address_is_not_a_neighbour() -> None:
    """A router or a container may give a stranger's connection a local address."""
    backing = backing_of(
        fake_node(
            FakeLink("dialled", PathKind.LAN, dialled=True),
            FakeLink("heard", PathKind.LAN),
            FakeLink("stranger", PathKind.LAN),
            FakeLink("far", PathKind.DIRECT, dialled=True, ip="11.0.0.1"),
            found="heard",
        )
    )
    assert set(backing.trusted) == {"dialled", "heard"}


@pytest.mark.parametrize("medium", ["tcp", "udp"])
def test_local_path_added_by_a_stranger_does_not_make_it_a_neighbour(medium: str) -> None:
    """This node dialled the peer's public address, and the peer came back through a container's
    port. For a UDP path that both sides punched, either side may count as the dialling one."""
    near = PathStatus(PathKind.LAN, medium, ("172.17.0.1", 9), None, True, medium == "udp")
    stranger = FakeLink("stranger", PathKind.DIRECT, dialled=True, ip="11.0.0.1", further=near)
    assert stranger.path_kind is PathKind.LAN
    assert not backing_of(fake_node(stranger)).trusted


def test_one_machine_counts_as_one_network() -> None:
    """The machine has an address of each IP version and tunnels of a broker, and also appears
    through relays and through this node's own container."""
    backing = backing_of(
        fake_node(
            FakeLink("four", PathKind.DIRECT, ip="11.0.0.1"),
            *(FakeLink(f"six{n}", PathKind.DIRECT, ip=f"2600:1:{n:x}::1") for n in range(50)),
            *(FakeLink(f"relayed{n}", PathKind.RELAYED, ip="") for n in range(50)),
            FakeLink("container", PathKind.LAN, ip="172.17.0.1"),
            FakeLink("carrier", PathKind.DIRECT, ip="100.64.0.1"),
        )
    )
    assert set(backing.networks.values()) == {"11.0.0.0/24", "2600:1::/32"}


def test_group_trusts_members_but_not_clients() -> None:
    roles = {"owner": Role.OWNER, "operator": Role.OPERATOR, "client": Role.CLIENT}
    assert set(backing_of(fake_node(roles=roles)).trusted) == {"owner", "operator"}
