"""Blobs by the control socket, on simulated daemons."""

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


async def test_a_root_in_capitals_is_the_same(world: World) -> None:
    first, second = await pair(world)
    root = await added(first)
    got = await get(second, root.upper())
    assert (got["root"], got["fetched"], got["peers"]) == (root, len(DATA), 1)
    assert second.node.host.files.read(out_of(second), limit=1 << 24) == DATA


async def test_what_nobody_holds_is_soon_said(world: World) -> None:
    _, second = await pair(world)
    began = trio.current_time()
    with pytest.raises(ControlError, match="nobody that can be found now holds") as raised:
        await get(second, "ab" * 32)
    assert trio.current_time() - began < defaults.FIND_TIME + defaults.UNTOLD_PATIENCE + 1
    assert "shoal find abab" in str(raised.value.hint)


async def test_who_is_alone_is_told_so(world: World) -> None:
    alone = await world.host("alone").start(engine=False)
    with pytest.raises(ControlError) as raised:
        await get(alone, "ab" * 32)
    assert "linked with no other" in str(raised.value.hint)


async def test_what_a_linked_node_holds_and_nobody_says_so_comes_all_the_same(
    world: World,
) -> None:
    first, second = await pair(world)
    root = await added(first)
    await trio.sleep(5)  # a node that starts announces all that it holds
    first.node.exchange.swarm.withdraw(root)
    await trio.sleep(5)
    assert not await second.node.providers.providers(root)
    assert (await get(second, root))["fetched"] == len(DATA)


@pytest.mark.parametrize("root", [None, "", 7, "ab" * 31, "zz" * 32])
async def test_nonsense_is_refused(world: World, root: object) -> None:
    node = await world.host("alone").start(engine=False)
    with pytest.raises(ControlError, match=r"not a text|no blob known here") as raised:
        await node.ask("blob_get", root=root, path="/x")
    assert raised.value.code == "bad-request" or "all 64 hex digits" in str(raised.value.hint)


async def test_the_beginning_of_a_root_of_ones_own_is_enough(world: World) -> None:
    node = await world.host("alone").start(engine=False)
    root = await added(node)
    assert (await get(node, root[:12]))["root"] == root
    (search, *_) = (await node.ask("find", key=root[:12]))["searches"]
    assert root in str(search)
