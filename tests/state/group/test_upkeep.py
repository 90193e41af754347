"""A group over links and with disks: admission, revocation, distribution of keys, restarts."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio

from shoal.state import defaults
from shoal.state.errors import FeedFull, GroupRefused
from shoal.state.feeds.committer import DiskArchive
from shoal.state.feeds.digest import Plot
from shoal.state.group.facts import (
    GROUP,
    KEY,
    Charter,
    Revocation,
    Role,
    grant_fact,
    grant_key,
    key_fact,
    key_key,
)
from shoal.state.group.group import Group, Secrets
from shoal.state.group.sealing import box_of, seal_secret
from shoal.state.group.upkeep import Upkeep
from shoal.transport.handshake.hello import INVITATION, Admitted
from shoal.transport.identity import Identity
from tests.state.test_service import MODEL, Node, Swarm, run

NONCE, FIRST = b"n" * 16, b"1" * 32


class Member(Node):
    """A node in the group of the first one."""

    founder: Identity
    hold = 0.0
    alone = False

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        charter = Charter(self.founder.peer, NONCE)
        group = Group(charter, self.identity, Secrets([(1, FIRST)]))
        await self.state.enter(group, alone=self.alone)
        await super()._run(task_status=task_status)

    @property
    def upkeep(self) -> Upkeep:
        assert self.state.upkeep is not None
        return self.state.upkeep

    @property
    def roles(self) -> dict[Any, str]:
        return {each.peer: each.role.word for each in self.upkeep.group.order.members()}

    @property
    def key(self) -> int:
        """Return the number of the newest secret, if it is known here."""
        newest = self.upkeep.group.newest
        return newest.number if newest in self.upkeep.group.secrets and newest else 0

    def digest(self, of: "Member | None" = None) -> bytes:
        digest = self.state.replica.digest
        return digest.top() if of is None else digest.of({of.identity.public_key}).top()


async def member(
    swarm: Swarm,
    *others: Member,
    role: Role = Role.OPERATOR,
    keeps: tuple[Plot, ...] | None = None,
) -> Member:
    """Return a new member, admitted by the first of the others and linked with all."""
    swarm.count += 1
    who = Identity.from_seed(swarm.count.to_bytes(32))
    made = Member(swarm, swarm.world.host(f"n{swarm.count}"), who)
    made.founder, made.keeps = others[0].founder if others else who, keeps
    await made.start()
    for other in others:
        swarm.connect(made, other)
    if others:
        await others[0].upkeep.management.admit(made.identity.peer, role, box_of(who))
    return made


async def until(true: Callable[[], object], patience: float = 60.0) -> None:
    with trio.fail_after(patience):
        while not true():  # noqa: ASYNC110
            await trio.sleep(0.05)


async def group(swarm: Swarm, *roles: Role) -> list[Member]:
    nodes = [await member(swarm)]
    await until(lambda: nodes[0].key == 1)
    for role in roles:
        nodes.append(await member(swarm, *nodes, role=role))
    await until(lambda: all(len(node.roles) == len(nodes) for node in nodes))
    return nodes


def test_an_admitted_member_is_known_to_all() -> None:
    async def body(swarm: Swarm) -> None:
        nodes = await group(swarm, Role.OPERATOR, Role.CLIENT)
        assert list(nodes[2].roles.values()) == ["owner", "operator", "client"]
        assert nodes[2].upkeep.group.role is Role.CLIENT
        await until(lambda: len({node.digest() for node in nodes}) == 1)

    run(body)


def test_a_revoked_member_loses_its_links_and_rights() -> None:
    async def body(swarm: Swarm) -> None:
        first, second, third = await group(swarm, Role.OPERATOR, Role.OPERATOR)
        third.state.set("models", "tiny", MODEL)
        await until(lambda: second.names(third) == ["tiny"])
        await first.upkeep.management.revoke(third.identity.peer)
        await until(lambda: not third.endpoint.all_links, 5)
        await until(lambda: second.names(third) == [], 5)
        await until(lambda: first.key == second.key == 2)
        assert third.key == 1
        before = second.digest(third)
        third.state.set("models", "late", MODEL)
        swarm.connect(third, second)
        await trio.sleep(5)
        assert third.identity.peer not in second.endpoint.all_links
        assert second.digest(third) == before == first.digest(third)

    run(body)


@pytest.mark.parametrize("cut", [True, False])
def test_a_restart_shows_no_entries_beyond_the_end(
    cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the store had not been cut yet."""

    async def body(swarm: Swarm) -> None:
        first, second, third = await group(swarm, Role.OPERATOR, Role.OPERATOR)
        usage = {"requests": 1, "in": 1, "out": 1, "busy": 1}
        third.state.set("jobs", "00" * 32, {"kind": "early"})
        await until(lambda: second.state.replica.head(third.identity.public_key, ("jobs", 0)))
        for peer in list(first.endpoint.all_links):  # during a partition
            first.endpoint.cut(peer, "cut")
        third.state.set("jobs", "11" * 32, {"kind": "late"})
        third.state.set("usage", "x", usage)
        await until(lambda: second.state.replica.head(third.identity.public_key, ("usage", 0)))
        await first.upkeep.management.revoke(third.identity.peer)
        if not cut:

            async def refused(*_: Any) -> None: ...

            monkeypatch.setattr(DiskArchive, "cut", refused)
        swarm.connect(first, second)
        await until(lambda: third.identity.peer not in second.roles)
        await until(lambda: first.digest(third) == second.digest(third))
        monkeypatch.undo()
        await second.crash()
        await second.start()
        replica, key = second.state.replica, third.identity.public_key
        assert set(await replica.facts(key, ("jobs", 0))) == {"00" * 32}
        assert replica.head(key, ("usage", 0)) is None
        assert second.upkeep.group.revoked_by(third.identity.peer) == first.identity.peer
        assert second.digest(third) == first.digest(third)

    run(body)


