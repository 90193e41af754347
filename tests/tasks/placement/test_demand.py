"""Tests of the model that is served unasked: strangers cannot choose it, however many."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.state.defaults import MODELS
from shoal.state.membership.record import Aim, Capacity, MemberRecord, ModelName, Rank, ShardRecord
from shoal.tasks.defaults import DEMAND_NETWORKS
from shoal.tasks.placement.demand import (
    Backing,
    choose_model,
    choose_other,
    is_spare,
    waiting_sentence,
)
from shoal.tasks.placement.holes import Members
from shoal.transport.identity import PeerId

from ...cost import cost

ROOT, EVIL, TINY = "ab" * 32, "00" * 32, "cd" * 32
LAYERS = 12
OWN = PeerId("own")


def named(root: str, layers: int = LAYERS, name: str = "model") -> ModelName:
    return ModelName(name, root, layers, 2**30)


def member(peer: str, *roots: str, serves: str = "", layers: int = LAYERS) -> MemberRecord:
    shards = (ShardRecord(serves, True, 0, layers, True, "float32", 9),) if serves else ()
    capacity = Capacity(2, 2**30, True)
    models = tuple(named(root, layers) for root in roots)
    return MemberRecord(PeerId(peer), 1, capacity=capacity, models=models, shards=shards)


def swarm(*records: MemberRecord) -> dict[PeerId, MemberRecord]:
    return {record.peer: record for record in (MemberRecord(OWN, 1), *records)}


def apart(members: Iterable[PeerId]) -> dict[PeerId, str]:
    """Give each peer its own network."""
    return {peer: f"11.0.{number}.0/24" for number, peer in enumerate(members)}


def chosen(members: Members, backing: Backing) -> str | None:
    found = choose_model(members, OWN, backing)
    return None if found is None else found.root


FIFTY = swarm(*(member(f"member{n}", ROOT, serves=ROOT) for n in range(50)))


def test_one_stranger_does_not_beat_fifty_members() -> None:
    members = FIFTY | swarm(member("stranger", EVIL))
    backing = Backing(networks=apart(members))
    assert chosen(members, backing) == ROOT
    found = choose_model(members, OWN, backing)
    assert found is not None and found.settled
    assert found.why == "members in 50 networks name, serve or ask for it"


@settings(deadline=None, max_examples=50)
@given(
    count=st.integers(1, 50),
    networks=st.integers(1, DEMAND_NETWORKS - 1),
    serve=st.booleans(),
    ask=st.booleans(),
    honest=st.booleans(),
)
def test_no_number_of_sybils_in_few_networks_is_enough(
    count: int, networks: int, serve: bool, ask: bool, honest: bool
) -> None:
    sybils = swarm(*(member(f"sybil{n}", EVIL, serves=EVIL if serve else "") for n in range(count)))
    del sybils[OWN]
    where = {peer: f"12.0.{number % networks}.0/24" for number, peer in enumerate(sybils)}
    members = (FIFTY if honest else swarm()) | sybils
    backing = Backing(
        networks=apart(FIFTY) | where, asked={EVIL: set(sybils)} if ask else {}, embedded=TINY
    )
    assert chosen(members, backing) == (ROOT if honest else None)


def test_members_without_a_link_do_not_count() -> None:
    assert chosen(FIFTY, Backing()) is None
    assert chosen(FIFTY, Backing(networks=dict.fromkeys(FIFTY, "relayed"))) is None


@pytest.mark.parametrize("how", ["serve", "name", "ask"])
def test_honest_demand_is_enough(how: str) -> None:
    """Naming a model, or having jobs for it, counts as much as serving it."""
    some = [PeerId(f"member{n}") for n in range(DEMAND_NETWORKS)]
    first = member("first", ROOT)  # a name tells how many layers there are
    others = [
        member(peer, *([ROOT] if how == "name" else []), serves=ROOT if how == "serve" else "")
        for peer in some
    ]
    members = swarm(first, *others)
    asked = {ROOT: set(some)} if how == "ask" else {}
    assert chosen(members, Backing(networks=apart(some), asked=asked)) == ROOT
    few = some[:-1]
    assert chosen(members, Backing(networks=apart(few), asked=asked)) is None


def test_the_word_of_trusted_peers_is_enough() -> None:
    members = swarm(member("inviter", ROOT), member("stranger", EVIL))
    backing = Backing(trusted={PeerId("inviter"): "which invited this node"})
    found = choose_model(members, OWN, backing)
    assert found is not None
    assert (found.root, found.why) == (
        ROOT,
        "inviter, which invited this node, names or serves it",
    )


def test_a_model_with_a_name_here_is_trusted() -> None:
    members = swarm(member("stranger", EVIL)) | {OWN: member(OWN, ROOT)}
    assert chosen(members, Backing(named=frozenset({ROOT}))) == ROOT


def test_of_wanted_models_the_weakest_is_chosen() -> None:
    other = "ef" * 32
    members = FIFTY | swarm(*(member(f"more{n}", other) for n in range(3)))
    assert chosen(members, Backing(networks=apart(members))) == other


def test_the_embedded_model_is_served_only_without_another() -> None:
    alone = swarm(member("a", TINY))
    found = choose_model(alone, OWN, Backing(embedded=TINY))
    assert found is not None and found.settled and found.root == TINY
    members = alone | swarm(member("stranger", EVIL))
    found = choose_model(members, OWN, Backing(embedded=TINY))
    assert found is not None and not found.settled, "the other may be wanted"
    assert chosen(FIFTY | members, Backing(embedded=TINY, networks=apart(FIFTY))) == ROOT
    assert chosen(swarm(), Backing(embedded=TINY)) is None


def test_a_node_that_had_the_embedded_model_serves_it_if_no_other_does() -> None:
    """Without this, two nodes that restart both take the other model."""
    backing = Backing(named=frozenset({TINY, ROOT}), embedded=TINY)
    members = swarm(member("a", TINY, ROOT))
    assert chosen(members, backing) == ROOT, "as long as no node serves either"
    aiming = replace(members[PeerId("a")], aims=(Aim(ROOT, 0, LAYERS, Rank.CLAIMS),))
    assert chosen(members | {aiming.peer: aiming}, backing) == TINY
    serving = swarm(member("a", TINY, ROOT, serves=ROOT), member("b", TINY, serves=TINY))
    assert chosen(serving, backing) == ROOT, "one node of it is enough"


def aims(record: MemberRecord, root: str, rank: Rank = Rank.HOLDS) -> MemberRecord:
    return replace(record, aims=(Aim(root, 0, LAYERS, rank),))


def other(members: Members, own: str, *named: str) -> str | None:
    backing = Backing(named=frozenset(named), embedded=TINY)
    found = choose_other(members, PeerId(own), TINY, backing)
    return None if found is None else found.root


def two() -> dict[PeerId, MemberRecord]:
    """Both serve TINY and have heard of ROOT."""
    return swarm(
        *(aims(member(peer, TINY, ROOT, serves=TINY), TINY) for peer in ("a", "b")),
    )


def test_one_of_two_leaves_for_a_model_that_no_node_serves() -> None:
    members = two()
    assert other(members, "a", ROOT) == ROOT == other(members, "b", ROOT)
    assert other(members, "a") is None, "there is no reason to serve it"
    claiming = {peer: aims(record, ROOT, Rank.CLAIMS) for peer, record in members.items()}
    assert other(claiming, "a", ROOT) == ROOT and other(claiming, "b", ROOT) is None
    b = PeerId("b")
    claiming[b] = replace(claiming[b], stored=(ROOT,))
    assert other(claiming, "b", ROOT) == ROOT and other(claiming, "a", ROOT) is None, (
        "the one that has chunks of it goes"
    )


def test_the_last_replica_stays() -> None:
    members = two()
    del members[PeerId("b")]
    assert other(members, "a", ROOT) is None
    members = two()
    members[PeerId("b")] = aims(members[PeerId("b")], ROOT)
    assert other(members, "a", ROOT) is None


@pytest.mark.parametrize("layers", [1, 99])
def test_sybils_do_not_decide_how_many_layers_a_model_has(layers: int) -> None:
    """With a false number its weakest layer would never have a replica."""
    other = "ef" * 32
    honest = swarm(*(member(f"other{n}", other, serves=other) for n in range(3)))
    members = FIFTY | honest | swarm(*(member(f"sybil{n}", ROOT, layers=layers) for n in range(90)))
    where = apart([*FIFTY, *honest])
    assert chosen(members, Backing(networks=where)) == other
    where |= {PeerId(f"sybil{n}"): "12.0.0.0/24" for n in range(90)}
    assert chosen(members, Backing(networks=where)) == other


def test_a_person_reads_what_is_missing() -> None:
    assert waiting_sentence(swarm(), OWN, Backing()).startswith("no model is known yet")
    evil = member("a", EVIL)
    evil = MemberRecord(evil.peer, 1, models=(named(EVIL, name="\x1b[31mred"),))
    said = waiting_sentence(swarm(evil), OWN, Backing(networks={PeerId("a"): "11.0.0.0/24"}))
    assert "wanted in 1 of the 3 networks" in said and said.isprintable()


def test_a_thousand_members_that_name_all_they_may_take_little_time() -> None:
    records = [
        member(f"sybil{n}", *(f"{n * MODELS + m:064x}" for m in range(MODELS))) for n in range(300)
    ]
    members = FIFTY | swarm(*records)
    with cost() as spent:
        assert chosen(members, Backing(networks=apart(FIFTY))) == ROOT
    assert spent.reference_ms < 1000


def beside(members: Members, own: str, *without: str) -> str | None:
    backing = Backing(named=frozenset((TINY, ROOT)), embedded=TINY)
    found = choose_other(members, PeerId(own), "", backing, without)
    return None if found is None else found.root


def test_a_model_beside_others_is_one_that_no_node_serves_and_one_node_takes_it() -> None:
    members = two()
    assert beside(members, "a", TINY) == ROOT == beside(members, "b", TINY)
    both = {peer: with_aim(record, ROOT, Rank.CLAIMS) for peer, record in members.items()}
    assert beside(both, "a", TINY) == ROOT and beside(both, "b", TINY) is None
    held = members | {PeerId("a"): with_aim(members[PeerId("a")], ROOT)}
    assert beside(held, "b", TINY) is None
    assert beside(members, "a", TINY, ROOT) is None, "it has them already"


def with_aim(record: MemberRecord, root: str, rank: Rank = Rank.HOLDS) -> MemberRecord:
    return replace(record, aims=(*record.aims, Aim(root, 0, LAYERS, rank)))


def test_layers_beside_others_count_for_both_models() -> None:
    members = two()
    members[PeerId("a")] = with_aim(members[PeerId("a")], ROOT)
    for root in (TINY, ROOT):
        assert is_spare(members, PeerId("b"), root, LAYERS), root


def test_of_nodes_with_the_same_layers_the_lowest_stays() -> None:
    members = two()
    assert is_spare(members, PeerId("b"), TINY, LAYERS)
    assert not is_spare(members, PeerId("a"), TINY, LAYERS)
    leaving = members | {PeerId("a"): aims(members[PeerId("a")], ROOT)}
    assert not is_spare(leaving, PeerId("b"), TINY, LAYERS)
