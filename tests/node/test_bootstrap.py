"""Joining by a code over real lanes, and what is told of bootstrap addresses that fail."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from shoal.node import defaults
from shoal.node.bootstrap import Bootstrap, join
from shoal.node.config import DataFolder
from shoal.node.credentials import Credentials
from shoal.node.errors import NodeError
from shoal.node.health import Health
from shoal.node.invite import Invitation, decode
from shoal.transport.address import Address
from shoal.transport.endpoint import Endpoint
from shoal.transport.errors import CallRefused, DialFailed
from shoal.transport.identity import Identity
from shoal.transport.ladder import Ladder
from shoal.transport.realhost import RealHost

HOST = RealHost()


class Peer:
    """A node's credentials and endpoint, without the rest."""

    def __init__(self, credentials: Credentials, invitation: Invitation | None = None) -> None:
        self.identity = Identity.generate(HOST)
        self.credentials = credentials
        admission = credentials.admission(invitation)
        self.endpoint = Endpoint(HOST, self.identity, admission=admission)
        self.ladder = Ladder(HOST, self.endpoint)
        credentials.answer_swarm_key(self.endpoint)

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.endpoint.port, self.identity.peer)

    async def code(self, uses: int = 1) -> str:
        key = self.identity.public_key
        code, _ = await self.credentials.invite(key, "127.0.0.1", self.endpoint.port, uses)
        return code


