"""DHT records of this node, and the records of members as a second source."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.dht.records.key import Key, record_key
from shoal.dht.records.record import BlobBody, Body, NameBody, ShardBody
from shoal.netsim.world import World
from shoal.node import defaults
from shoal.node.swarm import discovery
from shoal.node.swarm.discovery import Discovery, bodies, learn
from shoal.state.membership.record import MemberRecord, ModelName, ShardRecord
from shoal.tasks.engine.interface import Parts
from shoal.transport.identity import PeerId

ROOT = "ab" * 32
SHARD = ShardRecord(ROOT, True, 0, 6, True, "float32", 9)
MEMBER = MemberRecord(
    PeerId("member"), 7, models=(ModelName("tiny", ROOT, 6, 9),), shards=(SHARD,), stored=(ROOT,)
)


class Directory:
    def __init__(self, *records: MemberRecord) -> None:
        self.records = {record.peer: record for record in records}

    def members(self) -> dict[PeerId, MemberRecord]:
        return self.records


def told(directory: Directory) -> Discovery:
    """Return a discovery that has only its second source."""
    found: Any = SimpleNamespace(_directory=directory, keys={})
    return found  # type: ignore[no-any-return]


def heard(one: Discovery, key: Key) -> list[Body]:
    return [each.record.body for each in Discovery.told_by_members(one, key)]


def test_member_records_give_records_of_the_same_keys() -> None:
    one = told(Directory(MEMBER))
    assert heard(one, record_key("name", "tiny")) == [NameBody("tiny", ROOT, 6, 9)]
    (shard,) = heard(one, record_key("shard", ROOT))
    assert isinstance(shard, ShardBody) and shard.slot == "0:6:float32"
    assert heard(one, record_key("name", "other")) == []


def test_provider_record_takes_precedence_over_the_member_record() -> None:
    (found,) = Discovery.told_by_members(told(Directory(MEMBER)), record_key("blob", ROOT))
    assert found.record.made == 1 and found.record.body == BlobBody(ROOT, 0, 1, ())


def test_keys_of_a_member_record_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of members with hundreds of names must not block the event loop at each look-up."""
    looked: list[PeerId] = []

    def counted(record: MemberRecord) -> Any:
        looked.append(record.peer)
        return bodies(record)

    monkeypatch.setattr(discovery, "bodies", counted)
    directory = Directory(MEMBER)
    one = told(directory)
    for _ in range(5):
        heard(one, record_key("name", "other"))
    assert len(looked) == 1
    changed = MemberRecord(MEMBER.peer, 8, models=(ModelName("other", ROOT, 6, 9),))
    directory.records[MEMBER.peer] = changed
    assert len(heard(one, record_key("name", "other"))) == 1
    directory.records.clear()
    assert heard(one, record_key("name", "other")) == [] and not one.keys


async def test_node_publishes_roots_names_and_shards(world: World) -> None:
    daemon = await world.host("alone").start()
    await daemon.serving()
    await daemon.generate("Once", max_tokens=40)
    await daemon.until(
        lambda status: any(
            isinstance(each, ShardBody) and each.speed for each in daemon.node.discovery.dht.own()
        ),
        every=10,
    )
    said = {each.kind: each for each in daemon.node.discovery.dht.own()}
    assert set(said) == {"peer", "name", "blob", "shard"}
    name, blob, shard = said["name"], said["blob"], said["shard"]
    assert isinstance(name, NameBody) and isinstance(blob, BlobBody)
    assert name.name == "tiny" and name.root == blob.root and blob.ranges is None
    assert isinstance(shard, ShardBody)
    speed = daemon.node.stage.speed(shard.root, Parts(True, 0, shard.stop, True))
    measured = speed.tokens_per_s
    assert shard.speed == pytest.approx(measured, rel=0.05)
    predicted = (await daemon.status())["serving"]["predicted"]
    assert predicted["tokens_per_s"] == pytest.approx(measured)
    assert predicted["samples"] > 30 and predicted["error"] < 0.05
    daemon.node.discovery.speed = lambda _: measured * 1.2
    assert daemon.node.discovery.measured(shard) == shard, "a small change is not published"
    daemon.node.discovery.speed = lambda _: measured * 2
    faster = daemon.node.discovery.measured(shard)
    assert isinstance(faster, ShardBody) and faster.speed == pytest.approx(2 * measured, rel=0.05)


@pytest.mark.parametrize("defended", [True, False])
def test_member_records_are_read_in_small_steps(
    monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """A thousand full records take a second. Without the bound, the first look-up would take that
    long. In the end all are known, except members that left or changed their records."""
    if not defended:
        monkeypatch.setattr(defaults, "MEMBERS_READ", 10_000)
    members = [replace(MEMBER, peer=PeerId(f"m{n}")) for n in range(100)]
    directory = Directory(*members)
    one = told(directory)
    key = record_key("name", "tiny")
    assert (len(heard(one, key)) <= 10) is defended
    while not learn(one.keys, directory.members(), 10):
        pass
    assert len(heard(one, key)) == 100
    del directory.records[PeerId("m0")]
    directory.records[PeerId("m1")] = replace(MEMBER, peer=PeerId("m1"), models=())
    assert len(heard(one, key)) == 98
