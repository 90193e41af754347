"""Disks that are full, read-only, failing, or have lost synced data."""

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.disk.disk import Disk, Folder
from shoal.netsim.disk.file import File
from shoal.netsim.world import World
from shoal.node.daemon.embedded import EmbeddedModel
from shoal.node.errors import ControlError, NodeError

PROMPT = "Once upon a time"
Body = Callable[[World], Awaitable[Any]]


def run(body: Body, *, seed: int = 1) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(900):
            return await body(world)

    return world.run(main)


def only(error: BaseException) -> BaseException:
    """Return the only exception in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return error


def file_of(disk: Disk, path: Path) -> File:
    node: Folder | File = disk.root
    for part in path.parts[1:]:
        assert isinstance(node, Folder)
        node = node.names[part]
    assert isinstance(node, File)
    return node


def spoil(file: File) -> None:
    """Replace the content by as many other bytes."""
    file.content = bytes(len(file.content))


async def damage(daemon: DaemonHandle, *, tensors: bool = True) -> None:
    """Stop a daemon and spoil two chunks, of its weights or of its texts."""
    node, disk = daemon.node, daemon.host.disk
    assert disk is not None
    (root,) = node.library.roots()
    manifest = await node.library.manifest(root)
    texts = [digest for blob in manifest.files.values() for digest in blob.chunks]
    weights = [item.chunks[0] for item in manifest.tensors_of(False, 0, 3, False)]
    await daemon.stop()
    for digest in (weights if tensors else texts)[:2]:
        spoil(file_of(disk, node.library.store.path(digest)))


async def pair(world: World) -> tuple[DaemonHandle, DaemonHandle]:
    """Start two daemons that each hold the whole model."""
    first = await world.host("a").start(layers=(0, 6))
    await first.serving()
    second = await world.host("b").start(bootstrap=[first], model="tiny", layers=(0, 6))
    await second.serving()
    return first, second


def test_a_damaged_chunk_is_fetched_again_from_a_provider() -> None:
    async def body(world: World) -> None:
        _, second = await pair(world)
        text = (await second.generate(PROMPT))["text"]
        await damage(second)
        again = await second.host.restart()
        await again.serving()
        assert any("2 chunks were damaged on this disk" in line for line in again.said)
        assert (await again.generate(PROMPT))["text"] == text
        status = await again.until(lambda status: not status["health"])
        assert status["serving"]["phase"] == "serving"

    run(body)


def test_a_damaged_text_file_is_fetched_again_during_a_request() -> None:
    async def body(world: World) -> None:
        _, second = await pair(world)
        text = (await second.generate(PROMPT))["text"]
        await damage(second, tensors=False)
        again = await second.host.restart()
        await again.until(lambda status: status["peers"] == 1)
        assert (await again.generate(PROMPT))["text"] == text

    run(body)


def test_a_lone_node_takes_the_embedded_model_in_again() -> None:
    async def body(world: World) -> None:
        first = await world.host("a").start()
        await first.serving()
        text = (await first.generate(PROMPT))["text"]
        for tensors in (True, False):
            await damage(first, tensors=tensors)
            first = await first.host.restart()
            await first.serving()
            assert (await first.generate(PROMPT))["text"] == text

    run(body)


async def _nothing(*_: Any) -> None:
    """Stand for a model that is not the package's."""


def test_a_lone_node_says_what_is_missing_until_a_peer_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EmbeddedModel, "restore", _nothing)

    async def body(world: World) -> None:
        first, second = await pair(world)
        other = second.host
        await second.stop()
        await damage(first)
        again = await first.host.restart()
        status = await again.until(
            lambda status: any("no linked peer sent" in c["sentence"] for c in status["health"]),
            every=1,
        )
        assert "any of 2 missing chunks" in status["health"][0]["sentence"]
        assert "shoal model add" in status["health"][0]["hint"]
        await other.restart()
        await again.serving()

    run(body)