def test_strangers_stay_a_while_and_invited_peers_stay() -> None:
    async def body(swarm: Swarm) -> None:
        first, second = await group(swarm, Role.OPERATOR)
        late, guest = await swarm.node(), await swarm.node()
        for node in (late, guest):
            swarm.connect(node, first)
        link = first.endpoint.all_links[guest.identity.peer]
        link.status.admitted = Admitted(INVITATION, b"code")
        await trio.sleep(defaults.STRANGER_S - 5)
        assert late.identity.peer in first.endpoint.all_links
        await trio.sleep(15)
        assert set(first.endpoint.all_links) == {second.identity.peer, guest.identity.peer}

    run(body)


def test_a_member_without_its_store_comes_back_by_the_secret() -> None:
    async def body(swarm: Swarm) -> None:
        first, second = await group(swarm, Role.OPERATOR)
        await second.stop()
        second.folder = second.folder / "new"
        await second.start()
        assert second.upkeep.group.young
        swarm.connect(second, first)
        await until(lambda: second.roles == first.roles)
        assert not second.upkeep.group.young

    run(body)


def test_a_founder_without_its_store_gets_its_group_from_peers() -> None:
    """Fails if it starts a new feed: all its grants would be lost at every node."""

    async def body(swarm: Swarm) -> None:
        first, second, third = await group(swarm, Role.OWNER, Role.CLIENT)
        before = second.roles
        await first.stop()
        first.folder, first.hold = first.folder / "new", defaults.WRITE_HOLD
        await first.start()
        await trio.sleep(30)
        assert first.upkeep.group.young and first.upkeep.held
        assert first.upkeep.trouble is not None and first.upkeep.trouble.code == "nothing-left"
        assert first.state.replica.head(first.identity.public_key, GROUP) is None
        swarm.connect(first, second)
        swarm.connect(first, third)
        await until(lambda: first.roles == second.roles == third.roles == before)
        assert not first.upkeep.group.young
        await until(lambda: first.upkeep.trouble is None)
        await first.upkeep.management.rotate()
        await until(lambda: first.key == second.key == third.key == 2)

    run(body)


@pytest.mark.parametrize("alone", [True, False])
def test_only_a_founder_without_members_begins_a_group_at_once(alone: bool) -> None:
    async def body(swarm: Swarm) -> None:
        made = Member(swarm, swarm.world.host("n1"), Identity.from_seed(b"f" * 32))
        made.founder, made.hold, made.alone = made.identity, defaults.WRITE_HOLD, alone
        await made.start()
        await trio.sleep(30)
        assert made.key == int(alone)

    run(body)


def test_the_key_is_sent_to_members_that_others_admitted() -> None:
    """An operator admits a client that knows only the first secret. The owner sends it the
    newest."""

    async def body(swarm: Swarm) -> None:
        first, second = await group(swarm, Role.OPERATOR)
        assert (await first.upkeep.management.rotate()).number == 2
        third = await member(swarm, second, role=Role.CLIENT)
        await until(lambda: third.key == 2)

    run(body)


