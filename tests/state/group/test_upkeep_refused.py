"""A refused operation changes nothing, and a revocation waits until all entries have arrived."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from shoal.state import defaults
from shoal.state.errors import FeedFull, GroupRefused
from shoal.state.feeds.entry import FeedName
from shoal.state.feeds.kinds import all_parts
from shoal.state.group.facts import GROUP, Revocation, Role, grant_key
from tests.state.group.test_upkeep import Member, group, member, until
from tests.state.test_service import Swarm, run

JOB = "00" * 32


def revocation(seen: Member, of: Member) -> Revocation:
    return seen.upkeep.group.order.revoked[of.identity.peer][1]


async def lose(node: Member, of: Member) -> None:
    """Drop all feeds of an author, to be fetched again, as after a damaged row."""
    node.state.lost([FeedName(of.identity.peer, *GROUP)])
    while any(node.state.replica.head(of.identity.public_key, plot) for plot in all_parts()):
        await trio.lowlevel.checkpoint()


# Roles.


@pytest.mark.parametrize("why", ["group-full", "feed-full"])
def test_a_refused_role_leaves_the_revocation(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the revocation is undone first: the peer would be a member again."""
    monkeypatch.setattr(defaults, "GROUP_OWNERS", 2)

    async def body(swarm: Swarm) -> None:
        first, _, third = await group(swarm, Role.OWNER, Role.OPERATOR)
        peer, real = third.identity.peer, first.state.set
        await first.upkeep.management.revoke(peer)
        await trio.sleep(5)
        said, own = revocation(first, third), first.identity.public_key
        head = first.state.replica.head(own, GROUP)

        def full(kind: str, key: str, value: Mapping[str, Any] | None, *, part: int = 0) -> None:
            if key == grant_key(peer) and value is not None and value["role"] == "client":
                raise FeedFull("feed-full", "no room")
            real(kind, key, value, part=part)

        if why == "feed-full":
            monkeypatch.setattr(first.state, "set", full)
        role = Role.OWNER if why == "group-full" else Role.CLIENT
        with pytest.raises((GroupRefused, FeedFull)) as raised:
            await first.upkeep.management.change_role(peer, role)
        assert raised.value.code == why
        await trio.sleep(5)
        assert revocation(first, third) == said
        assert first.state.replica.head(own, GROUP) == head
        monkeypatch.setattr(first.state, "set", real)
        await first.upkeep.management.change_role(peer, Role.CLIENT)
        assert first.roles[peer] == "client"

    run(body)


def test_a_peer_revoked_by_another_owner_too_stays_out() -> None:
    """Fails if only this node's revocation is checked: it would be undone without effect."""

    async def body(swarm: Swarm) -> None:
        first, second, third = await group(swarm, Role.OWNER, Role.OPERATOR)
        peer = third.identity.peer
        for node in (second, first):
            await node.upkeep.management.revoke(peer)
        await until(lambda: second.upkeep.group.revoked_by(peer) == first.identity.peer)
        with pytest.raises(GroupRefused, match=second.identity.peer) as raised:
            await first.upkeep.management.change_role(peer, Role.OPERATOR)
        assert raised.value.code == "revoked" and raised.value.hint
        await trio.sleep(5)
        assert first.upkeep.group.revoked_by(peer) == first.identity.peer

    run(body)


# Ends.


def test_a_peer_whose_feed_is_being_fetched_is_not_revoked() -> None:
    """Fails if the ends are those of the entries here: the revoked peer's members would be out at
    every node."""

    async def body(swarm: Swarm) -> None:
        first, second, fourth = await group(swarm, Role.OWNER, Role.OPERATOR)
        third = await member(swarm, second, first, fourth)
        nodes = (first, second, third, fourth)
        await until(lambda: all(len(node.roles) == 4 for node in nodes))
        peer = second.identity.peer
        await lose(first, second)
        with pytest.raises(GroupRefused, match="not all entries") as raised:
            await first.upkeep.management.revoke(peer)
        assert raised.value.code == "not-ready"
        assert f"`shoal group revoke {peer}`" in (raised.value.hint or "")
        await until(lambda: first.state.replica.head(second.identity.public_key, GROUP))
        await first.upkeep.management.revoke(peer)
        await trio.sleep(20)
        for node in (first, fourth):
            assert node.upkeep.group.revoked_by(peer) == first.identity.peer
            assert third.identity.peer in node.roles

    run(body)


def test_a_peer_revoked_again_keeps_its_ends() -> None:
    """Fails if the ends are set again, because the entries that lead to them may not have
    arrived."""

    async def body(swarm: Swarm) -> None:
        first, second, third = await group(swarm, Role.OWNER, Role.OPERATOR)
        third.state.set("jobs", JOB, {"kind": "early"})
        await until(lambda: first.state.replica.head(third.identity.public_key, ("jobs", 0)))
        peer = third.identity.peer
        await first.upkeep.management.revoke(peer)
        ends = revocation(first, third).ends
        assert ("jobs", 0) in ends
        await lose(first, third)
        await first.upkeep.management.revoke(peer)
        await trio.sleep(5)
        for node in (first, second):
            assert revocation(node, third).ends == ends
            assert node.state.replica.head(third.identity.public_key, ("jobs", 0))

    run(body)


def test_an_owner_revokes_only_once_it_keeps_all_kinds() -> None:
    """Fails if it names only the ends of the feeds that it keeps: all jobs of the peer would be
    lost."""

    async def body(swarm: Swarm) -> None:
        first = await member(swarm, keeps=())
        await until(lambda: first.key == 1)
        second = await member(swarm, first)
        third = await member(swarm, first, second)
        third.state.set("jobs", JOB, {"kind": "early"})
        key, jobs = third.identity.public_key, ("jobs", 0)
        await until(lambda: second.state.replica.head(key, jobs))
        for _ in range(2):
            assert first.state.replica.head(key, jobs) is None
            with pytest.raises(GroupRefused) as raised:
                await first.upkeep.management.revoke(third.identity.peer)
            assert raised.value.code == "not-ready" and raised.value.hint
            first.state.need(all_parts())  # no such feed has arrived yet
        await trio.sleep(defaults.WRITE_HOLD)
        await first.upkeep.management.revoke(third.identity.peer)
        await until(lambda: third.identity.peer not in second.roles)
        await trio.sleep(5)
        assert first.state.replica.head(key, jobs) == second.state.replica.head(key, jobs)
        assert first.state.replica.head(key, jobs) is not None

    run(body)
