"""Adapters in simulated swarms: stages fetch their part alone, within limits, and can lose it."""

from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.dht.content import quota
from shoal.dht.content.library import Library
from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.defaults import EMBEDDED_ROOT
from shoal.node.errors import ControlError
from shoal.tasks.adapters.file import encode_head
from shoal.tasks.engine.adapters import AdapterTerms
from shoal.tasks.errors import TaskError
from tests.tasks import peft_folder

LAYER = 4 * (256 + 256 + 2 * (256 + 128) + 256 + 256 + 3 * (256 + 640))  # bytes of rank 1
RANK = 40  # five chunks of 1 MiB
LAYERS = 6


def adapter(mark: int, base: str = EMBEDDED_ROOT) -> bytes:
    terms = AdapterTerms(
        base, RANK, 1.0, False, "F32", peft_folder.LLAMA_MODULES, tuple(range(LAYERS))
    )
    words = b"".join((mark << 16 | at).to_bytes(4, "little") for at in range(LAYER * RANK // 4))
    return encode_head(terms) + words * LAYERS


async def swarm(world: World) -> tuple[DaemonHandle, list[DaemonHandle]]:
    """Start a gateway without an engine, and three stages."""
    stages: list[DaemonHandle] = []
    for index in range(3):
        layers = 2 * index, 2 * index + 2
        host = world.host(f"stage{index}")
        stages.append(await host.start(bootstrap=stages[:1], model="tiny", layers=layers))
    gateway = await world.host("gateway").start(bootstrap=stages, engine=False)
    for node in stages:
        await node.serving()
    for node in (*stages, gateway):
        await node.until(lambda status: status["peers"] == 3)
    await trio.sleep(2)
    return gateway, stages


async def put(node: DaemonHandle, data: bytes) -> str:
    path = node.node.config.data / "adapter"
    node.node.host.files.write(Path(path), data)
    return str((await node.ask("blob_add", path=str(path)))["root"])


async def text(node: DaemonHandle, root: str | None) -> str:
    more: dict[str, Any] = {} if root is None else {"adapter": root}
    reply = await node.ask("run", model="tiny", prompt="Once", raw=True, max_tokens=12, **more)
    return str(reply["text"])


async def leaves(node: DaemonHandle, root: str) -> tuple[str, ...]:
    return (await node.node.library.blobs.tree(root)).leaves


async def held(node: DaemonHandle, root: str) -> int:
    """Return the number of chunks that a node has of a blob, or -1 if the blob is unknown to it."""
    library: Library = node.node.library
    if root not in library.blobs.roots():
        return -1
    chunks = await leaves(node, root)
    return len(chunks) - len(library.store.missing(chunks))


async def test_each_stage_fetches_its_own_part(world: World) -> None:
    gateway, stages = await swarm(world)
    one, two = await put(gateway, adapter(1)), await put(gateway, adapter(2))
    plain = await text(gateway, None)
    texts = {await text(gateway, root) for root in (one, two)}
    assert len({plain, *texts}) == 3
    chunks = await held(gateway, one)
    for node in stages:
        assert 0 < await held(node, one) < chunks
    assert await text(stages[1], one) in texts
    assert await text(gateway, None) == plain
    stages[1].engine.crash()  # the new worker has no adapter
    assert await text(gateway, one) in texts


@pytest.mark.ci
async def test_what_is_fetched_for_others_has_a_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, stages = await swarm(world)
    roots = [await put(gateway, adapter(mark)) for mark in range(1, 6)]
    size = len(adapter(1))
    monkeypatch.setattr(quota, "FILES_MOST", 2 * size)
    await stages[0].ask("adapter_pull", root=roots[0], name="mine")
    chunks = (await held(stages[0], roots[0])) - 1
    stages[0].node.library.store.remove((await leaves(stages[0], roots[0]))[0])  # damaged
    for root in roots:
        await text(gateway, root)
    assert await held(stages[0], roots[0]) > chunks  # its owner asked for it
    for node in stages:
        library = node.node.library
        own = roots[:1] if node is stages[0] else []
        known = [root for root in roots if root in library.blobs.roots() and root not in own]
        assert roots[-1] in known and roots[0] not in known
        used = sum([await held(node, root) for root in known])
        assert used * 2**20 <= 2 * size + 2**20
    assert await held(gateway, roots[0]) > 0  # its owner added it
    assert await text(gateway, roots[0]) != await text(gateway, None)


async def test_an_adapter_that_nobody_has_fails_in_time(world: World) -> None:
    gateway, _ = await swarm(world)
    began = gateway.node.host.now()
    with pytest.raises((ControlError, TaskError)) as caught:
        await text(gateway, "ab" * 32)
    assert getattr(caught.value, "code", None) == "no-adapter"
    assert gateway.node.host.now() - began < 30
    assert await text(gateway, None)


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["generate", "embed", "evaluate"])
async def test_jobs_use_an_adapter(world: World, kind: str) -> None:
    worker = await world.host("worker").start(model="tiny", jobs=True)
    await worker.serving()
    author = await world.host("author").start(bootstrap=[worker], engine=False)
    await author.until(lambda status: status["peers"] == 1)
    await trio.sleep(15)  # the nodes begin to write their feeds
    root = await put(author, adapter(1))
    made = []
    for model in ("tiny", f"tiny+{root}", "tiny"):
        ask = {"model": model, "kind": kind, "prompts": ["Once"], "raw": True, "max_tokens": 12}
        (job,) = (await author.ask("job_submit", **ask))["jobs"]
        result = await author.ask("job_result", job=job, until_done=True)
        made.append(result["text"])
    assert made[0] == made[2] != made[1]
    if kind == "generate":
        assert await text(author, root) in made[1]
    with pytest.raises(ControlError) as caught:
        await author.ask("job_submit", model="tiny+poet", prompts=["Once"])
    assert caught.value.code == "no-adapter"
