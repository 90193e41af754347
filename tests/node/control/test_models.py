"""Model operations of a daemon with other nodes around it."""

import pytest
import trio

from shoal.dht.records.record import BlobBody, NameBody
from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.daemon.embedded import embedded_folder
from shoal.node.errors import ControlError


async def pair(world: World) -> list[DaemonHandle]:
    """Start a node with `tiny`, and one that is linked to it."""
    first = await world.host("a").start(engine=False)
    second = await world.host("b").start(bootstrap=[first], engine=False)
    await second.until(lambda status: status["peers"] == 1 and status["models"])
    return [first, second]


async def test_list_and_show_name_the_vouchers(world: World) -> None:
    first, second = await pair(world)
    (model,) = (await second.ask("models"))["models"]
    assert model["vouchers"] == [{"peer": first.peer, "source": "members", "age_s": 0.0}]
    assert not model["local"]
    await second.ask("model_pull", name="tiny")
    (model,) = (await second.ask("models"))["models"]
    assert model["local"]
    assert [(each["peer"], each["source"]) for each in model["vouchers"]] == [
        (second.peer, "here"), (first.peer, "members"),
    ]  # fmt: skip
    shown = await second.ask("model_show", name="tiny")
    assert [each["peer"] for each in shown["vouchers"]] == [second.peer, first.peer]
    assert shown["others"] == [] and shown["config"]


async def test_incomplete_model_is_distinguished_from_a_complete_one(world: World) -> None:
    first, second = await pair(world)
    root = next(iter(first.node.library.roots()))
    (model,) = (await second.ask("models"))["models"]
    assert model["lacks"] is None
    manifest = await first.node.library.manifest(root)
    await second.node.library.save(manifest.encode())
    (model,) = (await second.ask("models"))["models"]
    assert model["local"] and model["lacks"] == len(manifest.chunks)
    await second.ask("model_pull", name="tiny")
    (model,) = (await second.ask("models"))["models"]
    assert model["lacks"] == 0


async def test_wrong_hash_or_name_gets_the_nearest_match(
    world: World,
) -> None:
    first, second = await pair(world)
    root = next(iter(first.node.library.roots()))
    with pytest.raises(ControlError) as raised:
        await second.ask("model_pull", name="tiny@0000")
    assert raised.value.hint == f"the name is known with another hash: tiny@{root[:8]}"
    with pytest.raises(ControlError, match="did you mean `tiny`"):
        await second.ask("model_pull", name="tini")
    alone = await world.host("alone").start(engine=False)
    with pytest.raises(ControlError) as raised:
        await alone.ask("model_pull", name="other")
    assert raised.value.hint is not None and "has no links" in raised.value.hint


async def test_added_model_reports_the_previous_meaning_of_its_name(world: World) -> None:
    first, _ = await pair(world)
    folder = first.node.config.data / "model"
    files = first.node.host.files
    files.make_folder(folder)
    for path in embedded_folder().iterdir():
        if path.is_file():
            files.write(folder / path.name, path.read_bytes())
    assert (await first.ask("model_add", path=str(folder), name="tiny"))["replaced"] is None
    # The name already meant another model here.
    await first.node.library.set_name("tiny", "cd" * 32)
    again = await first.ask("model_add", path=str(folder), name="tiny")
    assert again["replaced"] == "cd" * 32


async def test_missing_model_is_reported_once(world: World) -> None:
    """The node keeps retrying."""
    first = await world.host("a").start(engine=False)
    second = await world.host("b").start(bootstrap=[first], model="nope")
    await trio.sleep(1_800)
    said = [line for line in second.said if "no model 'nope'" in line]
    assert len(said) == 2, "a line that it waits, and the warning"
    assert (await second.status())["health"][0]["name"] == "serving"


async def test_added_model_is_published(world: World) -> None:
    first, _ = await pair(world)
    folder = first.node.config.data / "model"
    files = first.node.host.files
    files.make_folder(folder)
    for path in embedded_folder().iterdir():
        if path.is_file():
            files.write(folder / path.name, path.read_bytes())
    added = await first.ask("model_add", path=str(folder), name="mine")
    await trio.sleep(5)
    own = first.node.discovery.dht.own()
    assert {each.name for each in own if isinstance(each, NameBody)} == {"tiny", "mine"}
    assert [each.ranges for each in own if isinstance(each, BlobBody)] == [None]
    late = await world.host("c").start(bootstrap=[first], engine=False)
    await late.until(lambda status: status["peers"] >= 1)
    assert (await late.ask("model_pull", name="mine"))["root"] == added["root"]


async def test_local_meaning_of_a_name_is_preserved(world: World) -> None:
    first, second = await pair(world)
    root = next(iter(first.node.library.roots()))
    # The name already meant another model here.
    await second.node.library.set_name("tiny", "cd" * 32)
    got = await second.ask("model_pull", name=f"tiny@{root[:8]}")
    assert (got["name"], got["root"]) == (root[:16], root)
    assert second.node.library.names() == {"tiny": "cd" * 32}


async def test_pull_from_a_member_needs_no_dht_lookup(world: World) -> None:
    first, second = await pair(world)
    root = next(iter(first.node.library.roots()))
    assert (await second.ask("model_pull", name=root[:10]))["root"] == root
    assert second.node.library.names() == {}, "a model requested by its hash gets no name"
    assert (await second.node.library.stored_parts(root)).complete


@pytest.mark.parametrize("name", [None, "", 7, "x" * 300])
async def test_nonsense_is_refused(world: World, name: object) -> None:
    node = await world.host("alone").start(engine=False)
    for op in ("model_pull", "model_show"):
        with pytest.raises(ControlError) as raised:
            await node.ask(op, name=name)
        assert raised.value.code == "bad-request"


async def test_hostile_name_is_escaped_in_the_error(world: World) -> None:
    node = await world.host("alone").start(engine=False)
    with pytest.raises(ControlError) as raised:
        await node.ask("model_pull", name="\x1b[2Jtiny\u202e")
    assert raised.value.code == "bad-name" and raised.value.message.isascii()
