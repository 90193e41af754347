"""Joining with a code over real links, and reports about bootstrap addresses that fail."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from shoal.node import defaults
from shoal.node.errors import NodeError
from shoal.node.health import Health
from shoal.node.invite import Invitation, decode, invitation_key
from shoal.node.settings.config import DataFolder
from shoal.node.swarm import bootstrap
from shoal.node.swarm.bootstrap import Bootstrap, join
from shoal.node.swarm.credentials import Credentials
from shoal.node.swarm.grouping import JOIN, Grouping
from shoal.node.swarm.handover import Handed
from shoal.state import defaults as state_defaults
from shoal.state.group.facts import Role
from shoal.state.group.sealing import box_of
from shoal.state.membership.membership import Membership
from shoal.state.service import State
from shoal.state.settings import StateSettings
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import CallRefused, DialFailed
from shoal.transport.handshake.hello import Invited
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.link.link import Link
from shoal.transport.strategies.dialer import Dialer

HOST = RealHost()


class Peer:
    """A node with credentials, endpoint and state, but without its other parts."""

    def __init__(
        self,
        credentials: Credentials,
        identity: Identity,
        folder: Path,
        invitation: Invitation | None = None,
    ) -> None:
        self.identity = identity
        self.credentials = credentials
        self.folder = folder
        admission = credentials.admission(invitation)
        self.endpoint = Endpoint(HOST, self.identity, admission=admission)
        self.dialer = Dialer(HOST, self.endpoint)
        self.health = Health()
        settings = StateSettings(folder / "state")
        self.state = State(
            HOST, self.endpoint, identity, settings, trouble=lambda name, error: None
        )
        directory = Membership(HOST, self.endpoint, identity)
        self.grouping = Grouping(self.state, credentials, self.endpoint, directory, self.health)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.dialer.run, "127.0.0.1", 0)
            await self.grouping.enter()
            await nursery.start(self.state.run)
            nursery.start_soon(self.grouping.run)
            nursery.start_soon(self.credentials.run)
            task_status.started()

    async def join(self, code: str) -> tuple[Link, Handed | None]:
        """Join like a daemon."""
        link, handed = await join(self.endpoint, decode(code), box_of(self.identity))
        self.endpoint.admit_by(await self.credentials.adopt(handed))
        await self.grouping.enter()
        return link, handed

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.endpoint.port, self.identity.peer)

    async def code(self, uses: int = 1) -> str:
        key = self.identity.public_key
        code, _ = await self.credentials.invite(key, "127.0.0.1", self.endpoint.port, uses)
        return code


class Swarm:
    """Creates peers that run until the end of the test."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self._folder = folder
        self._nursery = nursery
        self._count = 0

    async def peer(self, *, private: bool = False, code: str | None = None) -> Peer:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        identity = Identity.generate(HOST)
        keys = await Credentials.load(HOST, DataFolder(folder), identity, private=private)
        peer = Peer(keys, identity, folder, decode(code) if code else None)
        await self._nursery.start(peer.run)
        return peer


@asynccontextmanager
async def swarm(folder: Path) -> AsyncIterator[Swarm]:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            yield Swarm(folder, nursery)
            nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_defaults, "WRITE_HOLD", 0.0)


