"""Removal of models and blobs, on simulated daemons."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.control import offline
from shoal.node.control.offline import list_models, remove_model
from shoal.node.control.removal import blob_meant, only_here
from shoal.node.daemon.embedded import import_embedded
from shoal.node.errors import ControlError
from shoal.state.defaults import WRITE_HOLD
from shoal.state.membership.record import MemberRecord, ShardRecord
from shoal.transport.identity import PeerId
from shoal.transport.shortid import BadId
from tests.dht.models import FakeHost

from ...cost import cost

DATA = random.Random(5).randbytes(3 << 20)


async def pair(world: World) -> list[DaemonHandle]:
    first = await world.host("a").start(engine=False)
    second = await world.host("b").start(bootstrap=[first], engine=False)
    await second.until(lambda status: status["peers"] == 1)
    await trio.sleep(WRITE_HOLD + 10)
    return [first, second]


async def added(node: DaemonHandle, data: bytes = DATA) -> str:
    path = node.node.config.data / "file"
    node.node.host.files.write(path, data)
    return str((await node.ask("blob_add", path=str(path)))["root"])


def used(node: DaemonHandle) -> int:
    return node.node.library.store.used()


async def refusal(node: DaemonHandle, op: str, **more: object) -> ControlError:
    with pytest.raises(ControlError) as raised:
        await node.ask(op, **more)
    return raised.value


async def test_removed_blob_stays_on_other_nodes(world: World) -> None:
    first, second = await pair(world)
    before = used(first)
    root = await added(first)
    loss = await first.ask("blob_rm", root=root[:9])
    assert (loss["root"], loss["kind"], loss["copies"], loss["removed"]) == (root, "blob", 0, False)
    assert loss["freed"] == used(first) - before > len(DATA)
    await second.ask("blob_get", root=root, path=str(second.node.config.data / "out"))
    await trio.sleep(10)
    gone = await first.ask("blob_rm", root=root[:9].upper(), sure=True)
    assert gone["copies"] == 1 and gone["removed"]
    assert used(first) == before == first.node.library.store.used_bytes
    assert (await first.ask("blobs"))["blobs"] == []
    assert (await refusal(first, "blob_rm", root=root)).code == "unknown-blob"
    await trio.sleep(10)
    assert (await second.ask("blob_rm", root=root))["copies"] == 0, "the record was withdrawn"
    await first.ask("blob_get", root=root, path=str(first.node.config.data / "out"))


async def test_chunks_that_other_content_needs_stay(world: World) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(5)  # until the embedded model is imported
    short, longer = await added(node), await added(node, DATA * 2 + b"more")
    alone = used(node)
    loss = await node.ask("blob_rm", root=longer, sure=True)
    assert loss["shared"] == 3 and loss["freed"] == alone - used(node)
    out = node.node.config.data / "out"
    await node.ask("blob_get", root=short, path=str(out))
    assert node.node.host.files.read(out, limit=1 << 24) == DATA


def test_prefix_of_a_root() -> None:
    roots = ["abcd" * 16, "abcdab" + "e" * 58]
    assert blob_meant("ABCDABC", roots) == roots[0]
    for text, code in (
        ("abc", "short-blob"), ("", "short-blob"), ("abcd", "ambiguous-blob"),
        ("ffff", "unknown-blob"),
    ):  # fmt: skip
        with pytest.raises(BadId) as raised:
            blob_meant(text, roots)
        assert raised.value.code == code


async def test_removed_model_loses_its_name(world: World) -> None:
    first, second = await pair(world)
    root = await import_embedded(first.node.library)
    await first.node.inventory.announce()
    await trio.sleep(10)
    assert [model["name"] for model in (await second.ask("models"))["models"]] == ["tiny"]
    error = await refusal(second, "model_rm", name="tiny")
    assert error.code == "unknown-model" and "is not a model on this node's disk" in error.message
    loss = await first.ask("model_rm", name=root[:8])
    assert loss["names"] == ["tiny"] and loss["embedded"] and not loss["fetched"]
    gone = await first.ask("model_rm", name="tiny", sure=True)
    assert gone["freed"] == loss["freed"] > 9_000_000 and used(first) == 0
    own = first.node.directory.own()
    assert own.models == () and own.stored == ()
    assert first.node.library.names() == {} and first.node.library.roots() == frozenset()
    await trio.sleep(10)
    assert (await second.ask("models"))["models"] == []
    assert (await refusal(first, "model_rm", name="tiny")).code == "unknown-model"


async def test_served_model_is_refused_with_layers_served_only_here(world: World) -> None:
    first = await world.host("a").start(model="tiny", layers=(0, 4))
    second = await world.host("b").start(bootstrap=[first], model="tiny", layers=(2, 6))
    for node in (first, second):
        await node.serving()
    await trio.sleep(WRITE_HOLD + 10)
    error = await refusal(first, "model_rm", name="tiny", sure=True)
    assert error.code == "in-use" and "shoal stop" in str(error.hint)
    assert error.message == ("this node serves layers 0:4 of `tiny`; no other node serves 0:2")
    assert "no other node serves 4:6" in (await refusal(second, "model_rm", name="tiny")).message
    assert first.node.directory.own().shards and first.node.library.names()


async def test_model_that_is_being_fetched_is_refused(world: World) -> None:
    first, second = await pair(world)
    root = await added(first, random.Random(6).randbytes(4 << 20))
    out = str(second.node.config.data / "out")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: second.ask("blob_get", root=root, path=out))
        while root not in second.node.exchange.fetching():  # noqa: ASYNC110
            await trio.sleep(0.01)
        error = await refusal(second, "blob_rm", root=root, sure=True)
        assert error.code == "in-use" and "Ctrl-C" in str(error.hint)


async def test_a_model_whose_name_was_given_to_another_is_listed(world: World) -> None:
    node = await world.host("a").start(engine=False)
    library = node.node.library
    old = await import_embedded(library)
    real = await library.manifest(old)
    made = replace(real, config={**real.config, "max_position_embeddings": 77})
    root = (await library.save(made.encode())).root
    await library.set_name("tiny", root)
    await node.node.inventory.announce()
    found = {model["root"]: model["name"] for model in (await node.ask("models"))["models"]}
    assert found == {root: "tiny", old: old[:16]}
    gone = await node.ask("model_rm", name=old[:16], sure=True)
    assert gone["names"] == [] and gone["shared"] > 0 and library.names() == {"tiny": root}


@pytest.mark.trio
async def test_without_a_daemon(tmp_path: Path) -> None:
    host = FakeHost(inline=True)
    library = await offline.open_library(host, tmp_path)
    root = await import_embedded(library)
    loss = await remove_model(host, tmp_path, "tiny", sure=False)
    assert loss.copies is None and loss.freed > 9_000_000
    assert [model.root for model in (await list_models(host, tmp_path)).models] == [root]
    assert (await remove_model(host, tmp_path, root[:8], sure=True)).removed
    assert (await list_models(host, tmp_path)).models == ()


def test_layers_served_only_here_are_found_fast_whatever_others_claim() -> None:
    root, own = "ab" * 32, PeerId("own")

    def member(peer: str, *spans: tuple[int, int]) -> MemberRecord:
        shards = tuple(ShardRecord(root, a == 0, a, b, False, "float32", 1) for a, b in spans)
        return MemberRecord(PeerId(peer), 1, shards=shards)

    def found(*others: MemberRecord) -> list[tuple[int, int]]:
        mine = member(own, (2, 10))
        return only_here(root, {record.peer: record for record in (mine, *others)}, own)

    assert found() == [(2, 10)]
    assert found(member("a", (0, 3), (5, 6)), member("b", (5, 7), (9, 12))) == [(3, 5), (7, 9)]
    many = [member(f"p{n}", *((k, 4096 - k) for k in range(16))) for n in range(1000)]
    with cost() as spent:
        assert found(*many) == []
    assert spent.reference_ms < 200