def test_a_damaged_manifest_is_replaced() -> None:
    """A lone node takes it from the package; a node with a peer from that peer."""

    async def body(world: World) -> None:
        first, second = await pair(world)
        (root,) = first.node.library.roots()
        path = Path(f"/shoal/models/manifests/{root}")
        for daemon in (second, first):
            await daemon.stop()
            assert daemon.host.disk is not None
            spoil(file_of(daemon.host.disk, path))
        again = await first.host.restart()
        await again.serving()
        other = await second.host.restart()
        await other.serving()
        assert (await other.generate(PROMPT))["text"]

    run(body)


def test_a_disk_that_fails_in_the_boot_is_a_clear_error() -> None:
    """Every file may fail; the lock is free again afterwards."""

    async def body(world: World) -> set[str]:
        host, said = world.host("alice"), set()
        await (await host.start(port=None)).stop()
        assert host.disk is not None
        for name in ("lock", "pid", "port", "identity.key", "models/library.json"):
            for number in (errno.ENOSPC, errno.EROFS, errno.EIO):
                host.disk.errors = {f"/shoal/{name}": number}
                with pytest.raises((NodeError, BaseExceptionGroup)) as raised:
                    await (await host.start(port=None)).until(lambda status: False)
                error = only(raised.value)
                assert isinstance(error, NodeError) and error.code == "disk", error
                assert "/shoal" in error.message and error.hint
                said.add(error.message)
        host.disk.errors = {}
        await (await host.start(port=None)).stop()
        return said

    said = run(body)
    assert "the disk of the data folder `/shoal` is full" in said
    assert "the disk of the data folder `/shoal` is read-only" in said
    assert "cannot use `/shoal/pid` in the data folder: Input/output error" in said


def test_a_disk_that_turns_read_only_ends_nothing() -> None:
    """The fault is a condition while the daemon runs, and no error when it ends. The next start
    works as usual.
    """

    async def body(world: World) -> None:
        first = await world.host("a").start(engine=False)
        second = await world.host("b").start(engine=False, bootstrap=[first])
        await second.until(lambda status: status["peers"] == 1)
        disk = second.host.disk
        assert disk is not None
        disk.read_only = True
        with pytest.raises(ControlError) as raised:
            await second.ask("invite")
        assert raised.value.code == "disk" and "read-only" in raised.value.message
        third = await world.host("c").start(engine=False, bootstrap=[first])
        status = await second.until(lambda status: status["health"])
        assert "read-only" in status["health"][0]["sentence"]
        disk.read_only = False
        await second.until(lambda status: not status["health"])
        disk.read_only = True
        await third.stop()
        await second.stop()
        disk.read_only = False
        again = await second.host.restart()
        await again.until(lambda status: status["peers"] == 1)

    run(body)


def test_a_node_that_ends_early_remembers_its_peers() -> None:
    """The peer is on the disk half a second after the first member joined."""

    async def body(world: World) -> None:
        first = await world.host("a").start(engine=False)
        host = world.host("b")
        second = await host.start(engine=False, bootstrap=[first])
        await second.until(lambda status: status["peers"] == 1, every=0.01)
        await trio.sleep(0.5)
        await host.crash()
        await first.stop()
        host.equip(host)
        host.up = True
        again = await host.start(engine=False)
        assert host.disk is not None
        assert file_of(host.disk, Path("/shoal/peers")).content.decode() == str(first.address)
        await again.ask("ping")

    run(body)


def test_a_first_node_on_a_full_disk_serves_once_there_is_space() -> None:
    async def body(world: World) -> None:
        host = world.host("alice")
        await (await host.start(engine=False, model="none")).stop()
        disk = host.disk
        assert disk is not None
        size, disk.spec = disk.spec, type(disk.spec)(disk.used + 2_000_000)
        first = await host.start()
        status = await first.until(lambda status: status["health"])
        assert any("is full" in item["sentence"] for item in status["health"])
        disk.spec = size
        await first.serving()
        await first.until(lambda status: not status["health"])

    run(body)
