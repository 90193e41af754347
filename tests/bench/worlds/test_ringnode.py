"""A light node asks and replies as a real one would, over packets that get lost."""

from functools import partial

import pytest

from bench.worlds.ring import AUTHORS, Ring, blob_record
from bench.worlds.ringnode import DIAL_TRIPS, Aged, found_size
from shoal.dht.kademlia.messages import Find, FindReply, StoreRequest
from shoal.dht.lookup.query import LookupSettings
from shoal.dht.records.record import open_record

pytestmark = pytest.mark.ci  # as the benchmarks themselves


@pytest.fixture(scope="module")
def ring() -> Ring:
    made = Ring(5)
    for number in range(60):
        made.add(f"v{number}")
    made.settle()
    return made


def ask(ring: Ring, by: int, to: int, request: Find | StoreRequest) -> tuple[object, float]:
    """Return the reply, and how long it took."""
    answers: list[tuple[object, float]] = []
    began = ring.now
    node, other = ring.nodes[by], ring.nodes[to].contact
    ring.call(
        node,
        lambda: node.ask(other, request, lambda got: answers.append((got, ring.now - began))),
    )
    ring.advance(10.0)
    return answers[0]


def test_a_link_costs_four_round_trips(ring: Ring) -> None:
    find = Find((blob_record(1).key,))
    first, cold = ask(ring, 1, 2, find)
    second, warm = ask(ring, 1, 2, find)
    assert isinstance(first, FindReply) and isinstance(second, FindReply)
    assert cold / warm == pytest.approx(DIAL_TRIPS + 1, rel=0.35)
    ring.advance(120.0)
    assert ask(ring, 1, 2, find)[1] > 3 * warm


def test_records_are_kept_and_found(ring: Ring) -> None:
    one = blob_record(7, now=ring.now)
    codes, _ = ask(ring, 3, 4, StoreRequest((Aged(0, one.sealed),)))
    found, _ = ask(ring, 5, 4, Find((one.key,)))
    assert codes in ([""], ["not-near"])
    if codes == [""]:
        assert isinstance(found, FindReply) and found.records[0][0].sealed == one.sealed


def test_the_estimate_of_a_size_is_near(ring: Ring) -> None:
    keys = tuple(blob_record(number).key for number in range(3))
    found = ring.nodes[0].find(Find(keys[:1], keys[1:2]))
    assert found_size(found) == pytest.approx(len(found.encode()), rel=0.1)


def test_a_node_that_is_down_is_noticed(ring: Ring) -> None:
    gone = ring.nodes[9]
    ring.hosts[gone.contact.peer].crash()
    before = ring.nodes[8].sent["find"]
    answer, seconds = ask(ring, 8, 9, Find((blob_record(1).key,)))
    assert answer is None and 4 < seconds < 5
    assert ring.nodes[8].sent["find"] == before + 1


def liars() -> Ring:
    made = Ring(6)
    for number in range(5):
        made.add(f"v{number}")
        made.add(f"liar{number}", liar=True)
    return made


def test_liars_keep_nothing_and_name_their_own_kind_and_ghosts() -> None:
    made, one = liars(), blob_record(1)
    made.conspire()
    made.claimed = {one.key: 1}
    liar = made.liars[0]
    assert liar.keep(StoreRequest((Aged(0, one.sealed),)), made.nodes[0].contact) == [""]
    found = liar.find(Find((one.key,), (one.key,)))
    forged = [open_record(each.sealed) for each in found.records[0]]
    assert {each.key for each in forged} == {one.key}
    authors = {each.author for each in forged}
    assert len(authors) == AUTHORS and one.author not in authors
    kin = {other.contact for other in made.liars}
    assert kin < set(found.nearest[0]) and len(found.nearest[0]) == 20
    assert set(found.nearest[0]) - kin != set(found.nearest[1]) - kin  # different ones each time


@pytest.mark.parametrize("puppets", [False, True])
def test_ghosts_do_not_answer_and_puppets_do(puppets: bool) -> None:
    made, one = liars(), blob_record(1)
    made.conspire(puppets=puppets)
    named = set(made.liars[0].find(Find((one.key,))).nearest[0])
    known = {node.contact for node in made.everybody()}
    answers: list[object] = []
    asker = made.nodes[0]
    for ghost in named - known:
        made.call(asker, partial(asker.ask, ghost, Find(()), answers.append))
    made.advance(20.0)
    assert len(answers) == len(named - known) >= 15
    assert any(answers) == puppets and not all(answers)


def test_settings_reach_the_look_ups() -> None:
    made = Ring(7, settings=LookupSettings(paths=1, random_order=False))
    for number in range(30):
        made.add(f"v{number}")
    made.settle()
    (got,) = made.get_all([(made.nodes[0], blob_record(1).key)])
    assert not got.found and 20 <= got.queries <= 30
