"""`find` and `dht` of the control socket on simulated daemons, and a daemon's own DHT records."""

from typing import Any

import pytest
import trio

from shoal.dht import defaults
from shoal.dht.records.record import BlobBody, NameBody
from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.faults import Faults
from shoal.netsim.world import World
from shoal.node.errors import ControlError


async def swarm(world: World, count: int = 3) -> list[DaemonHandle]:
    """Start daemons that serve the embedded model, and wait until they have announced it."""
    first = await world.host("d0").start()
    others = [await world.host(f"d{n}").start(bootstrap=[first]) for n in range(1, count)]
    nodes = [first, *others]
    for node in nodes:
        await node.until(lambda status: status["peers"] == count - 1)
        await node.serving()
    await trio.sleep(10)
    return nodes


def by_kind(answer: dict[str, Any]) -> dict[str, set[str]]:
    """Return the authors by kind of record."""
    found: dict[str, set[str]] = {}
    for search in answer["searches"]:
        for record in search["records"]:
            found.setdefault(record["kind"], set()).add(record["author"])
    return found


async def test_a_model_by_name_by_root_and_by_both(world: World) -> None:
    nodes = await swarm(world)
    everybody = {node.peer for node in nodes}
    root = next(iter(nodes[0].node.library.roots()))
    for key in ("tiny", root, f"tiny@{root[:8]}"):
        answer = await nodes[1].ask("find", key=key)
        assert by_kind(answer)["shard"] == by_kind(answer)["blob"] == everybody
        shards = answer["searches"][0]
        assert shards["about"] == f"nodes that serve layers of {key}"
        assert {step["peer"] for step in shards["path"]} <= everybody
    shard = shards["records"][0]["says"]
    assert (shard["root"], shard["start"], shard["precision"]) == (root, 0, "float32")


async def named(world: World, name: str, *, by: int) -> list[DaemonHandle]:
    """Start a swarm in which a stranger's DHT record gives `name` to a root of its own."""
    nodes = await swarm(world)
    nodes[by].node.discovery.dht.publish(NameBody(name, "cd" * 32, 4, 1 << 20), lasting=False)
    nodes[by].node.discovery.dht.publish(BlobBody("cd" * 32, 1 << 20, 3, ((1, 2),)), lasting=False)
    await trio.sleep(10)
    return nodes


def abouts(answer: dict[str, Any]) -> list[str]:
    return [search["about"] for search in answer["searches"]]


async def test_name_known_only_to_the_dht_leads_to_its_providers(world: World) -> None:
    nodes = await named(world, "far", by=2)
    for key in ("far", "far@cdcd"):
        answer = await nodes[0].ask("find", key=key)
        assert abouts(answer) == [
            f"nodes that serve layers of {key}", f"providers of chunks of {key}", "what far means",
        ]  # fmt: skip
        assert by_kind(answer)["blob"] == by_kind(answer)["name"] == {nodes[2].peer}
    assert abouts(await nodes[0].ask("find", key="far@00")) == ["what far means"]


async def test_a_name_that_means_two_models_shows_both(world: World) -> None:
    """The model of the nearest voucher comes first; a hash distinguishes the other one."""
    nodes = await named(world, "tiny", by=2)
    answer = await nodes[0].ask("find", key="tiny")
    assert abouts(answer) == [
        "nodes that serve layers of tiny@cdcdcdcd", "providers of chunks of tiny@cdcdcdcd",
        "nodes that serve layers of tiny", "providers of chunks of tiny", "what tiny means",
    ]  # fmt: skip
    shown = abouts(await nodes[0].ask("find", key="tiny@cdcdcdcd"))
    assert shown[:2] == [
        "nodes that serve layers of tiny@cdcdcdcd", "providers of chunks of tiny@cdcdcdcd",
    ]  # fmt: skip


async def test_hash_in_capitals_and_shortened_hash(world: World) -> None:
    nodes = await swarm(world)
    root = next(iter(nodes[0].node.library.roots()))
    for key in (root.upper(), root[:12]):
        assert by_kind(await nodes[0].ask("find", key=key))["blob"] == {n.peer for n in nodes}
    shown = abouts(await nodes[0].ask("find", key=root[:12]))
    assert shown[-1] == f"providers of chunks of {root[:12]}"


@pytest.mark.parametrize("key", ["a/b c", "tiny@zz", "@ab", "x\x1b[2J"])
async def test_invalid_key_is_refused_with_valid_forms(world: World, key: str) -> None:
    node = await world.host("alone").start()
    with pytest.raises(ControlError) as raised:
        await node.ask("find", key=key)
    assert raised.value.message.isascii()
    assert raised.value.hint is not None and "NAME@HASH" in raised.value.hint


