"""State operations of the control socket, on simulated daemons."""

from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.world import World
from shoal.node.control.messages.encoding import encode
from shoal.state.defaults import CONTESTED, SETTLE_AGAIN, WRITE_HOLD
from shoal.state.feeds.entry import NO_PARENT, Proof, seal_entry
from shoal.state.membership.record import ModelName, ShardRecord
from shoal.state.views.models import model_fact
from shoal.transport.errors import ShoalError


async def pair(world: World) -> list[DaemonHandle]:
    first = await world.host("a").start(model="tiny", layers=(0, 6))
    second = await world.host("b").start(bootstrap=[first], engine=False)
    await first.serving()
    await trio.sleep(WRITE_HOLD + 10)
    return [first, second]


async def asked(node: DaemonHandle, op: str, **more: Any) -> tuple[list[Any], Any]:
    events: list[Any] = []

    async def emit(event: Any) -> None:
        events.append(encode(event))

    operation = node.node.control.operations[op]
    return events, encode(await operation(more, emit))


async def test_nodes_see_each_others_feeds(world: World) -> None:
    first, second = await pair(world)
    me = first.node.identity.peer
    events, answer = await asked(second, "state_show", author=me[:14])
    assert answer["unreadable"] == 0
    assert answer["members"] == 2 and answer["feeds"] == len(events)
    facts = {event["kind"]: event["facts"] for event in events}
    assert facts["models"]["tiny"]["layers"] == 6
    assert facts["member"]["about"]["version"]
    (shard,) = facts["shards"].values()
    assert (shard["start"], shard["stop"]) == (0, 6)
    everything, _ = await asked(second, "state_show")
    assert {event["author"] for event in everything} == {me, second.node.identity.peer}
    assert len(everything) == len({(e["author"], e["kind"], e["part"]) for e in everything})
    exported, _ = await asked(second, "state_export", kind="models")
    assert [event["facts"]["tiny"]["layers"] for event in exported if event["author"] == me] == [6]


async def test_log_has_author_value_and_time(world: World) -> None:
    first, second = await pair(world)
    said, answer = await asked(second, "state_log", kind="shards")
    assert answer["changes"] == len(said) == 1
    assert said[0]["value"]["stop"] == 6 and said[0]["made"] > 1e9
    assert said[0]["author"] == first.node.identity.peer
    some, _ = await asked(first, "state_log", key="tiny", author="me")
    assert [event["key"] for event in some] == ["tiny"]
    assert all(event["earlier"] == (event["seq"] == 0) for event in (*said, *some))
    none, _ = await asked(first, "state_log", key="nobody")
    assert none == []


async def test_shard_that_is_no_longer_served_is_withdrawn(world: World) -> None:
    first, second = await pair(world)
    peer = first.node.identity.peer
    assert second.node.state.views.placements.of(peer)
    first.node.directory.publish(shards=())
    await trio.sleep(5)
    assert not second.node.state.views.placements.of(peer)


async def test_requests_write_nothing(world: World) -> None:
    """Facts do not contain values that change with each request."""
    first, second = await pair(world)
    key = first.node.identity.public_key
    shard = first.node.directory.own().shards[0]
    part = int(shard.root[0], 16)
    feed = second.node.state.replica.feed(key, ("shards", part))
    assert feed is not None
    before = feed.head
    await second.ask("run", model="tiny", prompt="Once", max_tokens=4)
    await trio.sleep(5)
    assert feed.head == before


async def test_verify_finds_no_damage(world: World) -> None:
    first, _ = await pair(world)
    _, answer = await asked(first, "state_verify")
    assert answer["feeds"] >= 4 and answer["entries"] >= 4 and answer["damaged"] == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"kind": "nonsense"}, "no feeds of kind `nonsense`"),
        ({"author": "zzzz"}, "no peer known here begins with"),
        ({"author": 7}, "not a text"),
        ({"kind": ""}, "not a text"),
        ({"kind": "x" * 300}, "not a text"),
    ],
)
async def test_invalid_requests_are_refused(world: World, more: dict[str, Any], said: str) -> None:
    node = await world.host("a").start(engine=False)
    for op in ("state_show", "state_log", "state_export"):
        with pytest.raises(ShoalError, match=said):
            await asked(node, op, **more)


async def test_copied_data_folder_is_reported(world: World) -> None:
    node = await world.host("a").start(engine=False)
    assert node.node.state.own.begun
    node.node.state.own.writer.contested_at = trio.current_time()
    node.node.directory.publish(version="other")
    await trio.sleep(2)
    status = await node.ask("status")
    assert any("identity" in c["sentence"] for c in status["health"])
    await trio.sleep(CONTESTED + SETTLE_AGAIN)
    status = await node.ask("status")
    assert not any("identity" in c["sentence"] for c in status["health"]), "the copy was stopped"


async def test_name_known_only_from_a_feed(world: World) -> None:
    """The DHT does not have the name."""
    _, second = await pair(world)
    third = await world.host("c").start(bootstrap=[second], engine=False)
    await trio.sleep(WRITE_HOLD + 10)
    del third.node.state.own.facts.said["models"]  # else the name, unknown here, is withdrawn
    third.node.state.set("models", "far", model_fact(ModelName("far", "ab" * 32, 6, 1000)))
    await trio.sleep(10)
    (meaning,) = second.node.names.near("far")
    assert meaning.root == "ab" * 32
    assert meaning.vouchers[0].peer == third.node.identity.peer


async def test_shard_of_an_earlier_run_is_withdrawn(world: World) -> None:
    first, second = await pair(world)
    peer = first.node.identity.peer
    assert second.node.state.views.placements.of(peer)
    await first.host.crash()
    first.host.program = Daemon(bootstrap=[second], engine=False)
    again = await first.host.restart()
    assert again.node.identity.peer == peer
    await trio.sleep(WRITE_HOLD + SETTLE_AGAIN + 10)
    assert not second.node.state.views.placements.of(peer)


async def test_failing_feed_does_not_affect_other_feeds(world: World) -> None:
    node = (await world.host("a").start(engine=False)).node
    feed = node.state.replica.feed(node.identity.public_key, ("models", 0))
    assert feed is not None
    pair = [seal_entry(node.identity, "models", 0, epoch=1, seq=0, parent=NO_PARENT, made=made,
                       update=b"") for made in (1, 2)]  # fmt: skip
    feed.fork(Proof.of(*pair))
    root = "ab" * 32
    shard = ShardRecord(root, True, 0, 6, True, "float32", 100)
    node.directory.publish(models=(ModelName("tiny", root, 6, 1000),), shards=(shard,))
    await trio.sleep(WRITE_HOLD + 10)
    assert node.state.views.placements.of(node.identity.peer)
    assert [each.name for each in node.health.conditions()] == ["state"], "the owner is told"
    node.directory.publish(shards=())
    await trio.sleep(5)
    assert not node.state.views.placements.of(node.identity.peer)
