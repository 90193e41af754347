"""kvlocal: the chains whose KV this node holds."""

from shoal.dht import defaults
from shoal.dht.kv.local import LocalChains
from shoal.dht.kv.search import SHORT

from ..chains import LAYERS, chain, forked


def test_held_chunks_of_a_chain() -> None:
    held, long = LocalChains(), chain(10)
    assert held.add(chain(6), LAYERS) == {long.key}
    assert held.held(long, LAYERS) == 6
    assert held.held(long, (2, 5)) == 6, "some of the layers"
    assert held.held(long, (0, 9)) == 0, "more layers than are here"
    assert held.held(chain(10, seed=1), LAYERS) == 0
    assert held.tag(long.tags[5][:SHORT], LAYERS) == long.tags[5]
    assert held.tag(long.tags[6][:SHORT], LAYERS) is None


def test_shared_chunks_stay_while_one_chain_has_them() -> None:
    held, one = LocalChains(), chain(8)
    other = forked(one, 5, 4, seed=2)
    held.add(one, LAYERS)
    held.add(other, LAYERS)
    assert held.remove(one) == {one.key}
    assert held.held(one, LAYERS) == 5 and held.held(other, LAYERS) == 9
    assert held.remove(one) == set()
    held.remove(other)
    assert held.held(other, LAYERS) == 0 and held.chunks == 0 and not len(held)
    assert held.bodies(one.key) == []


def test_a_chain_that_another_contains_is_not_published() -> None:
    held, one = LocalChains(), chain(8)
    held.add(chain(3), LAYERS)
    held.add(one, LAYERS)
    assert held.bodies(one.key) == [one.body(LAYERS)]
    held.remove(one)
    assert held.bodies(one.key) == [chain(3).body(LAYERS)]
    held.add(one, (0, 4))
    assert len(held.bodies(one.key)) == 2, "fewer layers of more chunks contain nothing"


def test_a_chain_added_again_with_other_layers() -> None:
    held, one = LocalChains(), chain(4)
    held.add(one, (0, 4))
    held.add(one, (4, 8))
    assert held.bodies(one.key) == [one.body((4, 8))] and held.chunks == 4
    assert held.held(one, (0, 4)) == 0


def test_as_many_chains_are_published_as_nodes_store() -> None:
    held, one = LocalChains(), chain(2)
    slots = defaults.SLOTS["kv"]
    chains = [forked(one, 1, 2, seed=seed) for seed in range(slots + 5)]
    for each in chains:
        held.add(each, LAYERS)
    told = held.bodies(one.key)
    assert [body.tip for body in told] == [each.tip for each in reversed(chains[5:])]
    held.add(chains[0], LAYERS)
    assert held.bodies(one.key)[0].tip == chains[0].tip, "used just now"
    assert held.held(chains[1], LAYERS) == 3, "the others are held all the same"


def test_beyond_the_limits_the_oldest_is_evicted() -> None:
    held = LocalChains(chains=3, chunks=100)
    chains = [chain(10, seed=seed) for seed in range(4)]
    for each in chains[:3]:
        held.add(each, LAYERS)
    held.add(chains[0], LAYERS)
    assert held.add(chains[3], LAYERS) == {chains[3].key, chains[1].key}
    assert [held.held(each, LAYERS) for each in chains] == [10, 0, 10, 10]
    assert held.add(chain(95, seed=9), LAYERS) >= {chains[2].key, chains[0].key, chains[3].key}
    assert (len(held), held.chunks) == (1, 95)
    held.add(chain(101, seed=8), LAYERS)
    assert (len(held), held.chunks) == (0, 0), "a chain that is too long alone is not accepted"


def test_tags_with_the_same_start_are_kept_apart() -> None:
    held, one = LocalChains(), chain(3)
    twin = forked(one, 0 + 1, 1, seed=3)
    fake = type(twin)(twin.scope, (one.tags[0][:SHORT] + bytes(24), *twin.tags[1:]))
    held.add(one, LAYERS)
    held.add(fake, LAYERS)
    assert held.held(fake, LAYERS) == 0
    held.remove(fake)
    assert held.held(one, LAYERS) == 3