async def test_a_peer_and_a_key(world: World) -> None:
    nodes = await swarm(world)
    (search,) = (await nodes[0].ask("find", key=nodes[2].peer))["searches"]
    (record,) = search["records"]
    assert str(nodes[2].address) in record["says"]["addresses"]
    by_beginning = await nodes[0].ask("find", key=nodes[2].peer[:14])
    assert [each["author"] for each in by_beginning["searches"][0]["records"]] == [nodes[2].peer]
    with pytest.raises(ControlError, match="no peer known here begins with"):
        await nodes[0].ask("find", key="12D3KooWzzzz")
    again = await nodes[0].ask("find", key=search["key"])
    assert [each["author"] for each in again["searches"][-1]["records"]] == [nodes[2].peer]


async def test_stopped_node_withdraws_its_records(world: World) -> None:
    nodes = await swarm(world)
    gone = nodes[2].peer
    await nodes[2].stop()
    await trio.sleep(1)
    answer = await nodes[0].ask("find", key=gone)
    assert by_kind(answer) == {}
    assert gone not in by_kind(await nodes[0].ask("find", key="tiny"))["shard"]


@pytest.mark.long
async def test_crashed_node_is_found_until_its_records_expire(world: World) -> None:
    """No node withdraws them. At its next start it does so itself, before it serves again."""
    nodes = await swarm(world)
    gone = nodes[2]
    await Faults(world).crash(gone.host)
    await trio.sleep(20)
    answer = await nodes[0].ask("find", key="tiny")
    assert gone.peer in by_kind(answer)["shard"]
    assert any(step["answer"] in ("timeout", "not yet") for step in answer["searches"][0]["path"])
    await trio.sleep(7_200)
    assert gone.peer not in by_kind(await nodes[0].ask("find", key="tiny"))["shard"]


async def test_unknown_name(world: World) -> None:
    (node,) = [await world.host("alone").start()]
    (search,) = (await node.ask("find", key="no-such-model"))["searches"]
    assert search["records"] == [] and search["about"] == "what no-such-model means"


@pytest.mark.parametrize("key", [None, "", 7, ["tiny"], "x" * 401])
async def test_nonsense_is_refused(world: World, key: object) -> None:
    node = await world.host("alone").start()
    with pytest.raises(ControlError, match="`key` is not a text"):
        await node.ask("find", key=key)


async def test_view_of_the_dht(world: World) -> None:
    nodes = await swarm(world)
    await trio.sleep(defaults.SAY_AFTER + 5)  # these records go out in the background
    view = await nodes[1].ask("dht")
    assert (view["mode"], view["contacts"], view["servers"]) == ("server", 2, 2)
    assert {own["kind"] for own in view["own"]} == {"peer", "shard", "name", "blob"}
    assert all(own["stored"] == 2 and own["due_s"] > 0 for own in view["own"])
    assert view["stored"]["records"] >= 4 and view["walk"]["messages"] > 0


async def test_full_disk_is_a_condition(world: World) -> None:
    nodes = await swarm(world, 2)
    nodes[0].node.discovery.trouble(OSError(28, "No space left on device"))
    status = await nodes[0].status()
    assert [item["name"] for item in status["health"]] == ["dht"]
    nodes[0].node.discovery.trouble(None)
    assert (await nodes[0].status())["health"] == []


@pytest.mark.ci
async def test_early_records_reach_nodes_that_join_later(world: World) -> None:
    """The first node may leave at once, and an announcement lives for two hours."""
    first = await world.host("d0").start(engine=False)
    second = await world.host("d1").start(bootstrap=[first], engine=False)
    await trio.sleep(30)
    (own,) = [each for each in second.node.discovery.dht.view().own if each.kind == "peer"]
    assert own.stored == 1
    for number in range(2, 8):
        await world.host(f"d{number}").start(bootstrap=[first], engine=False)
    await trio.sleep(60)
    (own,) = [each for each in second.node.discovery.dht.view().own if each.kind == "peer"]
    assert own.stored >= 4, "announced again after each doubling of the number of nodes"


async def test_facts_known_to_members_are_announced_in_the_background(world: World) -> None:
    """Announcements do not repeat for each address that a node learns while it starts."""
    first = await world.host("d0").start()
    second = await world.host("d1").start(bootstrap=[first])
    await second.until(lambda status: status["peers"] == 1)
    index = second.node.discovery.dht
    await index.joined()

    def announced() -> set[str]:
        return {own.record.body.kind for own in index._records if own.announced is not None}

    index.publish(NameBody("mine", "cd" * 32, 4, 1 << 20), lasting=False)
    with trio.fail_after(defaults.SAY_AFTER / 2):
        await index.flushed(10)
    assert "name" in announced(), "only the DHT knows this"
    assert "peer" not in announced()
    await trio.sleep(2 * defaults.SAY_AFTER)
    assert "peer" in announced()
    assert index._publishing._limiter is not None
