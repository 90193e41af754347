"""The files of a data folder with the node's group and its invitations."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.node.errors import NodeError
from shoal.node.settings.config import DataFolder
from shoal.node.swarm.credentials import Credentials
from shoal.node.swarm.handover import Handed
from shoal.state.group.facts import Role
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity

HOST = RealHost()
ME, OTHER = Identity.generate(HOST), Identity.generate(HOST)


async def load(folder: Path, *, private: bool = False) -> Credentials:
    return await Credentials.load(HOST, DataFolder(folder), ME, private=private)


@pytest.mark.trio
async def test_group_is_created_once(tmp_path: Path) -> None:
    first = await load(tmp_path, private=True)
    assert first.group is not None and first.group.charter.founder == ME.peer
    again = await load(tmp_path, private=True)
    assert again.handed == first.handed
    assert (tmp_path / "group.json").stat().st_mode & 0o777 == 0o600
    assert not (await load(tmp_path / "other")).private


@pytest.mark.trio
async def test_founder_is_alone_until_its_first_invitation(tmp_path: Path) -> None:
    """After that, other nodes may hold its records; if it loses them, it waits for those nodes."""
    assert (await load(tmp_path, private=True)).alone
    founder = await load(tmp_path, private=True)
    assert founder.alone
    await founder.invite(ME.public_key, "127.0.0.1", 4001, 1)
    assert not founder.alone and not (await load(tmp_path)).alone


@pytest.mark.trio
async def test_a_group_is_never_replaced(tmp_path: Path) -> None:
    mine = await load(tmp_path, private=True)
    before = (tmp_path / "group.json").read_bytes()
    for other in (None, Handed.founded(OTHER.peer, HOST.entropy)):
        with pytest.raises(NodeError, match="another private swarm"):
            await mine.adopt(other)
    assert (tmp_path / "group.json").read_bytes() == before
    assert mine.handed is not None
    await mine.adopt(replace(mine.handed, keys=((2, b"s" * 32),)))
    assert mine.group is not None and len(mine.group.secrets) == 2
    kept = await load(tmp_path)
    assert kept.handed == mine.handed


@pytest.mark.trio
async def test_key_of_an_earlier_version_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "swarm.key").write_bytes(bytes(32))
    with pytest.raises(NodeError, match="earlier version") as raised:
        await load(tmp_path, private=True)
    assert raised.value.code == "old-swarm-key" and raised.value.hint
    assert not (tmp_path / "group.json").exists()


@pytest.mark.trio
@pytest.mark.parametrize(
    ("mode", "data"),
    [(0o644, b"whole"), (0o600, b""), (0o600, b"{}"), (0o600, b'{"founder": 1}'), (0o600, b"[[[")],
)
async def test_untrusted_group_file_is_refused(tmp_path: Path, mode: int, data: bytes) -> None:
    path = tmp_path / "group.json"
    path.write_bytes(Handed.founded(ME.peer, HOST.entropy).as_file() if data == b"whole" else data)
    path.chmod(mode)
    with pytest.raises(NodeError) as raised:
        await load(tmp_path)
    assert raised.value.code == ("open-key" if data == b"whole" else "bad-file")
    assert raised.value.hint


@pytest.mark.trio
async def test_invitations_keep_their_role(tmp_path: Path) -> None:
    made = await load(tmp_path, private=True)
    await made.invite(ME.public_key, "127.0.0.1", 4001, 2, Role.CLIENT)
    (item,) = (await load(tmp_path)).book.outstanding().values()
    assert (item.role, item.uses) == (Role.CLIENT, 2)


@pytest.mark.trio
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
async def test_readable_invitation_file_is_refused(tmp_path: Path, mode: int) -> None:
    made = await load(tmp_path, private=True)
    await made.invite(ME.public_key, "127.0.0.1", 4001, 2, Role.CLIENT)
    path = tmp_path / "invites.json"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(mode)
    with pytest.raises(NodeError, match="other users may read") as raised:
        await load(tmp_path)
    assert raised.value.code == "open-key"
    assert f"`chmod 600 {path}`" in str(raised.value.hint)
    path.chmod(0o600)
    assert len((await load(tmp_path)).book.outstanding()) == 1
