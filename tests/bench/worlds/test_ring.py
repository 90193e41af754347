"""Light nodes join, publish and find; liars do not stop them unless the defences are off."""

from random import Random

import pytest

from bench.worlds.ring import Ring, blob_record, ground
from shoal.dht.lookup.query import LookupSettings
from shoal.dht.records.key import distance, node_key
from shoal.transport.identity import peer_id_of

pytestmark = pytest.mark.ci  # as the benchmarks themselves

OFF = LookupSettings(paths=1, random_order=False, subnet_limits=False, doubt=False)


def ring_of(count: int, seed: int = 1, *, defended: bool = True) -> Ring:
    made = Ring(
        seed,
        settings=LookupSettings() if defended else OFF,
        subnet_limits=defended,
        spread=defended,
    )
    for number in range(count):
        made.add(f"v{number}")
    return made


def found(ring: Ring, keys: int, count: int) -> float:
    asked = [
        (ring.random.choice(ring.up()), blob_record(ring.random.randrange(keys)).key)
        for _ in range(count)
    ]
    return sum(got.found for got in ring.get_all(asked)) / count


def test_they_join_publish_and_find() -> None:
    ring = ring_of(60)
    ring.join()
    assert min(len(node.table) for node in ring.nodes) >= 20
    walk = ring.publish(ring.nodes[0], [blob_record(n, now=ring.now) for n in range(20)])
    assert min(len(done.kept) for done in walk.results.values()) >= 15
    assert found(ring, 20, 60) == 1.0


def test_a_third_leaves_at_once() -> None:
    ring = ring_of(150)
    ring.settle()
    ring.publish(ring.nodes[0], [blob_record(number) for number in range(20)])
    ring.crash(0.3)
    assert len(ring.up()) == 105
    assert found(ring, 20, 60) >= 0.98


@pytest.mark.ci
@pytest.mark.parametrize("defended", [True, False])
def test_identities_ground_next_to_a_key(defended: bool) -> None:
    """Run the same attack with the defences and without."""
    ring = ring_of(250, defended=defended)
    for number, key in enumerate(ground(ring.random, blob_record(0).key, 45, 9)):
        ring.add(f"liar{number}", liar=True, key=key)
    ring.conspire()
    ring.settle(first=ring.liars)
    ring.publish(ring.nodes[0], [blob_record(0)])
    share = found(ring, 1, 60)
    assert (share >= 0.95) if defended else (share < 0.5)


@pytest.mark.ci
@pytest.mark.parametrize("doubt", [True, False])
def test_liars_that_name_ghosts(doubt: bool) -> None:
    """No records go to ghosts; without doubt most do, and the walk waits for them."""
    made = Ring(2, settings=LookupSettings(doubt=doubt))
    for number in range(200):
        made.add(f"v{number}")
    for number in range(50):
        made.add(f"liar{number}", liar=True)
    made.conspire()
    made.settle()
    records = [blob_record(number) for number in range(5)]
    walk = made.publish(made.nodes[0], records)
    there = {node.contact.peer for node in made.everybody()}
    to = [peer for done in walk.results.values() for peer in done.sent]
    ghosts = sum(peer not in there for peer in to) / len(to)
    assert (ghosts < 0.15) if doubt else (ghosts > 0.4)


def test_the_same_seed_is_the_same_run() -> None:
    seen = []
    for _ in range(2):
        ring = ring_of(40, seed=3)
        ring.join()
        seen.append((ring.world.events.count, [len(node.table) for node in ring.nodes]))
    assert seen[0] == seen[1]


def test_ground_keys_lie_next_to_the_key() -> None:
    key = blob_record(0).key
    for public in ground(Random(1), key, 3, 6):
        assert distance(node_key(peer_id_of(public)), key) < 2**250
