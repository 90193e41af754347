"""Where prefixes are cached: names in probes, memory of gateways and stages, hashes."""

from shoal.tasks.engine.interface import NAME_BYTES
from shoal.tasks.inference.names import PrefixNames
from shoal.tasks.routing.affinity import CachedNames, Hotness, Prefix, PrefixMemory, ranked
from shoal.tasks.routing.defaults import HOT_WINDOW, KEY_POSITIONS, PROBE_NAMES
from shoal.transport.identity import PeerId

A, B, C = (PeerId(name) for name in "abc")
NAMES = PrefixNames(b"secret")


def names_of(*parts: int) -> bytes:
    """Return the names of a prompt that has 256 equal tokens for each part."""
    return NAMES.of("root", [part for part in parts for _ in range(KEY_POSITIONS)])


def prefix_of(*parts: int) -> Prefix:
    return Prefix.of(names_of(*parts))


def test_a_prefix_has_a_name_for_each_256_positions_and_survives_the_wire() -> None:
    prefix = prefix_of(1, 2, 3)
    assert (len(prefix.names), prefix.every) == (3, KEY_POSITIONS)
    assert prefix.names[:2] == prefix_of(1, 2, 4).names[:2]
    assert prefix.names[2] != prefix_of(1, 2, 4).names[2]
    assert Prefix.split(prefix.every, prefix.joined).names == prefix.names
    assert Prefix.of(names_of(1)[:-NAME_BYTES]).names == ()


def test_names_of_a_long_prompt_are_further_apart_and_not_more() -> None:
    prefix = prefix_of(*range(3 * PROBE_NAMES))
    assert len(prefix.names) == PROBE_NAMES
    assert prefix.every == 3 * KEY_POSITIONS
    assert prefix.names[0] == prefix_of(*range(3)).names[2]


def test_a_gateway_remembers_the_chains_with_the_longest_prefix() -> None:
    sent = PrefixMemory()
    sent.note(prefix_of(1, 2), (A,))
    sent.note(prefix_of(1, 2, 3), (B,))
    assert sent.find(prefix_of(1, 2, 3, 4)) == {(B,): 768, (A,): 512}
    assert sent.find(prefix_of(1, 9)) == {(B,): 256, (A,): 256}
    assert sent.find(prefix_of(9)) == {}


def test_the_memory_of_a_gateway_is_bounded_and_drops_the_oldest() -> None:
    sent = PrefixMemory(most=4)
    for number in range(10):
        sent.note(prefix_of(number, 1), (A,))
    assert sent.find(prefix_of(0, 1)) == {}
    assert sent.find(prefix_of(9, 1)) == {(A,): 512}


def test_a_stage_knows_what_it_cached_for_each_gateway_alone() -> None:
    cached = CachedNames(100 * KEY_POSITIONS)
    cached.note("one", names_of(1, 2, 3))
    assert cached.length("one", prefix_of(1, 2, 9)) == 512
    assert cached.length("two", prefix_of(1, 2, 9)) == 0


def test_a_stage_forgets_names_as_its_memory_does() -> None:
    cached = CachedNames(4 * KEY_POSITIONS)
    cached.note("one", names_of(1, 2, 3))
    for number in range(10):  # a hostile gateway gains no memory by names
        cached.note("two", names_of(number, number, number, number))
    assert len(cached) == 4
    assert cached.length("one", prefix_of(1, 2, 3)) == 0


def test_the_key_of_a_prompt_lies_behind_what_all_prompts_have_in_common() -> None:
    hotness = Hotness()
    for number in range(200):
        hotness.note(prefix_of(1, 1, number))
    keys = {hotness.key(prefix_of(1, 1, number), 8) for number in range(200)}
    assert len(keys) == 200
    assert hotness.key(prefix_of(1, 1, 3), 8) == hotness.key(prefix_of(1, 1, 3, 4), 8)
    assert hotness.key(Prefix.of(b""), 8) == b""


def test_the_key_of_a_conversation_stays_when_it_grows_long() -> None:
    hotness = Hotness()
    short, long = prefix_of(*range(100)), prefix_of(*range(300))
    assert long.every > short.every
    assert hotness.key(short, 8) == hotness.key(long, 8)


def test_counts_are_halved_so_that_a_prompt_of_the_past_is_no_longer_common() -> None:
    hotness = Hotness()
    for _ in range(100):
        hotness.note(prefix_of(1, 2))
    assert hotness.key(prefix_of(1, 2), 8) == prefix_of(1, 2).names[-1]  # none is special
    for number in range(12 * HOT_WINDOW):
        hotness.note(prefix_of(1000 + number % 50, number))
    assert hotness.key(prefix_of(1, 2), 8) == prefix_of(1, 2).names[0]


def test_a_peer_that_leaves_moves_only_its_own_keys() -> None:
    peers = [PeerId(f"peer-{number}") for number in range(8)]
    keys = [bytes([number, number // 200]) for number in range(200)]
    before = {key: ranked(key, dict.fromkeys(peers, 1.0))[0] for key in keys}
    after = {key: ranked(key, dict.fromkeys(peers[1:], 1.0))[0] for key in keys}
    moved = [key for key in keys if before[key] != after[key]]
    assert {before[key] for key in moved} == {peers[0]}
    assert len(moved) < 2 * len(keys) / len(peers)


def test_a_peer_with_more_weight_is_chosen_more_often() -> None:
    weights = {A: 3.0, B: 1.0}
    first = [ranked(bytes([number % 200, number // 200]), weights)[0] for number in range(1000)]
    assert 0.70 < first.count(A) / 1000 < 0.80
