"""Tests of where a node gets models from."""

from typing import cast

from shoal.dht.content.library import Library
from shoal.state.membership.record import ModelName, ShardRecord
from shoal.tasks.inference.sources import providers, resolve
from tests.tasks.fake_node import FakeDirectory, FakeLibrary, record_of
from tests.tasks.fake_swarm import peer_of


def test_holders_are_the_other_members_with_any_part() -> None:
    directory, root = FakeDirectory(), "ab" * 32
    shard = ShardRecord(root, True, 0, 1, False, "float32", 1)
    directory.put(record_of(peer_of(1), stored=(root,)))  # our own
    directory.put(record_of(peer_of(3), stored=(root,)))
    directory.put(record_of(peer_of(4), models=(ModelName("m", root, 1, 1),)))
    directory.put(record_of(peer_of(5), shards=(shard,)))
    directory.put(record_of(peer_of(6), stored=("cd" * 32,)))
    assert sorted(providers(root, directory)) == sorted(peer_of(number) for number in (3, 4, 5))
    assert resolve("m", cast(Library, FakeLibrary()), directory) == root
