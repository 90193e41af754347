"""Tests of the shortest chain that covers a model, and of the error if there is none."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.state.membership.record import Aim, Capacity, MemberRecord, Rank, ShardRecord
from shoal.tasks.defaults import MAX_STAGES
from shoal.tasks.engine.interface import Parts
from shoal.tasks.errors import NoRoute
from shoal.tasks.inference.shards import Preference, find_route, largest_room, shards_of
from shoal.tasks.routing.defaults import SHARDS_LOOKED, SHARDS_OF_PEER
from shoal.tasks.routing.paths import Hop
from shoal.transport.identity import PeerId

ROOT = "ab" * 32
LAYERS = 12
Members = dict[PeerId, MemberRecord]


def swarm(**shards: tuple[int, int]) -> Members:
    return {
        PeerId(name): member(name, ShardRecord(ROOT, a == 0, a, b, b == LAYERS, "float32", 100))
        for name, (a, b) in shards.items()
    }


def member(name: str, *shards: ShardRecord) -> MemberRecord:
    capacity = Capacity(2, 2**30, True)
    return MemberRecord(PeerId(name), 1, capacity=capacity, shards=shards)


def peers(members: Members, tokens: int = 10, own: str = "", session: bytes = b"") -> str:
    route = find_route(members, ROOT, LAYERS, tokens, Preference(PeerId(own), session))
    check(route)
    return "".join(hop.peer for hop in route)


def check(route: tuple[Hop, ...]) -> None:
    """Embedding, every layer once and in order, head; no peer twice; one dtype."""
    assert route[0].parts.embedding
    assert route[-1].parts.head
    layers = [layer for hop in route for layer in range(hop.parts.start, hop.parts.stop)]
    assert layers == list(range(LAYERS))
    assert len({hop.peer for hop in route}) == len(route)
    assert len({hop.dtype for hop in route}) == 1


def test_a_node_with_all_layers_is_the_chain() -> None:
    members = swarm(a=(0, 6), b=(6, 12), c=(0, 12))
    assert peers(members) == "c"
    (hop,) = find_route(members, ROOT, LAYERS, 10)
    assert hop == Hop(PeerId("c"), Parts(True, 0, LAYERS, True), "float32")


def test_the_fewest_hops_win() -> None:
    assert peers(swarm(a=(0, 4), b=(4, 8), c=(8, 12), d=(4, 12))) == "ad"


def test_avoided_peers_are_used_only_as_a_last_resort() -> None:
    def avoiding(members: Members, *avoid: str) -> str:
        prefer = Preference(avoid={PeerId(name) for name in avoid})
        return "".join(hop.peer for hop in find_route(members, ROOT, LAYERS, 10, prefer))

    members = swarm(a=(0, 6), b=(6, 12), c=(0, 12), d=(6, 12))
    assert avoiding(members) == "c"
    assert avoiding(members, "c", "b") == "ad"
    assert avoiding(members, "a", "b", "c", "d") == "c"
    assert avoiding(swarm(a=(0, 6), b=(6, 12)), "b") == "ab"


def test_shards_join_exactly_or_not_at_all() -> None:
    with pytest.raises(NoRoute):
        peers(swarm(a=(0, 7), b=(6, 12)))


def test_its_own_shard_is_preferred() -> None:
    members = swarm(a=(0, 6), b=(0, 6), c=(6, 12), d=(6, 12))
    for own in "abcd":
        assert own in peers(members, own=own)


def test_sessions_spread_over_replicas_and_repeat() -> None:
    members = swarm(a=(0, 6), b=(0, 6), c=(6, 12), d=(6, 12))
    chains = [peers(members, session=bytes([number])) for number in range(64)]
    assert set(chains) == {"ac", "ad", "bc", "bd"}
    assert chains == [peers(members, session=bytes([number])) for number in range(64)]


def test_a_full_stage_is_skipped() -> None:
    members = swarm(a=(0, 12), b=(0, 6), c=(6, 12))
    full = ShardRecord(ROOT, True, 0, 12, True, "float32", 9)
    members[PeerId("a")] = member("a", full)
    assert peers(members) == "bc"
    assert peers(members, tokens=9) == "a"
    with pytest.raises(NoRoute) as caught:
        peers(members, tokens=1000)
    assert "room for a prompt of 1000 tokens" in caught.value.message


def too_long(members: Members, prompt: int, answer: int) -> tuple[str, str | None]:
    with pytest.raises(NoRoute) as caught:
        find_route(members, ROOT, LAYERS, prompt + answer, answer=answer)
    return caught.value.message, caught.value.hint


def with_room(**rooms: int) -> Members:
    """Nodes `a…` serve layers 0:6, all others the rest."""
    return {
        PeerId(name): member(
            name,
            ShardRecord(ROOT, name < "b", 0, 6, False, "float32", room)
            if name < "b"
            else ShardRecord(ROOT, False, 6, LAYERS, True, "float32", room),
        )
        for name, room in rooms.items()
    }


def test_the_largest_room_is_that_of_the_narrowest_stage_of_the_widest_chain() -> None:
    assert largest_room(with_room(a1=900, a2=50, b1=700, b2=20), ROOT, LAYERS) == 700
    assert largest_room(with_room(a1=900), ROOT, LAYERS) is None
    assert largest_room(with_room(a1=0, b1=700), ROOT, LAYERS) == 0
    assert largest_room({}, ROOT, LAYERS) is None


def test_the_error_names_the_largest_prompt_that_fits() -> None:
    members = with_room(a1=900, b1=700)
    message, hint = too_long(members, 1223, 100)
    assert message.endswith("the largest prompt that fits now has 600 tokens")
    assert "prompt of 1223 tokens and an answer of up to 100" in message
    assert hint and "may take 700 tokens" in hint
    message, hint = too_long(members, 650, 1024)
    assert message.endswith("fits now has 699 tokens, with `--max-tokens 1`")
    assert hint == "`--max-tokens 50` fits beside this prompt"
    for prompt, answer in ((600, 100), (650, 50), (699, 1)):
        find_route(members, ROOT, LAYERS, prompt + answer, answer=answer)


def test_a_full_swarm_and_shards_that_do_not_join_have_different_errors() -> None:
    assert "full of other requests" in too_long(with_room(a1=0, b1=700), 5, 5)[0]
    assert "join into a chain" in too_long(swarm(a=(0, 7), b=(6, 12)), 5, 5)[0]


def chain_of(count: int) -> Members:
    return {
        PeerId(f"p{n}"): member(
            f"p{n}", ShardRecord(ROOT, n == 0, n, n + 1, n == count - 1, "float32", 10)
        )
        for n in range(count)
    }


def test_a_chain_is_no_longer_than_stages_accept() -> None:
    """It also bounds the work that the shards of strangers make."""
    assert len(find_route(chain_of(MAX_STAGES), ROOT, MAX_STAGES, 1)) == MAX_STAGES
    with pytest.raises(NoRoute, match="no shards join into a chain"):
        find_route(chain_of(MAX_STAGES + 1), ROOT, MAX_STAGES + 1, 1)


def test_a_chain_has_one_dtype() -> None:
    members = swarm(a=(0, 6), b=(6, 12))
    other = ShardRecord(ROOT, False, 6, 12, True, "bfloat16", 100)
    members[PeerId("b")] = member("b", other)
    with pytest.raises(NoRoute):
        peers(members)


def test_a_shard_with_an_unknown_dtype_is_ignored() -> None:
    """Otherwise one false record, the shortest chain of all, would be chosen for every request."""
    members = swarm(a=(0, 6), b=(6, 12))
    false = ShardRecord(ROOT, True, 0, 12, True, "aaa", 2**40)
    members[PeerId("c")] = member("c", false)
    assert peers(members) == "ab"


def test_embedding_and_head_are_needed() -> None:
    for embedding, head in ((False, True), (True, False)):
        shard = ShardRecord(ROOT, embedding, 0, 12, head, "float32", 100)
        with pytest.raises(NoRoute):
            peers({PeerId("a"): member("a", shard)})


def test_the_error_says_what_is_missing() -> None:
    with pytest.raises(NoRoute) as caught:
        peers(swarm(a=(0, 4), b=(8, 12)))
    assert caught.value.code == "no-route"
    assert "layers 4:8 of model abababababababab (12 layers)" in caught.value.message
    assert caught.value.hint and caught.value.hint.startswith("start a node")
    members = swarm(a=(0, 4), b=(8, 12)) | {PeerId("c"): member("c")}
    for aims, soon in (((), False), ((Aim(ROOT, 4, 8, Rank.CLAIMS),), True)):
        members[PeerId("c")] = replace(members[PeerId("c")], aims=aims)
        with pytest.raises(NoRoute) as caught:
            peers(members)
        assert caught.value.hint and ("try again in a moment" in caught.value.hint) is soon
    with pytest.raises(NoRoute):
        peers({})


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 13)), max_size=12))
def test_any_chain_found_is_whole_and_shortest(spans: list[tuple[int, int]]) -> None:
    members = swarm(**{f"p{n}": (a, b) for n, (a, b) in enumerate(spans) if a < b})
    shortest = _fewest([s for s in spans if s[0] < s[1] <= LAYERS])
    if shortest is None:
        with pytest.raises(NoRoute):
            find_route(members, ROOT, LAYERS, 1)
    else:
        route = find_route(members, ROOT, LAYERS, 1)
        check(route)
        assert len(route) == shortest


def _fewest(spans: list[tuple[int, int]]) -> int | None:
    reach, hops = {0}, 0
    while LAYERS not in reach and hops < LAYERS:
        reach, hops = reach | {b for a, b in spans if a in reach}, hops + 1
    return hops if LAYERS in reach else None


SHARD = st.tuples(st.integers(0, LAYERS - 1), st.integers(1, LAYERS), st.integers(0, 5))


@given(st.lists(SHARD, max_size=12))
def test_the_largest_room_is_the_most_that_a_search_finds(
    shards: list[tuple[int, int, int]],
) -> None:
    members = {
        PeerId(f"p{number}"): member(
            f"p{number}",
            ShardRecord(ROOT, start == 0, start, stop, stop == LAYERS, "float32", room),
        )
        for number, (start, stop, room) in enumerate(shards)
        if start < stop
    }
    fitting = [room for room in range(6) if _fits(members, room)]
    assert largest_room(members, ROOT, LAYERS) == max(fitting, default=None)


def _fits(members: Members, tokens: int) -> bool:
    try:
        return bool(find_route(members, ROOT, LAYERS, tokens))
    except NoRoute:
        return False


class Counted(Mapping[PeerId, MemberRecord]):
    """Members that count how often all of them are read."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.passes = 0

    def __getitem__(self, peer: PeerId) -> MemberRecord:
        return self.members[peer]

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[PeerId]:
        self.passes += 1
        return iter(self.members)


def test_the_largest_room_takes_no_search() -> None:
    """A search for each size held the event loop for 0.6 s in a swarm with 1,000 liars."""
    members = Counted(with_room(a1=900, b1=700))
    assert largest_room(members, ROOT, LAYERS) == 700
    assert members.passes == 1


def test_a_member_with_thousands_of_shards_gets_a_few_looked_at() -> None:
    shard = ShardRecord(ROOT, True, 0, LAYERS, True, "float32", 100)
    flood = {PeerId("flood"): member("flood", *[shard] * 5000), **swarm(a=(0, LAYERS))}
    found = shards_of(flood, ROOT, LAYERS, 10)
    assert Counter(hop.peer for hop in found) == {"flood": SHARDS_OF_PEER, "a": 1}
    crowd = {PeerId(f"p{n}"): member(f"p{n}", *[shard] * 8) for n in range(1000)}
    some = shards_of({**crowd, **swarm(a=(0, LAYERS))}, ROOT, LAYERS, 10)
    assert SHARDS_LOOKED / 2 < len(some) <= SHARDS_LOOKED
    assert len({hop.peer for hop in some}) > 400, "of many peers"
