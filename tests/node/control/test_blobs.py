"""Blob operations of the control socket, on simulated daemons."""

import random
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node import defaults
from shoal.node.errors import ControlError

DATA = random.Random(5).randbytes(3_000_000)


async def pair(world: World) -> list[DaemonHandle]:
    first = await world.host("a").start(engine=False)
    second = await world.host("b").start(bootstrap=[first], engine=False)
    await second.until(lambda status: status["peers"] == 1)
    return [first, second]


async def added(node: DaemonHandle) -> str:
    path = node.node.config.data / "file"
    node.node.host.files.write(path, DATA)
    return str((await node.ask("blob_add", path=str(path)))["root"])


def out_of(node: DaemonHandle) -> Path:
    return node.node.config.data / "out"


async def get(node: DaemonHandle, root: str) -> dict[str, Any]:
    return await node.ask("blob_get", root=root, path=str(out_of(node)))


async def test_root_in_capitals_is_accepted(world: World) -> None:
    first, second = await pair(world)
    root = await added(first)
    got = await get(second, root.upper())
    assert (got["root"], got["fetched"], got["peers"]) == (root, len(DATA), 1)
    assert second.node.host.files.read(out_of(second), limit=1 << 24) == DATA


async def test_get_of_an_unknown_blob_fails_within_seconds(world: World) -> None:
    _, second = await pair(world)
    began = trio.current_time()
    with pytest.raises(ControlError, match="no reachable node holds") as raised:
        await get(second, "ab" * 32)
    assert trio.current_time() - began < defaults.FIND_TIME + defaults.UNTOLD_PATIENCE + 1
    assert "shoal find abab" in str(raised.value.hint)


async def test_get_without_links_says_so(world: World) -> None:
    alone = await world.host("alone").start(engine=False)
    with pytest.raises(ControlError) as raised:
        await get(alone, "ab" * 32)
    assert "has no links" in str(raised.value.hint)


async def test_get_of_an_unannounced_blob_from_a_linked_node(
    world: World,
) -> None:
    first, second = await pair(world)
    root = await added(first)
    await trio.sleep(5)  # a starting node announces everything in its library
    first.node.providers.withdraw(root)
    await trio.sleep(5)
    assert not await second.node.providers.providers(root)
    assert (await get(second, root))["fetched"] == len(DATA)


@pytest.mark.parametrize("root", [None, "", 7, "ab" * 31, "zz" * 32])
async def test_nonsense_is_refused(world: World, root: object) -> None:
    node = await world.host("alone").start(engine=False)
    with pytest.raises(ControlError, match=r"not a text|no blob known here") as raised:
        await node.ask("blob_get", root=root, path="/x")
    assert raised.value.code == "bad-request" or "all 64 hex digits" in str(raised.value.hint)


async def test_prefix_of_a_local_root_is_enough(world: World) -> None:
    node = await world.host("alone").start(engine=False)
    root = await added(node)
    assert (await get(node, root[:12]))["root"] == root
    (search, *_) = (await node.ask("find", key=root[:12]))["searches"]
    assert root in str(search)