@pytest.mark.trio
async def test_joining_a_private_swarm(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer(private=True)
        code, second = await inviter.code(), await inviter.code()
        joiner = await make.peer(code=code)
        link, handed = await joiner.join(code)
        assert link.peer == inviter.identity.peer
        assert handed is not None and handed.founder == inviter.identity.peer
        path = tmp_path / "2" / "group.json"
        assert path.stat().st_mode & 0o777 == 0o600
        group = inviter.credentials.group
        assert group is not None and group.order.role(joiner.identity.peer) is Role.OPERATOR
        third = await make.peer(code=second)
        await third.join(second)
        others = joiner.credentials.group
        assert others is not None
        while others.order.role(third.identity.peer) is None:  # noqa: ASYNC110
            await trio.sleep(0.05)
        assert (await third.endpoint.dial(joiner.address, timeout=5)).peer == joiner.identity.peer


@pytest.mark.trio
async def test_revoked_invitation_grants_nothing(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer(private=True)
        code = await inviter.code()
        ident = next(iter(inviter.credentials.book.outstanding()))
        assert inviter.credentials.book.remove(ident)
        with pytest.raises(NodeError, match="refused this invitation"):
            await (await make.peer(code=code)).join(code)


@pytest.mark.trio
@pytest.mark.parametrize("private", [True, False])
async def test_folder_of_another_group_does_not_use_up_the_code(
    tmp_path: Path, private: bool
) -> None:
    """Fails if the folder is checked after the code is used: a ghost would be a member."""
    async with swarm(tmp_path) as make:
        inviter = await make.peer(private=private)
        code = await inviter.code()
        other = await make.peer(private=True, code=code)
        with pytest.raises(NodeError, match="another private swarm") as raised:
            await other.join(code)
        assert raised.value.code == "other-swarm"
        assert "shoal join CODE --data DIR" in (raised.value.hint or "")
        (left,) = inviter.credentials.book.outstanding().values()
        assert left.uses == 1
        group = inviter.credentials.group
        assert group is None or not group.order.knows(other.identity.peer)


@pytest.mark.trio
async def test_revoked_node_learns_that_a_new_code_does_not_help(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer(private=True)
        code = await inviter.code()
        joiner = await make.peer(code=code)
        await joiner.join(code)
        peer, upkeep = joiner.identity.peer, inviter.state.upkeep
        assert upkeep is not None
        await upkeep.management.revoke(peer)
        code = await inviter.code()
        back = f"`shoal group role {peer} ROLE`"
        joiner.endpoint.admit_by(Invited(invitation_key(decode(code).secret)))
        with pytest.raises(NodeError, match="has revoked this node") as raised:
            await join(joiner.endpoint, decode(code), b"b" * 32)
        assert raised.value.code == "invite-refused"
        assert "a new code does not help" in (raised.value.hint or "")
        assert back in (raised.value.hint or "")
        joiner.endpoint.admit_by(joiner.credentials.admission(None))
        health = Health()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Bootstrap(HOST, joiner.dialer, health).run, [inviter.address], ())
            assert "the group has revoked it" in await condition(health)
            assert back in (health.conditions()[0].hint or "")
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_joining_an_open_swarm(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer()
        code = await inviter.code()
        joiner = await make.peer(code=code)
        _, handed = await joiner.join(code)
        assert handed is None
        assert not joiner.credentials.private


@pytest.mark.trio
async def test_a_code_is_used_up(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer(private=True)
        code = await inviter.code(uses=2)
        for _ in range(2):
            await (await make.peer(code=code)).join(code)
        with pytest.raises(NodeError, match="refused this invitation") as raised:
            await (await make.peer(code=code)).join(code)
        assert raised.value.code == "invite-refused"
        assert "ask for a new code" in str(raised.value.hint)
        assert b'"uses"' not in (tmp_path / "1" / "invites.json").read_bytes()


@pytest.mark.trio
async def test_folder_that_joined_before_needs_no_code(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer(private=True)
        code = await inviter.code()
        await (await make.peer(code=code)).join(code)
        again = await make.peer(code=code)
        for invitation in (decode(code), replace(decode(code), port=1)):  # used up; no answer
            with pytest.raises(NodeError, match="has already joined with") as raised:
                await join(again.endpoint, invitation, b"b" * 32, before=inviter.identity.peer)
            assert "`shoal node`" in str(raised.value.hint)
        with pytest.raises(NodeError, match="refused this invitation"):
            await join(again.endpoint, decode(code), b"b" * 32, before=again.identity.peer)


@pytest.mark.trio
async def test_another_node_answers_at_the_address(tmp_path: Path) -> None:
    """Fails without the fingerprint: any node at the address could hand out a key of its own."""
    async with swarm(tmp_path) as make:
        inviter = await make.peer()
        invitation = decode(await inviter.code())
        other = await make.peer()
        await other.code()
        # This node even knows the secret; only its key differs.
        other.credentials.book.add(invitation.secret, 1, 100.0)
        invitation = replace(invitation, port=other.endpoint.port)
        me, folder = Identity.generate(HOST), other.folder / "again"
        joiner = Peer(other.credentials, me, folder, invitation)
        async with trio.open_nursery() as nursery:
            await nursery.start(joiner.endpoint.run, "127.0.0.1", 0)
            with pytest.raises(NodeError, match="not the one that made") as raised:
                await join(joiner.endpoint, invitation, b"b" * 32)
            nursery.cancel_scope.cancel()
        assert raised.value.code == "wrong-peer"


@pytest.mark.trio
async def test_silent_inviter(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer()
        code = await inviter.code()
        joiner = await make.peer(code=code)
        invitation = replace(decode(code), port=1)
        with pytest.raises(NodeError, match="does not answer"):
            await join(joiner.endpoint, invitation, b"b" * 32)


@pytest.mark.trio
@pytest.mark.parametrize("same", [True, False])
async def test_joining_over_port_443(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """The second port accepts only the inviter."""
    async with swarm(tmp_path) as make:
        inviter = await make.peer()
        code = await inviter.code()
        joiner, other = await make.peer(code=code), await make.peer()
        await other.code()
        # This node even knows the secret; only its key differs.
        other.credentials.book.add(decode(code).secret, 1, 100.0)
        answers = inviter if same else other
        monkeypatch.setattr(bootstrap, "HTTPS_PORT", answers.endpoint.port)
        invitation = replace(decode(code), port=1)
        if same:
            link, _ = await join(joiner.endpoint, invitation, b"b" * 32)
            assert link.peer == inviter.identity.peer
        else:
            with pytest.raises(NodeError, match=r"127\.0\.0\.1:1 does not answer"):
                await join(joiner.endpoint, invitation, b"b" * 32)
            assert joiner.endpoint.link(other.identity.peer) is None


@pytest.mark.trio
async def test_only_invited_peers_receive_the_secret(tmp_path: Path) -> None:
    """Fails without the check how the link was admitted."""
    async with swarm(tmp_path) as make:
        first = await make.peer()
        member = await make.peer()
        link = await member.endpoint.dial(first.address, timeout=5)
        with pytest.raises(CallRefused) as raised:
            await link.call(JOIN, payload=b"b" * 32, timeout=5)
        assert raised.value.code == "not-invited"


@pytest.mark.trio
async def test_private_swarm_refuses_strangers(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        member = await make.peer(private=True)
        for stranger in (await make.peer(), await make.peer(private=True)):
            with pytest.raises(DialFailed):
                await stranger.endpoint.dial(member.address, timeout=5)


@asynccontextmanager
async def bootstrapping(make: Swarm, *addresses: Address) -> AsyncIterator[tuple[Peer, Health]]:
    peer, health = await make.peer(), Health()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Bootstrap(HOST, peer.dialer, health).run, addresses, ())
        yield peer, health
        nursery.cancel_scope.cancel()


async def condition(health: Health) -> str:
    while not health.conditions():  # noqa: ASYNC110
        await trio.sleep(0.01)
    return health.conditions()[0].sentence


@pytest.mark.trio
async def test_wrong_identity_is_reported(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        somebody = await make.peer()
        meant = Identity.generate(HOST).peer
        address = replace(somebody.address, peer=meant)
        async with bootstrapping(make, address) as (_, health):
            assert "answers with another identity" in await condition(health)


@pytest.mark.trio
async def test_refusal_by_a_private_swarm_is_reported(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        member = await make.peer(private=True)
        async with bootstrapping(make, member.address) as (_, health):
            assert "refuses this node" in await condition(health)


@pytest.mark.trio
async def test_silence_is_reported_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "BOOTSTRAP_PAUSE", 0.02)
    async with swarm(tmp_path) as make:
        late = await make.peer()
        identity = late.identity
        async with trio.open_nursery() as nursery:
            spare = Endpoint(HOST, identity, admission=late.credentials.admission(None))
            free = Address("127.0.0.1", await nursery.start(spare.run, "127.0.0.1", 0))
            nursery.cancel_scope.cancel()
        async with bootstrapping(make, free) as (_, health):
            assert "does not answer" in await condition(health)
            again = Endpoint(HOST, identity, admission=late.credentials.admission(None))
            async with trio.open_nursery() as nursery:
                await nursery.start(again.run, "127.0.0.1", free.port)
                while health.conditions():  # noqa: ASYNC110
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_lost_link_is_redialled(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        member = await make.peer()
        async with bootstrapping(make, member.address) as (peer, _):
            for _ in range(2):
                while (link := peer.endpoint.link(member.identity.peer)) is None:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                link.close("closed")
                assert peer.endpoint.link(member.identity.peer) is None
