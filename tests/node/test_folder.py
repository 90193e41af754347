"""The data folder: its mode, its lock and its small files."""

import os
from pathlib import Path

import pytest

from shoal.node.errors import DataFolderInUse, NodeError
from shoal.node.folder import (
    open_folder,
    remember_peers,
    remember_port,
    remembered_peers,
    remembered_port,
)
from shoal.node.settings.config import DataFolder
from shoal.transport.host.real import RealHost

HOST = RealHost()


@pytest.mark.trio
async def test_folder_is_private_and_locked(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "a" / "b")
    lock = await open_folder(HOST, folder)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(DataFolderInUse) as raised:
        await open_folder(HOST, folder)
    assert str(os.getpid()) in raised.value.message
    assert str(folder.path) in raised.value.message
    assert f"shoal status --data {folder.path}" in (raised.value.hint or "")
    lock.release()
    (await open_folder(HOST, folder)).release()


@pytest.mark.trio
async def test_writable_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)  # noqa: ASYNC240
    with pytest.raises(NodeError, match="other users") as raised:
        await open_folder(HOST, DataFolder(tmp_path))
    assert "chmod 700" in (raised.value.hint or "")


@pytest.mark.trio
async def test_port_is_remembered(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert await remembered_port(HOST, folder) == 0
    await remember_port(HOST, folder, 4001)
    assert await remembered_port(HOST, folder) == 4001
    for garbage in (b"x", b"-1", b"99999", b"", b"\xff\xff"):
        folder.port.write_bytes(garbage)
        assert await remembered_port(HOST, folder) == 0


@pytest.mark.trio
async def test_peers_are_remembered(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert await remembered_peers(HOST, folder) == []
    await remember_peers(HOST, folder, [f"/ip4/10.0.0.1/tcp/{port}" for port in range(1, 100)])
    found = await remembered_peers(HOST, folder)
    assert [address.port for address in found] == list(range(1, 17))
    folder.peers.write_bytes(b"garbage\n\xff\n/ip4/10.0.0.2/tcp/7\n")
    assert [address.port for address in await remembered_peers(HOST, folder)] == [7]


@pytest.mark.trio
async def test_a_path_that_is_too_long_has_a_plain_error(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="is too long for this system") as refused:
        await open_folder(HOST, DataFolder(tmp_path / ("d" * 300)))
    assert "shorter" in str(refused.value.hint) and len(refused.value.message) < 80