def test_many_members_that_come_one_by_one_get_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the parts of a rotation run out."""
    monkeypatch.setattr(defaults, "KEY_PARTS", 2)

    async def body(swarm: Swarm) -> None:
        nodes = await group(swarm, *[Role.CLIENT] * 3)
        await until(lambda: min(node.key for node in nodes) >= 2)
        await until(lambda: len({node.key for node in nodes}) == 1)

    run(body)


def test_owners_that_rotate_at_once_agree() -> None:
    async def body(swarm: Swarm) -> None:
        first, second, third = await group(swarm, Role.OWNER, Role.CLIENT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.upkeep.management.rotate)
            nursery.start_soon(second.upkeep.management.rotate)
        nodes = (first, second, third)
        await until(lambda: len({node.upkeep.group.newest for node in nodes}) == 1)
        await until(lambda: min(node.key for node in nodes) == 2)

    run(body)


def test_a_refusal_names_the_owners_to_ask() -> None:
    async def body(swarm: Swarm) -> None:
        first, second, third = await group(swarm, Role.OPERATOR, Role.CLIENT)
        peer = first.identity.peer
        stranger = Identity.from_seed(b"x" * 32).peer
        for it in (second.upkeep.management, third.upkeep.management):
            acts: list[Callable[[], Awaitable[object]]] = [
                partial(it.revoke, peer),
                it.rotate,
                partial(it.change_role, peer, Role.CLIENT),
                partial(it.admit, stranger, Role.OWNER, b"b" * 32),
            ]
            for act in acts:
                with pytest.raises(GroupRefused) as raised:
                    await act()
                assert raised.value.code == "not-owner"
                assert peer in (raised.value.hint or "")

    run(body)


def test_clients_of_an_operator_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "OPERATOR_CLIENTS", 1)

    async def body(swarm: Swarm) -> None:
        _, second = await group(swarm, Role.OPERATOR)
        await second.upkeep.management.admit(
            Identity.from_seed(b"x" * 32).peer, Role.CLIENT, b"b" * 32
        )
        with pytest.raises(GroupRefused) as raised:
            await second.upkeep.management.admit(
                Identity.from_seed(b"y" * 32).peer, Role.CLIENT, b"b" * 32
            )
        assert raised.value.code == "too-many-clients"

    run(body)


def test_a_full_group_refuses_and_removes_no_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if the fact is written nevertheless: the peer that it makes an owner would be out."""
    monkeypatch.setattr(defaults, "GROUP_OWNERS", 2)
    monkeypatch.setattr(defaults, "GROUP_MEMBERS", 3)

    async def body(swarm: Swarm) -> None:
        first, _, third = await group(swarm, Role.OWNER, Role.OPERATOR)
        new = [Identity.from_seed(bytes([number]) * 32).peer for number in range(90, 98)]
        wanted = [(third.identity.peer, Role.OWNER), (new[0], Role.CLIENT)]
        for peer, role in (*wanted, *((peer, Role.OWNER) for peer in new)):
            with pytest.raises(GroupRefused) as raised:
                await first.upkeep.management.admit(peer, role, b"b" * 32)
            assert raised.value.code == "group-full" and raised.value.hint
        await trio.sleep(5)
        assert list(first.roles.values()) == ["owner", "owner", "operator"]

    run(body)


def test_a_role_is_lowered_by_its_granter() -> None:
    async def body(swarm: Swarm) -> None:
        first, second, third = await group(swarm, Role.OWNER, Role.OPERATOR)
        with pytest.raises(GroupRefused) as raised:
            await second.upkeep.management.change_role(third.identity.peer, Role.CLIENT)
        assert raised.value.code == "granted-by-others"
        await first.upkeep.management.change_role(third.identity.peer, Role.CLIENT)
        await until(lambda: third.upkeep.group.role is Role.CLIENT)
        await second.upkeep.management.change_role(third.identity.peer, Role.OPERATOR)
        await until(lambda: third.upkeep.group.role is Role.OPERATOR)

    run(body)