class Swarm:
    """Makes peers that run as long as the test."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self._folder = folder
        self._nursery = nursery
        self._count = 0

    async def peer(
        self, *, private: bool = False, code: str | None = None, keys: Credentials | None = None
    ) -> Peer:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        if keys is None:
            keys = await Credentials.load(HOST, DataFolder(folder), private=private)
        peer = Peer(keys, decode(code) if code else None)
        await self._nursery.start(peer.ladder.run, "127.0.0.1", 0)
        return peer


@asynccontextmanager
async def swarm(folder: Path) -> AsyncIterator[Swarm]:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            yield Swarm(folder, nursery)
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_joining_a_private_swarm(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer(private=True)
        code = await inviter.code()
        joiner = await make.peer(code=code)
        link, key = await join(joiner.endpoint, decode(code))
        assert link.peer == inviter.identity.peer
        assert key is not None and len(key) == 32
        joiner.endpoint.admission = await joiner.credentials.adopt(key)
        path = tmp_path / "2" / "swarm.key"
        assert path.read_bytes() == key and path.stat().st_mode & 0o777 == 0o600
        third = await make.peer(private=True, keys=joiner.credentials)
        assert (await third.endpoint.dial(joiner.address, timeout=5)).peer == joiner.identity.peer


@pytest.mark.trio
async def test_joining_an_open_swarm(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer()
        code = await inviter.code()
        joiner = await make.peer(code=code)
        _, key = await join(joiner.endpoint, decode(code))
        assert key is None
        joiner.endpoint.admission = await joiner.credentials.adopt(key)
        assert not joiner.credentials.private


@pytest.mark.trio
async def test_a_code_is_used_up(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer(private=True)
        code = await inviter.code(uses=2)
        for _ in range(2):
            await join((await make.peer(code=code)).endpoint, decode(code))
        with pytest.raises(NodeError, match="does not let this invitation in") as raised:
            await join((await make.peer(code=code)).endpoint, decode(code))
        assert raised.value.code == "invite-refused"
        assert b'"uses"' not in (tmp_path / "1" / "invites.json").read_bytes()


@pytest.mark.trio
async def test_somebody_else_answers(tmp_path: Path) -> None:
    """Red without the fingerprint: anybody at the address could hand out a key of his own."""
    async with swarm(tmp_path) as make:
        inviter = await make.peer()
        invitation = decode(await inviter.code())
        other = await make.peer()
        await other.code()
        # The other node even knows the secret; only its key is another one.
        other.credentials._book.add(invitation.secret, 1, 100.0)
        invitation = replace(invitation, port=other.endpoint.port)
        joiner = Peer(other.credentials, invitation)
        async with trio.open_nursery() as nursery:
            await nursery.start(joiner.endpoint.run, "127.0.0.1", 0)
            with pytest.raises(NodeError, match="not the one that made") as raised:
                await join(joiner.endpoint, invitation)
            nursery.cancel_scope.cancel()
        assert raised.value.code == "wrong-peer"


@pytest.mark.trio
async def test_nobody_answers(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        inviter = await make.peer()
        code = await inviter.code()
        joiner = await make.peer(code=code)
        invitation = replace(decode(code), port=1)
        with pytest.raises(NodeError, match="does not answer"):
            await join(joiner.endpoint, invitation)


@pytest.mark.trio
async def test_the_key_goes_to_the_invited_only(tmp_path: Path) -> None:
    """Red without the check on how the link was admitted."""
    async with swarm(tmp_path) as make:
        first = await make.peer()
        member = await make.peer()
        link = await member.endpoint.dial(first.address, timeout=5)
        with pytest.raises(CallRefused) as raised:
            await link.call("swarm.key", timeout=5)
        assert raised.value.code == "not-invited"


@pytest.mark.trio
async def test_strangers_stay_out_of_a_private_swarm(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        member = await make.peer(private=True)
        for stranger in (await make.peer(), await make.peer(private=True)):
            with pytest.raises(DialFailed):
                await stranger.endpoint.dial(member.address, timeout=5)


@pytest.mark.trio
async def test_a_swarm_key_is_never_replaced(tmp_path: Path) -> None:
    mine = await Credentials.load(HOST, DataFolder(tmp_path), private=True)
    key = (tmp_path / "swarm.key").read_bytes()
    for other in (None, bytes(32)):
        with pytest.raises(NodeError, match="another private swarm"):
            await mine.adopt(other)
    assert (tmp_path / "swarm.key").read_bytes() == key
    await mine.adopt(key)


@pytest.mark.trio
@pytest.mark.parametrize(("mode", "size"), [(0o644, 32), (0o600, 31), (0o600, 0)])
async def test_a_key_file_that_cannot_be_trusted(tmp_path: Path, mode: int, size: int) -> None:
    path = tmp_path / "swarm.key"
    path.write_bytes(bytes(size))
    path.chmod(mode)
    with pytest.raises(NodeError, match="swarm") as raised:
        await Credentials.load(HOST, DataFolder(tmp_path), private=False)
    assert raised.value.hint


@asynccontextmanager
async def bootstrapping(make: Swarm, *addresses: Address) -> AsyncIterator[tuple[Peer, Health]]:
    peer, health = await make.peer(), Health()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Bootstrap(HOST, peer.ladder, health).run, addresses, ())
        yield peer, health
        nursery.cancel_scope.cancel()


async def condition(health: Health) -> str:
    while not health.conditions():  # noqa: ASYNC110
        await trio.sleep(0.01)
    return health.conditions()[0].sentence


@pytest.mark.trio
async def test_another_identity_is_told(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        somebody = await make.peer()
        meant = Identity.generate(HOST).peer
        address = replace(somebody.address, peer=meant)
        async with bootstrapping(make, address) as (_, health):
            assert "answers with another identity" in await condition(health)


@pytest.mark.trio
async def test_a_private_swarm_is_told(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        member = await make.peer(private=True)
        async with bootstrapping(make, member.address) as (_, health):
            assert "does not let this node in" in await condition(health)


@pytest.mark.trio
async def test_silence_is_told_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_a_lost_link_is_dialled_again(tmp_path: Path) -> None:
    async with swarm(tmp_path) as make:
        member = await make.peer()
        async with bootstrapping(make, member.address) as (peer, _):
            for _ in range(2):
                while (link := peer.endpoint.link(member.identity.peer)) is None:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                link.close("closed")
                assert peer.endpoint.link(member.identity.peer) is None
