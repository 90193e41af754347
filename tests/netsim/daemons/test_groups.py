"""A private group of whole daemons: created, joined, partitioned, healed; revoked nodes are out."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.faults import Faults
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.node.invite import decode
from shoal.state.group.facts import revocation_fact, revocation_key
from shoal.state.membership.record import ShardRecord
from shoal.state.views.jobs import Job, JobState, claim_fact, job_fact, job_id, new_claim
from shoal.transport.identity import PeerId, public_key_of

Body = Callable[[World], Awaitable[Any]]


def run(body: Body, *, seed: int = 1) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(900):
            return await body(world)

    return world.run(main)


async def found(world: World, name: str = "n0") -> DaemonHandle:
    node: DaemonHandle = await world.host(name).start(private=True, engine=False)
    return node


async def join(
    world: World,
    name: str,
    by: DaemonHandle,
    role: str = "operator",
    *,
    behind: Any = None,
    **more: Any,
) -> DaemonHandle:
    code = (await by.ask("invite", role=role))["code"]
    settings = {"engine": False} | more
    host = world.host(name, behind=behind)
    node: DaemonHandle = await host.start(invitation=decode(code), **settings)
    return node


async def group(world: World, *roles: str, **more: Any) -> list[DaemonHandle]:
    """Start a founder and joiners, and wait until all see all."""
    nodes = [await found(world)]
    for number, role in enumerate(roles, 1):
        nodes.append(await join(world, f"n{number}", nodes[0], role, **more))
    await until(lambda: all(len(roles_at(node)) == len(nodes) for node in nodes))
    await until(lambda: all(len(node.node.endpoint.links()) == len(nodes) - 1 for node in nodes))
    return nodes


async def until(true: Callable[[], object], patience: float = 120.0) -> float:
    """Wait until `true()` holds; return the seconds that it took."""
    begun = trio.current_time()
    with trio.fail_after(patience):
        while not true():  # noqa: ASYNC110
            await trio.sleep(0.25)
    return trio.current_time() - begun


def roles_at(node: DaemonHandle) -> dict[PeerId, str]:
    upkeep = node.node.state.upkeep
    order = None if upkeep is None else upkeep.group.order
    return {} if order is None else {each.peer: each.role.word for each in order.members()}


def newest(node: DaemonHandle) -> Any:
    upkeep = node.node.state.upkeep
    assert upkeep is not None
    return upkeep.group.newest if upkeep.group.newest in upkeep.group.secrets else None


def number_at(node: DaemonHandle) -> int:
    """Return the number of the newest key that the node has, 0 for none."""
    found = newest(node)
    return 0 if found is None else int(found.number)


def says_it_is_out(node: DaemonHandle) -> bool:
    return any("revoked this node" in each.sentence for each in node.node.health.conditions())


def digest(node: DaemonHandle) -> bytes:
    return node.node.state.replica.digest.top()


def test_founded_joined_and_after_a_restart_still_there() -> None:
    async def body(world: World) -> None:
        nodes = await group(world, "operator", "client")
        assert set(roles_at(nodes[2]).values()) == {"owner", "operator", "client"}
        status = await nodes[1].status()
        assert status["private"] and status["group"] == {"role": "operator", "members": 3}
        address = nodes[0].address
        await nodes[1].stop()
        again = await nodes[1].host.start(engine=False, bootstrap=[address])
        await until(lambda: len(roles_at(again)) == 3)
        await until(lambda: len(again.node.endpoint.links()) == 2)

    run(body)


def test_a_revoked_node_is_out_within_seconds_and_knows_it() -> None:
    async def body(world: World) -> None:
        nodes = await group(world, "operator", "operator", "operator")
        out, others = nodes[3], [nodes[0], nodes[1], nodes[2]]
        answer = await nodes[0].ask("group_revoke", peer=out.peer[:14])
        assert answer == {"peer": out.peer}
        took = await until(lambda: all(out.peer not in roles_at(node) for node in others))
        assert took < 5
        await until(lambda: not out.node.endpoint.links(), 5)
        members = [node.node.directory.members() for node in others]
        assert all(out.peer not in found for found in members)
        await until(lambda: all(number_at(node) == 2 for node in others), 10)
        # A peer that ends its link says that this node is revoked, one that refuses it by whom.
        await out.until(
            lambda status: any(
                "revoked this node" in told["sentence"] and nodes[0].peer in told["sentence"]
                for told in status["health"]
            )
        )
        for _ in range(120):
            await trio.sleep(0.5)
            assert says_it_is_out(out), "all the time, whichever side dials"
            assert not any(map(says_it_is_out, others)), "only the revoked node is out"
        assert not out.node.endpoint.links()
        assert all(len(node.node.endpoint.links()) == 2 for node in others)
        before = digest(others[1])
        out.node.state.set("jobs", "late", {"kind": "x"})
        await trio.sleep(30)
        assert {digest(node) for node in others} == {before}

    run(body)


def test_a_node_whose_revocation_is_undone_is_in_again() -> None:
    async def body(world: World) -> None:
        nodes = await group(world, "operator", "client")
        await nodes[0].ask("group_revoke", peer=nodes[2].peer)
        await until(lambda: not nodes[2].node.endpoint.links())
        await nodes[0].ask("group_role", peer=nodes[2].peer, role="operator")
        await until(lambda: len(nodes[2].node.endpoint.links()) == 2, 600)
        # The node may have been out too briefly to notice it: its order still has three.
        await until(lambda: all(roles_at(node).get(nodes[2].peer) == "operator" for node in nodes))
        await until(lambda: all(len(roles_at(node)) == 3 for node in nodes))
        status = await nodes[2].until(lambda status: not status["health"])
        assert status["group"]["role"] == "operator"

    run(body)


def test_only_owners_change_the_group() -> None:
    async def body(world: World) -> None:
        nodes = await group(world, "operator", "client")
        for node in nodes[1:]:
            for op, more in (
                ("group_revoke", {"peer": nodes[0].peer}),
                ("group_role", {"peer": nodes[2].peer, "role": "owner"}),
                ("group_rotate", {}),
                ("invite", {"role": "owner"}),
            ):
                with pytest.raises(ControlError) as raised:
                    await node.ask(op, **more)
                assert raised.value.code == "not-owner"
                assert nodes[0].peer in (raised.value.hint or "")
        may = [(await node.ask("peers"))["may_invite"] for node in nodes]
        assert may == [True, True, False]
        code = await nodes[1].ask("invite")
        assert code["role"] == "client"
        with pytest.raises(ControlError, match="cannot revoke itself"):
            await nodes[0].ask("group_revoke", peer=nodes[0].peer)
        with pytest.raises(ControlError, match="no peer known here"):
            await nodes[0].ask("group_revoke", peer="nobody")

    run(body)


def test_a_client_serves_nothing_until_it_is_more() -> None:
    async def body(world: World) -> None:
        nodes = await group(world, "client", engine=True)
        client = nodes[1]
        status = await client.until(lambda status: status["serving"]["phase"] == "barred")
        assert (
            "client of its group"
            in status["serving"]["text" if "text" in status["serving"] else "state"]
        )
        await nodes[0].ask("group_role", peer=client.peer, role="operator")
        await client.until(lambda status: status["serving"]["phase"] != "barred")

    run(body)


def test_shards_of_a_client_do_not_count() -> None:
    """Its claims do not matter; once it is an operator they do."""

    async def body(world: World) -> None:
        nodes = await group(world, "client")
        at, client = nodes[0].node, nodes[1]
        shard = ShardRecord("ab" * 32, True, 0, 6, True, "float32", 9)
        client.node.directory.publish(shards=(shard,))
        await trio.sleep(30)
        key = client.node.identity.public_key
        assert at.state.replica.head(key, ("shards", 10)) is not None
        assert at.directory.members()[client.peer].shards == ()
        assert at.state.views.placements.get(shard.root) is None
        await nodes[0].ask("group_role", peer=client.peer, role="operator")
        await until(lambda: at.directory.members()[client.peer].shards, 30)

    run(body)


def test_a_rotation_reaches_all_nodes_including_absent_ones() -> None:
    async def body(world: World) -> None:
        nodes = await group(world, "operator", "operator")
        away = nodes[2]
        address = nodes[1].address
        await away.stop()
        for _ in range(3):
            await nodes[0].ask("group_rotate")
        joined = await join(world, "n3", nodes[0])
        back = await away.host.start(engine=False, bootstrap=[address])
        everybody = [nodes[0], nodes[1], back, joined]
        await until(lambda: all(len(roles_at(node)) == 4 for node in everybody))
        await until(lambda: {newest(node) for node in everybody} == {newest(nodes[0])})
        assert number_at(nodes[0]) == 4

    run(body)


def test_owners_that_revoke_each_other_in_a_partition() -> None:
    """Both sides continue; after the partition heals one order holds, and one of the two is out."""

    async def body(world: World) -> None:
        nodes = await group(world, "owner", "owner", "operator", "operator")
        founder, *others = nodes
        left, right = sorted(others[:2], key=lambda node: node.node.identity.public_key)
        sides = ([left, others[2]], [right, others[3]])
        await founder.stop()
        faults = Faults(world)
        faults.partition(*([node.host.name for node in side] for side in sides))
        await left.ask("group_revoke", peer=right.peer)
        with pytest.raises(ControlError, match="is senior"):
            await right.ask("group_revoke", peer=left.peer)
        right.node.state.set("group", revocation_key(left.peer), revocation_fact({}, 1))
        await right.ask("group_revoke", peer=others[2].peer)
        await trio.sleep(30)
        assert right.peer not in roles_at(sides[0][1])
        assert others[2].peer not in roles_at(sides[1][1])
        assert number_at(others[2]) == number_at(others[3]) == 2
        assert newest(others[2]) != newest(others[3])
        faults.heal()
        staying = [left, others[2], others[3]]
        await until(lambda: all(right.peer not in roles_at(node) for node in staying), 300)
        await until(lambda: all(len(roles_at(node)) == 4 for node in staying), 300)
        await until(lambda: len({digest(node) for node in staying}) == 1, 300)
        await until(lambda: len({newest(node) for node in staying}) == 1 and newest(left), 300)
        await until(lambda: not right.node.endpoint.links(), 300)
        assert all(len(node.node.endpoint.links()) == 2 for node in staying)

    run(body)


def test_a_node_invited_by_a_revoked_node_is_in_no_other_group() -> None:
    """It uses an invitation that it made before, on the side of a partition that has not heard of
    the revocation.
    """

    async def body(world: World) -> None:
        nodes = await group(world, "operator", "operator")
        out, faults = nodes[2], Faults(world)
        code = (await out.ask("invite"))["code"]
        faults.partition([nodes[0].host.name, nodes[1].host.name], [out.host.name, "late"])
        await nodes[0].ask("group_revoke", peer=out.peer)
        late = await world.host("late").start(engine=False, invitation=decode(code))
        await until(lambda: late.peer in roles_at(out))
        faults.heal()
        await trio.sleep(120)
        for node in nodes[:2]:
            assert late.peer not in roles_at(node)
            assert out.peer not in roles_at(node)
            assert late.peer not in node.node.directory.members()
            assert {link.peer for link in node.node.endpoint.links()} <= {
                each.peer for each in nodes[:2]
            }

    run(body)


def test_a_revoked_node_does_not_come_back_through_a_relay() -> None:
    async def body(world: World) -> None:
        founder = await world.host("n0").start(private=True, engine=False, relay=10**6)
        left, right = world.gateway("left"), world.gateway("right")
        member = await join(world, "n1", founder, behind=left)
        out = await join(world, "n2", founder, behind=right)
        nodes = [founder, member, out]
        await until(lambda: all(len(roles_at(node)) == 3 for node in nodes))
        await until(lambda: all(len(node.node.endpoint.links()) == 2 for node in nodes))
        await founder.ask("group_revoke", peer=out.peer)
        await until(lambda: not out.node.endpoint.links(), 10)
        await trio.sleep(120)
        assert not out.node.endpoint.links()
        assert len(member.node.endpoint.links()) == 1

    run(body)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, marks=pytest.mark.ci),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2)),
    ],
)
def test_revocations_and_rotations_at_random_while_nodes_come_and_go(seed: int) -> None:
    async def body(world: World) -> None:
        draw = Random(seed)
        nodes = await group(world, "owner", "owner", "operator", "client", "client")
        faults = Faults(world)
        for _ in range(3):
            some = draw.sample(nodes, 3)
            rest = [node for node in nodes if node not in some]
            faults.partition([n.host.name for n in some], [n.host.name for n in rest])
            for _ in range(3):
                owner, other = draw.choice(nodes[:3]), draw.choice(nodes[1:])
                with suppress(ControlError):  # it is applied already, or revoked
                    if draw.random() < 0.3:
                        await owner.ask("group_rotate")
                    else:
                        await owner.ask("group_revoke", peer=other.peer)
            await trio.sleep(draw.uniform(5, 30))
            faults.heal()
            await trio.sleep(60)
        staying = [node for node in nodes if node.peer in roles_at(nodes[0])]
        roles = roles_at(nodes[0])
        await until(lambda: all(roles_at(node) == roles for node in staying), 300)
        await until(lambda: {newest(node) for node in staying} == {newest(nodes[0])}, 300)
        await until(lambda: len({digest(node) for node in staying}) == 1, 300)
        gone = [node for node in nodes if node not in staying]
        linked = {link.peer for node in staying for link in node.node.endpoint.links()}
        assert not linked & {node.peer for node in gone}

    run(body, seed=seed)


def test_a_client_cannot_answer_others_jobs() -> None:
    async def body(world: World) -> None:
        founder, client = await group(world, "client")
        nonce = b"n" * 16
        job = Job(job_id(founder.peer, nonce), founder.peer, "prompt", b"?", lease=600.0)
        founder.node.state.set("jobs", job.id, job_fact(job, nonce))
        await until(lambda: client.node.state.views.jobs.get(job.id) is not None)
        lie = new_claim(client.peer, job.id, 1, done=True, result=b"\x81\xa4text\xc4\x01!")
        client.node.state.set("claims", job.id, claim_fact(lie))
        key = public_key_of(client.peer)
        await until(lambda: founder.node.state.replica.head(key, ("claims", 0)) is not None)
        await trio.sleep(1)
        standing = founder.node.state.views.jobs.get(job.id)
        assert standing is not None and standing.state is JobState.OPEN
        assert founder.node.working.own.desk.results.about(job.id) is None

    run(body)