def test_a_rotation_with_the_highest_number_is_refused() -> None:
    """Fails if the number is not checked: the owner's node would end."""

    async def body(swarm: Swarm) -> None:
        first, second, third = await group(swarm, Role.OWNER, Role.CLIENT)
        ident = first.upkeep.group.charter.ident
        boxes = {third.identity.peer: box_of(third.identity)}
        (part,) = seal_secret(ident, defaults.KEY_NUMBER, b"9" * 32, boxes, [b"e" * 32])
        second.state.set("group", key_key(defaults.KEY_NUMBER, 0), key_fact(part))
        await until(lambda: third.key == defaults.KEY_NUMBER)
        await until(lambda: (newest := first.upkeep.group.newest) and newest.number > 1)
        with pytest.raises(GroupRefused) as raised:
            await first.upkeep.management.rotate()
        assert raised.value.code == "key-number"
        await first.upkeep.management.revoke(second.identity.peer)
        await until(lambda: first.key == third.key == 2)

    run(body)


def test_a_full_feed_is_reported_and_the_node_continues() -> None:
    async def body(swarm: Swarm) -> None:
        (first,) = await group(swarm)
        with pytest.raises(FeedFull):
            for number in range(4000):
                peer = Identity.from_seed(number.to_bytes(32)).peer
                first.state.set("group", grant_key(peer), grant_fact(Role.CLIENT, b"b" * 32, 1))
        await until(lambda: first.upkeep.trouble is not None)
        assert first.state.replica.head(first.identity.public_key, GROUP)

    run(body)


def test_a_rotation_that_does_not_fit_is_reported_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if a part of it is published: only part of the members would get the secret."""
    monkeypatch.setattr(defaults, "KEY_PART_MEMBERS", 1)

    async def body(swarm: Swarm) -> None:
        first, second, third = await group(swarm, Role.OPERATOR, Role.CLIENT)
        real = first.state.set

        def narrow(kind: str, key: str, value: Any, *, part: int = 0) -> None:
            if (
                key.startswith(KEY)
                and key.endswith("/1")
                and value is not None
                and key != "key/1/1"
            ):
                raise FeedFull("feed-full", "no room")
            real(kind, key, value, part=part)

        await trio.sleep(10)
        head = first.state.replica.head(first.identity.public_key, GROUP)
        monkeypatch.setattr(first.state, "set", narrow)
        first.upkeep.rotation.ask()
        await trio.sleep(60)
        assert first.state.replica.head(first.identity.public_key, GROUP) == head
        assert first.upkeep.trouble is not None
        assert {node.key for node in (first, second, third)} == {1}
        assert {len(node.upkeep.group.secrets) for node in (first, second, third)} == {1}
        monkeypatch.setattr(first.state, "set", real)
        await until(lambda: first.key == second.key == third.key == 2)
        assert first.upkeep.trouble is None

    run(body)


def test_a_founder_always_stays_an_owner() -> None:
    async def body(swarm: Swarm) -> None:
        first, second = await group(swarm, Role.OWNER)
        peer = first.identity.peer
        for node in (first, second):
            with pytest.raises(GroupRefused, match="always stays an owner") as raised:
                await node.upkeep.management.change_role(peer, Role.CLIENT)
            assert raised.value.code == "founder" and raised.value.hint
            await node.upkeep.management.change_role(peer, Role.OWNER)
        with pytest.raises(GroupRefused, match="always stays an owner") as raised:
            await second.upkeep.management.revoke(peer)
        assert raised.value.code == "senior" and "nobody" not in (raised.value.hint or "")
        with pytest.raises(GroupRefused, match="cannot revoke itself") as raised:
            await first.upkeep.management.revoke(peer)
        assert "ask" not in (raised.value.hint or "")

    run(body)


def test_only_senior_owners_are_named_to_ask() -> None:
    async def body(swarm: Swarm) -> None:
        nodes = await group(swarm, Role.OWNER, Role.OWNER)
        order = [*nodes[0].roles]
        senior, junior = sorted(nodes[1:], key=lambda node: order.index(node.identity.peer))
        for peer in (senior.identity.peer, junior.identity.peer):
            with pytest.raises(GroupRefused) as raised:
                await junior.upkeep.management.revoke(peer)
            asked = order[: order.index(peer)]
            assert raised.value.hint == f"ask one of: {', '.join(asked)}"

    run(body)


def test_a_revoked_member_is_told_that_it_is() -> None:
    async def body(swarm: Swarm) -> None:
        first, second = await group(swarm, Role.OPERATOR)
        peer, seen = second.identity.peer, second.upkeep.group
        out = {peer: (first.identity.peer, Revocation({}, 0))}
        seen.order = replace(seen.order, revoked=out)
        said = second.upkeep.management.not_allowed("invite others")
        assert said.code == "revoked" and "has revoked this node" in said.message
        assert f"`shoal group role {peer} ROLE`" in (said.hint or "")
        assert first.identity.peer in (said.hint or "")

    run(body)
